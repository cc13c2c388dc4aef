#!/usr/bin/env bash
# ./run gpu from its first step to its table, with the programs on a virtual GPU and sizes that show nothing.
. "$SOURCE/tests/cli/common.bash"
export RESHARD_PROGRAM=$RESHARD RESHARD_GPU_PROGRAM=$RESHARD_GPU RESHARD_GPU_TINY=1 RESHARD_RESULTS=$work/results
export RESHARD_GPU_SKIP='nccl-2 nccl-host torch' # no ranks of several processes on a virtual GPU
RESHARD=$SOURCE/run
expect 0 gpu --quick
for goal in 'box copy, runs of 32 B' 'transposing pack' 'index_select' 'execute of 4 ranks, a rank' 'direct, 8 ranks' 'packed, cyclic'; do
  says "^\\| $goal.* \\| +[0-9.]+ \\| +[<>]= [0-9.]+ \\| (met|short)"
done
for step in kernels verify-direct verify-packed verify-graph bench direct-4 packed-4; do says "$step: passed"; done
says '^\[ *[0-9]+s\] 0 of [0-9]+ steps failed'
result=$(echo results/*-virtual-gpu-0)
grep -q '^| verify-graph | passed' "$result/README.md" || fault "$(cat "$result/README.md")"
grep -q '"name": "bench", "state": "passed"' "$result/summary.json" || fault "$(cat "$result/summary.json")"

# A step that fails does not end the run, and the exit status tells.
VG_WITHOUT='rank after work' run gpu --quick
[ "$status" = 1 ] || fault "status $status"
says '^\[ *[0-9]+s\] verify-direct: FAILED - exit status'; says 'kernels: passed'; says '[1-9][0-9]* of [0-9]+ steps failed'

VG_DEVICES=0 run gpu
[ "$status" = 3 ] || fault "without a GPU: status $status"
[ "$(wc -l <err)" = 1 ] || fault "$(cat err)"
unset RESHARD_PROGRAM
if ! command -v nvidia-smi >/dev/null && [ ! -e /dev/nvidia0 ] && [ ! -e /dev/dxg ]; then
  run gpu
  [ "$status" = 3 ] && grep -q '^run: gpu: this machine has no NVIDIA GPU' err || fault "status $status: $(cat err)"
fi
finish
