#!/usr/bin/env bash
# convert: round trips of every pair of formats, all options, what the summary says.
. "$(dirname "$0")/common.bash"
. "$SOURCE/tests/cli/files.bash"
rules=$SOURCE/bench/models/rules
python=$(command -v python3) && "$python" -c 'import json' 2>/dev/null || python=

# check EXPRESSION: a Python expression about j, the last run's output, is true.
check() {
  [ -n "$python" ] || return 0
  "$python" -c 'import json, sys; j = json.load(open(sys.argv[1])); sys.exit(0 if eval(sys.argv[2]) else 1)' \
    "$work/out" "($1)" ||
    fault "not valid, or not so: $1: $(head -c 400 "$work/out")"
}

cat >model.json <<'TEXT'
[{"name": "embed", "shape": [37, 21], "dtype": "bf16"}, {"name": "scale", "shape": [], "dtype": "f32"},
 {"name": "empty", "shape": [0, 5], "dtype": "f16"}, {"name": "cube", "shape": [5, 6, 7], "dtype": "f64"},
 {"name": "mask", "shape": [33], "dtype": "bool"}, {"name": "bytes", "shape": [3, 1, 11], "dtype": "u8"},
 {"name": "fp8", "shape": [64, 9], "dtype": "f8_e4m3"}, {"name": "ids", "shape": [130], "dtype": "i64"},
 {"name": "quo\"te \u00e9\\", "shape": [2, 2], "dtype": "i32"}, {"name": "complex", "shape": [9, 4], "dtype": "c64"}]
TEXT
# Every kind of layout, some for scalars and 1-d tensors too.
cat >mixed.rules <<'TEXT'
scale   rank(3)
mask    flat()
ids     cyclic(3;7)
cube    mesh(dp=2,tp=2;S0,S2)
embed   cyclic(2x2;4x3)
empty   chunk(1)
bytes   boxes(0:[0,0,0]+[3,1,4];2:[0,0,4]+[3,1,7])
fp8     mesh(2x2;S0,R)
complex chunk(-1;2,0,3,1)
*       flat(1-2)
TEXT
printf 'scale mesh(2;R)\nmask rank(1)\nids chunk(0)\nbytes mesh(3;S2)\ncomplex rank(2)\n* mesh(2x2;S0,S1)\n' \
  >other.rules
"$checkpoint" model.json first.safetensors 7 >out || fault 'no checkpoint was made'

# --- whole tensors to every format and back -------------------------------------------------------------------------
back() { # IN ARGUMENT...: joins IN to one file, which is the first
  expect 0 convert "$1" again.safetensors --force "${@:2}"
  same first.safetensors again.safetensors
}
expect 0 convert first.safetensors copy.safetensors
says '^source +safetensors, 1 file: 10 tensors, '; says '^target +safetensors, 1 file: 10 tensors, '
says '^moving +[0-9.]+ ms'
same first.safetensors copy.safetensors
for layout in 'flat()' 'flat(2-0)' 'mesh(4;R)' 'rank(3)' @mixed.rules @other.rules; do
  expect 0 convert first.safetensors shards --dst "$layout" --ranks 4 --force --verify; says 'every byte is right'
  back shards
  expect 0 convert shards shards2 --dst @other.rules --force --verify
  back shards2
  expect 0 convert shards2 shards --dst @mixed.rules --force --threads 5
  back shards --threads 1 --verify
  ls shards | grep -qvE '^shard-0000[1-4]-model-000[0-9]{2}-of-000[0-9]{2}\.safetensors$' &&
    fault "names of files: $(ls shards | head -3)"
done
expect 0 convert shards whole --index 1K --verify; says '^source +shards, [0-9]+ files of 4 ranks'
says '^target +whole, [0-9]+ files: '
[ -s whole/model.safetensors.index.json ] || fault "no index: $(ls whole)"
[ "$(find whole -name '*.safetensors' | wc -l)" -ge 4 ] || fault "too few files with --index 1K: $(ls whole)"
back whole
expect 0 convert whole whole2 --index 1G; says '^source +whole, '
[ "$(find whole2 -name '*.safetensors' | wc -l)" = 1 ] || fault "more than one file with --index 1G: $(ls whole2)"
back whole2
expect 0 convert whole shards --dst @mixed.rules --force; back shards
rm -rf whole2/model.safetensors.index.json; back whole2 # an index need not be there

