#!/usr/bin/env bash
# A program that hangs is asked by SIGUSR1 where its ranks are; and one line tells why several processes end.
. "$(dirname "$0")/common.bash"
unset RANK WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMI_RANK PMI_SIZE

# a long run stands for one that hangs
(
  trap '' USR1 # it ends no program that has not begun to answer
  exec "$RESHARD" bench --shape 64x64 --src 'chunk(0)' --dst 'chunk(1)' --ranks 3 --threads 1 -n 1000000 -w 0 -N 0
) >out 2>err &
program=$!
for _ in $(seq 6000); do
  sleep 0.1
  kill -USR1 $program 2>/dev/null || break
  # a report may come before a rank's first call of the library, as in an all-gather of the program
  [ "$(grep -oE '^rank [012]: (in|out of) reshard_' err | sort -u -k2,2 | wc -l)" = 3 ] && break
done
kill -KILL $program
wait $program 2>/dev/null
checks=$((checks + 1))
grep -q '^reshard: process 0: local, 3 ranks$' err || fault "no report: $(head -c 300 err)"
for rank in 0 1 2; do
  grep -qE "^rank $rank: (in|out of) reshard_[a-z_]+, call [0-9]+: " err || fault "no rank $rank: $(head -c 600 err)"
done

# each process has its turn; the end of the first is mostly that of all
bad=(bench --shape 16x16 --src 'chunk(9)' --dst 'chunk(1)' --comm local --ranks 4)
OMPI_COMM_WORLD_RANK=0 refuse 2 'dim 9' "${bad[@]}"
OMPI_COMM_WORLD_RANK=1 refuse 2 'dim 9' "${bad[@]}"
for _ in {1..5}; do # a machine may be so busy that its turn comes
  OMPI_COMM_WORLD_RANK=7 "$RESHARD" "${bad[@]}" >out 2>err &
  program=$!
  sleep 0.3
  kill $program
  wait $program 2>/dev/null
  [ -s err ] || break
done
checks=$((checks + 1))
[ ! -s err ] || fault "the last process speaks first: $(cat err)"
if type mpirun >/dev/null 2>&1 && mpirun --version | grep -q 'Open MPI' &&
  "$RESHARD" info | grep -q '^communicators.*mpi'; then
  for _ in {1..5}; do # one line, but for a slow start and a slow end
    mpirun --allow-run-as-root --oversubscribe --bind-to none -n 3 "$RESHARD" "${bad[@]:0:7}" >out 2>err
    [ "$(grep -c "^reshard: error" err)" = 3 ] || break
  done
  checks=$((checks + 1))
  [ "$(grep -c "^reshard: error" err)" != 3 ] || fault "a line for each of three processes: $(cat err)"
fi
finish
