#!/usr/bin/env bash
# trace: a step for each piece of work, on the CPU and, where GPUS says how many there are, on GPUs; there also a flow
# for each edge, from a record to a wait that is over later; the picture; bench --trace.
. "$(dirname "$0")/common.bash"
python=$(command -v python3) && "$python" -c 'import json' 2>/dev/null || python=

# check EXPRESSION: a Python expression about the trace in $work/out is true.
check() {
  [ -n "$python" ] || return 0
  "$python" -c '
import json, sys
j = json.load(open(sys.argv[1]))
events = j["traceEvents"]
def of(phase, cat): return [e for e in events if e["ph"] == phase and e.get("cat") == cat]
work, waits, records = of("X", "work"), of("X", "wait"), of("X", "record")
starts, ends = {e["id"]: e for e in of("s", "edge")}, {e["id"]: e for e in of("f", "edge")}
lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
def within(flow, steps):
    return any(s["pid"] == flow["pid"] and s["tid"] == flow["tid"]
               and s["ts"] <= flow["ts"] <= s["ts"] + s["dur"] + 1e-6 for s in steps)
def named(name): return [e for e in work if e["name"].split()[0] == name]
def overlap(a, b): return a["ts"] < b["ts"] + b["dur"] - 0.002 and b["ts"] < a["ts"] + a["dur"] - 0.002
sys.exit(0 if eval(sys.argv[2]) else 1)' "$work/out" "($1)" ||
    fault "not valid, or not so: $1: $(head -c 400 "$work/out")"
}
case=(--shape 96x128 --src 'chunk(1)' --dst 'mesh(a=2,b=2;S0,S1)' --ranks 4 --path packed --workspace 4K)
any='all((e["pid"], e["tid"]) in lanes for e in work + waits + records) and all(e["ts"] >= 0
  and e["dur"] > 0 for e in work + waits + records)'

if [ -z "${GPUS:-}" ]; then
  expect 0 trace "${case[@]}" --json -
  check "$any"
  check 'sorted(lanes.values()) == ["rank 0", "rank 1", "rank 2", "rank 3"] and len(named("execute")) == 4
    and len(named("self_copy")) == 1'
  check '[e["args"]["round"] for e in named("round")] == list(range(len(named("round")))) and len(named("round")) > 2
    and not waits and not starts'
  expect 0 trace "${case[@]}" --path direct --json -
  check 'len(named("copy")) == 1'
  # Copy threads have tracks of their own; one that wakes late takes no share, of more bytes sooner.
  if [ "$(nproc)" -gt 1 ]; then
    for path in direct packed; do
      for ((try = 0, rows = 1536; try < 100; try++)); do
        [ $try -lt 20 ] || rows=12288
        expect 0 trace --shape ${rows}x1024 --src 'chunk(1)' --dst 'chunk(0)' --ranks 4 --path $path --json -
        ! grep -q '"copy thread 1"' out || break
      done
      check 'lanes and "copy thread 1" in lanes.values() and {"rank 0", "rank 3"} <= set(lanes.values())'
      check "$any"
      [ $path = direct ] ||
        check 'named("share") and sum(e["args"]["bytes"] for e in named("unpack")) == '"$rows * 1024 * 3"
      [ $path = packed ] || check 'len({e["tid"] for e in named("share")}) > 1'
      check 'not any(a["tid"] == b["tid"] and a is not b and overlap(a, b) and not (within(a, [b])
        or within(b, [a])) for a in work for b in work)'
    done
  fi
  expect 0 bench "${case[@]}" -n 2 --trace there
  cp there out
  check 'len(named("execute")) == 4'
  refuse 2 '--svg FILE or --json FILE' trace "${case[@]}"
else
  ways=("-g $GPUS" '-g 1')
  [ "${NCCL:-1}" = 0 ] || ways+=('--comm nccl')
  for how in "${ways[@]}"; do
    expect 0 trace "${case[@]}" --device cuda $how --json -
    check "$any"
    check 'len(starts) == len(ends) > 10 and starts.keys() == ends.keys()'
    check 'all(within(s, records) for s in starts.values()) and all(within(f, waits) for f in ends.values())'
    check 'all(starts[i]["ts"] <= ends[i]["ts"] and starts[i]["name"] == ends[i]["name"] for i in starts)'
    check 'len(waits) == len(starts) and {"unpack after move", "move after unpack"} <= {e["name"] for e in waits}'
    check 'sum(e["args"]["bytes"] for e in named("move")) + sum(e["args"]["bytes"] for e in named("self_copy"))
      == 96 * 128 * 4'
    check 'any(overlap(u, m) and u["pid"] == m["pid"]
      and u["args"]["round"] < m["args"]["round"] for u in named("unpack") for m in named("move"))'
    check 'not any(overlap(a, b) for a in work for b in work if a is not b and (a["pid"], a["tid"]) == (b["pid"],
      b["tid"]))'
  done
  case+=(--device cuda -g "$GPUS")
  expect 0 bench "${case[@]}" -n 1 -G --trace there
  cp there out
  check 'len(starts) > 10 and named("unpack")'
