"""Arrays of numpy that the library makes: shared storage, and the results of redistribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._core import Comm, Layout, _empty, _redistribute
from ._dtypes import NUMPY, with_dtype


def empty(shape: Sequence[int], dtype: Any, comm: Comm) -> Any:
    """A numpy array of storage that the other processes of the node read directly, which halves the copies.

    Not initialised. It lives as long as the array, also beyond the communicator.
    """
    bits, name = _empty(list(shape), dtype, comm)
    return with_dtype(bits, name)


def redistribute(arrays: Any, src: Layout | Sequence[Layout], dst: Layout | Sequence[Layout], comm: Comm) -> Any:
    """Moves this rank's arrays from one layout to another; returns new numpy arrays, as `empty` makes them. Collective.

    One tensor, or lists of arrays and layouts, which are one plan. A rank that holds several boxes gives a list of
    arrays. In a local world everything is a list with one such thing per rank. Plans are kept by the communicator.
    """
    results, names = _redistribute(arrays, src, dst, comm)
    if all(name in NUMPY for name in names):
        return results

    def typed(value: Any, name: str) -> Any:
        if isinstance(value, list):
            return [typed(v, name) for v in value]
        return None if value is None else with_dtype(value, name)

    def of_rank(value: Any) -> Any:
        return typed(value, names[0]) if isinstance(src, Layout) else [typed(v, n) for v, n in zip(value, names)]

    return [of_rank(value) for value in results] if comm.local else of_rank(results)
