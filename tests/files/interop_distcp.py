"""PyTorch's own checkpoints read by `reshard convert`: interop_distcp.py PROGRAM, in an empty directory. Four processes
with gloo save .distcp directories; files of torch.save; kinds that are refused, whose error's Python must work."""

import collections
import os
import pickle
import re
import subprocess
import sys
import warnings

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.format_utils
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint._extension import StreamTransformExtension
from torch.distributed.checkpoint.filesystem import SerializationFormat
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

warnings.simplefilter("ignore")
PROGRAM = sys.argv[1]
WORLD = 4
DTYPES = [torch.uint64, torch.int64, torch.float64, torch.complex64, torch.float32, torch.uint32, torch.int32,
          torch.bfloat16, torch.float16, torch.uint16, torch.int16, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.float8_e8m0fnu, torch.int8, torch.uint8, torch.bool]
SHAPES = [(), (1,), (0,), (7,), (9, 10), (3, 0), (1, 5), (2, 3, 5), (1, 1, 2, 1, 3)]
PLACEMENTS = [[Shard(0), Replicate()], [Shard(1), Shard(0)], [Shard(1), Shard(1)], [Replicate(), Replicate()],
              [_StridedShard(0, split_factor=2), Shard(0)]]
WRITERS = [{}, {"thread_count": 3}, {"single_file_per_rank": False}]


def run(*arguments):
    return subprocess.run([PROGRAM, "convert", *map(str, arguments)], capture_output=True, text=True, timeout=60)


def convert(source, out, *arguments):
    done = run(source, out, "--force", "--verify", *arguments)
    assert done.returncode == 0, f"convert {source}: {done.stderr}"
    return done.stdout


