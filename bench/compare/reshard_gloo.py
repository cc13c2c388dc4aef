"""PyTorch's DTensor.redistribute and ShardedTensor.reshard over gloo beside ours: 8192 x 8192 f32, 4 ranks, from rows to
columns and back.

    python bench/compare/reshard_gloo.py build/reshard_micro [PAIRS]

with an interpreter that has torch (RESHARD_TEST_PYTHON of ./run test); without it, or without the program, the exit status
is 77. PyTorch's ranks are processes, ours are threads of one. They take turns, so that a busy machine slows all; the ratios
are those of the medians. Ours keeps the memory of the result before for the next, as it does by default, or has new memory
for each result, as PyTorch has (keep_bytes -1 of the sharder's options). The bare execute of the same plans stands beside them. Nothing is checked
here: the tests do that."""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
import warnings

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as multiprocessing
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, ones
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

SIDE, RANKS = 8192, 4


def dtensor():
    mesh = init_device_mesh("cpu", (RANKS,))
    tensor = ones(SIDE, SIDE, device_mesh=mesh, placements=[Shard(0)])
    return lambda: tensor.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Shard(0)])


def sharded():
    specs = [ChunkShardingSpec(dim=dim, placements=[f"rank:{r}/cpu" for r in range(RANKS)]) for dim in (0, 1)]
    tensor = sharded_tensor.ones(specs[0], SIDE, SIDE)

    def reshard():
        tensor.reshard(specs[1])
        tensor.reshard(specs[0])
    return reshard


# The work: PyTorch's function, or a case of reshard_micro.
RUNS = {
    "DTensor.redistribute": dtensor,
    "ShardedTensor.reshard": sharded,
    "redistribute": "dtensor_redistribute_there_and_back_4_ranks",
    "redistribute, new memory": "dtensor_redistribute_there_and_back_4_ranks_new_memory",
    "reshard": "sharded_reshard_there_and_back_4_ranks",
    "reshard, new memory": "sharded_reshard_there_and_back_4_ranks_new_memory",
    "bare execute": "execute_there_and_back_4_ranks",
}
# PyTorch's / ours: which of them, and at least how many times as fast.
ROWS = [
    ("DTensor.redistribute", "redistribute", 50),
    ("DTensor.redistribute", "redistribute, new memory", 50),
    ("ShardedTensor.reshard", "reshard", 15),
    ("ShardedTensor.reshard", "reshard, new memory", 15),
]


def rank_main(rank, port, commands, times):
    """A rank of PyTorch's: runs what its queue names, there and back, until that is None."""
    warnings.simplefilter("ignore", FutureWarning)  # ShardedTensor is deprecated
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // RANKS))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    functions = {name: make() for name, make in RUNS.items() if callable(make)}
    while (name := commands[rank].get()) is not None:
        dist.barrier()
        begin = time.perf_counter()
        functions[name]()
        dist.barrier()
        if rank == 0:
            times.put(time.perf_counter() - begin)
    dist.destroy_process_group()


def ours(program, case):
    """Seconds there and back: the mean of the benchmark's iterations."""
    command = [program, f"--benchmark_filter=^{case}/", "--benchmark_format=json"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["benchmarks"][0]
    return result["real_time"] * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}[result["time_unit"]]


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    program, pairs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7
    if not os.access(program, os.X_OK):
        print(f"skipped: {program} is not there (it needs Google Benchmark)")
        sys.exit(77)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    commands, times = [context.Queue() for _ in range(RANKS)], context.Queue()
    ranks = [context.Process(target=rank_main, args=(r, port, commands, times), daemon=True) for r in range(RANKS)]
    for process in ranks:
        process.start()

    def theirs(name):
        for queue in commands:
            queue.put(name)
        return times.get(timeout=300)

    seconds = {name: [] for name in RUNS}
    for turn in range(pairs + 1):
        for name, run in RUNS.items():
            measured = theirs(name) if callable(run) else ours(program, run)
            seconds[name] += [measured] if turn > 0 else []  # the first is a warm-up
    for queue in commands:
        queue.put(None)
    for process in ranks:
        process.join(60)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"8192 x 8192 f32, {RANKS} ranks, there and back; torch {torch.__version__} over gloo")
    for name, values in seconds.items():
        print(f"  {name:<27} {medians[name] * 1e3:8.1f} ms   ({' '.join(f'{value * 1e3:.0f}' for value in values)})")
    for name, mine, goal in ROWS:
        print(f"| {f'{name} / {mine}':<58} | {f'>= {goal}':>9} | {medians[name] / medians[mine]:9.1f} |")


if __name__ == "__main__":
    main()
