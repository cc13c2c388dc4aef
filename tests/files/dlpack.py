"""DLPack in and out of libreshard.so, beside NumPy, and PyTorch where it is installed: both forms of the managed tensor, every
dtype, strides, read-only arrays, no copy, deleters called once.

    python dlpack.py build/libreshard.so
"""

import ctypes
import gc
import sys
import weakref
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32
from ctypes import c_uint64, c_void_p, py_object, pythonapi

import numpy as np

try:
    import torch
except ImportError:
    torch = None

lib = ctypes.CDLL(sys.argv[1])
lib.reshard_last_error.restype = c_char_p
DTYPES = ["none", "bool", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f8_e4m3", "f8_e5m2", "f8_e8m0", "f16", "bf16",
          "f32", "f64", "c64", "c128"]
INVALID, UNSUPPORTED = 1, 2


class Info(ctypes.Structure):
    _fields_ = [("dtype", c_int), ("ndim", c_int), ("shape", c_int64 * 8), ("strides", c_int64 * 8), ("elements", c_int64),
                ("data", c_void_p), ("requires_grad", c_int), ("pin_memory", c_int), ("contiguous", c_int),
                ("overlapping", c_int), ("offset", c_int64), ("storage_bytes", c_size_t), ("device_type", c_int),
                ("device_index", c_int)]


class DLTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_index", c_int32), ("ndim", c_int32),
                ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("owner", c_void_p), ("deleter", CFUNCTYPE(None, c_void_p))]


class Versioned(ctypes.Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("owner", c_void_p), ("deleter", CFUNCTYPE(None, c_void_p)),
                ("flags", c_uint64), ("tensor", DLTensor)]


pythonapi.PyCapsule_New.restype = py_object
pythonapi.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]
pythonapi.PyCapsule_GetPointer.restype = c_void_p
pythonapi.PyCapsule_GetPointer.argtypes = [py_object, c_char_p]
pythonapi.PyCapsule_SetName.argtypes = [py_object, c_char_p]
pythonapi.PyCapsule_IsValid.argtypes = [py_object, c_char_p]
NAMES = [(b"dltensor", b"used_dltensor"), (b"dltensor_versioned", b"used_dltensor_versioned")]

failures = checks = 0


def check(fine, what):
    global failures, checks
    checks += 1
    if not fine:
        failures += 1
        print("FAILED:", what)


def good(status, what):
    check(status == 0, f"{what}: {lib.reshard_last_error().decode()}")
    return status == 0


class Tensor:
    """One of ours."""

    def __init__(self, handle):
        self.handle = handle

    def info(self):
        info = Info()
        good(lib.reshard_tensor_get_info(self.handle, byref(info)), "info")
        return info

    def release(self):
        lib.reshard_tensor_release(self.handle)


def create(dtype, shape):
    handle = c_void_p()
    good(lib.reshard_tensor_create(DTYPES.index(dtype), len(shape), (c_int64 * 8)(*shape), byref(handle)), "create")
    return Tensor(handle)


def is_versioned(capsule):
    return bool(pythonapi.PyCapsule_IsValid(capsule, NAMES[1][0]))


def take(capsule, read_only=0):
    """A capsule becomes one of our tensors; or the status that it was refused with, and the capsule is as it was."""
    versioned = is_versioned(capsule)
    fresh, used = NAMES[versioned]
    handle = c_void_p()
    pointer = c_void_p(pythonapi.PyCapsule_GetPointer(capsule, fresh))
    status = lib.reshard_tensor_from_dlpack(pointer, int(versioned), read_only, byref(handle))
    if status != 0:
        return status
    pythonapi.PyCapsule_SetName(capsule, used)
    return Tensor(handle)


class Exported:
    """An argument of another program's from_dlpack: a new managed tensor of one of ours, in one form."""

    def __init__(self, tensor, versioned):
        self.tensor, self.versioned, self.capsules = tensor, versioned, []

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, stream=None, max_version=None, dl_device=None, copy=None):
        managed = c_void_p()
        good(lib.reshard_tensor_to_dlpack(self.tensor.handle, int(self.versioned), byref(managed)), "export")
        capsule = pythonapi.PyCapsule_New(managed, NAMES[self.versioned][0], None)
        self.capsules.append(capsule)
        return capsule


def occupants(tensor):
    """Is somebody else in the tensor's storage? Its sole occupant may free it; it is allocated again."""
    size = c_size_t(tensor.info().storage_bytes)
    freed = c_int()
    status = lib.reshard_storage_free(tensor.handle, None, byref(freed))
    if status == 0 and size.value > 0:
        good(lib.reshard_storage_alloc(tensor.handle, size, None, None), "alloc")
    return status != 0


