#!/usr/bin/env bash
# Each conversion is killed, or asked to end, at 50 of its moments: OUT is as it was, or complete; what else is left
# is removed by the next run, which works. The moments are system calls, drawn from a seed: before one, or right after
# it.
. "$SOURCE/tests/cli/common.bash" || exit 1
. "$SOURCE/tests/files/conversions.bash" || exit 1
moments=$(awk -v scale="${RESHARD_TEST_SCALE:-1}" 'BEGIN { n = int(50 * scale); print n < 5 ? 5 : n }')
RANDOM=4 # the seed
killed=0 finished=0 left=0

for name in "${conversions[@]}"; do
  conversion "$name"
  count ''
  n=$(calls any)
  for ((i = 0; i < moments; i++)); do
    number=$((i % 5 == 4 ? 15 : 9)) # SIGTERM now and then, else SIGKILL
    how=signal
    [ $((RANDOM % 2)) = 0 ] || how=signalled
    k=$((1 + (i * n + RANDOM % n) / moments)) # one in each stretch of the run
    label="$name: signal $number, $how at call $k of $n"
    broken any $k $how $number
    case $status in
    0) finished=$((finished + 1)) ;;
    143) killed=$((killed + 1)) ;;
    137) killed=$((killed + 1)) ;;
    *) fault "$label: status $status: $(cat err)" ;;
    esac
    as_it_was || complete || fault "$label: OUT is neither as it was nor complete"
    if [ -n "$(leftovers)" ]; then
      left=$((left + 1))
      [ $number = 9 ] || fault "$label: leaves $(leftovers)"
    fi
    again "$label"
  done
done
echo "$killed runs ended by a signal, $finished done before it; $left left something, which the next run removed"
[ "$killed" -gt 0 ] && [ "$left" -gt 0 ] || fault 'no run was killed midway'
finish
