# Sourced by gpu.sh: the directory of results and its files, 7 at most.
#   steps.txt       a line a step, as it ends
#   log.txt         what the steps print, as they print it
#   measured.jsonl  by step, what the programs measured, a line each
#   report.md       goals, figures and steps, written anew after each group of steps
#   throughput.svg  drawn with it
#   kernels.ncu-rep Nsight Compute's report, where it is there
# A file is written under the name `new`, then renamed: what was there before is not lost by a kill.

report_begin() { # makes a new directory for the run
  local base n=1
  gpu=$(timeout -k 1 5 nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null </dev/null | head -1)
  base=$(tr -cs '[:alnum:]\n' '-' <<<"${gpu:-gpu}" | tr '[:upper:]' '[:lower:]' | sed 's/-*$//')
  base=$results/$(date +%Y-%m-%d)-$base${quick:+-quick}
  out=$base
  while ! mkdir -p "$results" || ! mkdir "$out" 2>/dev/null; do
    n=$((n + 1)) out=$base-$n
    [ "$n" -lt 1000 ] || { printf 'run: gpu: cannot make %s\n' "$base" >&2; return 1; }
  done
  : >"$out/log.txt" && : >"$out/measured.jsonl"
}

# Prints driver, clocks and ECC as they are, in a line.
describe_gpu() {
  local line fields=driver_version,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,power.limit
  line=$(timeout -k 1 5 nvidia-smi --query-gpu="$fields,ecc.mode.current,temperature.gpu" --format=csv,noheader \
    2>/dev/null </dev/null | head -1)
  [ -n "$line" ] || { echo 'driver, clocks and ECC: no nvidia-smi tells'; return; }
  awk -F', ' '{ printf "driver %s, SM %s of %s, memory %s of %s, ", $1, $2, $3, $4, $5
    printf "limit %s, ECC %s, %s C\n", $6, $7, $8 }' <<<"$line"
}

# A line "NAME|BYTES|US|KEY=NUMBER ..." for each row that reshard_micro, or the comparison with PyTorch, has printed.
rows_of() { # STEP
  [ -s "$work/$1.txt" ] || return 0
  awk '/ us .* ?bytes=[0-9]/ {
      name = us = bytes = more = ""
      for (i = 1; i <= NF; i++)
        if (us == "" && $(i + 1) == "us") us = $i
        else if (us == "") name = name (i > 1 ? " " : "") $i
        else if ($i ~ /^bytes=/) bytes = substr($i, 7)
        else if (bytes != "") more = more (more != "" ? " " : "") $i
      sub("(/iterations:1)?/manual_time$", "", name)
      print name "|" bytes "|" us "|" more
    }' "$work/$1.txt"
}

figure_of() { # STEP ROW, which is a name and a key: prints the figure; of several the last
  [ -s "$work/$1.txt" ] || return 0
  if [ "$2" = beyond ]; then
    [ ! -s "$work/$1.json" ] ||
      awk -F'"blocking_(host|group)_us": *' 'NF == 3 { printf "%.2f\n", $3 - $2 }' "$work/$1.json"
  elif [ "$2" = ratio ]; then
    awk '$1 ~ /^[0-9]+$/ && NF >= 9 && $8 > 0 && $9 == 0 { x = sprintf("%.3f", 1 / $8) } END { if (x != "") print x }' \
      "$work/$1.txt"
  else
    rows_of "$1" | awk -F'|' -v row="$2" 'BEGIN { key = row; sub(/.* /, "", key); sub(/ [^ ]*$/, "", row) }
      $1 == row { n = split("us=" $3 " " $4, f, " ")
        for (i = 1; i <= n; i++) if (index(f[i], key "=") == 1) x = substr(f[i], length(key) + 2)
      } END { if (x != "") print x }'
  fi
}

