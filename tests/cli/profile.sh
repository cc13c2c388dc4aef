#!/usr/bin/env bash
# profiles/nsys.sh and ncu.sh with stand-ins for NVIDIA's tools: what they are asked for, what is left, what is said.
. "$(dirname "$0")/common.bash"
mkdir tools
cat >tools/nsys <<'TEXT'
#!/usr/bin/env bash
echo "nsys $*" >>asked
case $1 in
profile)
  for a; do [[ $a != --output=* ]] || touch "${a#*=}.nsys-rep"; done
  while [[ $1 == profile || $1 == --* ]]; do shift; done
  exec "$@"
  ;;
stats)
  [ "$3" != nvtx_kern_sum ] || { echo 'Report nvtx_kern_sum is unknown' >&2; exit 1; }
  [ -e "${!#}" ] && echo "Time (%),Range"
  ;;
esac
TEXT
cat >tools/ncu <<'TEXT'
#!/usr/bin/env bash
echo "ncu $*" >>asked
if [ "$1" = --import ]; then [ -e "$2" ] && echo '"ID","Kernel Name"'; exit; fi
while [ $# -gt 0 ]; do
  case $1 in
  --nvtx-include) range=$2; shift 2 ;;
  --kernel-name) class=$2; shift 2 ;;
  --export) out=$2; shift 2 ;;
  --launch-count | --section | --clock-control) shift 2 ;;
  --*) shift ;;
  *) break ;;
  esac
done
"$@" || exit 1
class=${class#regex:}
for kernel in reshard@pack/-copy_transposes reshard@copy/-copy_rows_limited -cast -cast_listed_by_others -ncclKernel; do
  [[ ${kernel%%-*} != "${range:-}" || ! ${kernel#*-} =~ $class ]] || touch "$out.ncu-rep"
done
exit 0
TEXT
chmod +x tools/*
bench=(bench --shape 64x64 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2 -n 1)
script() { # STATUS NAME ARGUMENT...
  local want=$1 name=$2
  shift 2
  rm -f asked
  status=0
  PATH=$PWD/tools:$PATH bash "$SOURCE/profiles/$name" "$@" >out 2>err </dev/null || status=$?
  checks=$((checks + 1))
  [ "$status" = "$want" ] || fault "$name: status $status, expected $want: $(cat err)"
}
script 0 nsys.sh timeline "$RESHARD" "${bench[@]}"
says ' f32 '
cuda='cuda_api_sum.csv cuda_gpu_kern_sum.csv cuda_gpu_mem_time_sum.csv'
[ "$(cd timeline && echo *)" = "$cuda nvtx_gpu_proj_sum.csv nvtx_kern_sum.txt nvtx_sum.csv reshard.nsys-rep" ] ||
  fault "left: $(ls timeline)"
grep -q 'nsys.sh: no nvtx_kern_sum' err || fault "a lacking report is not named: $(cat err)"
grep -q 'profile --trace=cuda,nvtx,osrt ' asked || fault "$(cat asked)"
script 0 ncu.sh kernels "$RESHARD" "${bench[@]}"
[ "$(cd kernels && echo *)" = 'cast.csv cast.ncu-rep copy-copy_rows.csv copy-copy_rows.ncu-rep '\
'pack-copy_transposes.csv pack-copy_transposes.ncu-rep' ] || fault "left: $(ls kernels)"
[ "$(grep -c -- '--nvtx-include reshard@' asked)" = 24 ] || fault "not each range and class: $(cat asked)"
! grep -- '--export' asked | grep -vE -- '--kernel-name regex:\^\([^ ]+\)\$ --launch-count 1 ' ||
  fault 'a kernel that is not ours could be replayed'
# Each kernel that moves elements is of one class; one that waits for other ranks is of none.
classes=$(grep -oE 'regex:[^ ]+' asked | sort -u | sed 's/^regex://')
kernels=$(grep -ohE '\b[a-z_]+\(RS_GRID_CONSTANT|\bcast_listed\(' "$SOURCE"/kernels/*.cu | sed 's/(.*//')
for kernel in $kernels; do
  n=0
  for class in $classes; do [[ ! $kernel =~ $class ]] || n=$((n + 1)); done
  [ $n = $([ "$kernel" = barrier_peers ] && echo 0 || echo 1) ] || fault "kernel $kernel is of $n classes"
done
[ "$(wc -w <<<"$kernels")" = 13 ] || fault "kernels: $kernels"
script 1 ncu.sh none false
for name in nsys.sh ncu.sh; do
  script 2 $name nowhere
  tool=${name%.sh}
  rm tools/"$tool"
  if ! command -v "$tool" >/dev/null && ! compgen -G "/usr/local/cuda/bin/$tool" >/dev/null &&
    ! compgen -G '/opt/nvidia/nsight-*' >/dev/null; then
    script 3 $name nowhere true
    grep -q "^$name: no $tool" err || fault "$(cat err)"
  fi
done
finish
