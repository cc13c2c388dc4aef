#!/usr/bin/env python3
"""Makes the recorded sets beside this script: make.py [DIRECTORY]

Each set is a directory of shards written by PyTorch's distributed checkpoint, and NAME.safetensors, the same tensors
whole, written by safetensors. Recorded with Python 3.11, torch 2.15.0, safetensors 0.8.0, numpy 2.4.6 on the CPU with
gloo. Another run gives other files: the order of the keys in "__metadata__" is random, and which rank writes a replica
depends on its load. Then the layouts in plain.rules have to follow.

plain   4 ranks, each box on one rank, no empty shards: what `reshard convert` writes from plain.safetensors and
        plain.rules has the same tensors, data and texts in each file
kinds   4 ranks: replicas, empty shards, tensors without elements, two mesh dims on one dim, StridedShard
files   3 ranks, two files a rank by tensor name, and a rank that holds nothing and has no file
"""

import os
import shutil
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

# The order in which safetensors stores tensors: by dtype in this order, then by name.
ORDER = [torch.uint64, torch.int64, torch.float64, torch.complex64, torch.float32, torch.uint32, torch.int32,
         torch.bfloat16, torch.float16, torch.uint16, torch.int16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8,
         torch.uint8, torch.bool]
PLAIN = None  # a tensor that is no DTensor: the same on all ranks, written by one
ODD = 'größe "層"\\\t\x01\x7f/\U0001f600.weight'


def sets(name, world):
    """Name, shape, dtype, mesh, placements of each tensor of a set; mesh 0 is 1-d, 1 is 2 x 2, 2 the first two ranks."""
    if name == "plain":
        yield "rows.f32", (10, 6), torch.float32, 0, [Shard(0)]
        yield "columns.bf16", (3, 7), torch.bfloat16, 0, [Shard(1)]
        yield "both.f32", (5, 7), torch.float32, 1, [Shard(0), Shard(1)]
        yield "middle.i16", (2, 7, 3), torch.int16, 0, [Shard(1)]
        yield ODD, (4, 4), torch.float16, 0, [Shard(0)]
        yield "scalar.f32", (), torch.float32, 0, PLAIN
        yield "replicated.i64", (5,), torch.int64, 0, PLAIN
        for dtype in ORDER:
            yield "each." + str(dtype).split(".")[1], (2, 7), dtype, 1, [Shard(1), Shard(0)]
    if name == "kinds":
        yield "rows", (10, 6), torch.float32, 0, [Shard(0)]
        yield "few.rows", (2, 3), torch.float64, 0, [Shard(0)]
        yield "few.columns", (3, 5), torch.uint8, 0, [Shard(1)]
        yield "none", (0, 4), torch.float32, 0, [Shard(0)]
        yield "none.columns", (3, 0), torch.int8, 0, [Shard(0)]
        yield "none.plain", (4, 0), torch.float32, 0, PLAIN
        yield "replicated", (5,), torch.int64, 0, PLAIN
        yield "replicated.dtensor", (5,), torch.int32, 0, [Replicate()]
        yield "scalar", (), torch.bool, 0, PLAIN
        yield "hsdp", (5, 4), torch.bfloat16, 1, [Shard(0), Replicate()]
        yield "replicas.first", (5, 4), torch.int16, 1, [Replicate(), Shard(0)]
        yield "twice", (7, 2), torch.uint8, 1, [Shard(0), Shard(0)]
        yield "strided", (8, 2), torch.float8_e4m3fn, 1, [_StridedShard(0, split_factor=2), Shard(0)]
        yield "half", (8, 2), torch.complex64, 2, [Shard(0)]
    if name == "files":
        yield "a", (5, 2), torch.float32, 2, [Shard(0)]
        yield "b", (3, 5), torch.float32, 2, [Shard(1)]
        yield "c", (2,), torch.uint16, 2, [Shard(0)]


def value(shape, dtype, seed):
    """Bytes that depend on their place and on the tensor; made without a random generator."""
    size = torch.empty((), dtype=dtype).element_size()
    numel = 1
    for extent in shape:
        numel *= extent
    data = [(seed * 41 + i * 7 + i // 250) % 251 for i in range(numel * size)]
    if dtype == torch.bool:
        return torch.tensor([b % 2 == 0 for b in data], dtype=torch.bool).reshape(shape)
    return torch.tensor(data, dtype=torch.uint8).view(dtype).reshape(shape)


def save(rank, name, world, out):
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29577")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    meshes = [init_device_mesh("cpu", (world,))]
    meshes.append(init_device_mesh("cpu", (2, 2)) if world == 4 else None)
    meshes.append(DeviceMesh("cpu", [0, 1]))
    whole, state = {}, {}
    tensors = sorted(sets(name, world), key=lambda t: (ORDER.index(t[2]), t[0].encode()))
    for i, (tensor, shape, dtype, mesh, placements) in enumerate(tensors):
        whole[tensor] = value(shape, dtype, i)
        if placements is PLAIN:
            state[tensor] = whole[tensor]
        elif rank in meshes[mesh].mesh.flatten().tolist():
            state[tensor] = distribute_tensor(whole[tensor], meshes[mesh], placements, src_data_rank=None)
    files = {"a": 1, "b": 2, "c": 1} if name == "files" else None
    path = os.path.join(out, name)
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(path, files, save_distributed=True))
    if rank == 0:
        save_file(whole, path + ".safetensors", {"format": "pt"})
        os.chmod(path + ".safetensors", 0o644)
    dist.destroy_process_group()


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    for name, world in ("plain", 4), ("kinds", 4), ("files", 3):
        shutil.rmtree(os.path.join(out, name), ignore_errors=True)
        torch.multiprocessing.spawn(save, (name, world, out), nprocs=world)


if __name__ == "__main__":
    main()
