#!/usr/bin/env bash
# ./run gpu [--quick | --prebuild]: all work that needs a GPU, in 9 minutes (3 with --quick). Builds with cmake and nvcc
# alone, checks the library there against the CPU, measures it beside the GPU's own copy, and writes the results down.
#
# Every step has a time limit. A failing step does not end the run; a step for which no time is left is reported as not
# done. The first checks leave time for the table of goals; tools and figures without a goal come last. Exit status: 0
# all steps passed, 1 some failed or were not done in time, 3 there is no GPU or no nvcc. A missed goal is no failure:
# the table at the end shows it.
#
# --prebuild builds the programs for sm_90 alone, in gpu-sm_90 of the build directory, on a machine without a GPU. A run
# that cannot configure or build takes these, if they are there: a way out on a machine that lacks a header.
#
# Environment: RESHARD_PROGRAM      a program `reshard` that is there; reshard_gpu is beside it. Nothing is built then.
#              RESHARD_GPU_PROGRAM  the program reshard_gpu, where it is elsewhere
#              RESHARD_GPU_SECONDS  the time in all (default 530, or 170 with --quick)
#              RESHARD_GPU_TINY     not empty: tiny sizes, for the test of this script
#              RESHARD_GPU_SEED     the seed of random cases (default: the time)
#              RESHARD_GPU_SKIP     steps to leave out, separated by spaces: "nccl-2 nccl-4 torch"
#              RESHARD_RESULTS      directory of the results (default profiles/results)
#              RESHARD_COMMIT       the commit, where git cannot tell it
#              RESHARD_TEST_PYTHON  an interpreter with torch, to compare with (default python3)
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${RESHARD_BUILD:-$root/build}/gpu
results=${RESHARD_RESULTS:-$root/profiles/results}
cores=$(nproc 2>/dev/null || echo 4)
quick=
prebuild=
case ${1:-} in
'') ;;
--prebuild) prebuild=1 ;;
--quick) quick=1 ;;
*) printf 'run: gpu takes --quick, --prebuild or nothing\n' >&2; exit 2 ;;
esac
[ $# -le 1 ] || { printf 'run: gpu takes --quick, --prebuild or nothing\n' >&2; exit 2; }
total=${RESHARD_GPU_SECONDS:-$((quick ? 170 : 530))}
if ! [[ $total =~ ^[1-9][0-9]{0,4}$ ]]; then
  printf 'run: gpu: RESHARD_GPU_SECONDS: %s is no number of seconds\n' "$total" >&2
  exit 2
fi
reserve=$((total * 2 / 5)) # for the goals
[ -z "${RESHARD_PROGRAM:-}" ] || RESHARD_PROGRAM=$(realpath "$RESHARD_PROGRAM") || exit 2
[ -z "${RESHARD_GPU_PROGRAM:-}" ] || RESHARD_GPU_PROGRAM=$(realpath "$RESHARD_GPU_PROGRAM") || exit 2
[[ $build == /* ]] || build=$PWD/$build
[[ $results == /* ]] || results=$PWD/$results
prebuilt=${build%/gpu}/gpu-sm_90
cd "$root" || exit 1
. profiles/gpu_steps.sh
. profiles/gpu_report.sh

if [ -n "$prebuild" ]; then
  nvcc=$(find_tool nvcc) build=$prebuilt arch=90
  [ -n "$nvcc" ] || lacking "nvcc is missing: it is in the CUDA toolkit (CUDA_HOME, or in PATH)"
  build_programs && say "$prebuilt holds reshard and reshard_gpu for sm_90"
  exit
fi
if [ -z "${RESHARD_PROGRAM:-}" ]; then
  nvidia-smi -L 2>/dev/null | grep -q '^GPU' || compgen -G '/dev/nvidia[0-9]*' >/dev/null || [ -e /dev/dxg ] ||
    lacking "this machine has no NVIDIA GPU (no nvidia-smi that lists one, no /dev/nvidia0)"
  command -v cmake >/dev/null || lacking "cmake is missing"
  [ -n "$(find_tool nvcc)" ] || lacking "nvcc is missing: it is in the CUDA toolkit (CUDA_HOME, or in PATH)"
fi
work=$(mktemp -d) out='' || exit 1
trap 'rm -rf "$work"' EXIT
trap interrupted HUP INT TERM

# --- Build ------------------------------------------------------------------------------------------------------------
if [ -n "${RESHARD_PROGRAM:-}" ]; then
  program=$RESHARD_PROGRAM
  micro=${RESHARD_GPU_PROGRAM:-${program%/*}/reshard_gpu}
else
  program=$build/reshard micro=$build/reshard_gpu nvcc=$(find_tool nvcc)
  export build cores nvcc
  export -f build_programs
  mkdir -p "$build" || exit 1
  say "building for the GPU that is here, in $build"
  step build 240 "" bash -c build_programs || {
    grep -E -A8 'error|CMake Error|FAILED|undefined' "$work/build.txt" | cut -c1-300 | head -60 >&2
    tail -5 "$work/build.txt" >&2
    [ -x "$prebuilt/reshard_gpu" ] || exit 1
    say "taking the programs in $prebuilt"
    program=$prebuilt/reshard micro=$prebuilt/reshard_gpu
  }
fi
if ! timeout -k 3 60 "$program" info --json "$work/info.json" >"$work/info.txt" 2>&1 </dev/null; then
  cat "$work/info.txt" >&2
  exit 1
fi
gpu=$(sed -n 's/^cuda:0 *\([^,]*\),.*/\1/p' "$work/info.txt")
gpus=$(grep -c '^cuda:' "$work/info.txt")
[ -n "$gpu" ] || lacking "$(sed -n 's/^CUDA *//p' "$work/info.txt")"
report_begin || exit 1
say "$(describe_gpu)"
say "$gpu; results go to $out"
export -f describe_gpu_state
step nvidia-smi 20 "" bash -c describe_gpu_state

# --- Correctness ------------------------------------------------------------------------------------------------------
cases=600 checks=2100 within=20 bytes=$((1 << 30)) side=8192 large=16384 iterations=20
sweep=(-b 64K -e 1G -f 4) few=(64K 256M)
[ -z "$quick" ] || cases=200 checks=420 within=5 bytes=$((1 << 28)) large='' sweep=(-b 64K -e 256M -f 8)
if [ -n "${RESHARD_GPU_TINY:-}" ]; then
  cases=20 checks=14 bytes=65536 side=64 large=${large:+64} iterations=2 sweep=(-b 64K -e 256K -f 2) few=(64K 512K)
fi
check=(check --cases "$checks")
[ -n "${RESHARD_GPU_TINY:-}" ] || check+=(--large)
seed=${RESHARD_GPU_SEED:-$(date +%s)}
step kernels 45 "copies, casts, selections, storage: as the CPU does it" "$micro" "${check[@]}" --seed "$seed"
verify=("$program" verify --device cuda --cases "$cases" --seconds "$within" --seed "$seed")
step verify-direct $((within + 25)) "random cases against the oracle, direct path" "${verify[@]}" --path direct
step verify-packed $((within + 25)) "random cases against the oracle, packed path" "${verify[@]}" --path packed
step verify-graph $((within + 25)) "random cases against the oracle, from graphs" "${verify[@]}" -G

# --- The table of goals -----------------------------------------------------------------------------------------------
reserve=0
measured=
step bench 100 "" "$micro" bench --bytes "$bytes" --iters "$iterations" --json "$work/bench.json" && measured=1
while IFS='|' read -r name figure op limit; do
  goal "$name" "$figure" "$op" "$limit"
done < <(sed -E '/WRONG DATA/ s/ us +[0-9.]+ / us  /' "$work/bench.txt" 2>/dev/null |
  sed -nE 's/^(.*[^ ]) +[0-9]+ B +[0-9.]+ us +([0-9.]*) ([^,]*), goal (<=|>=) ([0-9.]+):.*/\1 (\3)|\2|\4|\5/p')
[ -n "$measured" ] || goal "the other cases of reshard_gpu bench" "" - ""

columns=(--src 'chunk(0)' --dst 'chunk(1)' --dtype f32)
square=(--shape "${side}x$side")
measure_reshard direct-4 1.10 "direct, 4 ranks, $side x $side f32, rows to columns" "${columns[@]}" "${square[@]}" \
  --ranks 4 --path direct
measure_reshard direct-4-threads 1.10 "direct, 4 ranks as threads, $side x $side f32, rows to columns" "${columns[@]}" \
  "${square[@]}" --ranks 4 --path direct --comm local -t 4 -g 1
measure_reshard direct-8 1.10 "direct, 8 ranks, $side x $side f32, rows to columns" "${columns[@]}" "${square[@]}" \
  --ranks 8 --path direct
[ -z "$large" ] || measure_reshard direct-4-large 1.10 "direct, 4 ranks, $large x $large f32, rows to columns" \
  "${columns[@]}" --shape "${large}x$large" --ranks 4 --path direct
measure_reshard direct-4-graph 1.10 "direct, 4 ranks, $side x $side f32, from a graph" "${columns[@]}" "${square[@]}" \
  --ranks 4 --path direct -G
measure_reshard packed-4 2.1 "packed, 4 ranks, $side x $side f32, rows to columns" "${columns[@]}" "${square[@]}" \
  --ranks 4 --path packed
measure_reshard packed-cyclic 3.2 "packed, $side x $side f32, cyclic 64 to cyclic 96" "${square[@]}" --dtype f32 \
  --src 'cyclic(2x2;64x64)' --dst 'cyclic(2x2;96x96)' --ranks 4 --path packed

first=${CUDA_VISIBLE_DEVICES:-0} first=${first%%,*} # the GPU that processes share
export program work
export -f nccl_processes measure_collectives run_tool
if step nccl-host 30 "2 processes on one GPU" bash -c 'nccl_processes "$@"' nccl 2 "$program" bench --device cuda \
  --comm nccl "${columns[@]}" --shape 512x512 -n "$iterations" -w 3 -c -J "$work/nccl-host.json"; then
  beyond=$(sed -nE 's/.*"host_us": *([0-9.e+-]+).*"group_us": *([0-9.e+-]+).*/\1 \2/p' "$work/nccl-host.json" |
    awk '{ printf "%.2f", $1 - $2 }')
fi
goal "execute over NCCL, beyond the bare group (us of the host)" "${beyond:-}" '<=' 5

python=${RESHARD_TEST_PYTHON:-python3}
if command -v "$python" >/dev/null; then
  step torch 60 "" env PYTHONUNBUFFERED=1 "$python" bench/compare/reshard_torch_gpu.py "$program" "$side"
else
  note torch lacking 0 "no $python"
fi
for row in "$side|3" "$((side < 512 ? side : 512))|8"; do
  n=${row%|*} limit=${row#*|} found=
  while IFS='|' read -r _ name figure _; do
    found=1
    goal "$name (x PyTorch's speed)" "$figure" '>=' "$limit"
  done < <(grep -s "^goal|reshard of $n x .*|$limit\$" "$work/torch.txt")
  [ -n "$found" ] || goal "reshard of $n x $n f32 (x PyTorch's speed)" "" '>=' "$limit"
done

# --- Figures without a goal -------------------------------------------------------------------------------------------
for path in direct packed; do
  step "sweep-$path" 30 "" "$program" bench --device cuda -n "$iterations" -w 3 -c "${columns[@]}" --shape 64x1024 \
    --ranks 4 --path "$path" "${sweep[@]}" -J "$work/sweep-$path.json"
done
step tiles 45 "how copies are best cut here" "$micro" bench --sweep --bytes "$((bytes > 1 << 20 ? bytes / 4 : bytes))" \
  --iters "$iterations" --json "$work/tiles.json"
report # later steps may be cut off
# Processes of one node that share the GPU: their streams meet by words in its memory, and open each other's arrays.
nodes=(--device cuda --comm node --processes 2)
step node-verify 40 "random cases, 2 processes on one GPU" env RESHARD_TIMEOUT_MS=20000 CUDA_VISIBLE_DEVICES="$first" \
  "$program" verify "${nodes[@]}" --cases $((quick ? 10 : 25)) --seed "$seed"
for path in direct packed; do
  step "node-$path" 25 "2 processes on one GPU" env RESHARD_TIMEOUT_MS=20000 CUDA_VISIBLE_DEVICES="$first" \
    "$program" bench "${nodes[@]}" --path "$path" -n "$iterations" -w 3 -c "${columns[@]}" --shape 64x1024 \
    -b "${few[0]}" -e "${few[1]}" -f 64 -J "$work/node-$path.json"
done
for n in 2 4; do # correctness alone
  [ -z "$quick" ] || [ "$n" = 2 ] || continue
  step "nccl-$n" 60 "random cases, $n processes on one GPU" bash -c 'nccl_processes "$@"' nccl "$n" "$program" verify \
    --device cuda --comm nccl --cases $((quick ? 10 : 25))
done
sanitizer=$(find_tool compute-sanitizer)
sanitized() { # TOOL NAME COMMAND...
  if [ -n "$sanitizer" ]; then
    step "sanitizer-$2" 45 "compute-sanitizer" bash -o pipefail -c 'run_tool "$@"' tool "$sanitizer" --tool "$1" \
      --error-exitcode 9 "${@:3}"
  else
    note "sanitizer-$2" lacking 0 "no compute-sanitizer"
  fi
}
sanitized memcheck memcheck "$micro" check --cases 28 --seed "$seed"
if [ -z "$quick" ]; then
  for kind in racecheck synccheck initcheck; do sanitized "$kind" "$kind" "$micro" check --cases 28 --seed "$seed"; done
  sanitized memcheck verify "$program" verify --device cuda --cases 8 --seed "$seed"
fi
if [ -n "$quick" ]; then
  note collectives "left out" 0 "in a quick run"
elif [ "$gpus" -ge 2 ]; then
  step collectives 120 "sends and receives against NCCL's collectives" bash -c 'measure_collectives "$@"' collectives \
    $((gpus >= 8 ? 8 : gpus >= 4 ? 4 : 2)) "${few[@]}"
else
  note collectives lacking 0 "one GPU: nothing to compare collectives on"
fi
ncu=$(find_tool ncu)
metrics=gpu__time_duration.sum,dram__bytes.sum.per_second,dram__throughput.avg.pct_of_peak_sustained_elapsed
metrics+=,sm__throughput.avg.pct_of_peak_sustained_elapsed
metrics+=,sm__warps_active.avg.pct_of_peak_sustained_active,launch__registers_per_thread
if [ -n "$quick" ]; then
  note ncu "left out" 0 "in a quick run"
elif [ -n "$ncu" ]; then
  for case in 'box copy' transposing cast '8 large boxes' '8 large spans' 'index_select 65536'; do # clocks stay
    step "ncu-${case// /-}" 40 "$case" bash -o pipefail -c 'run_tool "$@"' tool "$ncu" --csv --print-units base \
      --clock-control none --launch-count 40 --metrics "$metrics" \
      "$micro" bench --profile --bytes $((bytes > 1 << 20 ? bytes / 4 : bytes)) --only "$case"
  done
  step ncu-report 60 "one launch of each kernel and grid, all sections" bash -o pipefail -c 'run_tool "$@"' tool \
    "$ncu" --set full --filter-mode per-launch-config --launch-count 1 --kernel-name 'regex:copy_|cast|select' \
    --clock-control none --force-overwrite --export "$out/reshard.ncu-rep" "$micro" bench --profile \
    --bytes $((bytes > 1 << 20 ? bytes / 16 : bytes))
else
  note ncu lacking 0 "no ncu: no figures per kernel"
fi
nsys=$(find_tool nsys)
if [ -n "$quick" ]; then
  note nsys "left out" 0 "in a quick run"
elif [ -n "$nsys" ]; then
  step nsys 40 "a timeline of packed executes" bash -o pipefail -c 'run_tool "$@"' tool "$nsys" profile \
    --trace=cuda,nvtx --sample=none --cpuctxsw=none --force-overwrite=true --output="$out/reshard.nsys-rep" \
    "$program" bench --device cuda -n 3 -w 1 "${columns[@]}" --shape 1024x1024 --ranks 4 --path packed
else
  note nsys lacking 0 "no nsys: no timeline"
fi
report
print_table
say "$failures of ${#steps[@]} steps failed or were not done; $out/README.md has all"
[ "$failures" = 0 ]
