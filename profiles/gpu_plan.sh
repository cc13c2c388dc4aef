# Sourced by gpu.sh: the steps in their order, in groups after each of which the report is written. By 60 s there are
# kernels beside the CPU and copies beside memcpy, by 130 s two processes, by 170 s four ranks. There --quick ends. By
# 480 s there is the rest: NCCL, PyTorch, sanitizers, profiles, tiles and sizes.

# Sizes of the run, and of a test of it that shows nothing.
set_sizes() {
  cases=600 within=6 bytes=$((256 << 20)) side=8192 large=16384 iterations=20 sweep=(-b 64K -e 1G -f 4) few=(64K 256M)
  kinds=(copies 600 spans 300 casts 300 conversions 300 selections 300 storage 600)
  tiles=(0 16384 32768 65536) # 0: by size
  if [ -n "${RESHARD_GPU_TINY:-}" ]; then
    cases=8 bytes=65536 side=64 large=64 iterations=2 sweep=(-b 64K -e 256K -f 2) few=(64K 512K)
    kinds=(copies 4 spans 4 casts 4 conversions 4 selections 4 storage 4) tiles=(0 65536)
  fi
  seed=${RESHARD_GPU_SEED:-$(date +%s)}
  export RESHARD_MICRO_GPU_BYTES=$bytes RESHARD_MICRO_GPU_TURNS=$iterations
  first=${CUDA_VISIBLE_DEVICES:-0} first=${first%%,*} # the GPU that processes share
  columns=(--src 'chunk(0)' --dst 'chunk(1)' --dtype f32)
  bench=("$program" bench --device cuda -n "$iterations" -w 3 -c)
  verify=("$program" verify --device cuda --seed "$seed")
  nodes=(env RESHARD_TIMEOUT_MS=15000 CUDA_VISIBLE_DEVICES="$first" "$program")
}

group() { # NAME: writes the report of the ones before
  [ -n "$listing" ] && return
  report
}
shell_step() { step "$1" "$2" "$3" bash -o pipefail -c '"$@"' "$1" "${@:4}"; } # NAME SECONDS WHAT FUNCTION...
bench_step() { # NAME SECONDS WHAT BENCH-OPTION...
  step "$1" "$2" "$3" "${bench[@]}" "${@:4}" -J "$work/$1.json"
  measured "$1"
}
lacks() { # NAME SECONDS WHAT WHY: notes that the step cannot be; false where no reason is
  [ -n "$4" ] && [ -z "$listing" ] && wanted "$1" || return 1
  known+=("$1|$2|$3")
  note "$1" lacking '' "$4"
}
no_micro=''
find_micro() { # why the steps of reshard_micro cannot be
  if [ ! -x "$micro" ]; then
    no_micro="no ${micro##*/} in ${micro%/*}"
  elif ! timeout -k 1 20 "$micro" --benchmark_list_tests >"$work/micro.txt" 2>&1 </dev/null; then
    no_micro="${micro##*/} does not run here: $(tail -1 "$work/micro.txt")"
  fi
}
micro_step() { lacks "$1" "$2" "$3" "$no_micro" || "${micro_by:-shell_step}" "$@"; } # NAME SECONDS WHAT FUNCTION...
tool_step() { # NAME SECONDS WHAT TOOL ARGUMENT...: left out where the tool is not there or was refused
  local tool why
  tool=$(find_tool "$4") why=${refused[$4]:-}
  [ -n "$tool" ] || why="no $4"
  ! lacks "$1" "$2" "$3" "${why:+$why: its time goes to the next step}" || return 1
  shell_step "$1" "$2" "$3" "${tool_by:-run_tool}" "$tool" "${@:5}"
}
declare -A refused=()
probe() { # TOOL SECONDS ARGUMENT...: tells whether the machine lets it work
  tool_step "probe-$1" "$2" 'does the tool work here' "$1" "${@:3}"
  [ -z "$listing" ] && [ ${#steps[@]} -gt 0 ] || return 0
  case ${steps[-1]} in
  "probe-$1|lacking|"*) refused[$1]=$(cut -d'|' -f4 <<<"${steps[-1]}") refused[$1]=${refused[$1]%%: its time*} ;;
  "probe-$1|FAILED|"*) refused[$1]="$1 failed in its probe" ;;
  "probe-$1|not done|"*) failures=$((failures - 1)) ;; # it may be slow to start
  esac
}

