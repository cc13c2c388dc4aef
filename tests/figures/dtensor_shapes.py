"""Writes dtensor_shapes.txt, local shapes and offsets of DTensors as PyTorch has them; tests/unit/dtensor/test_dtensor_shapes.c
compares ours with it. For a PyTorch that has torch.distributed.tensor; needs no process group.

usage: python3 dtensor_shapes.py >dtensor_shapes.txt

A line per number of tensor dims, mesh and placement of the first mesh dim: a hash for each placement of the second one.
What is hashed (FNV-1a, 32 bits, a byte a number): for every shape of extents 0 to 12, first extent slowest, and every
coordinate, first one slowest, the local shape and the offset.
"""
import itertools
import sys

import torch
from torch.distributed.tensor import Replicate, Shard, _utils
from torch.distributed.tensor.placement_types import _StridedShard

MOST = 12


def placements(ndim):
    yield "R", Replicate()
    for dim in range(ndim):
        yield f"S{dim}", Shard(dim)
        for factor in 2, 3:
            yield f"S{dim}*{factor}", _StridedShard(dim, split_factor=factor)


def figures(ndim, mesh, cuts):
    value = 2166136261
    for shape in itertools.product(range(MOST + 1), repeat=ndim):
        for coordinate in itertools.product(*map(range, mesh)):
            local, offset = _utils._compute_local_shape_and_global_offset(shape, mesh, list(coordinate), cuts)
            for number in local + offset:
                value = (value ^ number) * 16777619 & 0xFFFFFFFF
    return value


print(f"# made by dtensor_shapes.py with PyTorch {torch.__version__.split('+')[0]}")
print("# dims mesh placement: hashes for a second placement of:")
for ndim in 1, 2:
    print(f"# {ndim} dims:", *(name for name, _ in placements(ndim)))
for ndim in 1, 2:
    for mesh in itertools.product(range(1, 5), range(1, 4)):
        for name, first in placements(ndim):
            row = (figures(ndim, mesh, (first, second)) for _, second in placements(ndim))
            print(ndim, f"{mesh[0]}x{mesh[1]}", name, *(f"{value:08x}" for value in row))
            sys.stdout.flush()