# An index is an input like its directory, and what it does not give to a file is left out.
expect 0 convert whole whole3 --index 1K; mkdir whole3/old; index=whole3/variant.index.fp16.json
sed '/"bytes"/d' whole3/model.safetensors.index.json >$index; rm whole3/model.safetensors.index.json
part=$(sed -n 's/.*"fp8": "\(.*\)".*/\1/p' $index)
expect 0 convert $index less.safetensors --json -; check 'j["source"]["unlisted"] == 1 and j["source"]["tensors"] == 9'
expect 0 plan --model $index --src 'flat()' --dst 'rank(0)' --ranks 2; expect 0 check $index
expect 0 convert whole3 again.safetensors --force; same first.safetensors again.safetensors
refuse 2 'of the input is in it, or is it' convert $index "whole3/$part" --force
mv "whole3/$part" whole3/old; refuse 2 "there is no file '$part'" convert $index x.safetensors
sed -i "s/$part/old\/$part/" $index
expect 0 convert $index rows --dst 'flat()' --ranks 2; says '^unlisted +1 tensor that the index gives to another'
expect 0 convert rows d.safetensors; same d.safetensors less.safetensors; rm -r rows
refuse 2 'of the input is in it, or is it' convert $index whole3/old --dst 'flat()' --ranks 2 --force
# Two models in a directory are told, and how to take one.
mkdir two; cp first.safetensors two/; expect 0 convert first.safetensors two/b.safetensors --map <(echo 'x.* = *')
run convert two d.safetensors --force; [ "$status" = 0 ] || fault "two sets: $(cat err)"
{ grep -q "^reshard: note: .*2 sets.*'two/FILE'" err && grep -q "^reshard: note: set 'b.safetensors': 1 " err; } ||
  fault "two sets: $(cat err)"

# --- numpy ----------------------------------------------------------------------------------------------------------
{ npy '<f4' False '(13, 21)'; bytes 1092 5000; } >c.npy
expect 0 convert c.npy d.npy; says '^source +npy, 1 file: 1 tensor, 1.07 KiB'
same c.npy d.npy
expect 0 convert c.npy c.safetensors; expect 0 convert c.safetensors d.npy --force; same c.npy d.npy
for layout in 'chunk(0)' 'chunk(1)' 'cyclic(2x2;3x2)' 'flat()' 'mesh(2x2;S1,R)'; do
  expect 0 convert c.npy rows --dst "$layout" --ranks 4 --force --verify
  expect 0 convert rows d.npy --force; same c.npy d.npy
done
expect 0 convert c.npy one --index 1M; expect 0 convert one d.npy --force; same c.npy d.npy
{ npy '<u2' False '(2, 3)'; printf 'aabbccddeeff'; } >rows.npy
{ npy '<u2' True '(2, 3)'; printf 'aaddbbeeccff'; } >columns.npy
expect 0 convert columns.npy d.npy --force; same rows.npy d.npy
expect 0 convert columns.npy halves --dst 'chunk(0)' --ranks 2; expect 0 convert halves d.npy --force --verify
same rows.npy d.npy
{ npy '|b1' False '()'; printf '\1'; } >scalar.npy
expect 0 convert scalar.npy scalars --dst 'mesh(2;R)'; expect 0 convert scalars d.npy --force; same scalar.npy d.npy
{ npy '<c16' False '(0, 4)'; } >c16.npy
expect 0 convert c16.npy d.npy --force; same c16.npy d.npy