fi
expect 0 trace "${case[@]}" --svg picture.svg
says '^[0-9]+ tracks?, [0-9]+ steps?, [0-9]+ edges?, '
expect 0 trace --shape 8 --src 'rank(0)' --dst 'rank(0)' --ranks 1 --threads 1 --svg one.svg
says '^1 track, [0-9]+ steps?, 0 edges, '
# the legend has what is in the picture
shown() { [ "$(grep -c ">$1<" picture.svg)" = "$2" ] ||
  fault "'$1' in the legend is not $2: $(tail -c 600 picture.svg)"; }
edges=0
[ -z "${GPUS:-}" ] || edges=1
shown 'work of a round' 1; shown 'of no round' 1; shown 'an edge [^<]*' $edges; shown 'to another GPU' $edges
# In the picture, too, no arrow ends left of where it starts. The legend has each kind of thing in it, and no other.
[ -z "$python" ] || "$python" - picture.svg <<'TEXT' || fault "the picture, or its legend: $(head -c 300 picture.svg)"
import re, sys, xml.dom.minidom
picture = xml.dom.minidom.parse(sys.argv[1]).documentElement
bottom = float(picture.getAttribute("height")) - 40 # below it there is the legend alone
def all_of(tag): return picture.getElementsByTagName(tag)
def above(line, y): return float(line.getAttribute(y)) < bottom
inside, arrows = set(), 0
boxes = [r for r in all_of("rect") if r.parentNode.tagName == "g"]
for box in boxes:
    grey = box.getAttribute("fill") == "#9aa5b1"
    faint = box.getAttribute("fill-opacity") == "0.60"
    inside.add("work of a round" if not grey else "of no round" if faint else "a part of the work around it")
for line in all_of("line"):
    if line.getAttribute("stroke") == "#7b8794" and above(line, "y1"):
        inside.add("it waits")
for group in all_of("g"):
    if group.getAttribute("stroke"):
        x = [float(word) for word in re.findall(r"[-\d.]+", group.getElementsByTagName("path")[0].getAttribute("d"))]
        assert x[-2] >= x[0], x
        arrows += 1
        far = group.getAttribute("stroke") == "#c2410c"
        inside.add("to another GPU" if far else "an edge (pale: there is nothing to wait for)")
texts = [t for t in all_of("text") if t.getAttribute("text-anchor") == "start"]
legend = {t.firstChild.data for t in texts if float(t.getAttribute("y")) > bottom + 15}
assert legend == inside, (legend, inside)
names = [t.firstChild.data for t in all_of("text")]
assert len(boxes) >= 6 and (arrows > 10 or "rank 0" in names), (boxes, arrows)
TEXT
[ -z "${GPUS:-}" ] || finish

# Several processes: one file with one clock. All ranks' executes have begun before the first of them ends, since each
# waits for the others; waits have names, and counters tell what moves.
joined() { # MICROSECONDS-OFF NAME-OF-WAITS BYTES: the trace of 3 processes in $work/out
  check "len(lanes) >= 3 and {n for n in lanes.values() if n.startswith('rank ')} == {'rank 0', 'rank 1', 'rank 2'}"
  check "len({e['pid'] for e in named('execute')}) == 3 and
    max(e['ts'] for e in named('execute')) <= min(e['ts'] + e['dur'] for e in named('execute')) + $1"
  check "min(e['ts'] for e in work) == 0 and any(e['name'] == '$2' for e in waits)"
  check "sum({e['pid']: e['args']['bytes'] for e in of('C', None) if e['name'] == 'bytes'}.values()) == $3 and
    all(v == 0 for v in {e['pid']: e['args']['GB/s'] for e in of('C', None) if e['name'] == 'GB/s'}.values())"
}
three=(--shape 99x1024 --src 'chunk(0)' --dst 'chunk(1)')
expect 0 trace "${three[@]}" --processes 3 --path direct --json t.json --svg t.svg
says '^3 processes, one clock \(CLOCK_MONOTONIC\)$'
[ ! -e t.json.1 ] && [ ! -e t.svg.1 ] || fault "a file a process: $(ls)"
grep -q '>process 2, CPU<' t.svg && grep -q '<title>waits: meeting: ' t.svg ||
  fault 'no processes or waits in the picture'
cp t.json out
joined 0.01 meeting $((99 * 1024 * 4))
if type mpirun >/dev/null 2>&1 && mpirun --version | grep -q 'Open MPI' &&
  "$RESHARD" info | grep -q '^communicators.*mpi'; then
  mpi() { # NODE: 3 processes, of which the last is of that node
    mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 env RESHARD_NODE=0 "$RESHARD" trace "${three[@]}" \
      --json m.json : -n 1 env RESHARD_NODE="$1" "$RESHARD" trace "${three[@]}" --json m.json >out 2>err </dev/null ||
      fault "trace over MPI: $(cat err)"
    checks=$((checks + 1))
  }
  mpi 0
  says '^3 processes, one clock'
  mpi 1
  says '^3 processes, clocks compared with that of process 0: off by [0-9.]+ us at most$'
  off=$(sed -nE 's/.*: off by ([0-9.]+) us at most$/\1/p' out)
  cp m.json out
  check "len({e['pid'] for e in named('execute')}) == 3 and
    max(e['ts'] for e in named('execute')) <= min(e['ts'] + e['dur'] for e in named('execute')) + 2 * ${off:-0} + 0.01"
  grep -q 'clocks of several nodes, within [0-9.]* us' m.json || fault 'the trace does not say how clocks were compared'
fi
finish
