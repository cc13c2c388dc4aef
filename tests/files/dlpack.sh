#!/usr/bin/env bash
# Tensors go to and fro between the built library and NumPy, and PyTorch where it is installed, by DLPack and without a
# copy. The skip says what was missing.
. "$SOURCE/tests/cli/common.bash" || exit 1
. "$SOURCE/tests/files/python.bash" || exit 1
find_python numpy
"$python" -W ignore "$SOURCE/tests/files/dlpack.py" "$(dirname "$RESHARD")/libreshard.so" </dev/null || fault 'DLPack'
[ "$failures" = 0 ]
