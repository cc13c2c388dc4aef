#!/usr/bin/env bash
# The table of fuzzing: hours are those of a processor, whatever the clock says. It adds up, also after crashes, and of
# runs side by side. Stand-ins for targets, in a tree of their own.
set -euo pipefail
root=$PWD/tree build=$PWD/build log=$PWD/log cores=3
. "$SOURCE/scripts/build.bash"
. "$SOURCE/scripts/fuzz.bash"
table=$root/profiles/results/fuzz.md
trap 'rm -rf "$root" "$build" "$log"' EXIT
mkdir -p "$root/profiles/results" "$build/fuzz/tests" "$log"
fault() {
  printf 'ledger: %s\n' "$*"
  exit 1
}
target() { # NAME COMMAND...
  printf '#!/usr/bin/env bash\n%s\n' "${*:2}" >"$build/fuzz/tests/fuzz_$1"
  chmod +x "$build/fuzz/tests/fuzz_$1"
}

target busy 'for ((i = 0; i < 300000; i++)); do :; done; echo "stat::number_of_executed_units: 7"'
target idle 'sleep 1; echo "stat::number_of_executed_units: 5"'
target crash 'ulimit -c 0; for ((i = 0; i < 300000; i++)); do :; done
echo "artifact_prefix=/crashes/; Test unit written to /crashes/crash-crash-0123456789abcdef"; kill -ABRT $$'
target lost 'kill -KILL $$'
target slow 'echo "artifact_prefix=/crashes/; Test unit written to /crashes/slow-slow-unit-0123456789abcdef"
echo "stat::number_of_executed_units: 3"'
target told 'echo "==1== libFuzzer: run interrupted; exiting"; echo "stat::number_of_executed_units: 9"; exit 72'
fuzz_all 1 >said
[ "$passed $failed" = '3 3' ] || fault "$passed passed, $failed failed: $(cat said)"
rm said
runs=$(printf '%s\n' "${fuzz_runs[@]}" | sort | awk '{ print $1, ($2 > 0.05), ($2 < 0.5), $3, $4 }' | tr '\n' ';')
wanted='^busy 1 [01] 7 0;crash 1 [01] 0 1;idle 0 1 5 0;lost 0 1 0 0;slow 0 1 3 0;told 0 1 9 0;$'
[[ $runs =~ $wanted ]] || fault "runs: ${fuzz_runs[*]}"

expect() { # ROW...: of the table
  local row
  for row; do
    sed 's/ [0-9]*-[0-9]*-[0-9]* |$//' "$table" | grep -qxF "| $row |" || fault "no row '$row': $(cat "$table")"
  done
  [ "$(grep -c '^| [a-z]* | [0-9]' "$table")" = $# ] || fault "not $# rows: $(cat "$table")"
}
fuzz_runs=('api 5400 1000 1' 'npy 0.36 2147483648 0')
fuzz_ledger
expect 'api | 1.5000 | 1000 | 1' 'npy | 0.0001 | 2147483648 | 0'
for _ in {1..8}; do
  (fuzz_runs=('api 900 10 0'); fuzz_ledger) &
done
wait
list=$'\nThe crashes:\n\n- api: the first\n- api: all\n  others, by hand'
printf '%s\n' "$list" >>"$table"
expect 'api | 3.5000 | 1080 | 1' 'npy | 0.0001 | 2147483648 | 0'
fuzz_runs=() # none was built
fuzz_ledger
expect 'api | 3.5000 | 1080 | 1' 'npy | 0.0001 | 2147483648 | 0'
[ "$(fuzz_lacking | tr '\n' ' ')" = 'busy crash idle lost slow told ' ] || fault "lacking: $(fuzz_lacking)"
fuzz_runs=('busy 7199 1 0' 'lost 7200 1 0')
fuzz_ledger
[ "$(fuzz_lacking | tr '\n' ' ')" = 'busy crash idle slow told ' ] || fault "lacking then: $(fuzz_lacking)"
fuzz_all 1 busy told >said
[ "$(printf '%s\n' "${fuzz_runs[@]}" | cut -d ' ' -f 1 | sort | tr '\n' ' ')" = 'busy told ' ] ||
  fault "of two: ${fuzz_runs[*]}"
rm said
[ "$(tail -n 6 "$table")" = "$list" ] || fault "the list: $(cat "$table")"
