#!/usr/bin/env bash
# The program and libreshard_mpi: it is loaded where it is asked for and not before; it calls the program's copy of the
# library; and a program that does not find it says so.
# usage: loads.sh PROGRAM LIBRESHARD_MPI MPIRUN ARGUMENT... (the last one is the flag of the number of ranks)
set -euo pipefail
program=$1 library=$2 mpirun=("${@:3}")
soname=${library##*/}
fail() { echo "loads: $*" >&2; exit 1; }
verify=(verify --cases 3 --ranks 1)

LD_DEBUG=bindings LD_DEBUG_OUTPUT=$PWD/bound "${mpirun[@]}" 1 "$program" "${verify[@]}" --comm mpi >said 2>&1 ||
  fail "$(cat said)"
bound() { grep -h "binding file [^ ]*/$soname .* to [^ ]*/$1 .*symbol .\(rs\|reshard\)_" bound.* || true; }
[ "$(bound "${program##*/}" | wc -l)" -ge 10 ] || fail "$soname does not call the program"
other=$(bound 'libreshard\.so[^ ]*')
[ -z "$other" ] || fail "$soname calls a second copy of the library: $other"
rm bound.*

LD_DEBUG=files LD_DEBUG_OUTPUT=$PWD/files "$program" "${verify[@]}" --comm local >said 2>&1 || fail "$(cat said)"
! grep -h 'libreshard_mpi\|libmpi' files.* || fail "MPI is loaded where nothing asks for it"
rm files.*

mkdir lonely
cp "$program" lonely/reshard
status=0
./lonely/reshard "${verify[@]}" --comm mpi >said 2>&1 || status=$?
[ "$status" = 3 ] || fail "status $status without $soname: $(cat said)"
grep -q "^reshard: error: --comm mpi: $soname cannot be loaded: " said || fail "without $soname: $(cat said)"
rm -r lonely said
