#!/usr/bin/env bash
# Print-outs and pictures of plan: worlds, rules, models, large worlds, pictures.
. "$(dirname "$0")/common.bash"
rules=$SOURCE/bench/models/rules

expect 0 plan --shape 13x21 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4
says 'on the wire +792 B.*the lower bound'; says 'messages +12 in 1 round'
expect 0 plan --shape 12x12 --src 'mesh(2x2@4-7;R,S1)' --dst 'rank(1)'; says '^ranks +8$'
expect 0 plan --shape 12x12 --src 'rank(0)' --dst 'chunk(-1;2,0,3,1)'; says '^ranks +4$'
expect 0 plan --shape 12x12 --src 'flat()' --dst 'cyclic(2x2;5x1)' --ranks 9; says '^ranks +9$'
expect 0 plan --shape 12x12 --src 'flat()' --dst 'flat()' --ranks 3 --rank 1; says 'load per rank'
expect 0 plan --shape scalar --src 'rank(0)' --dst 'rank(1)'; says 'scalar f32, 4 B'
rows_to_columns=(--shape 8x8 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2)
expect 0 plan "${rows_to_columns[@]}" --dst-dtype bf16; says '8x8 f32, 256 B'; says '^on the wire   64 B'
says '^converts +1 tensor from f32 to bf16: bf16 travels, 128 B; converted in the pack$'
expect 0 plan "${rows_to_columns[@]}" -d f16 --dst-dtype f64
says 'f16 travels, 128 B; converted in the unpack$'
printf '[{"name":"a","shape":[8,8],"dtype":"f32"},{"name":"b","shape":[8,4],"dtype":"f32"},%s]' \
  '{"name":"c","shape":[8,8],"dtype":"f32"}' >three.json
printf 'b chunk(1) f16\n* chunk(1) bf16\n' >two.rules
expect 0 plan --model three.json --src 'chunk(0)' --dst @two.rules --ranks 2
says '^converts +2 tensors from f32 to bf16: bf16 travels, 256 B'
says '^converts +1 tensor from f32 to f16: f16 travels, 64 B'
rm three.json two.rules
expect 0 plan "${rows_to_columns[@]}" --dst-dtype f8_e4m3 --json -
says '"bytes":64,"wire_bytes":32,'; says '"conversions":[[].*"to":"f8_e4m3","wire":"f8_e4m3","converted":"pack"'
# 64 values and a scale of f32 for each of 4 blocks
scaled=(plan --shape 8x8 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2)
expect 0 "${scaled[@]}" --dst-dtype f8_e4m3/4x4; says '^on the wire   40 B'
says 'f32 to f8_e4m3/4x4: values and scales travel, 80 B; converted in the pack'
expect 0 "${scaled[@]}" --dst-dtype f8_e4m3/4x4:e8m0; says 'to f8_e4m3/4x4:e8m0: values and scales travel, 68 B'
expect 0 "${scaled[@]}" --dst-dtype f8_e4m3/4x4 --json -; says '"wire": ?"f8_e4m3/4x4"'
refuse 3 'dim 0 of the source is cut at 4 by rank 0, within a block of 8' "${scaled[@]}" --dst-dtype f8_e4m3/8x4
refuse 2 'dim 1 of the f8_e4m3 side is cut at 4 by rank 0, within a block of 3' "${scaled[@]}" --dst-dtype f8_e4m3/4x3
refuse 3 'of f32, f16 and bf16 with 2 dims, or 3' "${scaled[@]}" -d f64 --dst-dtype f8_e4m3/4x4
expect 0 "${scaled[@]}" -d f8_e4m3/4x4 --dst-dtype bf16; says '^tensor +8x8 f8_e4m3/4x4, 80 B$'
says 'from f8_e4m3/4x4 to bf16: values and scales travel, 80 B; converted in the unpack'
expect 0 plan --shape 8x8 --src 'chunk(1)' --dst 'chunk(0)' --ranks 2 -d f8_e4m3/8x4:e8m0 --dst-dtype f32
says 'from f8_e4m3/8x4:e8m0 to f32: f32 travels, 256 B; converted in the pack'
refuse 3 'dtype f8_e4m3/4x4: to f32, f16 and bf16 by --dst-dtype, with 2 dims, or 3' "${scaled[@]}" -d f8_e4m3/4x4
refuse 3 'dtype f8_e4m3/4x4: to f32, f16 and bf16 by --dst-dtype' "${scaled[@]}" -d f8_e4m3/4x4 --dst-dtype f64
refuse 3 '--dst-dtype bf16: no cast from i32' plan "${rows_to_columns[@]}" -d i32 --dst-dtype bf16
refuse 3 '--dst-dtype u8: there are no casts to it' plan "${rows_to_columns[@]}" --dst-dtype u8
refuse 2 "--dst-dtype: unknown dtype 'f31'" plan "${rows_to_columns[@]}" --dst-dtype f31
expect 0 plan --shape 1048576x1024 --dtype bf16 --src 'mesh(128x128;S0,S1)' --dst 'mesh(16384;S0)' --rank 77
says '^ranks +16384$'

