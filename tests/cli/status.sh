#!/usr/bin/env bash
# Exit statuses and one-line errors: usage, bad input, what this build lacks.
. "$(dirname "$0")/common.bash"
four=(--shape 13x21 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4)

expect 0 --help; says 'usage: reshard COMMAND'
expect 0 --version; says '^reshard [0-9]+\.[0-9]+\.[0-9]+$'
for command in plan convert bench verify info; do
  expect 0 "$command" --help; says "usage: reshard $command"
done
expect 0 plan "${four[@]}"
expect 0 info
grep -q '^communicators.* node ' "$work/out" || fault 'info does not name the node communicator'

# usage
refuse 2 'command is missing'
refuse 2 "unknown command 'frobnicate'" frobnicate
refuse 2 "unknown option '--frobnicate'" --frobnicate
refuse 2 "unknown option '--frobnicate'" plan "${four[@]}" --frobnicate
refuse 2 "unknown option '-q'" bench "${four[@]}" -q
refuse 2 "option '--shape' needs an argument" plan --shape
refuse 2 "'--peers=3' takes no argument" plan "${four[@]}" --peers=3
refuse 2 "unexpected argument 'more'" plan "${four[@]}" more
refuse 2 "unknown option" plan "${four[@]}" --cases 3
refuse 2 '--shape or --model' plan --src 'chunk(0)' --dst 'chunk(1)' --ranks 4
refuse 2 '--src is missing' plan --shape 4x4 --dst 'chunk(1)' --ranks 4
refuse 2 '--dst is missing' plan --shape 4x4 --src 'chunk(1)' --ranks 4
refuse 2 'both given' plan "${four[@]}" --model llama-3.1-8b
refuse 2 'give --ranks' plan --shape 4x4 --src 'chunk(0)' --dst 'chunk(1)'
refuse 2 "--ranks: '0x' is no number" plan "${four[@]}" --ranks 0x
refuse 2 '--ranks: 0 is not between' plan "${four[@]}" --ranks 0
refuse 2 "--path: 'fast' is not one of auto.direct.packed.mixed" plan "${four[@]}" --path fast
refuse 2 '--path mixed: a plan knows no nodes' plan "${four[@]}" --path mixed
refuse 3 '--path mixed: --comm mpi and nccl connect nodes.*, not local' bench "${four[@]}" --path mixed
refuse 3 '--path mixed: .*, not node' verify --path mixed --processes 2
refuse 2 "--workspace: '12Q'" plan "${four[@]}" --workspace 12Q
refuse 2 "--workspace: '99999999999G'" plan "${four[@]}" --workspace 99999999999G
refuse 2 'the world has 4 ranks' plan "${four[@]}" --rank 4
refuse 2 '-e 1048576 is given without -b' bench "${four[@]}" -e 1M
refuse 2 '-i 1024 and -f 2.5 are both given' bench "${four[@]}" -b 1K -e 1M -i 1K -f 2.5
refuse 2 '-f 3 needs -b and -e' bench "${four[@]}" -f 3
refuse 2 '-e 1024 is below -b 1048576' bench "${four[@]}" -b 1M -e 1K
refuse 2 'less than an element' bench --shape 8x1024 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2 -b 3
refuse 2 'scalar has no dim' bench --shape scalar --src 'rank(0)' --dst 'rank(1)' -b 1K
refuse 2 '-i 1024 and -f 2 are both given' bench "${four[@]}" -b 1K -e 4K -i 1K -f 2
refuse 2 'are 3 ranks' bench "${four[@]}" -t 3
refuse 2 'at most 64' verify --ranks 65
refuse 2 "--seed: 'x'" verify --seed x

