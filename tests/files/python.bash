# An interpreter for tests that exchange data with Python. RESHARD_TEST_PYTHON names one; else python3 is taken, or an
# environment that is made in $CACHE by pip (numpy and safetensors alone). Sourced after common.bash.
. "$SOURCE/bench/compare/environment.bash" || exit 1
: "${CACHE:=$work/cache}"
export TORCHINDUCTOR_CACHE_DIR=$work/inductor # PyTorch makes one in TMPDIR else, and leaves it there
skip() { echo "skipped: $1"; exit 77; }
has() { "$1" -c "import $2" >/dev/null 2>&1; }

# find_python MODULES: sets $python to an interpreter that has them ("numpy, safetensors"), or skips.
find_python() {
  if [ -n "${RESHARD_TEST_PYTHON:-}" ]; then
    python=$RESHARD_TEST_PYTHON
    has "$python" "$1" || skip "RESHARD_TEST_PYTHON=$python has no $1"
    return
  fi
  python=$(command -v python3) || skip 'python3 is missing'
  has "$python" "$1" && return
  local system=$python
  python=$CACHE/bin/python
  mkdir -p "$(dirname "$CACHE")"
  { # one test at a time makes it
    command -v flock >/dev/null && flock 9
    has "$python" "$1" && return
    make_environment "$CACHE" 240 numpy safetensors 9>&- || skip "$why"
  } 9>"$CACHE.lock"
}
