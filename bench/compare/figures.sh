#!/usr/bin/env bash
# The tables of figures in profiles/figures.md but those of files: figures.sh PROGRAM [SECONDS], from the root of the
# source tree.
#
# Rows are sampled in rounds, each by a program of its own: the samples of a row lie minutes apart, in other memory. A
# row that is settled (samples.bash) rests; rounds go on until all are, or so many seconds (default 200) are over. The
# spread stands in brackets. A ratio is that of a straight copy of as many bytes by as many threads, in turn with ours;
# the rate of that copy stands beside each sample.
set -euo pipefail
program=${1:?usage: figures.sh PROGRAM [SECONDS]}
micro=$(dirname "$program")/reshard_micro
end=$((SECONDS + ${2:-200}))
. "$(dirname "$0")/samples.bash"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

row() { printf '| %-58s | %10s | %25s |\n' "$@"; }

# --- Rows: labels, goals, and what is sampled -------------------------------------------------------------------------
labels=() goals=() kinds=() units=() commands=()
add() { # KIND UNIT GOAL LABEL COMMAND...: of samples that the command prints; KIND `head` is a head, `once` needs one
  kinds+=("$1") units+=("$2") goals+=("$3") labels+=("$4")
  commands+=("$(printf '%q ' "${@:5}")")
}
head_of() { add head '' goal "$1"; }

bench_ratio() { # BENCH-OPTION...: the ratio, and GB/s of the straight copy
  "$program" bench -n 7 -w 2 "$@" --json - |
    sed -n 's/.*"memcpy_gbps": *\([0-9.]*\).*"ratio": *\([0-9.]*\).*/\2 \1/p' | head -1
}
copy() { # GOAL LABEL BENCH-OPTION...
  add ratio '' ">= $1" "$2" bench_ratio "${@:3}"
}

rows_to_columns() { # GOAL ELEMENTS LABEL OPTION...: 256 MiB of f32 over 4 ranks, inner runs of so many elements
  local columns=$((4 * $2))
  copy "$1" "$3" --shape "$((67108864 / columns))x$columns" --dtype f32 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 \
    "${@:4}"
}

transpose() { # GOAL DTYPE ROWS: 256 MiB over 4 ranks
  copy "$1" "W to its transpose, 256 MiB of $2, direct" --shape "$3x8192" --dtype "$2" --permutation 1,0 \
    --src 'chunk(0)' --dst 'chunk(0)' --ranks 4 --path direct
}

many_tensors() { # 1,000 tensors of 4 KiB to 4 MiB, log-uniform
  awk 'BEGIN { srand(1); printf "["
    for (i = 0; i < 1000; i++)
      printf "%s{\"name\":\"t%d\",\"shape\":[%d,256],\"dtype\":\"f32\"}", i ? "," : "", i, 4 * 2 ^ (rand() * 10)
    print "]" }' >"$work/many.json"
  copy 0.9 '1,000 tensors of 4 KiB to 4 MiB, FSDP-4 to TP-4, one plan' --model "$work/many.json" \
    --src 'mesh(fsdp=4;S0)' --dst 'mesh(tp=4;S1)'
}

