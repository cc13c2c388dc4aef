"""Layouts of JAX's shardings. Ranks are device ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._core import Layout


def layout(sharding: Any, shape: Sequence[int], world: int = 0) -> Layout:
    """The layout of a sharding for a shape: a NamedSharding as a mesh, others as boxes, replicated.

    world: number of devices; 0: as many as the largest device id names.
    """
    ids = [device.id for device in sharding.device_set]
    world = world or max(ids) + 1
    mesh, spec = getattr(sharding, "mesh", None), getattr(sharding, "spec", None)
    if mesh is None or spec is None:
        boxes = []
        for device, index in sharding.devices_indices_map(tuple(shape)).items():
            bounds = [part.indices(extent) for part, extent in zip(index, shape)]
            boxes.append((device.id, [b[0] for b in bounds], [b[1] - b[0] for b in bounds]))
        return Layout.boxes(shape, world, sorted(boxes), replicated=True)
    axes = list(mesh.axis_names)
    placements, order = ["R"] * len(axes), []
    for dim, names in enumerate(spec):
        for name in () if names is None else (names,) if isinstance(names, str) else tuple(names):
            placements[axes.index(name)] = f"S{dim}"
            order.append(axes.index(name))  # the first of a tuple cuts first
    order += [axis for axis in range(len(axes)) if axis not in order]
    return Layout.mesh(shape, world, [mesh.shape[name] for name in axes], placements, order=order,
                       ranks=[device.id for device in mesh.devices.flat])
