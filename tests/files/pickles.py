#!/usr/bin/env python3
"""Files of torch.save, written by Python's own pickle with stand-ins for PyTorch's names: a pickle holds names alone.

pickles.py PROGRAM CASES SEED

Each class that torch.load(weights_only=True) allows, classes that nobody knows, and random nests of both are converted
to shards. Tensors, state.json and what was left out are compared with what a walk in Python says. Tensors below unknown
classes are refused with path and class, and left out where that is asked for."""
import base64
import collections
import copyreg
import datetime
import decimal
import enum
import fractions
import functools
import io
import json
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
import types
import uuid
import zipfile

PROGRAM = sys.argv[1]
failures = 0


def fault(text):
    global failures
    failures += 1
    print("FAULT", text)


# --- Stand-ins ---------------------------------------------------------------------------------------------------------

def module(name):
    parts = name.split(".")
    for i in range(len(parts)):
        whole = ".".join(parts[:i + 1])
        if whole not in sys.modules:
            sys.modules[whole] = types.ModuleType(whole)
    return sys.modules[name]


def named(where, name, made):
    made.__module__, made.__name__, made.__qualname__ = where, name, name
    setattr(module(where), name, made)
    return made


def function(where, name):
    return named(where, name, lambda *arguments, **keywords: None)


def stub(where, name, *bases):
    return named(where, name, type(name, bases or (object,), {}))


REBUILD = {name: function("torch._utils", name) for name in (
    "_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter", "_rebuild_parameter_with_state",
    "_rebuild_sparse_tensor", "_rebuild_qtensor", "_rebuild_meta_tensor_no_storage", "_rebuild_wrapper_subclass",
    "_rebuild_device_tensor_from_numpy", "_rebuild_device_tensor_from_cpu_tensor")}
TYPED = function("torch._tensor", "_rebuild_from_type_v2")
STORAGES = {name: stub("torch", name) for name in ("FloatStorage", "LongStorage", "QInt8Storage")}
UNTYPED = stub("torch.storage", "UntypedStorage")
TENSOR, PARAMETER, SUBCLASS = stub("torch", "Tensor"), stub("torch.nn.parameter", "Parameter"), stub("mine", "Scaled")
LAYOUT, SIZE, DEVICE = function("torch.serialization", "_get_layout"), function("torch", "Size"), function("torch", "device")

ARRAY = function("numpy._core.multiarray", "_reconstruct")


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments

    def __call__(self):
        pass


class Name:
    """Pickled as a name of torch that is no class: a dtype, a scheme."""

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return self.name


# Element's bytes, and the type that safetensors have of them: None of those that nobody knows.
DTYPES = {"complex32": (4, None), "uint3": (1, None), "qint8": (1, None), "float6_e9m9": (2, None),
          "float8_e4m3fnuz": (1, "F8_E4M3FNUZ"), "float8_e5m2fnuz": (1, "F8_E5M2FNUZ"), "float4_e2m1fn_x2": (1, "F4")}
for dtype in ("float32", "int64", "uint16", "per_tensor_affine", *DTYPES):
    setattr(module("torch"), dtype, Name(dtype))
    getattr(module("torch"), dtype).__class__ = type("dtype", (Name,), {"__module__": "torch"})


class Storage:
    def __init__(self, kind, key, count, data):
        self.id, self.key, self.data = ("storage", kind, key, "cpu", count), key, data


