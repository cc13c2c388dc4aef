# Sourced by gpu.sh: steps under a time limit, goals, and the functions that steps run.

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }
lacking() { printf 'run: gpu: %s\n' "$*" >&2; exit 3; }
find_tool() { # NAME: prints the path of a tool of NVIDIA's, if there is one
  local at
  for at in "$(command -v "$1")" "${CUDA_HOME:-/usr/local/cuda}/bin/$1" /usr/local/cuda/bin/"$1" \
    /opt/nvidia/nsight-compute/*/"$1" /opt/nvidia/nsight-systems/*/bin/"$1"; do
    [ -x "$at" ] || continue
    # Follows a link to the toolkit, not one to a compiler cache.
    [[ $(realpath "$at") != */"$1" ]] || at=$(realpath "$at")
    echo "$at"
    return
  done
}

interrupted() { # writes the report of the steps so far
  local i running
  for ((i = 0; i < 20; i++)); do # a step that begins just now may miss the first
    running=$(jobs -p)
    [ -n "$running" ] && kill $running 2>/dev/null || break
    sleep 0.1
  done
  [ -z "$out" ] || report
  exit 143
}

# --- Steps and goals --------------------------------------------------------------------------------------------------
steps=() failures=0
note() { # NAME STATE SECONDS WHAT
  steps+=("$1|$2|$3|$4")
  say "$1: $2$([ -z "$4" ] || echo " - $4")"
}

# Runs a step; its output goes to $work/NAME.txt. It has at most so many seconds, and fewer where less than `reserve`
# seconds would be left for later steps.
step() { # NAME MOST-SECONDS WHAT COMMAND...
  local name=$1 limit=$2 what=$3 status=0 before=$SECONDS left=$((total - reserve - SECONDS)) last
  shift 3
  [[ " ${RESHARD_GPU_SKIP:-} " != *" $name "* ]] || { note "$name" "left out" 0 "as asked for"; return 1; }
  if [ "$left" -lt 1 ]; then
    failures=$((failures + 1))
    note "$name" "not done" 0 "no time was left"
    return 1
  fi
  [ "$left" -gt "$limit" ] || limit=$left
  timeout -k 3 "$limit" "$@" >"$work/$name.txt" 2>&1 </dev/null &
  wait $! || status=$?
  last=$(grep -v '^$' "$work/$name.txt" | tail -1 | cut -c1-200)
  case $status in
  0)
    last=$(grep -m1 -oE '^[0-9]+ cases' "$work/$name.txt")
    note "$name" passed $((SECONDS - before)) "$what${last:+: $last}"
    return 0
    ;;
  3 | 77) note "$name" lacking $((SECONDS - before)) "$last"; return 1 ;;
  124 | 137) note "$name" "not done" $((SECONDS - before)) "did not end within $limit s" ;;
  *) note "$name" FAILED $((SECONDS - before)) "exit status $status: $last" ;;
  esac
  failures=$((failures + 1))
  return 1
}

goals=() # NAME|FIGURE|OP|GOAL|VERDICT
goal() { # NAME FIGURE OP GOAL: OP is <= or >=; without a figure it was not measured
  local verdict=short
  if [ -z "$2" ]; then
    verdict='not measured'
  elif awk -v x="$2" -v g="$4" -v op="$3" 'BEGIN { exit !(op == "<=" ? x <= g : x >= g) }'; then
    verdict=met
  fi
  goals+=("$1|${2:--}|$3|$4|$verdict")
}

measure_reshard() { # NAME GOAL LABEL BENCH-OPTION...: time as a multiple of memcpy's, every byte checked
  local name=$1 limit=$2 label=$3 ratio=
  shift 3
  if step "$name" 30 "" "$program" bench --device cuda -n "$iterations" -w 3 -c "$@" -J "$work/$name.json"; then
    ratio=$(awk '$1 ~ /^[0-9]+$/ && NF >= 9 { printf "%.3f", 1 / $8 }' "$work/$name.txt")
    ! grep -q '"host_bound":true' "$work/$name.json" || label+=", with the host's time"
  fi
  goal "$label (x memcpy's time)" "$ratio" '<=' "$limit"
}

