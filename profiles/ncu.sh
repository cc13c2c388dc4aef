#!/usr/bin/env bash
# reshard's kernels one by one, by Nsight Compute: a report for each range and class of kernel, and its figures as CSV.
# usage: ncu.sh DIRECTORY COMMAND...
# Kernels of reshard's copies, casts and selections alone are profiled: ncu runs a kernel several times, and one that
# waits for other ranks, as NCCL's do, would hang. Of each class LAUNCHES (default 1) launches are taken: copies in the
# ranges of the domain `reshard` that launch them. Exit status 3 without ncu. Environment: LAUNCHES, SECTIONS (default
# what a roofline needs), NCU.
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

# Profiles some launches of these kernels alone; NAME.ncu-rep and NAME.csv are left where the command has them.
found=0
profile() { # NAME KERNELS RANGE COMMAND...: an empty range is none
  local name=$1 kernels=$2 filter=()
  [ -z "$3" ] || filter=(--nvtx --nvtx-include "reshard@$3/")
  shift 3
  rm -f "$out/$name".{ncu-rep,csv} # of another run
  "$ncu" "${filter[@]}" --kernel-name "regex:^($kernels)\$" --launch-count "${LAUNCHES:-1}" \
    --clock-control none --force-overwrite --export "$out/$name" "${sections[@]}" "$@" >"$out/$name.txt" 2>&1 ||
    { echo "ncu.sh: $name: the command failed: see $out/$name.txt" >&2; return; }
  rm "$out/$name.txt"
  [ -e "$out/$name.ncu-rep" ] || return 0
  "$ncu" --import "$out/$name.ncu-rep" --page raw --csv --print-units base >"$out/$name.csv"
  found=$((found + 1))
}

# Range and class: packs, unpacks and copies are made of the same kernels, which differ by the shape of their boxes. A
# launch of limited blocks (max_blocks) has a kernel of its own.
for range in pack unpack copy self_copy; do
  for class in copy_rows copy_transposes copy_bulk copy_spans copy_vectors copy_converts; do
    profile "$range-$class" "$class(_limited)?" "$range" "$@"
  done
done
profile cast 'cast(_listed)?' '' "$@" # calls that move tensors make these, in no range of their own
profile select select '' "$@"
[ $found -gt 0 ] || { echo "ncu.sh: no kernel of reshard's copies, casts or selections ran" >&2; exit 1; }
ls "$out"
