"""Checks of bench/compare/peers*.py: the table, what a peer's program says, the reading of what measures on a GPU."""

import os
import sys
from types import SimpleNamespace

sys.path.insert(0, sys.argv[1])
from peers import Skipped, measure, turns_of
from peers_gpu import cub_rows, torch_rows
from peers_table import measured, skipped, table

rows = [measured("theirs", "ours", 1 << 30, [1.0, 3.0, 2.0], [8.0, 9.0, 1.0], [20.0, 10.0, 40.0]),
        measured("slow", "ours", 1 << 30, [0.0123], [123.4], [20.0]),
        skipped("other", "no a|b here")]
assert rows[0] == {"peer": "theirs", "ours": "ours", "device": "cpu", "ranks": 4, "bytes": 1 << 30, "gbps": 2.0,
                   "memcpy_gbps": 20.0, "ours_gbps": 8.0, "turns": 3}, rows[0]
assert table(rows) == """\
| peer   |  GB/s | of memcpy | ours in the same run |  GB/s | of memcpy | ours / theirs |
| ------ | ----: | --------: | -------------------- | ----: | --------: | ------------: |
| theirs |  2.00 |      0.10 | ours                 |  8.00 |      0.40 |          4.00 |
| slow   | 0.012 |     0.001 | ours                 | 123.4 |      6.17 |       10032.5 |

| skipped | why |
| ------- | --- |
| other   | no a/b here |
""", table(rows)


class Ours:
    """Counts its turns; one kind is not there."""
    runs = []

    def run(self, kind):
        self.runs.append(kind)
        if kind == "away":
            raise Skipped("not built")
        return 4.0 if len(self.runs) > 2 else 999.0  # the warm-up does not count

    def memcpy(self):
        return 8.0


def peer(script, kinds=("near", "away")):
    return measure(["bash", "-c", script], [("move", "theirs", 3 * 10**9, 2, list(kinds))], Ours(), 3, "log")


def refusal(script):
    try:
        return f"nothing, but {peer(script)}"
    except Skipped as reason:
        return str(reason)


rows, version = peer('echo ready fake 1.2; while read -r line; do [ "$line" = move ] && echo 3; done')
assert version == "fake 1.2" and rows[0]["gbps"] == 2.0 and rows[0]["turns"] == 3, rows
assert rows[0]["ours_gbps"] == 4.0 and rows[0]["memcpy_gbps"] == 8.0 and rows[0]["bytes"] == 3 * 10**9, rows
assert rows[1] == {"peer": "theirs beside away", "skipped": "not built"} and Ours.runs.count("away") == 1, rows
assert Ours.runs.count("near") == 4, Ours.runs  # in each turn
assert refusal("echo skipped no such module") == "no such module"
assert refusal("echo ready; read; echo no memory >&2; exit 3") == "it ended, status 3; it said: no memory"
assert refusal("echo hello there") == "it says 'hello there'"
assert measure.__globals__["program_missing"](["no-such-program"]) == "no no-such-program here"

for given, quick, name, turns in ((None, False, "numpy", 5), (None, False, "mpi", 21), (None, True, "mpi", 1),
                                  (3, False, "mpi", 3)):
    assert turns_of(SimpleNamespace(turns=given, quick=quick), name) == turns, (given, quick, name)

rows = torch_rows("NVIDIA, torch 2.15, 4 ranks\ncat  3.0 us  bytes=8 ours_us=2.0 x_pytorch=1.500\n"
                  "reshard from a graph       16.0 us  bytes=16384 ours_us=2.0 x_pytorch=8.000\n", 12.0, 4)
assert len(rows) == 1 and rows[0]["ours"] == "execute from a graph" and rows[0]["bytes"] == 16384, rows
assert rows[0]["peer"].endswith(", 64 x 64"), rows
assert (rows[0]["gbps"], rows[0]["ours_gbps"], rows[0]["memcpy_gbps"]) == (1.024, 8.192, 12.0), rows
rows = cub_rows({"benchmarks": [{"name": "gpu_copy_runs/8", "real_time": 1.0, "label": "bytes=5 memcpy_us=1.0"},
                                {"name": "gpu_execute", "real_time": 1.0},
                                {"name": "gpu_copy_boxes/8/iterations:1/manual_time", "real_time": 2.0,
                                 "label": "bytes=4000 memcpy_us=1.0 cub_us=4.0"}]})
assert len(rows) == 1 and (rows[0]["gbps"], rows[0]["ours_gbps"], rows[0]["memcpy_gbps"]) == (1.0, 2.0, 4.0), rows
assert rows[0]["peer"] == "cub::DeviceMemcpy, gpu_copy_boxes/8", rows
os.remove("log")
