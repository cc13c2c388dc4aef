"""Communicators of mpi4py, where mpirun and mpi4py are: the example, whose answer is MPI_Alltoallw's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


TOLD = """
import numpy as np, reshard
from mpi4py import MPI
rank = MPI.COMM_WORLD.Get_rank()
src, dst = (reshard.Layout(text, (4, 4), 2) for text in ("chunk(0)", "chunk(1)"))
good, out = np.full((2, 4), rank, "f4"), np.full((4, 2), 7, "f4")
with reshard.from_mpi(MPI.COMM_WORLD, timeout=60) as comm:
    for call in (lambda mine: reshard.redistribute(mine, src, dst, comm),
                 lambda mine: reshard.Transfer(reshard.Plan(src, dst, "f32", rank), comm, mine, out)):
        try:
            call(good.astype("f8")[:, :3] if rank == 1 else good)
        except reshard.InvalidError as error:
            assert "shape (2, 3)" in str(error) or "f64, where f32" in str(error), error
        else:
            raise SystemExit("taken")
    assert (out == 7).all()
    assert (reshard.redistribute(good, src, dst, comm) == np.repeat([0, 1], 2)[:, None]).all()
print("heard")
"""

# A communicator over files, with all that from_mpi uses: MPI itself may not come up between two networks.
NODES = """
import sys, time, pathlib, reshard
class Comm:
    def Get_size(self): return 2
    def Get_rank(self): return int(sys.argv[1])
    def allgather(self, mine):
        pathlib.Path(f"part{sys.argv[1]}").write_bytes(bytes(mine))
        pathlib.Path(f"part{sys.argv[1]}").rename(f"all{sys.argv[1]}")
        while not all(pathlib.Path(f"all{r}").exists() for r in range(2)):
            time.sleep(0.01)
        return [pathlib.Path(f"all{r}").read_bytes() for r in range(2)]
try:
    reshard.from_mpi(Comm(), timeout=60)
except reshard.UnsupportedError as error:
    print(error)
"""


def launch(n: int, tmp_path: Path, *program: str) -> str:
    mpirun = shutil.which("mpirun")
    if mpirun is None or subprocess.run([sys.executable, "-c", "from mpi4py import MPI"], capture_output=True).returncode != 0:
        pytest.skip("no mpirun, or no mpi4py that finds its MPI")
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", str(n), sys.executable, *program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_block_cyclic_columns_to_rows_as_alltoallw(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "python" / "examples" / "alltoallw.py"
    assert "0 wrong" in launch(4, tmp_path, os.fspath(example), "256")


def test_what_one_rank_of_mpi_refuses_all_ranks_hear(tmp_path: Path) -> None:
    assert launch(2, tmp_path, "-c", TOLD).count("heard") == 2


def test_ranks_on_two_nodes_are_refused_on_both(tmp_path: Path) -> None:
    apart = ["unshare", "--user", "--map-root-user", "--net"]  # a network of its own is a node of its own
    if shutil.which(apart[0]) is None or subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
        pytest.skip("no network namespace for a second node")
    ranks = [subprocess.Popen([*before, sys.executable, "-c", NODES, str(rank)], cwd=tmp_path, text=True, stdout=subprocess.PIPE)
             for rank, before in enumerate(([], apart))]
    for rank in ranks:
        assert "rank 1 is on another node than rank 0" in rank.communicate(timeout=120)[0]
