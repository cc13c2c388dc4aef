#!/usr/bin/env bash
# convert: a signal at any moment leaves OUT as it was, or complete, and nothing beside it; the program dies of it.
. "$(dirname "$0")/common.bash"
. "$SOURCE/tests/cli/files.bash"
RANDOM=4 # the moments are the same in every run; what the program does at them is not

rows=$(awk -v scale="${RESHARD_TEST_SCALE:-1}" 'BEGIN { print scale < 0.5 ? 16 : 64 }') # sanitizers take their time
{ npy '<f4' False "($rows, 1048576)"; bytes 4096 0; } >big.npy
truncate -s $(($(stat -c %s big.npy) - 4096 + rows * 4194304)) big.npy # 4 MiB a row, of which little takes space
{ npy '<f4' False '(13, 21)'; bytes 1092 5000; } >old.npy
begin=$(date +%s%N)
expect 0 convert big.npy shards --dst 'chunk(1)' --ranks 3
took=$((($(date +%s%N) - begin) / 1000000 + 1)) # milliseconds
mv shards right
files=$(ls right)
before=$(beside)

# stop SIGNAL DELAY ARGUMENT...: sends it once after so many milliseconds; 0, or death by that signal.
stop() {
  local signal=$1 delay=$2 dead
  shift 2
  status=0
  timeout --foreground --preserve-status -s "$signal" "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))" \
    "$RESHARD" "$@" >out 2>err </dev/null || status=$?
  checks=$((checks + 1))
  dead=$((128 + $(kill -l "$signal")))
  [ $status = 0 ] || [ $status = $dead ] || fault "$signal after $delay ms: status $status: $(head -c 300 err)"
  [ "$(wc -l <err)" -le 1 ] || fault "$signal after $delay ms: more than one line: $(head -c 300 err)"
  [ $status = 0 ] || stopped=$((stopped + 1))
}

complete() { # DIRECTORY: it is the right one
  [ "$(ls "$1")" = "$files" ] || { fault "not complete: $(ls "$1")"; return; }
  local file
  for file in $files; do same "$1/$file" "right/$file"; done
}

stopped=0
for i in {1..12}; do
  signal=$(printf '%s\n' TERM INT HUP | sed -n "$((i % 3 + 1))p")
  stop "$signal" $((RANDOM % took)) convert big.npy shards --dst 'chunk(1)' --ranks 3
  [ $status = 0 ] && [ ! -e shards ] && fault 'done, and OUT is not there'
  [ ! -e shards ] || complete shards
  rm -rf shards
  [ "$(beside)" = "$before" ] || fault "left behind: $(diff <(echo "$before") <(beside))"
done
[ $stopped -gt 0 ] || echo 'on this machine every run was done before its signal came'

# over what is there
expect 0 convert old.npy shards --dst 'chunk(0)' --ranks 2
cp -r shards older
before=$(beside)
for i in {1..6}; do
  stop TERM $((RANDOM % took)) convert big.npy shards --dst 'chunk(1)' --ranks 3 --force
  if [ "$(beside)" = "$before" ]; then
    for file in $(ls older); do same "shards/$file" "older/$file"; done
  else
    complete shards
    rm -rf shards
    cp -r older shards
    [ "$(beside)" = "$before" ] || fault "left behind: $(diff <(echo "$before") <(beside))"
  fi
done
expect 0 convert big.npy shards --dst 'chunk(1)' --ranks 3 --force; complete shards

# what is ignored stays ignored, as by nohup
(trap '' HUP; "$RESHARD" convert big.npy hup.npy >out 2>err </dev/null & sleep 0.05; kill -HUP $!; wait $!) ||
  fault "HUP is not ignored: $(cat err)"
same big.npy hup.npy
rm -rf shards hup.npy older

# A second signal does not wait: what it leaves is removed by the next run.
for i in {1..4}; do
  "$RESHARD" convert big.npy shards --dst 'chunk(1)' --ranks 3 >out 2>err </dev/null &
  sleep "0.$(printf '%03d' $((RANDOM % (took < 999 ? took : 999))))"
  kill -TERM $! 2>/dev/null && kill -TERM $! 2>/dev/null
  wait $!
  rm -rf shards
done
expect 0 convert big.npy shards --dst 'chunk(1)' --ranks 3; complete shards
[ -z "$(find . -name '.*' ! -name .)" ] || fault "left behind: $(find . -name '.*' ! -name .)"
finish
