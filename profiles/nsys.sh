#!/usr/bin/env bash
# A timeline of a program that uses reshard, by Nsight Systems, and the sums of its ranges. docs/profile.md reads one.
# usage: nsys.sh DIRECTORY COMMAND...
# writes DIRECTORY/reshard.nsys-rep, and a CSV a report: ranges of the host, the GPU's time in each range, kernels by
# range, kernels, copies, calls of the CUDA runtime. Exit status 3 without nsys.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: nsys.sh DIRECTORY COMMAND..." >&2; exit 2; }
out=$1
shift
places=(/usr/local/cuda/bin/nsys /opt/nvidia/nsight-systems/*/bin/nsys)
nsys=${NSYS:-$(command -v nsys || ls "${places[@]}" 2>/dev/null | tail -1)} || true
if [ -z "$nsys" ]; then
  echo "nsys.sh: no nsys: it comes with the CUDA toolkit, or from developer.nvidia.com/nsight-systems" >&2
  exit 3
fi
mkdir -p "$out"

# Ranges of all domains: NCCL has one too. The ranks' threads show their waits in osrt.
"$nsys" profile --trace=cuda,nvtx,osrt --sample=none --cpuctxsw=none --force-overwrite=true --output="$out/reshard" "$@"

# A report that this version of nsys does not have is named, and the others are made.
for report in nvtx_sum nvtx_gpu_proj_sum nvtx_kern_sum cuda_gpu_kern_sum cuda_gpu_mem_time_sum cuda_api_sum; do
  "$nsys" stats --report "$report" --format csv --force-export=true --output - "$out/reshard.nsys-rep" \
    >"$out/$report.csv" 2>"$out/$report.txt" && rm "$out/$report.txt" && continue
  rm -f "$out/$report.csv"
  echo "nsys.sh: no $report: see $out/$report.txt" >&2
done
ls "$out"
