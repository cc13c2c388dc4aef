"""Examples that need no launcher: each compares itself with another program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import reshard

EXAMPLES = Path(__file__).parents[2] / "python" / "examples"


@pytest.mark.parametrize("name", ["load_tp.py", "notebook.py"])
def test_an_example_agrees_with_the_other_program(name: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-B", os.fspath(EXAMPLES / name)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.endswith("\n0 wrong\n"), done.stdout + done.stderr


def test_a_plan_draws_itself_where_the_program_is() -> None:
    rows, columns = (reshard.Layout(text, (4, 6), 2) for text in ("chunk(0)", "chunk(1)"))
    drawing = reshard.Plan(rows, columns, "f32", 0)._repr_svg_()
    assert drawing is not None and drawing.startswith("<svg ") and drawing.rstrip().endswith("</svg>")
    regions = reshard.Layout("boxes(0:[0,0]+[2,6];1:[2,0]+[2,6])", (4, 6), 2)
    assert reshard.Plan(regions, columns, "f32", 1)._repr_svg_() is not None
