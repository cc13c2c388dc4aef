#!/usr/bin/env bash
# Rules: tensors without dims, quantised models, and what each line took, on standard output, as JSON, and on standard
# error.
. "$(dirname "$0")/common.bash"
. "$SOURCE/tests/cli/files.bash"
rules=$SOURCE/bench/models/rules
python=$(command -v python3) && "$python" -c 'import json' 2>/dev/null || python=
check() { # EXPRESSION: a Python expression about j, the last run's output, is true
  [ -n "$python" ] || return 0
  "$python" -c 'import json, sys; j = json.load(open(sys.argv[1])); sys.exit(0 if eval(sys.argv[2]) else 1)' \
    "$work/out" "($1)" || fault "not valid, or not so: $1: $(head -c 400 "$work/out")"
}
header() { head -c 20000 "$1" | tr -d '\\'; } # FILE: its header, and data behind it

# --- tensors without dims: an optimizer's state, BatchNorm's counter, scales of FP8 for a whole tensor ---------------
cat >adamw.json <<'TEXT'
[{"name": "model.q_proj.weight", "shape": [6, 4], "dtype": "bf16"},
 {"name": "model.bn.num_batches_tracked", "shape": [], "dtype": "i64"},
 {"name": "logit_scale", "shape": [], "dtype": "f32"},
 {"name": "optimizer.state.0.step", "shape": [], "dtype": "f32"},
 {"name": "optimizer.state.0.exp_avg", "shape": [6, 4], "dtype": "f32"},
 {"name": "optimizer.state.0.exp_avg_sq", "shape": [6, 4], "dtype": "f32"}]
TEXT
cat >fp8.json <<'TEXT'
[{"name": "l.0.self_attn.q_proj.weight", "shape": [8, 4], "dtype": "f8_e4m3"},
 {"name": "l.0.self_attn.q_proj.weight_scale", "shape": [], "dtype": "f32"},
 {"name": "l.0.self_attn.q_proj.input_scale", "shape": [], "dtype": "f32"},
 {"name": "l.0.self_attn.o_proj.weight", "shape": [4, 8], "dtype": "f8_e4m3"},
 {"name": "l.0.self_attn.o_proj.weight_scale", "shape": [], "dtype": "bf16"},
 {"name": "l.0.self_attn.o_proj.weight_scale_inv", "shape": [], "dtype": "f32"}]
TEXT
for model in adamw fp8; do
  "$checkpoint" $model.json $model.safetensors 3 >out || fault 'no checkpoint was made'
  expect 0 convert $model.safetensors whole.safetensors --force
  for layout in @fsdp @tp @hsdp @fsdp-tp @flat 'chunk(0)' 'chunk(-1;3-1)' 'mesh(2x2;S0,S1)' 'mesh(tp=2@2-3;S1)' \
    'mesh(2x2;R,R)' 'cyclic(2x2;1x3)' 'rank(1)'; do
    mesh=()
    case $layout in @hsdp) mesh=(--mesh replica=2) ;; @fsdp-tp) mesh=(--mesh tp=2) ;; esac
    # a grid has as many dims as each tensor that is cut
    expect 0 convert $model.safetensors cut --dst "$layout" "${mesh[@]}" --ranks 4 --force --verify
    expect 0 convert cut joined.safetensors --force
    same joined.safetensors whole.safetensors
    expect 0 convert whole.safetensors again.safetensors --src "$layout" "${mesh[@]}" --ranks 4 --force
    same again.safetensors whole.safetensors
  done
done
expect 0 convert adamw.safetensors cut --dst 'chunk(0;1-3)' --ranks 4 --force
says '^without dims  3 tensors, whole on each rank of their layout$'
for rank in 2 3 4; do
  header cut/shard-0000$rank-model-00001-of-00001.safetensors | grep -q '"logit_scale":{"dtype":"F32","shape":\[\]' ||
    fault "rank $((rank - 1)) has no logit_scale"
done
header cut/shard-00002-model-00001-of-00001.safetensors | grep -q '"logit_scale":"mesh(3@1-3;R)"' ||
  fault "its layout is no mesh(3@1-3;R)"
expect 0 convert adamw.safetensors cut --dst 'chunk(0)' --ranks 2 --force --dedup
[ "$(cat cut/shard-0000[12]* | tr -d '\\' | grep -aoc '"logit_scale":{"dtype"')" = 1 ] || fault 'it is stored twice'
expect 0 convert adamw.safetensors cut --dst 'chunk(0)' --ranks 2 --force --json -
check 'j["target"]["scalars"] == 3'
expect 0 plan --model adamw.json --src 'chunk(0)' --dst 'rank(0)' --ranks 3
expect 0 plan --model adamw.json --src 'rank(0)' --dst 'chunk(0)' --ranks 3 --json -
check 'j["scalars"] == 3 and j["wire_bytes"] == 2 * 16 + 4 * 8 + 2 * 4 * 16'
expect 0 bench --model adamw.json --src @fsdp --dst @tp --ranks 2 -n 1 -w 0 -c
refuse 2 'dim 0 of a tensor of 0 dims' plan --shape scalar --src 'chunk(0)' --dst 'rank(0)' --ranks 2
bad 2 "dst: tensor 'model.bn.num_batches_tracked'.*2 numbers, the tensor has 0 dims" convert adamw.safetensors x \
  --dst 'boxes(0:[0,0]+[6,4])'
