#!/usr/bin/env bash
# Shards that PyTorch's distributed checkpoint wrote (dcp/, see dcp/make.py): read, and written the same.
. "$SOURCE/tests/cli/common.bash" || exit 1
recorded=$SOURCE/tests/files/dcp
export LC_ALL=C

same() { cmp "$1" "$2" >cmp.out 2>&1 || fault "$3: $(cat cmp.out)"; }
header_bytes() { od -An -tu8 -N8 "$1" | tr -d ' '; }
header() { dd if="$1" iflag=skip_bytes,count_bytes skip=8 count="$(header_bytes "$1")" status=none; }
data() { tail -c +$((9 + $(header_bytes "$1"))) "$1"; }
text_of() { header "$1" | grep -aoE "\"$2\":\"(\\\\.|[^\"\\\\])*\""; } # KEY: a text of __metadata__ as it stands there
tensors_of() { header "$1" | sed -E 's/^\{"__metadata__":\{("[^"]*":"(\\.|[^"\\])*",?)*\},?//; s/ *$//'; }

# The recorded data are right: whole, npy, and other shards of them and back are the same.
for set in plain kinds files; do
  expect 0 convert "$recorded/$set" "$set.safetensors" --no-digests
  same "$set.safetensors" "$recorded/$set.safetensors" "$set: whole"
  expect 0 convert "$recorded/$set" "$set.shards" --dst 'flat()' --ranks 5 --verify
  expect 0 check "$set.shards"
  expect 0 convert "$set.shards" "$set.again.safetensors" --no-digests
  same "$set.again.safetensors" "$recorded/$set.safetensors" "$set: whole again"
done
expect 0 convert "$recorded/kinds" kinds.safetensors --force; says 'inferred'

# Ours have the same files, texts, tensors and bytes as PyTorch's; an entry of our own is beside the texts.
expect 0 convert "$recorded/plain.safetensors" plain --dst "@$recorded/plain.rules" --ranks 4 --verify
[ "$(cd plain && ls)" = "$(cd "$recorded/plain" && ls)" ] || fault "other files: $(ls plain)"
for file in "$recorded"/plain/*; do
  ours=plain/${file##*/}
  [ -f "$ours" ] || continue
  for key in format DCP_VERSION DCP_SHARDING_INFO; do
    text=$(text_of "$file" $key)
    [ -n "$text" ] || fault "$file has no $key"
    [ "$(text_of "$ours" $key)" = "$text" ] || fault "$ours: $(text_of "$ours" $key), PyTorch has $text"
  done
  text_of "$ours" reshard >/dev/null || fault "$ours has no entry 'reshard'"
  tensors_of "$file" >theirs.txt
  [ "$(head -c 5 theirs.txt)" = '"each' ] || fault "tensors of $file not found: $(cat theirs.txt)"
  tensors_of "$ours" | same - theirs.txt "$ours: tensors"
  data "$file" >theirs.data
  data "$ours" | same - theirs.data "$ours: data"
  [ $((($(header_bytes "$ours") + 8) % 8)) = 0 ] || fault "$ours: the header is not padded to 8 bytes"
done

# Remains of a save that failed are refused by name.
for junk in '' 'PK\x03\x04\x00\x00\x00\x00\x00\x00\x00\x00'; do
  rm -rf bad && cp -r "$recorded/files" bad && chmod -R u+w bad
  printf '%b' "$junk" >bad/shard-00003-model-00001-of-00002.safetensors
  refuse 2 'shard-00003-model-00001-of-00002' convert bad bad.safetensors
  [ ! -e bad.safetensors ] || fault 'a refused run left OUT'
done
finish
