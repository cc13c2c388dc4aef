#!/usr/bin/env bash
# ./run gpu from its first step to its report, with the programs on two virtual GPUs and sizes that show nothing.
# NVIDIA's tools and PyTorch have stand-ins; others fail, hang, die and heed no signal.
. "$SOURCE/tests/cli/common.bash"
export RESHARD_PROGRAM=$RESHARD RESHARD_GPU_PROGRAM=$RESHARD_GPU RESHARD_MICRO_PROGRAM=$RESHARD_MICRO \
  RESHARD_GPU_TINY=10 RESHARD_RESULTS=$work/results VG_DEVICES=2
micro=$RESHARD_MICRO # empty where there is no Google Benchmark
export RESHARD_GPU_SEED=1
export RESHARD_COMMIT='abc123 <&>' PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$SOURCE/tests/virtual_gpu/torch
RESHARD=$SOURCE/run
# Directories of results have the day in their names: it stays the same at midnight.
date=$(command -v date)
mkdir day tools
cat >day/date <<TEXT
#!/usr/bin/env bash
[ "\$*" != +%Y-%m-%d ] || { echo 2026-01-31; exit; }
exec "$date" "\$@"
TEXT
PATH=$PWD/day:$PATH
cat >tools/compute-sanitizer <<'TEXT'
#!/usr/bin/env bash
[ "$2" != initcheck ] || { echo '========= Error: Device not supported. Please refer to the documentation'; exit 1; }
shift 2
[ "$1" != --error-exitcode ] || shift 2
exec "$@"
TEXT
cat >tools/ncu <<'TEXT'
#!/usr/bin/env bash
while [ $# -gt 0 ]; do # a report is a file
  case $1 in
  --export) echo report >"$2"; exit ;;
  --metrics) exit ;; # the probe
  --import) break ;;
  esac
  shift
done
echo '"ID","Process ID","Kernel Name","Grid Size","gpu__time_duration.sum","dram__bytes.sum.per_second",'\
'"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed","sm__throughput.avg.pct_of_peak_sustained_elapsed"'
echo '"","","","","ns","byte/s","%","%"'
echo '"0","7","void <unnamed>::rs_copy<int, (bool)1>(const A *, long)","(132, 1, 1)","1,000,500",'\
'"2,500,000,000,000","52.5","61.0"'
TEXT
cat >tools/nvidia-smi <<'TEXT'
#!/usr/bin/env bash
case $1 in
--query-gpu=name) echo 'Virtual GPU of a test' ;;
--query-gpu=driver*) echo '580.159.04, 345 MHz, 1980 MHz, 3201 MHz, 3201 MHz, 700.00 W, Enabled, 31' ;;
-q) echo '    Clocks Event Reasons'; echo '        Idle : Active' ;;
esac
TEXT
cat >tools/nvidia-cuda-mps-control <<'TEXT'
#!/usr/bin/env bash
[ "$*" = -d ] || cat >/dev/null
TEXT
chmod +x day/* tools/*
python=
! command -v python3 >/dev/null || python=1 # else the step is lacking
apart='nccl-*,mixed-4' # no ranks of several processes on a virtual GPU with NCCL
PATH=$PWD/tools:$PATH expect 0 gpu --skip "$apart"
for step in nvidia-smi start start-again probe-ncu probe-compute-sanitizer kernels-copies kernels-spans kernels-casts \
  kernels-conversions \
  kernels-selections kernels-storage ${micro:+bench ncu tiles} verify-direct verify-packed verify-graph node-verify \
  node-verify-shared node-direct node-packed node-direct-shared side-by-side direct-4 packed-4 direct-4-graph \
  direct-4-large direct-4-threads memcheck racecheck sweep-direct sweep-packed packed-cyclic; do
  says "^\\[ *[0-9]+s\\] $step: passed"
done
[ -z "$python" ] || says ' torch: passed'
says ' nccl-2: left out - as asked for'; says ' initcheck: lacking, .*Device not supported'
says 'verify-graph: passed.*: [1-9][0-9]* cases'; says ' node-verify-shared: passed.*--shared: [1-9][0-9]* cases'
says 'driver 580.159.04, SM 345 MHz of 1980 MHz, memory 3201 MHz of 3201 MHz, limit 700.00 W, ECC Enabled, 31 C$'
says '^\[ *[0-9]+s\] 0 of [0-9]+ steps failed or were not done, [0-9]+ were left out'
cp out whole

# Steps run in the order in which --list names them.
expect 0 gpu --list
[ "$(sed -nE 's/^\[ *[0-9]+s\] ([a-z0-9-]+): (passed|left|lacking).*/\1/p' whole)" = "$(cut -d' ' -f1 out)" ] ||
  fault "the order: $(cat whole)"