printf '# cut along dim 1\nlog* mesh(2;S1)\n*q_proj*  mesh(2;S2)\n* chunk(0)\n' >two.rules
bad 2 "dst: two.rules:3:11: tensor 'model.q_proj.weight' of shape 6x4: .*dim 2 of a tensor of 2 dims" \
  convert adamw.safetensors x --dst @two.rules
refuse 2 "--dst: two.rules:3:11: tensor 'model.q_proj.weight' of shape 6x4: .*dim 2 of a tensor of 2 dims" \
  plan --model adamw.json --src @fsdp --dst @two.rules

# --- quantised models ------------------------------------------------------------------------------------------------
{ # one layer of Qwen3-30B-A3B in block FP8, with 8 of its experts
  printf '[{"name": "l.0.input_layernorm.weight", "shape": [2048], "dtype": "bf16"}'
  weight() { # NAME ROWS COLUMNS
    printf ',\n{"name": "l.0.%s.weight", "shape": [%d, %d], "dtype": "f8_e4m3"}' "$@"
    printf ',\n{"name": "l.0.%s.weight_scale_inv", "shape": [%d, %d], "dtype": "f32"}' "$1" $(($2 / 128)) $(($3 / 128))
  }
  weight self_attn.q_proj 4096 2048; weight self_attn.k_proj 512 2048; weight self_attn.v_proj 512 2048
  weight self_attn.o_proj 2048 4096
  for expert in 0 1 2 3 4 5 6 7; do
    for part in gate up; do weight mlp.experts.$expert.${part}_proj 768 2048; done
    weight mlp.experts.$expert.down_proj 2048 768
  done
  printf ']\n'
} >qwen.json
refused="tp.rules:[0-9]+:19: tensor 'l.0.*': rank [0-9]+ has (rows|columns) .* cut a block of 128"
for ranks in $(seq 16); do
  case $ranks in
  1 | 2)
    expect 0 plan --model qwen.json --src @fsdp --dst @tp --ranks "$ranks"
    expect 0 bench --model qwen.json --src @fsdp --dst @tp --ranks "$ranks" -n 1 -w 0 ;;
  *) for command in plan bench; do
      refuse 2 "$refused" $command --model qwen.json --src @fsdp --dst @tp --ranks "$ranks"
      refuse 2 "$refused" $command --model qwen.json --src @tp --dst @fsdp --ranks "$ranks"
    done ;;
  esac
done
"$checkpoint" qwen.json qwen.safetensors 3 >out || fault 'no checkpoint was made'
expect 0 convert qwen.safetensors cut --dst @tp --ranks 2 --force
says '^  line [0-9]+ +blocks _scale_inv 128x128: 28 tensors, '
header cut/shard-00002-model-00001-of-00001.safetensors >part
for shape in 'q_proj.weight_scale_inv":{"dtype":"F32","shape":\[16,16\]' \
  'o_proj.weight_scale_inv":{"dtype":"F32","shape":\[16,16\]' \
  'experts.7.down_proj.weight_scale_inv":{"dtype":"F32","shape":\[16,3\]'; do
  grep -qa "$shape" part || fault "no $shape on rank 1"
done
expect 0 convert cut joined.safetensors --force
expect 0 convert qwen.safetensors whole.safetensors --force; same joined.safetensors whole.safetensors
before=$(beside)
refuse 2 "dst: .*$refused" convert qwen.safetensors tp4 --dst @tp --ranks 4
refuse 2 "src: .*$refused" convert qwen.safetensors tp4 --src @tp --ranks 4 --dst @fsdp
[ "$before" = "$(beside)" ] || fault 'a refused conversion leaves something'

# GPTQ and AWQ in 4 bits, groups of 16 of 64 inputs, which come first
for kind in gptq awq; do
  qweight='8, 64' && [ $kind = gptq ] || qweight='64, 8'
  { printf '[{"name": "norm.weight", "shape": [64], "dtype": "f16"}'
    for part in q o; do
      printf ',\n{"name": "l.%s_proj.qweight", "shape": [%s], "dtype": "i32"}' $part "$qweight"
      printf ',\n{"name": "l.%s_proj.qzeros", "shape": [4, 8], "dtype": "i32"}' $part
      printf ',\n{"name": "l.%s_proj.scales", "shape": [4, 64], "dtype": "f16"}' $part
      [ $kind = awq ] || printf ',\n{"name": "l.%s_proj.g_idx", "shape": [64], "dtype": "i32"}' $part
    done
    printf ']\n'; } >$kind.json
  "$checkpoint" $kind.json $kind.safetensors 3 >out || fault 'no checkpoint was made'
  for shipped in tp tp-kv-4 fsdp-tp ep-128; do
    refuse 2 "$shipped.rules:[0-9:]+ tensor 'l.[qo]_proj.q(weight|zeros)': .*@tp-gptq, @tp-awq" \
      convert $kind.safetensors x --dst @$shipped --ranks 4 --mesh tp=2
  done
  expect 0 convert $kind.safetensors cut --dst @tp-$kind --ranks 2 --force
  header cut/shard-00002-model-00001-of-00001.safetensors >part
  held='q_proj.scales [4,32] o_proj.scales [2,64] q_proj.qzeros [4,4] o_proj.qzeros [2,8] norm.weight [64]'
  [ $kind = awq ] && held+=' q_proj.qweight [64,4] o_proj.qweight [32,8]' ||
    held+=' q_proj.qweight [8,32] o_proj.qweight [4,64] q_proj.g_idx [64] o_proj.g_idx [32]'
  while read -r -d ' ' name && read -r -d ' ' shape; do
    tr '{' '\n' <part | grep -aA1 "$name\":\$" | grep -qaF "\"shape\":$shape" ||
      fault "$kind: no $name $shape on rank 1"
  done <<<"$held "
  expect 0 convert cut joined.safetensors --force
  expect 0 convert $kind.safetensors whole.safetensors --force; same joined.safetensors whole.safetensors
