#!/usr/bin/env bash
# The page of ./run report: measured in its quick form, drawn, and its texts checked by the widths of a wide face.
# usage: page.sh PAGE    which is kept for browser.sh
set -euo pipefail
page=${1:?usage: page.sh PAGE}
export PYTHONDONTWRITEBYTECODE=1
report=$SOURCE/profiles/report boxes=$SOURCE/tests/figures/boxes.py
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
command -v python3 >/dev/null || { echo "page: skipped, there is no python3"; exit 77; }
fault() { echo "page: $*" >&2; exit 1; }

cat >peers.json <<'JSON'
{"rows": [
 {"peer": "a peer", "ours": "execute", "bytes": 1048576, "gbps": 3, "memcpy_gbps": 12, "ours_gbps": 11},
 {"peer": "a peer with a name that is as long as the longest", "bytes": 268435456, "gbps": 0.01, "memcpy_gbps": 12},
 {"peer": "another", "skipped": "it is not here & <never> was"}]}
JSON
python3 "$report/measure.py" "$RESHARD" data --quick --peers peers.json
python3 "$report/draw.py" data/data.json page.html --plots plots
python3 "$boxes" page.html plots/*.svg data/plans/*/*.svg

# All that was asked for is on the page, and drawing again gives the same one.
copies=('Copies alone') # of reshard_micro
[ -x "$(dirname "$RESHARD")/reshard_micro" ] || copies=()
for heading in 'Throughput over size' 'Beside others' 'Run length and element width' "${copies[@]}" \
  'Workspace and speed' 'Scaling over ranks' 'Cost of a plan' 'Who sends what to whom' Environment; do
  grep -qF "<h2>$heading</h2>" page.html || fault "no section '$heading'"
done
! grep -q '…' page.html || fault "a text is cut: $(grep -oE '[^>]*…' page.html | head -3)"
[ "$(grep -c '<figure>' page.html)" = 28 ] || fault "not every case of the suites is drawn"
python3 "$report/draw.py" data/data.json again.html
cmp page.html again.html || fault "the same data are drawn in two ways"

# Rows that had no time are left out, and the page says so.
python3 "$report/measure.py" "$RESHARD" none --quick --seconds 0 --peers peers.json
python3 "$report/draw.py" none/data.json none.html
all='sizes, runs, limits, ranks, plans, micro, training, inference, hpc'
grep -qF "Left out, since the time was over: $all." none.html ||
  fault 'the page does not say what is left out'
grep -qF '<h2>Beside others</h2>' none.html || fault 'peers, which were measured before, are left out'

# A page without peers has no such section, and one without any figure is still a page.
python3 - <<'PYTHON'
import json
data = json.load(open("data/data.json"))
data.update(peers=[], runs=[], limits=[], ranks=[], plans=[], micro={}, suites={}, sizes={"direct": [], "packed": []})
json.dump(data, open("bare.json", "w"))
PYTHON
python3 "$report/draw.py" bare.json bare.html
[ "$(grep -c '<h2>' bare.html)" = 1 ] || fault "sections without figures: $(grep '<h2>' bare.html)"

# The check itself: what is wrong is found.
spoil() { # EXPECTED SED-EXPRESSION
  sed "$2" page.html >spoilt.html
  if python3 "$boxes" spoilt.html >said; then fault "the check does not see: $1"; fi
  grep -q "$1" said || fault "the check says something else than '$1': $(cat said)"
}
spoil 'cut: "size of the tensor"' 's/<text x="[0-9.]*"\([^>]*\)>size of the tensor/<text x="5"\1>size of the tensor/'
spoil 'overlap: ' 's/<text [^>]*>size of the tensor<\/text>/&&/'
spoil 'not self-contained' 's/<body>/&<script\/>/'
mkdir -p "$(dirname "$page")"
cp page.html "$page"
