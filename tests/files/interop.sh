#!/usr/bin/env bash
# Files go to and fro between `reshard convert` and Python: numpy, safetensors, and PyTorch where it is installed.
# RESHARD_TEST_PYTHON names an interpreter that has numpy and safetensors, and perhaps torch; else python3 is taken, or an
# environment that is made in $CACHE (numpy and safetensors alone, by pip). The skip says what was missing.
. "$SOURCE/tests/cli/common.bash" || exit 1
: "${CACHE:=$work/cache}"
has() { "$1" -c 'import numpy, safetensors' >/dev/null 2>&1; }
skip() { echo "skipped: $1"; exit 77; }

if [ -n "${RESHARD_TEST_PYTHON:-}" ]; then
  python=$RESHARD_TEST_PYTHON
  has "$python" || skip "RESHARD_TEST_PYTHON=$python has no numpy and safetensors"
else
  python=$(command -v python3) || skip 'python3 is missing'
  if ! has "$python"; then
    system=$python python=$CACHE/bin/python
    if ! has "$python"; then
      rm -rf "$CACHE"
      timeout 60 "$system" -m venv "$CACHE" >venv.log 2>&1 || skip "python3 -m venv: $(tail -n 1 venv.log)"
      timeout 120 "$python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 10 numpy safetensors \
        >pip.log 2>&1 </dev/null || { rm -rf "$CACHE"; skip "pip install numpy safetensors: $(grep . pip.log | tail -n 1)"; }
    fi
  fi
fi
"$python" "$SOURCE/tests/files/interop.py" "$RESHARD" </dev/null || fault 'numpy and safetensors'
if "$python" -c 'import torch.distributed.checkpoint' >/dev/null 2>&1; then
  "$python" -W ignore "$SOURCE/tests/files/interop_torch.py" "$RESHARD" </dev/null || fault 'PyTorch'
else
  echo 'not run with PyTorch, which is not installed for this interpreter (RESHARD_TEST_PYTHON may name another)'
fi
[ "$failures" = 0 ]
