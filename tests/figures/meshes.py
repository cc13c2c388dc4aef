"""Makes tests/figures/meshes.json: where torch's DTensors lie, by its "fake" process group in one process.

python meshes.py > meshes.json, with torch 2.15. A case: ranks of every part of the mesh and their shape, placements,
shape of the tensor, and for each rank the offset and shape that torch gives it.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

SHAPES = [(7, 5), (12, 2)]


def placement(text: str) -> Any:
    if text == "R":
        return Replicate()
    dim, _, split = text[1:].partition("*")
    return _StridedShard(int(dim), split_factor=int(split)) if split else Shard(int(dim))


def choices(name: str, mesh: DeviceMesh) -> list[tuple[str, ...]]:
    """Every combination; of a root also FSDP2's over TP, which is strided."""
    every = list(itertools.product(["R", "S0", "S1"], repeat=mesh.ndim))
    return every + ([(*["R"] * (mesh.ndim - 2), f"S0*{mesh.size(mesh.ndim - 1)}", "S0")] if name == "root" else [])


def meshes(world: int) -> dict[str, DeviceMesh]:
    """Roots, parts, flattened and permuted ones of a world."""
    if world == 4:
        root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    elif world == 6:
        root = init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))
    else:
        root = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    found = {"root": root, **{name: root[name] for name in root.mesh_dim_names or ()}}
    found["flat"] = root["dp", "tp"]._flatten("both")
    found["permuted"] = DeviceMesh("cpu", root.mesh.movedim(0, -1), mesh_dim_names=root.mesh_dim_names)
    return found


def main() -> None:
    cases: dict[str, Any] = {}
    for world in (4, 6, 8):
        for rank in range(world):
            dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
            for name, mesh in meshes(world).items():
                ranks = mesh._layout.remap_to_tensor(mesh._rank_map)
                for places in choices(name, mesh):
                    placements = [placement(p) for p in places]
                    for shape in SHAPES:
                        local, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
                        case = cases.setdefault(f"{world} {name} {','.join(places)} {shape}", {
                            "mesh": list(ranks.shape), "ranks": ranks.flatten().tolist(), "placements": places, "shape": shape, "held": {}})
                        case["held"][rank] = [list(offset), list(local)]
            dist.destroy_process_group()
    print("[")
    print(",\n".join(json.dumps(case) for case in cases.values()))
    print("]")


if __name__ == "__main__":
    main()
