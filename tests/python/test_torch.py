"""DTensors against torch's own answers, where an interpreter has torch: this one, or RESHARD_TEST_PYTHON."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "python" / "examples"


def interpreter() -> str:
    for one in (os.environ.get("RESHARD_TEST_PYTHON"), sys.executable):
        if one and subprocess.run([one, "-c", "import torch, reshard"], capture_output=True).returncode == 0:
            return one
    pytest.skip("no torch beside reshard: RESHARD_TEST_PYTHON names an interpreter that has it")


def test_fsdp_and_tp_parameters_move_to_other_meshes_bit_for_bit(tmp_path: Path) -> None:
    launch = [interpreter(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": os.fspath(tmp_path)}
    done = subprocess.run([*launch, os.fspath(EXAMPLES / "fsdp_to_tp.py")], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0 and "0 wrong" in done.stdout, done.stdout + done.stderr
