#!/usr/bin/env bash
# convert: whatever is wrong is one line and a status, leaves nothing behind and OUT as it was.
. "$(dirname "$0")/common.bash"
. "$SOURCE/tests/cli/files.bash"

{ npy '<f4' False '(13, 21)'; bytes 1092 5000; } >c.npy
expect 0 convert c.npy c.safetensors
expect 0 convert c.npy shards --dst 'chunk(0)' --ranks 4
expect 0 convert c.npy whole --index 1M


# --- usage ----------------------------------------------------------------------------------------------------------
bad 2 'IN is missing' convert
bad 2 'OUT is missing' convert c.npy
bad 2 "unexpected argument 'more'" convert c.npy x.npy more
bad 2 "unknown option '--frobnicate'" convert c.npy x.npy --frobnicate
bad 2 "unknown option '--shape'" convert c.npy x.npy --shape 4
bad 2 "unexpected argument 'c.npy'" plan c.npy
bad 2 '--dst is missing' convert c.npy x
bad 2 "--index: '5X' is no size" convert c.npy x --index 5X
bad 2 '--index: 0 is not between' convert c.npy x --index 0
bad 2 '--threads: 0 is not' convert c.npy x.npy --threads 0
bad 2 'missing/x' convert c.npy x.npy --json missing/x
bad 2 'IN or OUT' convert c.npy x.npy --json x.npy
bad 2 'IN or OUT' convert c.npy x.npy --json ./c.npy
bad 2 'directory' convert c.npy x.npy --json shards

bad 2 "unknown dtype 'bf17'" convert c.npy x.npy --dtype bf17
bad 2 'dtype i32: numbers are converted to f64' convert c.npy x.npy --dtype i32
printf '# a dtype\n* rank(0) bf61\n' >wrong.rules
bad 2 "wrong.rules:2:11: unknown dtype 'bf61'" convert c.npy x.safetensors --dst @wrong.rules
bad 2 "wrong.rules:2:11: unknown dtype 'bf61'" plan --shape 4x4 --src 'rank(0)' --dst @wrong.rules --ranks 2
printf '* rank(0) i32\n' >wrong.rules
bad 2 "wrong.rules:1:3: tensor 'tensor' is f32: no cast from it to i32" convert c.npy x.safetensors --dst @wrong.rules
bad 2 "wrong.rules:1:3: tensor 'tensor' is f32: no cast" plan --shape 4x4 --src 'rank(0)' --dst @wrong.rules --ranks 2
bad 2 "wrong.rules:1:3: tensor 'tensor' is f32, not i32" convert c.npy x.safetensors --src @wrong.rules
rm wrong.rules

# --- paths ----------------------------------------------------------------------------------------------------------
ln -s c.npy link.npy; ln -s shards link
bad 2 'missing' convert missing.npy x.npy
bad 2 'missing' convert missing x.npy
bad 2 'missing' convert c.npy missing/x.npy
bad 2 'missing' convert c.npy missing/x --dst 'chunk(0)' --ranks 2
bad 2 'c.npy' convert c.npy c.npy/x.npy
bad 2 '.' convert '' x.npy
bad 2 '.' convert c.npy ''
bad 2 "c.safetensors" convert c.npy c.safetensors
bad 2 "shards" convert c.npy shards --dst 'chunk(0)' --ranks 2
for out in c.npy ./c.npy link.npy shards/../c.npy; do bad 2 'input' convert c.npy "$out" --force; done
bad 2 'input' convert link.npy c.npy --force
for out in shards shards/ ./link link/; do bad 2 'input' convert shards "$out" --dst 'chunk(1)' --force; done
for out in shards/x.npy shards/deep shards/../shards/x link/x; do bad 2 '.' convert shards "$out" --dst 'chunk(1)' \
  --force; done
cp c.npy whole/c.npy
bad 2 'input' convert whole/c.npy whole --dst 'chunk(0)' --ranks 2 --force
rm whole/c.npy
mkdir notes; echo keep >notes/text
bad 2 'notes' convert c.npy notes --dst 'chunk(0)' --ranks 2 --force # not all in it is a checkpoint's
bad 2 'notes' convert notes x.npy
bad 2 '.' convert c.npy notes/text/x.npy
echo text >plain
bad 2 'plain' convert plain x.npy
mkdir empty
bad 2 'empty' convert empty x.npy
mkfifo fifo.npy
[ -z "$(command -v timeout)" ] || { # must not wait for someone to write
  status=0; timeout 20 "$RESHARD" convert fifo.npy x.npy >out 2>err </dev/null || status=$?
  [ $status = 2 ] || fault "a pipe as IN: status $status: $(head -c 300 err)"
}
rm fifo.npy
if [ "$(id -u)" != 0 ]; then
  mkdir closed; chmod 555 closed
  bad 1 'closed' convert c.npy closed/x.npy
  cp c.npy closed.npy; chmod 0 closed.npy
  bad 1 'closed.npy' convert closed.npy x.npy
