"""Rows to columns by slices of numpy arrays, on one thread: peer_numpy.py SIDE RANKS, for peers.py."""

import sys
import time

from turns import serve, skip

try:
    import numpy
except ImportError as missing:
    skip(str(missing))

side, ranks = map(int, sys.argv[1:3])
part = side // ranks
whole = numpy.arange(side * side, dtype=numpy.float32).reshape(side, side)
rows = [whole[r * part:(r + 1) * part].copy() for r in range(ranks)]
columns = [numpy.zeros((side, part), numpy.float32) for _ in range(ranks)]


def move():
    begin = time.perf_counter()
    for to, target in enumerate(columns):
        for at, source in enumerate(rows):
            target[at * part:(at + 1) * part] = source[:, to * part:(to + 1) * part]
    return time.perf_counter() - begin


move()
assert all(numpy.array_equal(columns[r], whole[:, r * part:(r + 1) * part]) for r in range(ranks))
serve(f"numpy {numpy.__version__}", {"slices": move})
