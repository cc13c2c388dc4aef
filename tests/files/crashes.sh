#!/usr/bin/env bash
# The power fails while a conversion or a save runs, and of what was not synced any part is lost: OUT is what it was or
# what it becomes, whatever is left ($REPLAY: crash/replay.c, whose journal is $JOURNAL_LIBRARY). Of some of these
# states the files are made, and the next run works there. Then OUT comes from elsewhere while it is written.
. "$SOURCE/tests/cli/common.bash" || exit 1
. "$SOURCE/tests/files/conversions.bash" || exit 1
: "${REPLAY:?}" "${JOURNAL_LIBRARY:?}" "${SAVES:?}"
# States drawn after each call; and one in so many of all is made of files.
states=$(awk -v scale="${RESHARD_TEST_SCALE:-1}" 'BEGIN { n = int(10 * scale); print n < 2 ? 2 : n }')
every=$((states * 30))
all=0 made=0 mistakes=0

# crashes LABEL PROGRAM ARGUMENT...: replays the crashes of a program that writes $out. The libraries of instruments
# come first, then the one that lacks calls, which makes its own through the journal's.
crashes() {
  local label=$1 counts calls seen noticed
  shift
  rm -rf "$work/kept"
  counts=$("$REPLAY" "$preload $JOURNAL_LIBRARY" "$states" 4 "$every" "$work/kept" "$work/out.d" "${out##*/}" "$@" \
    2>"$work/err") ||
    fault "$label: $(tail -n 60 "$work/err")"
  read -r calls seen noticed <<<"${counts:-0 0 0}"
  [ "${noticed:-0}" -ge 3 ] || fault "$label: $noticed mistakes were planted"
  checks=$((checks + seen)) all=$((all + seen)) mistakes=$((mistakes + noticed))
  echo "$label: $calls calls, $seen states; $noticed mistakes, all noticed"
}

# The program goes on from files that a crash has left.
go_on() {
  local state
  for state in "$work"/kept/*; do
    made=$((made + 1))
    rm -rf "$work/out.d"
    mv "$state" "$work/out.d"
    as_it_was || complete || fault "$1: state ${state##*/}: OUT is neither as it was nor complete"
    rm "$work/out.d/beside"
    again "$1, state ${state##*/}"
  done
}

for name in "${conversions[@]}"; do
  conversion "$name"
  before
  echo other >"$work/out.d/beside" # which is nobody's
  crashes "$name" "$RESHARD" convert "${arguments[@]}"
  go_on "$name"
done

# A file system that can neither exchange nor rename without replacing. A directory is not replaced there at once.
export FAULT_UNDER=$work/out.d FAULT_LACKS=renameat2
for name in shards file over_file; do
  FAULT_LACKS='' conversion "$name"
  before
  crashes "$name, no renameat2" "$RESHARD" convert "${arguments[@]}"
done
unset FAULT_UNDER FAULT_LACKS

# A state dict saved by rank threads and by processes, and a writer of each form; new, then over what is there.
launch=(threads 'writer:.npy' 'writer:.safetensors' writer)
[ -z "${MPIRUN:-}" ] || launch+=(processes)
for way in "${launch[@]}"; do
  rm -rf "$work/out.d"
  mkdir "$work/out.d"
  out=$work/out.d/out${way#"${way%%:*}"} run=("$SAVES" "${way%%:*}")
  out=${out/:/}
  # shellcheck disable=SC2206 # words
  [ "$way" != processes ] || run=($MPIRUN 2 "${run[@]}")
  crashes "$way" "${run[@]}" "$out"
  # another one, so that old and new differ
  if [ -d "$out" ]; then printf '{}' >"$out/state.json"; else printf x >>"$out"; fi
  crashes "$way, over another" "${run[@]}" "$out"
done

# Someone else's OUT is never replaced without --force, even when it comes at the last moment.
others() { [ -e "$out" ] && [ -z "$(find "$out" -type f -size +0)" ]; }
for name in shards file; do
  conversion "$name"
  for lacking in '' renameat2; do
    [ "$name-$lacking" != shards-renameat2 ] || continue # no call makes it impossible then
    broken renameat2 0 appear 0 "$lacking"
    label="$name${lacking:+, no $lacking}, OUT appears"
    [ "$status" = 2 ] || fault "$label: status $status"
    grep -q 'is there' "$work/err" || fault "$label: $(cat "$work/err")"
    others || fault "$label: OUT of another is lost"
    [ -z "$(leftovers)" ] || fault "$label: leaves $(leftovers)"
  done
  broken renameat2 0 replace 0
  mistakes=$((mistakes + 1))
  others && fault "$name: a rename that replaces is not noticed"
done
[ "$states" -lt 10 ] || [ "$all" -ge 5000 ] || fault "$all states, fewer than 5,000" # of a whole run
echo "$all states, $made of them made of files; $mistakes mistakes"
finish