sizes=(--mesh fsdp=64,tp=8)
expect 0 plan --model llama-3.1-70b --src "@$rules/fsdp.rules" --dst "@$rules/tp.rules" "${sizes[@]}"
says '^layouts .*, fsdp=64,tp=8$'; says '723 tensors'; says '^ranks +64$'; says 'the lower bound'
says 'busiest of 64 ranks'
expect 0 plan --model qwen3-235b-a22b --src "@$rules/fsdp.rules" --dst "@$rules/ep-128.rules" --ranks 8
says '36945 tensors'

# The number of ranks is no part of rules: --ranks, or --mesh where the sides have different ones. Names alone do.
llama=(--model llama-3.1-8b)
expect 0 plan "${llama[@]}" --src @fsdp --dst @tp --ranks 4; says '^ranks +4$'
expect 0 plan "${llama[@]}" --src @fsdp.rules --dst @tp.rules --mesh fsdp=2,tp=4; says '^ranks +4$'
expect 0 plan "${llama[@]}" --src @hsdp --dst @fsdp-tp --mesh replica=2,tp=4 --ranks 16; says '^ranks +16$'
expect 0 plan "${llama[@]}" --src @hsdp --dst @fsdp-tp --mesh tp=4,replica=2,fsdp=4; says '^ranks +16$'
expect 0 plan "${llama[@]}" --src @flat --dst @tp-kv-4 --ranks 12; says '^ranks +12$'
for tp in 1 2 16; do expect 0 plan "${llama[@]}" --src @fsdp --dst @llama-8b-fused --ranks $tp; done
refuse 2 'experts are apart: --map qwen3-fuse' \
  plan --model qwen3-30b-a3b --src @fsdp --dst @qwen3-30b-fused --ranks 4 --mesh ep=1
refuse 2 '\{4096,1024\} is 5120 of 6144' plan --shape 6144 --src 'chunk(0)' --dst 'mesh(4;S0{4096,1024})'
expect 0 plan --shape 8x8 --src 'mesh(fsdp;S0)' --dst 'mesh(dp,tp;S0,S1)' --mesh tp=2 --ranks 6; says '^ranks +6$'
refuse 2 'give --ranks' plan "${llama[@]}" --src @fsdp --dst @tp
refuse 2 'mesh dims fsdp and tp have no size' plan "${llama[@]}" --src @fsdp-tp --dst @tp --ranks 8
refuse 2 '/4 of 6 ranks' plan "${llama[@]}" --src @fsdp --dst @tp-kv-4 --ranks 6
refuse 2 "no layout has a mesh dim 'dp' without a size" plan "${llama[@]}" --src @fsdp --dst @tp --ranks 4 --mesh dp=2
refuse 2 "no layout has a mesh dim 'tp'" plan --shape 8x8 --src 'mesh(tp=2;S0)' --dst 'chunk(1)' --mesh tp=2
for mesh in '' tp tp= tp=0 tp=x 8=tp tp=8, =8 tp=8:fsdp=2 tp=99999999999999999999; do
  refuse 2 "--mesh $mesh: column" plan "${llama[@]}" --src @fsdp --dst @tp --ranks 4 --mesh "$mesh"
