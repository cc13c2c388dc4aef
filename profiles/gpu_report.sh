# Sourced by gpu.sh: the directory of results, at most 8 files: README.md, summary.json (goals and steps), bench.json
# (the programs' measurements), steps.txt (the steps' output), two plots, and Nsight's reports where its tools are.

report_begin() { # makes a new directory for the run
  local base n=1
  base=$(tr -cs '[:alnum:]\n' '-' <<<"$gpu" | tr '[:upper:]' '[:lower:]' | sed 's/-*$//')
  base=$results/$(date +%Y-%m-%d)-$base${quick:+-quick}
  out=$base
  while [ -e "$out" ]; do
    n=$((n + 1))
    out=$base-$n
  done
  mkdir -p "$out"
  commit=${RESHARD_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || true)}
  [ -z "$commit" ] || [ -n "${RESHARD_COMMIT:-}" ] || git diff --quiet HEAD -- 2>/dev/null || commit+=' with changes'
  commit=${commit:-unknown}
}

print_table() {
  local g name figure op limit verdict
  printf '| %-66s | %9s | %8s | %-12s |\n' goal measured wanted "" --- --- --- ---
  for g in "${goals[@]}"; do
    IFS='|' read -r name figure op limit verdict <<<"$g"
    printf '| %-66s | %9s | %8s | %-12s |\n' "$name" "$figure" "$op $limit" "$verdict"
  done
}

report_collectives() {
  grep -qs '^collective|' "$work/collectives.txt" || return 0
  printf '\n## Collectives\n\n%s\n\n' \
    'us for a reshard over the GPUs, by what `--collective` said; auto took what the last column says.'
  printf '| pattern | bytes | auto | force | forbid | auto took |\n| --- | ---: | ---: | ---: | ---: | --- |\n'
  awk -F'|' '/^collective\|/ {
      key = $2 " | " $4
      if (!(key in known)) { known[key] = 1; order[++n] = key }
      us[key, $3] = $5
      if ($3 == "auto") took[key] = $6
    }
    function cell(k, how) { return (k, how) in us ? us[k, how] : "-" }
    function line(k) {
      printf "| %s | %s | %s | %s | %s |\n", k, cell(k, "auto"), cell(k, "force"), cell(k, "forbid"), took[k]
    }
    END { for (i = 1; i <= n; i++) line(order[i]) }' "$work/collectives.txt"
}

report_rounds() { # of the step nccl-host
  local file=$work/nccl-host.json
  grep -qs '"group_us"' "$file" || return 0
  us() { sed -nE "s/.*\"$1\": *([0-9.e+-]+).*/\1/p" "$file" | head -1; }
  printf '\n## Rounds over NCCL\n\n%s\n\n' 'us of the host, 2 processes on one GPU, median, the slower rank.'
  printf '| what | us |\n| --- | ---: |\n'
  printf '| %s | %s |\n' 'execute, own communicator' "$(us host_us)" \
    "bare round, own communicator (does not block)" "$(us group_us)" \
    "the same from a graph" "$(us group_graph_us)" \
    "bare round, a caller's that blocks" "$(us blocking_group_us)" \
    "the same from a graph" "$(us blocking_group_graph_us)"
}

report_policy() { # of the step tiles
  grep -qs '^best: ' "$work/tiles.txt" || return 0
  printf '\n## Settings\n\nTimes as multiples of memcpy'"'"'s, by bytes of a tile and the bulk copy engine.\n\n'
  printf '| copy | tiles, engine | x memcpy |\n| --- | --- | ---: |\n'
  sed -nE -e 's/^tiles of (.*), the bulk copy engine (.*)$/=\1, \2/p' \
    -e 's/^(rows of .*[^ ]) +[0-9]+ B +[0-9.]+ us +([0-9.]+) x memcpy.*/\1|\2/p' \
    "$work/tiles.txt" | awk -F'|' '/^=/ { how = substr($0, 2); next }
      { printf "| %s | %s | %s |\n", $1, how, $2 }'
  printf '\n%s\n' "$(grep '^best: ' "$work/tiles.txt")"
}