done

# --- what each line took ---------------------------------------------------------------------------------------------
cat >own.rules <<'TEXT'
# names as in other checkpoints
*.qproj.*      chunk(0)
*q_proj.weight mesh(2;S0)
.layers[0].*   chunk(1)
x.\[0\].w      rank(0)
blocks .scales 2x2
model.[0-9]*   rank(1)
*              mesh(2;R)
TEXT
expect_told() { # ARGUMENT...: status 0 and the lines that took nothing
  run "$@"
  [ "$status" = 0 ] || fault "reshard $*: status $status: $(cat "$work/err")"
  diff "$work/err" - >said <<'TEXT' || fault "reshard $*: $(cat said)"
reshard: note: own.rules:2: '*.qproj.* chunk(0)' takes no tensor
reshard: note: own.rules:4: '.layers[0].* chunk(1)' takes no tensor: '[' begins a set of characters, write \[ for itself
reshard: note: own.rules:5: 'x.\[0\].w rank(0)' takes no tensor
reshard: note: own.rules:6: 'blocks .scales 2x2' takes no tensor
reshard: note: own.rules:7: 'model.[0-9]* rank(1)' takes no tensor: '[' begins a set of characters, write \[ for itself
TEXT
}
expect_told convert adamw.safetensors cut --dst @own.rules --force
says '^rules of dst  own.rules$'
says '^  line 3 +\*q_proj.weight mesh\(2;S0\): 1 tensor, 48 B$'
says "^  line 8 +\* mesh\(2;R\): 5 tensors, 208 B; the largest is 'optimizer.state.0.exp_avg', 96 B$"
says '^  no tensor   lines 2, 4, 5, 6, 7$'
expect_told convert adamw.safetensors cut --dst @own.rules --force --json -
check '[(r["side"], r["file"], r["line"], r["tensors"], r["bytes"]) for r in j["rules"]] ==
  [("dst", "own.rules", l, {3: 1, 8: 5}.get(l, 0), {3: 48, 8: 208}.get(l, 0)) for l in range(2, 9)]'
check 'j["rules"][-1]["largest"] == "optimizer.state.0.exp_avg" and j["rules"][-1]["largest_bytes"] == 96'
expect_told plan --model adamw.json --src @fsdp --dst @own.rules --ranks 2
says '^rules of src  .*/fsdp.rules$'; says '^  line [0-9]+ +\* mesh\(fsdp;S0\): 6 tensors, 256 B; the largest is '
expect_told plan --model adamw.json --src @own.rules --dst @own.rules --ranks 2 --json -
check 'len(j["rules"]) == 14 and sum(r["tensors"] for r in j["rules"]) == 12 and
  sum(r["bytes"] for r in j["rules"]) == 2 * j["bytes"]'
expect_told bench --model adamw.json --src @fsdp --dst @own.rules --ranks 2 -n 1 -w 0 --processes 2
{ seq -f 'no.%.0f rank(0)' 30; echo '* rank(0)'; } >long.rules # 20 of many
run plan --model adamw.json --src 'chunk(0)' --dst @long.rules --ranks 2
[ "$(wc -l <err)" = 21 ] && [ "$(tail -1 err)" = 'reshard: note: 10 more lines of rules take no tensor' ] ||
  fault "not 20 lines and one: $(cat err)"
# shipped rules are not told of, by whatever path; a layout string has none
expect 0 plan --model adamw.json --src "@$rules/tp.rules" --dst @ep-128 --ranks 2; says '^  no tensor   lines '
ln -s "$rules/tp.rules" mine.rules
expect 0 convert adamw.safetensors cut --dst @mine.rules --ranks 2 --force
cp "$rules/tp.rules" copied.rules
run convert adamw.safetensors cut --dst @copied.rules --ranks 2 --force
[ "$(wc -l <err)" -gt 5 ] || fault 'a copy is the user'\''s own'
expect 0 convert adamw.safetensors cut --dst 'chunk(0)' --ranks 2 --force --json -
check '"rules" not in j'
finish
