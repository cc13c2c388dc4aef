#!/usr/bin/env bash
# Each line of a fenced block of README and docs/ that begins with `reshard`, and each example of --help, runs as it
# stands: in a directory of its own, with inputs made for it, which stay as they are. What would take more than 256 MiB
# is scaled down. What needs a GPU has to be refused for that alone where there is none.
. "$(dirname "$0")/common.bash"
. "$(dirname "$0")/files.bash"
unset RANK WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMI_RANK PMI_SIZE RESHARD_TIMEOUT_MS
mkdir bin inputs
printf '#!/bin/sh\nexec "%s" "$@"\n' "$RESHARD" >bin/reshard # a link would not find its rules
printf '#!/bin/sh\nexec grep -q findings\n' >bin/jq
chmod +x bin/*
PATH=$work/bin:$PATH

cd inputs || exit 1
"$checkpoint" "$SOURCE/bench/models/demo-llama.json" model.safetensors 1 >/dev/null || fault 'no checkpoint'
expect 0 convert model.safetensors model --index 2M
cp model.safetensors a.safetensors
cp model.safetensors b.safetensors
cp -r "$SOURCE/tests/files/distcp/sharded" step-1000
(npy '<f4' False '(64, 32)' && bytes 8192 0) >weights.npy
rm -f out err
cd ..
sums() { find . -type f -exec cksum {} + | sort -k3; }
(cd inputs && sums) >inputs.sums

commands_of() { # PAGE: lines of fenced blocks, continued ones joined
  awk '/^ *```/ { inside = !inside; next }
    inside {
      line = line $0
      if (sub(/\\$/, "", line)) next
      if (line ~ /^(mpirun .*)?reshard /) print line
      line = ""
    }' "$1"
}
examples_of() { # COMMAND...: of --help, without the words behind
  "$RESHARD" "$@" --help | sed -nE '/^examples:/,/^$/ s/^  (reshard .*)$/\1/p' | sed -E 's/ {3,}.*//; s/ +#.*//'
}

ran=0 skipped=0
try() { # PAGE LINE
  local page=$1 line=$2 before=${2%%#*} status=0
  if [[ $line == mpirun* ]]; then
    [[ $line == *'--device cuda'* ]] || mpirun --version >/dev/null 2>&1 ||
      { printf 'skipped, needs MPI: %s\n' "$before" && skipped=$((skipped + 1)) && return; }
    [[ $line != *'--device cuda'* ]] || before=reshard${before#*reshard}
    before=${before/mpirun /mpirun --allow-run-as-root --oversubscribe --bind-to none }
  fi
  case $before in
  *'reshard bench '*) [[ $before != *--shape* && $before != *--suite* ]] || before+=' --scale 1/1024' ;;
  *'reshard verify '*) before+=' --cases 100' ;;
  esac
  checks=$((checks + 1))
  bash -o pipefail -c "$before" >"$work/out" 2>"$work/err" </dev/null || status=$?
  if [ "$status" = 3 ] && [[ $line == *'--device cuda'* || $line == *' -g '* ]] &&
    grep -qE '^reshard: error: (--device cuda|-g [0-9]+): ' "$work/err"; then
    printf 'skipped, needs GPUs: %s\n' "$before"
    skipped=$((skipped + 1))
    return
  fi
  ran=$((ran + 1))
  [ "$status" = 0 ] || fault "$page: '$before': status $status: $(tail -c 300 "$work/err")"
}

try_all() { # PAGE, its lines on standard input
  local line lines=()
  mapfile -t lines
  mkdir scratch
  cp -r inputs/. scratch
  cd scratch || exit 1
  [ "$1" != 'reshard check --help' ] || reshard convert model.safetensors shards --dst @tp --ranks 2 >/dev/null
  for line in "${lines[@]}"; do try "$1" "$line"; done
  sums >"$work/after.sums" # what is new is not of interest
  ! comm -23 <(sort "$work/inputs.sums") <(sort "$work/after.sums") | grep . >"$work/changed" ||
    fault "$1: changes its inputs: $(cat "$work/changed")"
  cd ..
  rm -rf scratch
}

for page in "$SOURCE/README.md" "$SOURCE"/docs/*.md; do
  try_all "${page#"$SOURCE/"}" < <(commands_of "$page")
done
try_all 'reshard --help' < <(examples_of)
for command in plan convert check bench trace verify; do
  try_all "reshard $command --help" < <(examples_of "$command")
done
printf '%d lines ran, %d were skipped\n' "$ran" "$skipped"
[ "$ran" -ge 20 ] || fault "only $ran lines ran"
finish