# variables that are wrong: all commands look at them, also those that copy nothing
for command in 'plan --shape 4x4 --src chunk(0) --dst chunk(1) --ranks 2' info 'verify --cases 1' \
  "bench --shape 4x4 --src chunk(0) --dst chunk(1) --ranks 2" \
  "trace --shape 4x4 --src chunk(0) --dst chunk(1) --ranks 2"; do
  read -ra words <<<"$command"
  RESHARD_THREADS=abc refuse 2 'RESHARD_THREADS=abc is not a number' "${words[@]}"
  RESHARD_THREADS=5000 refuse 2 '5000 copy threads: 0 to 4096' "${words[@]}"
  RESHARD_ISA=abc refuse 2 'RESHARD_ISA=abc is none of' "${words[@]}"
done
RESHARD_THREADS=abc expect 0 info --help

# shapes and dtypes
refuse 2 'column 4' plan --shape 13x --src 'chunk(0)' --dst 'chunk(1)' --ranks 4
refuse 2 'column 3' plan --shape 13y21 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4
refuse 2 'column 1' plan --shape '' --src 'chunk(0)' --dst 'chunk(1)' --ranks 4
refuse 2 'column 4' plan --shape 13x-1 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4
refuse 2 'more than 8 dims' plan --shape 1x1x1x1x1x1x1x1x1 --src 'rank(0)' --dst 'rank(1)'
refuse 2 'overflow' plan --shape 4294967296x4294967296 --src 'rank(0)' --dst 'rank(1)'
refuse 2 'overflow' plan --shape 4611686018427387904 --dtype f64 --src 'rank(0)' --dst 'rank(1)'
refuse 2 '63 bits' plan --shape 99999999999999999999 --src 'rank(0)' --dst 'rank(1)'
refuse 2 'f31' plan "${four[@]}" --dtype f31
refuse 2 'scalar|dim 0' plan --shape scalar --src 'chunk(0)' --dst 'rank(0)' --ranks 2

# layouts
refuse 2 'column' plan --shape 4x4 --src 'chunk(0' --dst 'rank(0)' --ranks 2
refuse 2 'column' plan --shape 4x4 --src 'chonk(0)' --dst 'rank(0)' --ranks 2
refuse 2 'column' plan --shape 4x4 --src 'chunk(0)x' --dst 'rank(0)' --ranks 2
refuse 2 'column' plan --shape 4x4 --src '' --dst 'rank(0)' --ranks 2
refuse 2 '--src' plan --shape 4x4 --src 'chunk(2)' --dst 'rank(0)' --ranks 2
refuse 2 '--src' plan --shape 4x4 --src 'chunk(0;0,0)' --dst 'rank(0)' --ranks 2
refuse 2 '--dst' plan --shape 4x4 --src 'rank(0)' --dst 'rank(7)' --ranks 2
refuse 2 '--src' plan --shape 4x4 --src 'mesh(2x2;S0)' --dst 'rank(0)'
refuse 2 '--src' plan --shape 4x4 --src 'mesh(2x2;S0,S1)' --dst 'rank(0)' --ranks 3
refuse 2 '--src' plan --shape 4x4 --src 'mesh(dp=2,tp=2;S0,S0;order=tp,tp)' --dst 'rank(0)'
refuse 2 '--src' plan --shape 4x4 --src 'cyclic(2x2;0x1)' --dst 'rank(0)'
refuse 3 'Psum' plan --shape 4x4 --src 'mesh(2;Psum)' --dst 'rank(0)'
refuse 2 'overlap' plan --shape 4x4 --src 'boxes(0:[0,0]+[3,4];1:[2,0]+[2,4])' --dst 'rank(0)'
refuse 2 '.' plan --shape 4x4 --src 'boxes(0:[0,0]+[3,4])' --dst 'rank(0)'
refuse 2 '.' plan --shape 4x4 --src 'boxes(0:[0,0]+[5,4])' --dst 'rank(0)'
refuse 2 '.' plan --shape 4x4 --src 'boxes(0:[0,0]+[4,4];1:[0,0]+[4,4])' --dst 'rank(0)'
expect 0 plan --shape 4x4 --src 'boxes(replicated;0:[0,0]+[4,4];1:[0,0]+[4,4])' --dst 'rank(2)'
refuse 2 'No such file' plan --shape 4x4 --src 'boxes(@nothing.boxes)' --dst 'rank(0)'
printf '0 [0,0]+[2,4]\n# half\n1 [2,0]+[2,4]\n' >two.boxes
expect 0 plan --shape 4x4 --src 'boxes(@two.boxes)' --dst 'rank(0)'
# files that never end, and pipes
for never in 'boxes(@/dev/zero)' @/dev/zero; do
  refuse 2 'longer than 67108864 bytes' plan --shape 4x4 --src "$never" --dst 'rank(0)'
