"""The package and its stubs under mypy --strict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import reshard


def test_the_package_is_typed(tmp_path: Path) -> None:
    package = os.path.dirname(reshard.__file__)
    options = ["--strict", "--ignore-missing-imports", "--cache-dir", os.fspath(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "mypy", *options, package], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
