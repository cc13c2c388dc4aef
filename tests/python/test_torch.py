"""DTensors against torch's own answers, where an interpreter has torch: this one, or RESHARD_TEST_PYTHON."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "python" / "examples"


REFUSED = """
import torch, reshard, reshard.torch
from torch.distributed.tensor.placement_types import Partial
comm, one = reshard.local(1), reshard.Layout("rank(0)", (2, 2), 1)
def refused(source, error, text, dtype="f32"):
    out = torch.full((2, 2), 7, dtype=source.dtype)
    try:
        reshard.Transfer(reshard.Plan(one, one, dtype, 0), comm, [source], [out])
        raise SystemExit(f"{text}: taken")
    except error as raised:
        assert text in str(raised), (text, str(raised))
    assert (out == 7).all()
real = torch.zeros(2, 2)
refused(torch.zeros(2, 2, dtype=torch.complex64).conj(), NotImplementedError, "is_conj", "c64")
refused(torch.zeros(2, 2, dtype=torch.complex64).conj().imag, NotImplementedError, "is_neg")
refused(real.to_sparse(), NotImplementedError, "layout torch.sparse")
refused(torch.empty(2, 2, device="meta"), NotImplementedError, "device meta")
refused(torch.zeros(2, 3), ValueError, "shape (2, 3), where (2, 2)")
refused(real.double(), ValueError, "f64, where f32")
source, out = torch.arange(4.0).reshape(2, 2), torch.zeros(2, 2)
transfer = reshard.Transfer(reshard.Plan(one, one, "f32", 0), comm, [source], [out])
transfer.execute()
assert (out == source).all()
source.untyped_storage().resize_(0)
try:
    transfer.execute()
    raise SystemExit("freed storage: read")
except ValueError as raised:
    assert "other storage" in str(raised), raised
try:
    reshard.torch._placement(Partial())
    raise SystemExit("Partial: taken")
except TypeError as raised:
    assert "Partial" in str(raised)
comm.close()
print("all refused")
"""


TOLD = """
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Partial
import reshard, reshard.torch
dist.init_process_group("gloo")
second, mesh = dist.get_rank() == 1, init_device_mesh("cpu", (2,))
def of(part):
    return DTensor.from_local(part, mesh, [Shard(0)], run_check=False)
def refused(call, kind, text):  # kind: on rank 1, which refuses
    try:
        call()
    except Exception as raised:
        assert isinstance(raised, kind if second else reshard.InvalidError) and text in str(raised), (raised, text)
    else:
        raise SystemExit(f"{text}: taken")
w, move = {"w": of(torch.ones(2, 4))}, reshard.torch.redistribute
out, wrong = move(w, mesh, [Shard(1)]), {"w": of(torch.ones(2, 2))}
refused(lambda: move(w, mesh, [Partial()] if second else [Shard(1)]), TypeError, "Partial")
refused(lambda: move(w, mesh, {} if second else {"w": [Shard(1)]}), KeyError, "'w'")
numbers = {"n": of(torch.ones(2, 4, dtype=torch.int64) if second else torch.ones(2, 4))}
refused(lambda: move(numbers, mesh, [Shard(1)], dtype=torch.bfloat16), NotImplementedError, "'n': no cast from torch.int64")
refused(lambda: move(w, mesh, [Shard(1)], out=wrong if second else out), ValueError, "'w': out has (4, 2)")
refused(lambda: reshard.torch.save({**w, "t": 1} if second else w, sys.argv[1]), TypeError, "'t' is a int")
refused(lambda: move(5 if second else w, mesh, [Shard(1)]), TypeError, "a int, where a DTensor")
refused(lambda: move(w, mesh, [Shard(1)], out={"w": 5} if second else out), TypeError, "'w': out has a int")
refused(lambda: reshard.torch.load(w, "/no/such"), FileNotFoundError, "'/no/such': No such file or directory")
try:
    reshard.torch.load(w, "/no/such" if second else ".")
    raise SystemExit("a path of each rank: taken")
except reshard.MismatchError as raised:
    assert "'.'" in str(raised) and "'/no/such'" in str(raised), raised
own = {f"w{dist.get_rank()}": w["w"]}
for given, into, text in ((own, None, "'w0' is a tensor on rank 0 alone, of ranks 0 and 1"), ({} if second else w, None, "'w'"),
                          (own, dict.fromkeys(own, out["w"]), "'w0'"), (own if second else w, None, "'w'")):
    try:
        move(given, mesh, [Shard(1)], out=into)
    except reshard.MismatchError as raised:
        assert text in str(raised) and (out["w"].to_local() == 1).all(), raised
    else:
        raise SystemExit(f"{list(given)}: taken")
for _ in range(2):
    move({"w": of(torch.full((2, 4), 3.0))}, mesh, [Shard(1)], out=out)
assert (out["w"].to_local() == 3).all() and out["w"].to_local().shape == (4, 2)
for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.bool, torch.uint16, torch.complex64):
    bits = {1: torch.uint8, 2: torch.int16, 8: torch.int64}[dtype.itemsize]
    part = torch.arange(12, dtype=torch.uint8).remainder(2).to(bits).view(dtype).reshape(3, 4)
    first = move(of(part), DeviceMesh("cpu", [0]), [Replicate()]).to_local()  # rank 1 is not in it
    assert first.dtype is dtype and first.shape == ((0,) if second else (6, 4)), first
    assert second or torch.equal(first.view(bits), torch.cat([part, part]).view(bits))
none = move(of(torch.zeros(0, 4, dtype=torch.bfloat16)), mesh, [Shard(1)]).to_local()
assert none.dtype is torch.bfloat16 and none.shape == (0, 2)
reshard.torch.close()
dist.destroy_process_group()
print("all heard")
"""


def interpreter() -> str:
    for one in (os.environ.get("RESHARD_TEST_PYTHON"), sys.executable):
        if one and subprocess.run([one, "-c", "import torch, reshard"], capture_output=True).returncode == 0:
            return one
    pytest.skip("no torch beside reshard: RESHARD_TEST_PYTHON names an interpreter that has it")


def launch(tmp_path: Path, n: int, *program: str) -> str:
    command = [interpreter(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n), *program]
    here = os.fspath(tmp_path)  # the launcher leaves its logs
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": here, "TMPDIR": here}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_fsdp_and_tp_parameters_move_to_other_meshes_bit_for_bit(tmp_path: Path) -> None:
    assert "0 wrong" in launch(tmp_path, 4, os.fspath(EXAMPLES / "fsdp_to_tp.py"))


def test_what_one_rank_refuses_all_ranks_hear(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    assert launch(tmp_path, 2, os.fspath(tmp_path / "told.py"), os.fspath(tmp_path / "state")).count("all heard") == 2


def test_tensors_whose_memory_says_something_else_are_refused(tmp_path: Path) -> None:
    done = subprocess.run([interpreter(), "-c", REFUSED], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout == "all refused\n", done.stdout + done.stderr