{ npy '<V2' False '(13, 21)'; bytes 546 5000; } >raw.npy # as numpy saves the bfloat16 of ml_dtypes
expect 0 convert raw.npy raw --source-dtype BF16 --dst 'chunk(0)' --ranks 3; expect 0 convert raw raw.safetensors
grep -q '"dtype":"BF16"' raw.safetensors || fault "raw bytes as bf16: $(head -c 200 raw.safetensors)"
same <(tail -c 546 raw.npy) <(tail -c 546 raw.safetensors)
refuse 2 "--source-dtype bf16" convert raw.npy x.npy
refuse 2 "unknown dtype 'b16'" convert raw.npy x.npy --source-dtype b16

# --- dtypes ---------------------------------------------------------------------------------------------------------
expect 0 convert first.safetensors half --dst 'flat()' --ranks 3 --dtype bf16 --verify; says 'every byte is right'
says '^converted +4 tensors$'
says '^unconverted +5 tensors, as they were'
expect 0 convert half f32.safetensors --dtype f32 --json -
check 'j["target"]["converted"] == 5 and j["target"]["unconverted"] == 5 and j["target"]["stored_bytes"] == 7666'
expect 0 convert f32.safetensors half.safetensors --dtype BF16; expect 0 convert half again.safetensors --force
expect 0 convert first.safetensors fp8.safetensors --dtype f8_e4m3/2x8:e8m0 --verify
says '^scales +[1-9][0-9]* tensors? of FP8.*quantization_config'
expect 0 convert fp8.safetensors wide.safetensors --dtype bf16 --verify; says 'every byte is right'
printf 'embed rank(0) f8_e4m3/2x8\n* rank(0)\n' >blocks.rules
expect 0 convert first.safetensors ruled.safetensors --dst @blocks.rules --verify
says 'rank\(0\) f8_e4m3/2x8: 1 tensor'
refuse 2 'blocks are as in f8_e4m3/128x128' convert first.safetensors x.safetensors --dtype f8_e4m3/128
refuse 3 '256 x 129 has more than 32768 elements' convert first.safetensors x.safetensors --dtype f8_e4m3/256x129
same half.safetensors again.safetensors # bf16 to f32 loses nothing
printf 'fp8 rank(0) f16\n* rank(0)\n' >dtype.rules
expect 0 convert first.safetensors g.safetensors --dst @dtype.rules --dtype f64 --json -
check 'j["target"]["converted"] == 4 and [r.get("dtype") for r in j["rules"]] == ["f16", None]'
expect 0 convert first.safetensors g.safetensors --dst @dtype.rules --force; says 'fp8 rank\(0\) f16: 1 tensor'
printf 'fp8 rank(1) f16\ncube rank(1) f16\n* rank(0)\n' >dtype.rules # the narrower dtype of both travels
expect 0 plan --model first.safetensors --src 'rank(0)' --dst @dtype.rules --ranks 2 --json -
check 'j["wire_bytes"] == 64 * 9 + 210 * 2'
rm -r half g.safetensors f32.safetensors half.safetensors

# --- options --------------------------------------------------------------------------------------------------------
expect 0 convert c.npy rows --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 --force
says '^between ranks 792 B would travel'
says '^target +shards, 4 files of 4 ranks: 1 tensor, 1.07 KiB written$'
expect 0 convert c.npy rows --dst 'chunk(0;0-1)' --ranks 9 --force; says '2 files of 9 ranks'

