"""Communicators of mpi4py, where mpirun and mpi4py are: the example, whose answer is MPI_Alltoallw's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def test_block_cyclic_columns_to_rows_as_alltoallw(tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun")
    if mpirun is None or subprocess.run([sys.executable, "-c", "from mpi4py import MPI"], capture_output=True).returncode != 0:
        pytest.skip("no mpirun, or no mpi4py that finds its MPI")
    example = Path(__file__).parents[2] / "python" / "examples" / "alltoallw.py"
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "4", sys.executable, os.fspath(example), "256"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "0 wrong" in done.stdout, done.stdout + done.stderr