plan() {
  local kind i path n how
  # --- 15 s: the machine
  shell_step nvidia-smi 5 'driver, clocks, ECC, power' describe_gpu_state
  shell_step start 10 'a process, from its start to its end' time_start "$program"
  if [ -z "$listing" ]; then
    beside hold "$checker" hold
    for ((i = 0; i < 50; i++)); do grep -qs 'is open' "$work/hold.txt" || sleep 0.1; done
    beside import "$python" -c 'import torch' # so that its files are in memory when its step comes
  fi
  shell_step start-again 10 'the same with the GPU held open' time_start "$program"
  probe ncu 8 --metrics gpu__time_duration.sum --launch-count 1 --clock-control none "$checker" check --cases 1
  probe compute-sanitizer 4 --tool memcheck "$checker" check --cases 1
  # --- 30 s: kernels, each kind in a program of its own
  for ((i = 0; i < ${#kinds[@]}; i += 2)); do
    kind=${kinds[i]}
    step "kernels-$kind" 8 'against the CPU' "$checker" check --cases "${kinds[i + 1]}" --kind "$kind" --seed "$seed"
  done
  [ -n "${RESHARD_GPU_TINY:-}" ] || step kernels-large 10 'memory beyond 4 GiB' "$checker" check --cases 0 --large
  group
  # --- 60 s: copies beside memcpy
  micro_step bench 50 'every class of copy beside memcpy, data checked' measure_rows ^gpu_ 12 "$work/bench.json"
  measured bench
  group
  # --- 90 s: random cases against the oracle
  for how in '--path direct' '--path packed' -G; do
    n=${how##* } n=${n/-G/graph}
    # shellcheck disable=SC2086 # words
    step "verify-$n" 15 'random cases against the oracle' "${verify[@]}" --cases "$cases" --seconds "$within" $how
  done
  group
  # --- 130 s: two processes on one GPU; their arrays are of cudaMalloc, or storage
  for how in '' --shared; do
    # shellcheck disable=SC2086
    step "node-verify${how/--/-}" 20 "2 processes, random cases and rebinds${how:+, $how}" "${nodes[@]}" verify \
      --device cuda --comm node --processes 2 --cases 25 --seed "$seed" $how
  done
  for how in direct packed 'direct --shared'; do
    n=${how/ --/-}
    # shellcheck disable=SC2086
    step "node-$n" 12 "2 processes on one GPU" "${nodes[@]}" bench --device cuda --comm node --processes 2 \
      -n "$iterations" -w 3 -c "${columns[@]}" --shape 64x1024 -b "${few[0]}" -e "${few[1]}" -f 64 --path $how \
      -J "$work/node-$n.json"
    measured "node-$n"
  done
  shell_step side-by-side 25 '2 processes on one GPU at one time, by MPS' measure_side_by_side "$side" \
    $((iterations * 5)) "${nodes[@]}" bench --device cuda "${columns[@]}" -w 3 -c --path direct
  group
  # --- 170 s: four ranks
  n=(--shape "${side}x$side" --ranks 4)
  bench_step direct-4 12 "4 ranks, $side x $side f32, rows to columns" "${columns[@]}" "${n[@]}" --path direct
  bench_step packed-4 12 "the same, packed" "${columns[@]}" "${n[@]}" --path packed
  bench_step direct-4-graph 12 "the same from a graph" "${columns[@]}" "${n[@]}" --path direct -G
  bench_step direct-4-large 15 "4 ranks, $large x $large f32" "${columns[@]}" --shape "${large}x$large" --ranks 4 \
    --path direct
  bench_step direct-4-threads 12 "4 ranks as threads" "${columns[@]}" "${n[@]}" --path direct --comm local -t 4 -g 1
  group
  [ -z "$quick" ] || [ -n "$listing" ] || return 0
  # --- 200 s: NCCL
  shell_step nccl-2 20 'random cases, 2 processes on one GPU' nccl_processes 2 "${verify[@]}" --comm nccl --cases 25
  RESHARD_NODES=2 shell_step mixed-4 30 'the mixed path, 4 processes, 2 nodes' nccl_processes 4 "${verify[@]}" \
    --comm nccl --path mixed --cases 15
  shell_step nccl-host 20 'the host in a round, 2 processes on one GPU' nccl_processes 2 "$program" bench \
    --device cuda --comm nccl "${columns[@]}" --shape 512x512 -n $((iterations * 10)) -w 3 -c -J "$work/nccl-host.json"
  measured nccl-host
  if [ "$gpus" -ge 2 ] || [ -n "$listing" ]; then
    shell_step collectives 60 "sends and receives against NCCL's collectives" measure_collectives \
      $((gpus >= 8 ? 8 : gpus >= 4 ? 4 : 2)) "${few[@]}"
  fi
  group
  # --- 250 s: PyTorch
  step torch 60 "PyTorch's operations beside ours" env PYTHONUNBUFFERED=1 "$python" bench/compare/reshard_torch_gpu.py \
    "$program" "${no_micro:-$micro}" "$side" "$bytes"
  group
  # --- 300 s: sanitizers
  for n in memcheck racecheck; do
    tool_step "$n" 30 'compute-sanitizer of check' compute-sanitizer --tool $n --error-exitcode 9 "$checker" check \
      --cases 32 --seed "$seed"
  done
  group
  # --- 390 s: profiles
  n=()
  for kind in SpeedOfLight MemoryWorkloadAnalysis Occupancy LaunchStats WarpStateStats; do n+=(--section "$kind"); done
  RESHARD_MICRO_GPU_TURNS=0 micro_by=tool_step tool_by=profile_kernels micro_step ncu 90 \
    'a launch of each kernel and grid, five sections' ncu "$out/kernels.ncu-rep" "${n[@]}" \
    --filter-mode per-launch-config --launch-count 1 --kernel-name 'regex:copy_|cast|select' --clock-control none \
    "$micro" --benchmark_filter='^gpu_(copy|fsdp|index|cast|convert)'
  group
  # --- 440 s: tiles
  micro_step tiles 50 'how copies are best cut here' measure_tiles "$work/tiles" "${tiles[@]}"
  for n in "$work"/tiles-*.json; do n=${n##*/} && measured "${n%.json}"; done
  group
  # --- 480 s: sizes
  for path in direct packed; do
    bench_step "sweep-$path" 15 'over sizes' "${columns[@]}" --shape 64x1024 --ranks 4 --path "$path" "${sweep[@]}"
  done
  bench_step packed-cyclic 10 'cyclic 64 to cyclic 96, packed' --shape "${side}x$side" --dtype f32 --ranks 4 \
    --src 'cyclic(2x2;64x64)' --dst 'cyclic(2x2;96x96)' --path packed
  tool_step initcheck 30 'compute-sanitizer of check' compute-sanitizer --tool initcheck --error-exitcode 9 "$checker" \
    check --cases 32 --seed "$seed"
  shell_step python 120 'arrays of torch and CuPy, processes on one GPU' check_module "$ready/python"
}