# the world of OUT: --ranks, else what the destination names, else the source's
printf '* chunk(0;0-1)\n' >two.rules
world() { # NAMED RANKS OUT ARGUMENT...: shards of that world, which the files themselves say too
  expect 0 convert "$3" world --force --verify "${@:4}"; says "^target +shards, $1 files? of $2 ranks?:"
  expect 0 convert world d.npy --force; says "^source +shards, $1 files? of $2 ranks?:"; same c.npy d.npy
}
expect 0 convert c.npy four --dst 'chunk(0)' --ranks 4; expect 0 convert c.npy one-rank --dst 'rank(0)' --force
world 2 2 four --dst 'mesh(tp=2;S1)'; world 2 2 four --dst @two.rules; world 2 2 four --dst 'chunk(1)' --ranks 2
world 2 2 four --dst 'mesh(tp;S1)' --mesh tp=2; world 4 4 four --dst 'mesh(dp,tp;S0,S1)' --mesh tp=2
world 3 3 four --dst "@$rules/fsdp.rules" --ranks 3; world 4 4 four --dst "@$rules/fsdp.rules"
world 2 2 four --dst @fsdp --mesh fsdp=2
world 4 4 four --dst 'chunk(1)'; world 7 8 four --dst 'mesh(tp=8;S1)'; world 1 6 four --dst 'rank(5)'
world 1 1 four --dst 'rank(0)'; world 2 3 four --dst 'mesh(2;S1)' --ranks 3; world 2 2 one-rank --dst 'chunk(0;0-1)'
world 2 2 c.npy --src 'chunk(0;0-3)' --dst 'mesh(tp=2;S1)'; world 4 4 c.npy --src 'chunk(0;0-3)' --dst 'chunk(1)'
world 4 4 c.npy --src 'chunk(0)' --dst 'mesh(tp=4;S1)'; world 2 2 c.npy --src 'rank(6)' --dst 'chunk(0)' --ranks 2
refuse 2 "rank 2 is not in the world of 2 ranks" convert four x --dst 'rank(2)' --ranks 2
refuse 2 'mesh.*4 ranks.*2|2 ranks' convert four x --dst 'mesh(tp=4;S1)' --ranks 2
expect 0 convert first.safetensors shards --dst @mixed.rules --force
expect 0 convert first.safetensors shards --dst "@$rules/fsdp.rules" --ranks 8 \
  --map <(printf 'embed = embed\ndrop(*)\n') --force
says '1 tensor'
expect 0 convert c.npy all --dst 'mesh(4;R)'; says '4.27 KiB written'
expect 0 convert c.npy once --dst 'mesh(4;R)' --dedup; says '1 file of 4 ranks: 1 tensor, 1.07 KiB written'
for dir in all once; do
  expect 0 convert $dir d.npy --force; same c.npy d.npy
done
expect 0 convert once more --dst 'chunk(0)'; says '^source +shards, 1 file of 4 ranks'

# A link stays, and what it leads to is replaced, which is told on standard error.
noted() { # PATTERN ARGUMENT...: success, and one line of a note that matches
  run "${@:2}"
  [ "$status" = 0 ] || fault "reshard ${*:2}: status $status: $(head -c 300 "$work/err")"
  { [ "$(wc -l <"$work/err")" = 1 ] && grep -qE -- "^reshard: note: .*$1" "$work/err"; } ||
    fault "reshard ${*:2}: no note '$1' in: $(head -c 600 "$work/err")"
}
mkdir store; echo old >store/blob; mkdir store/rows; ln -s store/blob link.npy; ln -s store/rows link
noted "'link.npy' is a symbolic link and stays: .*'$PWD/store/blob'" convert c.npy link.npy --force
same c.npy store/blob; [ -L link.npy ] || fault 'link.npy is no link any more'
noted "'link' is a symbolic link .*'$PWD/store/rows'" convert c.npy link --dst 'chunk(0)' --ranks 2 --force --json -
check 'j["target"]["files"] == 2'
expect 0 convert store/rows d.npy --force; same c.npy d.npy

# what cannot be read back, or not by others
expect 0 convert c.npy halo --dst 'boxes(0:[0,0]+[8,21];1:[5,0]+[8,21])'; says '^halos +1 tensor has'
expect 0 convert c.npy gap --dst 'boxes(0:[0,0]+[8,21];1:[9,0]+[4,21])' --verify; says '^gaps +1 tensor is not covered'
for dir in halo gap; do
  refuse 2 'tensor' convert $dir x.npy