done
refuse 2 'longer than 67108864 bytes' plan --model /dev/zero --src 'rank(0)' --dst 'rank(0)'
expect 0 plan --shape 4x4 --src @<(sleep 0.1; echo '* rank(1)') --dst 'rank(0)'; says '^ranks +2$'
expect 0 plan --shape 4x4 --src "boxes(@"<(printf '0 [0,0]+[4,1] # one\n2 [0,1]+[4,3]\n')")" --dst 'chunk(0)' --ranks 4
says '^on the wire   48 B'
mkfifo late
(sleep 0.1; printf '0 [0,0]+[4,4]\n3 [0,0]+[4,4]\n' >late) &
expect 0 plan --shape 4x4 --src "@"<(echo '* boxes( replicated;@late)') --dst 'rank(0)'; says '^ranks +4$'
wait
rm late
refuse 2 'box file "/dev/fd/[0-9]+": line 1, column 3: ' plan --shape 4x4 --src "boxes(@"<(echo '0 4')")" \
  --dst 'rank(0)'
refuse 2 'least' plan --shape 1024x1024 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 --workspace 64

# rules and models
refuse 2 'No such file' plan --shape 4x4 --src @nothing.rules --dst 'rank(0)'
printf 'tensor chunk(0)\n' >tensor.rules
printf 'other chunk(0)\n' >other.rules
printf 'tensor chunk(0\n' >broken.rules
printf '[{"name": "a", "shape": [8, 4], "dtype": "bf16"}, {"name": "b", "shape": [4], "dtype": "f32"}]' >model.json
printf '[{"name": "a", "shape": [8, 4}]' >broken.json
expect 0 plan --shape 4x4 --src @tensor.rules --dst 'chunk(1)' --ranks 2
refuse 2 "'tensor'" plan --shape 4x4 --src @other.rules --dst 'chunk(1)' --ranks 2
refuse 2 'broken.rules' plan --shape 4x4 --src @broken.rules --dst 'chunk(1)' --ranks 2
expect 0 plan --model model.json --src 'chunk(0)' --dst 'rank(0)' --ranks 2; says '2 tensors'
refuse 2 "tensor 'b'" plan --model model.json --src 'chunk(1)' --dst 'rank(0)' --ranks 2
refuse 2 'broken.json' plan --model broken.json --src 'chunk(0)' --dst 'rank(0)' --ranks 2
refuse 2 'nothing' plan --model nothing --src 'chunk(0)' --dst 'rank(0)' --ranks 2
refuse 2 '--dtype' plan --model model.json --dtype f32 --src 'chunk(0)' --dst 'rank(0)' --ranks 2

# outputs
refuse 2 'missing/x' plan "${four[@]}" --json missing/x
refuse 2 'missing/x' plan "${four[@]}" --svg missing/x
refuse 2 'directory' plan "${four[@]}" --json .
[ -z "$(ls | grep -vE '^(out|err|.*\.(rules|json|boxes))$')" ] || fault "left behind: $(ls)"

