#!/usr/bin/env bash
# Files go to and fro between `reshard convert` and Python: numpy, safetensors, and PyTorch where it is installed. The
# skip says what was missing.
. "$SOURCE/tests/cli/common.bash" || exit 1
. "$SOURCE/tests/files/python.bash" || exit 1
find_python 'numpy, safetensors'
"$python" "$SOURCE/tests/files/interop.py" "$RESHARD" </dev/null || fault 'numpy and safetensors'
if has "$python" torch.distributed.checkpoint; then
  "$python" -W ignore "$SOURCE/tests/files/interop_torch.py" "$RESHARD" </dev/null || fault 'PyTorch'
  "$python" -W ignore "$SOURCE/tests/files/interop_distcp.py" "$RESHARD" </dev/null ||
    fault '.distcp and .pt of PyTorch'
else
  echo 'not run with PyTorch, which is not installed for this interpreter (RESHARD_TEST_PYTHON may name another)'
fi
[ "$failures" = 0 ]
