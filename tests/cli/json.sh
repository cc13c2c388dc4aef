#!/usr/bin/env bash
# The JSON of plan, bench and info: valid, alone on standard output with --json -, with the fields that scripts rely on.
. "$(dirname "$0")/common.bash"
python=$(command -v python3) && "$python" -c 'import json' 2>/dev/null || python=

# check EXPRESSION: a Python expression about j, the last run's output, is true.
check() {
  [ -n "$python" ] || return 0
  "$python" -c 'import json, sys; j = json.load(open(sys.argv[1])); sys.exit(0 if eval(sys.argv[2]) else 1)' \
    "$work/out" "($1)" ||
    fault "not valid, or not so: $1: $(head -c 400 "$work/out")"
}
four=(--shape 13x21 --dtype bf16 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4)

expect 0 plan "${four[@]}" --json -
[ "$(head -c 1 out)" = '{' ] || fault 'something stands before the JSON'
check 'j["version"] == 1 and j["ranks"] == 4 and j["tensors"] == 1 and j["bytes"] == 13 * 21 * 2'
check 'j["wire_bytes"] == j["lower_bound_bytes"] == sum(r["received_bytes"] for r in j["per_rank"])
  == sum(r["sent_bytes"] for r in j["per_rank"])'
check 'j["wire_bytes"] + sum(r["self_copy_bytes"] for r in j["per_rank"]) == j["bytes"]'
check 'j["busiest_bytes"] == max(max(r["sent_bytes"], r["received_bytes"])
  for r in j["per_rank"]) >= j["busiest_bound_bytes"]'
check 'j["messages"] == 12 and j["rounds"] == 1 and j["stages"] == 1 and j["path"] == "packed"'
check 'j["max_sent_bytes"] == max(r["sent_bytes"] for r in j["per_rank"])'
check 'j["max_received_bytes"] == max(r["received_bytes"] for r in j["per_rank"])'
check 'j["workspace_bytes"] == max(r["workspace_bytes"] for r in j["per_rank"])'
check 'j["plan_us"] > 0 and all(r["plan_us"] > 0 and "peers" not in r for r in j["per_rank"])'
check '[r["rank"] for r in j["per_rank"]] == [0, 1, 2, 3]'
check 'set(j["per_rank"][0]) == {"rank", "sent_bytes", "received_bytes", "self_copy_bytes", "messages", "rounds",
  "least_rounds", "staged_bytes", "workspace_bytes", "workspace_limit", "packs_skipped", "unpacks_skipped", "plan_us"}'
check 'set(j) == {"version", "ranks", "tensors", "bytes", "wire_bytes", "lower_bound_bytes", "busiest_bytes",
  "busiest_bound_bytes", "messages", "rounds", "least_rounds", "stages", "max_sent_bytes", "max_received_bytes",
  "workspace_bytes", "workspace_limit", "path", "collective", "plan_us", "per_rank"}'

expect 0 plan "${four[@]}" --peers --json -
check 'all(len(r["peers"]) == 3 and sum(p["sent_bytes"] for p in r["peers"]) == r["sent_bytes"] for r in j["per_rank"])'
check 'all(set(p) == {"rank", "sent_bytes", "received_bytes"} for r in j["per_rank"] for p in r["peers"])'

expect 0 plan "${four[@]}" --rank 2 --json -
check 'set(j) == {"version", "ranks", "tensors", "bytes", "path", "per_rank"} and j["ranks"] == 4
  and len(j["per_rank"]) == 1'
check 'j["per_rank"][0]["rank"] == 2 and [p["rank"] for p in j["per_rank"][0]["peers"]] == [0, 1, 3]'

expect 0 plan "${four[@]}" --path direct --json -
check 'j["path"] == "direct" and j["workspace_bytes"] == j["workspace_limit"] == 0
  and j["rounds"] == j["least_rounds"] == 1'

expect 0 plan --shape 1024x1024 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 --workspace 16K --json -
check 'j["rounds"] > 1 and 0 < j["workspace_bytes"] <= 16384 and j["messages"] > 12
  and j["wire_bytes"] == 3 * 1024 * 1024'
check 'j["workspace_limit"] == 16384 and j["least_rounds"] == 2 * 3 * 65536 * 4 / 16384
  and all(r["rounds"] == j["rounds"] for r in j["per_rank"])'

# the limit by name: that of GPUs or of the CPU, none
rows=(--shape 8192x8192 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4)
expect 0 plan "${rows[@]}" --json -
check 'j["workspace_limit"] == 64 * 2**20 and j["rounds"] == j["least_rounds"] == 1
  and j["workspace_bytes"] == 48 * 2**20'
