"""The part of PyTorch that bench/compare/reshard_torch_gpu.py uses, on lists: a stand-in for the test of ./run gpu."""

import time

__version__ = "of the test"
float32, bfloat16, uint8 = "float32", "bfloat16", "uint8"


def device(name):
    return name


class Tensor:
    """Rows of a matrix; a vector is one row."""

    def __init__(self, rows):
        self.rows = rows

    def view(self, height, width):
        flat = self.rows[0]
        assert len(flat) == height * width
        return Tensor([flat[i * width:(i + 1) * width] for i in range(height)])

    def split(self, size, dim=0):
        if dim == 0:
            return [Tensor(self.rows[i:i + size]) for i in range(0, len(self.rows), size)]
        return [Tensor([row[i:i + size] for row in self.rows]) for i in range(0, len(self.rows[0]), size)]

    def contiguous(self):
        return Tensor([list(row) for row in self.rows])

    def index_select(self, dim, order):
        assert dim == 0
        return Tensor([self.rows[i] for i in order.rows[0]])

    def t(self):
        return Tensor([list(column) for column in zip(*self.rows)])

    def to(self, dtype):
        return Tensor([list(row) for row in self.rows])

    def copy_(self, other):
        assert (len(self.rows), len(self.rows[0])) == (len(other.rows), len(other.rows[0]))
        self.rows = [list(row) for row in other.rows]

    def random_(self, least, most):
        return self

    def fill_(self, value):
        pass


def arange(n, dtype=None, device=None):
    return Tensor([list(range(n))])


def empty(*shape, dtype=None, device=None):
    height, width = shape if len(shape) == 2 else (1, shape[0])
    return Tensor([[None] * width for _ in range(height)])


def randperm(n, device=None):
    return Tensor([list(range(n))[::-1]])


def index_select(source, dim, order, out):
    out.copy_(source.index_select(dim, order))


def cat(tensors, dim=0, out=None):
    if out is not None: # vectors
        return out.copy_(Tensor([sum((t.rows[0] for t in tensors), [])]))
    if dim == 0:
        return Tensor([row for t in tensors for row in t.rows])
    return Tensor([sum((t.rows[i] for t in tensors), []) for i in range(len(tensors[0].rows))])


def split_with_sizes_copy(source, sizes, dim, out):
    assert dim == 1 and sum(sizes) == len(source.rows[0])
    for at, tensor in zip([sum(sizes[:i]) for i in range(len(sizes))], out):
        tensor.copy_(Tensor([row[at:at + len(tensor.rows[0])] for row in source.rows]))


def equal(a, b):
    return a.rows == b.rows


class cuda:
    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = time.perf_counter()

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return 1e3 * (end.at - self.at)

    class properties:
        L2_cache_size = 64 << 10

    is_available = staticmethod(lambda: True)
    synchronize = staticmethod(lambda: None)
    get_device_name = staticmethod(lambda index: "a GPU of the test")
    get_device_properties = staticmethod(lambda index: cuda.properties)
