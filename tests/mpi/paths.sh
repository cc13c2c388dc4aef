#!/usr/bin/env bash
# The path that the program takes over MPI: direct on one node, mixed over several, packed where messages are asked for.
# usage: paths.sh PROGRAM MPIRUN ARGUMENT... (the last one is the flag of the number of ranks)
set -euo pipefail
program=$1 mpirun=("${@:2}")
fail() { echo "paths: $*" >&2; exit 1; }
bench=(bench --comm mpi --shape 60x300 --src 'chunk(0)' --dst 'chunk(1)' -n 3 -w 1)
verify=(verify --comm mpi --cases 80)

four() { # STATUS RANKS-PER-NODE ARGUMENT...: four ranks, which count as those of several nodes
  local want=$1 status=0
  # shellcheck disable=SC2016
  "${mpirun[@]}" 4 sh -c 'export RESHARD_NODE=$((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} / $0)); exec "$@"' \
    "$2" "$program" "${@:3}" >said 2>errors || status=$?
  [ "$status" = "$want" ] || fail "${*:2}: status $status: $(cat said errors)"
}
takes() { # PATH RANKS-PER-NODE BENCH-OPTION...
  four 0 "$2" "${bench[@]}" -c 1 --json - "${@:3}"
  grep -q "\"wrong\": *0, *\"path\": *\"$1\"" said || fail "${*:2}: not $1: $(cat said)"
}

takes direct 4
takes mixed 3 # one rank is alone on its node
takes packed 1
takes mixed 2 --path mixed
grep -q '"path": *"mixed", *"workspace_bytes"' said || fail "the option is not told: $(cat said)"
takes mixed 2 --workspace 8K
for per_node in 1 2 4; do
  takes packed $per_node --path packed
  limit=$((per_node == 4 ? 262144 : 1048576)) # processes of one node stage less: their messages stay in the cache
  grep -q "\"workspace_limit\": *$limit," said || fail "by $per_node: not a limit of $limit: $(cat said)"
done
four 0 2 "${bench[@]}" --path mixed --csv rows.csv
grep -q 'path mixed, workspace limit' said || fail "the option is not told: $(cat said)"
grep -q ',"mixed",' rows.csv || fail "no mixed row: $(cat rows.csv)"
four 3 4 "${bench[@]}" --path mixed
grep -q 'error: .*the mixed path needs a communicator of several nodes' errors || fail "$(cat errors)"
four 3 2 "${bench[@]}" --path direct

proves() { # RANKS-PER-NODE VERIFY-OPTION...
  four 0 "$1" "${verify[@]}" "${@:2}"
  grep -q '^0 of them failed' said || fail "${*}: $(cat said errors)"
}
for per_node in 2 3; do proves $per_node; done
proves 4 --path packed --topology 2
for per_node in 2 3; do proves $per_node --path mixed --topology 2; done # of which one is reached from the other domain
four 3 2 "${verify[@]}" --path direct
four 3 4 "${verify[@]}" --path mixed
grep -q 'error: --path mixed: the ranks that --comm mpi connects here have none' errors || fail "$(cat errors)"

printf '%s\n' 0-1 2-3 'chains 1' >domains # each byte of 64 x 64 f32 enters the second once, and is passed on once
for path in packed mixed; do # by messages also from rank 1 to rank 2 of its node
  four 0 3 bench --comm mpi --shape 64x64 --src 'mesh(2@0-1;S0)' --dst 'mesh(2@2-3;R)' --path $path --topology domains \
    -n 1 -w 0 -c 1 --json -
  for field in wrong\":0 {between,within,leaving}_bytes\":16384; do
    grep -q "\"$field," said || fail "$path with domains, not $field: $(cat said)"
  done
done

four 0 2 trace --comm mpi --shape 60x300 --src 'chunk(0)' --dst 'chunk(1)' --json trace.json
grep -q '4 ranks, mixed, mpi communicator' trace.json || fail "no trace of the mixed path: $(head -c 600 trace.json)"
rm said errors rows.csv domains trace.json*
