"""DTensors: moved to any mesh and placements, all of a state dict in one plan. Over gloo, on the CPU, by torch 2.15; over nccl, by 2.11, too.

Communicators are made once per group, and kept until `close()` or the end of the process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, placement_types

from ._core import Comm, Entry, Layout, Plan, Transfer, _move_state, redistribute as _redistribute
from ._errors import MismatchError
from ._groups import from_torch

Placements = Sequence[Any]
_comms: dict[Any, Comm] = {}


def _comm(group: Any) -> Comm:
    key = group if group is not None else dist.group.WORLD
    if key not in _comms or _comms[key].closed:
        _comms[key] = from_torch(group)
    return _comms[key]


def close() -> None:
    """Ends the communicators that were made for groups. Every rank does so, before its group is destroyed."""
    for kept in (_own_layout, _pair_to, _plan):
        kept.cache_clear()
    while _comms:
        _comms.popitem()[1].close()


def _placement(p: Any) -> str:
    if isinstance(p, placement_types._StridedShard):
        return f"S{p.dim}*{p.split_factor}"
    if isinstance(p, Shard):
        return f"S{p.dim}"
    if isinstance(p, Replicate):
        return "R"
    raise TypeError(f"placement {type(p).__name__}, {p}: Replicate, Shard and _StridedShard are moved; nothing is summed")


def _order(shard_order: Any, ndim: int) -> list[int]:
    """The mesh dims in the order in which they cut, from torch's shard order: one list of mesh dims per tensor dim."""
    order = list(range(ndim))
    for entry in shard_order or ():  # those that cut one tensor dim share their places in another order
        for place, dim in zip(sorted(entry.mesh_dims), entry.mesh_dims):
            order[place] = dim
    return order


def layout(mesh: DeviceMesh, placements: Placements, shape: Sequence[int], world: int, shard_order: Any = None) -> Layout:
    """The layout of a DTensor. The mesh is given with all its parts, so that ranks on different parts tell one layout."""
    if len(placements) != mesh.ndim:
        raise ValueError(f"{len(placements)} placements for a mesh of {mesh.ndim} dims")
    try:
        ranks, cuts = mesh._layout.remap_to_tensor(mesh._rank_map), [_placement(p) for p in placements]
    except AttributeError as missing:
        raise ImportError(f"torch {torch.__version__}: {missing}; reshard.torch is made for 2.11 to 2.15") from missing
    order = [0, *(dim + 1 for dim in _order(shard_order, mesh.ndim))]  # the first dim counts the parts
    return Layout.mesh(shape, world, list(ranks.shape), ["R", *cuts], order, ranks.flatten().tolist())


@functools.lru_cache(4096)
def _own_layout(spec: Any, world: int) -> Layout:
    return layout(spec.mesh, spec.placements, spec.shape, world, getattr(spec, "shard_order", None))


@functools.lru_cache(64)
def _pair_to(mesh: DeviceMesh, placements: tuple[Any, ...], world: int) -> Callable[[Any], tuple[Layout, Layout]]:
    """The layout of a tensor and that of its target, by the tensor's spec: torch's hash of a mesh and placements takes longer."""
    return functools.lru_cache(4096)(lambda spec: (_own_layout(spec, world), layout(mesh, placements, spec.shape, world)))


def _local(x: DTensor) -> torch.Tensor:
    """The memory of this rank's part, which a collective of torch's may still be filling."""
    part = x._local_tensor
    return part if type(part) is torch.Tensor or not hasattr(part, "wait") else part.wait()


@functools.lru_cache(64)
def _names(names: tuple[str, ...], world: int) -> tuple[list[torch.Tensor], list[tuple[Layout, Layout]]]:
    """A number of the names, and the layouts that give all ranks those of each: one more tensor of a call."""
    digest = int.from_bytes(hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).digest()[:8], "little", signed=True)
    return [torch.tensor([digest])], [(Layout.chunk([world], world), Layout.mesh([world], world, [world], ["R"]))]


