"""Checkpoints: read by name and index, written, converted, checked."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ranks import held

import reshard


@pytest.fixture
def model(tmp_path: Path) -> Any:
    x = np.arange(3 * 4 * 5, dtype="f4").reshape(3, 4, 5)
    tensors = {"x": x, "y": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3), "step": np.float64(3.5).reshape(()), "none": np.zeros((0, 2), "i8")}
    reshard.write(tmp_path / "m.safetensors", tensors)
    return tmp_path / "m.safetensors", tensors


def test_an_index_reads_what_numpy_takes(model: Any) -> None:
    path, tensors = model
    parts: list[Any] = [0, -1, slice(None), slice(1, None, 2), slice(None, None, -1), slice(2, 1), None, ...]
    with reshard.open(path) as c:
        for index in itertools.chain([()], *(itertools.product(parts, repeat=n) for n in (1, 2, 3))):
            if index.count(...) > 1 or sum(1 for p in index if p is not None and p is not ...) > 3:
                continue
            assert c["x"][index].shape == tensors["x"][index].shape and (c["x"][index] == tensors["x"][index]).all(), index
        assert c["step"][()] == 3.5 and c["none"][...].shape == (0, 2)
        assert (c["y"].read() == tensors["y"]).all() and c["y"].dtype == ml_dtypes.bfloat16 and c["y"].nbytes == 12


def test_a_checkpoint_is_a_mapping(model: Any) -> None:
    path, tensors = model
    with reshard.open(path) as c:
        assert set(c) == set(tensors) and len(c) == 4 and "x" in c and "q" not in c and dict(c).keys() == set(tensors)
        assert c["x"].shape == (3, 4, 5) and str(c["x"].layout) == "rank(0)" and "f32" in repr(c["x"])
        with pytest.raises(KeyError):
            c["q"]
        for bad in (3, (0, 4), (0, 0, 0, 0), [1, 2], (..., ...), "x", 1.5):
            with pytest.raises(IndexError):
                c["x"][bad]
        kept = c["x"]
    with pytest.raises(reshard.InvalidError, match="closed"):
        kept[0]
    with pytest.raises(FileNotFoundError):
        reshard.open(os.fspath(path) + ".not")


def test_a_rank_reads_its_part_of_any_layout(model: Any) -> None:
    path, tensors = model
    with reshard.open(path) as c:
        for text in ("chunk(1)", "mesh(2x2;S2,S0)", "flat()", "cyclic(1x2x2;1x1x2)", "boxes(0:[0,0,0]+[1,4,5];0:[1,0,0]+[2,4,5])", "rank(3)"):
            for rank in range(4):
                layout = reshard.Layout(text, (3, 4, 5), 4)
                got, want = c.read("x", text, rank, 4), held(layout, rank, tensors["x"])
                if isinstance(want, list):
                    assert len(got) == len(want) and all((g == w).all() for g, w in zip(got, want))
                else:
                    assert (got is None and want is None) or (got == want).all(), (text, rank)
        for rank in range(4):  # arrays of one buffer: row 0 on both ranks, row 1 or 2
            fused = c.read("x", "mesh(2x2;S1,S0{1/1,2})", rank, 4)
            low = rank // 2 * 2
            assert fused.shape == (2, 2, 5) and (fused == tensors["x"][[0, 1 + rank % 2], low:low + 2]).all(), rank
        mine = c.read_all(reshard.Rules("x chunk(2)\n* rank(0)"), 1, 2)
        assert (mine["x"] == tensors["x"][..., 3:]).all() and mine["y"] is None
        out = np.zeros((3, 4, 5), "f4")
        assert c["x"].read(out) is out and (out == tensors["x"]).all()
        with pytest.raises(reshard.InvalidError, match="contiguous"):
            c["x"].read(np.zeros((5, 4, 3), "f4").T)
        with pytest.raises(reshard.InvalidError, match="f64"):
            c["x"].read(np.zeros((3, 4, 5)))


def test_a_map_is_the_file_itself(model: Any, tmp_path: Path) -> None:
    path, tensors = model
    layout = reshard.Layout("chunk(1)", (3, 4, 5), 2)
    reshard.write(tmp_path / "shards", {"x": (layout, [held(layout, r, tensors["x"]) for r in range(2)])})
    with reshard.open(path) as c:
        mapped = {name: c[name].map() for name in c}
    for name, want in tensors.items():  # also beyond the checkpoint
        got = mapped[name]
        assert got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == np.asarray(want).tobytes(), name
    with pytest.raises(ValueError, match="read-only"):
        mapped["x"][0] = 1
    with reshard.open(tmp_path / "shards") as c, pytest.raises(reshard.UnsupportedError, match="'x' lies in 2 pieces"):
        c["x"].map()
    np.save(tmp_path / "f.npy", np.asfortranarray(tensors["x"]))
    with reshard.open(tmp_path / "f.npy") as c, pytest.raises(reshard.UnsupportedError, match="Fortran order"):
        next(iter(c.values())).map()


def test_texts_are_written_beside_tensors(tmp_path: Path) -> None:
    reshard.write(tmp_path / "m.safetensors", {"x": np.zeros(2, "f4")}, {"step": "7", "wer": "größer"})
    with reshard.open(tmp_path / "m.safetensors") as c:
        assert {"step": "7", "wer": "größer"}.items() <= c.metadata.items()
    with pytest.raises(reshard.InvalidError, match="reshard_digests"):
        reshard.write(tmp_path / "n.safetensors", {"x": np.zeros(2, "f4")}, {"reshard_digests": ""})
    assert not (tmp_path / "n.safetensors").exists()


def test_shards_are_written_converted_and_checked(model: Any, tmp_path: Path) -> None:
    path, tensors = model
    layout = reshard.Layout("chunk(1)", (3, 4, 5), 2)
    reshard.write(tmp_path / "shards", {"x": (layout, [held(layout, r, tensors["x"]) for r in range(2)])})
    with reshard.open(tmp_path / "shards") as c:
        assert c["x"].layout.intervals(1, 0, 1) == [(2, 4)] and (c["x"].read() == tensors["x"]).all()
    said = []
    report = reshard.convert(tmp_path / "shards", tmp_path / "whole.safetensors", verify=True, progress=lambda *a: said.append(a))
    assert report["tensors"] == 1 and reshard.check(tmp_path / "whole.safetensors")["wrong"] == []
    with pytest.raises(reshard.InvalidError):
        reshard.convert(path, tmp_path / "whole.safetensors")
    with open(tmp_path / "whole.safetensors", "r+b") as f:
        f.seek(-1, 2)
        f.write(b"\x7f")
    assert len(reshard.check(tmp_path / "whole.safetensors")["wrong"]) == 1


def test_numbers_are_converted_to_a_dtype(model: Any, tmp_path: Path) -> None:
    path, tensors = model
    report = reshard.convert(path, tmp_path / "half.safetensors", dtype="f16", verify=True)
    assert (report["converted"], report["unconverted"]) == (3, 1)
    with reshard.open(tmp_path / "half.safetensors") as c:
        for name in ("x", "y", "step", "none"):
            assert c[name].read().tobytes() == tensors[name].astype("i8" if name == "none" else "f2").tobytes()
    report = reshard.convert(path, tmp_path / "fp8.safetensors", dtype="f8_e4m3/2x4:e8m0", verify=True)
    with reshard.open(tmp_path / "fp8.safetensors") as made:
        assert report["scaled"] == sum(name.endswith("_scale_inv") for name in made) > 0
    with pytest.raises(NotImplementedError, match="more than 32768"):
        reshard.convert(path, tmp_path / "none.safetensors", dtype="f8_e4m3/256x256")
    with pytest.raises(reshard.InvalidError, match="dtype i32: numbers are converted"):
        reshard.convert(path, tmp_path / "none.safetensors", dtype="i32")


def test_a_progress_function_that_raises_cancels(model: Any, tmp_path: Path) -> None:
    path, _ = model

    def stop(*unused: object) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        reshard.convert(path, tmp_path / "out", dst_layout="rank(0)", world=2, verify=True, progress=stop)
    assert not (tmp_path / "out").exists()