done
ours='@deepseek-v3-fused @dsv3-ep16-pp4 @ep-128 @ep-256 @flat @fsdp @fsdp-tp @hsdp @llama-70b-fused @llama-8b-fused '
ours+='@qwen3-235b-fused @qwen3-30b-fused @qwen3-ep16-pp4 @tp @tp-awq @tp-gptq @tp-kv-4'
for name in tq tp-8.rules tp.rule; do
  refuse 2 "rule file '$name': No such file.*with the program: $ours$" \
    plan "${llama[@]}" --src "@$name" --dst @tp --ranks 8
done
refuse 2 'no-such-model' plan --model no-such-model --src 'chunk(0)' --dst 'chunk(0)' --ranks 2

picture() { # ARGUMENT...: a well-formed picture, whose texts can be read
  expect 0 plan "$@" --svg picture.svg
  [ "$(head -c 4 picture.svg)" = '<svg' ] && [ "$(tail -n 1 picture.svg)" = '</svg>' ] || fault "plan $*: no picture"
  ! command -v python3 >/dev/null || python3 -B "$SOURCE/tests/figures/boxes.py" picture.svg >said 2>&1 ||
    fault "plan $*: the picture is not well-formed, or has texts that overlap or are cut: $(tail -5 said)"
  ! grep -qE '[^a-z](nan|inf)[^a-z]' picture.svg || fault "plan $*: the picture has numbers that are none"
  rm -f picture.svg
}
picture --shape 13x21 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4
picture --shape 13 --src 'chunk(0)' --dst 'rank(0)' --ranks 16
picture --shape scalar --src 'rank(0)' --dst 'mesh(3;R)'
picture --shape 0x4 --src 'chunk(0)' --dst 'chunk(1)' --ranks 3
picture --shape 0x4 --src 'chunk(0)' --dst 'chunk(1)' --ranks 30
picture --shape 8192x8192 --src 'cyclic(2x2;64x64)' --dst 'cyclic(2x2;96x96)'
picture --shape 6x10x4 --src 'flat(0-4)' --dst 'mesh(2x3@5-0;S0,R)'
picture --shape 8x8 --src 'rank(0)' --dst 'boxes(0:[0,0]+[3,3];1:[1,1]+[4,4])'
picture --shape 64x64 --src 'rank(0)' --dst 'rank(0)' --ranks 1
picture --shape 64x64 --src 'rank(0)' --dst 'rank(0)' --ranks 100
picture --shape 4096x64 --src 'chunk(0)' --dst 'chunk(1)' --ranks 300 --rank 7
picture --shape 4096x4096 --src 'mesh(8x8;R,S0)' --dst 'mesh(8x8;S1,R)' --ranks 64
picture --shape 8192x8192 --src 'chunk(0)' --dst 'chunk(1)' --ranks 12
picture --shape 4096x4096 --src 'chunk(0;0-19)' --dst 'chunk(1;60-79)' --ranks 100
picture --model llama-3.1-70b --src "@$rules/fsdp.rules" --dst "@$rules/tp.rules" "${sizes[@]}"
printf '[{"name": "<&>\\"\\n", "shape": [8], "dtype": "u8"}]' >model.json
picture --model model.json --src 'chunk(0)' --dst 'rank(1)' --ranks 2
[ -z "$(ls | grep -v -e out -e err -e said -e model.json)" ] || fault "left behind: $(ls)"

# the picture: replicas are listed, not cut; ranks that hold nothing are left out; 64 ranks have their numbers
expect 0 plan --shape 16x24 --src 'mesh(a=2,b=2;R,S0)' --dst 'mesh(a=2,b=2;S1,R)' --ranks 8 --svg picture.svg
for holders in 0,2 1,3 0-1 2-3; do
  [ "$(grep -c "<title>replicas: ranks $holders</title>" picture.svg)" = 1 ] ||
    fault "no replicas $holders: $(grep title picture.svg)"
done
grep -q '>4 ranks of 8 take no part<' picture.svg && ! grep -qE '>[4-7]</text>' picture.svg ||
  fault 'idle ranks are in the picture'
