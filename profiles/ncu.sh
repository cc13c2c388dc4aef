#!/usr/bin/env bash
# reshard's kernels one by one, by Nsight Compute: a report for each range and class of kernel, and its figures as CSV.
# usage: ncu.sh DIRECTORY COMMAND...
# Only kernels of reshard's own are profiled: ncu runs a kernel several times, and one of NCCL's, which waits for other
# ranks, would hang. Of each class LAUNCHES (default 1) launches are taken, in the ranges of the domain `reshard` that
# launch it. Exit status 3 without ncu. Environment: LAUNCHES, SECTIONS (default what a roofline needs), NCU.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: ncu.sh DIRECTORY COMMAND..." >&2; exit 2; }
out=$1
shift
places=(/usr/local/cuda/bin/ncu /opt/nvidia/nsight-compute/*/ncu)
ncu=${NCU:-$(command -v ncu || ls "${places[@]}" 2>/dev/null | tail -1)} || true
if [ -z "$ncu" ]; then
  echo "ncu.sh: no ncu: it comes with the CUDA toolkit, or from developer.nvidia.com/nsight-compute" >&2
  exit 3
fi
mkdir -p "$out"
sections=()
roofline='SpeedOfLight SpeedOfLight_RooflineChart MemoryWorkloadAnalysis Occupancy LaunchStats WarpStateStats'
for section in ${SECTIONS:-$roofline}; do
  sections+=(--section "$section")
done

# Range and class: packs, unpacks and copies are made of the same kernels, which differ by the shape of their boxes.
found=0
for range in pack unpack copy keep; do
  for class in copy_rows copy_transposes copy_bulk copy_spans; do
    name=$range-$class
    "$ncu" --nvtx --nvtx-include "reshard@$range/" --kernel-name "$class" --launch-count "${LAUNCHES:-1}" \
      --clock-control none --force-overwrite --export "$out/$name" "${sections[@]}" "$@" >"$out/$name.txt" 2>&1 ||
      { echo "ncu.sh: $name: the command failed: see $out/$name.txt" >&2; continue; }
    if [ -e "$out/$name.ncu-rep" ]; then
      "$ncu" --import "$out/$name.ncu-rep" --page raw --csv --print-units base >"$out/$name.csv"
      rm "$out/$name.txt"
      found=$((found + 1))
    else # this command launches no such kernel there
      rm -f "$out/$name.txt"
    fi
  done
done
[ $found -gt 0 ] || { echo "ncu.sh: no kernel of reshard's ran in the ranges pack, unpack, copy and keep" >&2; exit 1; }
ls "$out"
