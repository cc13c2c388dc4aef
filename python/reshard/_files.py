"""Checkpoints as mappings of names to tensors that are read where they are indexed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from types import EllipsisType
from typing import Any

import numpy as np

from ._core import Layout, Rules, _Checkpoint, _check, _convert, _open, _write, dtype_size
from ._dtypes import TORCH, numpy_dtype
from ._errors import InvalidError, MissingError

Index = int | slice | EllipsisType | None


def _existing(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if "\0" not in text and not os.path.exists(text):
        raise MissingError(f"no file or directory '{text}'")
    return text


class LazyTensor:
    """A tensor of a checkpoint. Nothing is read until it is indexed, and then the part that the index names."""

    def __init__(self, checkpoint: _Checkpoint, i: int) -> None:
        self._checkpoint, self._i = checkpoint, i
        self.name, self._dtype, self.shape = checkpoint.tensor(i)

    @property
    def dtype(self) -> Any:
        """numpy's dtype, of ml_dtypes where numpy has none."""
        return numpy_dtype(self._dtype)

    @property
    def layout(self) -> Layout:
        """The layout as the files have it."""
        return self._checkpoint.layout(self._i)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * dtype_size(self._dtype)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dims")
        return self.shape[0]

    def _box(self, index: Any) -> tuple[list[int], list[int], list[Any]]:
        """Bounding box of a basic index, and the index that is left to do in it."""
        parts = list(index) if isinstance(index, tuple) else [index]
        if parts.count(Ellipsis) > 1:
            raise IndexError("an index can only have a single ellipsis ('...')")
        dims = sum(1 for p in parts if p is not None and p is not Ellipsis)
        if dims > self.ndim:
            raise IndexError(f"'{self.name}': {dims} indices for {self.ndim} dims")
        at = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
        parts[at:at + 1] = [slice(None)] * (self.ndim - dims)
        offset: list[int] = []
        extent: list[int] = []
        rest: list[Any] = []
        for part in parts:
            if part is None:
                rest.append(None)
                continue
            d, n = len(offset), self.shape[len(offset)]
            if isinstance(part, slice):
                taken = range(n)[part]
                low, high = (min(taken[0], taken[-1]), max(taken[0], taken[-1]) + 1) if len(taken) else (0, 0)
                rest.append(slice(None, None, taken.step) if len(taken) else slice(None))
            else:
                try:
                    i = part.__index__()
                except (AttributeError, TypeError):
                    raise IndexError(f"'{self.name}': only integers, slices, ... and None index a lazy tensor; "
                                     f"read it whole for {type(part).__name__}") from None
                if not -n <= i < n:
                    raise IndexError(f"'{self.name}': index {i} of dim {d}, of extent {n}")
                low, high = i % n, i % n + 1
                rest.append(0)
            offset.append(low)
            extent.append(high - low)
        return offset, extent, rest

    def _read_box(self, offset: list[int], extent: list[int], out: Any, threads: int = 0) -> None:
        whole = list(self.shape) == extent
        layout = Layout.single(self.shape, 1, 0) if whole else Layout.boxes(self.shape, 1, [(0, offset, extent)])
        if math.prod(extent) * dtype_size(self._dtype) < 1 << 20:
            threads = 1  # waking others takes longer than the read
        self._checkpoint.read(self._i, layout, 0, out if whole else [out], threads)

    def __getitem__(self, index: Any) -> Any:
        dtype = self.dtype
        offset, extent, rest = self._box(index)
        out = np.empty(extent, dtype)
        if out.size:
            self._read_box(offset, extent, out)
        return out[tuple(rest)] if rest else out

    def read(self, out: Any = None, *, threads: int = 0) -> Any:
        """The whole tensor: a new numpy array, or into `out`, contiguous, of numpy or torch."""
        if out is None:
            out = np.empty(self.shape, self.dtype)
        self._read_box([0] * self.ndim, list(self.shape), out, threads)
        return out

    def torch(self) -> Any:
        """The whole tensor as a new torch tensor."""
        import torch

        return self.read(torch.empty(self.shape, dtype=getattr(torch, TORCH[self._dtype])))

    def map(self) -> Any:
        """A read-only view of the file, which it keeps open, where the tensor lies whole. A file cut meanwhile is SIGBUS."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        path, offset = self._checkpoint.stored(self._i)
        return np.asarray(np.memmap(path, self.dtype, "r", offset, self.shape))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("a lazy tensor is read into new memory")
        array = self[...]
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        return f"<reshard tensor '{self.name}', {self._dtype}, {tuple(self.shape)}, {self.nbytes} bytes, not read>"


class Checkpoint(Mapping[str, LazyTensor]):
    """An opened checkpoint: safetensors, a directory of them, shards, .distcp, .pt or .npy. Headers alone are read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._c = _open(_existing(path))
        self.path = os.fspath(path)

    @property
    def info(self) -> dict[str, Any]:
        return self._c.info()

    @property
    def metadata(self) -> dict[str, str]:
        """Texts beside the tensors (`__metadata__` of safetensors files)."""
        return self._c.metadata()

    def __len__(self) -> int:
        return self._c.count()

    def __iter__(self) -> Iterator[str]:
        for i in range(self._c.count()):
            yield self._c.tensor(i)[0]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._c.find(name) >= 0

    def __getitem__(self, name: str) -> LazyTensor:
        i = self._c.find(name) if isinstance(name, str) else -1
        if i < 0:
            raise KeyError(name)
        return LazyTensor(self._c, i)

    def read(self, name: str, layout: str | Layout, rank: int, world: int = 0, *, out: Any = None, threads: int = 0) -> Any:
        """The part of a tensor that a rank of any layout holds: an array, or for boxes a list of them."""
        tensor = self[name]
        if isinstance(layout, str):
            layout = Layout(layout, tensor.shape, world)
        if out is None:
            if layout.kind not in ("boxes", "flat") and not layout.arrays(rank):
                return None
            held = [np.empty(shape, tensor.dtype) for shape in layout.buffers(rank)]
            out = held if layout.kind == "boxes" else held[0]
        self._c.read(tensor._i, layout, rank, out, threads)
        return out

    def read_all(self, rules: Rules | str, rank: int, world: int) -> dict[str, Any]:
        """The part of each tensor that a rank holds: by Rules, or by one layout for all. Tensors that it lacks are None."""
        return {name: self.read(name, rules if isinstance(rules, str) else rules.layout(name, self[name].shape, world), rank, world)
                for name in self}

    def close(self) -> None:
        self._c.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<reshard checkpoint '{self.path}', " + ("closed>" if self._c.closed() else f"{len(self)} tensors>")


