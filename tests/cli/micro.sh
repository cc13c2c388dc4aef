#!/usr/bin/env bash
# reshard_micro: each family of cases is there, rates stand beside their straight copy's, the context says what runs.
. "$(dirname "$0")/common.bash"
micro=$(dirname "$RESHARD")/reshard_micro
[ -x "$micro" ] || { echo 'skipped: no reshard_micro here'; exit 77; }
python=$(command -v python3) && "$python" -c 'import json' 2>/dev/null || { echo 'skipped: no python3'; exit 77; }
"$micro" --benchmark_list_tests=true >out
for case in copy_runs/{16,1048576} copy_narrow_{1,2,4,8,16,32,64}{,/1,/4,/16} copy_shifted/1 copy_transpose/4 \
  index_select/64 \
  {copy_runs,copy_narrow,copy_shifted,copy_transpose,index_select,convert}_memcpy cast_1000_tensors_f32_bf16{,_memcpy} \
  layout_parse_mesh layout_meet_cyclic plan_one_rank_16_peers_of_world/16384 \
  plan_one_rank_{chunks,flat,cyclic}_of_world/{64,4096} execute_nothing_direct storage_pool_pair/4096 tree_map \
  convert_one_file_to_4_shards_of_columns; do
  says "^$case(/|\$)"
done
status=0
RESHARD_COMMIT=abc1234 TMPDIR=$work "$micro" --benchmark_format=json --benchmark_min_time=0.001 \
  --benchmark_filter="^(copy_narrow_16/1|copy_narrow_memcpy|cast_1000_tensors_f32_bf16\
|convert_one_file_to_4_shards_of_rows|layout_parse_flat)(/|$)" \
  >out 2>err || status=$?
checks=$((checks + 1))
[ "$status" = 0 ] || fault "status $status: $(cat err)"
"$python" - <<'TEXT' || fault "the report: $(head -c 2000 out)"
import json
report = json.load(open("out"))
cases = {case["name"]: case for case in report["benchmarks"]}
assert len(cases) == 5 and not any("error_occurred" in case for case in cases.values()), cases.keys()
for name, case in cases.items():
    assert ("bytes_per_second" in case) == (name != "layout_parse_flat"), case
    if "bytes_per_second" in case:
        run_bytes = case["bytes_per_second"] * case["real_time"] / 1e6
        assert abs(run_bytes / (1000 * 16384 * 6 if name.startswith("cast") else 64 << 20) - 1) < 0.01, case
context = report["context"]
assert context["commit"] == "abc1234" and context["isa"], context
assert context["library"].startswith("Google Benchmark 1"), context
assert context["build"] in ("optimized", "not optimized") and context["compiler"], context
TEXT
"$micro" --benchmark_filter='^layout_parse_flat$' --benchmark_min_time=0.001 >text 2>err || fault "$(cat err)"
! grep -q 'DEBUG' err || fault "a note that is not true: $(grep DEBUG err)"
if grep -q '"library_build_type": "debug"' out; then
  grep -q 'has assertions' err || fault "no note: $(cat err)"
fi
grep -q '^isa: ' err || fault "no context: $(cat err)"
# A case that fails is told, and so by the status.
(ulimit -v 250000 && exec "$micro" --benchmark_filter='^copy_runs/16/' --benchmark_min_time=0.001) >out 2>err
[ $? = 1 ] && says "^copy_runs/16/.* ERROR OCCURRED: 'the case could not be made'" || fault "no memory: $(cat out err)"
[ -z "$(find "$work" -name 'reshard-micro.*')" ] || fault 'files are left'
finish
