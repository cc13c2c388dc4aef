#!/usr/bin/env bash
# Kills a rank inside a call, once a job, and looks at what the survivors say. mpirun says nothing of use: with a rank
# killed its exit status is 0, and MPI complains on standard error. While large messages move over TCP a survivor is
# silent now and then: Open MPI 4 ends a process whose connection breaks, whatever its error handler. So these steps go
# over shared memory, where all survivors have to be there at the end.
# usage: kills.sh MPI_LOSSES KILLS SEED SURVIVORS STEP... -- MPIRUN ARGUMENT...    SURVIVORS: that have to be there
# RESHARD_TEST_SCALE scales KILLS.
set -uo pipefail
program=$1 seed=$3 survivors=$4 failures=0 steps=()
kills=$(awk -v n="$2" -v by="${RESHARD_TEST_SCALE:-1}" 'BEGIN { n *= by; print n < 1 ? 1 : int(n) }')
export RESHARD_TEST_SCALE=1 # of the trials, of which each job makes one
shift 4
while [ "$1" != -- ]; do
  steps+=("$1")
  shift
done
shift
for ((i = 0; i < kills; i++)); do
  for step in "${steps[@]}"; do
    for _ in 1 2 3; do # mpirun itself crashes now and then, in this function of its server, where it logs a rank's end
      said=$("$@" "$program" 1 "$((seed + i))" "$step" kill 2>errors)
      [ -z "$said" ] && grep -q pmix_server_log_fn errors || break
      [ -z "${TMPDIR-}" ] || rm -rf "$TMPDIR"/ompi.* # which it leaves
    done
    grep '^stops: ' <<<"$said"
    [[ $said =~ 'a rank was killed, '([0-9]+)' are there' && $said == *' 0 checks failed' ]] &&
      [ "${BASH_REMATCH[1]}" -ge "$survivors" ] && continue
    [ "$survivors" = 0 ] && [ -z "$said" ] && continue # all have ended with it
    failures=$((failures + 1))
    printf '%s, seed %d: %s\n' "$step" "$((seed + i))" "$said"
    tail -n 20 errors
  done
done
rm -f errors
echo "$((kills * ${#steps[@]})) jobs lost a rank, $failures failed"
[ "$failures" = 0 ]
