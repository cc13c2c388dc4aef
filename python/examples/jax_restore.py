"""A checkpoint to jax.Arrays on the devices that there are: each device reads its part alone.

XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_PLATFORMS=cpu jax_restore.py
"""

from __future__ import annotations

import os
import tempfile

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reshard
import reshard.jax


def main() -> None:
    devices = np.array(jax.devices()).reshape(-1, 2)
    sharding = NamedSharding(Mesh(devices, ("data", "model")), PartitionSpec("model", "data"))
    weight = np.arange(64 * 32, dtype="f4").reshape(64, 32)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.safetensors")
        reshard.write(path, {"weight": weight, "half": weight.astype(jax.numpy.bfloat16)})
        with reshard.open(path) as checkpoint:
            for name in checkpoint:
                tensor = checkpoint[name]
                array = jax.make_array_from_callback(tensor.shape, sharding, tensor.__getitem__)
                theirs = jax.device_put(weight.astype(tensor.dtype), sharding)
                for ours, part in zip(array.addressable_shards, theirs.addressable_shards):
                    assert ours.device == part.device and (np.asarray(ours.data) == np.asarray(part.data)).all()
            layout = reshard.jax.layout(sharding, weight.shape)
            for shard in array.addressable_shards:
                mine = checkpoint.read("half", layout, shard.device.id)
                assert (mine == np.asarray(shard.data)).all()
    print(f"{len(array.addressable_shards)} devices, {layout}")


if __name__ == "__main__":
    main()