# Each goal has a line, with its figure.
cp whole out
while IFS='|' read -r goal op bound step from; do
  [[ $goal != \#* ]] || continue
  grep -qF "| $goal | " whole || fault "no goal '$goal'"
  [[ $goal = *PyTorch* || $step = nccl-* || ($micro = '' && $step = bench) ]] ||
    grep -F "| $goal | " whole | grep -qE '\| [0-9.]+ \|.*\| (met|short)' || fault "no figure of '$goal'"
done <"$SOURCE/profiles/gpu_goals"
[ -z "$python" ] || for goal in 'reshard of 8192' ${micro:+index_select "FSDP's copy-out" 'cast of f32'}; do
  says "^\\| $goal.*PyTorch.* \\| [0-9.]+ \\| >= [0-9.]+ \\| met"
done
echo '{"host_us":30,"group_us":29,"blocking_group_us":20.5,"blocking_host_us":24.25,"sets":1}' >nccl-host.json
echo done >nccl-host.txt
# shellcheck source=/dev/null
beyond=$(work=$PWD && . "$SOURCE/profiles/gpu_report.sh" && figure_of nccl-host beyond)
[ "$beyond" = 3.75 ] || fault "an execute takes '$beyond' us more than the bare group"
rm nccl-host.*
says "copy-in .x the speed of PyTorch's _chunk_cat. . - .* not measured" # which the stand-in lacks

# Its output: few files, with names and numbers of what was measured.
result=$(echo results/*-virtual-gpu-of-a-test)
[ "$(echo results/*)" = "$result" ] || fault "$(ls results)"
[ "$(cd "$result" && echo *)" = "kernels.ncu-rep log.txt measured.jsonl report.md steps.txt throughput.svg" ] ||
  fault "$(ls "$result")"
holds() { grep -qE -- "$2" "$result/$1" || fault "no '$2' in $1: $(head -c 600 "$result/$1")"; }
holds report.md '^# 2026-01-31, virtual GPU 0$'; holds report.md '^Command: `./run gpu --skip .*`, commit abc123 <&>'
holds report.md '^\| verify-graph \| passed'; holds report.md '[.] Driver 580.159.04'
holds report.md '!\[.*\]\(throughput.svg\)'
holds report.md '^start of a process: [0-9]+ ms, then [0-9]+ ms, then [0-9]+ ms, the last'
holds log.txt '^        Idle : Active'; holds log.txt '^[1-9][0-9]* programs had tiles of the bulk kernel'
holds log.txt '^==> sweep-direct: '
if [ -n "$micro" ]; then
  holds report.md '^\| .rs_copy<int, .bool.1>. \| 132 \| 1000.5 \| 2500 \| [0-9.]+ \| 52.5 \| 13 \| instructions'
  holds report.md '^\| tiles, bulk kernel \| runs/256 \| runs/4096 \| runs/16384 \| shifted/4096 \| interleaved/4 \| '
  holds report.md '^\| 64 KiB, never \| [0-9.]+ \| [0-9.]+ \| [0-9.]+ \| [0-9.]+ \| - \| - \|$'
  holds report.md '^\| by size, wherever it can, leap 32 \| - \| - \| - \| - \| [0-9.]+ \| [0-9.]+ \|$'
  holds report.md '^best: RESHARD_CUDA_TILE=[0-9]+ RESHARD_CUDA_BULK_FROM=[0-9]+ RESHARD_CUDA_LEAP=[0-9]+ RESHARD_CU'
  "$micro" --benchmark_list_tests --benchmark_filter=^gpu_ | sed 's/.iterations.*//' >rows
  [ "$(wc -l <rows)" -gt 30 ] || fault "rows: $(cat rows)"
  while read -r row; do
    holds log.txt "^$row/iterations:1/manual_time +[0-9.]+ us .* bytes=[0-9]+"
    holds report.md "^\\| $row \\| [0-9]+ \\| [0-9.]+ \\| .*\\|$"
  done <rows
  holds measured.jsonl '"step": "bench", .*"gpu_fsdp_copy_in/'
  holds measured.jsonl '"step": "tiles-65536-1-0-0", .*"gpu_copy_runs/16384/'
fi
holds measured.jsonl '^.?"step": "direct-4", '; holds measured.jsonl '"step": "node-direct-shared".*"shared":true'
[ -z "$python" ] || python3 -c 'import json, sys
for line in open(sys.argv[1]): json.loads(line)' "$result/measured.jsonl" || fault "measured.jsonl is no JSON"
[ "$NCCL" != 1 ] || holds report.md \
  '^\| all-gather \| 524288 \| [0-9.]+ \| [0-9.]+ \| [0-9.]+ \| (collective|sends) \|$'

# README and figures.md read from the newest result, and say in the tree what they would say now.
mkdir -p tree/profiles/results
cp "$SOURCE/README.md" tree
cp "$SOURCE"/profiles/{gpu*,figures.md} tree/profiles
cp -r "$SOURCE"/profiles/results/. tree/profiles/results
bash tree/profiles/gpu.sh --pages || fault 'no pages'
for page in README.md profiles/figures.md; do cmp "$SOURCE/$page" "tree/$page" || fault "$page: ./run gpu --pages"; done
cp -r "$result" tree/profiles/results/2999-01-02-gpu
cp -r "$result" tree/profiles/results/2999-01-03-gpu-quick
bash tree/profiles/gpu.sh --pages || fault 'no pages'
for page in README.md profiles/figures.md; do
  newest='^\[2026-01-31, virtual GPU 0\]\((profiles/)?results/2999-01-02-gpu/report.md\)'
  grep -A1 -E "$newest:$" "tree/$page" | grep -qE '^[0-9]+ of [0-9]+ goals are met' ||
    fault "$page does not read from the newest result"
done
grep -qE '^\| transpose of f32 .*\| [0-9.]+ \| <= 1.10 \| met' tree/profiles/figures.md ||
  fault 'figures.md has no goal'
rm -r tree

# The plot: XML, and each number where it belongs.
grep -q 'reshard abc123 &lt;&amp;&gt;' "$result/throughput.svg" || fault 'no commit in throughput.svg'
! command -v xmllint >/dev/null || xmllint --noout "$result/throughput.svg" || fault throughput.svg
[ -z "$python" ] || python3 "$SOURCE/tests/figures/boxes.py" "$result/throughput.svg" >said ||
  fault "throughput.svg: $(cat said)"
echo '  65536 16384 f32 50.00 1.31 1.0 2.62 0.500 0' >sweep-direct.txt
echo '  1048576 262144 f32 10.00 104.86 90.0 100.00 1.049 0' >>sweep-direct.txt
echo '  262144 65536 f32 10.00 60.00 50.0 120.00 0.500 N/A' >sweep-packed.txt
# up to 120 GB/s: steps of 20 to 140, 300 pixels from 380 up; x: 740 pixels from 90 for 4 doublings
awk -v title=t -f "$SOURCE/profiles/plot.awk" sweep-direct.txt sweep-packed.txt >out || fault plot.awk
says '<circle cx="830.0" cy="155.3" [^>]*><title>direct, 1 MiB: 104.86 GB/s<'
says '<circle cx="460.0" cy="122.9" [^>]*><title>memcpy, 256 KiB: 120.00 GB/s<'
says '<circle cx="90.0" cy="513.3" [^>]*><title>direct, 64 KiB: 0.500 of memcpy<'; says '>64 KiB</text>'
says '>GB/s of the tensor'

# Options. Names may be patterns; one that no step has is refused, as is what is no number.
rm -r results
# Without reshard_micro its steps say so, and all others go on.
RESHARD_MICRO_PROGRAM='' expect 0 gpu --only bench,tiles,torch,nvidia-smi
place=${RESHARD_PROGRAM%/*} # paths are from the root on
[ "$(grep -c "lacking - no reshard_micro in .*${place##*/}\$" out)" = 2 ] || fault "$(cat out)"
says ' bench: lacking'; says ' tiles: lacking'; says ' nvidia-smi: '
[ -z "$python" ] || grep -q '^single operations are left out: no reshard_micro in ' results/*/log.txt ||
  fault "$(cat results/*/log.txt)"
rm -r results
printf '#!/usr/bin/env bash\necho libbenchmark.so.1: cannot open >&2\nexit 127\n' >broken_micro
chmod +x broken_micro
RESHARD_MICRO_PROGRAM=$PWD/broken_micro expect 0 gpu --only bench
says ' bench: lacking - broken_micro does not run here: libbenchmark.so.1: cannot open'
rm -r results
expect 0 gpu --only 'kernels-s*,direct-4' --skip kernels-storage; says 'kernels-spans: passed'
says 'direct-4: passed'; ! grep -qE ' (bench|kernels-copies|packed-4):' out || fault "more than asked for: $(cat out)"
expect 0 gpu --quick --only direct-4,tiles; ! grep -q ' tiles: ' out || fault "a quick run has: $(cat out)"
says 'are left out, as --quick asks for'
for words in '--only nothing' '--skip kernels,x' '--seconds 0' '--seconds 1e3' '--only' '--fast'; do
  # shellcheck disable=SC2086
  run gpu $words
  [ "$status" = 2 ] && [ "$(wc -l <err)" = 1 ] || fault "$words: status $status: $(cat err)"
done
expect 0 gpu --seconds 1 --only bench,torch; says 'bench: left out - no time is left of 1 s'; says 'torch: left out'
says '^\[ *[0-9]+s\] 0 of 2 steps failed or were not done, 2 were left out'
rm -r results

# Programs that were carried here are taken where they run, with the commit that they are of and PyTorch's own NCCL.
mkdir -p broken build/gpu-ready site/nvidia/nccl/lib
touch site/nvidia/nccl/lib/libnccl.so.2
printf '#!/usr/bin/env bash\nexit 1\n' >broken/cmake
printf '#!/usr/bin/env bash\n[ "$1" != -L ] || echo GPU 0: here\n' >broken/nvidia-smi
cp broken/cmake broken/nvcc
printf '#!/usr/bin/env bash\necho "paths $LD_LIBRARY_PATH" >&2\nexec "$PROGRAM_HERE" "$@"\n' >build/gpu-ready/reshard
printf '#!/usr/bin/env bash\nexec "$GPU_HERE" "$@"\n' >build/gpu-ready/reshard_gpu
printf 'commit: 0123abc\n' >build/gpu-ready/ready.txt
chmod +x broken/* build/gpu-ready/reshard*
export PROGRAM_HERE=$RESHARD_PROGRAM GPU_HERE=$RESHARD_GPU_PROGRAM RESHARD_PROGRAM='' RESHARD_GPU_PROGRAM=''
PYTHONPATH=$PWD/site PATH=$PWD/broken:$PATH RESHARD_BUILD=$PWD/build expect 0 gpu --only start,kernels-spans
says 'commit 0123abc, by the programs in .*build/gpu-ready'; says 'kernels-spans: passed'
grep -q '^Command: .*, commit 0123abc, .*build/gpu-ready' results/*/report.md || fault "$(head -3 results/*/report.md)"
[ -z "$python" ] || grep -qF "paths $PWD/site/nvidia/nccl/lib" results/*/log.txt || fault "$(cat results/*/log.txt)"
# Where they do not run, they are built here; a build that fails is told.
rm -r results
printf '#!/usr/bin/env bash\necho libjansson.so.4: cannot open >&2\nexit 127\n' >build/gpu-ready/reshard
PATH=$PWD/broken:$PATH RESHARD_BUILD=$PWD/build run gpu
[ "$status" = 1 ] || fault "without a build: status $status: $(cat out err)"
says 'gpu-ready does not run here: libjansson.so.4: cannot open'; says ' build: FAILED'
grep -q ' build: FAILED' results/*/steps.txt || fault "no line of the build: $(cat results/*/*)"
rm -r results build broken site
export RESHARD_PROGRAM=$PROGRAM_HERE RESHARD_GPU_PROGRAM=$GPU_HERE