grep -q '>grey: whole on each rank in it<' picture.svg && ! grep -q '>dot: ' picture.svg || fault 'another legend'
expect 0 plan --shape 24x24 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 --svg picture.svg
! grep -q '>grey: whole' picture.svg && grep -q '>dot: ' picture.svg || fault 'another legend'
# lists of replicas that are longer than a line, each rank in its colour
expect 0 plan --shape 4096x4096 --src 'chunk(0)' --dst 'mesh(8x4;R,S1)' --ranks 32 --svg picture.svg
for rank in 0 13 28; do # before and after
  [ "$(grep -c "font-weight=\"600\">$rank</text>" picture.svg)" = 2 ] || fault "rank $rank has no number"
done
! grep -q '>dot: ' picture.svg || fault 'dots in colours that several ranks have'
expect 0 plan --shape 1000x8192 --src 'chunk(0;0-7)' --dst 'mesh(8x2@16-31;S0,R)' --ranks 64 --svg picture.svg
grep -q '>40 ranks of 64 take no part<' picture.svg && [ "$(grep -cE '>(31|17|7)</text>' picture.svg)" = 4 ] &&
  ! grep -qE '>([89]|1[0-5]|3[2-9]|[4-6][0-9])</text>|grey: kept' picture.svg || fault 'idle ranks are in the heat map'
expect 0 plan --shape 8192x8192 --src 'cyclic(4x4;64x64)' --dst 'chunk(0)' --ranks 16 --svg picture.svg
[ "$(grep -c '>12</text>' picture.svg)" = 5 ] || fault 'columns of several ranks have a number' # legend, bars, table
expect 0 plan --shape 4096x4096 --src 'chunk(0)' --dst 'mesh(16x32;S0,S1)' --ranks 512 --svg picture.svg
grep -q '>sent by 4 ranks, up to 496 KiB<' picture.svg || fault 'the load is whose?'
expect 0 plan --shape 4096x4096 --src 'chunk(0)' --dst 'mesh(8x8;S0,S1)' --ranks 64 --svg picture.svg
for rank in 0 17 42 63; do # before and after
  [ "$(grep -c "<title>rank $rank</title>" picture.svg)" = 2 ] || fault "rank $rank is not drawn twice"
  [ "$(grep -c "font-weight=\"600\">$rank</text>" picture.svg)" = 2 ] || fault "rank $rank has no number"
done
# more than two dims are cut: each side in its own, and in slices where it has more
expect 0 plan --shape 8x64x64 --src 'mesh(2x2;S1,S2)' --dst 'chunk(0)' --ranks 4 --svg picture.svg
for rank in 0 1 2 3; do
  [ "$(grep -c "<title>rank $rank</title>" picture.svg)" = 2 ] || fault "rank $rank is not drawn before and after"
done
expect 0 plan --shape 16x64x32 --src 'mesh(2x2x2;S0,S1,S2)' --dst 'mesh(2x4;S1,S2)' --ranks 8 --svg picture.svg
for rank in 0 3 4 7; do
  [ "$(grep -c "<title>rank $rank</title>" picture.svg)" = 2 ] || fault "rank $rank is not drawn before and after"
done
grep -q '>dim 2: \[0,16)<' picture.svg && grep -q '>dim 2: \[16,32)<' picture.svg || fault 'no slices'
picture --shape 16x64x32 --src 'mesh(2x2x2;S0,S1,S2)' --dst 'mesh(2x4;S1,S2)' --ranks 8
picture --shape 8x8x8x8 --src 'mesh(2x2x2x2;S0,S1,S2,S3)' --dst 'cyclic(2x2x1x2;1x1x1x1)' --ranks 16
# numbers of the table have one unit, which is said; dots are beside the ranks' numbers
expect 0 plan --shape 64x64 --src 'cyclic(2x2;4x4)' --dst 'cyclic(2x2;6x6)' --ranks 4 --svg picture.svg
grep -q '>to rank (KiB; grey: kept)<' picture.svg || fault 'the table has no unit'
if command -v python3 >/dev/null; then
  python3 -B - "$SOURCE/tests/figures" picture.svg <<'PYTHON' || fault 'dots cover numbers'
