#!/usr/bin/env bash
# ./run gpu from its first step to its table and plots, with the programs on two virtual GPUs and sizes that show
# nothing. NVIDIA's tools and PyTorch have stand-ins.
. "$SOURCE/tests/cli/common.bash"
export RESHARD_PROGRAM=$RESHARD RESHARD_GPU_PROGRAM=$RESHARD_GPU RESHARD_GPU_TINY=1 RESHARD_RESULTS=$work/results \
  VG_DEVICES=2
export RESHARD_GPU_SKIP='nccl-2 nccl-4 nccl-host' # no ranks of several processes on a virtual GPU
export RESHARD_GPU_SEED=1
export RESHARD_COMMIT='abc123 <&>' PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$SOURCE/tests/virtual_gpu/torch
program_here=$RESHARD gpu_here=$RESHARD_GPU RESHARD=$SOURCE/run
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
shift 4
exec "$@"
TEXT
cat >tools/ncu <<'TEXT'
#!/usr/bin/env bash
while [ $# -gt 0 ]; do # a report is a file
  case $1 in
  --export) echo report >"$2"; exit ;;
  --metrics) break ;;
  --clock-control) clocks=$2 ;;
  esac
  shift
done
head='"0","7","x","host","void rs_copy<int, (bool)1>(const A *, long)","1","7","(256, 1, 1)","(132, 1, 1)",'
head+='"0","9.0","Command line profiler metrics"'
echo '==PROF== Connected to process 7'
echo -n '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
echo '"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
for id in 0 1; do
  echo "${head/\"0\"/\"$id\"},\"gpu__time_duration.sum\",\"ns\",\"1,00$id,000\""
  echo "${head/\"0\"/\"$id\"},\"dram__bytes.sum.per_second\",\"byte/s\",\"2,500,000,000,000\""
  echo "${head/\"0\"/\"$id\"},\"dram__throughput.avg.pct_of_peak_sustained_elapsed\",\"%\",\"52.5\""
  echo "${head/\"0\"/\"$id\"},\"sm__throughput.avg.pct_of_peak_sustained_elapsed\",\"%\",\"61.0\""
