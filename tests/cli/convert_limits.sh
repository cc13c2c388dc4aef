#!/usr/bin/env bash
# convert: disk full, file size limit, open files, input that changes, and memory that does not grow with the data.
. "$(dirname "$0")/common.bash"
. "$SOURCE/tests/cli/files.bash"
mounted=
trap '[ -z "$mounted" ] || umount "$work/small"; rm -rf "$work"' EXIT
notes=()
limited() { # ULIMIT-ARGUMENTS COMMAND...
  # shellcheck disable=SC2086 # words
  (failures=0; ulimit $1; "${@:2}"; exit "$failures") || failures=$((failures + 1))
  checks=$((checks + 1))
}

{ npy '<f4' False '(64, 16384)'; bytes 4096 0; } >four.npy
truncate -s $(($(stat -c %s four.npy) - 4096 + 4194304)) four.npy # 4 MiB
expect 0 convert four.npy four --dst 'chunk(0)' --ranks 64

# a file size limit, which would end the program by a signal
limited '-f 1024' bad 1 'limit' convert four.npy x.npy
limited '-f 1024' expect 0 convert four.npy x --dst 'chunk(0)' --ranks 8
limited '-f 1024' bad 1 'limit' convert four.npy x --dst 'chunk(0)' --ranks 3 --force
expect 0 convert x x.npy; same four.npy x.npy # the old one is what it was

# a small disk
mkdir small
if mount -t tmpfs -o size=6M tmpfs small 2>/dev/null; then
  mounted=1
  expect 0 convert four.npy small/one.npy
  bad 1 '[Nn]o space' convert four.npy small/x.npy
  bad 1 '[Nn]o space' convert four.npy small/x.safetensors
  bad 1 '[Nn]o space' convert four.npy small/x --dst 'chunk(0)' --ranks 3
  bad 1 '[Nn]o space' convert four.npy small/one.npy --force # both are there for a moment
  same four.npy small/one.npy
  rm small/one.npy
  expect 0 convert four.npy small/x --dst 'chunk(0)' --ranks 3 # and a rerun works
else
  notes+=('no file system could be mounted, so a full disk was not tried')
fi

# many files: the program raises its own limit
limited '-Sn 40' expect 0 convert four x.npy --force --verify; same four.npy x.npy
limited '-n 40' bad 1 '40' convert four x.npy --force; same four.npy x.npy
rm -rf four x x.npy

# few descriptors, whose last one each step may take: OUT is whole, or as it was, and nothing is beside it
{ npy '<f4' False '(13, 21)'; bytes 1092 5000; } >few.npy
for old in no yes; do
  for ((n = 4; n <= 16; n++)); do
    # its libraries need some
    sh -c "ulimit -n $n && exec \"\$1\" --version" - "$RESHARD" >out 2>err </dev/null || continue
    rm -rf x; [ $old = no ] || expect 0 convert few.npy x --dst 'chunk(1)' --ranks 2
    before=$(beside) status=0
    sh -c "ulimit -n $n && exec \"\$@\"" - "$RESHARD" convert few.npy x --dst 'chunk(0)' --ranks 4 --force >out 2>err \
      </dev/null ||
      status=$?
    checks=$((checks + 1))
    if [ $status = 0 ]; then
      [ -z "$(ls -d .x.* 2>/dev/null)" ] || fault "$n descriptors: leaves $(ls -d .x.*)"
      expect 0 convert x y.npy; same few.npy y.npy; rm -f y.npy
    else
      [ $status = 1 ] && [ "$(wc -l <err)" = 1 ] || fault "$n descriptors: status $status: $(head -c 600 err)"
      [ "$before" = "$(beside)" ] || fault "$n descriptors: $(cat err): leaves $(diff <(echo "$before") <(beside))"
      grep -q 'Too many open\|: 4 files' err || fault "$n descriptors: $(cat err)"
    fi
  done
  [ $status = 0 ] || fault "16 descriptors: $(cat err)"
done
rm -rf x few.npy

# IN becomes shorter, or is written to, while it is read: an error, or all of it was read before
{ npy '<f4' False '(64, 1048576)'; bytes 4096 0; } >changing.npy
size=$(($(stat -c %s changing.npy) - 4096 + 64 * 4194304))
shorter() { truncate -s 99999999 changing.npy; }
touched() { printf x | dd conv=notrunc status=none bs=1 seek=200000000 of=changing.npy; }
for change in shorter touched; do
  for delay in 010 030 060 100; do
    truncate -s $size changing.npy
    before=$(beside | grep -v '^changing')
    "$RESHARD" convert changing.npy x.npy >out 2>err </dev/null &
    sleep "0.$delay"
    $change
    status=0
    wait $! || status=$?
    checks=$((checks + 1))
    if [ $status != 0 ]; then
      [ $status -le 2 ] && [ "$(wc -l <err)" = 1 ] ||
        fault "IN changes after $delay ms: status $status: $(head -c 300 err)"
      [ "$(beside | grep -v '^changing')" = "$before" ] || fault "left behind: $(diff <(echo "$before") <(beside))"
    fi
    rm -f x.npy
  done
done
rm changing.npy

# 2 GiB with 256 MiB of address space beyond what the program needs to start; threads have stacks in it too
limit=$((320 << 10))
if [ -z "$( (ulimit -v $limit; "$RESHARD" --version) 2>/dev/null)" ]; then
  notes+=('the program does not start with little address space (a sanitizer?), so its memory was not limited')
elif [ "$(df -Pk . | awk 'NR == 2 { print $4 }')" -lt $((6 << 20)) ]; then
  notes+=('less than 6 GiB of disk are free, so its memory was not limited')
else
  { npy '<f4' False '(16384, 32768)'; bytes 4096 0; } >sparse.npy
  truncate -s $(($(stat -c %s sparse.npy) - 4096 + (2 << 30))) sparse.npy
  limited "-v $limit" expect 0 convert sparse.npy shards --dst 'chunk(1)' --ranks 4 --threads 2
  limited "-v $limit" expect 0 convert shards back.npy --threads 2
  same sparse.npy back.npy
fi

[ "$failures" = 0 ] || finish
if [ ${#notes[@]} -gt 0 ]; then
  printf '%d checks, none failed, but: %s\n' "$checks" "$(IFS=';'; echo "${notes[*]}")"
  exit 0
fi
finish
