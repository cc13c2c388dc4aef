#!/usr/bin/env bash
# Figures of reshard convert and of saved state dicts: figures_files.sh PROGRAM [GIB] [PAIRS] [DIRECTORY...], from the
# root of the source tree. Each conversion alternates with cp --reflink=never of the same files on the same file system;
# the ratio of their speeds is the median of the pairs. Space is reserved within our time, and copied within cp's;
# neither syncs in it. Default directories: the shared memory file system where it has the room, and the build
# directory.
set -euo pipefail
program=${1:?usage: figures_files.sh PROGRAM [GIB] [PAIRS] [DIRECTORY...]}
gib=${2:-2}
pairs=${3:-5}
shift $(($# < 3 ? $# : 3))
maker=$(dirname "$program")/reshard_demo_checkpoint
saver=$(dirname "$program")/reshard_state_bench
directories=("$@")
has_room() { # DIRECTORY N: for N times GIB
  [ "$(df --output=avail -k "$1" 2>/dev/null | tail -1)" -gt $(($2 * gib * 1048576)) ] 2>/dev/null
}
if [ ${#directories[@]} = 0 ]; then
  directories=("$(dirname "$program")")
  ! has_room /dev/shm 3 || directories=(/dev/shm "${directories[@]}")
fi

row() { printf '| %-52s | %-8s | %7s | %8s |\n' "$@"; }
now() { date +%s%N; }
median() { sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

of_ours() { # NS FIELDS UNITS: these nanoseconds over the sum of such fields of JSON, of which so many are a second
  awk -v cp="$1" -v field="$2: *[0-9.e+-]+" -v units="$3" '{
      while (match($0, field)) {
        split(substr($0, RSTART, RLENGTH), p, ":")
        t += p[2]
        $0 = substr($0, RSTART + RLENGTH)
      }
    }
    END { printf "%.2f\n", cp / 1e9 / (t / units) }'
}

ratio() { # IN OPTION...: cp's time / ours, each in turn
  local in=$1 i begin copied
  shift
  cat "$in"/* "$in" >/dev/null 2>&1 || true # into the page cache
  for ((i = 0; i < pairs; i++)); do
    rm -rf "$work/copy" "$work/out" "$work/out.safetensors"
    begin=$(now)
    cp -r --reflink=never "$in" "$work/copy"
    copied=$(($(now) - begin))
    rm -rf "$work/copy"
    "$program" convert "$in" "$@" --json - | of_ours "$copied" '"(reserve|move)_us"' 1e6
  done | median
}

saved() { # the same for a state dict, saved by 4 ranks
  local i begin copied
  for ((i = 0; i < pairs; i++)); do
    rm -rf "$work/out"
    "$saver" save "$work/out" 4 'chunk(0)' $((gib * 1024)) 16 >"$work/line"
    begin=$(now)
    cp -r --reflink=never "$work/out" "$work/copy"
    copied=$(($(now) - begin))
    rm -rf "$work/copy"
    of_ours "$copied" '"(reserve|write)_seconds"' 1 <"$work/line"
  done | median
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
  wait "$pid" && echo "$((most / 1024)) MiB"
}

for directory in "${directories[@]}"; do
  work=$(mktemp -d "$directory/reshard-figures.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  where=$(stat -f -c %T "$directory")
  [ "$directory" != "${directories[0]}" ] || row 'files: speed beside cp --reflink=never' on goal measured
  [ "$directory" != "${directories[0]}" ] || row '---' '---' '---' '---'
  printf '[{"name": "w", "shape": [%d, 16384], "dtype": "f32"}]' $((gib * 16384)) >"$work/model.json"
  "$maker" "$work/model.json" "$work/in.safetensors" >/dev/null
  row "$gib GiB, one file to 4 shards of rows" "$where" '>= 0.9' \
    "$(ratio "$work/in.safetensors" "$work/out" --dst 'chunk(0;0-3)')"
  "$program" convert "$work/in.safetensors" "$work/rows4" --dst 'chunk(0;0-3)' >/dev/null
  row "$gib GiB, 4 shards of rows to one file" "$where" '>= 0.9' "$(ratio "$work/rows4" "$work/out.safetensors")"
  rm -rf "$work/rows4"
  "$program" convert "$work/in.safetensors" "$work/rows8" --dst 'chunk(0;0-7)' >/dev/null
  rm -rf "$work/in.safetensors"
  row "$gib GiB, 8 shards of rows to 3 shards of columns" "$where" '>= 0.8' \
    "$(ratio "$work/rows8" "$work/out" --dst 'chunk(1;0-2)')"
  rm -rf "$work/rows8"
  [ ! -x "$saver" ] || row "$gib GiB of a state dict, saved by 4 ranks" "$where" '>= 0.9' "$(saved)"
  rm -rf "$work/out"
  # All tensors of a large mixture of experts, each with a hundredth of its rows: 578 MiB.
  "$maker" qwen3-30b-a3b "$work/in.safetensors" 1 100 >/dev/null
  row '18,867 tensors, one file to 4 shards' "$where" '>= 0.5' \
    "$(ratio "$work/in.safetensors" "$work/out" --dst 'chunk(0;0-3)')"
  row '  its headers, plans and layouts' "$where" '<= 0.3 s' "$(
    "$program" convert "$work/in.safetensors" "$work/headers" --dst 'chunk(0;0-3)' --json - |
    sed -n 's/.*"open_us": *\([0-9.]*\).*/\1/p' | awk '{ printf "%.2f s", $1 / 1e6 }')"
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