class Tensor:
    """kind: how it is pickled. F32 unless untyped: of that dtype."""

    def __init__(self, number, shape, kind="v2", dtype="uint16"):
        self.shape, self.kind, self.dtype = shape, kind, dtype if kind == "v3" else "float32"
        self.width = DTYPES.get(dtype, (2, None))[0] if kind == "v3" else 4
        count = 1
        for extent in shape:
            count *= extent
        self.data = bytes((number * 41 + i * 7) % 251 for i in range(count * self.width))
        self.storage = Storage(UNTYPED if kind == "v3" else STORAGES["FloatStorage"], str(number),
                               len(self.data) if kind == "v3" else count, self.data)
        self.attributes = {}

    def strides(self):
        made, step = [], 1
        for extent in reversed(self.shape):
            made.insert(0, step)
            step *= extent
        return tuple(made)

    def __reduce__(self):
        common = self.storage, 0, Call(SIZE, self.shape), self.strides()
        hooks = collections.OrderedDict()
        if self.kind == "v1":
            return REBUILD["_rebuild_tensor"], common
        if self.kind == "v3":
            return REBUILD["_rebuild_tensor_v3"], (*common, False, hooks, getattr(module("torch"), self.dtype))
        v2 = REBUILD["_rebuild_tensor_v2"], (*common, False, hooks)
        if self.kind == "parameter":
            return REBUILD["_rebuild_parameter"], (Call(*v2[:1], *v2[1]), True, hooks)
        if self.kind == "with_state":
            return REBUILD["_rebuild_parameter_with_state"], (Call(v2[0], *v2[1]), True, hooks, self.attributes)
        if self.kind == "typed":
            return TYPED, (v2[0], PARAMETER if len(self.shape) == 1 else TENSOR, v2[1], self.attributes)
        return v2


class Pickler(pickle._Pickler):
    def persistent_id(self, value):
        return value.id if isinstance(value, Storage) else None

    def save(self, value, save_persistent_id=True):
        if isinstance(value, Storage):
            self.framer.commit_frame()
            storages[value.key] = value.data
            if self.proto >= 1:
                self.save(value.id, save_persistent_id=False)
                self.write(pickle.BINPERSID)
                return
        if isinstance(value, Name):
            self.save_global(value, name=value.name) if self.proto < 4 else self.named(value)
            return
        super().save(value, save_persistent_id)

    def save_global(self, value, name=None):
        if isinstance(value, Name):
            self.write(pickle.GLOBAL + b"torch\n" + value.name.encode() + b"\n")
            return
        super().save_global(value, name)

    def named(self, value):
        self.save("torch")
        self.save(value.name)
        self.write(pickle.STACK_GLOBAL)


Pickler.dispatch = dict(pickle._Pickler.dispatch)
storages = {}


def save(path, value, protocol):
    storages.clear()
    text = io.BytesIO()
    Pickler(text, protocol).dump(value)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", text.getvalue())
        archive.writestr("a/byteorder", b"little")
        for key, data in storages.items():
            archive.writestr("a/data/" + key, data)
        archive.writestr("a/version", b"3\n")


# --- The right answer ----------------------------------------------------------------------------------------------------

PLAIN_DICTS = dict, collections.OrderedDict, collections.defaultdict, collections.Counter


class Expected:
    def __init__(self, value):
        self.tensors, self.leaves, self.left_out, self.hidden = {}, {}, 0, {}
        self.left, self.read = [], set()
        self.walk(value, "")
        seen = set()
        for path, below in self.left:
            self.search(below, path, seen)

    def walk(self, value, path):
        join = lambda key: "%s.%s" % (path, key) if path else str(key)
        if isinstance(value, Tensor):
            self.tensors[path] = value
            self.read.add(id(value))
            if value.kind in ("typed", "with_state"):
                self.left.append((path, value.attributes))
        elif type(value) in PLAIN_DICTS:
            self.left += [(path, v) for v in getattr(value, "__dict__", {}).values()]
            for key, below in value.items():
                if type(key) in (str, int) and key != "":
                    self.walk(below, join(key))
                else:
                    self.left_out += 1
                    self.left += [(path, key), (path, below)]
        elif type(value) in (list, tuple, set, frozenset):
            for i, below in enumerate(value):
                self.walk(below, join(i))
        elif value is None or type(value) in (bool, float, str) or type(value) is int and -2**63 <= value < 2**63:
            self.leaves[path] = value
        else:
            self.left_out += 1
            self.left.append((path, value))

    def search(self, value, path, seen):
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Tensor):
            if id(value) not in self.read:
                self.hidden[id(value)] = value, path
        else:
            for below in inside(value):
                self.search(below, path, seen)


