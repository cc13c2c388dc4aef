#!/usr/bin/env bash
# Processes that a launcher has started: what connects them where --comm is not given. None works alone unasked.
. "$(dirname "$0")/common.bash"
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT OMPI_COMM_WORLD_SIZE PMI_SIZE
bench=(bench --shape 16x16 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 -n 1 -w 0)
verify=(verify --cases 5)
mpi=$("$RESHARD" info | grep -c '^communicators.*mpi')

# as torchrun says it: those of one node find each other
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000))
while (: <"/dev/tcp/127.0.0.1/$((MASTER_PORT + 1))") 2>/dev/null; do # another's
  MASTER_PORT=$((20000 + RANDOM % 10000))
done
together() { # PATTERN ARGUMENT...: four processes, of which the first tells
  local rank pattern=$1 good=1 pids=()
  shift
  for rank in 0 1 2 3; do
    RANK=$rank WORLD_SIZE=4 "$RESHARD" "$@" >"out-$rank" 2>"err-$rank" &
    pids+=($!)
  done
  for rank in 0 1 2 3; do wait "${pids[rank]}" || good=0; done
  [ $good = 1 ] && grep -q "$pattern" out-0 && [ ! -s out-1 ] && [ ! -s out-2 ] && [ ! -s out-3 ] ||
    fault "four processes: $* $(cat out-? err-?)"
  rm -f out-? err-?
}
together '4 ranks of 4 processes by node' "${bench[@]}"
together '^0 of them failed' "${verify[@]}"
for rank in 0 1; do
  export RANK=$rank WORLD_SIZE=4
  for command in bench verify; do
    declare -n arguments=$command
    RESHARD_TIMEOUT_MS=100 refuse 1 'rendezvous: .*within 100 ms' "${arguments[@]}" # the others do not come
    LOCAL_WORLD_SIZE=2 LOCAL_RANK=1 refuse 2 'says 4 processes, 2 of them on this node.*mpirun.*--comm local' \
      "${arguments[@]}"
    expect 0 "${arguments[@]}" --comm local # each alone, as asked for
    RANK=0 WORLD_SIZE=1 expect 0 "${arguments[@]}"
  done
done
says 'cases'
WORLD_SIZE=x refuse 2 'WORLD_SIZE=x: a number' "${bench[@]}"
expect 0 plan --shape 16x16 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 # moves nothing, by whomever it was started
unset RANK
expect 0 "${bench[@]}" # one of the two alone says nothing

# those that the program starts itself
expect 0 "${bench[@]}" --processes 4 -c 1
says '4 ranks of 4 processes by node'
expect 0 "${verify[@]}" --processes 3
says '^0 of them failed'
expect 0 verify --cases 40 --processes 3 --path direct # from array to array
says '^0 of them failed'
expect 0 trace --shape 16x16 --src 'chunk(0)' --dst 'chunk(1)' --processes 2 --json -
refuse 2 '-t 2.*8 ranks|8 ranks' "${bench[@]}" --processes 4 -t 2
refuse 2 'node or nccl connects them, not local' "${bench[@]}" --processes 4 --comm local
"$RESHARD" info | grep -q '^cuda:0' || refuse 3 '--device cuda: this' "${bench[@]}" --comm node --device cuda

# A process that is stopped is silent: the run ends, with one line that names it, and leaves no process. Where the
# others wait for it, they find out; where nobody does, the program.
silent() { # RANK SIGNAL STATUS PATTERN: stops that child of a run that has begun, and sends the signal to the program
  local rank=$1 signal=$2 want=$3 child status=0
  : >out
  RESHARD_TIMEOUT_MS=1000 "$RESHARD" "${bench[@]:0:9}" --processes 4 -n 1 -w 0 -N 0 >out 2>err </dev/null &
  local program=$!
  for ((i = 0; i < 3000; i++)); do [ "$(grep -c ' f32 ' out)" -lt 2 ] || break; sleep 0.1; done
  read -ra children <"/proc/$program/task/$program/children"
  child=${children[rank]}
  kill -STOP "$child"
  [ "$signal" = none ] || kill -"$signal" $program
  wait $program || status=$?
  checks=$((checks + 1))
  [ "$status" = "$want" ] || fault "process $rank is stopped: status $status, not $want: $(head -c 900 err)"
  [ "$want" != 1 ] || { [ "$(wc -l <err)" = 1 ] && grep -qE "^reshard: error: .*$4" err; } ||
    fault "process $rank is stopped: $(head -c 900 err)"
  ! kill -0 "$child" 2>/dev/null || fault "process $rank is still there"
}
if [ -r "/proc/$$/task/$$/children" ]; then
  for rank in 0 2; do silent $rank none 1 "(missing: $rank[; ]|process [0-9]+ \\(rank $rank\\) is silent)"; done
  silent 1 TERM 143
fi

# as mpirun says it
unset WORLD_SIZE MASTER_ADDR MASTER_PORT
for name in OMPI_COMM_WORLD_SIZE PMI_SIZE; do
  export $name=1
  expect 0 "${bench[@]}"
  export $name=3
  expect 0 "${bench[@]}" --comm local
  [ "$mpi" != 0 ] || refuse 3 'mpirun has started 3 processes.*no MPI.*--comm local' "${bench[@]}"
  unset $name
done
finish
