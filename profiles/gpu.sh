#!/usr/bin/env bash
# ./run gpu: all work that needs a GPU, in the order in which it tells most: checks the library there against the CPU,
# measures it beside the GPU's own copy, and writes the results down as they come. docs/gpu.md is for its users.
#
# It takes the programs of build/gpu-ready, which ./run gpu --prebuild makes on a machine with nvcc and no GPU. Where
# these do not run it builds them. A step has a limit of time; one that fails or hangs ends no other. A kill at any
# moment leaves what was done, and nothing that runs. Exit status: 0 no step failed, 1 some did or did not end in time.
# 3: there is no GPU or nothing to build with. A missed goal is no failure: the table of the report shows it.
#
# Environment: RESHARD_PROGRAM      a program `reshard` that is there; reshard_gpu is beside it. Nothing is built then.
#                                   Steps that take reshard_micro are left out where it is not beside it, too.
#              RESHARD_GPU_PROGRAM, RESHARD_MICRO_PROGRAM  those two, where they are elsewhere
#              RESHARD_GPU_TINY=N   tiny sizes and N times the time, for the test of this script
#              RESHARD_GPU_SEED     the seed of random cases (default: the time)
#              RESHARD_RESULTS      directory of the results (default profiles/results)
#              RESHARD_COMMIT       the commit, where git cannot tell it
#              RESHARD_TEST_PYTHON  an interpreter with torch, to compare with (default python3)
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
directory=${RESHARD_BUILD:-$root/build}
results=${RESHARD_RESULTS:-$root/profiles/results}
cores=$(nproc 2>/dev/null || echo 4)
python=${RESHARD_TEST_PYTHON:-python3}
arguments="$*" ended='' quick='' prebuild='' pages='' listing='' only='' skip='' total=''
usage() {
  local words='[--quick] [--seconds N] [--only NAME,...] [--skip NAME,...] | --list | --prebuild | --pages'
  printf 'run: gpu%s: ./run gpu %s\n' "${1:+: $1}" "$words" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case $1 in
  --quick) quick=1 ;;
  --prebuild) prebuild=1 ;;
  --list) listing=1 ;;
  --pages) pages=1 ;;
  --seconds | --only | --skip)
    [ $# -ge 2 ] && [ -n "$2" ] || usage "$1 takes a word"
    case $1 in --seconds) total=$2 ;; --only) only=$2 ;; *) skip=$2 ;; esac
    shift
    ;;
  *) usage "no option '$1'" ;;
  esac
  shift
