#!/usr/bin/env bash
# ./run gpu [--quick]: everything that needs a GPU, in 9 minutes (3 with --quick): builds with cmake and nvcc alone, checks
# what the library does there against the CPU, measures it beside the GPU's own copy, and writes the results down.
#
# Every step has a time limit; one that fails does not end the run, and one for which no time is left is said to be so. Exit
# status: 0 all steps passed, 1 some failed or were not done in time, 3 there is no GPU or no nvcc. A goal that is not reached
# is no failure: the table at the end says it.
#
# Environment: RESHARD_PROGRAM      a program `reshard` that is there; reshard_gpu is beside it. Nothing is built then.
#              RESHARD_GPU_PROGRAM  the program reshard_gpu, where it is elsewhere
#              RESHARD_GPU_TINY     not empty: sizes that show nothing, for the test of this script
#              RESHARD_GPU_SKIP     steps to leave out, separated by spaces: "nccl-2 nccl-4 torch"
#              RESHARD_RESULTS      directory of the results (default profiles/results)
#              RESHARD_TEST_PYTHON  an interpreter with torch, to compare with (default python3)
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${RESHARD_BUILD:-$root/build}/gpu
results=${RESHARD_RESULTS:-$root/profiles/results}
cores=$(nproc 2>/dev/null || echo 4)
quick=
case ${1:-} in
'') ;;
--quick) quick=1 ;;
*) printf 'run: gpu takes --quick or nothing\n' >&2; exit 2 ;;
esac
[ $# -le 1 ] || { printf 'run: gpu takes --quick or nothing\n' >&2; exit 2; }
total=530
[ -z "$quick" ] || total=170
[ -z "${RESHARD_PROGRAM:-}" ] || RESHARD_PROGRAM=$(realpath "$RESHARD_PROGRAM") || exit 2
[ -z "${RESHARD_GPU_PROGRAM:-}" ] || RESHARD_GPU_PROGRAM=$(realpath "$RESHARD_GPU_PROGRAM") || exit 2
[[ $build == /* ]] || build=$PWD/$build
[[ $results == /* ]] || results=$PWD/$results
cd "$root" || exit 1

lacking() { printf 'run: gpu: %s\n' "$*" >&2; exit 3; }
say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }
tool() { # NAME: where a tool of NVIDIA's is, if it is
  local at
  at=$(command -v "$1") || at=$(ls -d "${CUDA_HOME:-/usr/local/cuda}/bin/$1" /opt/nvidia/nsight-compute/*/"$1" 2>/dev/null | tail -1)
  [ -z "$at" ] || echo "$at"
}

if [ -z "${RESHARD_PROGRAM:-}" ]; then
  { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; } || [ -e /dev/nvidia0 ] || [ -e /dev/dxg ] ||
    lacking "this machine has no NVIDIA GPU (no nvidia-smi that lists one, no /dev/nvidia0)"
  command -v cmake >/dev/null || lacking "cmake is missing"
  [ -n "$(tool nvcc)" ] || lacking "nvcc is missing: it is in the CUDA toolkit (CUDA_HOME, or in PATH)"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work

# --- Steps -------------------------------------------------------------------------------------------------------------------
steps=() failures=0
note() { # NAME STATE SECONDS WHAT
  steps+=("$1|$2|$3|$4")
  say "$1: $2$([ -z "$4" ] || echo " - $4")"
}
left() { echo $((total - SECONDS)); }

step() { # NAME MOST-SECONDS WHAT COMMAND...: its output to $out/NAME.txt
  local name=$1 most=$2 what=$3 status=0 before=$SECONDS room
  shift 3
  [[ " ${RESHARD_GPU_SKIP:-} " != *" $name "* ]] || { note "$name" "left out" 0 "as asked for"; return 1; }
  room=$(left)
  if [ "$room" -lt 5 ]; then
    failures=$((failures + 1))
    note "$name" "not done" 0 "no time was left"
    return 1
  fi
  [ "$room" -gt "$most" ] || most=$room
  timeout -k 3 "$most" "$@" >"$out/$name.txt" 2>&1 </dev/null || status=$?
  case $status in
  0) note "$name" passed $((SECONDS - before)) "$what"; return 0 ;;
  3 | 77) note "$name" lacking $((SECONDS - before)) "$(tail -1 "$out/$name.txt" | cut -c1-200)"; return 1 ;;
  124 | 137) note "$name" "not done" $((SECONDS - before)) "did not end within $most s" ;;
  *) note "$name" FAILED $((SECONDS - before)) "exit status $status: $(tail -1 "$out/$name.txt" | cut -c1-200)" ;;
  esac
  failures=$((failures + 1))
  return 1
}