# A step that fails does not end the run, and the exit status tells. Nor does a case that ends its program.
VG_WITHOUT='rank after work' run gpu --only 'verify-direct,kernels-spans'
[ "$status" = 1 ] || fault "status $status"
says '^\[ *[0-9]+s\] verify-direct: FAILED, [0-9]+ s - exit status'; says 'kernels-spans: passed'
says ' 1 of 2 steps failed'
cat >dies <<'TEXT'
#!/usr/bin/env bash
case $1 in
check) head -c 3000000 /dev/zero | tr '\0' x; exit ;;
--benchmark_list_tests) printf 'gpu_copy_runs/%s/iterations:1/manual_time\n' 4096 256 32; exit ;;
--benchmark_filter=*) [ "$RESHARD_MICRO_SECONDS" = 12 ] || exit 2 ;;
*) exit ;;
esac
row() { printf 'gpu_copy_runs/%s/iterations:1/manual_time 1.5 us 2 us 1 bytes=8 memcpy_us=1.0 x_memcpy=%s\n' "$@"; }
echo '{ "half": [' >"${2#*=}"
[[ $1 != *runs/4096/* ]] || { row 4096 1.01; kill -KILL $$; }
row 32 1.3
echo '{}' >"${2#*=}"
TEXT
chmod +x dies
RESHARD_GPU_PROGRAM=$PWD/dies RESHARD_MICRO_PROGRAM=$PWD/dies run gpu --only bench,kernels-spans
[ "$status" = 1 ] || fault "a case that dies: status $status"
says '^\| box copy, runs of 4 KiB .* 1.01 \| <= 1.02 \| met'
says '^\| box copy, runs of 32 B .* 1.3 \| <= 1.25 \| short'
says '^\| box copy, runs of 256 B .* not measured'
says ' bench: FAILED.* gpu_copy_runs/256: ENDED THE PROGRAM, status 137'
grep -q '^| gpu_copy_runs/256 .* ended the program' results/*-2/report.md || fault "$(cat results/*-2/report.md)"
[ "$(cat results/*-2/measured.jsonl)" = '{"step": "bench", "measured": {}}' ] ||
  fault "$(cat results/*-2/measured.jsonl)"
bytes=$(wc -c <results/*-2/log.txt) # a step has its share
[ "$bytes" -gt 1048576 ] && [ "$bytes" -lt 1100000 ] && grep -q 'more than 1 MiB' results/*-2/log.txt ||
  fault "a log of $bytes bytes"

# One that hangs, heeds no signal and starts a session costs its own limit.
cat >tools/ncu <<'TEXT'
#!/usr/bin/env bash
trap '' TERM INT HUP
setsid sleep 1000 &
echo hangs
for ((;;)); do sleep 100; done
TEXT
RESHARD_GPU_TINY=1 PATH=$PWD/tools:$PATH expect 0 gpu --only probe-ncu,kernels-spans # a probe's hang is no failure
says ' probe-ncu: not done, [0-9]+ s - did not end within 8 s: hangs'; says 'kernels-spans: passed'
running() { # processes of this test's runs
  local at
  for at in $(grep -lsa 'RESHARD_GPU_RUN=gpu-' /proc/[0-9]*/environ); do
    ! grep -qsaF "RESHARD_RESULTS=$RESHARD_RESULTS" "$at" || { echo "$at"; tr '\0' ' ' <"${at%environ}cmdline"; }
  done
}
runs=$(running)
[ -z "$runs" ] || fault "runs on: $runs"

