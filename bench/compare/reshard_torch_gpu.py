"""PyTorch's own operations beside ours on one GPU: one operation a line, then those of a reshard together.

    python bench/compare/reshard_torch_gpu.py build/reshard build/reshard_micro [SIDE [BYTES]]

with an interpreter that has torch for CUDA; without it the exit status is 77. Single operations move as many bytes as the
rows of reshard_micro that they stand beside; without that program they are left out, with what is in its place as the reason. A reshard from rows to columns is what a sharded tensor's does, with the
copies in place of an all-to-all: each rank selects its rows in the order of the new placement, splits them by the new shards,
makes the pieces contiguous; these are copied to who gets them, and there joined. All is compared by the time of the device,
with empty caches; a small reshard by the time of a call in a loop, where the host's work counts. Lines with a figure, which
is our speed over PyTorch's, are read by ./run gpu. An operation that this PyTorch lacks is told in a line."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
if not torch.cuda.is_available():
    print("skipped: torch sees no GPU")
    sys.exit(77)

RANKS, TURNS = 4, 20
device = torch.device("cuda")
CACHE = 4 * getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20)
cache = torch.empty(CACHE, dtype=torch.uint8, device=device)


def make_reshard(side):
    source = torch.arange(side * side, dtype=torch.float32, device=device).view(side, side)
    shards = [piece.contiguous() for piece in source.split(side // RANKS)]
    order = torch.arange(side // RANKS, device=device)
    received = [[torch.empty(side // RANKS, side // RANKS, device=device) for _ in range(RANKS)] for _ in range(RANKS)]

    def reshard():
        for rank, shard in enumerate(shards):
            pieces = [piece.contiguous() for piece in shard.index_select(0, order).split(side // RANKS, dim=1)]
            for peer, piece in enumerate(pieces):
                received[peer][rank].copy_(piece)
        return [torch.cat(pieces) for pieces in received]

    assert torch.equal(torch.cat(reshard(), dim=1), source)
    return reshard


def device_us(works):
    """Median over turns, with empty caches, of the mean over the sets; the memsets hold the stream until all of it was given."""
    times = []
    for turn in range(-2, TURNS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(16):
            cache.fill_(turn & 1)
        begin.record()
        for work in works:
            work()
        end.record()
        end.synchronize()
        if turn >= 0:
            times.append(1e3 * begin.elapsed_time(end) / len(works))
    return statistics.median(times)


def loop_us(works):
    for work in works:
        work()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for turn in range(TURNS):
        works[turn % len(works)]()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begin) / TURNS


def ours(program, side, *options):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([program, "bench", "--device", "cuda", "--shape", f"{side}x{side}", "--dtype", "f32", "--src", "chunk(0)",
                        "--dst", "chunk(1)", "--ranks", str(RANKS), "-n", str(TURNS), "-w", "3", "-J", file.name, *options],
                       check=True, stdout=subprocess.DEVNULL)
        return json.load(open(file.name))["rows"][0]


def ours_alone(micro):
    """Times and bytes of the rows of reshard_micro that PyTorch's operations stand beside."""
    env = {**os.environ, "RESHARD_MICRO_GPU_BYTES": str(many), "RESHARD_MICRO_GPU_TURNS": str(TURNS)}
    rows = "^gpu_(index_select/65536|copy_transpose/[124]|copy_boxes/8|fsdp_copy_out|fsdp_copy_in|cast_f32_bf16)/"
    said = subprocess.run([micro, f"--benchmark_filter={rows}", "--benchmark_format=json"], check=True, env=env,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return {row["name"].split("/iterations")[0]: (int(row["label"].split()[0].removeprefix("bytes=")), row["real_time"])
            for row in json.loads(said)["benchmarks"]}


def filled(*shape, dtype):
    """Numbers that differ: zeros may move faster."""
    return torch.empty(*shape, dtype=dtype, device=device).random_(0, 127)


def select(bytes):
    width = 5120 if bytes >= 1 << 24 else 64
    rows = bytes // (2 * width)
    source, order = filled(rows, width, dtype=torch.bfloat16), torch.randperm(rows, device=device)
    out = torch.empty(rows, width, dtype=torch.bfloat16, device=device)
    return lambda: torch.index_select(source, 0, order, out=out)


def transpose(dtype, width):
    def make(bytes):
        side = int((bytes // width) ** 0.5)
        source = filled(side, side, dtype=dtype)
        out = torch.empty(side, side, dtype=dtype, device=device)
        return lambda: out.copy_(source.t())
    return make


def join(bytes):
    pieces = [filled(bytes // 8 // 4, dtype=torch.float32) for _ in range(8)]
    out = torch.empty(bytes // 8 // 4 * 8, dtype=torch.float32, device=device)
    return lambda: torch.cat(pieces, out=out)


# The layer of bench/micro/gpu_copies.c: rows of a tensor, elements of a row.
LAYER = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336), (4096, 1), (4096, 1)]
WORLD = 8


def fsdp(bytes):
    """Elements of a rank's shard of each tensor, where all shards together have about so many bytes."""
    part = bytes / WORLD / sum(2 * rows // WORLD * width for rows, width in LAYER)
    sizes = [max((rows if width == 1 else int(part * rows)) // WORLD, 1) * width for rows, width in LAYER]
    gathered = filled(WORLD, sum(sizes), dtype=torch.bfloat16)
    return sizes, gathered, [filled(WORLD, size, dtype=torch.bfloat16) for size in sizes]


def copy_out(bytes):
    sizes, gathered, tensors = fsdp(bytes)
    return lambda: torch.split_with_sizes_copy(gathered, sizes, dim=1, out=tensors)


def copy_in(bytes):
    _, gathered, tensors = fsdp(bytes)
    return lambda: torch._chunk_cat(tensors, dim=0, num_chunks=WORLD, out=gathered)


def narrow(bytes):
    source = filled(bytes // 6 * 2, dtype=torch.float32)
    return lambda: source.to(torch.bfloat16)


def row(name, bytes, theirs, mine):
    print(f"{name:<38} {theirs:9.1f} us  bytes={bytes} ours_us={mine:.1f} x_pytorch={theirs / mine:.3f}", flush=True)


program, micro = sys.argv[1:3]
side = int(sys.argv[3]) if len(sys.argv) > 3 else 8192
many = int(sys.argv[4]) if len(sys.argv) > 4 else 256 << 20
print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, {RANKS} ranks", flush=True)

alone = ours_alone(micro) if os.path.exists(micro) else None
if alone is None:
    print(f"single operations are left out: {micro}", flush=True)
for name, case, make in (
        ("index_select", "gpu_index_select/65536", select),
        ("transpose of f32", "gpu_copy_transpose/4", transpose(torch.float32, 4)),
        ("transpose of bf16", "gpu_copy_transpose/2", transpose(torch.bfloat16, 2)),
        ("transpose of u8", "gpu_copy_transpose/1", transpose(torch.uint8, 1)),
        ("cat", "gpu_copy_boxes/8", join),
        ("split_with_sizes_copy", "gpu_fsdp_copy_out", copy_out),
        ("_chunk_cat", "gpu_fsdp_copy_in", copy_in),
        ("to(bf16)", "gpu_cast_f32_bf16", narrow)):
    if alone is None:
        break
    try:
        bytes_, mine = alone[case]
        work = make(bytes_)
        row(name, bytes_, device_us([work]), mine)
        work = None
    except (AttributeError, NotImplementedError, RuntimeError, TypeError) as lacking:
        print(f"{name}: not here: {str(lacking).splitlines()[0]}", flush=True)

for n, small in ((side, False), (min(side, 512), True)):
    rows = [ours(program, n), ours(program, n, "-G")]
    works = [make_reshard(n) for _ in range(rows[0]["sets"])]
    theirs = loop_us(works) if small else device_us(works)
    for how, mine in zip(("", " from a graph"), rows):
        row(f"reshard{' in a loop' if small else ''}{how}", 4 * n * n, theirs, mine["loop_us" if small else "time_us"])
