"""Block-cyclic columns to rows over MPI processes of a node: reshard beside MPI_Alltoallw, same answer, both timed.

mpirun -n 4 python alltoallw.py [SIZE]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import reshard


def median(call: Callable[[], None], comm: MPI.Comm, times: int = 9) -> float:
    measured = []
    for _ in range(times):
        comm.Barrier()
        begin = time.perf_counter()
        call()
        comm.Barrier()
        measured.append(time.perf_counter() - begin)
    return sorted(measured)[times // 2]


def main() -> int:
    world = MPI.COMM_WORLD
    n, rank, p = int(sys.argv[1]) if len(sys.argv) > 1 else 1024, world.Get_rank(), world.Get_size()
    block = n // p // 4  # 4 blocks of columns a rank, dealt in turn
    whole_row = np.arange(n, dtype="f4")
    columns = [np.arange(b * block, (b + 1) * block) for b in range(rank, 4 * p, p)]
    mine = np.ascontiguousarray((np.arange(n, dtype="f4")[:, None] * n + whole_row)[:, np.concatenate(columns)])
    theirs = np.zeros((n // p, n), "f4")

    # By MPI: a rank sends rows of all of its columns to their owner, who puts blocks of columns in their places.
    sends = [MPI.FLOAT.Create_subarray([n, n // p], [n // p, n // p], [r * (n // p), 0]).Commit() for r in range(p)]
    receives = []
    for r in range(p):
        column = MPI.FLOAT.Create_vector(4, block, block * p)
        row = column.Create_resized(0, n * 4)
        placed = row.Create_contiguous(n // p).Commit()
        receives.append(placed)
    ones, send_at, receive_at = [1] * p, [0] * p, [r * block * 4 for r in range(p)]
    mpi_time = median(lambda: world.Alltoallw([mine, ones, send_at, sends], [theirs, ones, receive_at, receives]), world)

    src = reshard.Layout.cyclic((n, n), p, [1, p], [1, block])
    dst = reshard.Layout("chunk(0)", (n, n), p)
    comm = reshard.from_mpi(world)
    wrong = 0
    said = [f"MPI_Alltoallw {mpi_time * 1e3:.2f} ms"]
    for name in ("own arrays", "reshard.empty"):
        source, ours = mine, np.zeros((n // p, n), "f4")
        if name == "reshard.empty":
            source = reshard.empty(mine.shape, mine.dtype, comm)
            source[...] = mine
        with reshard.Transfer(reshard.Plan(src, dst, "f32", rank), comm, source, ours) as transfer:
            our_time = median(transfer.execute, world)
            said.append(f"{name} {our_time * 1e3:.2f} ms, {mpi_time / our_time:.2f} x ({transfer.info['path']})")
        wrong += not (ours == theirs).all()
        wrong += not (ours == (np.arange(rank * (n // p), (rank + 1) * (n // p), dtype="f4")[:, None] * n + whole_row)).all()
    wrong = world.allreduce(wrong)
    if rank == 0:
        print("; ".join(said))
        print(f"{wrong} wrong")
    comm.close()
    return int(wrong != 0)


if __name__ == "__main__":
    sys.exit(main())
