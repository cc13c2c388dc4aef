#!/usr/bin/env bash
# Reshards and straight copies by 1 to all copy threads: a table, and what to expect of it. ./run bench --threads calls
# it.
# usage: threads.sh PROGRAM [SIDE]   of a square f32 matrix, 4 ranks from rows to columns (default 8192: 256 MiB)
set -euo pipefail
program=$1 side=${2:-8192}
cores=$(nproc)
[[ $side =~ ^[1-9][0-9]*$ ]] || { echo "threads: '$side' is no number of rows" >&2; exit 2; }

counts=() # 1, 2, 4, ..., and all
for ((t = 1; t < cores; t *= 2)); do counts+=("$t"); done
counts+=("$cores")

row() { # THREADS PATH: GB/s of the copy, GB/s of ours, ratio
  "$program" bench --shape "${side}x$side" --dtype f32 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 --threads "$1" \
    --path "$2" -n 15 -w 2 | awk '$1 ~ /^[0-9]+$/ && NF >= 9 { print $7, $5, $8 }'
}

echo "| copy threads | memcpy, GB/s | direct, GB/s | of memcpy | packed, GB/s | of memcpy | direct beside 1 thread |"
echo "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
rows=()
for t in "${counts[@]}"; do
  read -r copy direct by_direct < <(row "$t" direct)
  read -r _ packed by_packed < <(row "$t" packed)
  rows+=("$t $copy $direct $by_direct $packed $by_packed")
  awk -v r="${rows[-1]}" -v first="${rows[0]}" 'BEGIN {
    split(r, v); split(first, one)
    printf "| %d | %.1f | %.1f | %.2f | %.1f | %.2f | %.2f |\n", v[1], v[2], v[3], v[4], v[5], v[6], v[3] / one[3] }'
done

printf '%s\n' "${rows[@]}" | awk -v cores="$cores" -v side="$side" '
  { threads[NR] = $1; speed[NR] = $3; if ($3 > most) most = $3; if (NR == 1 || $4 < least) least = $4 }
  END {
    for (i = 1; i <= NR && speed[i] < 0.95 * most; i++) continue
    printf "\n%d threads are enough here: they reach 95 %% of the best direct speed, %.1f GB/s", threads[i], most
    printf " (RESHARD_THREADS=%d).\n", threads[i]
    printf "The least that direct reached beside memcpy by as many threads is %.2f.\n", least
  }'
cat <<'TEXT'

What to expect (on 2 cores it is measured, profiles/figures.md; on many it is an expectation):
- direct stays at 0.9 of memcpy and more for each number of threads, packed at 0.7: both are bound by the same memory.
- GB/s grow with the threads until the memory is busy, on servers mostly by a quarter to a half of a socket's cores.
  From there on more threads change nothing; where they lose more than 10 %, take fewer by RESHARD_THREADS.
- On several sockets a process that is kept on one (numactl -N 0 -m 0) has that socket's memory alone. One rank a
  socket, each with its threads, is faster than one process over all of them.
- A matrix that stays in the last cache is no measure of the memory: give a larger side where memcpy is above what the
  machine's memory has.
TEXT