fi
rm -f "$work/x.npy"

# --- the report cannot be written: OUT is there, and the error says so ------------------------------------------------
for report in '' --json=- --json=/dev/full; do
  status=0
  "$RESHARD" convert c.npy report --dst 'chunk(0)' --ranks 2 --force $report >/dev/full 2>err </dev/null || status=$?
  checks=$((checks + 1))
  [ $status = 1 ] && [ "$(wc -l <err)" = 1 ] && grep -q "; done before: 'report' is in place" err ||
    fault "report $report: status $status: $(cat err)"
  expect 0 convert report again.npy --force; same c.npy again.npy
done
rm -rf report again.npy

# --- the environment ------------------------------------------------------------------------------------------------
export RESHARD_THREADS=abc
bad 2 'RESHARD_THREADS=abc is not a number' convert c.npy x.npy
bad 2 'RESHARD_THREADS=abc is not a number' check c.safetensors
export RESHARD_THREADS=5000
bad 2 '5000 copy threads' convert c.npy x --dst 'chunk(0)' --ranks 2
unset RESHARD_THREADS
export RESHARD_ISA=abc
bad 2 'RESHARD_ISA=abc is none' convert c.npy x.npy
unset RESHARD_ISA

# --- layouts, maps --------------------------------------------------------------------------------------------------
bad 2 'column' convert c.npy x --dst 'chonk(0)'
bad 2 'column' convert c.npy x.npy --src 'chunk(0'
bad 2 'ranks|number' convert c.npy x --dst 'chunk(0)'
bad 2 'dim 2' convert c.npy x --dst 'chunk(2)' --ranks 2
bad 2 'tensor' convert c.npy x --dst 'rank(7)' --ranks 2
bad 2 '.' convert c.npy x.npy --dst 'chunk(0)' --ranks 2
bad 2 '.' convert c.npy x.safetensors --dst 'chunk(0)' --ranks 2
bad 2 '.' convert c.npy x --index 1K --dst 'chunk(0)' --ranks 2
bad 2 'src' convert shards x.npy --src 'chunk(0)'
bad 2 'no box holds' convert c.npy x --src 'boxes(0:[0,0]+[3,21])' --dst 'chunk(0)'
printf 'other chunk(0)\n' >other.rules
bad 2 "'tensor'" convert c.npy x --dst @other.rules --ranks 2
bad 2 'No such file' convert c.npy x --dst @missing.rules --ranks 2
bad 3 'Psum' convert c.npy x --dst 'mesh(2;Psum)'
map() { printf '%s\n' "$1" >a.map; bad 2 "$2" convert c.npy x.npy --map a.map; }
bad 2 'missing.map' convert c.npy x.npy --map missing.map
map 'a = b' 'b'
map 'a = concat(0; tensor' '1'
map 'a = concat(5; tensor, tensor)' '1'
map 'a = concat(0; tensor, missing)' 'missing'
map 'drop(tensor)' '.'
map 'concat(0; a:5, b:7) = tensor' '1[23]'
printf '# nothing\n' >a.map; bad 2 'tensor' convert c.npy x.npy --map a.map # left over

# --- formats --------------------------------------------------------------------------------------------------------
made() { bad "$1" "$2" convert "$3" x.npy; } # STATUS PATTERN FILE
npy_file() { # DESCR FORTRAN SHAPE BYTES PATTERN STATUS
  { npy "$1" "$2" "$3"; bytes "$4" 0; } >bad.npy
  made "$6" "$5" bad.npy
}
npy_file '<f4' False '(13, 21)' 1091 'bad.npy' 2
npy_file '<f4' False '(13, 21)' 1093 'bad.npy' 2
npy_file '>f4' False '(13, 21)' 1092 'big-endian' 3
npy_file '<U4' False '(3,)' 48 'U4' 2
npy_file '|O' False '(3,)' 24 'O' 2
npy_file '<f4' Maybe '(3,)' 12 'bad.npy' 2
npy_file '<f4' False '(3,' 12 'bad.npy' 2
npy_file '<f4' False '(-3,)' 12 'bad.npy' 2
npy_file '<f4' False '(4611686018427387904, 4)' 12 'bad.npy' 2
npy_file '<f4' False '(1,1,1,1,1,1,1,1,1)' 4 '9 dims' 2
for text in '' '\x93NUMPY' '\x93NUMPY\x01\x00\xff\xff{' '\x93NUMPY\x09\x00\x01\x00{'; do
  printf "$text" >bad.npy
  made 2 'bad.npy' bad.npy
done
{ npy '<c16' False '(2,)'; bytes 32 0; } >c16.npy
bad 3 'c128' convert c16.npy x.safetensors
bad 3 'c128' convert c16.npy x --dst 'chunk(0)' --ranks 2
rm c16.npy

