#!/usr/bin/env bash
# Kills a rank inside a call, once a job, and looks at what the survivors say. mpirun says nothing of use: with a rank
# killed its exit status is 0, and MPI complains on standard error. Not while large messages move: a
# survivor is silent then now and then, likely since Open MPI has ended it.
# usage: kills.sh MPI_STOPS KILLS SEED -- MPIRUN ARGUMENT...    RESHARD_TEST_SCALE scales KILLS.
set -uo pipefail
program=$1 seed=$3 killed=0 failures=0
kills=$(awk -v n="$2" -v by="${RESHARD_TEST_SCALE:-1}" 'BEGIN { n *= by; print n < 1 ? 1 : int(n) }')
export RESHARD_TEST_SCALE=1 # of the trials, of which each job makes one
shift 4
for ((i = 0; i < kills; i++)); do
  for step in meet split transfer make; do
    said=$("$@" "$program" "$step" 1 "$((seed + i))" kill 2>/dev/null)
    grep -q 'a rank was killed' <<<"$said" && killed=$((killed + 1)) # else the step was over before
    # A survivor may be silent, likely since Open MPI has ended it: one is enough
    grep -q ' 0 checks failed$' <<<"$said" && ! grep -q ' [1-9][0-9]* checks failed$' <<<"$said" && continue
    failures=$((failures + 1))
    printf '%s, seed %d: %s\n' "$step" "$((seed + i))" "$said"
  done
done
echo "$killed of $((kills * 4)) jobs lost a rank, $failures failed"
[ "$failures" = 0 ] && [ "$killed" -gt 0 ]