done
{ npy '|u1' False '(200,)'; bytes 200 9; } >long.npy
expect 0 convert long.npy cyclic --dst 'cyclic(1;2)' --ranks 1; expect 0 convert cyclic d.npy --force
same long.npy d.npy
{ npy '|u1' False '(20, 20)'; bytes 400 9; } >square.npy
expect 0 convert square.npy cyclic --dst 'cyclic(2x1;1x20)' --force
[ "$(ls cyclic | wc -l)" = 20 ] || fault "10 boxes on each of 2 ranks: $(ls cyclic)"
expect 0 convert square.npy cyclic --dst 'cyclic(2x2;1x1)' --force --verify
says '^whole arrays  4 of more than 64 boxes'
expect 0 convert cyclic d.npy --force; same square.npy d.npy
# parts that ranks share are several arrays of a rank: together of more than 64 boxes, each is stored whole
{ npy '|u1' False '(44, 20)'; bytes 880 9; } >parts.npy
expect 0 convert parts.npy parts --dst "mesh(2x2;S0{$(printf '2,%.0s' {1..20})4/1},S1*5)" --force --verify
says '^whole arrays  8 of more than 64 boxes'
expect 0 convert parts d.npy --force; same parts.npy d.npy
{ npy '|u1' False '(66,)'; bytes 66 9; } >many.npy
refuse 2 ' 66 arrays of rank 0, 64 are the most in shards' \
  convert many.npy x --dst "mesh(2;S0{$(printf '1,1/1,%.0s' {1..32})1,1/1})"

