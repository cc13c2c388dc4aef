#!/usr/bin/env bash
# Figures of reshard convert and of saved state dicts: figures_files.sh PROGRAM [GIB] [SECONDS] [DIRECTORY...], from the
# root of the source tree. Each conversion alternates with cp --reflink=never of the same files on the same file system.
# The ratio of their speeds is the median of the pairs in which cp was fastest. They end where the row is settled
# (samples.bash): 6 at least, and 4 at most once the row's part of so many seconds (default 115) is over. The spread
# stands in brackets. Space is reserved within our time, and copied within cp's; neither syncs in it. GIB is 1: what is
# written and taken away again then stays below the share of memory at which the system begins to write it to the disk.
# Default directories: the shared memory file system where it has the room, and the build directory.
set -euo pipefail
program=${1:?usage: figures_files.sh PROGRAM [GIB] [SECONDS] [DIRECTORY...]}
gib=${2:-1}
started=$SECONDS seconds=${3:-115} made=0
. "$(dirname "$0")/samples.bash"
shift $(($# < 3 ? $# : 3))
maker=$(dirname "$program")/reshard_demo_checkpoint
micro=$(dirname "$program")/reshard_micro
saver=$(dirname "$program")/reshard_state_bench
directories=("$@")
has_room() { # DIRECTORY N: for N times GIB
  [ "$(df --output=avail -k "$1" 2>/dev/null | tail -1)" -gt $(($2 * gib * 1048576)) ] 2>/dev/null
}
if [ ${#directories[@]} = 0 ]; then
  directories=("$(dirname "$program")")
  ! has_room /dev/shm 3 || directories=(/dev/shm "${directories[@]}")
fi

row() { printf '| %-52s | %-9s | %8s | %25s |\n' "$@"; }
now() { date +%s%N; }

pair_rows=6 # of a directory
measure() { # GOAL LABEL COMMAND...: a row of pairs; it has what earlier rows have left of their time, too
  made=$((made + 1))
  end=$((started + seconds * made / (pair_rows * ${#directories[@]})))
  row "$2" "$where" "$1" "$("${@:3}")"
}
pairs() { # COMMAND...: of pairs that it makes, a ratio each; prints the figure
  local n
  rm -f "$work"/samples "$work"/headers
  for ((n = 1; n <= 9; n++)); do
    "$@" >>"$work/samples"
    if [ "$n" -ge 4 ] && { [ "$SECONDS" -ge "$end" ] || settle ratio "$work/samples" >/dev/null; }; then break; fi
  done
  (settle ratio "$work/samples" || true) | show_figure ''
}

of_ours() { # NS FIELDS UNITS: these ns over the sum of such fields of JSON, so many of which are 1 s, and their pace
  awk -v cp="$1" -v field="$2: *[0-9.e+-]+" -v units="$3" '{
      while (match($0, field)) {
        split(substr($0, RSTART, RLENGTH), p, ":")
        t += p[2]
        $0 = substr($0, RSTART + RLENGTH)
      }
    }
    END { printf "%.4f %.4f\n", cp / 1e9 / (t / units), 1e9 / cp }'
}

core_pace() { # steps of a core in a nanosecond
  [ ! -x "$micro" ] || "$micro" --benchmark_filter='^core_chain' --benchmark_min_time=0.02 --benchmark_format=csv \
    2>/dev/null | awk -F, '/^"core_chain"/ { print $7 / 1e9 }'
}

ratio() { # IN OPTION...: cp's time / ours; the time for headers, layouts and plans goes to a file
  local in=$1 begin copied
  shift
  rm -rf "$work/copy" "$work/out" "$work/out.safetensors"
  begin=$(now)
  cp -r --reflink=never "$in" "$work/copy"
  copied=$(($(now) - begin))
  rm -rf "$work/copy"
  "$program" convert "$in" "$@" --json - >"$work/line"
  of_ours "$copied" '"(reserve|move)_us"' 1e6 <"$work/line"
  sed -n 's/.*"open_us": *\([0-9.e+-]*\).*/\1/p' "$work/line" |
    awk -v pace="$(core_pace)" '{ print $1 / 1e6, pace }' >>"$work/headers"
}
ratios() { # IN OPTION...
  cat "$1"/* "$1" >/dev/null 2>&1 || true # into the page cache
  sync -f "$1"                            # nothing else is written while it is measured
  pairs ratio "$@"
}

digested() { # IN: the speed of a conversion with digests over that without
  local option speed speeds=()
  for option in --no-digests ''; do
    rm -rf "$work/out"
    # shellcheck disable=SC2086 # no option is no word
    "$program" convert "$1" "$work/out" --dst 'chunk(0;0-3)' $option --json - >"$work/line"
    speed=$(of_ours 1000000000 '"(reserve|move)_us"' 1e6 <"$work/line")
    speeds+=("${speed% *}")
  done
  awk -v without="${speeds[0]}" -v with="${speeds[1]}" 'BEGIN { print with / without }'
}

saved() { # the same for a state dict, saved by 4 ranks
  local begin copied
  rm -rf "$work/out"
  "$saver" save "$work/out" 4 'chunk(0)' $((gib * 1024)) 16 >"$work/line"
  begin=$(now)
  cp -r --reflink=never "$work/out" "$work/copy"
  copied=$(($(now) - begin))
  rm -rf "$work/copy"
  of_ours "$copied" '"(reserve|write)_seconds"' 1 <"$work/line"
}

peak() { # COMMAND...: its largest resident set, in MiB, as seen 50 times a second
  local pid line most=0
  "$@" >/dev/null &
  pid=$!
  while line=$(grep VmHWM "/proc/$pid/status" 2>/dev/null) && [ -n "$line" ]; do
    line=${line//[^0-9]/}
    most=$((line > most ? line : most))
    sleep 0.02
  done
  wait "$pid" && awk -v kib="$most" 'BEGIN { printf "%.1f MiB\n", kib / 1024 }'
}

for directory in "${directories[@]}"; do
  work=$(mktemp -d "$directory/reshard-figures.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  where=$(stat -f -c %T "$directory")
  [ "$directory" != "${directories[0]}" ] || row 'files: speed beside cp --reflink=never' on goal measured
  [ "$directory" != "${directories[0]}" ] || row '---' '---' '---' '---'
  printf '[{"name": "w", "shape": [%d, 16384], "dtype": "f32"}]' $((gib * 16384)) >"$work/model.json"
  "$maker" "$work/model.json" "$work/in.safetensors" >/dev/null
  measure '>= 0.9' "$gib GiB, one file to 4 shards of rows" ratios "$work/in.safetensors" "$work/out" \
    --dst 'chunk(0;0-3)'
  "$program" convert "$work/in.safetensors" "$work/rows4" --dst 'chunk(0;0-3)' >/dev/null
  measure '>= 0.9' "$gib GiB, 4 shards of rows to one file" ratios "$work/rows4" "$work/out.safetensors"
  rm -rf "$work/rows4"
  "$program" convert "$work/in.safetensors" "$work/rows8" --dst 'chunk(0;0-7)' >/dev/null
  rm -rf "$work/in.safetensors"
  measure '>= 0.8' "$gib GiB, 8 shards of rows to 3 shards of columns" ratios "$work/rows8" "$work/out" \
    --dst 'chunk(1;0-2)'
  rm -rf "$work/rows8"
  [ ! -x "$saver" ] || measure '>= 0.9' "$gib GiB of a state dict, saved by 4 ranks" pairs saved
  rm -rf "$work/out"
  # All tensors of a large mixture of experts, each with a hundredth of its rows: 578 MiB.
  "$maker" qwen3-30b-a3b "$work/in.safetensors" 1 100 >/dev/null
  measure '>= 0.5' '18,867 tensors, one file to 4 shards' ratios "$work/in.safetensors" "$work/out" --dst 'chunk(0;0-3)'
  row '  its headers, plans and layouts' "$where" '<= 0.3 s' \
    "$( (settle time "$work/headers" || true) | show_figure s)"
  measure '>= 0.87' '  with digests of what is written, to without' pairs digested "$work/in.safetensors"
  rm -rf "$work/"*
  # A file of ten times the size that is all hole behind its header; what is written has its full size on the disk.
  if [ "$directory" = "${directories[-1]}" ] && has_room "$work" 11; then
    header=$(printf '{"w":{"dtype":"F32","shape":[%d,16384],"data_offsets":[0,%d]}}' \
      $((10 * gib * 16384)) $((10 * gib << 30)))
    printf "\\x$(printf %02x ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header" >"$work/sparse.safetensors"
    truncate -s $((8 + ${#header} + (10 * gib << 30))) "$work/sparse.safetensors"
    row "$((10 * gib)) GiB, one sparse file to 4 shards of columns: memory" "$where" '<= 256' \
      "$(peak "$program" convert "$work/sparse.safetensors" "$work/out" --dst 'chunk(1;0-3)')"
  fi
  rm -rf "$work"
done
