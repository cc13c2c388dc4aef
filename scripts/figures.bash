# ./run bench, ./run peers and ./run report: figures, measured and drawn. Sourced.

run_bench() { # [--threads [SIDE]]
  [ $# = 0 ] || [ "$1" = --threads ] || die "bench: no option '$1'; ./run --help"
  need "${build_packages[@]}"
  build_or_die release reshard_product
  cd "$root"
  if [ $# != 0 ]; then
    bench/compare/threads.sh "$build/reshard" "${@:2}" | tee "$log/threads.md"
    return
  fi
  { bench/compare/figures.sh "$build/reshard" && bench/compare/figures_files.sh "$build/reshard"; } |
    tee "$log/bench.md"
  awk 'match($0, /\([0-9.]+ %/) { rows++; settled += substr($0, RSTART + 1) + 0 <= 5 && !/ %, / }
    END {
      printf "%d of %d rows are settled: their samples agree within 5 %%. ", settled, rows
      print "A quiet machine settles most of them."
    }' "$log/bench.md"
}

# Python's packages are those of bench/compare/requirements.txt; torch is RESHARD_TEST_PYTHON's where that has it.
run_peers() { # [OPTION...]: of bench/compare/peers.py
  local why="" python=$build/peers-python torch pins=() torch_pins=()
  mapfile -t pins < <(grep -v '^torch' "$root/bench/compare/requirements.txt")
  mapfile -t torch_pins < <(grep '^torch' "$root/bench/compare/requirements.txt")
  case " $* " in *" -h "* | *" --help "*) exec python3 -B "$root/bench/compare/peers.py" --help ;; esac
  python3 -c 'import ensurepip, venv' 2>/dev/null || build_packages+=(python3 python3-venv)
  need "${build_packages[@]}" openmpi-bin libopenmpi-dev libscalapack-openmpi-dev
  build_or_die release reshard_product
  . "$root/bench/compare/environment.bash"
  make_environment "$python" 600 "${pins[@]}" || say "$why"
  python=$python/bin/python torch=${RESHARD_TEST_PYTHON:-}
  if [[ " $* " != *" --only"[\ =]* || " $* " =~ (torch|dcp|gpu) ]] &&
    { [ -z "$torch" ] || ! "$torch" -c 'import torch' 2>/dev/null; }; then
    say "PyTorch, which is large, comes to build/peers-python; RESHARD_TEST_PYTHON may name an interpreter that has it"
    torch=$python
    make_environment "${python%/bin/python}" 1800 "${torch_pins[@]}" || say "$why"
  fi
  [ -x "$python" ] || python=python3
  python3 -B "$root/bench/compare/peers.py" --build "$build" --python "$python" --torch-python "${torch:-$python}" \
    --json "$build/peers.json" --page "$root/profiles/results/peers.md" "$@"
}

run_report() { # OPTION...: measuring and drawing are two steps
  local out=$build/report option draw=0 check=0 save=0 quick=()
  export PYTHONDONTWRITEBYTECODE=1
  for option in "$@"; do
    case $option in
    --quick) quick=(--quick --seconds 10) ;;
    --draw) draw=1 ;;
    --check) check=1 ;;
    --save) save=1 ;;
    *) die "report: no option '$option'; ./run --help" ;;
    esac
  done
  if [ $draw = 0 ]; then
    need "${build_packages[@]}" python3
    build_or_die release reshard_product
    python3 "$root/profiles/report/measure.py" "$build/reshard" "$out" "${quick[@]}" --peers "$build/peers.json"
  fi
  mkdir -p "$out"
  [ -e "$out/data.json" ] || cp "$root/profiles/results/report.json" "$out/data.json" # what the tree keeps
  need python3
  python3 "$root/profiles/report/draw.py" "$out/data.json" "$out/report.html" --plots "$out"
  say "the page is $out/report.html"
  [ $save = 0 ] || python3 "$root/profiles/report/save.py" "$out/data.json" "$root"
  [ $check = 1 ] || return 0
  has_browser || need chromium
  python3 "$root/profiles/report/look.py" "$out/report.html" --pictures "$out/pictures"
}