import sys
import xml.etree.ElementTree as xml
sys.path.insert(0, sys.argv[1])
from boxes import SVG, box_of
picture = xml.parse(sys.argv[2]).getroot()
numbers = [box_of(t) for t in picture.iter(SVG + "text") if t.text.isdigit() and t.get("font-weight")]
dots = [[float(c.get(k)) for k in ("cx", "cy", "r")] for c in picture.iter(SVG + "circle")]
assert len(dots) > 20 and len(numbers) > 20, (len(dots), len(numbers))
covered = [(dot, box) for dot in dots for box in numbers
           if box[0] < dot[0] < box[2] and box[1] < dot[1] < box[3]]
assert not covered, covered[:3]
PYTHON
fi
expect 0 plan --shape 64x64 --src 'mesh(64;R)' --dst 'mesh(8x8;S0,S1)' --ranks 64 --svg picture.svg
grep -q '<title>replicas: ranks 0-63</title>' picture.svg && grep -q '>nothing is sent: each rank has what it needs<' \
  picture.svg || fault 'replicas of 64'

# A topology: what the links between domains and within carry, beside the least; files of domains.
reshard=(plan --shape 1024x1024 --src 'chunk(0;0-7)' --dst 'mesh(4x2@8-15;R,S1)')
plan_in() { expect 0 "${reshard[@]}" --topology "$@"; }

plan_in nvl:64; says '^topology      1 domain; 50 GB/s between and 900 within, 30 us a round$'
plan_in 64; says '^topology      1 domain; 50 GB/s between and 900 within, 30 us a round$'
plan_in hgx:8; says '^topology      2 domains; 50 GB/s between and 450 within, 30 us a round$'
says '^leaving       16.0 MiB, 4.000 x the least of 4.00 MiB \(from holders to other domains\)$'
says '^entering      16.0 MiB, 4.000 x the least of 4.00 MiB \(all domains\); domain 1 16.0 MiB'
says '^between       16.0 MiB; busiest link 2.00 MiB out, 2.00 MiB in$'
says '^within        0 B, 0.000 x the least of 12.0 MiB where a byte enters once; busiest link 0 B$'
# 2 MiB / 50 GB/s + 30 us; 0.5 MiB / 50 GB/s
says "^estimate      71.943 us in 1 round; 6.861 x the bound of 10.4858 us; "
says '^busiest rank  2.00 MiB in one direction over both of its links, '

cat >machine <<'TEXT'
# two halves, cut unevenly
0-3, 8 9 10,11   # the first
4-7 12-15
between 25 GB/s
within 100
round 10 us
TEXT
plan_in machine; says '^topology      2 domains; 25 GB/s between and 100 within, 10 us a round$'
expect 0 "${reshard[@]}" --topology ./machine --json -
for field in '"domains":2,' '"between_bytes":8388608,' '"within_bytes":8388608,' '"within_least_bytes":12582912,' \
  '"leaving_bytes":8388608,' \
  '"leaving_least_bytes":4194304,' '"entering_bytes":8388608,' '"entering_least_bytes":4194304,' '"hops":1,' \
  '"chains":0,' '"estimate_us":51.943,' '"bound_us":20.9715' '"per_domain":[{"domain":0,"ranks":8,'; do
  grep -qF "$field" "$work/out" || fault "no $field in the JSON"
done
plan_in machine --rank 11; says '^domain        0 of 2$'; says '^entering      1.00 MiB$'; says '^leaving       0 B$'
says '^between       0 B out, 1.00 MiB in$'; says '^estimate      51.943 us; the bound is '
expect 0 "${reshard[@]}" --topology machine --rank 11 --json -
for field in '"between_bytes":1048576,' '"within_bytes":1048576,' '"entering_least_bytes":0,' '"hops":1,' \
  '"chains":0,' '"estimate_us":'; do
  grep -qF "$field" "$work/out" || fault "no $field in the JSON of one rank"
done