expect 0 plan "${rows[@]}" --workspace 0 --device cpu --json -
check 'j["workspace_limit"] == 2**20 and j["least_rounds"] == 48 <= j["rounds"] <= 60
  and 2**20 * 3 / 4 <= j["workspace_bytes"] <= 2**20'
expect 0 plan "${rows[@]}" --workspace none --json -
check 'j["workspace_limit"] == -1 and j["rounds"] == 1 and j["workspace_bytes"] == 48 * 2**20'
expect 0 plan "${rows[@]}"
says '^workspace     48.0 MiB on the largest rank, 75.0 % of a limit of 64.0 MiB \(the default\); 1 round at least$'
expect 0 plan "${rows[@]}" --workspace 48M; says '100.0 % of a limit of 48.0 MiB; 1 round at least$'
expect 0 plan "${rows[@]}" --workspace none; says '^workspace     48.0 MiB on the largest rank, no limit$'

# ranks that stage less take as many rounds as the others; a model's limits are used
boxes='boxes(0:[0,0]+[7000,8192];1:[7000,0]+[1000,8192];2:[8000,0]+[192,8192])'
expect 0 plan --shape 8192x8192 --src "$boxes" --dst 'chunk(1)' --ranks 4 --workspace 16M --json -
check 'len({r["least_rounds"] for r in j["per_rank"]}) > 2 and {r["rounds"] for r in j["per_rank"]} == {j["rounds"]}'
check 'max(r["least_rounds"] for r in j["per_rank"]) == j["least_rounds"] <= j["rounds"] <= 1.25 * j["least_rounds"]'
for limit in 64 128 256 512 1024; do
  expect 0 plan --model qwen3-30b-a3b --src "@$SOURCE/bench/models/rules/fsdp.rules" \
    --dst "@$SOURCE/bench/models/rules/tp.rules" \
    --mesh fsdp=8,tp=8 --workspace ${limit}M --json -
  check 'j["ranks"] == 8 and 1 < j["rounds"] <= 1.25 * j["least_rounds"]'
  check '(2 / 3 if j["rounds"] <= 3 else 3 / 4) * j["workspace_limit"] <= j["workspace_bytes"] <= j["workspace_limit"]'
done

expect 0 plan --shape 0x21 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 --json -
check 'j["bytes"] == j["wire_bytes"] == j["messages"] == 0'
expect 0 plan --shape scalar --src 'rank(0)' --dst 'mesh(3;R)' --json -
check 'j["bytes"] == 4 and j["wire_bytes"] == 8'

expect 0 plan "${four[@]}" --json file.json; says 'lower bound'
cp file.json out; check 'j["ranks"] == 4'
expect 0 plan "${four[@]}" --json file.json # over an old one
expect 0 plan "${four[@]}" --json /dev/null

printf '[{"name": "quo\\"te \\u00e9\\\\", "shape": [8], "dtype": "u8"}]' >model.json
expect 0 plan --model model.json --src 'chunk(0)' --dst 'rank(1)' --ranks 2 --json -
check 'j["tensors"] == 1 and j["bytes"] == 8'

expect 0 info --json -
check 'j["reshard"] and j["compiler"] and "cpu" in j["devices"] and {"local", "node"} <= set(j["comms"])
  and "scalar" in j["isas"] and j["machine"]["cores"] > 0'

expect 0 bench --shape 64x256 --src 'chunk(0)' --dst 'chunk(1)' --ranks 3 -n 3 -c --json -
[ "$(head -c 1 out)" = '{' ] || fault 'something stands before the JSON'
check 'len(j["rows"]) == 1 and list(j["rows"][0])[:11] == ["bytes", "shape", "dtype", "dst_dtype", "time_us", "algbw",
  "busbw", "memcpy_gbps", "ratio", "wrong", "path"]'
check '{"workspace_limit", "workspace_bytes", "rounds", "least_rounds"} <= set(j["rows"][0])'
check 'j["rows"][0]["wrong"] == 0 and j["rows"][0]["bytes"] == 65536 and j["rows"][0]["shape"] == "64x256"
  and j["rows"][0]["path"] in ("direct", "packed")'
check '"machine" in j and "options" in j and j["version"] == 1 and j["options"]["ranks"] == 3'
expect 0 bench --shape 64x256 --src 'chunk(0)' --dst 'chunk(1)' --ranks 3 -n 2 -b 4K -e 64K -f 4 -J rows.json
says '#wrong'
cp rows.json out; check \
  '[r["bytes"] for r in j["rows"]] == [4096, 16384, 65536] and all(r["wrong"] is None for r in j["rows"])'

if [ -z "$python" ]; then
  [ "$failures" = 0 ] || finish
  echo 'skipped: python3 is missing, the JSON was not read'
  exit 77
fi
finish