def value(shape, dtype, seed):
    size = torch.empty((), dtype=dtype).element_size()
    numel = 1
    for extent in shape:
        numel *= extent
    data = torch.randint(0, 256, (numel * size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return (data % 2).bool().reshape(shape) if dtype == torch.bool else data.view(dtype).reshape(shape)


def model():
    tensors = {f"{str(dtype).split('.')[1]}.weight": value((9, 10), dtype, i) for i, dtype in enumerate(DTYPES)}
    tensors |= {f"shape.{'x'.join(map(str, shape))}": value(shape, torch.float32, 100 + i) for i, shape in enumerate(SHAPES)}
    return tensors | {"größe.层 \"x\"": value((5, 3), torch.float32, 50), "few": value((2, 2), torch.float64, 51)}


def raw(t):
    return t.contiguous().view(-1).view(torch.uint8)


def check(path, whole, what):
    back = load_file(path)
    assert set(back) == set(whole), f"{what}: {set(back) ^ set(whole)}"
    for name, t in whole.items():
        assert back[name].dtype == t.dtype and back[name].shape == t.shape and raw(back[name]).equal(raw(t)), f"{what}: {name}"


def writers(i):
    """All kinds for one of the placements, the default for the others."""
    return range(len(WRITERS) if i == 1 else 1)


def work(rank, whole):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29589")
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (2, 2))
    for i, placements in enumerate(PLACEMENTS):
        state = {}
        for name, t in whole.items():
            fits = all(p.is_replicate() or p.dim < t.ndim for p in placements)
            state[name] = distribute_tensor(t, mesh, placements, src_data_rank=None) if fits else t
        state["nested"] = {"list": [state.pop("few"), 3, {"text": "x"}]}
        for j in writers(i):
            dcp.save(state, storage_writer=FileSystemWriter(f"d-{i}-{j}", **WRITERS[j]))
    dist.destroy_process_group()


def sharded():
    whole = model()
    torch.multiprocessing.spawn(work, (whole,), nprocs=WORLD)
    whole["nested.list.0"] = whole.pop("few")
    for i, _ in enumerate(PLACEMENTS):
        for j in writers(i):
            said = convert(f"d-{i}-{j}", "out.safetensors")
            assert "left out      2 leaves" in said, said
            check("out.safetensors", whole, f"placements {i}, writer {j}")
    with open("d-1-0/.metadata", "rb") as file:
        metadata = pickle.load(file)
    for protocol in 2, 3, 4, 5:
        with open("d-1-0/.metadata", "wb") as file:
            pickle.dump(metadata, file, protocol=protocol)
        convert("d-1-0", "out.safetensors")
        check("out.safetensors", whole, f"protocol {protocol}")


def files():
    base = value((40,), torch.float32, 1)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    flat = model()
    cases = {
        "flat": (flat, flat),
        "model": (net.state_dict(), net.state_dict()),
        "shared": ({"a": base, "b": [base[3:9].view(2, 3), base[::1]]}, {"a": base, "b.0": base[3:9].view(2, 3), "b.1": base}),
        "fortran": ({"t": base[:6].view(2, 3).t(), "u": base[:24].view(2, 3, 4).permute(2, 1, 0)},) * 2,
        "alone": (base, {"tensor": base}),
        "parameter": ([torch.nn.Parameter(base)], {"0": base}),
        "training": ({"model": net.state_dict(), "optim": optimizer.state_dict(), "epoch": 3},
                     {f"model.{k}": v for k, v in net.state_dict().items()}
                     | {f"optim.state.{i}.{k}": v for i, s in optimizer.state_dict()["state"].items() for k, v in s.items()}),
    }
    for name, (saved, whole) in cases.items():
        torch.save(saved, f"{name}.pt")
        convert(f"{name}.pt", "out.safetensors")
        check("out.safetensors", whole, name)


class Same(StreamTransformExtension):
    """Changes nothing, and says that it was there."""

    @staticmethod
    def registry_name():
        return "stream.same"

    @staticmethod
    def from_descriptor(version):
        return Same()

    def get_descriptor(self):
        return "stream.same/1"

    def transform_to(self, output):
        return output

    def transform_from(self, source):
        return source


def refuse(path, status, text):
    """The error; with Python behind it, that is run."""
    done = run(path, "refused.safetensors")
    assert done.returncode == status and text in done.stderr, f"{path}: status {done.returncode}: {done.stderr}"
    assert not os.path.exists("refused.safetensors") and done.stderr.count("\n") == 1
    return done.stderr


def follow(error, path, whole):
    lines = re.sub(r" \(tensor '.*'\)$", "", error.strip().split("in Python: ")[1])
    exec(lines.replace("PATH", repr(path)).replace("OUT", "'out.safetensors'"), {"torch": torch, "safetensors": safetensors})
    check("out.safetensors", whole, path)


def kinds():
    t = value((4, 6), torch.float32, 1)
    columns = {"w": t[:, ::2]}
    torch.save(columns, "strided.pt")
    follow(refuse("strided.pt", 3, "tensor 'w' is not contiguous (shape 4x3, strides 6x2)"), "strided.pt", {"w": t[:, ::2].contiguous()})
    torch.save({"w": t}, "old.pt", _use_new_zipfile_serialization=False)
    follow(refuse("old.pt", 3, "before version 1.6"), "old.pt", {"w": t})
    torch.jit.script(torch.nn.Linear(2, 3)).save("script.pt")
    follow(refuse("script.pt", 3, "TorchScript"), "script.pt", torch.jit.load("script.pt").state_dict())
    odd = {"sparse": (torch.eye(3).to_sparse(), torch.eye(3)),
           "a conjugate view": (value((3,), torch.complex64, 1).conj(), value((3,), torch.complex64, 1).conj().resolve_conj()),
           "a negative view": (torch._neg_view(t), -t),
           "quantized": (torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8), torch.zeros(2)),
           "without data": (torch.ones(2, device="meta"), None), "complex32": (torch.zeros(2, dtype=torch.complex32), None)}
    for name, (made, plain) in odd.items():
        torch.save({"x": made}, "kind.pt")
        error = refuse("kind.pt", 2 if name == "complex32" else 3, name)  # a dtype that nobody knows is bad input
        if plain is not None:
            follow(error, "kind.pt", {"x": plain})
    torch.save({"x": collections.Counter("aab"), "f": os.system, "w": t}, "call.pt")
    convert("call.pt", "out.safetensors")
    check("out.safetensors", {"w": t}, "what the file names besides tensors is a value without meaning")
    torch.save(3, "number.pt")
    refuse("number.pt", 2, "no state dict")

    def save(path, state, **options):
        dcp.save(state, storage_writer=FileSystemWriter(path, **options), no_dist=True)

    save("transformed", {"w": t}, _extensions=[Same()])
    error = refuse("transformed", 3, "'stream.same/1'")
    torch.distributed.checkpoint._extension.ExtensionRegistry.__init__.__globals__["ZStandard"] = Same
    follow(error, "transformed", {"w": t})
    save("st", {"w": t, "n": 1}, serialization_format=SerializationFormat.SAFETENSORS)
    refuse("st", 3, "SerializationFormat.SAFETENSORS")
    save("st1", {"w": t, "v": t + 1}, serialization_format=SerializationFormat.SAFETENSORS)
    refuse("st1", 3, "rename the .distcp files to .safetensors")
    os.rename("st1/__0_0.distcp", "st1/a.safetensors")
    os.remove("st1/.metadata")
    convert("st1", "out.safetensors")
    check("out.safetensors", {"w": t, "v": t + 1}, "SerializationFormat.SAFETENSORS, renamed")
    save("columns", {"w": value((4, 6), torch.float32, 2).t()})
    follow(refuse("columns", 3, "Fortran order"), "columns", {"w": value((4, 6), torch.float32, 2).t()})


def main():
    sharded()
    files()
    kinds()
    print(f"torch {torch.__version__}: {len(PLACEMENTS) + len(WRITERS) - 1} .distcp directories, files of torch.save, and what is refused")


if __name__ == "__main__":
    main()
