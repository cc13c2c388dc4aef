"""Placements on meshes, against torch's own offsets: a table that tests/figures/meshes.py has made, without torch."""

from __future__ import annotations

import json
from pathlib import Path

from reshard import Layout


def test_every_rank_holds_what_torch_says() -> None:
    cases = json.loads((Path(__file__).parents[1] / "figures" / "meshes.json").read_text())
    for case in cases:
        layout = Layout.mesh(case["shape"], len(case["ranks"]), case["mesh"], ["R", *case["placements"]], ranks=case["ranks"])
        for rank, (offset, local) in case["held"].items():
            arrays = layout.arrays(int(rank))
            if 0 in local:
                assert not arrays or 0 in arrays[0][0], (case, rank)
                continue
            assert arrays[0][0] == tuple(local), (case, rank)
            for d in range(2):
                runs = layout.intervals(int(rank), 0, d)
                assert runs[0][0] == offset[d] and sum(b - a for a, b in runs) == local[d], (case, rank, d)
    assert len(cases) > 200