# Prints driver, clocks and ECC as they are, in a line.
describe_gpu() {
  local line fields=driver_version,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,power.limit
  line=$(nvidia-smi --query-gpu="$fields,ecc.mode.current,temperature.gpu" --format=csv,noheader 2>/dev/null | head -1)
  [ -n "$line" ] || { echo 'driver, clocks and ECC: no nvidia-smi tells'; return; }
  awk -F', ' '{ printf "driver %s, SM %s of %s, memory %s of %s, ", $1, $2, $3, $4, $5
    printf "limit %s, ECC %s, %s C\n", $6, $7, $8 }' <<<"$line"
}

# --- Functions that steps run, by bash -c -----------------------------------------------------------------------------
build_programs() {
  local arch=${arch:-} options=(-DCMAKE_BUILD_TYPE=Release -DRESHARD_CUDA=ON -DRESHARD_TESTS=OFF -DRESHARD_MPI=OFF)
  [ -n "$arch" ] || arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 |
    tr -dc '0-9')
  [ -n "$arch" ] || arch=$("${nvcc%/*}/__nvcc_device_query" 2>/dev/null | head -1 | grep -oE '^[0-9]+')
  ! command -v ninja >/dev/null || options+=(-G Ninja)
  [[ $nvcc != */bin/nvcc ]] || options+=(-DCUDAToolkit_ROOT="${nvcc%/bin/nvcc}")
  [ -z "$arch" ] || options+=(-DCMAKE_CUDA_ARCHITECTURES="$arch-real")
  CUDACXX=$nvcc cmake -S . -B "$build" "${options[@]}" &&
    cmake --build "$build" -j "$cores" --target reshard_program reshard_gpu
}

# Prints what nvidia-smi knows of clocks and why they are throttled, ECC, power and memory.
describe_gpu_state() {
  command -v nvidia-smi >/dev/null || { echo 'no nvidia-smi'; return 77; }
  nvidia-smi -q -d CLOCK,PERFORMANCE,ECC,POWER,MEMORY,TEMPERATURE,UTILIZATION
}

# Each process looks like a machine of its own to NCCL, which refuses several ranks of one machine on one GPU. When one
# fails, all are ended.
nccl_processes() { # N COMMAND...
  local n=$1 i pids=() status=0 port=$((20000 + RANDOM % 20000))
  shift
  for ((i = 0; i < n; i++)); do
    CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0} RANK=$i LOCAL_RANK=$i WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 \
      MASTER_PORT=$port RESHARD_TIMEOUT_MS=30000 NCCL_HOSTID=reshard-$i NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 \
      NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_MAX_CTAS=2 "$@" &
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
  [ "$status" = 0 ] || sleep 1 # for the errors of the others
  return "$status"
}

# Sends and receives against NCCL's collectives, by one process with a rank a GPU, so that events order all timed work.
# Lines "collective|pattern|option|bytes|us|what ran" are for the table. Those that NCCL lacks (status 3) are left out.
measure_collectives() { # GPUS MIN-BYTES MAX-BYTES
  local pattern name src dst how one made='' status=0
  for pattern in "all-gather|chunk(0)|mesh(a=$1;R)" "all-to-all|chunk(0)|chunk(1)" "broadcast|rank(0)|mesh(a=$1;R)"; do
    IFS='|' read -r name src dst <<<"$pattern"
    for how in auto force forbid; do
      one=0
      "$program" bench --device cuda --comm nccl -t 1 -g "$1" --ranks "$1" --shape 64x256 --src "$src" --dst "$dst" \
        -b "$2" -e "$3" -f 8 -n 10 -w 3 -c --collective "$how" >"$work/collective" || one=$?
      [ "$one" = 0 ] || [ "$one" = 3 ] || status=$one
      [ "$one" != 0 ] || made=1
      awk -v head="collective|$name|$how" '{ print } $1 ~ /^[0-9]+$/ { row = head "|" $1 "|" $4 }
        /^#   / { print row "|" (/no collective/ ? "sends" : "collective") }' "$work/collective"
    done
  done
  [ -n "$made" ] || [ "$status" != 0 ] || return 3
  return "$status"
}

# Runs a tool. One that this machine does not let work (a virtual machine's runtime, counters for root) is lacking.
run_tool() { # TOOL ARGUMENT...
  local status=0
  "$@" 2>&1 | tee "$work/tool" || status=$?
  local refused='ERR_NVGPUCTRPERM|LibraryNotLoaded|Device not supported'
  if grep -qE "$refused" "$work/tool"; then
    echo "${1##*/} may not see into the GPU here: $(grep -m1 -oE "$refused" "$work/tool")"
    return 77
  fi
  return "$status"
}
