"""Layouts, plans, local communicators, transfers and redistribute, against numpy."""

from __future__ import annotations

import gc
import os
import pickle
import random
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ranks import held

import reshard

DTYPES = [np.dtype(name) for name in ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16")] + [
    np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")]


def random_layout(rng: random.Random, shape: tuple[int, ...], world: int, source: bool) -> reshard.Layout:
    kind = rng.choice(["chunk", "mesh", "cyclic", "single", "flat", "boxes"] if shape else ["single", "mesh"])
    if kind == "chunk":
        return reshard.Layout.chunk(shape, world, rng.randrange(len(shape)))
    if kind == "mesh":
        first = rng.choice([f for f in range(1, world + 1) if world % f == 0])
        places = ["R"] + ([f"S{d}" for d in range(len(shape))] if shape else [])
        return reshard.Layout.mesh(shape, world, [first, world // first], [rng.choice(places), rng.choice(places)])
    if kind == "cyclic":
        grid = [1] * len(shape)
        grid[rng.randrange(len(shape))] = world
        return reshard.Layout.cyclic(shape, world, grid, [rng.randint(1, 4) for _ in shape])
    if kind == "single":
        return reshard.Layout(f"rank({rng.randrange(world)})", shape, world)
    if kind == "flat":
        return reshard.Layout("flat()", shape, world)
    cuts = sorted(rng.randint(0, shape[0]) for _ in range(world - 1))
    bounds = list(zip([0, *cuts], [*cuts, shape[0]]))
    return reshard.Layout.boxes(shape, world, [(r, (a, *[0] * (len(shape) - 1)), (b - a, *shape[1:])) for r, (a, b) in enumerate(bounds)])


def strided(rng: random.Random, array: Any) -> Any:
    """The same values with other strides: as they are, columns first, every second, a wider parent."""
    way = rng.randrange(4)
    if array.ndim == 0 or way == 0:
        return array
    if way == 1:
        return np.asfortranarray(array)
    parent = np.zeros([2 * n if way == 2 else n + 3 for n in array.shape], array.dtype)
    view = parent[tuple(slice(None, None, 2) if way == 2 else slice(1, n + 1) for n in array.shape)]
    view[...] = array
    return view


def test_random_layouts_dtypes_and_strides_against_numpy() -> None:
    rng = random.Random(20)
    for case in range(500):
        world, ndim = rng.randint(1, 5), rng.randint(0, 3)
        shape = tuple(rng.randint(0 if rng.random() < 0.1 else 1, 9) for _ in range(ndim))
        src, dst = (random_layout(rng, shape, world, side) for side in (True, False))
        dtype = rng.choice(DTYPES)
        whole = np.frombuffer(rng.randbytes(int(np.prod(shape, dtype=int)) * dtype.itemsize), np.uint8).view(
            "u1" if dtype.itemsize == 1 else f"V{dtype.itemsize}" if dtype.itemsize == 16 else f"u{dtype.itemsize}")
        whole = (whole % 2 if dtype == np.bool_ else whole).view(dtype).reshape(shape)

        def given(layout: reshard.Layout, rank: int, mark: bool) -> Any:
            one = held(layout, rank, np.zeros(shape, dtype) if mark else whole)
            if isinstance(one, list):
                return [strided(rng, a) for a in one]
            return one if one is None or layout.kind == "flat" else strided(rng, one)

        sources = [given(src, r, False) for r in range(world)]
        targets = [given(dst, r, True) for r in range(world)]
        plans = reshard.Plan.all([reshard.Entry(src, dst, dtype)])
        with reshard.local(world) as comm, reshard.Transfer(plans, comm, sources, targets, path=rng.choice(["auto", "direct", "packed"])) as t:
            t.execute()
            for r in range(world):
                want, got = held(dst, r, whole), targets[r]
                pairs = zip(want, got) if isinstance(want, list) else [] if want is None else [(want, got)]
                for w, g in pairs:
                    assert w.tobytes() == np.ascontiguousarray(g).tobytes(), (case, str(src), str(dst), shape, dtype, r)


def test_redistribute_makes_one_buffer_of_flat_pieces_and_of_parts_that_ranks_share() -> None:
    whole = np.arange(3 * 4 * 5, dtype="f4").reshape(3, 4, 5)
    src, flat, shared = (reshard.Layout(text, whole.shape, 4) for text in ("chunk(1)", "flat()", "mesh(2x2;S1,S0{1/1,2})"))
    mine = [held(src, r, whole) for r in range(4)]
    with reshard.local(4) as comm:
        got = reshard.redistribute([[a, a] for a in mine], [src, src], [flat, shared], comm, dtype="f64")
        assert all(part.dtype == "f8" for parts in got for part in parts)
        for rank, (piece, rows) in enumerate(got):
            low = rank // 2 * 2
            assert (piece == held(flat, rank, whole)).all() and (rows == whole[[0, 1 + rank % 2], low:low + 2]).all(), rank
        back = reshard.redistribute([piece.astype("f4") for piece, _ in got], flat, src, comm)
        assert all((a == b).all() for a, b in zip(back, mine))
        once = reshard.redistribute(mine, src, shared, comm)
        assert all((a == b).all() for a, (_, b) in zip(once, got))


def test_redistribute_returns_what_each_rank_holds_and_keeps_its_plan() -> None:
    whole = np.arange(7 * 6, dtype="f4").reshape(7, 6)
    with reshard.local(3) as comm:
        src, dst = reshard.Layout("chunk(0)", (7, 6), 3), reshard.Layout("cyclic(1x3;1x1)", (7, 6), 3)
        for _ in range(3):
            got = reshard.redistribute([held(src, r, whole) for r in range(3)], src, dst, comm)
            for r in range(3):
                assert (got[r] == held(dst, r, whole)).all()
        both = reshard.redistribute([[held(src, r, whole), held(dst, r, whole.astype("i8"))] for r in range(3)], [src, dst], [dst, src], comm)
        assert all((both[r][1] == held(src, r, whole)).all() and both[r][1].dtype == np.int64 for r in range(3))
    assert (both[0][0] == held(dst, 0, whole)).all()  # results outlive their communicator


@pytest.mark.parametrize(("before", "after"), [("f4", "bfloat16"), ("float8_e5m2", "f8"), ("f2", "float8_e4m3fn")])
def test_another_dtype_has_the_numbers_of_ml_dtypes(before: str, after: str) -> None:
    whole = (np.arange(7 * 6, dtype="f4").reshape(7, 6) * 0.37 - 7).astype(np.dtype(getattr(ml_dtypes, before, before)))
    wanted = whole.astype(np.dtype(getattr(ml_dtypes, after, after)))
    src, dst = reshard.Layout("chunk(0)", (7, 6), 3), reshard.Layout("chunk(1)", (7, 6), 3)
    with reshard.local(3) as comm:
        mine = [held(src, r, whole) for r in range(3)]
        got = reshard.redistribute(mine, src, dst, comm, dtype=wanted.dtype)
        plans = [reshard.Plan(src, dst, whole.dtype, r, dst_dtype=wanted.dtype) for r in range(3)]
        results, back = [np.zeros_like(held(dst, r, wanted)) for r in range(3)], [np.zeros_like(m) for m in mine]
        reshard.Transfer(plans, comm, mine, results).execute()
        with pytest.raises(reshard.InvalidError, match=f"{plans[0].reverse().entries[0].dst_dtype} is due"):
            reshard.Transfer([p.reverse() for p in plans], comm, results, results)
        reshard.Transfer([p.reverse() for p in plans], comm, results, back).execute()
        for r in range(3):
            assert got[r].dtype == wanted.dtype and got[r].tobytes() == results[r].tobytes() == held(dst, r, wanted).tobytes()
            assert back[r].tobytes() == held(src, r, wanted.astype(whole.dtype)).tobytes()
        assert reshard.Entry(src, dst, "f32").dst_dtype == "f32"
        with pytest.raises(NotImplementedError, match="no cast from f32 to i32"):
            reshard.Plan(src, dst, "f32", 0, dst_dtype="i32")


@pytest.mark.parametrize(("before", "after"), [("chunk(1)", "chunk(0)"), ("cyclic(1x3;1x8)", "flat()"), ("mesh(3;R)", "cyclic(3x1;8x24)")])
def test_blocks_of_fp8_have_scales_behind_their_values_and_come_back(before: str, after: str) -> None:
    whole = ((np.arange(48 * 24, dtype="f4").reshape(48, 24) * 0.37) % 7 - 3).astype(ml_dtypes.bfloat16)
    src, dst = reshard.Layout(before, (48, 24), 3), reshard.Layout(after, (48, 24), 3)
    most = np.abs(whole.astype("f4")).reshape(6, 8, 6, 4).max(axis=(1, 3))
    scales = np.maximum(most, np.float32(1e-4)) / np.float32(448)
    wide = np.repeat(np.repeat(scales, 8, 0), 4, 1)
    values = (whole.astype("f4") * (np.float32(1) / wide)).astype(ml_dtypes.float8_e4m3fn)
    of_scales = reshard.Layout(after.replace("8x24", "1x6"), (6, 6), 3)
    entry = reshard.Entry(src, dst, "bf16", dst_dtype="f8_e4m3", block=(8, 4))
    back = reshard.Entry(dst, src, "f8_e4m3", dst_dtype="f32", block=(8, 4), scale_dtype="f32")
    wanted = [[held(dst, r, values), held(of_scales, r, scales)] for r in range(3)]
    with reshard.local(3) as comm:
        results = [[np.zeros_like(a) for a in pair] for pair in wanted]
        mine = [held(src, r, whole) for r in range(3)]
        reshard.Transfer([reshard.Plan([entry], r) for r in range(3)], comm, mine, results).execute()
        again = [np.zeros_like(m, dtype="f4") for m in mine]
        reshard.Transfer([reshard.Plan([back], r) for r in range(3)], comm, results, again).execute()
        for r in range(3):
            assert [a.tobytes() for a in results[r]] == [a.tobytes() for a in wanted[r]]
            assert again[r].tobytes() == held(src, r, values.astype("f4") * wide).tobytes()
        with pytest.raises(reshard.InvalidError, match="one array, where 2 are due"):
            reshard.Transfer([reshard.Plan([entry], r) for r in range(3)], comm, mine, [pair[0] for pair in results])
    with pytest.raises(reshard.InvalidError, match="block of 1 numbers for 2 dims"):
        reshard.Plan([reshard.Entry(src, dst, "bf16", dst_dtype="f8_e4m3", block=(8,))], 0)
    with pytest.raises(reshard.InvalidError, match="scales of f8_e8m0 without blocks"):
        reshard.Plan([reshard.Entry(src, dst, "bf16", dst_dtype="f8_e4m3", scale_dtype="f8_e8m0")], 0)


def test_parts_that_ranks_share_are_one_buffer_of_any_strides() -> None:
    whole = np.arange(3 * 16, dtype="f4").reshape(3, 16)
    src, dst = reshard.Layout("chunk(1)", (3, 16), 4), reshard.Layout("mesh(4;S1{8,8/2})", (3, 16), 4)
    want = [whole[:, [2 * r, 2 * r + 1, *range(8 + r // 2 * 4, 12 + r // 2 * 4)]] for r in range(4)]
    plans = reshard.Plan.all([reshard.Entry(src, dst, "f32")])
    with reshard.local(4) as comm:
        got = [np.zeros((6, 3), "f4").T for _ in range(4)]
        reshard.Transfer(plans, comm, [whole[:, 4 * r:4 * r + 4] for r in range(4)], got).execute()
        assert all((g == w).all() for g, w in zip(got, want))
        rows = [whole[:, 4 * r:4 * r + 4] for r in range(4)]
        assert all((g == w).all() for g, w in zip(reshard.redistribute(rows, src, dst, comm), want))
        back = reshard.redistribute([np.ascontiguousarray(w) for w in want], dst, src, comm)
        assert all((b == w).all() for b, w in zip(back, rows))


def test_regions_and_a_permutation_fuse_tensors() -> None:
    q, k = np.arange(12.0).reshape(3, 4), np.arange(8.0).reshape(2, 4) + 100
    one = lambda *shape: reshard.Layout("rank(0)", shape, 1)  # noqa: E731
    fused, turned = np.zeros((5, 4)), np.zeros((4, 3))
    entries = [reshard.Entry(one(3, 4), one(5, 4), "f64", "q", dst_offset=[0, 0], dst_extent=[3, 4]),
               reshard.Entry(one(2, 4), one(5, 4), "f64", "k", dst_offset=[3, 0], dst_extent=[2, 4]),
               reshard.Entry(one(3, 4), one(4, 3), "f64", "w", permutation=[1, 0])]
    with reshard.local(1) as comm:
        reshard.Transfer(reshard.Plan(entries, 0), comm, [[q, k, q]], [[fused, fused, turned]]).execute()
        assert (fused == np.concatenate([q, k])).all() and (turned == q.T).all()
        back = np.zeros((3, 4))
        reshard.Transfer(reshard.Plan(entries[2:], 0).reverse(), comm, turned, back).execute()
        assert (back == q).all()


def test_layouts_print_compare_hash_and_pickle() -> None:
    for text in ("mesh(2x2;S0,R)", "chunk(-1;2,0,3,1)", "flat()", "rank(3)", "cyclic(2x2;1x3)", "boxes(0:[0,0]+[4,3];1:[4,0]+[4,3])"):
        layout = reshard.Layout(text, (8, 3), 4)
        again = pickle.loads(pickle.dumps(layout))
        assert again == layout and hash(again) == hash(layout) and str(again) == str(layout)
        assert layout != reshard.Layout("rank(2)", (8, 3), 4) and eval(repr(layout)) == layout
    for one, same in (("mesh(2x2;S0,R)", "mesh(4;S0/2)"), ("mesh(a=4;S0)", "mesh(4;S0{8,0})")):
        assert len({reshard.Layout(one, (8, 3), 4), reshard.Layout(same, (8, 3), 4)}) == 1
    assert reshard.Layout("chunk(0)", (8, 3), 4) != "chunk(0)"
    assert reshard.Layout.mesh((8, 3), 4, [2, 2], ["S0*2", "S-1"], order=[1, 0]).kind == "mesh"


SRC, DST = reshard.Layout("chunk(0)", (4, 2), 2), reshard.Layout("chunk(1)", (4, 2), 2)
BAD: list[tuple[Any, Any, str]] = [
    (lambda a: a[:1], reshard.InvalidError, "source of rank 0, 'tensor': shape (1, 2), where (2, 2) is due"),
    (lambda a: np.zeros((3, 2), "f4"), reshard.InvalidError, "shape (3, 2), where (2, 2)"),
    (lambda a: a.astype("f8"), reshard.InvalidError, "f64, where f32 is due"),
    (lambda a: a.astype(">f4"), reshard.UnsupportedError, "big-endian"),
    (lambda a: a.astype(object), reshard.UnsupportedError, "dtype object"),
    (lambda a: np.zeros((2, 2), [("x", "f4")]), reshard.UnsupportedError, "dtype"),
    (lambda a: None, reshard.InvalidError, "None"),
    (lambda a: "text", reshard.UnsupportedError, "no array"),
    (lambda a: [a, a], reshard.InvalidError, "2 arrays"),
]


@pytest.mark.parametrize("change,error,text", BAD)
def test_a_source_that_does_not_fit_is_named(change: Any, error: Any, text: str) -> None:
    good, out = np.zeros((2, 2), "f4"), [np.full((4, 1), 7, "f4") for _ in range(2)]
    with reshard.local(2) as comm:
        with pytest.raises(error) as raised:
            reshard.Transfer([reshard.Plan(SRC, DST, "f32", r) for r in range(2)], comm, [change(good), good], out)
        assert text in str(raised.value)
        assert all((o == 7).all() for o in out)


def test_one_thing_for_several_ranks_is_told_that_a_list_is_due() -> None:
    with reshard.local(2) as comm:
        with pytest.raises(reshard.InvalidError, match="plan: a Plan, where 2 ranks of this process take a list"):
            reshard.Transfer(reshard.Plan(SRC, DST, "f32", 0), comm, [], [])
        with pytest.raises(reshard.InvalidError, match="a list of 1 things for 2 ranks"):
            reshard.Transfer([reshard.Plan(SRC, DST, "f32", 0)], comm, [], [])


def test_a_destination_that_cannot_be_written_is_named() -> None:
    rows, frozen = [np.zeros((2, 2), "f4")] * 2, np.zeros((4, 1), "f4")
    frozen.flags.writeable = False
    plans = [reshard.Plan(SRC, DST, "f32", r) for r in range(2)]
    with reshard.local(2) as comm:
        with pytest.raises(reshard.InvalidError, match="rank 1, 'tensor': read-only"):
            reshard.Transfer(plans, comm, rows, [np.zeros((4, 1), "f4"), frozen])
        with pytest.raises(reshard.InvalidError, match="overlap"):
            reshard.Transfer(plans, comm, rows, [np.lib.stride_tricks.as_strided(np.zeros(1, "f4"), (4, 1), (0, 0)), np.zeros((4, 1), "f4")])
        read_only = np.zeros((2, 2), "f4")
        read_only.flags.writeable = False  # as a source it is welcome
        reshard.Transfer(plans, comm, [read_only, rows[0]], [np.zeros((4, 1), "f4") for _ in range(2)]).execute()


def test_errors_are_the_builtins_that_programs_expect() -> None:
    for call, kinds in ((lambda: reshard.Layout("chunk(9)", (3,), 2), (reshard.InvalidError, ValueError, reshard.Error, RuntimeError)),
                        (lambda: reshard.Layout("mesh(2;Psum)", (3,), 2), (reshard.UnsupportedError, NotImplementedError)),
                        (lambda: reshard.open("/no/such/file"), (reshard.MissingError, FileNotFoundError, ValueError)),
                        (lambda: reshard.Layout("chunk(0)\0x", (3,), 2), (ValueError,)),
                        (lambda: reshard.local(2, timeout=-1), (ValueError,)),
                        (lambda: reshard.Plan(SRC, DST, "f31", 0), (ValueError,)),
                        (lambda: reshard.Plan(SRC, DST, "f32", 2), (ValueError,))):
        for kind in kinds:
            with pytest.raises(kind):
                call()
    with pytest.raises(reshard.Error) as raised:
        reshard.Layout("chunk(9)", (3,), 2)
    assert raised.value.status == "RESHARD_ERROR_INVALID"


def bound(comm: reshard.Comm) -> tuple[reshard.Transfer, Any]:
    one = reshard.Layout("rank(0)", (4,), 1)
    out = np.zeros(4, "f4")
    return reshard.Transfer(reshard.Plan(one, one, "f32", 0), comm, np.arange(4, dtype="f4"), out), out


def test_closing_a_communicator_ends_its_transfers_in_any_order() -> None:
    for first in ("comm", "transfer", "drop", "collect"):
        comm = reshard.local(1)
        transfer, out = bound(comm)
        transfer.execute()
        assert (out == np.arange(4)).all()
        if first == "comm":
            comm.close()
            comm.close()
            assert transfer.closed
            with pytest.raises(reshard.InvalidError, match="closed"):
                transfer.execute()
            with pytest.raises(reshard.InvalidError, match="closed"):
                comm.barrier()
        elif first == "transfer":
            transfer.close()
            transfer.close()
            comm.barrier()
        elif first == "drop":
            gone = weakref.ref(comm)
            del comm
            transfer.execute()  # it keeps its communicator
            del transfer
            gc.collect()
            assert gone() is None
        else:
            del transfer, comm
            gc.collect()


def test_a_transfer_keeps_its_arrays_and_plan() -> None:
    comm, source = reshard.local(1), np.arange(4, dtype="f4")
    before = sys.getrefcount(source)
    one = reshard.Layout("rank(0)", (4,), 1)
    out = np.zeros(4, "f4")
    transfer = reshard.Transfer(reshard.Plan(one, one, "f32", 0), comm, source, out)
    assert sys.getrefcount(source) > before
    other = np.arange(4, dtype="f4") + 5
    transfer.rebind(other, out)
    assert sys.getrefcount(source) == before
    transfer.execute()
    assert (out == other).all()
    with pytest.raises(reshard.InvalidError):
        transfer.rebind(other[:2], out)
    transfer.execute()  # bound as before
    comm.close()


def test_fork_leaves_local_objects_usable() -> None:
    comm = reshard.local(1)
    transfer, out = bound(comm)
    child = os.fork()
    if child == 0:
        try:
            transfer.execute()
            os._exit(0 if (out == np.arange(4)).all() else 3)
        except BaseException:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    transfer.execute()
    comm.close()


def test_what_is_left_at_exit_is_closed_without_a_word() -> None:
    code = ("import numpy as np, reshard\nc = reshard.local(1)\none = reshard.Layout('rank(0)', (4,), 1)\n"
            "t = reshard.Transfer(reshard.Plan(one, one, 'f32', 0), c, np.zeros(4, 'f4'), np.ones(4, 'f4'))\nt.execute()\nimport sys; sys.kept = t")
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_plans_tell_their_figures() -> None:
    plan = reshard.Plan(SRC, DST, "f32", 0)
    assert (plan.info.sent_bytes, plan.info.received_bytes, plan.info.self_copy_bytes) == (8, 8, 8)
    assert plan.info.peers == 1 and '"rank"' in plan.to_json() and repr(plan) == str(plan) and "rank 0 of 2" in str(plan)
    assert [p.rank for p in reshard.Plan.all([reshard.Entry(SRC, DST, "f32")])] == [0, 1]
    assert plan.reverse().info.sent_bytes == 8


def test_communicators_count_what_came() -> None:
    with reshard.local(2) as comm:
        reshard.redistribute([held(SRC, r, np.ones(SRC.shape, "f4")) for r in range(2)], SRC, DST, comm)
        stats = dict(comm.stats)
    assert stats.pop("received_bytes") == 2 * 8 and stats.pop("received_messages") in (0, 2)
    assert stats == {"between_bytes": 0, "within_bytes": 0, "leaving_bytes": 0}  # of domains, which no plan has here


def groups_of_nccl(monkeypatch: pytest.MonkeyPatch, rank: int, store: Any) -> Any:
    """Stand-ins for torch and its group: no GPU is needed to see what is asked of them."""
    from types import SimpleNamespace

    from reshard import _groups

    backend = SimpleNamespace(_comm_ptr=lambda: 4096)
    group = type("Group", (), {"_get_backend": lambda self, device: backend if device == "cuda" else None})()
    dist = SimpleNamespace(get_backend=lambda g: "nccl", group=SimpleNamespace(WORLD=group), get_world_size=lambda g: 2, get_rank=lambda g: rank,
                           distributed_c10d=SimpleNamespace(_world=SimpleNamespace(pg_map={group: ("nccl", store)})))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(device=str, distributed=dist))
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    return _groups


class Store:
    """As torch's, of one process."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def add(self, key: str, n: int) -> int:
        self.kept[key] = self.kept.get(key, 0) + n
        return int(self.kept[key])

    def set(self, key: str, value: bytes) -> None:
        self.kept[key] = value

    def get(self, key: str) -> Any:
        return self.kept[key]


def test_a_group_of_nccl_lends_its_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = groups_of_nccl(monkeypatch, 0, None)
    monkeypatch.setattr(groups, "from_nccl", lambda pointer, timeout, device: (pointer, timeout, device))
    assert reshard.from_torch(borrow=True, timeout=3) == (4096, 3, "cuda")


def test_a_group_of_nccl_passes_the_id_of_an_own_communicator_on_by_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store, made = Store(), []
    for turn in range(2):
        for rank in range(2):
            groups = groups_of_nccl(monkeypatch, rank, store)
            monkeypatch.setattr(groups, "_nccl_id", lambda: bytes([turn]) * 128)
            monkeypatch.setattr(groups, "_create_nccl", lambda *a: made.append(a))
            reshard.from_torch(timeout=3)
    assert made == [(bytes([turn]) * 128, 2, rank, 3, "cuda") for turn in range(2) for rank in range(2)]


def test_an_error_of_the_rank_that_makes_the_id_is_heard_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> bytes:
        raise reshard.UnsupportedError("no NCCL here")

    store = Store()
    for rank in range(2):
        groups = groups_of_nccl(monkeypatch, rank, store)
        monkeypatch.setattr(groups, "_nccl_id", refuse)
        with pytest.raises(reshard.UnsupportedError, match="rank 0: no NCCL here"):
            reshard.from_torch()


def test_the_nccl_of_the_environment_is_opened_by_its_file(tmp_path: Path) -> None:
    compiler, library = shutil.which("cc"), tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    if compiler is None:
        pytest.skip("no cc")
    library.parent.mkdir(parents=True)
    (tmp_path / "old.c").write_text("int ncclGetVersion(int *v) { return *v = 1, 0; }")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", library, tmp_path / "old.c"], check=True)
    code = f"import sys; sys.path.insert(0, '{tmp_path}')\nimport reshard\nreshard.from_nccl(4096)"
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True)
    assert "UnsupportedError: the NCCL that is loaded has version code 1; 2.18" in done.stderr or "this build has no NCCL" in done.stderr, done.stderr


def test_a_communicator_is_of_the_device_that_is_named() -> None:
    for device in (None, "cpu"):
        with reshard.local(2, device=device) as comm:
            assert reshard.empty((2,), "f32", comm).shape == (2,)
    with pytest.raises(reshard.InvalidError, match="tpu"):
        reshard.local(1, device="tpu")
    for none in ("cuda:99", 99):
        with pytest.raises(reshard.UnsupportedError):
            reshard.local(1, device=none)


def test_a_stream_on_the_cpu_is_refused() -> None:
    comm = reshard.local(1)
    transfer, _ = bound(comm)
    with pytest.raises(reshard.InvalidError, match="stream"):
        transfer.execute(5)
    comm.close()
