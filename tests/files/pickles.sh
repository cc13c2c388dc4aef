#!/usr/bin/env bash
# Pickles of many classes (pickles.py): what is read of a .pt file, what is left out, and what is refused.
. "$SOURCE/tests/cli/common.bash" || exit 1
python=${RESHARD_TEST_PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null ||
  { echo 'skipped: no python3 of 3.8 or later'; exit 77; }
export LC_ALL=C.UTF-8
cases=$(awk -v scale="${RESHARD_TEST_SCALE:-1}" 'BEGIN { n = int(60 * scale); print n < 5 ? 5 : n }')
"$python" -B "$SOURCE/tests/files/pickles.py" "$RESHARD" "$cases" "${RESHARD_TEST_SEED:-1}" ||
  fault 'pickles.py'
finish
