# ./run soak and ./run prove: the long forms of the tests. Sourced.

run_soak() { # [MINUTES]: batches with new seeds
  [[ ${1:-1} =~ ^[1-9][0-9]*$ ]] || die "soak: '$1' is no number of minutes"
  local minutes=${1:-30} goal=0 batch=10000 done_=0 end seeds pids i
  [ $# -gt 0 ] || goal=1000000
  need "${build_packages[@]}"
  build_or_die release reshard_product
  end=$((SECONDS + minutes * 60))
  while if [ "$goal" -gt 0 ]; then [ "$done_" -lt "$goal" ]; else [ "$SECONDS" -lt "$end" ]; fi; do
    seeds=() pids=() # a batch a core
    for ((i = 0; i < $(nproc); i++)); do
      seeds+=("$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')")
      "$build/reshard" verify --cases "$batch" --seed "${seeds[i]}" >"$log/soak-$i.log" 2>&1 </dev/null &
      pids+=($!)
    done
    for i in "${!pids[@]}"; do
      if ! wait "${pids[i]}"; then
        kill "${pids[@]}" 2>/dev/null || true
        tail -40 "$log/soak-$i.log"
        die "soak failed; again: $build/reshard verify --cases $batch --seed ${seeds[i]}"
      fi
      done_=$((done_ + batch))
    done
    say "seeds ${seeds[*]}: $batch cases each right, $done_ in all"
  done
  tail -30 "$log/soak-0.log"
  say "soak: $done_ cases, none wrong"
  soak_processes "$minutes"
  soak_tests "$minutes"
  soak_python
  soak_fuzz "$minutes"
  mutate_kernels "$minutes"
  mutate_host "$minutes"
}

# MINUTES: of 10 on, 20,000 cases over processes of a node, and 20,000 over MPI; fewer in less time. Seeds are new.
soak_processes() {
  local each=$((500 * ($1 < 10 ? $1 : 10))) ranks path cases command seed done_ way
  local mpi=(mpirun --allow-run-as-root --oversubscribe --bind-to none)
  for way in processes mpi; do
    if [ "$way" = mpi ] && [[ $(mpirun --version 2>/dev/null) != *"Open MPI"* ]]; then
      say "no Open MPI: no cases over MPI"
      continue
    fi
    done_=0
    for ranks in 2 3 4 5; do
      for path in auto packed; do
        cases=$((each / 2)) seed=$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')
        case $way in
        processes) command=("$build/reshard" verify --processes "$ranks") ;;
        mpi) command=("${mpi[@]}" -n "$ranks" "$build/reshard" verify --comm mpi) ;;
        esac
        command+=(--path "$path" --cases "$cases" --seed "$seed")
        "${command[@]}" >"$log/soak.log" 2>&1 </dev/null && grep -q '^0 of them failed' "$log/soak.log" || {
          tail -40 "$log/soak.log"
          die "soak failed; again: ${command[*]}"
        }
        done_=$((done_ + cases))
      done
    done
    say "$way: $done_ cases on 2 to 5 ranks, none wrong"
  done
}

soak_tests() { # MINUTES: tests that ./run test leaves out, a figure of calls, and ranks that are lost
  need "${test_packages[@]}"
  build_or_die release all
  local scale
  scale=$(awk -v m="$1" 'BEGIN { print m < 10 ? m / 10 : 1 }')
  say "redistribute beside the bare execute"
  bash "$root/tests/redistribute" "$build" "$root/profiles/results/redistribute.md" || die "soak failed: redistribute"
  say "losing ranks, at scale $scale"
  bash "$root/tests/stops" "$build" "$root/profiles/results/stops.md" "$scale" || die "soak failed: lost ranks"
  if [[ $(ctest --test-dir "$build" -N -L soak -E '^simt_mutate_soak$' 2>/dev/null) != *"Test "*"#"* ]]; then
    say "there are no long tests"
    return
  fi
  run_ctest release "$scale" -L soak -E '^simt_mutate_soak$'
  report || die "soak failed: $log/test-release.log"
}

soak_fuzz() { # MINUTES of all targets together, on all cores: those that lack hours, and all where none does
  need "${fuzz_packages[@]}"
  build_or_die fuzz all
  local names=()
  mapfile -t names < <(fuzz_lacking)
  [ ${#names[@]} -gt 0 ] || mapfile -t names < <(fuzz_targets | sed 's|.*/fuzz_||')
  fuzz_all $(($1 * 60 * cores / ${#names[@]} + 1)) "${names[@]}"
  fuzz_ledger
  mapfile -t names < <(fuzz_lacking)
  say "fuzz: $((${#names[@]})) targets have less than $fuzz_hours processor hours: ${names[*]}"
  report || die "soak failed: an input in $build/fuzz/crashes"
}

mutate_kernels() { # MINUTES
  command -v python3 >/dev/null || { say "no python3: no mistakes are made in the kernels"; return; }
  say "mistakes in the kernels, one at a time; survivors are explained in tests/simt/survivors"
  python3 "$root/tests/simt/mutate" --minutes "$1" --jobs "$cores" --record "$log/mutate.record" </dev/null 2>&1 |
    tee "$log/mutate.log" ||
    die "a mistake in the kernels that no test notices, or too many: $log/mutate.log"
}

mutate_host() { # MINUTES, after the builds, which are kept
  command -v python3 >/dev/null || { say "no python3: no mistakes are made in host/"; return; }
  need "${test_packages[@]}"
  say "mistakes in host/, one at a time, in an order that the clock draws; tests/host/survivors explains survivors"
  python3 "$root/tests/host/mutate" --minutes "$1" --most 30 --jobs "$cores" --build "$build/mutate" \
    --record "$log/mutate-host.record" </dev/null 2>&1 | tee "$log/mutate-host.log" ||
    die "too many mistakes in host/ that no test notices: $log/mutate-host.log"
}

run_prove() { # [MINUTES]
  [[ ${1:-1} =~ ^[1-9][0-9]*$ ]] || die "prove: '$1' is no number of minutes"
  need "${test_packages[@]}"
  build_or_die release virtual_gpu_tests
  bash "$root/tests/virtual_gpu/prove" "$build" "$root/profiles/results/prove.md" "$cores" "${1:-0}"
}
