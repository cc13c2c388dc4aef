# Shared by the tests of the program. RESHARD is the program, SOURCE the source tree.
set -u
: "${RESHARD:?the program}" "${SOURCE:?the source tree}"
export TSAN_OPTIONS="${TSAN_OPTIONS:-} atexit_sleep_ms=0" # a second for every run of the program
work=$(mktemp -d)
trap '[ "$BASHPID" != $$ ] || rm -rf "$work"' EXIT # not by a child that a signal ends before it is another program
cd "$work" || exit 1
failures=0
checks=0

fault() { # TEXT
  failures=$((failures + 1))
  printf 'FAILED: %s\n' "$1"
}

# Runs the program; its output is in $work/out and $work/err, its status in $status.
run() {
  status=0
  "$RESHARD" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
  checks=$((checks + 1))
}

# expect STATUS ARGUMENT...: the exit status, and nothing on standard error.
expect() {
  local want=$1
  shift
  run "$@"
  [ "$status" = "$want" ] || fault "reshard $*: status $status, expected $want: $(head -c 300 "$work/err")"
  [ "$want" != 0 ] || [ ! -s "$work/err" ] || fault "reshard $*: writes to standard error: $(head -c 300 "$work/err")"
}

# refuse STATUS PATTERN ARGUMENT...: the status, one line 'reshard: error: ...' that matches, nothing on standard
# output.
refuse() {
  local want=$1 pattern=$2
  shift 2
  run "$@"
  [ "$status" = "$want" ] || fault "reshard $*: status $status, expected $want: $(head -c 300 "$work/err")"
  [ "$(wc -l <"$work/err")" = 1 ] || fault "reshard $*: not one line: $(head -c 600 "$work/err")"
  grep -q '^reshard: error: ' "$work/err" || fault "reshard $*: no error line: $(head -c 300 "$work/err")"
  grep -qE -- "$pattern" "$work/err" || fault "reshard $*: '$(cat "$work/err")' does not match '$pattern'"
  [ ! -s "$work/out" ] || fault "reshard $*: writes to standard output: $(head -c 300 "$work/out")"
}

# says PATTERN: the last run's standard output matches.
says() { grep -qE -- "$1" "$work/out" || fault "no '$1' in: $(head -c 600 "$work/out")"; }

finish() {
  printf '%d checks, %d failed\n' "$checks" "$failures"
  [ "$failures" = 0 ]
  exit
}
