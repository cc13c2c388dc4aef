#!/usr/bin/env bash
# Processes that a launcher has started: what connects them where --comm is not given. None works alone unasked.
. "$(dirname "$0")/common.bash"
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT OMPI_COMM_WORLD_SIZE PMI_SIZE
bench=(bench --shape 16x16 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 -n 1 -w 0)
verify=(verify --cases 5)
mpi=$("$RESHARD" info | grep -c '^communicators.*mpi')

# as torchrun says it
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29999
for rank in 0 3; do
  export RANK=$rank WORLD_SIZE=4
  for command in bench verify; do
    declare -n arguments=$command
    refuse 2 "RANK=$rank and WORLD_SIZE=4 say 4 processes.*mpirun.*--comm local" "${arguments[@]}"
    expect 0 "${arguments[@]}" --comm local # each alone, as asked for
    RANK=0 WORLD_SIZE=1 expect 0 "${arguments[@]}"
  done
done
says 'cases'
WORLD_SIZE=x refuse 2 'WORLD_SIZE=x: a number' "${bench[@]}"
expect 0 plan --shape 16x16 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 # moves nothing, by whomever it was started
unset RANK
expect 0 "${bench[@]}" # one of the two alone says nothing

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
