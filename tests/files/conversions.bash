# Conversions that the tests of faults and of kills break at every point: shards, one file, an index, new and over an
# older one. $FAULTS is the library of interpose.c. Sourced after common.bash.
: "${FAULTS:?the library of interpose.c}"
. "$SOURCE/tests/cli/files.bash" || exit 1
shopt -s nullglob dotglob
export LC_ALL=C ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}abort_on_error=0:exitcode=66"
export TSAN_OPTIONS="${TSAN_OPTIONS:+$TSAN_OPTIONS:}exitcode=66"
recorded=$SOURCE/tests/files/dcp
# Instruments of the program wrap the same calls and have to come first.
preload=$(ldd "$RESHARD" | sed -nE 's/.*=> (.*lib[at]san[^ ]*) .*/\1/p' | tr '\n' ' ')$FAULTS

# Everything that counts is on a file system of its own speed where there is one.
if [ -d /dev/shm ] && [ -w /dev/shm ]; then
  rm -rf "$work"
  work=$(mktemp -d -p /dev/shm)
  cd "$work" || exit 1
fi
mkdir in out.d
{ npy '<f4' False '(384, 512)' && bytes $((384 * 512 * 4)) 0; } >in/rows.npy

conversions=(shards over_shards file over_file index)
# NAME: sets arguments (of the program), out (its OUT), and makes $old, what is there before, "" for nothing
conversion() {
  out=$work/out.d/out old=
  case $1 in
  shards) arguments=("$recorded/plain.safetensors" "$out" --dst "@$recorded/plain.rules" --ranks 4 --verify) ;;
  over_shards) old=$work/old.shards arguments=("$work/in/rows.npy" "$out" --dst 'chunk(1)' --ranks 3 --force) ;;
  file) out+=.npy arguments=("$work/in/rows.npy" "$out" --src 'chunk(1)' --ranks 2) ;;
  over_file) out+=.safetensors old=$work/old.safetensors arguments=("$recorded/kinds" "$out" --force --verify) ;;
  index) arguments=("$recorded/kinds" "$out" --index 300) ;;
  esac
  rm -rf "$work/new" "$work/old.shards" "$work/old.safetensors"
  expect 0 convert "$recorded/plain" "$work/old.safetensors"
  expect 0 convert "$recorded/plain" "$work/old.shards" --dst 'rank(1)'
  before
  "$RESHARD" convert "${arguments[@]}" >"$work/summary" 2>&1 || fault "$1: $(cat "$work/summary")"
  mv "$out" "$work/new" 2>/dev/null || { fault "$1: no OUT: $(cat "$work/summary")"; finish; }
}

before() { # the state before a run
  rm -rf "$work/out.d"
  mkdir "$work/out.d"
  [ -z "$old" ] || cp -a "$old" "$out"
}

equal() { # PATH PATH: files or directories
  if [ -d "$1" ]; then diff -rq "$1" "$2" >/dev/null; else cmp -s "$1" "$2"; fi
}
as_it_was() { if [ -z "$old" ]; then [ ! -e "$out" ]; else equal "$old" "$out"; fi; }
complete() { [ -e "$out" ] && equal "$work/new" "$out"; }
leftovers() { # what is beside OUT
  local path
  for path in "$work"/out.d/*; do
    [ "$path" = "$out" ] || printf '%s ' "${path##*/}"
  done
}

# broken KIND AT HOW NUMBER [LACKS]: one run with that fault; its status is in $status, its output in out and err.
broken() {
  status=0
  before
  { # the shell tells of killed programs here
    FAULT_UNDER=$work FAULT_KIND=$1 FAULT_AT=$2 FAULT_HOW=$3 FAULT_NUMBER=$4 FAULT_LACKS=${5:-} \
      timeout 300 env LD_PRELOAD="$preload" "$RESHARD" convert "${arguments[@]}" >"$work/out" 2>"$work/err" \
      </dev/null || status=$?
  } 2>/dev/null
  checks=$((checks + 1))
}

# again LABEL: a run without faults works, whatever the one before has left, and cleans up.
again() {
  local force=
  [ ! -e "$out" ] || force=--force
  "$RESHARD" convert "${arguments[@]}" $force >"$work/out" 2>"$work/err" </dev/null ||
    fault "$1: the next run fails: $(cat "$work/err")"
  complete || fault "$1: the next run's result is wrong"
  [ -z "$(leftovers)" ] || fault "$1: the next run leaves $(leftovers)"
}

# count LACKS: counts the calls of a run; calls KIND: how many of a kind that were ("any": of all but thread).
count() {
  before
  FAULT_UNDER=$work FAULT_LACKS=$1 FAULT_COUNT=$work/counts LD_PRELOAD=$preload "$RESHARD" convert "${arguments[@]}" \
    >out 2>&1 ||
    fault "counting: $(cat out)"
  complete || fault 'another result under the interposed library'
}
calls() { awk -v kind="$1" 'kind == "any" && $1 != "thread" || $1 == kind { n += $2 } END { print n + 0 }' \
  "$work/counts"; }
