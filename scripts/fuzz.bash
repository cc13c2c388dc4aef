# ./run fuzz: all targets, as many at a time as there are cores, and the table of all runs so far. Sourced.

fuzz_targets() { find "$build/fuzz/tests" -maxdepth 1 -type f -name 'fuzz_*' -perm -u+x 2>/dev/null | sort; }

fuzz_hours=2 # of a processor, that each reader and each socket has had
# Names of targets that have had less by the table of all runs so far.
fuzz_lacking() {
  fuzz_targets | sed 's|.*/fuzz_||' | awk -v least="$fuzz_hours" '
    FILENAME ~ /[.]md$/ { if (split($0, cell, / *[|] */) == 7) had[cell[2]] = cell[3]; next }
    had[$1] < least' "$root/profiles/results/fuzz.md" -
}

fuzz_one() { # TARGET SECONDS: with the corpus of the tree, new inputs to the build directory
  local name=${1##*/fuzz_} out=$build/fuzz LC_ALL=C TIMEFORMAT='%U %S' status=0 memory=/dev/shm
  [ -w $memory ] || memory=/tmp
  mkdir -p "$out/corpus/$name" "$out/crashes"
  { time TMPDIR=${TMPDIR:-$memory} "$1" -max_total_time="$2" -timeout=60 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
    -max_len=4096 -print_final_stats=1 -artifact_prefix="$out/crashes/$name-" "$out/corpus/$name" \
    "$root/tests/fuzz/corpus/$name" </dev/null >"$log/fuzz-$name.log" 2>&1; } 2>"$log/fuzz-$name.times" || status=$?
  return "$status"
}

# True when a run has found an input to crash at, which libFuzzer writes down: else something else has ended it.
fuzz_crashed() { grep -qE 'Test unit written to .*(crash|leak|timeout|oom)-[0-9a-f]+$' "$log/fuzz-$1.log"; } # NAME

fuzz_runs=() # NAME SECONDS-OF-A-PROCESSOR INPUTS CRASHES of each run of fuzz_all
fuzz_all() { # SECONDS-OF-THE-CLOCK [NAME]...: as many at a time as there are cores, each counted
  local seconds=$1 only=" ${*:2} " target name status crashes inputs seconds_used running=() names=()
  fuzz_runs=()
  finish() { # waits for the oldest
    status=0 crashes=0
    wait "${running[0]}" || status=$?
    name=${names[0]} running=("${running[@]:1}") names=("${names[@]:1}")
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log/fuzz-$name.log")
    count "$status" "fuzz: $name"
    # the last line: bash tells there first of a target that a signal has ended
    seconds_used=$(awk '{ sum = $1 + $2 } END { print sum + 0 }' "$log/fuzz-$name.times")
    [ "$status" = 0 ] || ! fuzz_crashed "$name" || crashes=1
    fuzz_runs+=("$name $seconds_used ${inputs:-0} $crashes")
    if [ "$status" = 0 ]; then
      say "fuzz $name: $inputs inputs, nothing found"
    else
      say "fuzz $name FAILED:"
      grep -vE '^#[0-9]+' "$log/fuzz-$name.log" | tail -40 || true # it may have said nothing
    fi
  }
  for target in $(fuzz_targets); do
    [ $# = 1 ] || [[ $only == *" ${target##*/fuzz_} "* ]] || continue
    mkdir -p "$root/tests/fuzz/corpus/${target##*/fuzz_}"
    [ ${#running[@]} -lt "$cores" ] || finish
    fuzz_one "$target" "$seconds" &
    running+=($!) names+=("${target##*/fuzz_}")
  done
  while [ ${#running[@]} -gt 0 ]; do finish; done
}

# Adds the runs of fuzz_all to the table of all runs so far. Others may do so at the same time. A list behind the table,
# of what the crashes were, stays as it is.
fuzz_ledger() {
  local table=$root/profiles/results/fuzz.md lock
  touch "$table"
  exec {lock}>"$log/fuzz.lock"
  flock "$lock"
  printf '%s\n' "${fuzz_runs[@]}" | awk -v today="$(date +%F)" '
    function add(name, hours, inputs, crashes, date) {
      total[name] += hours; units[name] += inputs; found[name] += crashes; last[name] = date
    }
    FILENAME ~ /[.]md$/ {
      if (split($0, cell, / *[|] */) == 7 && cell[3] ~ /^[0-9.]+$/) add(cell[2], cell[3], cell[4], cell[5], cell[6])
      if (/^The crashes:/ || notes != "") notes = notes $0 "\n"
      next
    }
    NF == 4 { add($1, $2 / 3600, $3, $4, today) }
    END {
      print "# Fuzzing so far\n"
      print "`./run fuzz SECONDS` and `./run soak` add their runs. Inputs that reach new code are kept in"
      print "build/fuzz/corpus, and the next run begins with them; those in tests/fuzz/corpus are replayed by every"
      print "build. A crash is an input that a sanitizer stops at, that takes more than 60 s or 2 GiB. A run that"
      print "something else has ended counts by its inputs alone.\n"
      print "Hours are those of a processor, in the fuzzer and the system: other work on the machine does not count."
      print "Of the first runs only the clock was read: their inputs and crashes count here, and no hours.\n"
      print "| target | processor hours | inputs | crashes | last run |\n| --- | ---: | ---: | ---: | --- |"
      fflush()
      for (name in total)
        printf "| %s | %.4f | %.0f | %d | %s |\n", name, total[name], units[name], found[name], last[name] | "sort"
      close("sort")
      if (notes != "") printf "\n%s", notes
    }' "$table" - >"$table.tmp" && mv "$table.tmp" "$table"
  exec {lock}>&-
}

run_fuzz() { # SECONDS [NAME]
  [ -z "${2:-}" ] || [ -e "$root/tests/fuzz/fuzz_$2.c" ] || die "fuzz: there is no target '$2'"
  [[ $1 =~ ^[1-9][0-9]*$ ]] || die "fuzz: '$1' is no number of seconds"
  need "${fuzz_packages[@]}"
  build_or_die fuzz all
  say "fuzzing ${2:-each target} for $1 s"
  fuzz_all "$@"
  fuzz_ledger
  report
}