one='"dtype":"U8","shape":[4],"data_offsets":[0,4]'
st() { # JSON DATA PATTERN
  { safetensors "$1"; printf %s "$2"; } >bad.safetensors
  made 2 "$3" bad.safetensors
}
st "{\"a\":{$one}}" abc 'bad.safetensors'
st "{\"a\":{$one}}" abcde 'bad.safetensors'
st "{\"a\":{$one},\"a\":{$one}}" abcd "a|twice|duplicate"
st "{\"a\":{$one},\"b\":{$one}}" abcd 'b|overlap'
st '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,5]}}' abcde "'a'"
st '{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}' abcd "'a'"
st '{"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}}' abcde "'a'|bad.safetensors"
st '{"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}}' abcd "'a'"
st '{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,4]}}' abcd "'a'"
st '{"a":{"dtype":"U9","shape":[4],"data_offsets":[0,4]}}' abcd "U9"
st '{"a":{"dtype":"U8","shape":[9223372036854775807,4],"data_offsets":[0,4]}}' abcd "'a'"
st '{"a":{"dtype":"U8"}}' abcd "'a'"
st '{"a":3}' '' "'a'"
st '[]' '' 'bad.safetensors'
st '{"a":' '' 'bad.safetensors'
st "$(printf '[%.0s' {1..100000})" '' 'bad.safetensors'
st "$(printf '{"a":%.0s' {1..100000})" '' 'bad.safetensors'
for length in 1000 -1 $((1 << 62)); do
  { little 8 "$length"; printf '{}'; } >bad.safetensors
  made 2 'bad.safetensors' bad.safetensors
done
printf '{}' >bad.safetensors; made 2 'bad.safetensors' bad.safetensors
printf '\2\0\0\0\0\0\0\0{}' >none.safetensors
bad 2 '.' convert none.safetensors x.npy # no tensor
{ safetensors "{\"a\":{$one},\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}"; printf abcd; } \
  >two.safetensors
bad 2 '2 tensors|one tensor' convert two.safetensors x.npy
{ safetensors "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}"; printf abcd; } >bf16.safetensors
bad 2 'bf16' convert bf16.safetensors x.npy # a dtype that numpy lacks

# --- directories ----------------------------------------------------------------------------------------------------
broken() { # PATTERN: $dir is refused, and made anew
  bad 2 "$1" convert broken x.npy
  rm -rf broken; cp -r shards broken
}
first=shard-00001-model-00001-of-00001.safetensors second=shard-00002-model-00001-of-00001.safetensors
cp -r shards broken
rm broken/$first; broken "${first%.safetensors}"
truncate -s -1 broken/$second; broken "$second"
: >broken/$second; broken "$second"
cp broken/$first broken/copy.safetensors; broken '.'
cp broken/$first broken/$second; broken '.'
cp c.safetensors broken/; broken '.'
rm -r broken; mkdir broken; echo >broken/__0_0.distcp; broken '__0_0.distcp.*no .metadata'
rm -r broken; mkdir broken; echo >broken/__0_0.distcp; echo >broken/.metadata; broken '.metadata.*byte 0 of the pickle'
rm -r broken; cp -r whole broken
sed -i 's/"tensor"/"other"/' broken/model.safetensors.index.json; bad 2 'other|tensor' convert broken x.npy
echo '{"weight_map":' >broken/model.safetensors.index.json; bad 2 'index.json' convert broken x.npy
echo '{"weight_map":{"tensor":"../c.safetensors"}}' >broken/model.safetensors.index.json
bad 2 'index.json|c.safetensors' convert broken x.npy
echo '{"weight_map":{"tensor":"missing.safetensors"}}' >broken/model.safetensors.index.json
bad 2 'missing.safetensors' convert broken x.npy

# names from a file cannot write to the terminal
{ safetensors "{\"a\\u001b[31m\\n\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,5]}}"; printf abcde; } \
  >bad.safetensors
bad 2 'a' convert bad.safetensors x.npy
! grep -q $'\x1b' err || fault 'an escape character reached the terminal'

# --- over what is there ---------------------------------------------------------------------------------------------
cp c.npy old.npy
bad 2 'old.npy' convert c.npy old.npy
expect 0 convert c.safetensors old.npy --force; same c.npy old.npy
cp -r shards old
bad 2 'old' convert c.npy old --dst 'chunk(1)' --ranks 2
expect 0 convert c.npy old --dst 'chunk(1)' --ranks 2 --force
[ "$(ls old)" = "$(printf '%s\n' $first $second)" ] || fault "old files stay: $(ls old)"
expect 0 convert old old2.npy; same c.npy old2.npy
bad 2 '.' convert c.npy old.npy --index 1M # one name, two formats
finish
