"""Checkpoints as mappings of names to tensors that are read where they are indexed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ._core import Layout, LazyTensor, Rules, _Checkpoint


class Checkpoint(Mapping[str, LazyTensor], contextlib.AbstractContextManager["Checkpoint"]):
    """An opened checkpoint: safetensors, a directory of them, shards, .distcp, .pt or .npy. Headers alone are read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._c = _Checkpoint(path)
        self.path, self.close = os.fspath(path), self._c.close

    @property
    def metadata(self) -> dict[str, str]:
        """Texts beside the tensors (`__metadata__` of safetensors files)."""
        return self._c.metadata

    def __len__(self) -> int:
        return len(self._c.names())

    def __iter__(self) -> Iterator[str]:
        return iter(self._c.names())

    def __getitem__(self, name: str) -> LazyTensor:
        return LazyTensor(self._c, name)

    def read(self, name: str, layout: str | Layout, rank: int, world: int = 0, *, out: Any = None, threads: int = 0) -> Any:
        """The part of a tensor that a rank of any layout holds: an array, or for boxes a list of them."""
        tensor = self[name]
        if not isinstance(layout, Layout):
            layout = Layout(layout, tensor.shape, world)
        return tensor._read(layout, rank, out, threads)

    def read_all(self, rules: Rules | str, rank: int, world: int) -> dict[str, Any]:
        """The part of each tensor that a rank holds: by Rules, or by one layout for all. Tensors that it lacks are None."""
        return {name: self.read(name, rules if isinstance(rules, str) else rules.layout(name, self[name].shape, world), rank, world)
                for name in self}

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<reshard checkpoint '{self.path}', " + ("closed>" if self._c.closed else f"{len(self)} tensors>")
