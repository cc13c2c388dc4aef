"""Errors for wrong input have the numbers, and nothing is written before. test_torch.py has torch's own."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard

ONE = reshard.Layout("rank(0)", (2, 2), 1)


class Tensor:
    """As torch's, over an array of numpy: what the module asks of one, to be changed."""

    def __init__(self, array: Any, **changed: Any) -> None:
        self.array = array
        self.dtype, self.layout, self.is_quantized, self.shape = "torch.float32", "torch.strided", False, array.shape
        self.device = types.SimpleNamespace(type="cpu", index=None)
        self.bits = {"is_conj": False, "is_neg": False}
        self.__dict__.update(changed)

    def is_conj(self) -> bool:
        return self.bits["is_conj"]

    def is_neg(self) -> bool:
        return self.bits["is_neg"]

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data) if self.array is not None else 0


def refused(source: Any, error: type[Exception], *texts: str, dtype: str = "f32", plan: Any = None) -> None:
    out = np.full((2, 2), 7, "f4")
    with reshard.local(1) as comm:
        with pytest.raises(error) as raised:
            reshard.Transfer(plan or reshard.Plan(ONE, ONE, dtype, 0), comm, [source], [out]).execute()
        assert all(text in str(raised.value) for text in texts), str(raised.value)
    assert (out == 7).all()


TENSORS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"device": types.SimpleNamespace(type="cuda", index=0)}, reshard.InvalidError, "on a GPU, and the communicator is of the CPU"),
    ({"device": types.SimpleNamespace(type="meta", index=None)}, reshard.UnsupportedError, "a tensor on device"),
    ({"bits": {"is_conj": True, "is_neg": False}}, reshard.UnsupportedError, "is_conj() bit"),
    ({"bits": {"is_conj": False, "is_neg": True}}, reshard.UnsupportedError, "is_neg() bit"),
    ({"layout": "torch.sparse_coo"}, reshard.UnsupportedError, "layout torch.sparse_coo"),
    ({"is_quantized": True}, reshard.UnsupportedError, "quantized"),
    ({"dtype": "torch.qint8"}, reshard.UnsupportedError, "dtype torch.qint8"),
    ({"dtype": "torch.float64"}, reshard.InvalidError, "f64, where f32 is due"),
    ({"shape": (2, 3)}, reshard.InvalidError, "shape (2, 3), where (2, 2) is due"),
    ({"shape": (1,) * 9}, reshard.UnsupportedError, "9 dims; at most 8"),
    ({"data_ptr": lambda: 0}, reshard.InvalidError, "whose storage is freed"),
]


