# Sourced by gpu.sh: steps under limits of time, whose output and states are on the disk as they come.
#
# A step is a session of its own, and its processes have the run's mark in their environment. Whatever still has the
# mark when the step ends is killed. So it is, by a process that watches over this one, when the run itself is killed.

say() { # a line, on the disk at once
  local line
  printf -v line '[%4ds] %s' "$SECONDS" "$*"
  printf '%s\n' "$line"
  [ -z "${out:-}" ] || printf '%s\n' "$line" >>"$out/steps.txt"
}
lacking() {
  printf 'run: gpu: %s\n' "$*" >&2
  [ -z "${out:-}" ] || say "$*" >/dev/null
  exit 3
}

# --- Processes --------------------------------------------------------------------------------------------------------
marked() { grep -lsaF "RESHARD_GPU_RUN=$1" /proc/[0-9]*/environ | tr -dc '0-9\n'; } # MARK: their numbers
end_marked() { # MARK: kills all that have it, and the step's group; false where one is still there after 3 s
  local i left group
  read -r group 2>/dev/null <"$work/group" && kill -KILL -- "-$group" 2>/dev/null # where environments cannot be read
  for ((i = 0; i < 30; i++)); do
    left=$(marked "$1")
    [ -n "$left" ] || return 0
    # shellcheck disable=SC2086 # numbers
    kill -KILL $left 2>/dev/null
    sleep 0.1
  done
  return 1
}

watch_over() { # PARENT MARK DIRECTORY: ends what runs, and removes the directory, when the parent is there no more
  local parent rest work=$3
  while IFS=' ' read -r _ _ _ parent rest </proc/self/stat && [ "$parent" = "$1" ]; do sleep 0.1; done
  end_marked "$2"
  rm -rf "$3"
}

steps_begin() { # makes the mark, and the process that watches
  mark=gpu-$$-$RANDOM$RANDOM
  export -f watch_over end_marked marked
  setsid bash -c 'watch_over "$@"' watch $$ "$mark" "$work" </dev/null >/dev/null 2>&1 &
  watcher=$!
}
steps_end() {
  end_marked "$mark"
  kill -- "-$watcher" 2>/dev/null # with what it sleeps by
  wait "$watcher" 2>/dev/null
  rm -rf "$work"
}
interrupted() { # writes the report of the steps so far
  end_marked "$mark"
  [ -z "${out:-}" ] || { say 'ended from outside'; report; }
  exit 143
}

beside() { # NAME COMMAND...: runs on beside the steps, and ends with the run
  RESHARD_GPU_RUN=$mark-beside "${@:2}" >"$work/$1.txt" 2>&1 </dev/null &
  disown
}