# A run that is ended, and one that is killed, leave what was done, and nothing that runs.
cat >slow <<'TEXT'
#!/usr/bin/env bash
[ "$1" != verify ] || { trap '' TERM; setsid sleep 1000 & echo begun; touch "${0%/*}/begun"; }
while [ "$1" = verify ]; do sleep 1; done
exec "$PROGRAM_HERE" "$@"
TEXT
chmod +x slow
mkdir tmp
for signal in TERM KILL; do
  rm -rf results begun
  TMPDIR=$PWD/tmp RESHARD_PROGRAM=$PWD/slow "$SOURCE/run" gpu --only start,kernels-spans,verify-direct >out 2>err &
  for ((i = 0; i < 3000; i++)); do [ ! -e begun ] || break; sleep 0.1; done
  kill -$signal $!
  wait $! 2>/dev/null
  status=$?
  [ "$signal" = KILL ] || [ "$status" = 143 ] || fault "$signal: status $status: $(cat out err)"
  for ((i = 0; i < 300; i++)); do [ -n "$(running)$(ls tmp)" ] || break; sleep 0.1; done
  [ -z "$(running)" ] || fault "$signal: runs on: $(running)"
  [ -z "$(ls tmp)" ] || fault "$signal: left: $(ls tmp)"
  result=$(echo results/*)
  grep -q ' kernels-spans: passed' "$result/steps.txt" || fault "$signal: $(cat "$result/steps.txt")"
  grep -q '^| kernels-spans | passed' "$result/report.md" || fault "$signal: $(cat "$result/report.md")"
  grep -q '^begun$' "$result/log.txt" || fault "$signal: $(tail -5 "$result/log.txt")"
  [ "$(ls "$result" | wc -l)" -le 7 ] || fault "$signal: $(ls "$result")"
done

VG_DEVICES=0 run gpu
[ "$status" = 3 ] || fault "without a GPU: status $status"
[ "$(wc -l <err)" = 1 ] || fault "$(cat err)"
unset RESHARD_PROGRAM
if ! command -v nvidia-smi >/dev/null && ! compgen -G '/dev/nvidia[0-9]*' >/dev/null && [ ! -e /dev/dxg ]; then
  run gpu
  [ "$status" = 3 ] && grep -q '^run: gpu: this machine has no NVIDIA GPU' err || fault "status $status: $(cat err)"
fi
finish