def same(info, array, dtype, what):
    """Our description of an array that NumPy has, without a copy."""
    strides = [s // array.itemsize for s in array.strides]
    check(DTYPES[info.dtype] == dtype, f"{what}: dtype {DTYPES[info.dtype]}")
    check(list(info.shape[:info.ndim]) == list(array.shape) and info.ndim == array.ndim, f"{what}: shape")
    check(info.elements == array.size and info.device_type == 0, f"{what}: elements, device")
    if array.size > 0:
        check(all(n <= 1 or a == b for n, a, b in zip(array.shape, info.strides, strides)), f"{what}: strides")
        check(info.data == array.ctypes.data, f"{what}: another address")


NUMPY = {"bool": "?", "u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2", "u32": "u4", "i32": "i4", "u64": "u8", "i64": "i8",
         "f16": "f2", "f32": "f4", "f64": "f8", "c64": "c8", "c128": "c16"}


class Array(np.ndarray):
    """One that can be watched."""


def capsules(array):
    """Capsules that NumPy gives of an array: the unversioned form, and the versioned one where it knows that."""
    yield lambda: array.__dlpack__()
    try:
        array.__dlpack__(max_version=(1, 0))
    except TypeError:
        return
    yield lambda: array.__dlpack__(max_version=(1, 0))


def from_numpy():
    forms = set()
    for dtype, name in NUMPY.items():
        base = np.arange(2 * 3 * 4).reshape(2, 3, 4).astype(name)
        for view in (base, base[:, 1:, ::2], base.transpose(2, 0, 1), base[0, 0, 0, ...], base[:, :0], base[1]):
            for capsule_of in capsules(view):
                array = view.view(Array)
                before = weakref.ref(array)
                capsule = array.__dlpack__(max_version=(1, 0)) if is_versioned(capsule_of()) else array.__dlpack__()
                forms.add(is_versioned(capsule))
                tensor = take(capsule)
                if not isinstance(tensor, Tensor):
                    check(False, f"{dtype} {view.shape}: {lib.reshard_last_error().decode()}")
                    continue
                same(tensor.info(), array, dtype, f"{dtype} {view.shape} from NumPy")
                check(occupants(tensor) or view.size == 0, "lent memory can be freed")
                del array, capsule
                gc.collect()
                check(before() is not None, "the array has gone while a tensor is over it")
                tensor.release()
                check(before() is None, "the deleter was not called")
    return forms


def refused():
    array = np.arange(6.0)
    check(take(array[::-1].__dlpack__()) == INVALID, "negative strides")
    check(b"stride -1" in lib.reshard_last_error(), lib.reshard_last_error())
    for form in capsules(array):
        capsule = form()
        fresh, _ = NAMES[is_versioned(capsule)]
        kind = Versioned if is_versioned(capsule) else Managed
        managed = kind.from_address(pythonapi.PyCapsule_GetPointer(capsule, fresh))
        for field, value, status in (("lanes", 2, UNSUPPORTED), ("bits", 24, UNSUPPORTED), ("code", 3, UNSUPPORTED),
                                     ("device_type", 10, UNSUPPORTED), ("ndim", 9, INVALID), ("ndim", -1, INVALID),
                                     ("data", None, INVALID)):
            before = getattr(managed.tensor, field)
            setattr(managed.tensor, field, value)
            check(take(capsule) == status, f"{field} {value}: {lib.reshard_last_error().decode()}")
            setattr(managed.tensor, field, before)
        if kind is Versioned:
            managed.major = 2
            check(take(capsule) == UNSUPPORTED, "version 2")
            check(b"version 2." in lib.reshard_last_error(), lib.reshard_last_error())
            managed.major = 1
            managed.minor = 77  # a later one that adds values
        tensor = take(capsule)  # after all that it is still whole
        check(isinstance(tensor, Tensor), lib.reshard_last_error())
        tensor.release()


def read_only():
    array = np.arange(6.0)
    array.flags.writeable = False
    forms = list(capsules(array.copy()))
    if len(forms) < 2:
        return
    capsule = array.__dlpack__(max_version=(1, 0))
    check(take(capsule) == INVALID and b"read-only" in lib.reshard_last_error(), "a read-only array comes in")
    tensor = take(capsule, read_only=1)
    check(isinstance(tensor, Tensor), lib.reshard_last_error())
    managed = c_void_p()
    check(lib.reshard_tensor_to_dlpack(tensor.handle, 0, byref(managed)) == UNSUPPORTED, "unversioned, read-only")
    back = np.from_dlpack(Exported(tensor, True))
    check(not back.flags.writeable and np.shares_memory(back, array), "read-only is lost on the way back")
    del back
    gc.collect()
    tensor.release()


def to_numpy():
    for dtype, name in NUMPY.items():
        for versioned in (False, True):
            for shape in ((3, 4), (), (5, 0), (2, 1, 3)):
                tensor = create(dtype, shape)
                try:
                    array = np.from_dlpack(Exported(tensor, versioned))
                except (BufferError, RuntimeError) as error:
                    check(False, f"{dtype} {shape} to NumPy: {error}")
                    continue
                check(array.dtype == np.dtype(name) and array.shape == shape, f"{dtype} {shape} to NumPy")
                same(tensor.info(), array, dtype, f"{dtype} {shape} to NumPy")
                if array.size > 0:
                    check(occupants(tensor), "storage can be freed under NumPy")
                del array
                gc.collect()
                check(not occupants(tensor), "the deleter was not called")
                tensor.release()
    for versioned in (False, True):  # the array outlives the tensor; and a view is what it is
        tensor, view = create("i32", (4, 6)), c_void_p()
        np.from_dlpack(Exported(tensor, versioned)).flags.writeable
        info = tensor.info()
        memory = np.ctypeslib.as_array((c_int32 * 24).from_address(info.data)).reshape(4, 6)
        memory[:] = np.arange(24).reshape(4, 6)
        good(lib.reshard_tensor_as_strided(tensor.handle, 2, (c_int64 * 8)(3, 2), (c_int64 * 8)(1, 12), c_int64(7),
                                           byref(view)), "as_strided")
        array = np.from_dlpack(Exported(Tensor(view), versioned))
        expected = np.lib.stride_tricks.as_strided(memory.reshape(-1)[7:], (3, 2), (4, 48)).copy()
        del memory
        lib.reshard_tensor_release(view)
        tensor.release()
        check(np.array_equal(array, expected), "a view to NumPy")
        del array
    gc.collect()


def twice():
    """Each managed tensor is an occupant of its own, and a deleter without a consumer works as well."""
    tensor = create("f32", (8,))
    managed = [c_void_p(), c_void_p()]
    good(lib.reshard_tensor_to_dlpack(tensor.handle, 0, byref(managed[0])), "export")
    good(lib.reshard_tensor_to_dlpack(tensor.handle, 1, byref(managed[1])), "export")
    old, new = Managed.from_address(managed[0].value), Versioned.from_address(managed[1].value)
    check(old.tensor.data == new.tensor.data == tensor.info().data, "address")
    check((new.major, new.flags, new.tensor.byte_offset, new.tensor.lanes) == (1, 0, 0, 1), "fields")
    old.deleter(managed[0])
    check(occupants(tensor), "the second one was not counted")
    new.deleter(managed[1])
    check(not occupants(tensor), "the deleters have not left the storage")
    tensor.release()


TORCH = ["bool", "u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "c64", "c128", "f8_e4m3", "f8_e5m2"]


def with_torch():
    names = {"u8": "uint8", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "f16": "float16",
             "bf16": "bfloat16", "f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128",
             "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2"}
    passed = set()
    for dtype in TORCH:
        kind = getattr(torch, names.get(dtype, dtype))
        base = torch.arange(24).reshape(2, 3, 4).to(kind)
        for view in (base, base.permute(2, 0, 1), base[:, 1:, ::2], base[0, 0, 0]):
            for options in ({}, {"max_version": (1, 0)}):
                try:
                    capsule = view.__dlpack__(**options)
                except (BufferError, RuntimeError, TypeError):
                    continue  # this version of PyTorch does not give it
                tensor = take(capsule)
                if not isinstance(tensor, Tensor):
                    check(False, f"{dtype} from PyTorch: {lib.reshard_last_error().decode()}")
                    continue
                info = tensor.info()
                check(info.data == view.data_ptr() and list(info.shape[:info.ndim]) == list(view.shape) and
                      DTYPES[info.dtype] == dtype, f"{dtype} from PyTorch")
                check(view.dim() == 0 or all(n == 1 or a == b for n, a, b in zip(view.shape, info.strides, view.stride())),
                      f"{dtype} from PyTorch: strides")
                for versioned in (False, True):
                    try:
                        back = torch.from_dlpack(Exported(tensor, versioned))
                    except (BufferError, RuntimeError, TypeError) as error:
                        print(f"not with this PyTorch: {dtype}, {'versioned' if versioned else 'unversioned'}: {error}")
                        continue
                    check(back.data_ptr() == view.data_ptr() and back.dtype == kind and back.stride() == view.stride(),
                          f"{dtype} to PyTorch")
                    check(back.dtype.itemsize == 1 or torch.equal(back, view), f"{dtype} to PyTorch: data")
                    passed.add((dtype, versioned))
                    del back
                tensor.release()
    check({d for d, _ in passed} >= {"f32", "bf16", "i64", "bool", "c64"}, f"PyTorch took only {passed}")


def main():
    forms = from_numpy()
    check(False in forms, "NumPy gave no unversioned form")
    refused()
    read_only()
    to_numpy()
    twice()
    if torch is not None:
        with_torch()
    print(f"numpy {np.__version__}{', its versioned form too' if True in forms else ''}; "
          f"{'PyTorch ' + torch.__version__ if torch else 'no PyTorch'}; {checks} checks, {failures} failed")
    return failures > 0


sys.exit(main())
