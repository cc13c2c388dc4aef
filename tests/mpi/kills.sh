#!/usr/bin/env bash
# Kills a rank inside a call, once a job, and looks at what the survivors say. mpirun says nothing of use: with a rank
# killed its exit status is 0, and MPI complains on standard error. While large messages move over TCP a survivor is
# silent now and then: Open MPI 4 ends a process whose connection breaks, whatever its error handler. So these steps go
# over shared memory, where all survivors have to speak.
# usage: kills.sh MPI_STOPS KILLS SEED SURVIVORS STEP... -- MPIRUN ARGUMENT...    SURVIVORS: that have to speak
# RESHARD_TEST_SCALE scales KILLS.
set -uo pipefail
program=$1 seed=$3 survivors=$4 killed=0 failures=0 steps=() counts=''
kills=$(awk -v n="$2" -v by="${RESHARD_TEST_SCALE:-1}" 'BEGIN { n *= by; print n < 1 ? 1 : int(n) }')
export RESHARD_TEST_SCALE=1 # of the trials, of which each job makes one
shift 4
for (( ; ; )); do
  step=$1
  shift
  [ "$step" != -- ] || break
  steps+=("$step")
done
for ((i = 0; i < kills; i++)); do
  for step in "${steps[@]}"; do
    said=$("$@" "$program" "$step" 1 "$((seed + i))" kill 2>errors)
    counts+=$(sed -n 's/^stops: //p' <<<"$said" | awk -F ' [|] ' -v OFS=' | ' 'NR > 1 { $4 = 0 } { print }')$'\n'
    least=$((survivors < 1 ? survivors : 1))
    if grep -q 'a rank was killed' <<<"$said"; then # else the step was over before, and rank 0 says so
      killed=$((killed + 1)) least=$survivors
    fi
    [ "$(grep -c ' 0 checks failed$' <<<"$said")" -ge "$least" ] &&
      ! grep -q ' [1-9][0-9]* checks failed$' <<<"$said" &&
      continue
    failures=$((failures + 1))
    printf '%s, seed %d: %s\n' "$step" "$((seed + i))" "$said"
    tail -n 20 errors
  done
done
rm -f errors
# Survivors have counted each for itself; the loss counts once.
awk -F ' [|] ' -v OFS=' | ' 'NF == 8 { key = $1 OFS $2 OFS $3; for (i = 4; i <= 8; i++) sum[key, i] += $i; keys[key] }
  END { for (key in keys) print "stops: " key, sum[key, 4], sum[key, 5], sum[key, 6], sum[key, 7], sum[key, 8] }' \
    <<<"$counts" | sort
echo "$killed of $((kills * ${#steps[@]})) jobs lost a rank, $failures failed"
[ "$failures" = 0 ] && [ "$killed" -gt 0 ]
