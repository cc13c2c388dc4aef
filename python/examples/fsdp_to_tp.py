"""FSDP2 + TP on a 2 x 2 mesh to TP-4, and to two replicas of TP-2: a small Llama, other meshes, bit for bit.

torchrun --nproc-per-node 4 fsdp_to_tp.py

torch itself refuses another mesh, so the answer is full_tensor and distribute_tensor, which is timed beside.
On the mesh that the tensors have it is DTensor.redistribute. Then a checkpoint that DCP reads, and one of DCP that 2 ranks load.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import reshard.torch


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.o = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)


class Llama(nn.Module):
    def __init__(self, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)


def sharded(width: int, layers: int, vocabulary: int) -> dict[str, Any]:
    """The parameters of the model on (dp, tp) = 2 x 2: TP by the plan, then FSDP2; norms on dp alone."""
    torch.manual_seed(1)
    model = Llama(width, layers, vocabulary)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for block in model.layers:
        columns = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
        parallelize_module(block, mesh["tp"], {**columns, "o": RowwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return dict(model.named_parameters())


def wanted(name: str) -> Any:
    """The placement in which an engine has a tensor over its TP dim."""
    if any(part in name for part in (".q.", ".k.", ".v.", ".up.", "embed", "head")):
        return Shard(0)
    return Shard(1) if name.endswith(("o.weight", "down.weight")) else Replicate()


def on_their_meshes(parameters: dict[str, Any]) -> int:
    """Moves that torch makes itself: each tensor on the mesh that it has. How many are wrong."""
    wrong = 0
    for mesh in dict.fromkeys(p.device_mesh for p in parameters.values()):
        here = {name: p.detach() for name, p in parameters.items() if p.device_mesh == mesh}
        places = {name: [*[Replicate()] * (mesh.ndim - 1), Shard(p.ndim - 1)] for name, p in here.items()}
        ours = reshard.torch.redistribute(here, mesh, places)
        wrong += sum(not torch.equal(ours[name].to_local(), p.redistribute(mesh, places[name]).to_local()) for name, p in here.items())
    return wrong


def refuses(tensor: Any, mesh: DeviceMesh, places: list[Any]) -> bool:
    """torch has no way from mesh to mesh: where it has one, it is the answer to compare with."""
    try:
        tensor.detach().redistribute(mesh, places)
    except NotImplementedError:
        return True
    return False


def checkpoints(parameters: dict[str, Any], directory: str) -> int:
    """Ours read by DCP, and DCP's .distcp loaded by 2 ranks of the 4; how many tensors are wrong."""
    whole = {name: p.full_tensor().detach() for name, p in parameters.items()}
    reshard.torch.save(parameters, os.path.join(directory, "ours"))
    read = {name: torch.zeros_like(w) for name, w in whole.items()}
    dcp_load(read, storage_reader=HuggingFaceStorageReader(os.path.join(directory, "ours")))
    wrong = sum(not torch.equal(read[name], w) for name, w in whole.items())
    dcp_save({name: p.detach() for name, p in parameters.items()}, checkpoint_id=os.path.join(directory, "theirs"))
    pair, mesh = dist.new_group([0, 1]), DeviceMesh("cpu", torch.tensor([0, 1]), mesh_dim_names=("tp",))
    if dist.get_rank() > 1:
        return wrong
    cut = {name: distribute_tensor(w, mesh, [wanted(name)], src_data_rank=None) for name, w in whole.items()}
    state: dict[str, Any] = {name: torch.zeros_like(t) for name, t in cut.items()}
    reshard.torch.load(state, os.path.join(directory, "theirs"), group=pair)
    return wrong + sum(not torch.equal(state[name].to_local(), t.to_local()) for name, t in cut.items())


def main() -> int:
    width, layers, vocabulary = (int(word) for word in sys.argv[1:4]) if len(sys.argv) > 3 else (64, 2, 101)
    dist.init_process_group("gloo")
    parameters = sharded(width, layers, vocabulary)
    wrong = 0
    for shape, names in (((4,), ("tp",)), ((2, 2), ("replica", "tp"))):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)

        def places(name: str) -> list[Any]:
            return [*[Replicate()] * (len(shape) - 1), wanted(name)]

        times = []
        for _ in range(5):
            dist.barrier()
            begin = time.perf_counter()
            ours = reshard.torch.redistribute(parameters, mesh, places)
            times.append(time.perf_counter() - begin)
        dist.barrier()
        begin = time.perf_counter()
        theirs = {name: distribute_tensor(p.full_tensor().detach(), mesh, places(name), src_data_rank=None) for name, p in parameters.items()}
        their_time = time.perf_counter() - begin
        for name, tensor in theirs.items():
            one = ours[name]
            good = isinstance(one, DTensor) and one.placements == tensor.placements and one.shape == tensor.shape
            wrong += not (good and torch.equal(one.to_local(), tensor.to_local()))
        wrong += not refuses(parameters["layers.0.q.weight"], mesh, places("layers.0.q.weight"))
        filled: dict[str, Any] = {name: torch.zeros_like(t) for name, t in theirs.items()}
        reshard.torch.redistribute(parameters, mesh, places, out=filled)
        wrong += sum(not torch.equal(filled[name].to_local(), t.to_local()) for name, t in theirs.items())
        if dist.get_rank() == 0:
            print(f"{'x'.join(map(str, shape))}: {len(theirs)} tensors, {sorted(times)[2] * 1e3:.2f} ms, "
                  f"full_tensor and cut {their_time * 1e3:.2f} ms, {their_time / sorted(times)[2]:.1f} x")
    wrong += on_their_meshes(parameters)
    whole = reshard.torch.full_tensor(parameters["layers.0.norm.weight"])
    wrong += not torch.equal(whole, parameters["layers.0.norm.weight"].full_tensor().detach())
    scratch = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(scratch)
    wrong += checkpoints(parameters, scratch[0])
    counts = torch.tensor(wrong)
    dist.all_reduce(counts)
    if dist.get_rank() == 0:
        shutil.rmtree(scratch[0])
        print(f"{int(counts)} wrong")
    reshard.torch.close()
    dist.destroy_process_group()
    return int(counts) != 0


if __name__ == "__main__":
    sys.exit(main())
