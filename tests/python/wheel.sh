#!/usr/bin/env bash
# A wheel of the tree in a clean environment: import, a move, the program. It has no path of the machine that built it.
# ./run soak has it, as it builds all. usage: wheel.sh PYTHON
set -euo pipefail
work=$PWD
"$1" -m venv "$work/build" && "$1" -m venv "$work/clean"
"$work/build/bin/pip" install -q scikit-build-core nanobind nanobind-backend >"$work/log" 2>&1 ||
  { echo "skipped: $(tail -n 1 "$work/log")"; rm -rf "$work/build" "$work/clean" "$work/log"; exit 77; }
"$work/build/bin/pip" wheel -q --no-deps --no-build-isolation -w "$work/wheel" -C build-dir="$work/cmake" \
  -C cmake.define.RESHARD_CUDA=OFF -C cmake.define.RESHARD_MPI=OFF "$SOURCE"
"$work/clean/bin/pip" install -q "$work"/wheel/reshard-*.whl
cd /
"$work/clean/bin/python" -B -c "import reshard, numpy as np
rows, columns = (reshard.Layout(text, (4, 2), 2) for text in ('chunk(0)', 'chunk(1)'))
moved = reshard.redistribute([np.ones((2, 2)), np.zeros((2, 2))], rows, columns, reshard.local(2))
assert (moved[1][:, 0] == [1, 1, 0, 0]).all()"
"$work/clean/bin/reshard" info | grep -q '^communicators' || { echo "the program says nothing"; exit 1; }
size=$(stat -c %s "$work"/wheel/reshard-*.whl)
echo "the wheel has $size bytes"
[ "$size" -le $((5 * 1024 * 1024 / 2)) ] || { echo "more than 2.5 MiB"; exit 1; }
for file in "$work"/clean/lib/python*/site-packages/reshard/{*.so*,bin/reshard}; do
  path=$(readelf -d "$file" | sed -nE 's/.*R(UN)?PATH.*\[(.*)\]/\2/p')
  [[ -z $path || $path == '$ORIGIN' ]] || { echo "$file looks in $path"; exit 1; }
done
rm -rf "${work:?}"/{build,clean,cmake,wheel,log}
