#!/usr/bin/env python3
"""Makes the recorded files beside this script: make.py [DIRECTORY]

Recorded with Python 3.11, torch 2.15.0, safetensors 0.8.0 on the CPU with gloo. Each has a NAME.safetensors beside it,
the same tensors whole, written by safetensors.

sharded   a directory of FileSystemWriter: 2 ranks, rows and columns that do not divide, empty shards, tensors without
          elements, a scalar, a replicated tensor, nested dicts and lists, leaves that are no tensors, odd names, and
          the dtypes that differ in how they are saved
state.pt  a file of torch.save: a nested state dict of all dtypes that safetensors has, tensors that share a storage, a
          parameter, a tensor in Fortran order, leaves that are no tensors
"""

import collections
import os
import shutil
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

ODD = 'größe "層"\\\t\x01\x7f/\U0001f600.weight'
DTYPES = [torch.uint64, torch.int64, torch.float64, torch.complex64, torch.float32, torch.uint32, torch.int32,
          torch.bfloat16, torch.float16, torch.uint16, torch.int16, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.float8_e8m0fnu, torch.int8, torch.uint8, torch.bool]


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


def sharded(rank, out):
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29578")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = {}

    def put(name, shape, dtype, placement=None):
        whole[name] = value(shape, dtype, len(whole))
        if placement is None:
            return whole[name]
        return distribute_tensor(whole[name], mesh, [placement], src_data_rank=None)

    state = {
        "rows": put("rows", (5, 3), torch.float32, Shard(0)),
        "columns": put("columns", (2, 7), torch.bfloat16, Shard(1)),
        "few": put("few", (1, 3), torch.int64, Shard(0)),
        "none": put("none", (0, 4), torch.float32, Shard(0)),
        "replicated": put("replicated", (3,), torch.int32, Replicate()),
        "scalar": put("scalar", (), torch.float64),
        ODD: put(ODD, (2, 2), torch.uint8, Shard(0)),
        "step": 7,
        "note": "not a tensor",
        "optim": {"state": [{"step": 1, "exp_avg": put("optim.state.0.exp_avg", (3, 2), torch.float16, Shard(0))},
                            {"flags": put("optim.state.1.flags", (4,), torch.bool)}]},
        "f8": put("f8", (2, 3), torch.float8_e4m3fn, Shard(1)),
        "u16": put("u16", (3,), torch.uint16, Shard(0)),
        "c64": put("c64", (2,), torch.complex64),
    }
    dcp.save(state, storage_writer=FileSystemWriter(os.path.join(out, "sharded")))
    if rank == 0:
        save_file(whole, os.path.join(out, "sharded.safetensors"), {"format": "pt"})
    dist.destroy_process_group()


def state(out):
    whole = {f"each.{str(dtype).split('.')[1]}": value((2, 3), dtype, i) for i, dtype in enumerate(DTYPES)}
    base = value((20,), torch.float32, 50)
    nested = {
        "each": collections.OrderedDict((name[5:], t) for name, t in whole.items()),
        "shared": [base, base[2:8].reshape(2, 3)],
        "parameter": torch.nn.Parameter(value((2, 2), torch.float32, 51)),
        "fortran": value((2, 3, 4), torch.int16, 52).permute(2, 1, 0),
        "scalar": value((), torch.bfloat16, 53),
        "none": value((0, 3), torch.uint8, 54),
        "optim": {"state": {0: {"step": 3, "avg": value((3,), torch.float32, 55)}}, "lr": 1e-3, "betas": (0.9, 0.99)},
        "epoch": 12345678901234567890,
        "device": torch.device("cpu"),
        "dtype": torch.bfloat16,
        "size": torch.Size([3, 4]),
        "name": None,
        ODD: value((3,), torch.uint8, 56),
    }
    torch.save(nested, os.path.join(out, "state.pt"))
    whole.update({"shared.0": base, "shared.1": base[2:8].reshape(2, 3), "parameter": nested["parameter"].detach(),
                  "fortran": nested["fortran"], "scalar": nested["scalar"], "none": nested["none"],
                  "optim.state.0.avg": nested["optim"]["state"][0]["avg"], ODD: nested[ODD]})
    save_file({name: t.contiguous().clone() for name, t in whole.items()}, os.path.join(out, "state.safetensors"),
              {"format": "pt"})


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    shutil.rmtree(os.path.join(out, "sharded"), ignore_errors=True)
    torch.multiprocessing.spawn(sharded, (out,), nprocs=2)
    state(out)
    for name in "sharded.safetensors", "state.safetensors":
        os.chmod(os.path.join(out, name), 0o644)


if __name__ == "__main__":
    main()