def _refuse_names(tensors: Mapping[str, Any], comm: Comm, group: Any, error: MismatchError | None = None) -> None:
    """Raises the error of names that differ, on all ranks alike."""
    names: list[Any] = [None] * comm.size
    dist.all_gather_object(names, list(tensors), group=group)
    for rank, theirs in enumerate(names):
        if set(theirs) != set(names[0]):
            name = min(set(theirs) ^ set(names[0]))
            raise MismatchError(f"'{name}' is a tensor on rank {0 if name in names[0] else rank} alone, of ranks 0 and {rank}") from error


@functools.lru_cache(64)
def _plan(rank: int, entries: tuple[tuple[str, tuple[Layout, Layout], torch.dtype, torch.dtype], ...]) -> Plan:
    return Plan([Entry(*pair, dtype, name, dst_dtype=dst_dtype) for name, pair, dtype, dst_dtype in entries], rank)


def _move(tensors: dict[str, DTensor], pairs: Sequence[tuple[Layout, Layout]], comm: Comm, group: Any, named: bool,
          dtype: torch.dtype | None, into: list[torch.Tensor] | None) -> list[torch.Tensor]:
    """The local parts in their target layouts: new ones, or `into`, which is written once the names are known to be alike."""
    parts = [_local(x) for x in tensors.values()]
    on_gpu = any(part.is_cuda for part in parts)
    if on_gpu and into is None:  # memory of torch's
        held = [target.arrays(comm.rank) for _, target in pairs]
        into = [torch.empty(a[0][0] if a else (0,), dtype=dtype or part.dtype, device=part.device) for a, part in zip(held, parts)]
    digest, told = _names(tuple(tensors), comm.size) if named and not on_gpu else ([], [])
    sent, ways = (digest, told) if into is not None else ([*parts, *digest], [*pairs, *told])
    try:
        moved: list[torch.Tensor] = _redistribute(sent, [src for src, _ in ways], [dst for _, dst in ways], comm,
                                                  dtype=[dtype] * len(parts) + [None], _like=torch.Tensor) if sent else []
    except MismatchError as error:  # on all ranks alike: names tell more, where they are what differs
        _refuse_names(tensors, comm, group, error)
        raise
    if digest and len(set(moved.pop().tolist())) > 1:
        _refuse_names(tensors, comm, group)
    if into is None:
        return moved
    plan = _plan(comm.rank, tuple((name, pair, a.dtype, b.dtype) for name, pair, a, b in zip(tensors, pairs, parts, into)))
    with Transfer(plan, comm, parts, into) as transfer:
        transfer.execute(torch.cuda.current_stream() if on_gpu else None)
    return into


@contextlib.contextmanager
def _told(comm: Comm) -> Iterator[None]:
    """Checks what a call takes: the ranks that are in it already hear of an error, and have it, too."""
    try:
        yield
    except Exception as error:
        comm._refuse(f"{type(error).__name__}: {error}")
        raise