# what is nearly right
expect 0 help; says '^usage: reshard COMMAND'; mv out whole.rules
expect 0 --help; cmp -s out whole.rules || fault 'help and --help differ'
expect 0 help bench; says '^usage: reshard bench'; mv out whole.rules
expect 0 bench --help; cmp -s out whole.rules || fault 'help bench and bench --help differ'
refuse 2 "unknown command 'bemch': did you mean bench\?$" help bemch
refuse 2 "unexpected argument 'plan'" help bench plan
refuse 2 "unknown command 'plna': did you mean plan\?$" plna
refuse 2 "unknown command 'hlep': did you mean help\?$" hlep
refuse 2 "unknown command 'reshape'; see reshard --help$" reshape
refuse 2 "unknown option '--shpae': did you mean --shape\?$" plan --shpae 8x8
refuse 2 "unknown option '--scr=chunk\(0\)': did you mean --src\?$" plan '--scr=chunk(0)'
refuse 2 "unknown option '--colour'; see reshard plan --help$" plan --colour red
refuse 2 "unknown option '--peers': reshard plan has it" bench "${four[@]}" --peers
refuse 2 "'--rank' is short for --ranks here, and for --rank of another command: write it out" \
  bench "${four[@]}" --rank 0
refuse 2 "'--rank' is short for --ranks here" convert a b --dst 'chunk(0)' --rank=4
refuse 2 "'--s' is short for --shape, --src, --svg: write it out" plan --s 8x8
expect 0 plan --shap 8x8 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2 # of nothing else
expect 0 plan --shape=8x8 --src='chunk(0)' --dst='chunk(1)' --ranks=2
printf '* chunk(0)\n' >mine.rules
refuse 2 "--dst: 'fsdp' is a file of rules of the program: did you mean --dst @fsdp\?$" \
  plan "${four[@]:0:4}" --dst fsdp
refuse 2 "--dst: 'tp.rules' is a file of rules of the program: did you mean --dst @tp.rules" \
  plan "${four[@]:0:4}" --dst tp.rules
refuse 2 "--src: './mine.rules' is a file of rules: did you mean --src @./mine.rules\?$" \
  plan --shape 8x8 --src ./mine.rules --dst 'chunk(0)'
refuse 2 'column 1: unknown kind of layout' plan "${four[@]:0:4}" --dst neither
while IFS='|' read -r theirs ours; do
  refuse 2 "column [0-9]+: write $ours$" plan --shape 8x8 --src 'chunk(0)' --dst "$theirs" --ranks 4
done <<'TEXT'
mesh(2x2;Shard(0),Replicate)|S0,R
mesh(2x2;[Shard(dim=1), Replicate()])|S1,R
mesh(2x2;S0,Shard(-1))|S-1
mesh(2x2;_StridedShard(dim=0, split_factor=2),Shard(1))|S0\*2,S1
Shard(0),Replicate|S0,R, in a mesh: mesh\(2x2;S0,R\)
[Replicate()]|R, in a mesh: mesh\(2;R\)
S0|S0, in a mesh: mesh\(2;S0\)
[S0, R]|S0,R, in a mesh: mesh\(2x2;S0,R\)
S-1*2,R|S-1\*2,R, in a mesh: mesh\(2x2;S-1\*2,R\)
TEXT

# what this build or machine lacks: a GPU in most
if ! "$RESHARD" info | grep -q '^cuda:0'; then
  refuse 3 '--device cuda: this' bench "${four[@]}" --device cuda
  refuse 3 '--device cuda: this' bench "${four[@]}" --device cuda --comm nccl -g 1 -G
  refuse 3 '--device cuda: this' verify --device cuda
fi
if ! "$RESHARD" info | grep -q '^communicators.*mpi'; then
  refuse 3 'MPI' verify --comm mpi
fi
refuse 2 '--device cuda' bench "${four[@]}" --comm nccl
refuse 2 '-g 1 needs --device cuda' bench "${four[@]}" -g 1 --device cpu
refuse 2 '--device cuda' verify -G
refuse 2 'vulkan' bench "${four[@]}" --comm vulkan
refuse 2 'vulkan' plan "${four[@]}" --device vulkan
finish