refuses() { # TEXT LINE...: of a file
  local text=$1
  shift
  printf '%s\n' "$@" >wrong
  refuse 2 "$text" "${reshard[@]}" --topology wrong
}
refuses 'wrong: rank 15 of 16 is in no domain' 0-7 8-14
refuses 'wrong:2: rank 7 is in an earlier domain, too' 0-7 7-15
refuses "wrong:2: ranks of a domain: .*rank 16 is not in the world of 16 ranks" 0-7 8-16
refuses 'wrong:1: ranks of a domain: .*' 0-7x 8-15
refuses "wrong:3: 'betwen 50': ranks are needed, or between, within, round or chains" 0-7 8-15 'betwen 50'
refuses 'wrong:5: round is in line 3, too' 0-7 8-15 'round 30' 'chains 1' 'round 31'
refuses 'wrong:3: between 0: above 0 is needed' 0-7 8-15 'between 0'
refuses 'wrong:3: within -3: above 0 is needed' 0-7 8-15 'within -3'
refuses 'wrong:3: within 1e30: above 0 is needed' 0-7 8-15 'within 1e30'
refuses 'wrong:3: round 0: above 0 is needed' 0-7 8-15 'round 0'
refuses 'wrong:3: round x: a number is needed of us' 0-7 8-15 'round x'
refuses 'wrong:3: chains 1.5: a whole number is needed' 0-7 8-15 'chains 1.5'
refuses 'wrong:3: chains -2: none, 0 or more is needed' 0-7 8-15 'chains -2'
refuses 'wrong:3: within none: a number is needed of GB/s' 0-7 8-15 'within none'
printf '%s\n' 0-7 8-15 'chains 2' >machine
plan_in machine
says '^entering      4.00 MiB, 1.000 x the least of 4.00 MiB .all domains.; domain '
says '^within        12.0 MiB, 1.000 x the least of 12.0 MiB where a byte enters once; busiest link '
says '^passed on     in 2 hops, by 2 chains; nothing where a transfer is direct or takes a collective$'
small=(plan --shape 64x64 --src 'mesh(2@0-1;S0)' --dst 'mesh(2@2-3;R)' --ranks 4 --topology 2)
expect 0 "${small[@]}"; says '^passed on     nothing: it would take no less time$'
expect 0 "${small[@]}" --dst-dtype f8_e4m3/4x4; says '^passed on     nothing: blocks travel with their scales$'
refuses 'wrong: 3 chains, it has 2 domains' 0-7 8-15 'chains 3'
for line in '' 'chains 0' 'chains none'; do
  printf '%s\n' 0-7 8-15 "$line" >machine
  plan_in machine
  grep -E '^(entering|passed on|rounds)' "$work/out" >"chains ${line#chains }"
done
cmp -s 'chains ' 'chains 0' || fault 'chains 0, which are those of the model'
! cmp -s 'chains 0' 'chains none' || fault 'chains none'
expect 0 "${reshard[@]}" --topology 4 --svg picture.svg # of 16 ranks in 4 domains
[ "$(grep -o '#e4572e' picture.svg | wc -l)" = 6 ] && grep -q 'lines: between domains' picture.svg ||
  fault 'domains in the picture'
refuse 2 '--topology nvl:0: the ranks of a domain are needed' "${reshard[@]}" --topology nvl:0
refuse 2 '--topology hgx:x: the ranks of a domain are needed' "${reshard[@]}" --topology hgx:x
refuse 2 '--topology 0: the ranks of a domain are needed' "${reshard[@]}" --topology 0
refuse 2 "--topology: neither N, nvl:N nor hgx:N, and file 'missing': No such file" "${reshard[@]}" --topology missing
# ranks that are measured are served from their own domain
run bench --shape 64x64 --src 'mesh(2x2;R,S0)' --dst 'mesh(2x2;R,S1)' --topology 2 -n 1 -w 0 -c 1
[ "$status" = 0 ] || fault "bench with a topology: $(cat "$work/err")"
printf '%s\n' 0-1 2-3 'chains 1' >halves
run bench --shape 64x64 --src 'mesh(2@0-1;S0)' --dst 'mesh(2@2-3;R)' --topology halves --path packed -n 1 -w 0 --json -
for field in '"topology":"halves",' '"between_bytes":16384,' '"within_bytes":16384,' '"leaving_bytes":16384,'; do
  grep -qF "$field" "$work/out" || fault "no $field in the row of a bench whose ranks pass bytes on: $(cat "$work/out")"
done
refuse 2 '--topology wrong:1: ' bench --shape 64x64 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 --topology wrong
finish
