#!/usr/bin/env bash
# Table of what plans between training jobs and engines ask of links between domains and within, without running them.
# Everything in it is counted or computed: the same on every machine. Its last table alone has times, of planning.
# usage: profiles/topology.sh [PROGRAM [ROW...]] >profiles/results/topology.md; a ROW is the first word of a row's name,
# or "planning"
set -euo pipefail
export LC_ALL=C
program=$(realpath "${1:-build/reshard}")
source=$(realpath "$(dirname "$0")/..")
shift || true
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

engines() { # RULES ENGINES TP FIRST: rules of so many engines, replicas of tp.rules, from a rank on
  sed "s/mesh(tp;\(S[01]\|R\))/mesh(dp=$2,tp=$3@$4-$(($4 + $2 * $3 - 1));R,\1)/" \
    "$source/bench/models/rules/tp.rules" >"$1.rules"
}
engines tp8x16 16 8 128
engines tp8x8 8 8 64
engines tp8x64 64 8 64
engines tp4x16 16 4 8

machine() { # FILE RANKS DOMAIN BETWEEN WITHIN [CHAINS]: a file of domains
  { for ((r = 0; r < $2; r += $3)); do echo "$r-$(($r + $3 - 1 < $2 - 1 ? $r + $3 - 1 : $2 - 1))"; done
    echo "between $4"; echo "within $5"; [ $# -lt 6 ] || echo "chains $6"; } >"$1"
}

field() { grep -o "\"$1\":[0-9.e+]*" "$work/json" | head -n 1 | cut -d : -f 2; }

row() { # NAME MODEL SRC DST RANKS DOMAIN BETWEEN WITHIN [CHAINS]
  local limit ratio=()
  [ ${#rows[@]} -eq 0 ] || [[ " ${rows[*]} " == *" ${1%%[ ,]*} "* ]] || return 0
  machine machine "${@:5}"
  for limit in 512M default; do
    "$program" plan --model "$2" --src "$3" --dst "$4" --topology ./machine --json - \
      $([ $limit = default ] || echo --workspace $limit) >"$work/json" 2>/dev/null
    ratio+=("$(awk "BEGIN { printf \"%.3f\", $(field estimate_us) / $(field bound_us) }")")
  done
  awk -v name="$1" -v links="$7, $8" -v chains="$(field chains)" -v hops="$(field hops)" \
    -v bytes="$(field bytes)" -v leaving="$(field leaving_bytes)" \
    -v least="$(field leaving_least_bytes)" -v entering="$(field entering_bytes)" \
    -v least_in="$(field entering_least_bytes)" -v out="$(field max_between_sent_bytes)" \
    -v into="$(field max_between_received_bytes)" -v bound="$(field bound_us)" -v rounds="$(field rounds)" \
    -v small="${ratio[0]}" -v usual="${ratio[1]}" '
    function times(a, b) { return b > 0 ? sprintf("%.3f", a / b) : "-" }
    BEGIN {
      printf "| %s | %s | %s | %.1f | %s | %s | %.2f, %.2f | %.1f | %s | %s | %d |\n", name, links,
        (chains > 0 ? chains ", " hops : "none"), bytes / 1e9, times(leaving, least),
        times(entering, least_in), out / 1e9, into / 1e9, bound / 1e3, small, usual, rounds
    }'
}

rows=("$@")
echo "# Links between domains

Made by \`profiles/topology.sh\` from rules that come with the program. Bytes are counted, times are the estimate of
\`reshard plan --topology\`: a rank's busiest link, 30 us a round. Leaving and entering are beside the least: each byte
leaves the source once, and enters a domain once. The busiest links are those of one rank, out of its domain and into
it. Links are GB/s between domains and within. In rows without chains each rank receives for itself; other rows have
those that are chosen by the model, or that are named, and the hops that a byte takes.

$(printf '| %s ' reshard links 'chains, hops' GB 'leaving / least' 'entering / least' 'busiest out, in, GB' \
  'bound, ms' 'estimate / bound, 512 MiB' 'default limit' rounds)|
$(printf '|---%.0s' {1..11})|"
deepseek=(deepseek-v3 @dsv3-ep16-pp4 @tp8x16.rules)
qwen=(qwen3-235b-a22b @qwen3-ep16-pp4 @tp8x8.rules)
llama=(llama-3.1-70b 'mesh(64;S0)' @tp8x8.rules)
both() { # the same without chains, and with those that are chosen
  row "$@" none
  row "${1%%,*}, the same" "${@:2}"
}
both 'DeepSeek-V3, 128 trainers to 16 engines of 8; domains of 64' "${deepseek[@]}" 256 64 50 900
row 'DeepSeek-V3, the same' "${deepseek[@]}" 256 64 50 900 2
both 'DeepSeek-V3, the same' "${deepseek[@]}" 256 64 25 900
both 'DeepSeek-V3, the same' "${deepseek[@]}" 256 64 100 900
both 'DeepSeek-V3, the same; nodes of 8' "${deepseek[@]}" 256 8 50 450
both 'Qwen3-235B, 64 trainers to 8 engines of 8; domains of 64' "${qwen[@]}" 128 64 50 900
both 'Qwen3-235B, the same; nodes of 8' "${qwen[@]}" 128 8 50 450
both 'Llama-70B, FSDP over 64 to 8 engines of 8; domains of 64' "${llama[@]}" 128 64 50 900
both 'Llama-70B, the same; nodes of 8' "${llama[@]}" 128 8 50 450
both 'Llama-70B, FSDP over 64 to 64 engines of 8; nodes of 8' "${llama[@]:0:2}" @tp8x64.rules 576 8 50 450
both 'Llama-8B, FSDP over 8 to 16 engines of 4; nodes of 8' llama-3.1-8b 'mesh(8;S0)' @tp4x16.rules 72 8 50 450

took() { # RANK PLAN...: ms of the plan of a rank, the best of 9
  for ((i = 0; i < 9; i++)); do
    "$program" plan "${@:2}" --rank "$1" --json - >"$work/json" 2>/dev/null
    field plan_us
  done | sort -g | head -n 1 | awk '{ printf "%.2f", $1 / 1e3 }'
}
planned() { # NAME RANK DOMAINS PLAN...
  local without with
  without=$(took "$2" "${@:4}")
  with=$(took "$2" "${@:4}" --topology "$3")
  echo "| $1 | $2 | $without | $with | $(awk "BEGIN { printf \"%.2f\", $with / $without }") |"
}
world() { # NAME RANK SRC DST: 16,384 ranks, a tensor
  planned "$1" "$2" hgx:8 --shape 16384x16384 --dtype bf16 --ranks 16384 --src "$3" --dst "$4"
}
[ ${#rows[@]} -eq 0 ] || [[ " ${rows[*]} " == *" planning "* ]] || exit 0
echo "
## Planning

These are times of a machine: $(grep -m 1 'model name' /proc/cpuinfo | cut -d : -f 2 | xargs), $(nproc) cores, with a
load of $(cut -d ' ' -f 1 /proc/loadavg). Each is the best of 9 plans of one rank, in ms. With domains a plan has both:
what is passed on, and the messages of paths that pass nothing on.

| reshard | rank | without domains | with domains | ratio |
|---|---|---|---|---|"
for rank in 0 96 130; do
  planned 'DeepSeek-V3, 128 trainers to 16 engines of 8; domains of 64' "$rank" nvl:64 --model deepseek-v3 \
    --src @dsv3-ep16-pp4 --dst @tp8x16.rules
done
world '16,384 ranks, domains of 8: rows on 8,192 to 2,048 engines of 4' 12000 'mesh(8192@0-8191;S0)' \
  'mesh(2048x4@8192-16383;R,S1)'
world 'the same' 777 'mesh(8192@0-8191;S0)' 'mesh(2048x4@8192-16383;R,S1)'
world 'rows on 8,192 to 4,096 engines of 2' 12000 'mesh(8192@0-8191;S0)' 'mesh(4096x2@8192-16383;R,S1)'
world '16 copies of rows on 512 to 1,024 engines of 8' 12000 'mesh(16x512@0-8191;R,S0)' 'mesh(1024x8@8192-16383;R,S1)'
world '128 copies of rows on 128 to all of it on each' 777 'mesh(128x128;R,S0)' 'mesh(16384;R)'
world 'rows to columns, of which none is passed on' 777 'chunk(0)' 'chunk(1)'
world 'rows on all to 4,096 engines of 4' 777 'mesh(16384;S0)' 'mesh(4096x4;R,S1)'
taken=$({ TIMEFORMAT='%U %S'; time "$program" plan --model deepseek-v3 --src @dsv3-ep16-pp4 --dst @tp8x16.rules \
  --topology nvl:64 >out 2>err; } 2>&1 | awk '{ printf "%.1f", $1 + $2 }')
echo "
All 256 ranks of DeepSeek-V3, planned and printed, take $taken s of one core."
