"""Layouts of JAX's shardings, against its own devices_indices_map, where RESHARD_TEST_PYTHON or this one has jax."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = """
import itertools, random
import jax, numpy as np, reshard.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
rng, checked = random.Random(3), 0
def same(layout, sharding, shape):
    for device, index in sharding.devices_indices_map(shape).items():
        for d, (part, n) in enumerate(zip(index, shape)):
            begin, end, _ = part.indices(n)
            assert layout.intervals(device.id, 0, d) == [(begin, end)], (layout, sharding, device, d)
for extents in ((8,), (2, 4), (4, 2), (2, 2, 2)):
    for _ in range(3):
        devices = np.array(jax.devices())
        rng.shuffle(devices)
        names = 'abc'[:len(extents)]
        mesh = Mesh(devices.reshape(extents), tuple(names))
        parts = [None, *names, *itertools.permutations(names, 2)]
        for one, two in itertools.product(parts, repeat=2):
            used = [*(one or ()), *(two or ())]
            if len(set(used)) != len(used):
                continue
            sharding = NamedSharding(mesh, P(one, two))
            same(reshard.jax.layout(sharding, (16, 32)), sharding, (16, 32))
            checked += 1
one = SingleDeviceSharding(jax.devices()[3])
same(reshard.jax.layout(one, (4, 5)), one, (4, 5))
print(checked, 'shardings')
one = reshard.Layout("rank(0)", (4, 8), 1)
for dtype in ("float32", "bfloat16"):
    source, out = jax.numpy.ones((4, 8), dtype), np.zeros((4, 8), dtype)
    plan, comm = reshard.Plan(one, one, dtype, 0), reshard.local(1)
    reshard.Transfer(plan, comm, source, out).execute()
    assert (out == 1).all()
    try:
        reshard.Transfer(plan, comm, out, source)
        raise SystemExit("a jax.Array was taken as a destination")
    except reshard.InvalidError as error:
        assert "read-only" in str(error), error
"""


def interpreter() -> str:
    for one in (os.environ.get("RESHARD_TEST_PYTHON"), sys.executable):
        if one and subprocess.run([one, "-c", "import jax, reshard"], capture_output=True).returncode == 0:
            return one
    pytest.skip("no jax beside reshard: RESHARD_TEST_PYTHON names an interpreter that has it")


@pytest.mark.parametrize("program", [CHECK, "example"])
def test_shardings_have_the_indices_that_jax_says(program: str, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "python" / "examples" / "jax_restore.py"
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [interpreter(), os.fspath(example)] if program == "example" else [interpreter(), "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
