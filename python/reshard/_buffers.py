"""redistribute to layouts of which a rank has several arrays in one buffer: flat ones, and parts that ranks share."""

from __future__ import annotations

from typing import Any

from ._core import Comm, Entry, Layout, Plan, Transfer, empty
from ._errors import InvalidError


def redistribute(arrays: Any, src: Any, dst: Any, comm: Comm, limit: int | None, dtype: Any) -> Any:
    one = isinstance(src, Layout)
    ranks = list(range(comm.size)) if comm.local else [comm.rank]
    given: list[list[Any]] = [[mine] if one else list(mine) for mine in (arrays if comm.local else [arrays])]

    def dtype_of(e: int) -> Any:
        for mine in given:
            first = next(iter(mine[e]), None) if isinstance(mine[e], (list, tuple)) else mine[e]
            if first is not None:
                return first.dtype
        raise InvalidError(f"'{e}': this rank gives no array, so no dtype; an array without elements tells it")

    layouts: list[tuple[Layout, Layout]] = [(src, dst)] if one else list(zip(src, dst))
    entries = [Entry(*pair, dtype_of(e), str(e), dst_dtype=dtype) for e, pair in enumerate(layouts)]

    def made(layout: Layout, dtype: str, rank: int) -> Any:
        buffers = [empty(shape, dtype, comm) for shape in layout.buffers(rank)]
        return buffers if layout.kind == "boxes" else buffers[0] if buffers else None

    results: list[list[Any]] = [[made(pair[1], entry.dst_dtype, rank) for pair, entry in zip(layouts, entries)] for rank in ranks]
    plans: list[Any] = [Plan(entries, rank, limit=limit) for rank in ranks]
    lists = plans, *([side[0] if one else side for side in sides] for sides in (given, results))
    plan, sources, targets = (of if comm.local else of[0] for of in lists)
    with Transfer(plan, comm, sources, targets) as transfer:
        transfer.execute()
    return targets
