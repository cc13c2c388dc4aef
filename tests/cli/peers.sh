#!/usr/bin/env bash
# ./run peers: its table and turns with made-up peers; numpy and MPI for a small tensor, as far as they are here.
. "$(dirname "$0")/common.bash"
python=${RESHARD_TEST_PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null ||
  { echo "skipped: no python3 of 3.9 or later"; exit 77; }
compare=$SOURCE/bench/compare
"$python" -B "$SOURCE/tests/cli/peers.py" "$compare" || fault 'the table, or a peer'

peers() { # STATUS ARGUMENT...
  local want=$1
  shift
  status=0
  "$python" -B "$compare/peers.py" --build "$(dirname "$RESHARD")" --python "$python" --page "$work/page.md" \
    "$@" >out 2>err </dev/null ||
    status=$?
  checks=$((checks + 1))
  [[ $status =~ ^($want)$ ]] || fault "peers $*: status $status, not $want: $(cat err)"
}
alltoall=$(dirname "$RESHARD")/reshard_alltoall scalapack=$(dirname "$RESHARD")/reshard_scalapack
export RESHARD_COSTA=$PWD/no-library # nothing is fetched
peers '0|77' --quick --only numpy,mpi,scalapack,costa --json peers.json
"$python" - <<'TEXT' || fault "the JSON: $(cat peers.json)"
import json
report = json.load(open("peers.json"))
rows = report["rows"]
peers = {row["peer"].split(" beside ")[0] for row in rows}
assert peers == {"numpy, slices, 1 thread", "MPI_Alltoallw", "pack + MPI_Alltoall", "ScaLAPACK, psgemr2d, blocks",
                 "COSTA, psgemr2d, blocks"}
for row in rows:
    measured = "skipped" not in row
    assert row["bytes"] == 512 * 512 * 4 and row["ranks"] == 4 and row["turns"] == 1 if measured else row["skipped"]
    assert "skipped" in row or min(row["gbps"], row["ours_gbps"], row["memcpy_gbps"]) > 0
try:
    import numpy
    assert any(row["peer"].startswith("numpy") and row.get("ours") == "execute" for row in rows)
except ImportError:
    assert "numpy" in [row["skipped"] for row in rows if row["peer"].startswith("numpy")][0]
assert report["machine"]["cores"] > 0 and 0 <= report["machine"]["others"] <= 1
assert report["machine"]["command"] == "./run peers --quick --only numpy,mpi,scalapack,costa"
TEXT
while read -r _ name _; do says "\\| $name"; done <<<'| numpy
| MPI_Alltoallw
| pack
| ScaLAPACK
| COSTA'
says 'COSTA, psgemr2d, blocks .*RESHARD_COSTA: no file '
if [ -x "$alltoall" ] && command -v mpirun >/dev/null; then
  for ours in messages 'shared memory'; do
    says "^\\| MPI_Alltoallw .*\\| execute over MPI, $ours "
    says "^\\| pack \\+ MPI_Alltoall .*\\| execute over MPI, $ours "
  done
fi
if [ -x "$scalapack" ] && command -v mpirun >/dev/null; then
  says '^\| ScaLAPACK, psgemr2d, blocks .*\| execute over MPI, messages, blocks '
  says '^\| ScaLAPACK, psgemr2d, blocks .*\| execute over MPI, shared memory, blocks '
  # A library that has psgemr2d is called in the place of ScaLAPACK's, as COSTA's is.
  RESHARD_COSTA=$(ldd "$scalapack" | sed -n 's/.*libscalapack.* => \([^ ]*\) .*/\1/p')
  peers 0 --quick --only costa
  says '^\| COSTA, psgemr2d, blocks .*\| execute, processes of a node, blocks '
  RESHARD_COSTA=$(ldd "$scalapack" | sed -n 's/.*libm\.so.* => \([^ ]*\) .*/\1/p')
  peers 77 --quick --only costa
  says 'COSTA, .*undefined symbol: psgemr2d_'
fi
[ ! -e page.md ] || fault 'a part of a run writes the page'
peers 2 --only numpy,word
grep -q "no peer 'word'; there are numpy, mpi" err || fault "$(cat err)"
peers 2 --quick --side 510
grep -q 'side 510, turns 1: a multiple of 4' err || fault "$(cat err)"
RESHARD_COSTA=$PWD/no-library
peers 77 --only costa
finish