# --- Steps ------------------------------------------------------------------------------------------------------------
most_logged=$((1 << 20)) # bytes of a step's output
steps=() known=() failures=0 left_out=0
note() { # NAME STATE SECONDS WHAT
  local what=${4//"$root/"/}
  steps+=("$1|$2|$3|$what")
  say "$1: $2${3:+, $3 s}${what:+ - $what}"
}

wanted() { # NAME: by --only and --skip
  local pattern
  for pattern in ${skip//,/ }; do
    # shellcheck disable=SC2053 # patterns
    [[ $1 != $pattern ]] || return 1
  done
  [ -n "$only" ] || return 0
  for pattern in ${only//,/ }; do
    # shellcheck disable=SC2053
    [[ $1 != $pattern ]] || return 0
  done
  return 1
}

leave_out() { # NAME WHY
  left_out=$((left_out + 1))
  note "$1" 'left out' '' "$2"
}

log_share() { # appends what comes to the log, up to a step's share, as it comes
  stdbuf -o0 head -c "$most_logged" >>"$out/log.txt"
  [ "$(head -c 1 | wc -c)" = 0 ] || printf '\n[more than 1 MiB: the rest is left out]\n' >>"$out/log.txt"
  cat >/dev/null
}

# Runs a step; its output is in log.txt as it comes, and then in $work/NAME.txt. It has so many seconds, or what is
# left; with less than a third of them left it does not begin.
step() { # NAME SECONDS WHAT COMMAND...
  local name=$1 limit=$(($2 * ${RESHARD_GPU_TINY:-1})) what=$3 status=0 before began=$SECONDS left last failed logger
  shift 3
  known+=("$name|$limit|$what")
  [ -z "$listing" ] || return 1
  [ -z "$only" ] || wanted "$name" || return 1
  wanted "$name" || { leave_out "$name" 'as asked for'; return 1; }
  left=$((total - SECONDS))
  [ $((left * 3)) -ge "$limit" ] && [ "$left" -ge 1 ] || total=$SECONDS # nor do later ones
  [ "$SECONDS" -lt "$total" ] || { leave_out "$name" "no time is left of $given s"; return 1; }
  [ "$left" -gt "$limit" ] || limit=$left
  printf '\n==> %s: %s\n' "$name" "$(printf '%q ' "$@" | cut -c1-600)" >>"$out/log.txt"
  before=$(stat -c %s "$out/log.txt")
  rm -f "$work/pipe"
  mkfifo "$work/pipe"
  log_share <"$work/pipe" &
  logger=$!
  # A second of the limit is for what a program does when it is asked to end.
  RESHARD_GPU_RUN=$mark-step setsid timeout -k 1 "$((limit > 2 ? limit - 1 : limit))" "$@" >"$work/pipe" 2>&1 \
    </dev/null &
  echo $! >"$work/group"
  wait $! 2>/dev/null || status=$?
  end_marked "$mark-step" || what+=" (a process of it does not end)"
  rm -f "$work/group"
  wait "$logger" 2>/dev/null
  tail -c +$((before + 1)) "$out/log.txt" >"$work/$name.txt"
  last=$(grep -avE '^$|^> ' "$work/$name.txt" | tail -1 | tr -d '\000' | cut -c1-200)
  case $status in
  0)
    last=$(grep -aom1 -E '[0-9]+ (cases?|passed)' "$work/$name.txt")
    note "$name" passed $((SECONDS - began)) "$what${last:+: $last}"
    return 0
    ;;
  3 | 77) note "$name" lacking $((SECONDS - began)) "$last"; return 1 ;;
  124 | 137) note "$name" 'not done' $((SECONDS - began)) "did not end within $limit s${last:+: $last}" ;;
  *)
    failed=$(grep -am1 -E 'ENDED THE PROGRAM|ERROR OCCURRED|wrong data|[Ee]rror:' "$work/$name.txt" | cut -c1-200)
    note "$name" FAILED $((SECONDS - began)) "exit status $status: ${failed:-$last}"
    ;;
  esac
  failures=$((failures + 1))
  return 1
}

measured() { # NAME: appends the JSON of a step, which is then one line of measured.jsonl
  [ ! -s "$work/$1.json" ] || printf '{"step": "%s", "measured": %s}\n' "$1" "$(tr -d '\n' <"$work/$1.json")" \
    >>"$out/measured.jsonl"
}

