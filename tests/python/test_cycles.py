"""Things made and dropped again and again: memory, descriptors and references do not grow. ./run soak makes 10,000 of each."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import reshard

TURNS = int(os.environ.get("RESHARD_TEST_CYCLES", "1000"))
ONE = reshard.Layout("rank(0)", (16,), 1)


def state(*watched: object) -> list[int]:
    """Resident bytes, descriptors, the references of what is watched, objects of the collector."""
    gc.collect()
    with open("/proc/self/statm") as f:
        resident = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return [resident, len(os.listdir("/proc/self/fd")), *(sys.getrefcount(w) for w in watched), len(gc.get_objects())]


def assert_level(cycle: Callable[[], object], *watched: object) -> None:
    for _ in range(300):
        cycle()
    before = state(*watched)
    for _ in range(TURNS):
        cycle()
    after = state(*watched)
    # Python's allocator takes 1 MiB at a time, and may be about to.
    assert after[0] - before[0] < 2 << 20 and after[1:-1] == before[1:-1] and after[-1] - before[-1] < 10, (before, after)


def test_transfers_made_and_dropped_leave_nothing() -> None:
    source, out = np.arange(16, dtype="f4"), np.zeros(16, "f4")
    with reshard.local(1) as comm:
        plan = reshard.Plan(ONE, ONE, "f32", 0)

        def cycle() -> None:
            transfer = reshard.Transfer(plan, comm, source, out)
            transfer.execute()
            transfer.rebind(source, np.zeros(16, "f4"))

        assert_level(cycle, source, out, comm, plan)


def test_refused_transfers_leave_nothing() -> None:
    source, out = np.arange(16, dtype="f4"), np.zeros(16, "f4")
    with reshard.local(2) as comm:
        rows = reshard.Layout("chunk(0)", (32,), 2)
        plans = [reshard.Plan(rows, rows, "f32", r) for r in range(2)]

        def cycle() -> None:
            with pytest.raises(reshard.InvalidError):
                reshard.Transfer(plans, comm, [source, source], [out, out[:3]])
            with pytest.raises(reshard.InvalidError):
                reshard.Transfer(plans, comm, [source, source], [source, out])

        assert_level(cycle, source, out, comm, plans)


def test_results_made_and_dropped_leave_nothing() -> None:
    source = np.arange(16, dtype="f4")
    with reshard.local(1) as comm:
        assert_level(lambda: reshard.redistribute([source], ONE, ONE, comm), source, comm)
        assert_level(lambda: reshard.empty((4, 4), "bf16", comm), comm)


def test_communicators_made_and_dropped_leave_nothing() -> None:
    def cycle() -> None:
        comm = reshard.local(2)
        sub = comm.split([0, 1])
        reshard.redistribute([np.zeros(16, "f4"), None], reshard.Layout("rank(0)", (16,), 2), reshard.Layout("rank(1)", (16,), 2), comm)
        del sub

    assert_level(cycle)


def test_checkpoints_opened_and_dropped_leave_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    reshard.write(path, {"x": np.arange(16, dtype="f4")})

    def cycle() -> None:
        with reshard.open(path) as c:
            c["x"][3:5]
            c["x"].map()
        reshard.open(path)["x"].read()
        with pytest.raises(KeyError):
            reshard.open(path)["y"]

    assert_level(cycle)


DTENSORS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import torch, torch.distributed as dist, reshard.torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
import test_cycles
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
x = distribute_tensor(torch.arange(16.0), mesh, [Shard(0)])
out = distribute_tensor(torch.zeros(16), mesh, [Replicate()])
def cycle():
    reshard.torch.redistribute({"x": x}, mesh, [Replicate()])
    reshard.torch.redistribute(x, mesh, [Replicate()], out=out)
    reshard.torch.full_tensor(x)
test_cycles.assert_level(cycle, x, out, mesh)
reshard.torch.close()
dist.destroy_process_group()
"""


def test_dtensors_made_and_dropped_leave_nothing(tmp_path: Path) -> None:
    from test_torch import interpreter

    done = subprocess.run([interpreter(), "-c", DTENSORS, os.path.dirname(__file__)], capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": os.fspath(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
