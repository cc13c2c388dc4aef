# An environment of Python that pip fills; sourced.

# make_environment DIRECTORY SECONDS PACKAGE...: makes it where it is not, and installs. Else $why says what failed, and
# nothing is left of one that was not there before. Each of the two steps takes as long as given at most.
make_environment() {
  local directory=$1 seconds=$2 log=$1.log before=1
  shift 2
  mkdir -p "$(dirname "$directory")"
  environment_why() { why="$1: $(grep . "$log" | tail -n 1 | grep . || echo "not done after $seconds s")"; }
  if ! "$directory/bin/python" -m pip --version >/dev/null 2>&1; then
    before=
    rm -rf "$directory"
    timeout "$seconds" "$(command -v python3)" -m venv "$directory" >"$log" 2>&1 ||
      { environment_why "python3 -m venv"; rm -rf "$directory"; return 1; }
  fi
  # Modules are compiled when they are imported: most of them never are.
  timeout "$seconds" "$directory/bin/python" -m pip install -q --no-compile --disable-pip-version-check --retries 1 \
    --timeout 10 "$@" \
    >"$log" 2>&1 </dev/null ||
    { environment_why "pip install $*"; [ -n "$before" ] || rm -rf "$directory"; return 1; }
}
