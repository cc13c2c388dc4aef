"""Checkpoints to and fro between PyTorch's distributed checkpoint and `reshard convert`: interop_torch.py PROGRAM, in an
empty directory. Four processes with gloo load our shards into layouts of their own, and save what we read."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

PROGRAM = sys.argv[1]
WORLD = 4
DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.complex64, torch.bool, torch.uint16]
LAYOUTS = ["chunk(0)", "chunk(1)", "mesh(2x2;S0,S1)", "mesh(2x2;S1,R)", "mesh(2x2;S0*2,S0)", "cyclic(2x2;2x3)", "flat()", "rank(2)"]
PLACEMENTS = [[Shard(0), Replicate()], [Shard(1), Shard(0)], [Shard(1), Shard(1)], [Replicate(), Replicate()]]


def convert(*arguments):
    done = subprocess.run([PROGRAM, "convert", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"convert {arguments}: {done.stderr}"


def value(shape, dtype, seed):
    size = torch.empty((), dtype=dtype).element_size()
    numel = 1
    for extent in shape:
        numel *= extent
    data = torch.randint(0, 256, (numel * size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return (data % 2).bool().reshape(shape) if dtype == torch.bool else data.view(dtype).reshape(shape)


def model():
    tensors = {f"{str(dtype).split('.')[1]}.weight": value((9, 10), dtype, i) for i, dtype in enumerate(DTYPES)}
    return tensors | {"größe.层": value((5, 3), torch.float32, 50), "few": value((2, 2), torch.float64, 51)}


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.contiguous().view(-1).view(torch.uint8).equal(
        b.contiguous().view(-1).view(torch.uint8))


def work(rank, whole):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29588")
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (2, 2))

    def distribute(tensors, placements):
        return {name: distribute_tensor(t, mesh, placements, src_data_rank=None) for name, t in tensors.items()}

    for i, _ in enumerate(LAYOUTS):
        for placements in PLACEMENTS:
            state = distribute({name: torch.zeros_like(t) for name, t in whole.items()}, placements)
            dcp.load(state, storage_reader=HuggingFaceStorageReader(f"ours-{i}"))
            for name, t in distribute(whole, placements).items():
                assert same(t.to_local(), state[name].to_local()), f"{LAYOUTS[i]} to {placements}: {name}"
    for i, placements in enumerate(PLACEMENTS):
        dcp.save(distribute(whole, placements),
                 storage_writer=HuggingFaceStorageWriter(f"theirs-{i}", save_distributed=True))
    dist.destroy_process_group()


def main():
    whole = model()
    save_file(whole, "whole.safetensors")
    for i, layout in enumerate(LAYOUTS):
        convert("whole.safetensors", f"ours-{i}", "--dst", layout, "--ranks", WORLD)
    torch.multiprocessing.spawn(work, (whole,), nprocs=WORLD)
    for i, placements in enumerate(PLACEMENTS):
        convert(f"theirs-{i}", f"back-{i}.safetensors", "--verify")
        back = load_file(f"back-{i}.safetensors")
        assert set(back) == set(whole)
        for name, t in whole.items():
            assert same(t, back[name]), f"{placements}: {name}"
    print(f"torch {torch.__version__}: {len(LAYOUTS)} of our layouts loaded into {len(PLACEMENTS)} of its own, {len(PLACEMENTS)} of its own read")


if __name__ == "__main__":
    main()
