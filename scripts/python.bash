# ./run python: the environment of the Python module, and the module. Sourced.

python_packages=(numpy ml_dtypes safetensors mpi4py nanobind nanobind-backend pytest mypy)
python_environment=$build/python-environment

# Makes the environment that the build and its tests take. What cannot be had is said, and the module is left out.
need_python() {
  local why=
  . "$root/bench/compare/environment.bash"
  "$python_environment/bin/python" -c 'import nanobind, nanobind_backend, mypy, ml_dtypes, mpi4py' 2>/dev/null && return
  (need python3-venv python3-dev) || { say "no python3-venv or python3-dev: the Python module is left out"; return 0; }
  say "installing ${python_packages[*]} in $python_environment"
  make_environment "$python_environment" 240 "${python_packages[@]}" || say "the Python module is left out: $why"
}

run_python() {
  need "${build_packages[@]}"
  need_python
  [ -x "$python_environment/bin/python" ] || die "the Python module needs the packages ${python_packages[*]}"
  build_or_die release reshard_python_stub
  say "the module is in $build/python; try it:"
  echo "PYTHONPATH=$build/python $python_environment/bin/python -c 'import reshard; print(reshard.__version__)'"
}
