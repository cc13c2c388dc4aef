"""Arrays on a GPU, of torch and CuPy, on streams of the caller, against torch's own results; processes that share a GPU."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import reshard

try:
    reshard.local(1, device="cuda").close()
except reshard.Error as why:
    pytest.skip(f"no GPU: {why}", allow_module_level=True)
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)

import gpu_ranks  # noqa: E402

RANKS, SHAPE = 4, (64, 96)
ROWS, COLUMNS = (reshard.Layout(text, SHAPE, RANKS) for text in ("chunk(0)", "chunk(1)"))
DTYPES = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float64", "uint8", "int16", "int64", "bool", "complex64"]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], None]]:
    """Two processes on this GPU; a function that waits for one of their steps."""
    said = [tmp_path_factory.mktemp("ranks") / f"{rank}.txt" for rank in range(2)]
    children = []
    for rank in range(2):
        command = [sys.executable, "-u", os.fspath(Path(gpu_ranks.__file__)), os.fspath(said[rank].parent / "meeting")]
        children.append(subprocess.Popen(command, env=gpu_ranks.environment(rank, 2), stdout=said[rank].open("w"), stderr=subprocess.STDOUT))
    limit = time.monotonic() + float(os.environ.get("RESHARD_TEST_GPU_SECONDS", "90"))

    def passed(step: str) -> None:
        while True:
            running = [child.poll() is None for child in children]
            texts = [path.read_text() for path in said]
            if all(f"passed: {step}\n" in text for text in texts):
                return
            failed = any(f"failed: {step}\n" in text for text in texts)
            if failed or not all(running) or time.monotonic() > limit:
                time.sleep(0.5)
                why = "failed" if failed else "ended before it" if time.monotonic() <= limit else "did not end in time"
                pytest.fail(f"{step}: {why}\n" + "\n".join(f"--- rank {r}\n{path.read_text()}" for r, path in enumerate(said)), pytrace=False)
            time.sleep(0.05)

    yield passed
    for child in children:
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def bits(tensor: Any) -> Any:
    return tensor.contiguous().view(torch.uint8)


def same(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.dtype is b.dtype and torch.equal(bits(a), bits(b))


def numbers(dtype: str = "float32", shape: tuple[int, ...] = SHAPE) -> Any:
    torch.manual_seed(5)
    return (torch.randint(0, 2, shape) if dtype == "bool" else torch.randint(0, 120, shape)).cuda().to(getattr(torch, dtype))


def rows_of(whole: Any) -> list[Any]:
    return [part.clone() for part in whole.chunk(RANKS, 0)]


def columns_like(whole: Any, dtype: Any = None) -> list[Any]:
    return [torch.zeros_like(part, dtype=dtype, memory_format=torch.contiguous_format) for part in whole.chunk(RANKS, 1)]


def plans(dtype: Any, dst_dtype: Any = None) -> list[reshard.Plan]:
    return [reshard.Plan(ROWS, COLUMNS, dtype, rank, dst_dtype=dst_dtype) for rank in range(RANKS)]


@pytest.fixture
def comm() -> Iterator[reshard.Comm]:
    with reshard.local(RANKS, device="cuda:0") as made:
        yield made


@pytest.mark.parametrize("path", ["direct", "packed"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_become_columns(comm: reshard.Comm, dtype: str, path: str) -> None:
    whole = numbers(dtype)
    out = columns_like(whole)
    with reshard.Transfer(plans(whole.dtype), comm, rows_of(whole), out, path=path) as transfer:
        assert transfer.info["path"] == path
        transfer.execute(torch.cuda.current_stream())
        assert all(same(a, b) for a, b in zip(out, whole.chunk(RANKS, 1)))


def test_tensors_of_any_strides_are_moved_where_they_are(comm: reshard.Comm) -> None:
    for dtype in ("bfloat16", "float32", "uint8"):
        whole = numbers(dtype)
        rows = [part.t().contiguous().t() for part in whole.chunk(RANKS, 0)]
        parents = [torch.full((2 * SHAPE[0], SHAPE[1] // RANKS + 5), 7, device="cuda").to(whole.dtype) for _ in range(RANKS)]
        out = [parent[::2, 2:-3] for parent in parents]
        assert not rows[0].is_contiguous() and not out[0].is_contiguous()
        with reshard.Transfer(plans(whole.dtype), comm, rows, out) as transfer:
            transfer.execute(0)
        torch.cuda.synchronize()
        for parent, view, part in zip(parents, out, whole.chunk(RANKS, 1)):
            assert same(view, part)
            view.copy_(torch.full_like(view, 7))
            assert (parent.float() == 7).all()


@pytest.mark.parametrize(("before", "after"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float8_e4m3fn"),
                                               ("bfloat16", "float8_e5m2"), ("float8_e4m3fn", "bfloat16"), ("float64", "float32"), ("float16", "float32")])
def test_numbers_are_converted_as_torch_does(comm: reshard.Comm, before: str, after: str) -> None:
    torch.manual_seed(6)
    whole, to = torch.randn(SHAPE, device="cuda").to(getattr(torch, before)), getattr(torch, after)
    out = columns_like(whole, to)
    with reshard.Transfer(plans(whole.dtype, to), comm, rows_of(whole), out) as transfer:
        transfer.execute(torch.cuda.current_stream())
    assert all(same(a, b) for a, b in zip(out, whole.to(to).chunk(RANKS, 1)))
    moved = reshard.redistribute(rows_of(whole), ROWS, COLUMNS, comm, dtype=to, stream=torch.cuda.current_stream())
    assert all(same(a, b) for a, b in zip(moved, whole.to(to).chunk(RANKS, 1)))


class Stream:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


@pytest.mark.parametrize("kind", ["torch.cuda.Stream", "number", "__cuda_stream__"])
def test_an_execute_is_in_the_order_of_the_stream_given(comm: reshard.Comm, kind: str) -> None:
    whole, stream = numbers(), torch.cuda.Stream()
    rows, out = [torch.zeros_like(part) for part in rows_of(whole)], columns_like(whole)
    given = {"number": stream.cuda_stream, "__cuda_stream__": Stream(stream.cuda_stream)}.get(kind, stream)
    torch.cuda.synchronize()
    with reshard.Transfer(plans("f32"), comm, rows, out) as transfer, torch.cuda.stream(stream):
        for turn in range(3):
            torch.cuda._sleep(20_000_000)  # the sources are late
            for row, part in zip(rows, whole.chunk(RANKS, 0)):
                row.copy_(part + turn)
            transfer.execute(given)
            seen = [part.clone() for part in out]
            for row in rows:
                row.zero_()
            stream.synchronize()
            assert all(same(a, b + turn) for a, b in zip(seen, whole.chunk(RANKS, 1)))


def test_an_execute_is_captured_in_a_graph(comm: reshard.Comm) -> None:
    whole = numbers()
    rows, out = rows_of(whole), columns_like(whole)
    with reshard.Transfer(plans("f32"), comm, rows, out) as transfer:
        transfer.execute(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            transfer.execute(torch.cuda.current_stream())
        for row in rows:
            row.neg_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(same(a, -b) for a, b in zip(out, whole.chunk(RANKS, 1)))
        del graph


def test_other_tensors_are_bound_and_refused_ones_change_nothing(comm: reshard.Comm) -> None:
    whole, stream = numbers(), torch.cuda.current_stream()
    out, other = columns_like(whole), columns_like(whole)
    with reshard.Transfer(plans("f32"), comm, rows_of(whole), out) as transfer:
        with pytest.raises(reshard.InvalidError, match="on the CPU, and the communicator is of GPUs"):
            transfer.rebind([part.cpu() for part in rows_of(whole)], other)
        transfer.execute(stream)
        assert all(same(a, b) for a, b in zip(out, whole.chunk(RANKS, 1))) and not any(part.any() for part in other)
        transfer.rebind(rows_of(whole + 1), other)
        transfer.execute(stream)
        assert all(same(a, b) for a, b in zip(out, whole.chunk(RANKS, 1)))
        assert all(same(a, b) for a, b in zip(other, (whole + 1).chunk(RANKS, 1)))


def test_what_does_not_fit_a_communicator_of_gpus_is_refused(comm: reshard.Comm) -> None:
    whole = numbers()
    rows, out, stream = rows_of(whole), columns_like(whole), torch.cuda.current_stream()
    host, far = [part.cpu() for part in rows], types.SimpleNamespace
    elsewhere = far(device=far(type="cuda", index=1), layout="torch.strided", dtype="torch.float32", is_quantized=False, shape=rows[0].shape,
                    stride=rows[0].stride, data_ptr=rows[0].data_ptr, is_conj=lambda: False, is_neg=lambda: False)
    cases: list[tuple[Any, Any, str]] = [
        (host, out, "on the CPU, and the communicator is of GPUs"), (rows, [part.cpu() for part in out], "on the CPU"),
        ([part.numpy() for part in host], out, "on the CPU"), ([elsewhere, *rows[1:]], out, "on GPU 1, and the communicator is on GPU 0"),
        ([part.double() for part in rows], out, "f64, where f32 is due"), (rows, rows, "shape"),
    ]
    for src, dst, text in cases:
        with pytest.raises(reshard.InvalidError, match=text):
            reshard.Transfer(plans("f32"), comm, src, dst)
    with reshard.local(RANKS) as cpu, pytest.raises(reshard.InvalidError, match="on a GPU, and the communicator is of the CPU"):
        reshard.Transfer(plans("f32"), cpu, rows, out)
    with reshard.Transfer(plans("f32"), comm, rows, out) as transfer, pytest.raises(reshard.InvalidError, match="no stream"):
        transfer.execute()
    with pytest.raises(reshard.InvalidError, match="no stream"):
        reshard.redistribute(rows, ROWS, COLUMNS, comm)
    with pytest.raises(reshard.UnsupportedError, match="99"):
        reshard.local(1, device="cuda:99")
    with pytest.raises(reshard.InvalidError):
        reshard.local(1, device="tpu")
    assert not any(part.any() for part in out)
    assert all(same(a, b) for a, b in zip(reshard.redistribute(rows, ROWS, COLUMNS, comm, stream=stream), whole.chunk(RANKS, 1)))


def test_redistribute_makes_tensors_that_outlive_their_communicator() -> None:
    whole, stream = numbers("bfloat16"), torch.cuda.current_stream()
    with reshard.local(RANKS, device=torch.device("cuda", 0)) as comm:
        for turn in range(4):
            got = reshard.redistribute(rows_of(whole + turn), ROWS, COLUMNS, comm, stream=stream)
            assert all(type(part) is torch.Tensor and part.is_cuda and same(part, want) for part, want in zip(got, (whole + turn).chunk(RANKS, 1)))
            back = reshard.redistribute(got, COLUMNS, ROWS, comm, stream=stream)
            assert all(same(a, b) for a, b in zip(back, (whole + turn).chunk(RANKS, 0)))
        both = reshard.redistribute([[a, b] for a, b in zip(rows_of(whole), columns_like(whole, torch.int64))], [ROWS, COLUMNS], [COLUMNS, ROWS], comm,
                                    stream=stream)
        one = reshard.redistribute(rows_of(whole), ROWS, reshard.Layout("rank(2)", SHAPE, RANKS), comm, stream=stream)
    assert all(same(a, b) and c.dtype is torch.int64 and not c.any() for (a, c), b in zip(both, whole.chunk(RANKS, 1)))
    assert same(one[2], whole) and all(part is None or part.numel() == 0 for r, part in enumerate(one) if r != 2)


def test_storage_of_the_communicator_is_taken_by_torch() -> None:
    whole, stream = numbers("float8_e4m3fn"), torch.cuda.current_stream()
    with reshard.local(RANKS, device=0) as comm:
        rows = [torch.from_dlpack(reshard.empty((SHAPE[0] // RANKS, SHAPE[1]), "uint8", comm, stream=stream)) for _ in range(RANKS)]
        for row, part in zip(rows, whole.view(torch.uint8).chunk(RANKS, 0)):
            row.copy_(part)
        got = reshard.redistribute([row.view(whole.dtype) for row in rows], ROWS, COLUMNS, comm, stream=stream)
        with pytest.raises(reshard.InvalidError, match="no stream"):
            reshard.empty((2, 2), "f32", comm)
    assert all(same(a, b) for a, b in zip(got, whole.chunk(RANKS, 1)))
    assert all(same(a, b) for a, b in zip(rows, whole.view(torch.uint8).chunk(RANKS, 0)))


def test_a_transfer_keeps_its_tensors_and_lets_them_go(comm: reshard.Comm) -> None:
    whole, before = numbers(), torch.cuda.memory_allocated()
    rows, out = rows_of(whole), columns_like(whole)
    transfer = reshard.Transfer(plans("f32"), comm, rows, out)
    first = out[0]
    del rows, out
    gc.collect()
    transfer.execute(torch.cuda.current_stream())
    assert same(first, whole.chunk(RANKS, 1)[0])
    assert torch.cuda.memory_allocated() >= before + 2 * whole.nbytes
    transfer.close()
    del first
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    with pytest.raises(reshard.InvalidError, match="closed"):
        transfer.execute(0)


def test_storage_that_is_freed_under_a_transfer_is_found(comm: reshard.Comm) -> None:
    whole = numbers()
    rows, out = rows_of(whole), columns_like(whole)
    with reshard.Transfer(plans("f32"), comm, rows, out) as transfer:
        rows[1].untyped_storage().resize_(0)
        with pytest.raises(reshard.InvalidError, match="other storage"):
            transfer.execute(torch.cuda.current_stream())


def test_what_is_left_at_exit_is_closed_without_a_word() -> None:
    code = ("import torch, reshard, sys\nc = reshard.local(1, device='cuda')\none = reshard.Layout('rank(0)', (4,), 1)\n"
            "t = reshard.Transfer(reshard.Plan(one, one, 'f32', 0), c, torch.zeros(4).cuda(), torch.ones(4).cuda())\n"
            "t.execute(torch.cuda.Stream())\nx = reshard.redistribute([torch.zeros(4).cuda()], one, one, c, stream=0)\nsys.kept = t, x")
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class Described:
    """An array that has __cuda_array_interface__ alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.array.__cuda_array_interface__


