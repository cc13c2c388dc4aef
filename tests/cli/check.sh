#!/usr/bin/env bash
# check: files against the digests in them; the status, and what it says of files that are wrong or have none.
. "$(dirname "$0")/common.bash"
. "$SOURCE/tests/cli/files.bash"
expect 0 info
if grep -q '^digests .*none' out; then echo 'skipped: built without xxhash'; exit 77; fi
says '^digests +XXH3'

{ npy '<f4' False '(700, 1000)'; bytes 2800000 0; } >c.npy
expect 0 convert c.npy c.safetensors
expect 0 convert c.npy shards --dst 'chunk(0)' --ranks 4
expect 0 convert c.npy whole --index 1G
expect 0 convert c.npy bare.safetensors --no-digests; says '^digests +none$'
expect 0 convert c.npy again.npy; says '^digests +none: .npy has no place for them$'

# --- nothing is wrong -----------------------------------------------------------------------------------------------
expect 0 check c.safetensors; says '^checked +2.67 MiB of 1 file, (read from the device|in part from the page cache)'
expect 0 check shards; says '^checked +2.67 MiB of 4 files'
expect 0 check whole shards/shard-0000[23]* --threads 3; says '^checked .* of 3 files'
expect 0 check bare.safetensors c.npy shards
says "^unchecked +file 'bare.safetensors': has no digests$"; says "^unchecked +file 'c.npy': has no digests$"
says '^checked .* of 6 files, of which 2 have no digests'
expect 0 check shards bare.safetensors --json -
counts='"files":5,"unchecked_files":1,"checked_bytes":28[0-9]{5},"wrong":0,"from_device":(true|false)'
says '^\{"version":1,"findings":\[\{"wrong":false,"text":".*"\}\],'"$counts"'\}$'

# --- verify says what it has checked, and where it has read ----------------------------------------------------------
expect 0 convert shards x.npy --verify; same c.npy x.npy
says '^comparing .* every byte is right, (read from the device|in part from the page cache, which the system keeps)$'
says '^checked +2.67 MiB of the source by its digests$'
expect 0 convert bare.safetensors x.npy --verify --force
says '^checked +0 B of the source by its digests: it has none$'
if [ -d /dev/shm ] && [ "$(stat -f -c %T /dev/shm)" = tmpfs ] && memory=$(mktemp -d -p /dev/shm); then
  expect 0 convert c.npy "$memory/x" --dst 'chunk(0)' --ranks 2 --verify; says 'right, in part from the page cache'
  expect 0 check "$memory/x"; says 'in part from the page cache'
  rm -rf "$memory"
fi

# --- a byte of the data, a digit of a digest, a word of the header ---------------------------------------------------
changed() { # FILE OFFSET: another byte there, and no hexadecimal digit or quotation mark where a digit was
  local was
  was=$(od -An -tu1 -j "$2" -N1 "$1")
  printf '%b' "\\x$(printf '%02x' $((was ^ 72)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
wrong() { # COUNT PATTERN ARGUMENT...: status 1, so many lines on standard output, which match; their number as error
  run check "${@:3}"
  [ "$status" = 1 ] && [ "$(wc -l <err)" = 1 ] || fault "check ${*:3}: status $status: $(head -c 600 err)"
  [ "$(grep -c '^wrong ' out)" = "$1" ] || fault "check ${*:3}: not $1 lines: $(head -c 900 out)"
  grep -qE -- "^reshard: error: $1 wrong$" err && grep -qE -- "^wrong .*$2" out ||
    fault "check ${*:3}: no '$2': $(cat err)"
}
third=shards/shard-00003-model-00001-of-00001.safetensors
size=$(stat -c %s $third)
changed $third $((size - 3))
changed $third $((size - 3)) # as it was
expect 0 check shards
changed $third $((size - 3))
wrong 1 "$third': tensor 'tensor', box \[350,525\)x\[0,1000\): bytes [0-9]+ to $((size - 1)) of the file" shards
wrong 1 "$third': tensor" $third c.safetensors
bad 1 "$third': tensor 'tensor', box" convert shards y.npy --verify
expect 0 convert shards y.npy # nobody has asked
changed c.safetensors $(($(stat -c %s c.safetensors) - 9))
changed c.safetensors 100000
wrong 2 "c.safetensors': tensor 'tensor': bytes [0-9]+ to [0-9]+ of the file are not those that were written" \
  c.safetensors
wrong 3 '.' shards c.safetensors --threads 1
run check c.safetensors --json json; grep -q '"wrong":2' json || fault "json: $(cat json)"
at=$(grep -abo 'pieces' whole/model-00001-of-00001.safetensors | head -1 | cut -d: -f1)
changed whole/model-00001-of-00001.safetensors $((at + 15))
wrong 1 "model-00001-of-00001.safetensors': the digests in its header are not" whole
changed whole/model-00001-of-00001.safetensors $((at + 15))
changed whole/model-00001-of-00001.safetensors $((at - 10))
wrong 1 "model-00001-of-00001.safetensors': " whole
changed whole/model-00001-of-00001.safetensors $((at - 10))
sed -i 's/"format":"pt"/"format":"qt"/' whole/model-00001-of-00001.safetensors
wrong 1 "its header, bytes 0 to [0-9]+, is not the one that was written: its digest is" whole
rm $third; wrong 1 'shard-00003-model-00001-of-00001.safetensors. is missing' shards
expect 0 check shards/shard-00001* # a shard alone is what it is

# --- usage -----------------------------------------------------------------------------------------------------------
bad 2 'DIR or FILE is missing' check
bad 2 'missing' check missing
bad 2 "unknown option '--verify'" check c.npy --verify
mkdir empty; wrong 1 'without .safetensors' empty
finish
