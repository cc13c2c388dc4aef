"""A directory of safetensors with an index, cut for TP-4: by rules, by name and by slice, against safetensors.

python load_tp.py [DIRECTORY]

Without a directory a small model is made. Each rank reads its part alone: the bytes that it asks the system for are
counted.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

import reshard

RULES = """
*norm.weight rank(0)
*down.weight chunk(1)
* chunk(0)
"""
RANKS = 4


def make_model(directory: str) -> None:
    """Two files and model.safetensors.index.json, as models are published."""
    rng = np.random.default_rng(1)
    files: list[dict[str, Any]] = [{}, {}]
    for i in range(2):
        files[i] = {f"layers.{i}.up.weight": rng.random((96, 64), "f4"), f"layers.{i}.down.weight": rng.random((64, 96), "f4"),
                    f"layers.{i}.norm.weight": rng.random(64, "f4")}
    files[1]["lm_head.weight"] = rng.random((101, 64), "f4")
    names = [f"model-0000{i + 1}-of-00002.safetensors" for i in range(2)]
    for name, tensors in zip(names, files):
        save_file(tensors, os.path.join(directory, name))
    index = {"metadata": {}, "weight_map": {key: name for name, tensors in zip(names, files) for key in tensors}}
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as file:
        json.dump(index, file)


def bytes_read() -> int:
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def whole_tensors(directory: str) -> dict[str, Any]:
    with open(os.path.join(directory, "model.safetensors.index.json")) as file:
        places = json.load(file)["weight_map"]
    tensors = {}
    for name, place in places.items():
        with safe_open(os.path.join(directory, place), "numpy") as opened:
            tensors[name] = opened.get_tensor(name)
    return tensors


def check(directory: str) -> int:
    theirs, wrong = whole_tensors(directory), 0
    rules = reshard.Rules(RULES)
    size = sum(t.nbytes for t in theirs.values())
    with reshard.open(directory) as checkpoint:
        assert set(checkpoint) == set(theirs)
        for rank in range(RANKS):
            before = bytes_read()
            mine = checkpoint.read_all(rules, rank, RANKS)
            read, held_bytes = bytes_read() - before, sum(a.nbytes for a in mine.values() if a is not None)
            print(f"rank {rank}: {read} bytes read of {size}, {held_bytes} held")
            wrong += not held_bytes <= read <= held_bytes + 1024  # that of the count itself, and no other rank's
            for name, whole in theirs.items():
                layout = rules.layout(name, whole.shape, RANKS)
                held = layout.arrays(rank)
                cut = [slice(*(layout.intervals(rank, 0, d) or [(0, 0)])[0]) for d in range(whole.ndim)] if held else []
                wrong += not (mine[name] is None if not held else np.array_equal(mine[name], whole[tuple(cut)]))
        head = checkpoint["lm_head.weight"]  # by name, and by slice
        wrong += not np.array_equal(checkpoint.read("lm_head.weight", "chunk(0)", 3, RANKS), theirs["lm_head.weight"][78:])
        wrong += not np.array_equal(head[10:20, ::2], theirs["lm_head.weight"][10:20, ::2])
        wrong += not np.array_equal(head.map(), theirs["lm_head.weight"])
    return wrong


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        if len(sys.argv) < 2:
            make_model(scratch)
        wrong = check(sys.argv[1] if len(sys.argv) > 1 else scratch)
    print(f"{wrong} wrong")
    return int(wrong != 0)


if __name__ == "__main__":
    sys.exit(main())
