#!/usr/bin/env bash
# Tensors go to and fro between the built library and NumPy, and PyTorch where it is installed, by DLPack and without a
# copy. The skip says what was missing. Our structs are compared with DLPack's header, where PyTorch or Debian's
# libdlpack-dev has brought it.
. "$SOURCE/tests/cli/common.bash" || exit 1
. "$SOURCE/tests/files/python.bash" || exit 1
find_python numpy
"$python" -W ignore "$SOURCE/tests/files/dlpack.py" "$(dirname "$RESHARD")/libreshard.so" </dev/null || fault 'DLPack'

compare_header() { # HEADER [FLAG...]
  cc -std=c11 -fsyntax-only -DDLPACK_HEADER="\"$1\"" -I"$SOURCE/host" "${@:2}" \
    "$SOURCE/tests/files/dlpack_header.c" >compared 2>&1
}
find_torch='from importlib.util import find_spec; print(find_spec("torch").submodule_search_locations[0])'
torch=$("$python" -c "$find_torch" 2>/dev/null)
compared=0
for header in "$torch/include/ATen/dlpack.h" /usr/include/dlpack/dlpack.h; do
  [ -e "$header" ] && command -v cc >/dev/null || continue
  if compare_header "$header"; then
    compared=$((compared + 1))
    ! compare_header "$header" -DPLANTED || fault "$header: the check finds nothing"
  elif grep -q 'of another version' compared; then echo "not compared: $header is of another version"
  else fault "$header: $(head -n 5 compared)"
  fi
done
echo "structs compared with $compared headers of DLPack"
[ "$failures" = 0 ]
