"""The package, its stubs and the examples under mypy --strict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import reshard


def test_the_package_is_typed(tmp_path: Path) -> None:
    package = os.path.dirname(reshard.__file__)
    examples = Path(__file__).parents[2] / "python" / "examples"  # classes of torch's are Any where there is no torch
    options = ["--strict", "--allow-subclassing-any", "--ignore-missing-imports", "--cache-dir", os.fspath(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "mypy", *options, package, *examples.glob("*.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
