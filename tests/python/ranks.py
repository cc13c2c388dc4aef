"""Parts of a tensor by index sets, and ranks that are processes of this machine."""

from __future__ import annotations

import multiprocessing
import traceback
from typing import Any

import numpy as np

import reshard


def parts(layout: reshard.Layout, rank: int, whole: Any) -> list[Any]:
    """The part of a whole array that a rank holds, by the layout's index sets alone."""
    held = []
    for i in range(len(layout.arrays(rank))):
        runs = [np.concatenate([np.arange(a, b) for a, b in layout.intervals(rank, i, d)] or [np.arange(0)]) for d in range(layout.ndim)]
        held.append(whole[np.ix_(*[r.astype(int) for r in runs])] if layout.ndim else whole)
    return held


def flat_part(layout: reshard.Layout, rank: int, whole: Any) -> Any:
    size = -(-whole.size // layout.world)
    return whole.reshape(-1)[rank * size:(rank + 1) * size]


def held(layout: reshard.Layout, rank: int, whole: Any) -> Any:
    """The same as a transfer wants it: an array, a list of them for boxes, None for nothing."""
    if layout.kind == "flat":
        return flat_part(layout, rank, whole).copy()
    arrays = parts(layout, rank, whole)
    return arrays if layout.kind == "boxes" else arrays[0].copy() if arrays else None


def _child(rank: int, n: int, pipe: Any, work: Any, arguments: tuple[Any, ...]) -> None:
    def gather(mine: bytes) -> bytes:
        pipe.send(mine)
        return pipe.recv()

    try:
        result = work(rank, n, gather, *arguments)
        pipe.send(("result", result))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))


def on_processes(n: int, work: Any, *arguments: Any) -> list[Any]:
    """Runs work(rank, n, allgather, ...) in n processes; their results. The parent passes the bytes on."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(n)]
    children = [context.Process(target=_child, args=(r, n, pipes[r][1], work, arguments)) for r in range(n)]
    for child in children:
        child.start()
    for _, theirs in pipes:
        theirs.close()
    results: dict[int, Any] = {}
    try:
        while len(results) < n:
            said = {}
            for r in range(n):
                if r not in results:
                    try:
                        said[r] = pipes[r][0].recv()
                    except EOFError:
                        said[r] = ("failed", f"rank {r} ended without a word")
            for r, what in said.items():
                if isinstance(what, tuple):
                    results[r] = what
            waiting = [r for r in said if r not in results]
            for r in waiting:
                pipes[r][0].send(b"".join(said[k] for k in sorted(waiting)))
    finally:
        for child in children:
            child.join()
    failed = [f"rank {r}: {results[r][1]}" for r in results if results[r][0] == "failed"]
    assert not failed, "\n".join(failed)
    return [results[r][1] for r in range(n)]