report_goals() { # a line a goal, with the figure that there is now
  local name op limit from row figure verdict
  printf '| goal | measured | wanted | |\n| --- | ---: | ---: | --- |\n'
  while IFS='|' read -r name op limit from row; do
    [[ $name != \#* ]] || continue
    figure=$(figure_of "$from" "$row") verdict='not measured'
    if [ -n "$figure" ]; then
      verdict=$(awk -v x="$figure" -v g="$limit" -v op="$op" \
        'BEGIN { print (op == "<=" ? x <= g : x >= g) ? "met" : "short" }')
    fi
    printf '| %s | %s | %s %s | %s |\n' "$name" "${figure:--}" "$op" "$limit" "$verdict"
  done <profiles/gpu_goals
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
    "execute, a caller's communicator that blocks" "$(us blocking_host_us)" \
    "bare round, in turn with it" "$(us blocking_group_us)" \
    "the same from a graph" "$(us blocking_group_graph_us)"
}

report_rows() { # STEP TITLE OTHER KEY: the other's name, and the keys of its time and of the figure beside it
  local rows
  rows=$(rows_of "$1")
  [ -n "$rows" ] || return 0
  printf '\n## %s\n\n| case | bytes | us | %s, us | %s | more |\n' "$2" "$3" "$5"
  printf '| --- | ---: | ---: | ---: | ---: | --- |\n'
  awk -F'|' -v time="$4" -v figure="${5// /_}" '{
      other = ratio = more = ""
      n = split($4, f, " ")
      for (i = 1; i <= n; i++) {
        key = value = f[i]
        sub(/=.*/, "", key)
        sub(/.*=/, "", value)
        if (key == time) other = value
        else if (key == figure) ratio = value
        else if (key != "of_memcpy") {
          unit = sub(/_us$/, "", key) ? " us" : ""
          gsub(/_/, " ", key)
          more = more (more != "" ? ", " : "") key " " value unit
        }
      }
      printf "| %s | %s | %s | %s | %s | %s |\n", $1, $2, $3, other, ratio, more
    }' <<<"$rows"
  sed -nE -e 's/^(.*): ENDED THE PROGRAM.*/| \1 | - | - | - | - | ended the program |/p' \
    -e "s/^([^ ]*)\/iterations.* ERROR OCCURRED: '(.*)'/| \1 | - | - | - | - | \2 |/p" "$work/$1.txt"
}

report_policy() { # of the step tiles
  grep -qs '^best: ' "$work/tiles.txt" || return 0
  printf '\n## Settings\n\nTimes as multiples of memcpy'"'"'s, by bytes of a tile and the bulk kernel.\n\n'
  sed -nE -e 's/^tiles of (.*), the bulk kernel (.*)$/=\1, \2/p' \
    -e 's/^(gpu_[^ ]*)\/iterations.* x_memcpy=([0-9.]+).*/\1|\2/p' \
    "$work/tiles.txt" | awk -F'|' '/^=/ { how = substr($0, 2); if (!seen[how]++) hows[++n] = how; next }
      !($1 in known) { known[$1] = 1; copies[++m] = $1 }
      { x[how, $1] = $2 }
      END {
        head = "| tiles, bulk kernel |"
        for (k = 1; k <= m; k++) {
          head = head " " substr(copies[k], 10) " |"
          rule = rule " ---: |"
        }
        print head "\n| --- |" rule
        for (i = 1; i <= n; i++) {
          line = "| " hows[i] " |"
          for (k = 1; k <= m; k++) line = line " " ((hows[i], copies[k]) in x ? x[hows[i], copies[k]] : "-") " |"
          print line
        }
      }'
  printf '\n%s\n' "$(grep '^best: ' "$work/tiles.txt")"
}

report_kernels() { # ncu's figures
  local memcpy sms
  grep -qs '^"ID",' "$work/ncu.txt" || return 0
  # GB/s that memcpy reads and writes together, of the largest case
  memcpy=$(sed -nE 's/^gpu_copy_boxes\/8\/.* bytes=([0-9]+) memcpy_us=([0-9.]+) .*/\1 \2/p' "$work/bench.txt" \
    2>/dev/null | awk 'NR == 1 { printf "%.0f", 2 * $1 / $2 / 1e3 }')
  sms=$(sed -nE 's/.*"multiprocessors": *([0-9]+).*/\1/p' "$work/info.json" 2>/dev/null | head -1)
  printf '\n## Kernels\n\n%s\n%s\n\n' \
    'Bytes in flight are those that keep up the rate at 0.7 us from load to use, by the law of Little. DRAM bounds a' \
    'kernel at 75 % of its peak or more, else instructions from 60 % of theirs on, else latency.'
  printf '| kernel | blocks | us | GB/s of DRAM | of memcpy | %% of its peak | KiB in flight an SM | bound by '
  printf '| %% of warps | registers |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: |\n'
  awk -v memcpy="${memcpy:-0}" -v sms="${sms:-0}" -f profiles/ncu.awk "$work/ncu.txt"
}

report_text() {
  local s name state seconds what
  cat <<TEXT
# $(date +%Y-%m-%d), ${gpu:-no GPU known yet}

Command: \`./run gpu${arguments:+ $arguments}\`, commit $commit, $SECONDS s$([ -n "$ended" ] || echo ' so far')$built.
$machine. ${clocks^}.
$(sed -n 's/^start: //p' "$work/first.txt" "$work/start.txt" "$work/start-again.txt" 2>/dev/null | paste -sd';' |
    sed 's/;/, then /g; s/.*/start of a process: &, the last with the GPU held open./')

Times are of the device, medians, each with nothing of its data in the caches: four times the L2 cache is written
before, and where the buffers of a case are smaller than that together, the time is the mean of work on as many sets of
buffers, at most 16, one after the other. memcpy is the GPU's own copy of as many bytes, in turns with ours and in the
same way. Times of several processes on one GPU are those of its time slices.

$(report_goals)

![throughput over size](throughput.svg)
TEXT
  report_rows bench Copies memcpy memcpy_us 'x memcpy'
  report_rows torch PyTorch ours ours_us 'x pytorch'
  report_collectives
  report_rounds
  report_policy
  report_kernels
  printf '\n## Steps\n\n%s\n\n| step | state | seconds | |\n| --- | --- | ---: | --- |\n' \
    "$failures of ${#steps[@]} failed or were not done, $left_out were left out."
  for s in "${steps[@]}"; do
    IFS='|' read -r name state seconds what <<<"$s"
    printf '| %s | %s | %s | %s |\n' "$name" "$state" "$seconds" "${what//|/;}"
  done
}

report() { # writes what is known now
  local sweeps=()
  mapfile -t sweeps < <(compgen -G "$work/sweep-*.txt")
  report_text >"$out/new" && mv "$out/new" "$out/report.md"
  awk -v title="${gpu:-GPU}, reshard $commit, $(date +%Y-%m-%d)" -f profiles/plot.awk "${sweeps[@]:-/dev/null}" \
    >"$out/new" && mv "$out/new" "$out/throughput.svg"
}

# --- Pages that read from results -------------------------------------------------------------------------------------
page_text() { # REPORT LINK line|table: of a run
  local goals
  [ -n "$1" ] || { echo 'No figure of a GPU is here yet.'; return; }
  goals=$(grep -E '\| [<>]= [0-9.]+ \| [a-z ]+ \|$' "$1")
  printf '[%s](%s):\n%d of %d goals are met, %d are missed, %d are not measured.\n' \
    "$(sed -n '1s/^# //p' "$1")" "$2" "$(grep -c '| met |$' <<<"$goals")" "$(wc -l <<<"$goals")" \
    "$(grep -c '| short |$' <<<"$goals")" "$(grep -c '| not measured |$' <<<"$goals")"
  [ "$3" = table ] || return 0
  printf '\n| goal | measured | wanted | |\n| --- | ---: | ---: | --- |\n%s\n' "$goals"
}
write_pages() { # README and figures.md, between <!-- gpu --> and <!-- /gpu -->
  local newest page text
  newest=$(compgen -G 'profiles/results/[0-9]*/report.md' | grep -vE -- '-quick(-[0-9]+)?/' | sed 's|/report.md$||' |
    sort -V | tail -1)
  newest=${newest:+$newest/report.md}
  for page in README.md profiles/figures.md; do
    case $page in
    README.md) text=$(page_text "$newest" "$newest" line) ;;
    *) text=$(page_text "$newest" "${newest#profiles/}" table) ;;
    esac
    grep -qx '<!-- /gpu -->' "$page" || { echo "run: gpu: $page has no place for it" >&2; return 1; }
    text=$text awk '/^<!-- \/gpu -->$/ { inside = 0 } !inside { print }
      /^<!-- gpu -->$/ { inside = 1; print ENVIRON["text"] }' "$page" >"$page.new" && mv "$page.new" "$page" || return
  done
}