@pytest.mark.parametrize("how", ["DLPack", "__cuda_array_interface__"])
def test_arrays_of_cupy(comm: reshard.Comm, how: str) -> None:
    cupy = pytest.importorskip("cupy")
    whole = cupy.arange(SHAPE[0] * SHAPE[1], dtype="i4").reshape(SHAPE)
    rows = [cupy.asfortranarray(part) for part in cupy.split(whole, RANKS, 0)]
    out = [cupy.zeros_like(part, order="C") for part in cupy.split(whole, RANKS, 1)]
    given: Any = Described if how != "DLPack" else lambda array: array
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with reshard.Transfer(plans("i32"), comm, [given(a) for a in rows], [given(a) for a in out]) as transfer:
        transfer.execute(stream)
    stream.synchronize()
    assert all((a == b).all() for a, b in zip(out, cupy.split(whole, RANKS, 1)))
    moved = [cupy.from_dlpack(a) for a in reshard.redistribute([given(a) for a in rows], ROWS, COLUMNS, comm, stream=stream)]
    stream.synchronize()
    assert all((a == b).all() for a, b in zip(moved, cupy.split(whole, RANKS, 1)))
    tensors = reshard.redistribute([torch.from_dlpack(cupy.ascontiguousarray(a)) for a in rows], ROWS, COLUMNS, comm, stream=stream)
    stream.synchronize()
    del stream  # before what has been made in its order
    gc.collect()
    assert all(type(a) is torch.Tensor and torch.equal(a, torch.from_dlpack(cupy.ascontiguousarray(b))) for a, b in zip(tensors, cupy.split(whole, RANKS, 1)))


def test_arrays_of_numba(comm: reshard.Comm) -> None:
    cuda = pytest.importorskip("numba.cuda")
    whole = numbers()
    try:
        rows = [cuda.to_device(part.cpu().numpy()) for part in rows_of(whole)]
    except Exception as why:
        pytest.skip(f"numba: {type(why).__name__}: {why}"[:200])
    out = columns_like(whole)
    with reshard.Transfer(plans("f32"), comm, rows, out) as transfer:
        transfer.execute(0)
    assert all(same(a, b) for a, b in zip(out, whole.chunk(RANKS, 1)))


@pytest.mark.parametrize("step", gpu_ranks.STEPS)
def test_two_processes_on_one_gpu(processes: Callable[[str], None], step: str) -> None:
    processes(step)