def inside(value):
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        yield from value
    if isinstance(value, Call):
        yield from value.arguments
    if isinstance(value, functools.partial):
        yield from value.args
        yield from value.keywords.values()
    if not isinstance(value, type):
        yield from getattr(value, "__dict__", {}).values()
    for name in getattr(type(value), "__slots__", ()):
        yield getattr(value, name)


def number_of(value):
    if isinstance(value, dict) and "bytes" in value:
        return base64.b64decode(value["bytes"]).decode()
    return float(value["float"]) if isinstance(value, dict) else value


def run(*arguments):
    done = subprocess.run([PROGRAM, "convert", *arguments], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr


def read_shards():
    tensors = {}
    for name in os.listdir("out"):
        if name.endswith(".safetensors"):
            with open("out/" + name, "rb") as file:
                whole = file.read()
            size = struct.unpack("<Q", whole[:8])[0]
            for key, value in json.loads(whole[8:8 + size]).items():
                if key != "__metadata__":
                    begin, end = value["data_offsets"]
                    tensors[key] = value["shape"], whole[8 + size:][begin:end]
    leaves = {}
    if os.path.exists("out/state.json"):
        with open("out/state.json") as file:
            leaves = {key: number_of(value) for key, value in json.load(file)["leaves"].items()}
    return tensors, leaves


def check(what, value, protocol):
    expected = Expected(value)
    save("in.pt", value, protocol)
    shutil.rmtree("out", ignore_errors=True)
    options = ["in.pt", "out", "--dst", "rank(0)", "--json", "report.json"]
    status, said = run(*options)
    if expected.hidden:
        tensor, path = next(iter(expected.hidden.values()))
        if status != 2 or "--leave-out" not in said or "'%s'" % path not in said:
            return fault("%s: a tensor below '%s': status %d, %s" % (what, path, status, said))
        status, said = run(*options, "--leave-out")
    if status != 0:
        return fault("%s: status %d, %s" % (what, status, said))
    with open("report.json") as file:
        report = json.load(file)["source"]
    tensors, leaves = read_shards()
    should = {name: ([*t.shape], t.data) for name, t in expected.tensors.items()}
    hidden = sum(len(t.data) for t, _ in expected.hidden.values())
    if tensors != should:
        fault("%s: tensors %s, not %s" % (what, sorted(tensors), sorted(should)))
    if repr(leaves) != repr({k: leaves.get(k) if v == leaves.get(k, leaves) and type(v) is type(leaves.get(k)) else v
                             for k, v in expected.leaves.items()}):
        fault("%s: leaves %s, not %s" % (what, leaves, expected.leaves))
    got = report["left_out"], report["left_out_tensors"], report["left_out_bytes"]
    if got != (expected.left_out, len(expected.hidden), hidden):
        fault("%s: left out %s, not %s" % (what, got, (expected.left_out, len(expected.hidden), hidden)))


# --- Cases -------------------------------------------------------------------------------------------------------------

class Plain:
    def __init__(self, *values):
        self.__dict__.update(zip("abcdef", values))


class Slots:
    __slots__ = ("x", "y")

    def __init__(self, *values):
        self.x, self.y = (*values, 1, 2)[:2]


class Keywords:
    def __init__(self, *values):
        self.values = values

    def __getnewargs_ex__(self):
        return (1,), {"k": self.values}

    def __new__(cls, *_, **__):
        return object.__new__(cls)

    def __getstate__(self):
        return {"values": self.values}


class Items(dict):
    def __init__(self, *values):
        super().__init__(enumerate(values))


class More(list):
    def __init__(self, *values):
        super().__init__(values)
        self.note = 3


class Twice:
    def __init__(self, *values):
        self.values = values

    def __reduce__(self):
        return copyreg.__newobj__, (Twice,), {"values": self.values}, iter([1, 2]), iter([("k", self.values)])


class Callee:
    """Pickled as a call of what another call gives."""

    def __init__(self, *values):
        self.values = values

    def __reduce__(self):
        return Call(functools.partial, print), self.values


Color = enum.Enum("Color", "RED GREEN")
Pair = collections.namedtuple("Pair", "a b")
for made in (Plain, Slots, Keywords, Items, More, Twice, Color, Pair):
    named("someone.else", made.__name__, made)

UNKNOWN = [Plain, Slots, Keywords, Items, More, Twice, Callee, lambda *v: Pair(*(*v, 1, 2)[:2]),
           lambda *v: collections.deque(v), lambda *v: functools.partial(print, *v, key=list(v)),
           lambda *v: Call(ARRAY, *v)]
VALUES = [complex(1, 2), datetime.datetime(2026, 1, 2), datetime.timedelta(3), decimal.Decimal("1.5"), fractions.Fraction(1, 3),
          uuid.UUID(int=5), Color.RED, range(3), slice(1, 2), b"bytes", bytearray(b"array"), 2**70, -2**64, print, dict,
          Call(DEVICE, "cpu"), Call(LAYOUT, "torch.strided"), module("torch").float32, ..., NotImplemented]
LEAVES = [None, True, False, 0, 1, -1, 255, 256, 65535, 65536, -2**31, 2**31, 2**63 - 1, -2**63, 0.1, 1e300, float("inf"),
          -float("inf"), -0.0, "", "text", "größe", "a.b", "x" * 300]


class Nest:
    def __init__(self, seed):
        self.random, self.tensors = random.Random(seed), []

    def tensor(self):
        if self.tensors and self.random.random() < 0.3:
            return self.random.choice(self.tensors)
        shape = tuple(self.random.randrange(4) for _ in range(self.random.randrange(3)))
        kind = self.random.choice(["v1", "v2", "v2", "v3", "parameter", "typed", "with_state"])
        self.tensors.append(Tensor(len(self.tensors), shape, kind))
        if self.random.random() < 0.2:
            self.tensors[-1].attributes["a"] = self.value(4)
        return self.tensors[-1]

    def value(self, depth):
        kind = self.random.randrange(12)
        if depth >= 5 or kind < 3:
            return self.random.choice(LEAVES)
        if kind < 6:
            return self.tensor()
        if kind == 6:
            return self.random.choice(VALUES)
        below = [self.value(depth + 1) for _ in range(self.random.randrange(4))]
        if kind == 7:
            return self.random.choice(UNKNOWN)(*below)
        if kind == 8:
            return self.random.choice([list, tuple])(below)
        made = self.random.choice([dict, collections.OrderedDict, functools.partial(collections.defaultdict, list),
                                   collections.Counter])()
        for i, value in enumerate(below):
            made[self.random.choice(["k%d" % i, i, "weight%d" % i])] = value
        if self.random.random() < 0.05:
            made[self.random.choice([None, 1.5, True if 1 not in made else None, (1, 2)])] = self.value(depth + 1)
        if type(made) is collections.OrderedDict and self.random.random() < 0.2:
            made._metadata = {"": self.value(depth + 2)}
        return made


def named_cases():
    w = Tensor(0, (2, 3))
    yield "nothing but a tensor below a class", {"w": w, "model": Plain({"deep": [Tensor(1, (4,))]})}
    yield "a tensor at both", {"w": w, "model": Plain(w)}
    for i, value in enumerate(VALUES + LEAVES):
        yield "value %d" % i, {"w": w, "v": value, "l": [value], "s": Plain(value)}
    for i, made in enumerate(UNKNOWN):
        yield "class %d" % i, {"w": w, "v": made(1, "x"), "n": [made(made(2), 3)]}
        yield "class %d with a tensor" % i, {"w": w, "a": {"b": [made(Tensor(1, (3,)), Tensor(2, (2, 2)))]}}
    for kind in ("v1", "v2", "v3", "parameter", "typed", "with_state"):
        yield kind, [Tensor(0, (2, 3), kind), Tensor(1, (3,), kind), Tensor(2, (), kind)]
        held = Tensor(0, (2,), kind)
        held.attributes["main_grad"] = Tensor(1, (2,))
        yield kind + " with attributes", {"w": held}
    yield "a key of no text below a class", {"w": w, "c": Plain({None: {(1, 2): Tensor(1, (3,))}})}
    yield "sets", {"w": w, "s": {3}, "f": frozenset([4]), "e": set()}
    yield "dicts", {"w": w, "o": collections.OrderedDict(a=1, b=Tensor(1, (1,))), "c": collections.Counter([3, 3, 5]),
                    "d": collections.defaultdict(list, k=[1, 2]), "n": collections.defaultdict(None)}
    cycle = Plain()
    cycle.a = [cycle, {"k": cycle}]
    yield "a cycle", {"w": w, "c": cycle}
    yield "two names that are one", {"w": w, "a.b": 1, "a": {"b": 2}, 1: 3, "1": 4}
    deep = Plain(1)
    for _ in range(300):
        deep = Plain(deep)
    sys.setrecursionlimit(100000)
    yield "a deep class", {"w": w, "d": deep}


# Names that torch.load(weights_only=True) takes, without a meaning here: leaves that are left out.
ALLOWED = [("torch", n) for n in ("FloatTensor", "BFloat16Tensor", "QUInt8Storage", "per_channel_symmetric", "uint3", "int4",
                                  "per_channel_affine_float_qparams", "per_tensor_symmetric")]
ALLOWED += [("torch.sparse", "FloatTensor"), ("torch.cuda", "HalfTensor"), ("torch.storage", "TypedStorage"),
            ("torch.distributed.tensor", "DTensor"), ("torch.distributed.tensor._dtensor_spec", "DTensorSpec"),
            ("torch.distributed.tensor._dtensor_spec", "TensorMeta"), ("torch.distributed.device_mesh", "DeviceMesh"),
            ("torch.distributed.tensor.placement_types", "Partial"), ("torch.distributed.tensor.placement_types", "Shard"),
            ("torch.distributed.tensor.placement_types", "Replicate")]


def allowed_cases():
    for where, name in ALLOWED:
        made = stub(where, name)
        yield "%s.%s" % (where, name), {"w": Tensor(0, (2,)), "class": made, "object": made(), "both": [made(), {"n": 1}]}


# --- .distcp directories, with Megatron's classes ------------------------------------------------------------------------

DCP = "torch.distributed.checkpoint.metadata"
METADATA = stub(DCP, "Metadata")
MCORE = stub("megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata", METADATA)
PLAN = stub("megatron.core.dist_checkpointing.strategies.torch", "MCoreSavePlan")
OF_TENSOR, OF_BYTES, CHUNK = (stub(DCP, n) for n in ("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"))
PROPERTIES, INDEX = stub(DCP, "TensorProperties"), stub(DCP, "MetadataIndex")
INFO = stub("torch.distributed.checkpoint.filesystem", "_StorageInfo")
PROPERTIES.__getstate__ = lambda self: (getattr(module("torch"), self.dtype), Call(LAYOUT, "torch.strided"), False, None, False)


def state(made, **fields):
    made.__dict__.update(fields)
    return made


def write_distcp(tensors, leaves):
    """A directory `in`: whole tensors and leaves, each an archive of torch.save."""
    shutil.rmtree("in", ignore_errors=True)
    os.mkdir("in")
    items, places, data = {}, {}, b""
    for name, value in {**tensors, **leaves}.items():
        save("one", value, 2)
        with open("one", "rb") as file:
            archive = file.read()
        offset = Call(SIZE, (0,) * len(value.shape)) if name in tensors else None
        if name in tensors:
            chunk = state(CHUNK(), offsets=offset, sizes=Call(SIZE, value.shape))
            items[name] = state(OF_TENSOR(), properties=state(PROPERTIES(), dtype=value.dtype), size=Call(SIZE, value.shape), chunks=[chunk])
        else:
            items[name] = OF_BYTES()
        places[state(INDEX(), fqn=name, offset=offset, index=None)] = state(
            INFO(), relative_path="__0_0.distcp", offset=len(data), length=len(archive))
        data += archive
    with open("in/__0_0.distcp", "wb") as file:
        file.write(data)
    root = state(MCORE(), state_dict_metadata=items, storage_data=places, planner_data=[PLAN(), state(PLAN(), items=[1])],
                 storage_meta=None, mcore_data={"w": {"nd_reformulated_orig_global_shape": (2, 3)}})
    with open("in/.metadata", "wb") as file:
        Pickler(file, 4).dump(root)


def distcp_cases():
    tensors = {"w": Tensor(0, (2, 3)), "b": Tensor(1, (4,))}
    write_distcp(tensors, {"step": 7, "note": "a text", "lrs": [0.1, {"x": None}], "rng": Plain(1),
                           "list": [Tensor(2, (3,)), 5]})
    shutil.rmtree("out", ignore_errors=True)
    status, said = run("in", "out", "--dst", "rank(0)", "--verify")
    if status != 0:
        return fault("distcp: status %d, %s" % (status, said))
    made, leaves = read_shards()
    should = {**tensors, "list.0": Tensor(2, (3,))}
    if made != {name: ([*t.shape], t.data) for name, t in should.items()}:
        fault("distcp: tensors %s" % sorted(made))
    if leaves != {"step": 7, "note": "a text", "lrs.0": 0.1, "lrs.1.x": None, "list.1": 5}:
        fault("distcp: leaves %s" % leaves)
    write_distcp(tensors, {"step": 7, "extra": {"a": Plain(Tensor(2, (3,)))}})
    status, said = run("in", "x.safetensors")
    if status != 2 or "'extra.a' is of 'someone.else.Plain'" not in said or "1 tensor of 12 bytes" not in said:
        fault("distcp: a hidden tensor: status %d, %s" % (status, said))
    status, said = run("in", "x.safetensors", "--leave-out")
    if status != 0:
        fault("distcp: a hidden tensor left out: status %d, %s" % (status, said))


def read_whole(path):
    with open(path, "rb") as file:
        whole = file.read()
    size = struct.unpack("<Q", whole[:8])[0]
    return {key: (value["dtype"], value["shape"], whole[8 + size:][slice(*value["data_offsets"])])
            for key, value in json.loads(whole[8:8 + size]).items() if key != "__metadata__"}


def dtype_cases():
    """A dtype that nobody knows is an error of whoever moves its tensor; types of safetensors keep their bytes."""
    for dtype, (_, packed) in DTYPES.items():
        known, value = Tensor(0, (2, 3)), Tensor(1, (4, 2), "v3", dtype)
        half = Tensor(1, (2, 2), "v3", dtype)
        half.data, half.storage.data = value.data[:len(value.data) // 2], value.storage.data[:len(value.data) // 2]
        rest = Tensor(1, (2, 2), "v3", dtype)
        rest.data, rest.storage.data = value.data[len(value.data) // 2:], value.storage.data[len(value.data) // 2:]
        save("in.pt", {"k": known, "v": value}, 2)
        write_distcp({"k": known, "v": value}, {"step": 7})
        os.rename("in", "chunks")
        write_distcp({"k": known}, {"v": [value]})
        os.makedirs("ranks", exist_ok=True)
        for r, part in enumerate((half, rest)):
            save("ranks/consolidated.%02d.pth" % r, {"k": known, "v": part}, 2)
        with open("r.rules", "w") as file:
            file.write("v chunk(0)\n* mesh(2;R)\n")
        ranks = "ranks", "--src", "@r.rules", "--ranks", "2"
        for source in (("in.pt",), ("chunks",), ("in",), ranks):
            name = "v.0" if source == ("in",) else "v"
            what = "%s in %s" % (dtype, source[0])
            done = run(source[0], "x.safetensors", "--force", "--json", "report.json", *source[1:])
            if packed is not None:
                shape = [4, 2 * (1 + (packed == "F4"))]
                if done[0] != 0 or read_whole("x.safetensors").get(name) != (packed, shape, value.data):
                    fault("%s: %s" % (what, done))
                continue
            if done[0] != 2 or "tensor '%s': unknown dtype '%s'" % (name, dtype) not in done[1]:
                fault("%s: %s" % (what, done))
            with open("drop.map", "w") as file:
                file.write("drop(%s)\n* = *\n" % name)
            for options in (("--map", "drop.map"), ("--leave-out",)):
                done = run(source[0], "x.safetensors", "--force", "--json", "report.json", *source[1:], *options)
                if done[0] != 0 or read_whole("x.safetensors") != {"k": ("F32", [2, 3], known.data)}:
                    fault("%s, %s: %s" % (what, options, done))
            with open("report.json") as file:
                report = json.load(file)["source"]
            if (report["left_out_tensors"], report["left_out_bytes"]) != (1, len(value.data)):
                fault("%s: left out %s" % (what, report))
        shutil.rmtree("chunks")


def refused_cases():
    """Tensors that are none of this library's, whatever else stands in the file."""
    storage = Storage(STORAGES["QInt8Storage"], "0", 4, bytes(4))
    scheme = module("torch").per_tensor_affine
    values = {"sparse": Call(REBUILD["_rebuild_sparse_tensor"], Call(LAYOUT, "torch.sparse_coo"), (Tensor(1, (1,)),)),
              "quantized": Call(REBUILD["_rebuild_qtensor"], storage, 0, (4,), (1,), (scheme, 0.1, 0), False, {}),
              "meta device": Call(REBUILD["_rebuild_meta_tensor_no_storage"], module("torch").float32, (4,), (1,), False),
              "subclass": Call(TYPED, REBUILD["_rebuild_tensor_v2"], SUBCLASS, (1,), {}),
              "a subclass of": Call(REBUILD["_rebuild_wrapper_subclass"], SUBCLASS, module("torch").float32)}
    for word, value in values.items():
        for options in ((), ("--leave-out",)):
            save("in.pt", {"w": Tensor(2, (2,)), "v": value, "u": Plain(1)}, 2)
            status, said = run("in.pt", "x.safetensors", *options)
            if status != 3 or word not in said or "tensor 'v'" not in said:
                fault("%s: status %d, %s" % (word, status, said))
    save("in.pt", Plain(Tensor(0, (2,))), 2)
    status, said = run("in.pt", "x.safetensors", "--leave-out")
    if status != 2 or "it holds someone.else.Plain, no state dict" not in said:
        fault("a root of a class: status %d, %s" % (status, said))


def main():
    cases, seed = int(sys.argv[2]), int(sys.argv[3])
    for i, (what, value) in enumerate(named_cases()):
        if what == "two names that are one":
            save("in.pt", value, 2)
            shutil.rmtree("out", ignore_errors=True)
            status, said = run("in.pt", "out", "--dst", "rank(0)")
            if status != 0 or read_shards()[1] != {"a.b": 2, "1": 4}:
                fault("%s: status %d, %s, %s" % (what, status, said, read_shards()[1]))
        else:
            check(what, value, 2 + i % 4)
    for what, value in allowed_cases():
        check(what, value, 2)
    refused_cases()
    distcp_cases()
    dtype_cases()
    for i in range(cases):
        nest = Nest(seed + i)
        check("seed %d" % (seed + i), {"first": nest.tensor(), "rest": [nest.value(0) for _ in range(6)]}, 2 + i % 4)
    print("%d random nests from seed %d: %d faults" % (cases, seed, failures))
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
