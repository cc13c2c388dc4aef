#!/usr/bin/env bash
# profiles/flame.sh: stacks folded from what perf printed, the picture of them, a run where perf may sample, refusals.
. "$(dirname "$0")/common.bash"
flame=$SOURCE/profiles/flame
python=$(command -v python3) && "$python" -c 'import xml.dom.minidom' 2>/dev/null || python=

# Recorded by perf 6.1, shortened: a program with a blank in its name, the kernel, a stack without a name, C++.
cat >recorded <<'TEXT'
reshard 28819    2004008 
	ffffffff821eb5f6 copy_mc_enhanced_fast_string
	ffffffff821f51c6 exc_page_fault+0x12
	            e2bc walk_rank.constprop.1.isra.0
	           1ab78 main

reshard 28842    3000000 
	ffffffff821eb5f6 copy_mc_enhanced_fast_string
	ffffffff821f51c6 exc_page_fault
	            e2bc walk_rank.constprop.1.isra.0
	           1ab78 main

copy <2> 7 12345     500000: 
	           2f5fe std::map<a;b>::find(int const&)
	8a1f2a2febe7b076 [unknown]
	               1 [unknown]

reshard 28843    1000000 
	           2f602 main

TEXT
cat >folded <<'TEXT'
copy <2> 7;[unknown];std::map<a:b>::find(int const&) 500000
reshard;main 1000000
reshard;main;walk_rank;exc_page_fault_[k];copy_mc_enhanced_fast_string_[k] 5004008
TEXT
awk -v kind=fold -f "$flame.awk" recorded | LC_ALL=C sort >out
checks=$((checks + 1))
diff folded out >difference || fault "folded otherwise: $(cat difference)"

awk -v kind=picture -v title='a < b & "c"' -f "$flame.awk" folded >picture.svg
checks=$((checks + 1))
! grep -q 'http' <(sed 's|http://www.w3.org/2000/svg||' picture.svg) || fault 'the picture needs something from elsewhere'
[ -z "$python" ] || "$python" - <<'TEXT' || fault "the picture: $(cat picture.svg)"
import xml.dom.minidom
picture = xml.dom.minidom.parse("picture.svg")
boxes = {}
for group in picture.getElementsByTagName("g"):
    box, name = group.getElementsByTagName("rect")[0], group.getElementsByTagName("title")[0].firstChild.data
    name, share = name.rsplit(":", 1)
    boxes[name] = [float(box.getAttribute(a)) for a in ("x", "y", "width")] + [share.strip()]
assert len(boxes) == 9, boxes
assert boxes["all"][2] == 1232 and boxes["all"][3] == "100.00 %"
share = 6004008 / 6504008
assert abs(boxes["reshard"][2] - 1232 * share) < 0.02 and boxes["reshard"][3] == f"{100 * share:.2f} %"
assert abs(boxes["walk_rank"][2] - 1232 * 5004008 / 6504008) < 0.02
for inner, outer in (("reshard", "all"), ("main", "reshard"), ("walk_rank", "main"), ("exc_page_fault", "walk_rank")):
    a, b = boxes[inner], boxes[outer]
    assert b[0] <= a[0] + 0.01 and a[0] + a[2] <= b[0] + b[2] + 0.02 and a[1] < b[1], (inner, outer)
texts = [t.firstChild.data for t in picture.getElementsByTagName("text")]
assert 'a < b & "c"' in texts and "kernel" in texts and "program and libraries" in texts, texts
TEXT
grep -v '_\[k\]' folded | awk -v kind=picture -f "$flame.awk" >picture.svg
! grep -q '>kernel<' picture.svg || fault 'the legend shows what is not in the picture'

script() { # STATUS ARGUMENT...
  local want=$1
  shift
  status=0
  bash "$flame.sh" "$@" >out 2>err </dev/null || status=$?
  checks=$((checks + 1))
  [ "$status" = "$want" ] || fault "flame.sh $*: status $status, not $want: $(cat err)"
}
script 2 nowhere
mkdir tools
printf '#!/bin/sh\necho "$@" >asked\necho "no access" >&2\nexit 255\n' >tools/perf
chmod +x tools/perf
PERF=$PWD/tools/perf script 3 nowhere true
grep -qe ' -N ' asked || fault "perf keeps a copy of all binaries: $(cat asked)"
grep -q '^flame.sh: perf may not sample here: no access (kernel.perf_event_paranoid is' err || fault "$(cat err)"
if command -v perf >/dev/null; then
  bash "$flame.sh" probe bash -c 'for ((i = 0; i < 100000; i++)); do :; done; echo done; exit 5' \
    >out 2>err </dev/null && status=0 || status=$?
  if [ "$status" = 3 ]; then
    grep -q '^flame.sh: perf may not sample here: ' err || fault "$(cat err)"
  else
    [ "$status" = 5 ] || fault "the command's status is not kept: $status: $(cat err)"
    says '^done$'
    grep -q '^bash;.* [0-9]*$' probe/flame.folded || fault "no stack of the program: $(head -3 probe/flame.folded)"
    grep -q '<title>bash: ' probe/flame.svg || fault 'the program is not in the picture'
    [ "$(cd probe && echo *)" = 'flame.folded flame.svg' ] || fault "left: $(ls probe)"
  fi
else
  script 3 nowhere true
  grep -q '^flame.sh: no perf: .*linux-perf' err || fault "$(cat err)"
fi
finish
