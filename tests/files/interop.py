"""Files to and fro between numpy, safetensors and `reshard convert`: interop.py PROGRAM, in an empty directory."""

import itertools
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import safetensors
from safetensors import deserialize, serialize

PROGRAM = sys.argv[1]
NUMPY = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]
# Name in the file, name that serialize() takes, bytes; in the order in which safetensors stores them.
SAFETENSORS = [("U64", "uint64", 8), ("I64", "int64", 8), ("F64", "float64", 8), ("C64", "complex64", 8),
               ("F32", "float32", 4), ("U32", "uint32", 4), ("I32", "int32", 4), ("BF16", "bfloat16", 2),
               ("F16", "float16", 2), ("U16", "uint16", 2), ("I16", "int16", 2), ("F8_E8M0", "float8_e8m0fnu", 1),
               ("F8_E4M3", "float8_e4m3fn", 1), ("F8_E5M2", "float8_e5m2", 1), ("I8", "int8", 1), ("U8", "uint8", 1),
               ("BOOL", "bool", 1)]
SHAPES = [(), (1,), (5,), (0,), (4, 6), (3, 0, 2), (2, 3, 4), (2, 1, 3, 1, 2), (1, 2, 1, 2, 1, 2, 1, 3)]
checks = failures = 0


def fault(text):
    global failures
    failures += 1
    print("FAILED:", text)


def check(right, text):
    global checks
    checks += 1
    if not right:
        fault(text)