# --- Functions that steps run, by bash -c -----------------------------------------------------------------------------
# Rows of reshard_micro, also where one ends it or hangs: it goes on behind that one. A row has so many seconds.
measure_rows() { # FILTER SECONDS JSON
  local text names=() status failed=0 begun
  text=$(mktemp "$work/rows.XXXXXX")
  mapfile -t names < <("$micro" --benchmark_list_tests --benchmark_filter="$1" 2>/dev/null)
  [ ${#names[@]} -gt 0 ] || return 3
  while [ ${#names[@]} -gt 0 ]; do
    status=0
    RESHARD_MICRO_SECONDS=$2 "$micro" --benchmark_filter="^($(IFS='|' && echo "${names[*]}"))\$" \
      --benchmark_out="$3.new" 2>&1 | tee "$text" || status=${PIPESTATUS[0]}
    [ "$status" = 0 ] || failed=1
    begun=$(grep -c '^gpu_' "$text")
    [ "$begun" != ${#names[@]} ] || mv "$3.new" "$3" # it is whole
    names=("${names[@]:begun}")
    [ ${#names[@]} -gt 0 ] || break
    echo "${names[0]%%/iterations*}: ENDED THE PROGRAM, status $status"
    names=("${names[@]:1}")
  done
  return "$failed"
}

# Measures how copies are best cut on this GPU: bytes of a tile and the bulk kernel or not, with these a thread's
# loads, and for tiny rows the leap from which on tiles follow the source. What is faster by 1 % is better. The last
# line says what to set.
measure_tiles() { # JSON TILE...: the beginning of the names of files, and bytes of tiles
  local json=$1 never=9223372036854775807 best='' least='' first='' fastest tile bulk loads leap
  local rows='^gpu_copy_(runs/(16384|4096|256)|shifted/4096)/'
  try() { # FILTER TILE BULK_FROM LEAP LOADS
    local tile='by size' bulk=never mean
    [ "$2" = 0 ] || tile="$(($2 / 1024)) KiB"
    [ "$3" != 1 ] || bulk='wherever it can'
    [ "$4" = 0 ] || bulk+=", leap $4"
    [ "$5" = 0 ] || bulk+=", $5 loads"
    echo "tiles of $tile, the bulk kernel $bulk"
    RESHARD_CUDA_TILE=$2 RESHARD_CUDA_BULK_FROM=$3 RESHARD_CUDA_LEAP=$4 RESHARD_CUDA_LOADS=$5 "$micro" \
      --benchmark_filter="$1" --benchmark_out="$json-$2-$3-$4-$5.json" 2>&1 | tee "$work/tried" || return
    mean=$(sed -n 's/^gpu_.* x_memcpy=//p' "$work/tried" | awk '{ sum += log($1) } END { print sum / NR }')
    awk -v x="$mean" -v least="${least:-1e9}" 'BEGIN { exit !(x < least - 0.01) }' || return 0
    least=$mean best=${*:2}
  }
  for tile in "${@:2}"; do
    for bulk in 1 "$never"; do
      try "$rows" "$tile" "$bulk" 0 0 || return
      first=${first:-$least}
    done
  done
  read -r tile bulk _ <<<"$best"
  for loads in 2 8; do try "$rows" "$tile" "$bulk" 0 "$loads" || return; done
  loads=${best##* } fastest=$least least=''
  for leap in 0 32 128; do try '^gpu_copy_interleaved/' 0 1 "$leap" 0 || return; done
  read -r _ _ leap _ <<<"$best"
  printf 'best: RESHARD_CUDA_TILE=%s RESHARD_CUDA_BULK_FROM=%s RESHARD_CUDA_LEAP=%s RESHARD_CUDA_LOADS=%s, ' \
    "$tile" "$bulk" "$leap" "$loads"
  awk "BEGIN { printf \"%.3f x the speed of tiles by size with the bulk kernel\n\", exp($first - $fastest) }"
}

# Each process looks like a machine of its own to NCCL, which refuses several ranks of one machine on one GPU. Of
# RESHARD_NODES nodes, each has as many of them. When one fails, all are ended.
nccl_processes() { # N COMMAND...
  local n=$1 i pids=() status=0 port=$((20000 + RANDOM % 20000)) nodes=${RESHARD_NODES:-1}
  shift
  for ((i = 0; i < n; i++)); do
    CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0} RANK=$i LOCAL_RANK=$i WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 \
      MASTER_PORT=$port RESHARD_TIMEOUT_MS=30000 RESHARD_NODE=$((i * nodes / n)) NCCL_HOSTID=reshard-$i \
      NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0 \
      NCCL_MAX_CTAS=2 "$@" &
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
  local status=0 said refused='ERR_NVGPUCTRPERM|LibraryNotLoaded|Device not supported'
  said=$(mktemp "$work/tool.XXXXXX")
  "$@" 2>&1 | tee "$said" || status=${PIPESTATUS[0]}
  if grep -qE "$refused" "$said"; then
    echo "${1##*/} may not see into the GPU here: $(grep -m1 -oE "$refused" "$said")"
    return 77
  fi
  return "$status"
}

# Keeps the profiler's report, and prints its raw page.
profile_kernels() { # TOOL REPORT ARGUMENT...
  run_tool "$1" --force-overwrite --export "$2" "${@:3}" || return
  "$1" --import "$2" --page raw --csv --print-units base
}

# Processes on one GPU take turns of milliseconds; under a server of MPS, which is this step's alone, they run at one
# time. So a meeting is measured, on the GPU by executes from a graph and on the host by single ones, with and without
# it; and a reshard beside the copy.
measure_side_by_side() { # SIDE EXECUTES BENCH-COMMAND...
  local mps server side=$1 n=$2 alone both us ratio host host_alone status=0
  local processes=(--comm node --processes 2) json=$work/side.json
  shift 2
  mps=$(find_tool nvidia-cuda-mps-control)
  [ -n "$mps" ] || { echo 'no nvidia-cuda-mps-control'; return 77; }
  server=$(mktemp -d "$work/mps.XXXXXX")
  time_of() { # COMMAND...: us and ratio of its row
    "$@" 2>&1 | tee -a "$work/side.txt" | awk '$1 ~ /^[0-9]+$/ && NF >= 9 && $9 == 0 { print $4, $8; done = 1 }
      END { exit !done }'
  }
  host_of() { "$@" -C 1 -J "$json" >>"$work/side.txt" 2>&1 && sed -n 's/.*"host_us": *\([0-9.]*\).*/\1/p' "$json"; }
  read -r alone _ < <(time_of "$@" --ranks 2 --shape 64x64 -n 10 -m "$n" -G) || status=1
  host_alone=$(host_of "$@" --ranks 1 --shape 64x64 -n "$n") || status=1
  export CUDA_MPS_PIPE_DIRECTORY=$server CUDA_MPS_LOG_DIRECTORY=$server PATH=$PATH:${mps%/*}
  "$mps" -d || { echo "$mps -d: status $?"; return 77; }
  read -r both _ < <(time_of "$@" "${processes[@]}" --shape 64x64 -n 10 -m "$n" -G) || status=1
  host=$(host_of "$@" "${processes[@]}" --shape 64x64 -n "$n") || status=1
  read -r us ratio < <(time_of "$@" "${processes[@]}" --shape "${side}x$side" -n 10 -m 8) || status=1
  echo quit | timeout 5 "$mps" >/dev/null 2>&1
  cat "$work/side.txt"
  [ "$status" != 0 ] || awk -v both="$both" -v alone="$alone" -v host="$host" -v host_alone="$host_alone" \
    -v bytes=$((side * side * 4)) -v us="$us" -v ratio="$ratio" 'BEGIN {
      printf "meeting %.2f us bytes=16384 execute_us=%s alone_us=%s ", (both - alone) / 2, both, alone
      printf "host_us=%.2f execute_host_us=%s alone_host_us=%s\n", (host - host_alone) / 2, host, host_alone
      printf "reshard %s us bytes=%d x_memcpy=%.3f\n", us, bytes, 1 / ratio }'
  return "$status"
}

# Prints what nvidia-smi knows of clocks and why they are throttled, ECC, power and memory.
describe_gpu_state() {
  command -v nvidia-smi >/dev/null || { echo 'no nvidia-smi'; return 77; }
  nvidia-smi -q -d CLOCK,PERFORMANCE,ECC,POWER,MEMORY,TEMPERATURE,UTILIZATION
}

# The tests of the Python module on a GPU, with the module in that directory, or the interpreter's own.
check_module() { # DIRECTORY
  local said
  export PYTHONPATH=$1${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 RESHARD_TEST_GPU_SECONDS=100
  said=$("$python" -c 'import reshard' 2>&1) || { echo "no Python module: $(tail -1 <<<"$said")"; return 77; }
  "$python" tests/python/run.py tests/python/test_gpu.py
}

# The time that a program takes to start, look at the GPU and end.
time_start() { # PROGRAM
  local begin=${EPOCHREALTIME/./}
  "$1" info --json "$work/info.json" && printf 'start: %d ms\n' $(((${EPOCHREALTIME/./} - begin) / 1000))
}
