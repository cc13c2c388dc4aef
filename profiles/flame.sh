#!/usr/bin/env bash
# A flame graph of the CPU, by perf: DIRECTORY gets flame.svg, and flame.folded, a line a stack with its samples.
# usage: flame.sh DIRECTORY COMMAND...
# Stacks are found by the debug information, which Release builds have; the kernel's where it may be sampled (root, or
# kernel.perf_event_paranoid of 1 or less). perf's own flame graph needs a page from the network, this one does not.
# Nothing is kept in ~/.debug.
# Exit status 3 without perf, or where it may not sample; else the command's own, and 1 where nothing was sampled.
# Environment: FREQUENCY (samples a second of a busy core, default 199), PERF.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: flame.sh DIRECTORY COMMAND..." >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
perf=${PERF:-$(command -v perf)} || true
if [ -z "$perf" ]; then
  echo "flame.sh: no perf: on Debian it comes with: apt-get install linux-perf" >&2
  exit 3
fi
mkdir -p "$out"
trap 'rm -f "$out"/perf.data "$out"/perf.data.old "$out"/perf.txt' EXIT
record=(record -q -N -F "${FREQUENCY:-199}" --call-graph dwarf,16384 -o "$out/perf.data")
if ! "$perf" "${record[@]}" -- true >"$out/perf.txt" 2>&1 </dev/null; then
  echo "flame.sh: perf may not sample here: $(grep -m1 . "$out/perf.txt") (kernel.perf_event_paranoid is" \
    "$(cat /proc/sys/kernel/perf_event_paranoid 2>/dev/null || echo unknown))" >&2
  exit 3
fi
status=0
"$perf" "${record[@]}" -- "$@" || status=$?
"$perf" script -i "$out/perf.data" --no-inline -F comm,tid,period,ip,sym 2>"$out/perf.txt" </dev/null |
  awk -v kind=fold -f "$here/flame.awk" |
  tr ';' '\001' | LC_ALL=C sort | tr '\001' ';' >"$out/flame.folded" # ';' first: f(int) is not amid the stacks of f
if [ ! -s "$out/flame.folded" ]; then
  echo "flame.sh: nothing was sampled: $(grep -m1 . "$out/perf.txt" || echo 'the command used no processor time')" >&2
  exit $((status ? status : 1))
fi
awk -v kind=picture -v title="$(basename "$1") ${*:2}" -f "$here/flame.awk" "$out/flame.folded" >"$out/flame.svg"
echo "$out/flame.svg" >&2
exit "$status"