def convert(*arguments, status=0):
    done = subprocess.run([PROGRAM, "convert", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    check(done.returncode == status, f"convert {arguments}: status {done.returncode}: {done.stderr.strip()[:300]}")
    check(done.stderr.count("\n") == (status != 0), f"convert {arguments}: standard error: {done.stderr[:300]}")
    return done.returncode == 0


def fresh(*paths):
    for path in paths:
        shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.path.exists(path) and os.remove(path)


def data_of(n, seed):
    return np.random.default_rng(seed).integers(0, 256, n, dtype=np.uint8)


def array(dtype, shape, seed=1):
    dtype = np.dtype(dtype)
    data = data_of(int(np.prod(shape)) * dtype.itemsize, seed)
    return (data % 2 if dtype == bool else data).view(dtype).reshape(shape)


# --- npy --------------------------------------------------------------------------------------------------------------
def write_npy(path, a, version):
    with open(path, "wb") as f:
        np.lib.format.write_array(f, a, version=version, allow_pickle=False)


def npy_case(a, version, label):
    fresh("in.npy", "out.npy", "out.safetensors", "shards")
    write_npy("in.npy", a, version)
    if convert("in.npy", "out.npy"):
        b = np.load("out.npy", allow_pickle=False)
        check(b.dtype == a.dtype and b.shape == a.shape and b.tobytes() == a.tobytes(), f"{label}: npy to npy: {b}")
    if convert("in.npy", "shards", "--dst", "flat()", "--ranks", 3) and convert("shards", "out.npy", "--force"):
        b = np.load("out.npy", allow_pickle=False)
        check(b.dtype == a.dtype and b.shape == a.shape and b.tobytes() == a.tobytes(), f"{label}: by shards: {b}")
    if convert("in.npy", "out.safetensors"):
        [(name, t)] = read_safetensors("out.safetensors").items()
        check(name == "tensor" and tuple(t["shape"]) == a.shape and bytes(t["data"]) == a.tobytes(), f"{label}: safetensors")


def npy():
    for dtype, order, version in itertools.product(NUMPY, "CF", [(1, 0), (2, 0), (3, 0)]):
        a = np.array(array(dtype, (4, 6)), order=order)
        if dtype != "c16":
            npy_case(a, version, f"{dtype} {order} {version}")
        else:  # safetensors has no such dtype
            fresh("in.npy", "out.npy")
            write_npy("in.npy", a, version)
            convert("in.npy", "out.npy")
            check(np.load("out.npy").tobytes() == a.tobytes(), f"{dtype} {order} {version}")
            convert("in.npy", "c16.safetensors", status=3)
            convert("in.npy", "c16", "--dst", "chunk(0)", "--ranks", 2, status=3)
    for shape, order in itertools.product(SHAPES, "CF"):
        npy_case(np.array(array("f4", shape), order=order), (1, 0), f"{shape} {order}")
    # A header that numpy's own writer does not write, and reads: other spacing, quotes and order of keys.
    a = array("f4", (2, 3))
    text = b'{"shape":(2,3),"fortran_order" : False,  "descr": "<f4"}\n'
    fresh("odd.npy", "out.npy")
    with open("odd.npy", "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + a.tobytes())
    check(np.load("odd.npy").tobytes() == a.tobytes(), "numpy does not read the odd header")
    if convert("odd.npy", "out.npy"):
        check(np.load("out.npy").tobytes() == a.tobytes(), "odd header")
    for a, status in (a.astype(">f4"), 3), (np.array(["x"]), None), (np.zeros(2, "M8[s]"), None), (np.zeros(2, "f4,i4"), None):
        fresh("in.npy", "bad.npy")
        write_npy("in.npy", a, None)
        if status is None:  # a dtype that this program has not: 2 or 3
            done = subprocess.run([PROGRAM, "convert", "in.npy", "bad.npy"], capture_output=True, text=True)
            check(done.returncode in (2, 3) and done.stderr.count("\n") == 1, f"{a.dtype}: {done.returncode} {done.stderr}")
        else:
            convert("in.npy", "bad.npy", status=status)
        check(not os.path.exists("bad.npy"), f"{a.dtype}: refused, and OUT is there")


# --- safetensors ------------------------------------------------------------------------------------------------------
def write_safetensors(path, tensors, metadata=None):
    """tensors: {name: (name for serialize, shape, data as a uint8 array)}"""
    if hasattr(safetensors, "TensorSpec"):
        specs = {n: safetensors.TensorSpec(dtype=d, shape=s, data_ptr=b.ctypes.data, data_len=b.nbytes)
                 for n, (d, s, b) in tensors.items()}
    else:
        specs = {n: {"dtype": d, "shape": s, "data": b.tobytes()} for n, (d, s, b) in tensors.items()}
    with open(path, "wb") as f:
        f.write(serialize(specs, metadata=metadata))


def read_safetensors(path):
    with open(path, "rb") as f:
        return dict(deserialize(f.read()))


def header(path):
    with open(path, "rb") as f:
        return json.loads(f.read(int.from_bytes(f.read(8), "little")))


def model():
    tensors = {}
    for i, (_, dtype, size) in enumerate(SAFETENSORS):
        for j, shape in enumerate(SHAPES[i % 3 :: 3] + [(4, 6)]):
            data = data_of(int(np.prod(shape)) * size, 100 * i + j)
            tensors[f"{dtype}.{j}"] = (dtype, shape, data % 2 if dtype == "bool" else data)
    for i, name in enumerate(["größe", "层.0", "a/b", "quote\"d", "back\\slash", "tab\t\x01", "\U0001f600", "Z", "z", "~\x7f"]):
        tensors[name] = ("float32", (i,), data_of(4 * i, 7000 + i))
    return tensors


def equal(tensors, found, label):
    check(set(found) == set(tensors), f"{label}: names {set(found) ^ set(tensors)}")
    names = {numpy: name for name, numpy, _ in SAFETENSORS}
    for name in set(found) & set(tensors):
        dtype, shape, data = tensors[name]
        t = found[name]
        right = t["dtype"] == names[dtype] and tuple(t["shape"]) == tuple(shape) and bytes(t["data"]) == data.tobytes()
        check(right, f"{label}: {name}: {t['dtype']} {t['shape']}")


def whole():
    tensors = model()
    write_safetensors("all.safetensors", tensors)
    if convert("all.safetensors", "digests.safetensors"):
        check(set(header("digests.safetensors")["__metadata__"]) <= {"format", "reshard_digests"}, "metadata with digests")
        equal(tensors, read_safetensors("digests.safetensors"), "with digests")
    if convert("all.safetensors", "ours.safetensors", "--no-digests"):
        metadata = header("ours.safetensors").get("__metadata__")
        check(metadata in (None, {"format": "pt"}), f"__metadata__ of a whole file is {metadata}")
        write_safetensors("theirs.safetensors", tensors, metadata)
        ours, theirs = open("ours.safetensors", "rb").read(), open("theirs.safetensors", "rb").read()
        check(ours == theirs, "our whole file is not safetensors' in every byte")
        equal(tensors, read_safetensors("ours.safetensors"), "whole")
    # Files that safetensors reads and never writes: other order, spaces, no padding, more keys in the metadata.
    entries = {"b": {"shape": [2], "data_offsets": [4, 8], "dtype": "I16"}, "__metadata__": {"x": "é\n", "format": "pt"},
               "a": {"data_offsets": [0, 4], "dtype": "F32", "shape": []}}
    text = json.dumps(entries, indent=1).encode()
    with open("odd.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"\1\2\3\4\5\6\7\x08")
    check(len(read_safetensors("odd.safetensors")) == 2, "safetensors does not read the odd header")
    if convert("odd.safetensors", "even.safetensors"):
        found = read_safetensors("even.safetensors")
        check(bytes(found["a"]["data"]) == b"\1\2\3\4" and bytes(found["b"]["data"]) == b"\5\6\7\x08", "odd header")
    write_safetensors("none.safetensors", {})
    if convert("none.safetensors", "none.again.safetensors"):
        check(read_safetensors("none.again.safetensors") == {}, "no tensors")


def index():
    tensors = model()
    for limit in 1, 200, 1000, 10**6:
        fresh("index")
        if not convert("all.safetensors", "index", "--index", limit):
            continue
        described = json.load(open("index/model.safetensors.index.json"))
        check(set(described["weight_map"]) == set(tensors), "index: names")
        total = sum(data.nbytes for _, _, data in tensors.values())
        check(described["metadata"]["total_size"] == total, f"index: total_size {described['metadata']}")
        found = {}
        for path in sorted(set(described["weight_map"].values())):
            part = read_safetensors(os.path.join("index", path))
            check(not set(found) & set(part), "index: a tensor twice")
            check(all(described["weight_map"][name] == path for name in part), f"index: {path} has others")
            bytes_of = sum(len(t["data"]) for t in part.values())
            check(bytes_of <= limit or sum(len(t["data"]) > 0 for t in part.values()) == 1, f"index: {path}: {bytes_of}")
            found.update(part)
        files = set(described["weight_map"].values()) | {"model.safetensors.index.json"}
        check(set(os.listdir("index")) == files, f"index: files {os.listdir('index')}")
        equal(tensors, found, f"index {limit}")
        fresh("back.safetensors")
        if convert("index", "back.safetensors", "--no-digests"):
            check(open("back.safetensors", "rb").read() == open("ours.safetensors", "rb").read(), f"index {limit}: back")
    # A directory as Hugging Face has it, with an index and without one.
    os.mkdir("hub")
    half = dict(itertools.islice(tensors.items(), len(tensors) // 2))
    rest = {name: t for name, t in tensors.items() if name not in half}
    write_safetensors("hub/model-00001-of-00002.safetensors", half, {"format": "pt"})
    write_safetensors("hub/model-00002-of-00002.safetensors", rest, {"format": "pt"})
    weights = {name: f"model-0000{1 if name in half else 2}-of-00002.safetensors" for name in tensors}
    with open("hub/config.json", "w") as f:
        json.dump({"architectures": []}, f)
    for indexed in False, True:
        if indexed:
            with open("hub/model.safetensors.index.json", "w") as f:
                json.dump({"metadata": {"total_size": 1}, "weight_map": weights}, f, indent=2)
        fresh("hub.safetensors")
        if convert("hub", "hub.safetensors"):
            equal(tensors, read_safetensors("hub.safetensors"), f"hub, index {indexed}")


# --- shards, put together from the metadata alone -----------------------------------------------------------------------
def shards():
    tensors = {}
    for i, (_, dtype, size) in enumerate(SAFETENSORS):
        data = data_of(9 * 10 * size, i)
        tensors[dtype] = (dtype, (9, 10), data % 2 if dtype == "bool" else data)
    write_safetensors("rect.safetensors", tensors)
    for layout in ("chunk(0)", "chunk(1)", "mesh(2x2;S0,S1)", "mesh(2x2;R,S1)", "mesh(2x2;S0,S0*2)", "cyclic(2x2;2x3)", "flat()", "rank(3)",
                   "boxes(replicated;0:[0,0]+[9,4];2:[0,4]+[9,6];3:[0,4]+[9,6])"):
        fresh("cut")
        if not convert("rect.safetensors", "cut", "--dst", layout, "--ranks", 4):
            continue
        sizes = {name: size for name, _, size in SAFETENSORS}
        whole = {name: np.zeros((9, 10, data.size // 90), np.uint8) for name, (_, _, data) in tensors.items()}
        filled = {name: np.zeros((9, 10), bool) for name in tensors}
        described = None
        for path in sorted(os.listdir("cut")):
            metadata = header(os.path.join("cut", path))["__metadata__"]
            check(metadata["format"] == "pt" and metadata["DCP_VERSION"] == "1.0", f"{layout}: {metadata}")
            info = json.loads(metadata["DCP_SHARDING_INFO"])
            check(json.dumps(info) == metadata["DCP_SHARDING_INFO"], f"{layout}: not as Python writes it")
            own = json.loads(metadata["reshard"])
            check(described is None or own == described or "intervals" in own, f"{layout}: the entries 'reshard' differ")
            described = own
            part = read_safetensors(os.path.join("cut", path))
            check(set(part) == set(info), f"{layout}: {path}: names")
            for name, t in part.items():
                data = np.frombuffer(t["data"], np.uint8).reshape(*t["shape"], sizes[t["dtype"]])
                where = tuple(slice(o, o + n) for o, n in zip(info[name]["saved_offsets"], t["shape"]))
                whole[name][where] = data
                filled[name][where] = True
        for name, (_, _, data) in tensors.items():
            check(whole[name].tobytes() == data.tobytes() and filled[name].all(), f"{layout}: {name}")
        check(described["world"] == 4 and described["files"] == sorted(os.listdir("cut")), f"{layout}: {described}")
        check(described["shapes"] == {name: [9, 10] for name in tensors}, f"{layout}: {described['shapes']}")
        check(set(described["layout"]) == set(tensors), f"{layout}: {described['layout']}")
        fresh("rect.again.safetensors")
        if convert("cut", "rect.again.safetensors"):
            equal(tensors, read_safetensors("rect.again.safetensors"), layout)


for part in npy, whole, index, shards:
    part()
print(f"numpy {np.__version__}, safetensors {safetensors.__version__}: {checks} checks, {failures} failed")
sys.exit(failures != 0)