done
total=${total:-$(((quick ? 180 : 480) * ${RESHARD_GPU_TINY:-1}))}
given=$total
[[ $total =~ ^[1-9][0-9]{0,4}$ ]] || usage "--seconds: '$total' is no number of seconds"
[ -z "${RESHARD_PROGRAM:-}" ] || RESHARD_PROGRAM=$(realpath "$RESHARD_PROGRAM") || exit 2
[ -z "${RESHARD_GPU_PROGRAM:-}" ] || RESHARD_GPU_PROGRAM=$(realpath "$RESHARD_GPU_PROGRAM") || exit 2
[ -z "${RESHARD_MICRO_PROGRAM:-}" ] || RESHARD_MICRO_PROGRAM=$(realpath "$RESHARD_MICRO_PROGRAM") || exit 2
[[ $directory == /* ]] || directory=$PWD/$directory
[[ $results == /* ]] || results=$PWD/$results
build=$directory/gpu prebuilt=$directory/gpu-sm_90 ready=$directory/gpu-ready
cd "$root" || exit 1
. profiles/gpu_build.sh
. profiles/gpu_steps.sh
. profiles/gpu_report.sh
. profiles/gpu_plan.sh

if [ -n "$prebuild" ]; then
  prebuild
  exit
elif [ -n "$pages" ]; then
  write_pages
  exit
fi

# All names of steps, by the plan itself.
names=$(listing=1 program='' checker='' micro='' work='' out='' gpus=0; set_sizes; plan; printf '%s\n' "${known[@]}")
if [ -n "$listing" ]; then
  awk -F'|' '{ printf "%-22s %3d s at most  %s\n", $1, $2, $3 }' <<<"$names"
  exit
fi
for pattern in ${only//,/ } ${skip//,/ }; do
  found=
  while IFS='|' read -r name _; do
    # shellcheck disable=SC2053 # patterns
    [[ $name != $pattern ]] || found=1
  done <<<"$names"
  [ -n "$found" ] || usage "no step '$pattern' (--list names them)"
done

runs() { # PROGRAM: on this machine; also tells how long its first start takes
  local begin=${EPOCHREALTIME/./}
  timeout -k 1 40 "$1" info >"$work/info.txt" 2>&1 </dev/null || return
  printf 'start: %d ms\n' $(((${EPOCHREALTIME/./} - begin) / 1000)) >"$work/first.txt"
}
if [ -z "${RESHARD_PROGRAM:-}" ]; then
  nvidia-smi -L 2>/dev/null | grep -q '^GPU' || compgen -G '/dev/nvidia[0-9]*' >/dev/null || [ -e /dev/dxg ] ||
    lacking "this machine has no NVIDIA GPU (no nvidia-smi that lists one, no /dev/nvidia0)"
fi
work=$(mktemp -d) out='' commit=$(tell_commit) built='' machine='' || exit 1
trap steps_end EXIT
trap interrupted HUP INT TERM
steps_begin
nccl=$(find_nccl)
[ -z "$nccl" ] || export LD_LIBRARY_PATH=$nccl${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# --- The programs -----------------------------------------------------------------------------------------------------
if [ -n "${RESHARD_PROGRAM:-}" ]; then
  program=$RESHARD_PROGRAM
  runs "$program" || { cat "$work/info.txt" >&2; exit 1; }
  [ "$(grep -c '^cuda:' "$work/info.txt")" -gt 0 ] || lacking "$(sed -n 's/^CUDA *//p' "$work/info.txt")"
fi
report_begin || exit 1
say "results go to $out"
if [ -z "${RESHARD_PROGRAM:-}" ]; then
  program=$ready/reshard
  if runs "$program"; then
    commit=$(sed -n 's/^commit: //p' "$ready/ready.txt" 2>/dev/null)
    built=", by the programs in ${ready#"$root"/}"
  else
    [ ! -e "$program" ] || say "the program in $ready does not run here: $(head -1 "$work/info.txt")"
    command -v cmake >/dev/null || lacking "cmake is missing, and no programs that run are in $ready"
    nvcc=$(find_tool nvcc)
    [ -n "$nvcc" ] || lacking "nvcc is missing: it is in the CUDA toolkit (CUDA_HOME, or in PATH)"
    export build cores nvcc
    export -f build_programs
    mkdir -p "$build" || exit 1
    if ! (only='' skip='' total=99999 && step build 300 "in $build" bash -c build_programs); then
      grep -aE -A8 'error|CMake Error|FAILED|undefined' "$work/build.txt" | cut -c1-300 | head -60 >&2
      exit 1
    fi
    program=$build/reshard built=', built here'
    runs "$program" || { cat "$work/info.txt" >&2; exit 1; }
  fi
fi
gpu=$(sed -n 's/^cuda:0 *\([^,]*\),.*/\1/p' "$work/info.txt")
gpus=$(grep -c '^cuda:' "$work/info.txt")
[ -n "$gpu" ] || lacking "$(sed -n 's/^CUDA *//p' "$work/info.txt")"
machine="$(sed -n 's/^CUDA */CUDA: /p' "$work/info.txt"), $(sed -n 's/^cuda:0 *//p' "$work/info.txt")"
machine+=". $(sed -n 's/^communicators */Communicators: /p' "$work/info.txt")"
clocks=$(describe_gpu)
cat "$work/info.txt" >>"$out/log.txt"
say "$gpu, commit $commit$built; $clocks"

checker=${RESHARD_GPU_PROGRAM:-${program%/*}/reshard_gpu}
micro=${RESHARD_MICRO_PROGRAM:-${program%/*}/reshard_micro}
export program work micro python
export -f check_module describe_gpu_state find_tool measure_collectives measure_rows measure_side_by_side \
  measure_tiles nccl_processes profile_kernels run_tool time_start
set_sizes
find_micro
plan
[ -z "$quick" ] || say 'NCCL, PyTorch, sanitizers, profiles, tiles and sizes are left out, as --quick asks for'
say "$failures of ${#steps[@]} steps failed or were not done, $left_out were left out; $out/report.md has all"
ended=1
report
report_goals
[ "$failures" = 0 ]