# files without our description: the shapes are inferred
mkdir theirs
half() { # NAME OFFSET ROWS DATA
  local size=${#4} sharding="{\\\"t\\\": {\\\"saved_offsets\\\": [$2, 0]}}"
  local metadata='{"format":"pt","DCP_VERSION":"1.0","DCP_SHARDING_INFO":"'$sharding'"}'
  { safetensors '{"__metadata__":'"$metadata"',"t":{"dtype":"U8","shape":['"$3"',3],"data_offsets":[0,'"$size"']}}'
    printf %s "$4"; } >"theirs/$1"
}
half b.safetensors 0 2 abcdef; half a.safetensors 2 1 ghi
expect 0 convert theirs d.npy --force; says '^shapes +inferred'; says '2 files of 2 ranks'
{ npy '|u1' False '(3, 3)'; printf abcdefghi; } >nine.npy
same nine.npy d.npy

# --- maps -----------------------------------------------------------------------------------------------------------
"$checkpoint" "$SOURCE/bench/models/demo-llama.json" llama.safetensors >out || fault 'no checkpoint was made'
fuse=$SOURCE/bench/models/maps/llama-fuse.map
sed 's/4096/512/; s/1024/256/g' "$SOURCE/bench/models/maps/llama-3.1-8b-split.map" >split.map # this one is small
expect 0 convert llama.safetensors fused.safetensors --map llama-fuse --verify
says '^target +safetensors, 1 file: 27 tensors'
sed -nE 's/.*"name": "([^"]*)".*/\1 = \1/p' "$SOURCE/bench/models/demo-llama.json" >llama-order.map # the first order
expect 0 convert fused.safetensors split.safetensors --map split.map --verify
says '^target +safetensors, 1 file: 39 tensors'
expect 0 convert llama.safetensors fused --map "$fuse" --dst 'flat()' --ranks 3
expect 0 convert llama.safetensors fused.safetensors --map llama-fuse.map --force
ours='deepseek-fuse llama-3.1-8b-split llama-fuse moe-stack moe-unstack qwen3-fuse'
refuse 2 "map 'fuse': No such file.* program: $ours$" \
  convert llama.safetensors x.safetensors --map fuse
cat >engine.rules <<'TEXT'
*.qkv_proj.weight     mesh(tp;S0{2:1/2:1/2})
*.gate_up_proj.weight mesh(tp;S0{1:1})
*                     mesh(tp;R)
TEXT
for tp in 1 2 4; do # as an engine loads it, in shards, and back
  expect 0 convert llama.safetensors engine --map llama-fuse --dst @engine.rules --ranks $tp --verify --force
  expect 0 convert engine split3.safetensors --map split.map --verify --force; same split.safetensors split3.safetensors
done
grep -qaF 'S0{512,256/2,256/2}' engine/shard-00001-model-00001-of-*.safetensors || fault 'no parts in elements'
refuse 2 'does not divide 1024' convert llama.safetensors x --map llama-fuse --dst @llama-8b-fused --ranks 2
expect 0 convert fused split2.safetensors --map split.map; same split.safetensors split2.safetensors
expect 0 convert split.safetensors llama2.safetensors --map llama-order.map --verify
same llama.safetensors llama2.safetensors
cat >stack.map <<'TEXT'
norms   = stack(model.layers.*.input_layernorm.weight)
lm_head = transpose(lm_head.weight)
* = *
TEXT
cat >unstack.map <<'TEXT'
stack(model.layers.*.input_layernorm.weight) = norms
transpose(lm_head.weight) = lm_head
* = *
TEXT
expect 0 convert llama.safetensors stacked.safetensors --map stack.map --verify; says '1 file: 36 tensors'
expect 0 convert stacked.safetensors tp --map unstack.map --dst "@$rules/tp.rules" --ranks 2 --verify
says '2 files of 2 ranks: 39 tensors'
expect 0 convert tp llama2.safetensors --map llama-order.map --force; same llama.safetensors llama2.safetensors
# A vocabulary that is padded with zeros, cut, and cropped again, each in one pass.
{ safetensors '{"embed":{"dtype":"F16","shape":[37,5],"data_offsets":[0,370]}}'; bytes 370 9; } >vocabulary.safetensors
echo 'embed = concat(0; embed, zeros():11)' >pad.map; echo 'concat(0; embed:37, drop():11) = embed' >crop.map
expect 0 convert vocabulary.safetensors padded.safetensors --map pad.map --verify
same <(tail -c 480 padded.safetensors) <(tail -c 370 vocabulary.safetensors && head -c 110 /dev/zero)
expect 0 check padded.safetensors
for layout in 'chunk(0)' 'cyclic(3x1;4x2)' 'flat()' 'mesh(3;S1)'; do
  expect 0 convert vocabulary.safetensors padded --map pad.map --dst "$layout" --ranks 3 --force --verify
  expect 0 convert padded joined.safetensors --force; same joined.safetensors padded.safetensors
  expect 0 convert padded cropped.safetensors --map crop.map --force --verify
  same <(tail -c 370 cropped.safetensors) <(tail -c 370 vocabulary.safetensors)
done
refuse 2 'lm_head' convert llama.safetensors x.safetensors --map <(printf 'a = model.norm.weight\n')

# --- the report as JSON ---------------------------------------------------------------------------------------------
expect 0 convert c.npy rows --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 --force --json -
[ "$(head -c 1 out)" = '{' ] || fault 'something stands before the JSON'
check 'set(j) == {"version", "source", "target", "wire_bytes", "open_us", "reserve_us", "move_us", "sync_us",
  "verify_us"}'
check 'set(j["source"]) == {"format", "tensors", "files", "ranks", "bytes", "stored_bytes", "checked_bytes", "leaves",
  "left_out", "left_out_tensors", "left_out_bytes", "described", "unlisted"}'
check 'set(j["target"]) == {"format", "tensors", "files", "ranks", "stored_bytes", "leaves", "whole_arrays", "gapped",
  "haloed", "digests", "converted", "unconverted", "scaled", "from_device"}'
check 'j["wire_bytes"] == 792 and j["source"]["format"] == "npy" and j["target"]["format"] == "shards"
  and j["target"]["files"] == 4'
check 'j["target"]["stored_bytes"] == 1092 and j["target"]["ranks"] == 4 and j["move_us"] > 0'
expect 0 convert theirs d.npy --force --verify --json file.json; says '^moving'
cp file.json out; check 'j["source"]["described"] is False and j["source"]["ranks"] == 2 and j["verify_us"] > 0'

if [ -z "$python" ]; then
  [ "$failures" = 0 ] || finish
  echo 'skipped: python3 is missing, the JSON was not read'
  exit 77
fi
finish
