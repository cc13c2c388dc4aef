"""The model of examples/hsdp_tp.c under PyTorch's HSDP and TP: hsdp.py OURS, in an empty directory. Eight
processes with gloo, replicate 2 x shard 2 x tp 2, load the checkpoint OURS, which the example has saved, and compare
every byte. They save the model as `distcp` and as `shards` by torch.distributed.checkpoint. `whole.safetensors` has it
whole, written by safetensors.

Parameters of layer 0 are cut by fully_shard; of layer 1 as FSDP1 does it: a ShardedTensor of the shard group where TP
has not been, else a DTensor of chunk_dtensor. With torch 2.15 chunk_dtensor ends the process where TP's parts are
uneven, and chunk_tensor of a DTensor works for even parts on TP's first row alone: fully_shard cuts those."""

import os
import sys
import warnings

import torch
import torch._dynamo  # before the processes are forked: DTensorExtensions needs it in each
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter, HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel.fsdp import DTensorExtensions

OURS = sys.argv[1]
MESH = (2, 2, 2)
LAYERS = 2
UNKNOWN = []  # to TP
PARAMETERS = {"norm.weight": ((13,), [Replicate()]), "wq.weight": ((10, 13), [Shard(0)]),
              "wo.weight": ((13, 10), [Shard(1)]), "up.weight": ((31, 13), [Shard(0)]), "up.bias": ((31,), [Shard(0)]),
              "down.weight": ((13, 31), [Shard(1)]), "scale": ((3,), [Shard(0)]), "positions": ((7, 13), UNKNOWN)}
CHUNKED = ["norm.weight", "wq.weight", "wo.weight", "positions"]  # of layer 1, as FSDP1 does it


def original():
    tensors = {}
    for layer in range(LAYERS):
        for i, (name, (shape, _)) in enumerate(PARAMETERS.items()):
            first = 1000 * (layer * len(PARAMETERS) + i + 1)
            values = torch.arange(first, first + torch.Size(shape).numel())
            tensors[f"layers.{layer}.{name}"] = values.float().reshape(shape)
    return tensors


def register(module, name, tensor):
    *path, last = name.split(".")
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, torch.nn.Module())
        module = getattr(module, part)
    module.register_parameter(last, torch.nn.Parameter(tensor))


def shard(whole, mesh):
    """The state dict of the model on this rank; tensors are whole, and the same on all ranks."""
    model, chunks, extension, group = torch.nn.Module(), {}, DTensorExtensions(None), mesh["shard"].get_group()
    for path, tensor in whole.items():
        _, layer, name = path.split(".", 2)
        placements = PARAMETERS[name][1]
        if placements is not UNKNOWN:
            tensor = distribute_tensor(tensor, mesh["tp"], placements, src_data_rank=None)
        if layer == "0" or name not in CHUNKED:
            register(model, path, tensor)
        elif placements is UNKNOWN:
            chunks[path] = extension.chunk_tensor(tensor, group.rank(), group.size(), 1, group)
        else:
            chunks[path] = extension.chunk_dtensor(tensor, dist.get_rank(), mesh["shard"])
    fully_shard(model, mesh=mesh["replicate", "shard"])
    return {path: t.detach() for path, t in model.state_dict().items()} | chunks


def locals_of(tensor):
    return [tensor.to_local()] if isinstance(tensor, DTensor) else [s.tensor for s in tensor.local_shards()]


def same(a, b):
    a_bytes, b_bytes = (t.contiguous().view(torch.uint8) for t in (a, b))
    return a.dtype == b.dtype and a.shape == b.shape and a_bytes.equal(b_bytes)


def work(rank, directory):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", rank=rank, world_size=8, init_method=f"file://{directory}/store")
    mesh = init_device_mesh("cpu", MESH, mesh_dim_names=("replicate", "shard", "tp"))
    whole = original()
    wanted, state = shard(whole, mesh), shard({path: torch.zeros_like(t) for path, t in whole.items()}, mesh)
    assert set(wanted) == set(whole) and any(not isinstance(t, DTensor) for t in wanted.values())
    dcp.load(state, storage_reader=HuggingFaceStorageReader(OURS))
    for path, t in state.items():
        parts, theirs = locals_of(t), locals_of(wanted[path])
        assert len(parts) == len(theirs) and all(map(same, parts, theirs)), f"{path}: the part of rank {rank}"
        assert not isinstance(t, DTensor) or same(t.full_tensor(), whole[path]), f"{path}: whole on rank {rank}"
    dcp.save(wanted, storage_writer=FileSystemWriter("distcp"))
    dcp.save(wanted, storage_writer=HuggingFaceStorageWriter("shards", save_distributed=True))
    dist.destroy_process_group()


def main():
    save_file(original(), "whole.safetensors", {"format": "pt"})
    torch.multiprocessing.start_processes(work, (os.getcwd(),), nprocs=8, start_method="fork")
    print(f"torch {torch.__version__}: a model under HSDP and TP, to and fro")


if __name__ == "__main__":
    main()