@pytest.mark.parametrize("changed,error,text", TENSORS)
def test_tensors_that_are_not_what_they_seem_are_named(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    refused(Tensor(np.zeros((2, 2), "f4"), **changed), error, "source of rank 0, 'tensor'", text)


def test_arrays_of_the_cuda_array_interface_are_read_without_a_look_at_their_memory() -> None:
    def interface(typestr: str = "<f4", shape: tuple[int, ...] = (2, 2), strides: tuple[int, ...] | None = None) -> Any:
        described = {"shape": shape, "typestr": typestr, "data": (0x7F0000001000, False), "strides": strides, "version": 3}
        return types.SimpleNamespace(__cuda_array_interface__=described)

    for given, error, text in (
        (interface(), reshard.InvalidError, "on a GPU, and the communicator is of the CPU"),
        (interface(strides=(4, 8)), reshard.InvalidError, "on a GPU"),
        (interface("<f8"), reshard.InvalidError, "f64, where f32 is due"),
        (interface(">f4"), reshard.UnsupportedError, "big-endian"),
        (interface(shape=(2, 3)), reshard.InvalidError, "shape (2, 3), where (2, 2) is due"),
    ):
        refused(given, error, "source of rank 0, 'tensor'", text)


def test_storage_that_has_moved_under_a_transfer_is_found_by_execute() -> None:
    source, out = Tensor(np.arange(4, dtype="f4").reshape(2, 2)), np.zeros((2, 2), "f4")
    with reshard.local(1) as comm:
        transfer = reshard.Transfer(reshard.Plan(ONE, ONE, "f32", 0), comm, [source], [out])
        transfer.execute()
        assert (out == source.array).all()
        source.array = None
        out[...] = 7
        with pytest.raises(reshard.InvalidError, match="other storage than when it was bound"):
            transfer.execute()
        assert (out == 7).all()
        kept = np.zeros((2, 2), "f4")
        transfer.rebind([kept], [out])
        with pytest.raises(ValueError, match="references"):  # numpy's own
            kept.resize((0,))


def test_plans_of_another_rank_or_world_are_refused() -> None:
    two = reshard.Layout("rank(0)", (2, 2), 2)
    refused(np.zeros((2, 2), "f4"), reshard.InvalidError, "world of 2 ranks on a communicator of 1", plan=reshard.Plan(two, two, "f32", 0))
    refused(np.zeros((2, 2), "f4"), reshard.InvalidError, "a plan of rank 1 for rank 0", plan=reshard.Plan(two, two, "f32", 1))


def test_destinations_that_overlap_are_refused_whichever_ranks_or_entries_they_are_of() -> None:
    source, out = np.zeros((2, 2), "f4"), np.full((2, 2), 7, "f4")
    twice = [reshard.Entry(ONE, ONE, "f32", name) for name in "ab"]
    with reshard.local(1) as comm:
        for given, other in (([out, out], out), ([out, out.T], out), ([np.broadcast_to(np.float32(7), (2, 2)), out], out)):
            with pytest.raises(reshard.InvalidError, match="overlap|read-only"):
                reshard.Transfer(reshard.Plan(twice, 0), comm, [[source, source]], [given])
            assert (other == 7).all()
        with pytest.raises(reshard.InvalidError, match="overlap"):
            reshard.Transfer(reshard.Plan(ONE, ONE, "f32", 0), comm, [out], [out])
    rows, columns = (reshard.Layout(text, (4, 4), 2) for text in ("chunk(0)", "chunk(1)"))
    plans, mine, whole = [reshard.Plan(rows, columns, "f32", r) for r in range(2)], [np.ones((2, 4), "f4")] * 2, np.full((4, 4), 7, "f4")
    long = whole.reshape(-1)
    with reshard.local(2) as comm:
        for pair in ([whole[:, :2]] * 2, [long[:8].reshape(4, 2), long[7:15].reshape(4, 2)], [long[8:].reshape(4, 2), long[8:].reshape(2, 4).T]):
            with pytest.raises(reshard.InvalidError, match="its destination of .* on rank [01] overlaps the destination of .* on rank [01]"):
                reshard.Transfer(plans, comm, mine, pair)
            assert (whole == 7).all()
        transfer = reshard.Transfer(plans, comm, mine, [whole[:, :2], whole[:, 2:]])  # columns that interleave
        with pytest.raises(reshard.InvalidError, match="on rank . overlaps the destination"):
            transfer.rebind(mine, [whole[:, 2:]] * 2)
        transfer.execute()
        assert (whole == 1).all()


NULS: list[Callable[[Path], object]] = [
    lambda path: reshard.Layout("rank(0)\0", (2,), 1),
    lambda path: reshard.Layout.mesh((2,), 2, [2], ["S0\0"]),
    lambda path: reshard.Entry(ONE, ONE, "f32\0"),
    lambda path: reshard.Plan([reshard.Entry(ONE, ONE, "f32", "a\0b")], 0),
    lambda path: reshard.Rules("* rank(0)\0"),
    lambda path: reshard.Rules.load("a\0b"),
    lambda path: reshard.open("a\0b"),
    lambda path: reshard.check("a\0b"),
    lambda path: reshard.convert("a\0b", path / "out"),
    lambda path: reshard.convert(path, "a\0b"),
    lambda path: reshard.write("a\0b", {"x": np.zeros(2)}),
    lambda path: reshard.write(path / "x.safetensors", {"a\0b": np.zeros(2)}),
    lambda path: reshard.write(path / "x.safetensors", {"x": np.zeros(2)}, {"a\0b": ""}),
    lambda path: reshard.write(path / "x.safetensors", {"x": np.zeros(2)}, {"a": "\0"}),
    lambda path: reshard.node(1, 0, lambda mine: mine, job="a\0b"),
]


@pytest.mark.parametrize("call", NULS)
def test_a_nul_in_a_text_is_an_error_and_writes_nothing(call: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        call(tmp_path)
    assert not list(tmp_path.iterdir())


OTHERS: list[tuple[type[Exception], str, Callable[[Path], object]]] = [
    (TypeError, "os.PathLike object, not int", lambda path: reshard.open(5)),  # type: ignore[arg-type]
    (FileNotFoundError, "No such file or directory", lambda path: reshard.Rules.load(path / "not")),
    (TypeError, "the name 5: names are texts", lambda path: reshard.write(path / "x.npy", {5: np.zeros(2)})),  # type: ignore[dict-item]
    (UnicodeEncodeError, "surrogates", lambda path: reshard.write(path / "x.npy", {"\udc80": np.zeros(2)})),
    (TypeError, "'x': a int, where a Layout is due", lambda path: reshard.write(path / "x.npy", {"x": (1, [np.zeros(2)])})),
    (UnicodeEncodeError, "surrogates", lambda path: reshard.Entry(ONE, ONE, "\udc80")),
    (NotImplementedError, "dtype >f4: big-endian", lambda path: reshard.Entry(ONE, ONE, np.dtype(">f4"))),
    (TypeError, "src: a str, where a Layout is due", lambda path: reshard.redistribute(np.zeros((2, 2), "f4"), "rank(0)", ONE, reshard.local(1))),
    (TypeError, "plan: a str, where a Plan is due", lambda path: reshard.Transfer("rank(0)", reshard.local(1), [], [])),
    (TypeError, "comm: a int, where a Comm is due", lambda path: reshard.Transfer(reshard.Plan(ONE, ONE, "f32", 0), 5, [], [])),
    (TypeError, "'float' object cannot be interpreted as an integer", lambda path: reshard.local(1).split(0.5)),
    (OverflowError, "too big|too large", lambda path: reshard.local(2).split([0, 2**70])),
    (reshard.InvalidError, "-3 calls", lambda path: reshard.local(1).report(-3)),
]


@pytest.mark.parametrize("error,text,call", OTHERS)
def test_what_is_of_another_type_is_named_and_writes_nothing(error: type[Exception], text: str, call: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(error, match=text):
        call(tmp_path)
    assert not list(tmp_path.iterdir())


ARRAYS: list[tuple[Any, str]] = [
    (np.ma.array(np.zeros((2, 2), "f4"), mask=True), "a masked array"), (np.zeros((2, 2), "M8[s]"), r"dtype datetime64\[s\]"),
    (np.zeros((2, 2), "V4"), "dtype"), (np.zeros((2, 2), np.longdouble), "dtype float128|dtype longdouble"),
    (np.zeros((2, 2), [("a", "f4"), ("b", "u1")])["a"], "elements of 4 bytes, 10 bytes apart"), ({1: 2}, "no array of numbers"),
]


@pytest.mark.parametrize("source,text", ARRAYS)
def test_arrays_whose_memory_has_no_such_numbers_are_refused(source: Any, text: str) -> None:
    with reshard.local(1) as comm, pytest.raises(reshard.UnsupportedError, match="source of rank 0, 'tensor': .*" + text):
        reshard.redistribute([source], ONE, ONE, comm)


def test_a_name_with_a_nul_is_in_no_checkpoint(tmp_path: Path) -> None:
    reshard.write(tmp_path / "x.safetensors", {"x": np.zeros(2)})
    with reshard.open(tmp_path / "x.safetensors") as c:
        for name in ("x\0", "y", ""):
            assert name not in c
            with pytest.raises(KeyError):
                c[name]
        with pytest.raises(reshard.InvalidError, match="rank"):
            c.read("x", "chunk(0)", 2, 2)


def test_everything_closed_says_so_and_closes_twice(tmp_path: Path) -> None:
    reshard.write(tmp_path / "x.safetensors", {"x": np.zeros(2)})
    checkpoint, comm = reshard.open(tmp_path / "x.safetensors"), reshard.local(1)
    transfer = reshard.Transfer(reshard.Plan(ONE, ONE, "f32", 0), comm, np.zeros((2, 2), "f4"), np.zeros((2, 2), "f4"))
    lazy = checkpoint["x"]
    for thing in (checkpoint, transfer, comm) * 2:
        thing.close()
    calls: list[Callable[[], object]] = [
        lambda: checkpoint["x"], lambda: lazy.read(), lambda: lazy.layout, lambda: len(checkpoint), lambda: checkpoint.metadata,
        transfer.execute, lambda: transfer.rebind([], []), lambda: transfer.info, comm.barrier, lambda: comm.rank, lambda: comm.split(0),
        comm.abort, lambda: comm.missing, lambda: comm.report(), lambda: comm.stats, lambda: reshard.empty((2,), "f4", comm),
        lambda: reshard.redistribute(np.zeros((2, 2), "f4"), ONE, ONE, comm),
        lambda: reshard.Transfer(reshard.Plan(ONE, ONE, "f32", 0), comm, np.zeros((2, 2), "f4"), np.zeros((2, 2), "f4"))]
    for call in calls:
        with pytest.raises(reshard.InvalidError, match="closed"):
            call()


WAITS = """
import os, sys, threading, reshard
down, up = os.pipe(), os.pipe()
rank = 1 if os.fork() == 0 else 0
def gather(mine):
    os.write(down[1] if rank == 0 else up[1], mine)
    got = b""
    while len(got) < len(mine):
        got += os.read(up[0] if rank == 0 else down[0], len(mine) - len(got))
    return mine + got if rank == 0 else got + mine
comm = reshard.node(2, rank, gather, timeout=60)
if rank == 1:
    os.close(down[1])
    os.read(down[0], 1)  # until rank 0 is over
    os._exit(0)
os.close(down[0])
threading.Thread(target=comm.barrier, daemon=True).start()
while "in reshard_comm_barrier" not in comm.report():
    pass
"""


def test_an_exit_while_a_thread_waits_ends_without_a_word_of_leaks() -> None:
    done = subprocess.run([sys.executable, "-B", "-c", WAITS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "" and "leak" not in done.stderr, done.stderr