goals=() # NAME|FIGURE|GOAL|met or short
goal() { # NAME FIGURE <=|>= GOAL
  local verdict=short
  if [ -z "$2" ]; then
    verdict='not measured'
  elif awk -v x="$2" -v g="$4" -v op="$3" 'BEGIN { exit !(op == "<=" ? x <= g : x >= g) }'; then
    verdict=met
  fi
  goals+=("$1|${2:--}|$3 $4|$verdict")
}

# --- What the steps run: by bash -c, under a time limit ---------------------------------------------------------------------------
build_here() {
  local arch generator=()
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d '. ')
  ! command -v ninja >/dev/null || generator=(-G Ninja)
  CUDACXX=$nvcc cmake -S . -B "$build" ${generator[@]+"${generator[@]}"} -DCMAKE_BUILD_TYPE=Release -DRESHARD_CUDA=ON \
    -DRESHARD_TESTS=OFF -DRESHARD_MPI=OFF ${arch:+-DCMAKE_CUDA_ARCHITECTURES="$arch-real"} &&
    cmake --build "$build" -j "$cores" --target reshard_program reshard_gpu
}

# Each process looks like a machine of its own to NCCL, which refuses several ranks of one machine on one GPU. All is ended
# when one fails.
nccl_processes() { # N COMMAND...
  local n=$1 i pids=() status=0 port=$((20000 + RANDOM % 20000))
  shift
  for ((i = 0; i < n; i++)); do
    CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0} RANK=$i LOCAL_RANK=$i WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      RESHARD_TIMEOUT_MS=30000 NCCL_HOSTID=reshard-$i NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0 \
      NCCL_RAS_ENABLE=0 NCCL_MAX_CTAS=2 "$@" &
    pids+=($!)
  done
  trap '[ ${#pids[@]} = 0 ] || kill -9 ${pids[@]} 2>/dev/null' EXIT
  while [ ${#pids[@]} -gt 0 ] && [ "$status" = 0 ]; do
    sleep 0.1
    for i in "${!pids[@]}"; do
      kill -0 "${pids[i]}" 2>/dev/null && continue
      wait "${pids[i]}" || status=$?
      unset "pids[$i]"
    done
  done
  [ "$status" = 0 ] || sleep 1 # the others may have something to say
  return "$status"
}

figures_of_kernels() { # BYTES CASE: what ncu says of each kernel, one line a launch
  local said status=0
  said=$("$ncu" --csv --print-units base --launch-count 200 \
    --metrics gpu__time_duration.sum,dram__bytes.sum.per_second,dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__warps_active.avg.pct_of_peak_sustained_active,launch__registers_per_thread \
    "$micro" bench --profile --bytes "$1" --only "$2" 2>&1) || status=$?
  echo "$said"
  [[ $said != *ERR_NVGPUCTRPERM* ]] || { echo "ncu may not read the GPU's counters here (ERR_NVGPUCTRPERM)"; return 77; }
  return "$status"
}

# --- Build -------------------------------------------------------------------------------------------------------------------
if [ -n "${RESHARD_PROGRAM:-}" ]; then
  program=$RESHARD_PROGRAM
  micro=${RESHARD_GPU_PROGRAM:-${program%/*}/reshard_gpu}
else
  program=$build/reshard micro=$build/reshard_gpu nvcc=$(tool nvcc)
  export build cores nvcc
  export -f build_here
  mkdir -p "$build"
  say "building for the GPU that is here, in $build"
  step build 300 "" bash -c build_here || { tail -20 "$out/build.txt" >&2; exit 1; }
fi
"$program" info --json "$out/info.json" >"$out/info.txt" 2>&1 || { cat "$out/info.txt" >&2; exit 1; }
gpu=$(sed -n 's/^cuda:0 *\([^,]*\),.*/\1/p' "$out/info.txt")
[ -n "$gpu" ] || lacking "$(sed -n 's/^CUDA *//p' "$out/info.txt")"
mkdir -p "$results" || exit 1
out=$results/$(date +%Y-%m-%d)-$(tr -cs '[:alnum:]\n' '-' <<<"$gpu" | tr '[:upper:]' '[:lower:]' | sed 's/-*$//')
mkdir -p "$out" || exit 1
cp "$work"/* "$out"
say "$gpu; results go to $out"

# --- Correctness -------------------------------------------------------------------------------------------------------------
cases=600 checks=2100 bytes=$((1 << 30)) side=8192 large=16384 iterations=20
[ -z "$quick" ] || cases=100 checks=420 bytes=$((1 << 28)) large=8192
[ -z "${RESHARD_GPU_TINY:-}" ] || cases=20 checks=14 bytes=65536 side=64 large=64 iterations=2
check=(check --cases "$checks")
[ -n "${RESHARD_GPU_TINY:-}" ] || check+=(--large)
seed=$(date +%s)
step kernels 60 "copies, casts, selections, storage: as the CPU does it" "$micro" "${check[@]}" --seed "$seed"
step verify-direct 60 "random cases against the oracle, direct path" "$program" verify --device cuda --path direct --cases "$cases" --seed "$seed"
step verify-packed 60 "random cases against the oracle, packed path" "$program" verify --device cuda --path packed --cases "$cases" --seed "$seed"
step verify-graph 60 "random cases against the oracle, from graphs" "$program" verify --device cuda -G --cases "$cases" --seed "$seed"

# --- Speed -------------------------------------------------------------------------------------------------------------------
step bench 90 "" "$micro" bench --bytes "$bytes" --iters "$iterations" --json "$out/bench.json"
while IFS='|' read -r name figure op limit; do
  goal "$name" "$figure" "$op" "$limit"
done < <(sed -nE 's/^(.*[^ ]) +[0-9]+ B +[0-9.]+ us +([0-9.]+) ([^,]*), goal (<=|>=) ([0-9.]+):.*/\1 (\3)|\2|\4|\5/p' "$out/bench.txt" 2>/dev/null)

reshards() { # NAME GOAL LABEL BENCH-OPTION...: time as a multiple of memcpy's, every byte checked
  local name=$1 limit=$2 label=$3 ratio=
  shift 3
  if step "$name" 60 "" "$program" bench --device cuda -n "$iterations" -w 3 -c "$@" -J "$out/$name.json"; then
    ratio=$(awk '$1 ~ /^[0-9]+$/ && NF >= 9 { printf "%.3f", 1 / $8 }' "$out/$name.txt")
  fi
  goal "$label (x memcpy's time)" "$ratio" '<=' "$limit"
}
columns=(--src 'chunk(0)' --dst 'chunk(1)' --dtype f32)
reshards direct-4 1.10 "direct, 4 ranks, rows to columns" "${columns[@]}" --shape "${side}x$side" --ranks 4 --path direct
reshards direct-8 1.10 "direct, 8 ranks, rows to columns" "${columns[@]}" --shape "${side}x$side" --ranks 8 --path direct
reshards direct-4-large 1.10 "direct, 4 ranks, ${large} x $large" "${columns[@]}" --shape "${large}x$large" --ranks 4 --path direct
reshards direct-4-graph 1.10 "direct, 4 ranks, from a graph" "${columns[@]}" --shape "${side}x$side" --ranks 4 --path direct -G
reshards packed-4 2.1 "packed, 4 ranks, rows to columns" "${columns[@]}" --shape "${side}x$side" --ranks 4 --path packed
reshards packed-cyclic 3.2 "packed, cyclic 64 to cyclic 96" --shape "${side}x$side" --dtype f32 --src 'cyclic(2x2;64x64)' --dst 'cyclic(2x2;96x96)' --ranks 4 --path packed

# --- NCCL over processes that share the GPU: correctness alone ----------------------------------------------------------------------
export -f nccl_processes
for n in 2 4; do
  [ -z "$quick" ] || [ "$n" = 2 ] || continue
  step "nccl-$n" 60 "random cases, $n processes on one GPU" bash -c 'nccl_processes "$@"' nccl "$n" "$program" verify --device cuda --comm nccl --cases $((quick ? 10 : 25))
done

# --- PyTorch on the same card ---------------------------------------------------------------------------------------------------
step torch 60 "" "${RESHARD_TEST_PYTHON:-python3}" bench/compare/reshard_torch_gpu.py "$program" "$side"
while IFS='|' read -r name figure limit; do
  goal "$name (x PyTorch's speed)" "$figure" '>=' "$limit"
done < <(sed -n 's/^goal|//p' "$out/torch.txt" 2>/dev/null)

# --- Tools -------------------------------------------------------------------------------------------------------------------
sanitizer=$(tool compute-sanitizer)
for kind in memcheck racecheck synccheck initcheck; do
  [ -z "$quick" ] || [ "$kind" = memcheck ] || continue
  if [ -n "$sanitizer" ]; then
    step "sanitizer-$kind" 45 "compute-sanitizer" "$sanitizer" --tool "$kind" --error-exitcode 9 "$micro" check --cases 14
  else
    note "sanitizer-$kind" lacking 0 "no compute-sanitizer"
  fi
done
ncu=$(tool ncu)
if [ -n "$quick" ]; then
  note ncu "left out" 0 "in a quick run"
elif [ -n "$ncu" ]; then
  export ncu micro
  export -f figures_of_kernels
  for case in 'box copy' 'transposing' '8 large boxes' 'index_select 65536'; do
    step "ncu-${case// /-}" 40 "$case" bash -c 'figures_of_kernels "$@"' ncu "$((bytes > 1 << 20 ? bytes / 4 : bytes))" "$case"
  done
else
  note ncu lacking 0 "no ncu: no figures per kernel"
fi

# --- What came out -------------------------------------------------------------------------------------------------------------
table() {
  local g name figure limit verdict
  printf '| %-62s | %9s | %8s | %-12s |\n' goal measured wanted "" --- --- --- ---
  for g in "${goals[@]}"; do
    IFS='|' read -r name figure limit verdict <<<"$g"
    printf '| %-62s | %9s | %8s | %-12s |\n' "$name" "$figure" "$limit" "$verdict"
  done
}

write_readme() {
  local s name state seconds what
  cat <<TEXT
# $(date +%Y-%m-%d), $gpu

Command: \`./run gpu${quick:+ --quick}\`, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)$(git diff --quiet HEAD -- 2>/dev/null || echo " with changes"), $SECONDS s.
$(sed -n 's/^CUDA */CUDA: /p' "$out/info.txt"). $(sed -n 's/^communicators */Communicators: /p' "$out/info.txt"). $(nvidia-smi --query-gpu=clocks.max.sm,clocks.max.mem,power.limit,ecc.mode.current --format=csv,noheader 2>/dev/null | head -1 | sed 's/.*/Clocks, power, ECC: &./')
Times are of the device, with empty caches, medians; memcpy is the GPU's own copy of as many bytes, in turns with ours.

$(table)

| step | state | seconds | |
| --- | --- | ---: | --- |
TEXT
  for s in "${steps[@]}"; do
    IFS='|' read -r name state seconds what <<<"$s"
    printf '| %s | %s | %s | %s |\n' "$name" "$state" "$seconds" "${what//|//}"
  done
}
write_readme >"$out/README.md"
{
  printf '{"version": 1, "gpu": "%s", "seconds": %d, "goals": [' "$gpu" "$SECONDS"
  comma=
  for g in "${goals[@]}"; do
    IFS='|' read -r name figure limit verdict <<<"$g"
    [ "$figure" != - ] || figure=null
    printf '%s\n{"name": "%s", "figure": %s, "wanted": "%s", "verdict": "%s"}' "$comma" "$name" "$figure" "$limit" "$verdict"
    comma=,
  done
  printf '],\n"steps": ['
  comma=
  for s in "${steps[@]}"; do
    IFS='|' read -r name state seconds what <<<"$s"
    printf '%s\n{"name": "%s", "state": "%s", "seconds": %d}' "$comma" "$name" "$state" "$seconds"
    comma=,
  done
  printf ']}\n'
} >"$out/summary.json"
table
say "$failures of ${#steps[@]} steps failed or were not done; $out/README.md has all"
[ "$failures" = 0 ]
