"""PyTorch's own operations for a reshard from rows to columns beside ours, on one GPU that all ranks share.

    python bench/compare/reshard_torch_gpu.py build/reshard [SIDE]

with an interpreter that has torch for CUDA; without it the exit status is 77. What a sharded tensor's reshard does, with the
copies in place of an all-to-all: each rank selects its rows in the order of the new placement, splits them by the new shards,
makes the pieces contiguous; these are copied to who gets them, and there joined. The large case is compared by the time of
the device, the small one by the time of a call in a loop, where the host's work counts; both take as many sets of buffers in
turn as ours do, so that neither finds its data in the caches. Lines "goal|..." are read by ./run gpu."""

import json
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
cache = torch.empty(4 * getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20), dtype=torch.uint8, device=device)


def make(side):
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


program, side = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8192
print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, {RANKS} ranks")
for n, limit, small in ((side, 3, False), (min(side, 512), 8, True)):
    rows = [ours(program, n), ours(program, n, "-G")]
    works = [make(n) for _ in range(rows[0]["sets"])]
    theirs = loop_us(works) if small else device_us(works)
    for how, row in zip(("", ", from a graph"), rows):
        mine = row["loop_us" if small else "time_us"]
        print(f"{n} x {n} f32{how}: PyTorch {theirs:.1f} us, ours {mine:.1f} us, {len(works)} sets of buffers")
        print(f"goal|reshard of {n} x {n} f32{how}|{theirs / mine:.2f}|{limit}")
