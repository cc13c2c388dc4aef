"""Moves distributed tensors from one layout over their ranks to another.

    comm = reshard.node()                                   # ranks that are processes of a node
    rows = reshard.Layout("chunk(0)", (8192, 8192), comm.size)
    columns = reshard.Layout("chunk(1)", (8192, 8192), comm.size)
    mine = reshard.redistribute(my_rows, rows, columns, comm)

docs/python.md has the scenes, and what is said of lifetimes, threads, streams and errors.
"""

from __future__ import annotations

from ._core import (Comm, Entry, Layout, LazyTensor, Plan, PlanInfo, Rules, Transfer, check, convert, empty, from_nccl,
                    local, node, redistribute, version as __version__, write)
from ._errors import (BusyError, CancelledError, CorruptError, Error, InternalError, InvalidError, MismatchError, MissingError,
                      OutOfMemoryError, PeerError, SystemError, TimeoutError, UnsupportedError)
from ._files import Checkpoint, Checkpoint as open
from ._groups import from_mpi, from_torch

__all__ = ["BusyError", "CancelledError", "Checkpoint", "Comm", "CorruptError", "Entry", "Error", "InternalError", "InvalidError",
           "Layout", "LazyTensor", "MismatchError", "MissingError", "OutOfMemoryError", "PeerError", "Plan", "PlanInfo", "Rules",
           "SystemError", "TimeoutError", "Transfer", "UnsupportedError", "check", "convert", "empty", "from_mpi", "from_nccl", "from_torch",
           "local", "node", "open", "redistribute", "write"]