done
[ "$clocks" = none ]
TEXT
cat >tools/nsys <<'TEXT'
#!/usr/bin/env bash
for word; do [[ $word != --output=* ]] || echo timeline >"${word#--output=}"; done
TEXT
cat >tools/nvidia-smi <<'TEXT'
#!/usr/bin/env bash
case $1 in
--query-gpu=driver*) echo '580.159.04, 345 MHz, 1980 MHz, 3201 MHz, 3201 MHz, 700.00 W, Enabled, 31' ;;
-q) echo '    Clocks Event Reasons'; echo '        Idle : Active' ;;
esac
TEXT
chmod +x day/* tools/*
python=
! command -v python3 >/dev/null || python=1 # else the step is lacking
PATH=$PWD/tools:$PATH expect 0 gpu
for goal in 'box copy, runs of 32 B' 'transposing pack' 'index_select' 'execute of 4 ranks, a rank' 'direct, 8 ranks' \
  'packed, 64 x 64 f32, cyclic' \
  ${python:+'reshard of 64 x 64 f32, from a graph'}; do
  says "^\\| $goal.* \\| +[0-9.]+ \\| +[<>]= [0-9.]+ \\| (met|short)"
done
says '^\[ *[0-9]+s\] driver 580.159.04, SM 345 MHz of 1980 MHz, memory 3201 MHz of 3201 MHz, limit 700.00 W, '
says ', limit 700.00 W, ECC Enabled, 31 C$'
for goal in 'boxes of 4-64 KiB, extra memory' 'boxes of 4-64 KiB, a loop of cudaMemcpyAsync' \
  'boxes of 4-64 KiB, CUB' 'direct, 4 ranks as threads'; do
  says "^\\| [0-9]* *$goal.* \\| +[0-9.]+ \\| +[<>]= [0-9.]+ \\| (met|short)"
done
says '^\| execute over NCCL.* \| +- \| +<= 5 \| not measured'
for step in kernels verify-direct verify-packed verify-graph bench direct-4 packed-4 sweep-packed sanitizer-memcheck \
  sanitizer-verify ncu-transposing ncu-8-large-spans ncu-report nsys tiles nvidia-smi direct-4-threads node-verify \
  node-direct; do
  says "$step: passed"
done
says 'node-packed: passed - '; says 'node-verify: passed - .*: [1-9][0-9]* cases'
says 'verify-graph: passed - .*: [1-9][0-9]* cases'; says 'sanitizer-initcheck: lacking - .*Device not supported'
says '^\[ *[0-9]+s\] 0 of [0-9]+ steps failed'

# Its output: few files, with names and numbers of what was measured.
result=$(echo results/*-virtual-gpu-0)
[ "$(echo results/*)" = "$result" ] || fault "$(ls results)"
[ "$(cd "$result" && echo *)" = "README.md bench.json goals.svg reshard.ncu-rep reshard.nsys-rep steps.txt \
summary.json throughput.svg" ] || fault "$(ls "$result")"
holds() { grep -qE -- "$2" "$result/$1" || fault "no '$2' in $1: $(head -c 600 "$result/$1")"; }
holds README.md '^\| verify-graph \| passed'; holds README.md 'commit abc123 <&>'
holds README.md '!\[.*\]\(throughput.svg\)'
holds README.md '^\| transposing \| .rs_copy<int, .bool.1>. \| 2 \| 1000.5 \| 2500 \| [0-9.]+ \| 52.5 \| 13 \| instruc'
holds README.md '^\| rows of 4 KiB, shifted by 4 \| 64 KiB, never \| [0-9.]+ \|'
holds README.md '^best: RESHARD_CUDA_TILE=[0-9]+ RESHARD_CUDA_BULK_FROM=[0-9]+ RESHARD_CUDA_LOADS=[0-9]+, '
holds steps.txt '^        Idle : Active'; holds steps.txt '^[1-9][0-9]* programs had tiles of the bulk copy engine'
for row in 'cast f32 to bf16' 'box copy, runs of 4 B' 'box copy, rows of 4100 B' \
  'transposing pack of 2 bytes, shifted' 'index_select, rows of 4 B' 'redistribute of a DTensor, 4 ranks' \
  'pool, a block taken and given back'; do
  holds steps.txt "^$row +[0-9]+ B +[0-9.]+ us +[0-9.]+ "
done
holds summary.json '"name": "bench", "state": "passed"'; holds summary.json '"commit": "abc123 <&>"'
holds bench.json '^.?"direct-4":'; holds bench.json '"sets":'; holds bench.json '^.?"node-direct":'
holds steps.txt '^==> sweep-direct: passed'
[ "$NCCL" != 1 ] || holds README.md \
  '^\| all-gather \| 524288 \| [0-9.]+ \| [0-9.]+ \| [0-9.]+ \| (collective|sends) \|$'

# The plots: XML, and each number where it belongs.
for plot in goals throughput; do
  holds $plot.svg 'reshard abc123 &lt;&amp;&gt;'
  ! command -v xmllint >/dev/null || xmllint --noout "$result/$plot.svg" || fault "$plot.svg"
  [ -z "$python" ] || python3 "$SOURCE/tests/figures/boxes.py" "$result/$plot.svg" >said ||
    fault "$plot.svg: $(cat said)"
done
plot() { # KIND FILE...
  awk -v kind="$1" -v title=t -f "$SOURCE/profiles/plot.awk" "${@:2}" >out || fault "plot.awk $1"
}
echo '  65536 16384 f32 50.00 1.31 1.0 2.62 0.500 0' >sweep-direct.txt
echo '  1048576 262144 f32 10.00 104.86 90.0 100.00 1.049 0' >>sweep-direct.txt
echo '  262144 65536 f32 10.00 60.00 50.0 120.00 0.500 N/A' >sweep-packed.txt
# up to 120 GB/s: steps of 20 to 140, 300 pixels from 380 up; x: 740 pixels from 90 for 4 doublings
plot throughput sweep-direct.txt sweep-packed.txt
says '<circle cx="830.0" cy="155.3" [^>]*><title>direct, 1 MiB: 104.86 GB/s<'
says '<circle cx="460.0" cy="122.9" [^>]*><title>memcpy, 256 KiB: 120.00 GB/s<'
says '<circle cx="90.0" cy="513.3" [^>]*><title>direct, 64 KiB: 0.500 of memcpy<'; says '>64 KiB</text>'
says '>GB/s of the tensor'
printf '%s\n' 'a (x)|1.25|<=|1|short' 'b (of)|0.95|>=|0.5|met' 'c|-|<=|5|not measured' >goals
plot goals goals
says '<rect x="410" y="83.0" width="160.0" [^>]*><title>80 % of the goal<'; says '>1.25 \(&lt;= 1\), short<'
says 'width="380.0"'; says '>not measured<'
name="direct, 4 ranks as threads, 16384 x 16384 f32, rows to columns, with the host's time (x memcpy's time)"
echo "$name|1.2|<=|1.10|short" >goals # a long name is not cut
plot goals goals
[ -z "$python" ] || python3 "$SOURCE/tests/figures/boxes.py" out >said || fault "goals.svg: $(cat said)"

# A build that fails ends the run, unless programs are there that were built before.
RESHARD_PROGRAM='' RESHARD_GPU_PROGRAM='' PATH=$PWD/broken:$PATH
mkdir -p broken build/gpu-sm_90
printf '#!/usr/bin/env bash\nexit 1\n' >broken/cmake
printf '#!/usr/bin/env bash\n[ "$1" != -L ] || echo GPU 0: here\n' >broken/nvidia-smi
cp broken/cmake broken/nvcc
chmod +x broken/*
RESHARD_BUILD=$PWD/build run gpu --quick
[ "$status" = 1 ] || fault "without a build: status $status: $(cat out err)"
printf '#!/usr/bin/env bash\nexec "$SLOW_PROGRAM" "$@"\n' >build/gpu-sm_90/reshard
printf '#!/usr/bin/env bash\nexec "$SLOW_GPU" "$@"\n' >build/gpu-sm_90/reshard_gpu
chmod +x build/gpu-sm_90/*
RESHARD_BUILD=$PWD/build SLOW_PROGRAM=$program_here SLOW_GPU=$gpu_here run gpu --quick
says 'taking the programs in .*gpu-sm_90'; says 'kernels: passed'
rm -r broken results/*-quick
export RESHARD_PROGRAM=$program_here RESHARD_GPU_PROGRAM=$gpu_here

# A step that fails does not end the run, and the exit status tells.
RESHARD_GPU_SKIP+=' torch sweep-direct sweep-packed'
VG_WITHOUT='rank after work' run gpu --quick
[ "$status" = 1 ] || fault "status $status"
says '^\| direct, 8 ranks.* \| +- \| +<= 1.10 \| not measured'; says '^\| reshard of 64 x 64 f32 .* - .*not measured'
says '^\[ *[0-9]+s\] verify-direct: FAILED - exit status'; says 'kernels: passed'
says '[1-9][0-9]* of [0-9]+ steps failed'

# One that takes too long takes no time from the goals. A run of the same day has a directory of its own.
cat >slow <<'TEXT'
#!/usr/bin/env bash
[ "$1" != verify ] || { echo $$ >"${0%/*}/pid"; exec sleep 100; }
exec "$SLOW" "$@"
TEXT
chmod +x slow
export SLOW=$RESHARD_PROGRAM
RESHARD_GPU_SKIP+=' kernels bench direct-4 direct-8 direct-4-graph packed-4'
for seconds in 10 100; do # the second where the machine is so busy that the first are too few for the rest
  rm -rf results/*-quick-2
  RESHARD_PROGRAM=$PWD/slow RESHARD_GPU_SECONDS=$seconds run gpu --quick
  ! grep -q 'packed-cyclic: passed' out || break
done
[ "$status" = 1 ] || fault "status $status"
says 'verify-direct: not done - did not end within'; says 'verify-graph: not done - no time was left'
says 'packed-cyclic: passed'
[ "$(cd results && echo *)" = "${result#*/} ${result#*/}-quick ${result#*/}-quick-2" ] || fault "$(ls results)"

# One that is ended leaves what it has, and nothing that runs.
rm -rf results pid
RESHARD_PROGRAM=$PWD/slow "$SOURCE/run" gpu >out 2>err &
for ((i = 0; i < 3000; i++)); do [ ! -s pid ] || break; sleep 0.1; done
kill $!
wait $!
[ $? = 143 ] || fault "ended: $(cat out err)"
grep -qs '^| kernels | left out' results/*/README.md || fault "ended: $(cat out err)"
for ((i = 0; i < 300; i++)); do kill -0 "$(cat pid)" 2>/dev/null || break; sleep 0.1; done
! kill -0 "$(cat pid)" 2>/dev/null || fault 'a step runs on'

VG_DEVICES=0 run gpu
[ "$status" = 3 ] || fault "without a GPU: status $status"
[ "$(wc -l <err)" = 1 ] || fault "$(cat err)"
unset RESHARD_PROGRAM
if ! command -v nvidia-smi >/dev/null && ! compgen -G '/dev/nvidia[0-9]*' >/dev/null && [ ! -e /dev/dxg ]; then
  run gpu
  [ "$status" = 3 ] && grep -q '^run: gpu: this machine has no NVIDIA GPU' err || fault "status $status: $(cat err)"
fi
finish