def open(path: str | os.PathLike[str]) -> Checkpoint:
    """Opens a checkpoint for reading. Use it with `with`."""
    return Checkpoint(path)


def write(path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None, *, force: bool = False) -> None:
    """Writes a checkpoint, complete or not at all.

    tensors: by name an array, or (layout, arrays of all ranks) for a directory of shards. The path decides the format.
    metadata: texts beside the tensors, in safetensors files.
    """
    items: list[tuple[str, Layout | None, Any]] = []
    for name, value in tensors.items():
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Layout):
            items.append((name, value[0], value[1]))
        else:
            items.append((name, None, value))
    _write(os.fspath(path), items, list((metadata or {}).items()), force)


def convert(src: str | os.PathLike[str], dst: str | os.PathLike[str], *, src_layout: str | Rules | None = None,
            dst_layout: str | Rules | None = None, map: str | None = None, world: int = 0, force: bool = False, dedup: bool = False,
            verify: bool = False, leave_out: bool = False, threads: int = 0, progress: Callable[[str, int, int], object] | None = None,
            dtype: Any = None) -> dict[str, Any]:
    """Converts one checkpoint into another: cut, reshard, join, fuse. progress(stage, done, all) may raise to cancel.

    - leave_out: tensors below classes that are not read are counted, not an error.
    - dtype: of all numbers in dst, converted in the same pass; rules and casts of a map go before it.
    """
    def text(layout: str | Rules | None) -> str | None:
        return layout if isinstance(layout, str) else None

    def rules(layout: str | Rules | None) -> Rules | None:
        return layout if isinstance(layout, Rules) else None

    if os.fspath(dst) == "":
        raise InvalidError("an empty path")
    return _convert(_existing(src), os.fspath(dst), text(src_layout), text(dst_layout), rules(src_layout), rules(dst_layout), map, world, force,
                    dedup, verify, leave_out, threads, progress, dtype)


def check(path: str | os.PathLike[str], *, threads: int = 0) -> dict[str, Any]:
    """Reads a checkpoint and checks it by its digests. `wrong` has a line for each piece that is not as it was written."""
    return _check(_existing(path), threads)
