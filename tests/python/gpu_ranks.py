"""A process of test_gpu.py: one of the ranks that share a GPU. It runs STEPS in turn, each of all ranks, and says which passed.

usage: gpu_ranks.py FILE [STEP...], where FILE is for the ranks to meet
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import traceback
from datetime import timedelta
from typing import Any

STEPS = ["node", "storage", "redistribute", "refused", "nccl", "nccl_redistribute", "borrowed", "dtensors"]
SHAPE = (48, 80)


def environment(rank: int, n: int) -> dict[str, str]:
    """NCCL refuses two ranks of one machine on one GPU: each looks like a machine of its own."""
    own = {"RANK": str(rank), "WORLD_SIZE": str(n), "LOCAL_RANK": str(rank), "RESHARD_TIMEOUT_MS": "20000", "NCCL_HOSTID": f"reshard-{rank}",
           "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0", "NCCL_RAS_ENABLE": "0",
           "NCCL_MAX_CTAS": "2", "GLOO_SOCKET_IFNAME": "lo"}
    return {**os.environ, **own}


class Rank:
    def __init__(self, meeting: str) -> None:
        import torch
        import torch.distributed as dist

        import reshard

        self.torch, self.dist, self.reshard = torch, dist, reshard
        self.rank, self.n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.cuda.set_device(0)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=self.rank, world_size=self.n, timeout=timedelta(seconds=40))
        self.rows, self.columns = (reshard.Layout(text, SHAPE, self.n) for text in ("chunk(0)", "chunk(1)"))
        self.group: Any = None

    def node(self) -> None:
        """Tensors of torch's allocator, by each path."""
        torch, reshard = self.torch, self.reshard
        with reshard.from_torch(device="cuda:0") as comm:
            assert (comm.rank, comm.size) == (self.rank, self.n)
            for dtype in ("float32", "bfloat16", "float8_e4m3fn"):
                for path in ("auto", "direct", "packed"):
                    self.move(comm, dtype, path)
            sub = comm.split(0, -self.rank)
            mine, out = self.part(0, torch.float32), self.part(1, torch.float32) * 0
            with reshard.Transfer(reshard.Plan(self.rows, self.columns, "f32", comm.rank), comm, mine, out) as transfer:
                stream = torch.cuda.Stream()
                torch.cuda.synchronize()
                transfer.execute(stream)
                stream.synchronize()
                assert torch.equal(out, self.part(1, torch.float32))
                other = torch.zeros_like(out)
                transfer.rebind(mine + 1, other)
                transfer.execute(stream)
                stream.synchronize()
                assert torch.equal(other, self.part(1, torch.float32) + 1)
            sub.close()

    def storage(self) -> None:
        """Storage of the communicator, which the others map."""
        torch, reshard = self.torch, self.reshard
        with reshard.from_torch(device="cuda:0") as comm:
            stream = torch.cuda.current_stream()
            mine = self.part(0, torch.float32)
            kept = torch.from_dlpack(reshard.empty(mine.shape, "f32", comm, stream=stream))
            kept.copy_(mine)
            out = torch.empty_like(self.part(1, torch.float32))
            with reshard.Transfer(reshard.Plan(self.rows, self.columns, "f32", comm.rank), comm, kept, out, path="direct") as transfer:
                transfer.execute(stream)
                assert transfer.info["path"] == "direct" and torch.equal(out, self.part(1, torch.float32))
        assert torch.equal(kept, mine)

    def redistribute(self) -> None:
        with self.reshard.from_torch(device="cuda:0") as comm:
            self.there_and_back(comm)

    def refused(self) -> None:
        """An array that one rank refuses is an error on all ranks, which go on."""
        torch, reshard = self.torch, self.reshard
        with reshard.from_torch(device="cuda:0") as comm:
            mine, out = self.part(0, torch.float32), self.part(1, torch.float32) * 0
            plan = reshard.Plan(self.rows, self.columns, "f32", comm.rank)
            try:
                reshard.Transfer(plan, comm, mine.cpu() if self.rank == 1 else mine, out)
            except reshard.InvalidError as error:
                assert "on the CPU, and the communicator is of GPUs" in str(error), error
            else:
                raise AssertionError("an array of the CPU was taken")
            with reshard.Transfer(plan, comm, mine, out) as transfer:
                transfer.execute(torch.cuda.current_stream())
            assert torch.equal(out, self.part(1, torch.float32))

    def nccl(self) -> None:
        """A communicator of its own beside that of a group of nccl."""
        torch, dist, reshard = self.torch, self.dist, self.reshard
        self.group = dist.new_group(backend="nccl", timeout=timedelta(seconds=20))
        one = torch.ones(3, device="cuda")
        dist.all_reduce(one, group=self.group)
        assert (one == self.n).all()
        with reshard.from_torch(self.group, timeout=20) as comm:
            for dtype in ("float32", "bfloat16", "float8_e4m3fn"):
                self.move(comm, dtype, "auto")

    def nccl_redistribute(self) -> None:
        with self.reshard.from_torch(self.group, timeout=20) as comm:
            self.there_and_back(comm)

    def borrowed(self) -> None:
        """The group's own communicator."""
        with self.reshard.from_torch(self.group, timeout=20, borrow=True) as comm:
            self.move(comm, "float32", "auto")
            self.there_and_back(comm)

    def dtensors(self) -> None:
        torch = self.torch
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Replicate, Shard

        mesh = DeviceMesh.from_group(self.group, "cuda")
        whole = self.whole(torch.bfloat16)
        source = DTensor.from_local(self.part(0, torch.bfloat16), mesh, [Shard(0)], run_check=False)
        try:
            import reshard.torch as ours

            moved = ours.redistribute({"w": source}, mesh, [Shard(1)], group=self.group)["w"]
        except ImportError as old:
            assert "made for 2.15" in str(old), old
            print(f"torch {torch.__version__}: {old}")
            return
        assert torch.equal(moved.to_local(), self.part(1, torch.bfloat16)) and moved.placements == (Shard(1),)
        assert torch.equal(ours.full_tensor(source, group=self.group), whole)
        into = DTensor.from_local(torch.zeros_like(whole), mesh, [Replicate()], run_check=False)
        ours.redistribute({"w": source}, mesh, [Replicate()], out={"w": into}, group=self.group)
        assert torch.equal(into.to_local(), whole)
        ours.close()

    def whole(self, dtype: Any) -> Any:
        numbers = self.torch.arange(SHAPE[0] * SHAPE[1], device="cuda").remainder(113)
        return numbers.to(dtype).reshape(SHAPE)

    def part(self, dim: int, dtype: Any) -> Any:
        return self.whole(dtype).chunk(self.n, dim)[self.rank].contiguous()

    def move(self, comm: Any, dtype: str, path: str) -> None:
        torch, reshard = self.torch, self.reshard
        kind = getattr(torch, dtype)
        mine, want = self.part(0, kind), self.part(1, kind)
        out = torch.zeros_like(want)
        with reshard.Transfer(reshard.Plan(self.rows, self.columns, kind, comm.rank), comm, mine, out, path=path) as transfer:
            for _ in range(3):
                out.view(torch.uint8).zero_()
                transfer.execute(torch.cuda.current_stream())
                assert torch.equal(out.view(torch.uint8), want.view(torch.uint8)), (dtype, path, dict(transfer.info))
            print(dtype, path, dict(transfer.info))

    def there_and_back(self, comm: Any) -> None:
        torch, reshard = self.torch, self.reshard
        stream = torch.cuda.current_stream()
        for turn in range(3):
            mine = self.part(0, torch.float32) + turn
            got = reshard.redistribute(mine, self.rows, self.columns, comm, stream=stream)
            assert got.is_cuda and torch.equal(got, self.part(1, torch.float32) + turn), turn
            assert torch.equal(reshard.redistribute(got, self.columns, self.rows, comm, stream=stream), mine), turn
        narrow = reshard.redistribute(mine, self.rows, self.columns, comm, stream=stream, dtype="bf16")
        assert torch.equal(narrow, (self.part(1, torch.float32) + turn).to(torch.bfloat16))


def main() -> None:
    faulthandler.dump_traceback_later(float(os.environ.get("RESHARD_TEST_GPU_SECONDS", "90")), exit=True)
    began = time.monotonic()
    me = Rank(sys.argv[1])
    for step in sys.argv[2:] or STEPS:
        print(f"{time.monotonic() - began:.1f} s: {step}", flush=True)
        try:
            getattr(me, step)()
            me.torch.cuda.synchronize()
        except BaseException:
            traceback.print_exc()
            print(f"failed: {step}", flush=True)
        else:
            print(f"passed: {step}", flush=True)
        ended: list[Any] = [None] * me.n
        me.dist.all_gather_object(ended, step)
    os._exit(0)  # NCCL may wait for what a failed step has left


if __name__ == "__main__":
    main()
