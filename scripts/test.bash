# ./run test: builds in the background, and the tests of those that are ready. Sourced.

# The builds follow one another, at lower priority. Kernels are compiled for one GPU, a third of the time that all take.
build_all() {
  local preset
  for preset in "$@"; do
    if make_build "$preset" all -DRESHARD_CUDA_H100=ON; then echo 0; else echo 1; fi >"$log/built-$preset.tmp"
    mv "$log/built-$preset.tmp" "$log/built-$preset"
  done
}

declare -A builder=() # of each preset: a process group, so that it can be ended as a whole
start_builds() { # NICENESS PRESET...
  local preset
  set -m
  (renice -n "$1" "$BASHPID" >/dev/null 2>&1 || true; build_all "${@:2}") &
  set +m
  for preset in "${@:2}"; do builder[$preset]=$!; done
}
stop_builds() {
  local group
  for group in "${builder[@]}"; do kill -- "-$group" 2>/dev/null || true; done
}

wait_build() { # PRESET: 0 when it is there
  local next=$((SECONDS + 15))
  while [ ! -e "$log/built-$1" ]; do
    if ! kill -0 "${builder[$1]}" 2>/dev/null && [ ! -e "$log/built-$1" ]; then
      say "$1: the builds were ended"
      return 1
    fi
    sleep 0.3
    if [ "$SECONDS" -ge "$next" ]; then
      next=$((SECONDS + 15))
      say "building $1 $(grep -oE '^\[[0-9]+/[0-9]+\]' "$log/build-$1.log" 2>/dev/null | tail -1 || true)"
    fi
  done
  if [ "$(cat "$log/built-$1")" != 0 ]; then
    build_failed "$1"
    return 1
  fi
  say "$1 is built"
}

# The command that runs a ThreadSanitizer program: with more randomisation of addresses than it knows it does not start.
fixed_addresses() {
  if setarch "$(uname -m)" -R true 2>/dev/null; then echo "setarch $(uname -m) -R"; fi
}

# A line a test as it ends, and the first lines of what a failed one said.
show_ctest() { # PRESET
  local line shown=0
  while IFS= read -r line; do
    if [[ $line =~ ^\ *([0-9]+/[0-9]+)\ Test\ +#[0-9]+:\ (.*) ]]; then
      [ "$shown" -le 50 ] || echo "          ... $((shown - 50)) lines more in $log/test-$1.log"
      shown=0
      echo "        $1 ${BASH_REMATCH[1]} ${BASH_REMATCH[2]}"
    elif [[ $line =~ ^[0-9]+%\ tests\ passed ]]; then
      break # what follows is counted and listed at the end
    elif [[ -n $line && ! $line =~ ^\ *Start\ +[0-9]+: && ! $line =~ ^(Internal|Test\ project) ]]; then
      shown=$((shown + 1))
      [ "$shown" -gt 50 ] || echo "          $line"
    fi
  done
  cat >/dev/null
}

# Many tests wait for most of their time, for deadlines and disks: more than twice as many run at a time as there are
# cores.
run_ctest() { # PRESET SCALE CTEST-ARGUMENT...: runs and counts
  local preset=$1 scale=$2 before=$SECONDS prefix="" total=0 bad=0 skip=0 line
  shift 2
  [ "$preset" != tsan ] || prefix=$(fixed_addresses)
  rm -f "$log/test-$preset.xml"
  # shellcheck disable=SC2086 # the prefix is words
  RESHARD_TEST_SCALE=$scale ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=1} \
    UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1} TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1} \
    $prefix ctest --test-dir "$(directory "$preset")" -j $((2 * cores + 4)) --output-on-failure --no-tests=error \
    --output-junit "$log/test-$preset.xml" "$@" </dev/null 2>&1 | tee "$log/test-$preset.log" |
    show_ctest "$preset" || true
  cp "$(directory "$preset")/Testing/Temporary/LastTest.log" "$log/output-$preset.log" 2>/dev/null || true
  line=$(grep -m1 -A6 '<testsuite ' "$log/test-$preset.xml" 2>/dev/null | tr '\n\t' '  ') || true
  if [[ $line =~ tests=\"([0-9]+)\" ]]; then total=${BASH_REMATCH[1]}; fi
  if [[ $line =~ failures=\"([0-9]+)\" ]]; then bad=${BASH_REMATCH[1]}; fi
  if [[ $line =~ skipped=\"([0-9]+)\" ]]; then skip=${BASH_REMATCH[1]}; fi
  if [ "$total" = 0 ]; then
    count 1 "$preset: ctest ran nothing"
  else
    passed=$((passed + total - bad - skip)) failed=$((failed + bad)) skipped=$((skipped + skip))
    while read -r line; do failures+=("$preset: $line"); done < <(
      sed -nE '/^The following tests FAILED/,$ s/^[[:space:]]*[0-9]+ - ([^ ]+) \(.*/\1/p' "$log/test-$preset.log")
  fi
  say "$preset: $((total - bad - skip)) passed, $bad failed, $skip skipped in $((SECONDS - before)) s"
}

# Print-outs of the random tests: how many cases of each pair of kinds.
show_reports() { # PRESET
  local names
  names=$(ctest --test-dir "$(directory "$1")" -N -L '^random$' 2>/dev/null | sed -nE 's/^ *Test +#[0-9]+: //p' |
    tr '\n' ' ') || true
  awk -v names="$names" '
    BEGIN { n = split(names, name, " "); for (i = 1; i <= n; i++) wanted[name[i]] = 1 }
    /^[0-9]+\/[0-9]+ Testing: / { on = 0; test = $3 }
    /^<end of output>/ { on = 0 }
    on && NF && ++lines <= 200 { print "        " $0 }
    /^Output:$/ { getline; if (test in wanted) { on = 1; print "        " test ":" } }
  ' "$log/output-$1.log" 2>/dev/null || true
}

has_browser() { python3 -B "$root/profiles/report/look.py" >/dev/null 2>&1; } # any that look.py can use

run_test() {
  # Files are exchanged with numpy and safetensors, in an environment that the test makes.
  python3 -c 'import ensurepip, venv' 2>/dev/null || test_packages+=(python3 python3-venv)
  need "${test_packages[@]}" "${fuzz_packages[@]}"
  # A browser looks at the page of ./run report.
  has_browser || (need chromium) || say "no browser: its test is skipped"
  (need doxygen help2man) || say "no doxygen or help2man: the test of the documentation is skipped"
  rm -f "$log"/built-*
  say "building release, asan, tsan, fuzz on $cores cores; tests follow as each is ready"
  trap stop_builds EXIT
  start_builds 10 fuzz # which has no Python: that comes over the network meanwhile
  need_python
  start_builds 5 release asan tsan

  if wait_build release; then
    run_ctest release "${RESHARD_TEST_SCALE:-1}" -LE 'soak|perf'
    show_reports release
  else count 1 "release: build"; fi
  if wait_build asan; then run_ctest asan 0.1 -LE 'soak|perf'; else count 1 "asan: build"; fi
  if wait_build tsan; then run_ctest tsan 0.05 -LE 'soak|perf'; else count 1 "tsan: build"; fi
  if wait_build fuzz; then fuzz_all 1; else count 1 "fuzz: build"; fi
  # Timed tests run when nothing else does.
  if [[ $(ctest --test-dir "$build" -N -L perf 2>/dev/null) == *"Test "*"#"* ]]; then run_ctest release 1 -L perf; fi
  report
}