def redistribute(x: Any, device_mesh: DeviceMesh, placements: Placements | Mapping[str, Placements] | Callable[[str], Placements], *,
                 out: Any = None, dtype: torch.dtype | None = None, group: Any = None) -> Any:
    """Moves a DTensor, or all of a dict, to a mesh and placements, as one plan. Collective over the group.

    - x: a DTensor, or a dict; what is no DTensor in it passes as it is. All ranks have the same names.
    - device_mesh: any mesh over the group's ranks, also another than that of x.
    - placements: of x; for a dict also by name, as a dict or a function.
    - out: a DTensor, or a dict of them, to be filled, of the mesh, placements and dtype that they have; else new ones.
    - dtype: of new ones, converted on the way (torch's forward_dtype); None: of x.
    """
    if out is not None and dtype is not None:
        raise ValueError(f"dtype {dtype} is of new tensors; out has its own")
    comm, bare = _comm(group), isinstance(x, DTensor)
    if bare:
        x, out = {"tensor": x}, None if out is None else {"tensor": out}
    with _told(comm):
        if not isinstance(x, Mapping):
            raise TypeError(f"a {type(x).__name__}, where a DTensor, or a dict of them, is due")
        tensors, result = {name: x[name] for name in sorted(n for n in x if isinstance(x[n], DTensor))}, dict(x)
        into: list[torch.Tensor] | None = None
        if out is None:
            of = placements if callable(placements) else placements.__getitem__ if isinstance(placements, Mapping) else lambda name: placements
            chosen: dict[str, Any] = {name: of(name) for name in tensors}
            once = {id(p): p for p in chosen.values()}
            pair_to = {key: _pair_to(device_mesh, tuple(p), comm.size) for key, p in once.items()}
            pairs = [pair_to[id(chosen[name])](source._spec) for name, source in tensors.items()]
        else:
            for name, source in tensors.items():
                if not isinstance(out[name], DTensor):
                    raise TypeError(f"'{name}': out has a {type(out[name]).__name__}, where a DTensor is due")
                if out[name].shape != source.shape:
                    raise ValueError(f"'{name}': out has {tuple(out[name].shape)}, not {tuple(source.shape)}")
            pairs = [(_own_layout(source._spec, comm.size), _own_layout(out[name]._spec, comm.size)) for name, source in tensors.items()]
            into = [_local(out[name]) for name in tensors]
        for name, source in tensors.items():
            if dtype is not None and source.dtype is not dtype and not (source.dtype.is_floating_point and dtype.is_floating_point):
                raise NotImplementedError(f"'{name}': no cast from {source.dtype} to {dtype}")
    for (name, source), part in zip(tensors.items(), _move(tensors, pairs, comm, group, not bare, dtype, into)):
        made = out[name] if out is not None else DTensor.from_local(part, device_mesh, chosen[name], run_check=False,
                                                                    shape=source.shape, stride=source.stride())
        result[name] = made.requires_grad_() if out is None and source.requires_grad else made
    return result["tensor"] if bare else result


def full_tensor(x: DTensor, *, group: Any = None) -> torch.Tensor:
    """The whole tensor on each rank of its mesh (without elements outside of it). Collective over the group."""
    mesh: Any = getattr(x, "device_mesh", None)  # of none redistribute says what is wrong
    whole: torch.Tensor = redistribute(x, mesh, [Replicate()] * getattr(mesh, "ndim", 0), group=group)._local_tensor
    return whole.detach()


def _move_named(state: Mapping[str, Any], path: str | os.PathLike[str], group: Any, saves: bool, option: bool, dtype: Any = None) -> None:
    comm = _comm(group)
    with _told(comm):
        for name, x in state.items():
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"'{name}' is a {type(x).__name__}: DTensors and tensors are saved and loaded")
        tensors = {name: state[name] for name in sorted(state)}
        layouts = [_own_layout(x._spec, comm.size) if isinstance(x, DTensor) else Layout.mesh(list(x.shape), comm.size, [comm.size], ["R"])
                   for x in tensors.values()]
        parts = [_local(x) if isinstance(x, DTensor) else x.detach() for x in tensors.values()]
    _move_state(comm, path, list(tensors), parts, layouts, saves, option, dtype)


def save(state: Mapping[str, Any], path: str | os.PathLike[str], *, force: bool = False, dtype: Any = None, group: Any = None) -> None:
    """Saves a state dict: a directory of safetensors that DCP's HuggingFaceStorageReader takes. Collective over the group.

    Each rank writes its part of the DTensors. Plain tensors are the same on all ranks. It appears complete or not at all.
    dtype: of all numbers in the files; None: of each tensor.
    """
    _move_named(state, path, group, True, force, dtype)


def load(state: Mapping[str, Any], path: str | os.PathLike[str], *, partial: bool = False, group: Any = None) -> None:
    """Loads into the tensors of a state dict, on any mesh, from any checkpoint that `reshard.open` reads. Collective.

    Each rank reads its own part alone. Numbers of another dtype are converted. partial: the checkpoint may have more names.
    """
    _move_named(state, path, group, False, partial)