report_kernels() { # ncu's figures
  local file what memcpy sms
  # GB/s that memcpy reads and writes together, of the largest case
  memcpy=$(sed -nE 's/^8 large boxes +([0-9]+) B .*; memcpy ([0-9.]+) us.*/\1 \2/p' "$work/bench.txt" 2>/dev/null |
    awk 'NR == 1 { printf "%.0f", 2 * $1 / $2 / 1e3 }')
  sms=$(sed -nE 's/.*"multiprocessors": *([0-9]+).*/\1/p' "$work/info.json" 2>/dev/null | head -1)
  compgen -G "$work/ncu-*.txt" >/dev/null || return 0
  printf '\n## Kernels\n\n%s\n\n' 'Bytes in flight are those that keep up the rate
at 0.7 us from load to use, by the law of Little. DRAM bounds a kernel at 75 % of its peak or more, else instructions
from 60 % of theirs on, else latency.'
  printf '| case | kernel | launches | us | GB/s of DRAM | of memcpy | %% of its peak | KiB in flight an SM | bound by '
  printf '| %% of warps | registers |\n'
  printf '| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: |\n'
  for file in "$work"/ncu-*.txt; do
    [ "${file##*/}" != ncu-report.txt ] || continue
    what=${file##*/ncu-} what=${what%.txt}
    awk -v what="${what//-/ }" -v memcpy="${memcpy:-0}" -v sms="${sms:-0}" -f profiles/ncu.awk "$file"
  done
}

report_readme() {
  local s name state seconds what device clocks
  device="$(sed -n 's/^CUDA */CUDA: /p' "$work/info.txt"), $(sed -n 's/^cuda:0 *//p' "$work/info.txt")"
  device+=". $(sed -n 's/^communicators */Communicators: /p' "$work/info.txt")"
  clocks=$(nvidia-smi --query-gpu=clocks.max.sm,clocks.max.mem,power.limit,ecc.mode.current --format=csv,noheader \
    2>/dev/null | head -1 | sed 's/.*/Clocks, power, ECC: &./')
  cat <<TEXT
# $(date +%Y-%m-%d), $gpu

Command: \`./run gpu${quick:+ --quick}\`, commit $commit, $SECONDS s.
$device. $clocks

Times are of the device, medians, each with nothing of its data in the caches: four times the L2 cache is written
before, and where the buffers of a case are smaller than that together, the time is the mean of work on as many sets of
buffers, at most 16, one after the other. memcpy is the GPU's own copy of as many bytes, in turns with ours and in the
same way. Cases whose names say no size have $bytes bytes.

$(print_table)

![measured against the goals](goals.svg)
![throughput over size](throughput.svg)
TEXT
  report_collectives
  report_rounds
  report_policy
  report_kernels
  printf '\n## Steps\n\n| step | state | seconds | |\n| --- | --- | ---: | --- |\n'
  for s in "${steps[@]}"; do
    IFS='|' read -r name state seconds what <<<"$s"
    printf '| %s | %s | %s | %s |\n' "$name" "$state" "$seconds" "$what"
  done
}

quoted() { sed 's/["\\]/\\&/g; s/[[:cntrl:]]/ /g; s/.*/"&"/' <<<"$1"; }

report_summary() {
  local g s comma='' name figure op limit verdict state seconds what
  printf '{"version": 1, "gpu": %s, "commit": %s, "seconds": %d, "goals": [' \
    "$(quoted "$gpu")" "$(quoted "$commit")" "$SECONDS"
  for g in "${goals[@]}"; do
    IFS='|' read -r name figure op limit verdict <<<"$g"
    [ "$figure" != - ] || figure=null
    printf '%s\n{"name": %s, "figure": %s, "wanted": "%s", "verdict": "%s"}' \
      "$comma" "$(quoted "$name")" "$figure" "$op $limit" "$verdict"
    comma=,
  done
  printf '],\n"steps": ['
  comma=
  for s in "${steps[@]}"; do
    IFS='|' read -r name state seconds what <<<"$s"
    printf '%s\n{"name": "%s", "state": "%s", "seconds": %d, "what": %s}' \
      "$comma" "$name" "$state" "$seconds" "$(quoted "$what")"
    comma=,
  done
  printf ']}\n'
}

report_measured() { # {"direct-4": its JSON, ...}
  local file comma=''
  printf '{'
  for file in "$work"/*.json; do
    [ ! -s "$file" ] || { printf '%s"%s":\n' "$comma" "$(basename "$file" .json)"; cat "$file"; comma=,; }
  done
  printf '}\n'
}

report_steps() {
  local s name state seconds what
  cat "$work/info.txt"
  for s in "${steps[@]}"; do
    IFS='|' read -r name state seconds what <<<"$s"
    printf '\n==> %s: %s, %s s\n' "$name" "$state" "$seconds"
    [ ! -e "$work/$name.txt" ] || grep -vE '^\[[0-9]+/[0-9]+\] Building' "$work/$name.txt" | head -2000
  done
}

# Writes all files; called again after more steps.
report() {
  printf '%s\n' "${goals[@]}" >"$work/goals"
  local title="$gpu, reshard $commit, $(date +%Y-%m-%d)" sweeps=()
  mapfile -t sweeps < <(compgen -G "$work/sweep-*.txt")
  awk -v kind=goals -v title="$title" -f profiles/plot.awk "$work/goals" >"$out/goals.svg"
  awk -v kind=throughput -v title="$title" -f profiles/plot.awk "${sweeps[@]:-/dev/null}" >"$out/throughput.svg"
  report_readme >"$out/README.md"
  report_summary >"$out/summary.json"
  report_measured >"$out/bench.json"
  report_steps >"$out/steps.txt"
}
