"""Communicators from the groups of other programs: mpi4py's and torch's, of one node."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
from typing import Any

from ._core import Comm, _create_nccl, _nccl_id, from_nccl, node
from ._errors import Error, UnsupportedError


def from_mpi(comm: Any, *, timeout: float | None = None, device: Any = None) -> Comm:
    """A communicator of an mpi4py communicator of one node, by its allgather. Collective. device: as of `node`."""
    return node(comm.Get_size(), comm.Get_rank(), comm.allgather, timeout=timeout, device=device)


def _open_nccl() -> None:
    """Opens the environment's NCCL by its file, where the process has none. The library takes what is loaded, else one by name."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libnccl.so.2", os.RTLD_NOLOAD | os.RTLD_NOW)
        return
    for place in getattr(importlib.util.find_spec("nvidia"), "submodule_search_locations", ()):
        with contextlib.suppress(OSError):
            ctypes.CDLL(os.path.join(place, "nccl", "lib", "libnccl.so.2"))
            return


def _own_nccl(store: Any, n: int, rank: int, timeout: float | None, device: Any) -> Comm:
    """A new communicator of NCCL, whose id rank 0 passes on by the store of the group, or its error."""
    _open_nccl()
    key = f"reshard/id/{store.add(f'reshard/made/{rank}', 1)}"  # as many on each rank
    if rank == 0:
        try:
            store.set(key, b"." + _nccl_id())
        except Error as error:
            store.set(key, str(error).encode())
    told = bytes(store.get(key))
    if told[:1] != b".":
        raise UnsupportedError("rank 0: " + told.decode())
    return _create_nccl(told[1:], n, rank, timeout, device)


def from_torch(group: Any = None, *, timeout: float | None = None, borrow: bool = False, device: Any = None) -> Comm:
    """A communicator of a group of torch.distributed (None: the default group). Collective over it.

    - gloo: of one node, by the all-gather of the group. device: a GPU for the arrays of this rank; None: the CPU.
    - nccl: its own, by the store of the group. device: None: the current GPU. borrow: that of the group, which has made
      a collective before. It lives as long as the group. Calls of both are launched in one order on all ranks.
    """
    import torch
    import torch.distributed as dist

    backend = dist.get_backend(group)
    whole: Any = group if group is not None else dist.group.WORLD
    if backend == "nccl" and borrow:
        return from_nccl(whole._get_backend(torch.device("cuda"))._comm_ptr(), timeout=timeout, device="cuda" if device is None else device)
    if backend not in ("gloo", "nccl") or borrow:
        raise UnsupportedError(f"a group of {backend}, borrow={borrow}: groups of gloo and nccl are taken, those of nccl also with borrow=True")
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    if backend == "nccl":
        return _own_nccl(dist.distributed_c10d._world.pg_map[whole][1], n, rank, timeout, "cuda" if device is None else device)

    def gather(mine: Any) -> list[Any]:
        everything: list[Any] = [None] * n
        dist.all_gather_object(everything, mine, group=group)
        return everything

    return node(n, rank, gather, timeout=timeout, device=device)
