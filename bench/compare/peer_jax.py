"""Rows to columns by jax.device_put to another sharding, over devices of the CPU: peer_jax.py SIDE RANKS, for peers.py."""

import os
import sys
import time

from turns import serve, skip

side, ranks = map(int, sys.argv[1:3])
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={ranks}"
try:
    import jax
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
except ImportError as missing:
    skip(str(missing))

mesh = Mesh(numpy.array(jax.devices()), ("rank",))
whole = numpy.arange(side * side, dtype=numpy.float32).reshape(side, side)
by_rows, by_columns = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("rank", None), (None, "rank")))
rows = jax.block_until_ready(jax.device_put(whole, by_rows))


def move():
    begin = time.perf_counter()
    columns = jax.block_until_ready(jax.device_put(rows, by_columns))
    seconds = time.perf_counter() - begin
    assert columns.sharding == by_columns
    return seconds


assert numpy.array_equal(numpy.asarray(jax.device_put(rows, by_columns)), whole)
del whole
serve(f"jax {jax.__version__}", {"device_put": move})
