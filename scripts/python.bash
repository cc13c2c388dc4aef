# ./run python: the environments of the Python module, and the module. Sourced.

python_packages=(numpy ml_dtypes safetensors mpi4py nanobind nanobind-backend pytest mypy)
python_environment=$build/python-environment
torch_environment=${XDG_CACHE_HOME:-${HOME:-}/.cache}/reshard # all checkouts share it: torch is large

# Tests that want torch take that, where nobody names another.
if [ -z "${RESHARD_TEST_PYTHON:-}" ] && [ -x "$torch_environment/bin/python" ]; then
  export RESHARD_TEST_PYTHON=$torch_environment/bin/python
fi

# Makes the environment that the build and its tests take. What cannot be had is said, and the module is left out.
need_python() {
  local why=
  . "$root/bench/compare/environment.bash"
  "$python_environment/bin/python" -c 'import nanobind, nanobind_backend, mypy, ml_dtypes, mpi4py' 2>/dev/null && return
  (need python3-venv python3-dev) || { say "no python3-venv or python3-dev: the Python module is left out"; return 0; }
  say "installing ${python_packages[*]} in $python_environment"
  make_environment "$python_environment" 240 "${python_packages[@]}" || say "the Python module is left out: $why"
}

run_python() { # [--torch]
  local why=
  need "${build_packages[@]}"
  need_python
  [ -x "$python_environment/bin/python" ] || die "the Python module needs the packages ${python_packages[*]}"
  if [ "${1:-}" = --torch ] && ! "$torch_environment/bin/python" -c 'import torch, nanobind_backend' 2>/dev/null; then
    say "installing torch, which is large, in $torch_environment"
    . "$root/bench/compare/environment.bash"
    make_environment "$torch_environment" 1800 "${python_packages[@]}" \
      "$(grep '^torch' "$root/bench/compare/requirements.txt")" || die "$why"
  fi
  build_or_die release reshard_python_stub
  say "the module is in $build/python; try it:"
  echo "PYTHONPATH=$build/python $python_environment/bin/python -c 'import reshard; print(reshard.__version__)'"
}

# Tests of the module under AddressSanitizer and UBSan, which the interpreter takes in before it starts; and with JAX.
soak_python() {
  need_python
  [ -x "$python_environment/bin/python" ] || return 0
  build_or_die asan reshard_program
  build_or_die asan reshard_python -DRESHARD_PYTHON=ON
  local name compiler=${CC:-cc}
  for name in bad_input core files node; do
    LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so)" \
      ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$build/asan/python \
      "$python_environment/bin/python" -B "$root/tests/python/run.py" "$root/tests/python/test_$name.py" \
      >"$log/soak.log" 2>&1 </dev/null || {
      tail -40 "$log/soak.log"
      die "soak failed: test_$name of the Python module"
    }
    say "the Python module under AddressSanitizer: test_$name, $(tail -1 "$log/soak.log")"
  done
  local why='' jax=$build/python-jax/bin/python
  . "$root/bench/compare/environment.bash"
  make_environment "${jax%/bin/python}" 600 "${python_packages[@]}" \
    "$(grep '^jax' "$root/bench/compare/requirements.txt")" ||
    { say "the Python module without JAX: $why"; return 0; }
  PYTHONPATH=$build/python RESHARD_TEST_PYTHON=$jax "$python_environment/bin/python" -B "$root/tests/python/run.py" \
    "$root/tests/python/test_jax.py" >"$log/soak.log" 2>&1 </dev/null ||
    { tail -40 "$log/soak.log"; die "soak failed: test_jax of the Python module"; }
  say "the Python module with JAX: $(tail -1 "$log/soak.log")"
}
