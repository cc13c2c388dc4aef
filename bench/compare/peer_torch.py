"""PyTorch's reshards and distributed checkpoints over gloo: peer_torch.py SIDE RANKS DIRECTORY MIB, for peers.py.

Ranks are processes. DTensor.redistribute and ShardedTensor.reshard go from rows to columns of SIDE x SIDE f32 and back.
The checkpoint is MIB of matrices whose elements are their numbers, saved by all ranks, by rows, in DIRECTORY/theirs; "load"
reads DIRECTORY/ours, which is ours, by all ranks but one, by columns, into memory that was written to before."""

import os
import shutil
import socket
import sys
import time
import warnings

from turns import serve, skip

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as multiprocessing
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    from torch.distributed.checkpoint import FileSystemWriter, HuggingFaceStorageReader, HuggingFaceStorageWriter
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, ones
except ImportError as missing:
    skip(str(missing))

COLUMNS, TENSORS = 4096, 16


def redistribute(side, mesh):
    tensor = ones(side, side, device_mesh=mesh, placements=[Shard(0)])
    return lambda: tensor.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Shard(0)])


def reshard(side, mesh):
    specs = [ChunkShardingSpec(dim=dim, placements=[f"rank:{r}/cpu" for r in range(mesh.size())]) for dim in (0, 1)]
    tensor = sharded_tensor.ones(specs[0], side, side)

    def there_and_back():
        tensor.reshard(specs[1])
        tensor.reshard(specs[0])
    return there_and_back


def cut(mesh, rows, dim):
    """This rank's part of a matrix whose elements are their numbers, as far as an f32 can be them."""
    extent = (rows, COLUMNS)[dim]
    step = -(-extent // mesh.size())
    begin, end = (min(i * step, extent) for i in (mesh.get_local_rank(), mesh.get_local_rank() + 1))
    numbers = torch.arange(begin * COLUMNS, end * COLUMNS) if dim == 0 else \
        (torch.arange(rows)[:, None] * COLUMNS + torch.arange(begin, end)[None, :])
    return numbers.to(torch.float32).reshape(end - begin if dim == 0 else rows, -1)


def state_of(mesh, rows, dim, value):
    return {f"layers.{i}.weight": DTensor.from_local(value.clone(), mesh, [Shard(dim)], run_check=False, shape=(rows, COLUMNS),
                                                     stride=(COLUMNS, 1)) for i in range(TENSORS)}


def save(mesh, path, rows, writer):
    """Returns the save; the files of the one before are removed outside of the time."""
    state = state_of(mesh, rows, 0, cut(mesh, rows, 0))

    def prepare():
        if mesh.get_local_rank() == 0:
            shutil.rmtree(path, ignore_errors=True)
    return lambda: dcp.save(state, storage_writer=writer(path)), prepare


def load(mesh, path, rows):
    """Returns the load, for the ranks of the mesh; those that are not in it have nothing to do."""
    if mesh.get_coordinate() is None:
        return (lambda: None), (lambda: None)
    value = cut(mesh, rows, 1)
    state = state_of(mesh, rows, 1, value)
    loaded = []

    def prepare():
        for tensor in state.values():
            assert not loaded or torch.equal(tensor.to_local(), value)
            tensor.to_local().fill_(-1)
        loaded.append(True)
    return lambda: dcp.load(state, storage_reader=HuggingFaceStorageReader(path), process_group=mesh.get_group()), prepare


def rank_main(rank, port, side, ranks, directory, mib, commands, times):
    warnings.simplefilter("ignore")  # ShardedTensor is deprecated
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    mesh, fewer = init_device_mesh("cpu", (ranks,)), DeviceMesh("cpu", list(range(ranks - 1)))
    theirs, rows = os.path.join(directory, "theirs"), mib * 64 // TENSORS
    make = {  # when it is first asked for: a checkpoint needs memory
        "DTensor.redistribute": lambda: (redistribute(side, mesh), lambda: None),
        "ShardedTensor.reshard": lambda: (reshard(side, mesh), lambda: None),
        "save, HuggingFaceStorageWriter":
            lambda: save(mesh, theirs, rows, lambda path: HuggingFaceStorageWriter(path, save_distributed=True)),
        "save, FileSystemWriter": lambda: save(mesh, theirs, rows, FileSystemWriter),
        "load": lambda: load(fewer, os.path.join(directory, "ours"), rows),
    }
    made = {}
    while (name := commands[rank].get()) is not None:
        work, prepare = made[name] = made.get(name) or make[name]()
        prepare()
        dist.barrier()
        begin = time.perf_counter()
        work()
        dist.barrier()
        if rank == 0:
            times.put(time.perf_counter() - begin)
    dist.destroy_process_group()


def main():
    side, ranks, mib = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    commands, times = [context.Queue() for _ in range(ranks)], context.Queue()
    processes = [context.Process(target=rank_main, args=(r, port, side, ranks, sys.argv[3], mib, commands, times), daemon=True)
                 for r in range(ranks)]
    for process in processes:
        process.start()

    def run(name):
        for queue in commands:
            queue.put(name)
        while times.empty():
            if any(process.exitcode is not None for process in processes):
                sys.exit("a rank of PyTorch's has ended")
            time.sleep(0.01)
        return times.get()

    serve(f"torch {torch.__version__}, gloo", {name: lambda name=name: run(name) for name in (
        "DTensor.redistribute", "ShardedTensor.reshard", "save, HuggingFaceStorageWriter", "save, FileSystemWriter", "load")})
    for queue in commands:
        queue.put(None)
    for process in processes:
        process.join(60)


if __name__ == "__main__":
    main()
