#!/usr/bin/env python3
"""Checkpoints of state dicts beside PyTorch's distributed checkpoint: dcp.py BENCH DIRECTORY [MIB [PAIRS]].

BENCH is reshard_state_bench; DIRECTORY a place for three times MIB (2048) of data, on the file system that is meant. Both save the
same matrices from 4 ranks, cut by rows, and load the same files (ours) to 3 ranks, cut by columns, into memory that was
written to before. They alternate; each of the PAIRS (5) runs is the median of 3, and the ratios are medians of pairs. PyTorch's ranks are
processes over gloo with a thread each, ours are threads of one process. Files are in the page cache. fsync is in both
saves: ours does it at the end, PyTorch's writers for each file.

Exit status 77 without torch."""
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as mp
    from torch.distributed.checkpoint import FileSystemWriter, HuggingFaceStorageReader, HuggingFaceStorageWriter
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
except ImportError as error:
    print(f'skipped: {error}')
    sys.exit(77)

COLUMNS, TENSORS, REPEATS, SAVERS, LOADERS = 4096, 16, 3, 4, 3


def local(mesh, rows, rank, dim):
    """This rank's part of a matrix whose elements are their numbers, as far as an f32 can be them."""
    size, extent = mesh.size(), (rows, COLUMNS)[dim]
    step = -(-extent // size)
    begin, end = min(rank * step, extent), min((rank + 1) * step, extent)
    numbers = torch.arange(begin * COLUMNS, end * COLUMNS) if dim == 0 else \
        (torch.arange(rows)[:, None] * COLUMNS + torch.arange(begin, end)[None, :])
    return numbers.to(torch.float32).reshape(end - begin if dim == 0 else rows, -1)


def work(rank, size, port, job, path, rows, queue):
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group('gloo', rank=rank, world_size=size)
    mesh = init_device_mesh('cpu', (size,))
    dim = 1 if job == 'load' else 0
    value = local(mesh, rows, rank, dim)
    state = {}
    for i in range(TENSORS):
        part = torch.full_like(value, -1) if job == 'load' else value.clone()
        state[f'layers.{i}.weight'] = DTensor.from_local(part, mesh, [Shard(dim)], run_check=False,
                                                         shape=(rows, COLUMNS), stride=(COLUMNS, 1))
    times = []
    for _ in range(REPEATS):
        if rank == 0 and job != 'load':
            shutil.rmtree(path, ignore_errors=True)
        dist.barrier()
        begin = time.perf_counter()
        if job == 'load':
            dcp.load(state, storage_reader=HuggingFaceStorageReader(path))
        elif job == 'huggingface':
            dcp.save(state, storage_writer=HuggingFaceStorageWriter(path, save_distributed=True))
        else:
            dcp.save(state, storage_writer=FileSystemWriter(path))
        dist.barrier()
        times.append(time.perf_counter() - begin)
        if job == 'load':
            for tensor in state.values():
                assert torch.equal(tensor.to_local(), value)
                tensor.to_local().fill_(-1)
    if rank == 0:
        queue.put(statistics.median(times))
    dist.destroy_process_group()


def theirs(job, path, rows):
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        port = listener.getsockname()[1]
    queue = mp.get_context('spawn').SimpleQueue()
    size = LOADERS if job == 'load' else SAVERS
    mp.spawn(work, (size, port, job, path, rows, queue), nprocs=size)
    return queue.get()


def ours(bench, *arguments):
    text = subprocess.run([bench, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def row(what, goal, ratios, fast):
    print(f'| {what:<52} | {goal:>7} | {statistics.median(ratios):7.2f} | {fast:6.2f} GB/s |', flush=True)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    bench, directory = sys.argv[1:3]
    mib = int(sys.argv[3]) if len(sys.argv) > 3 else 2048
    pairs = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    rows, size = mib * 64 // TENSORS, mib << 20
    place = tempfile.mkdtemp(prefix='reshard-dcp.', dir=directory)
    stored, other = os.path.join(place, 'ours'), os.path.join(place, 'theirs')
    saves, loads = {'huggingface': [], 'filesystem': []}, []
    saved, loaded, extra = [], [], 0
    try:
        for _ in range(pairs):
            for writer, ratios in saves.items():
                shutil.rmtree(stored, ignore_errors=True)
                seconds = statistics.median(r['seconds'] for r in ours(
                    bench, 'save', stored, SAVERS, 'chunk(0)', mib, TENSORS, REPEATS))
                ratios.append(theirs(writer, other, rows) / seconds)
                saved.append(seconds)
                shutil.rmtree(other, ignore_errors=True)
            reports = ours(bench, 'load', stored, LOADERS, 'chunk(1)', REPEATS)
            loaded.append(statistics.median(r['seconds'] for r in reports))
            extra = max(extra, max(r['read_bytes'] / r['bytes'] - 1 for r in reports))
            loads.append(theirs('load', stored, rows) / loaded[-1])
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(f'| {f"{mib} MiB, torch {torch.__version__}":<52} | {"goal":>7} | ratio   | ours        |')
    row('save, 4 ranks: HuggingFaceStorageWriter / ours', '>= 10', saves['huggingface'], size / 1e9 / statistics.median(saved))
    row('save, 4 ranks: FileSystemWriter / ours', '>= 10', saves['filesystem'], size / 1e9 / statistics.median(saved))
    row('load, 4 ranks by rows to 3 by columns: DCP / ours', '>= 1.2', loads, size / 1e9 / statistics.median(loaded))
    print(f'| {"bytes read beyond what is needed":<52} | {"<= 1 %":>7} | {100 * extra:5.2f} % |             |')


if __name__ == '__main__':
    main()