passed_on() { # LABEL CHAINS RANKS...: 64 MiB from two ranks of a domain to 4 replicas; RANKS of each other domain
  local domains=$work/domains${#labels[@]}
  printf '%s\n' 0-1 "${@:3}" "chains $2" >"$domains"
  add ratio '' '' "$1" bench_ratio --shape 4096x4096 --dtype f32 --src 'chunk(0;0-1)' --dst 'mesh(4@2-5;R)' \
    --path packed --topology "$domains"
}

round_ratios() { # PLAN-OPTION...: most rounds to the least possible, limits of 64 MiB to 1 GiB
  local limit
  for limit in 64 128 256 512 1024; do
    "$program" plan "$@" --workspace ${limit}M --json - | tr ',' '\n' |
      awk -F: '/^"rounds"/ && !r { r = $2 } /^"least_rounds"/ && !l { l = $2 } END { if (l) printf "%.3f\n", r / l }'
  done | sort -n | tail -1
}
rounds() { # LABEL PLAN-OPTION...
  add once '' '<= 1.25' "$1" round_ratios "${@:2}"
}

least_use() { # CONDITION: least workspace over limits of 64 MiB to 1 GiB, of plans whose number of rounds is so
  local limit src dst ranks
  for limit in 64 96 128 192 256 384 512 768 1024; do
    while read -r src dst ranks; do
      "$program" plan --shape 65536x65536 --dtype f32 --src "$src" --dst "$dst" --ranks "$ranks" \
        --workspace ${limit}M --json - | tr ',' '\n' |
        awk -F: '/^"rounds"/ && !r { r = $2 } /^"workspace_bytes"/ && !used { used = $2 }
          /^"workspace_limit"/ && !limit { limit = $2 } END { if (r '"$1"') printf "%.3f\n", used / limit }'
    done <<'CUTS'
chunk(0) chunk(1) 8
chunk(0;0-7) chunk(1;8-15) 16
chunk(0) chunk(1) 64
mesh(4x4;S0,S1) mesh(2x8;S0,S1) 16
chunk(0) cyclic(2x4;512x512) 8
boxes(0:[0,0]+[32768,65536];1:[32768,0]+[400,65536];2:[33168,0]+[32368,65536]) chunk(1) 8
boxes(0:[0,0]+[65536,36000];1:[0,36000]+[65536,28000];2:[0,64000]+[65536,1536]) chunk(0) 16
CUTS
  done | sort -rn | tail -1
}

micro_times() { # FILTER: nanoseconds by the clock and of the processor for each case, and items a second
  "$micro" --benchmark_filter="$1" --benchmark_repetitions=3 --benchmark_enable_random_interleaving=true \
    --benchmark_min_time=0.05 --benchmark_report_aggregates_only=true --benchmark_format=csv 2>/dev/null |
    awk -F, '/_median/ { sub(/^"/, "", $1); sub(/_median"$/, "", $1); print $1, 1000 * $3, 1000 * $4, $7 }'
}
case_time() { # UNIT FILTER: processor time, and the pace of the core beside it
  "$micro" --benchmark_filter="^(core_chain|$2)(/|\$)" --benchmark_min_time=0.05 --benchmark_format=csv 2>/dev/null |
    awk -F, -v unit="$1" '/^"core_chain"/ { steps = $7 / 1e9; next }
      cases && !n++ { time = $4 / (unit == "ms" ? 1e3 : unit == "us" ? 1 : 1e-3) }
      /^name,/ { cases = 1 }
      END { if (n && steps) print time, steps }'
}
case_of_micro() { # GOAL UNIT LABEL FILTER
  add time "$2" "<= $1 $2" "$3" case_time "$2" "$4"
}

case_times() { # CASE CASE: us by the clock of an item of the first case, and of one of the second; the core's pace
  micro_times "^(core_chain|($1|$2)/real_time)\$" | awk -v first="$1/real_time" '
      { if ($1 == first) is = 1e6 / $4; else if ($1 == "core_chain") steps = $4 / 1e9; else beside = 1e6 / $4 }
      END { if (is && beside && steps) print is, beside, steps }'
}
difference() { # GOAL LABEL CASE CASE
  add difference us "<= $1 us" "$2" case_times "$3" "$4"
}

case_ratio() { # CASE: time of CASE_memcpy over that of CASE, and the copies that a second has
  micro_times "^$1(_memcpy)?/real_time\$" | awk -v first="$1/real_time" '
      { if ($1 == first) ours = $2; else copy = $2 }
      END { if (ours && copy) print copy / ours, 1e9 / copy }'
}
beside_memcpy() { # GOAL LABEL CASE
  add ratio '' ">= $1" "$2" case_ratio "$3"
}

deadline_ratio() { # time of 256 MiB by messages of 2 ranks without a deadline over that with one
  local deadline time times=()
  for deadline in '' RESHARD_TIMEOUT_MS=60000; do
    time=$(env -u RESHARD_TIMEOUT_MS ${deadline:+"$deadline"} \
      mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 "$program" bench -n 21 -w 3 --shape 8192x8192 \
      --dtype f32 --src 'chunk(0)' --dst 'chunk(1)' --comm mpi --path packed --json - |
      sed -n 's/.*"p50_us": *\([0-9.]*\).*/\1/p' | head -1)
    times+=("${time:?}")
  done
  awk -v without="${times[0]}" -v with="${times[1]}" 'BEGIN { print without / with }'
}

head_of 'copies: ratio to a straight copy of as many bytes'
add pace '' '' 'straight copy, GB/s' bench_ratio
cyclic=(--shape 8192x8192 --dtype f32 --src 'cyclic(2x2;64x64)' --dst 'cyclic(2x2;96x96)' --ranks 4)
rows_to_columns 0.95 2048 'rows to columns, direct, runs of 8 KiB' --path direct
rows_to_columns 0.95 256 'rows to columns, direct, runs of 1 KiB' --path direct
rows_to_columns 0.95 64 'rows to columns, direct, runs of 256 B' --path direct
rows_to_columns 0.65 16 'rows to columns, direct, runs of 64 B' --path direct
rows_to_columns 0.95 4 'rows to columns, direct, runs of 16 B' --path direct
rows_to_columns 0.4 1 'rows to columns, direct, runs of 4 B' --path direct
rows_to_columns 0.7 2048 'rows to columns, packed, runs of 8 KiB' --path packed
copy 0.7 'columns to rows, packed, runs of 8 KiB' --shape 8192x8192 --dtype f32 --src 'chunk(1)' --dst 'chunk(0)' \
  --ranks 4 --path packed
copy 0.8 'cyclic(2x2;64x64) to cyclic(2x2;96x96), direct' "${cyclic[@]}" --path direct
copy 0.4 'cyclic(2x2;64x64) to cyclic(2x2;96x96), packed' "${cyclic[@]}" --path packed
transpose 0.75 f32 8192
transpose 0.6 bf16 16384
transpose 0.5 u8 32768
many_tensors
! command -v mpirun >/dev/null ||
  add ratio '' '' 'over MPI, messages: with a deadline, to without' deadline_ratio
head_of 'replicas in domains, packed: ratio to a straight copy'
passed_on '4 of a domain, each receives all, without chains' none 2-5
passed_on '4 of a domain, slices passed on' 1 2-5
passed_on '2 in each of two domains, without chains' none 2-3 4-5
passed_on '2 in each of two domains, one chain' 1 2-3 4-5
passed_on '2 in each of two domains, two chains' 2 2-3 4-5
head_of 'rounds under limits of 64 MiB to 1 GiB: to the least'
large=(--shape 65536x65536 --dtype f32)
rounds 'rows to columns, 8 ranks' "${large[@]}" --src 'chunk(0)' --dst 'chunk(1)' --ranks 8
rounds 'rows to columns, 8 ranks to 8 others' "${large[@]}" --src 'chunk(0;0-7)' --dst 'chunk(1;8-15)'
rounds 'rows to columns, 64 ranks' "${large[@]}" --src 'chunk(0)' --dst 'chunk(1)' --ranks 64
rounds 'mesh(4x4;S0,S1) to mesh(2x8;S0,S1)' "${large[@]}" --src 'mesh(4x4;S0,S1)' --dst 'mesh(2x8;S0,S1)'
rounds 'rows to cyclic(2x4;512x512)' "${large[@]}" --src 'chunk(0)' --dst 'cyclic(2x4;512x512)'
rounds 'qwen3-30b-a3b, FSDP-8 to TP-8' --model qwen3-30b-a3b --src @fsdp.rules --dst @tp.rules --mesh fsdp=8,tp=8
rounds 'boxes of one half, a few rows and the rest to columns' "${large[@]}" --dst 'chunk(1)' --ranks 8 \
  --src 'boxes(0:[0,0]+[32768,65536];1:[32768,0]+[400,65536];2:[33168,0]+[32368,65536])'
add once '' '>= 0.667' 'workspace used, of the limit, at 3 rounds' least_use '== 3'
add once '' '>= 0.75' '  at more' least_use '> 3'
if [ -x "$micro" ]; then
  beside_memcpy 0.95 'redistribute of a DTensor, rows to columns' dtensor_redistribute_there_and_back_4_ranks
  beside_memcpy 0.95 '  new memory for each result and each copy' \
    dtensor_redistribute_there_and_back_4_ranks_new_memory
  case_of_micro 200 ns 'storage of a tensor freed and allocated again, 4 KiB' storage_alloc_and_free/4096
  case_of_micro 200 ns '  64 MiB' storage_alloc_and_free/67108864
  head_of 'planning: time on one core'
  add pace '' '' 'a core: multiplications and additions in a chain, 1/ns' case_time
  case_of_micro 50 ms '1,000,000 intersections: tiles to shifted tiles, 64 ranks' plan_boxes_tiles_64_ranks/1000000
  case_of_micro 50 ms '1,000,000 intersections: 1,000 stripes to 1,000 stripes' plan_boxes_stripes_1000_ranks/1000000
  case_of_micro 60 ms '  all plans in one call: tiles' plan_all_boxes_tiles_64_ranks/1000000
  case_of_micro 80 ms '  all plans in one call: stripes' plan_all_boxes_stripes_1000_ranks/1000000
  case_of_micro 1 ms 'one rank of 16,384, 256 peers' plan_one_rank_256_peers_of_world
  case_of_micro 3 ms 'one rank of 16,384, 255 peers, replicated source' plan_one_rank_replicated_of_world
  case_of_micro 5 ms 'llama-3.1-70b, FSDP-64 to TP-8, one rank' plan_llama_70b_one_rank
  case_of_micro 1000 ms 'validate 1,000,000 boxes' validate_boxes
  case_of_micro 1000 ms 'metadata, 1,024 tensors x 1,024 shards: made and checked' \
    metadata_1024_tensors_ranks_of_one_shard
  case_of_micro 1000 us 'mesh of 16,384 ranks: made, coordinate, part, local box' mesh
  beside_memcpy 0.7 'cast of 1,000 tensors of 64 KiB f32 to bf16, to memcpy of the bytes read and written' \
    cast_1000_tensors_f32_bf16
  case_of_micro 200 ns 'execute with nothing to move, 1 rank' execute_nothing_direct
  head_of 'trees of 100,000 tensors'
  case_of_micro 10 ms 'every tensor mapped to another, and the result freed' tree_map
  case_of_micro 50 ms 'flattened to paths and leaves, rebuilt with others' tree_flatten_rebuild
  head_of 'tensors: host time beyond the bare execute'
  for ranks in 1 4; do
    difference 5 "reshard in place, plan in the cache, ranks: $ranks" "sharded_reshard/$ranks" "sharded_execute/$ranks"
    difference 5 "redistribute, plan in the cache, ranks: $ranks" "dtensor_redistribute/$ranks" "sharded_execute/$ranks"
  done
fi

# --- Rounds, and the table --------------------------------------------------------------------------------------------
# Paces by the command of a row: a straight copy, GB/s; a core, steps a nanosecond. Those of other rows are their own.
declare -A fastest=([bench_ratio]=0 [case_time]=0) slowest=()
yardstick() { # ROW: the command that its paces are of, as others are
  local command=${commands[$1]%% *}
  [ "$command" != case_times ] || command=case_time
  echo "$command"
}
pace_of() { local of; of=$(yardstick "$1"); echo "${fastest[$of]:-0}"; } # ROW

is_open() { # ROW
  [[ ${kinds[$1]} != head && ${kinds[$1]} != pace ]] || return 1
  [ -e "$work/$1" ] || return 0
  [ "${kinds[$1]}" != once ] && [ -s "$work/$1" ] || return 1
  ! settle "${kinds[$1]}" "$work/$1" "$(pace_of "$1")" >/dev/null
}
sample() { # ROW: one more
  local of pace
  eval "${commands[$1]}" >>"$work/$1" || true
  of=$(yardstick "$1")
  pace=$(tail -n 1 "$work/$1" | awk '{ print $NF }')
  [ -n "${fastest[$of]:-}" ] && [ -n "$pace" ] || return 0
  fastest[$of]=$(printf '%s\n' "$pace" "${fastest[$of]}" | sort -g | tail -n 1)
  slowest[$of]=$(printf '%s\n' "$pace" "${slowest[$of]:-$pace}" | sort -g | head -n 1)
}
for ((left = 1; left > 0;)); do
  left=0
  for i in "${!labels[@]}"; do
    if is_open "$i" && { [ ! -e "$work/$i" ] || [ "$SECONDS" -lt "$end" ]; }; then # each once, however slow the machine
      sample "$i"
      left=1
    fi
  done
done
for i in "${!labels[@]}"; do
  figure=measured
  if [ "${kinds[$i]}" = pace ]; then
    of=$(yardstick "$i")
    figure=$(printf '%.3g (%.3g at the slowest)' "${fastest[$of]}" "${slowest[$of]:-0}")
  fi
  if [ "${kinds[$i]}" = once ]; then figure=$(cat "$work/$i"); fi
  if [[ ${kinds[$i]} == ratio || ${kinds[$i]} == time || ${kinds[$i]} == difference ]]; then
    figure=$( (settle "${kinds[$i]}" "$work/$i" "$(pace_of "$i")" || true) | show_figure "${units[$i]}")
  fi
  row "${labels[$i]}" "${goals[$i]}" "${figure:-failed}"
  [ "$i" != 0 ] || row '---' '---' '---'
done
