// Arrays of other libraries. torch's are asked by name, since DLPack takes eight times as long and hides lazy bits.
// numpy's own description tells the rest of its arrays. All others come by DLPack or the buffer protocol.
#include "core.h"

#include <algorithm>
#include <cstring>

namespace {

// By reshard_dtype: names of numpy, ml_dtypes and torch (reshard_dtype_parse reads the library's), numpy's kinds, where
// it has the type, and DLPack's codes.
const char *const names[] = {
    "",         "bool",    "uint8",   "int8",          "uint16",      "int16",          "uint32",
    "int32",    "uint64",  "int64",   "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float16",
    "bfloat16", "float32", "float64", "complex64",     "complex128"};
const char kinds[] = "-buiuiuiui---f-ffcc";
const int codes[] = {-1, 6, 1, 0, 1, 0, 1, 0, 1, 0, 10, 12, 14, 2, 4, 2, 2, 5, 5};

// The type of which `is` is true; NONE: there is none.
template <typename Is> reshard_dtype find_dtype(Is is) {
  for (int d = 1; d < RESHARD_DTYPE_COUNT; d++)
    if (is(d))
      return reshard_dtype(d);
  return RESHARD_DTYPE_NONE;
}
reshard_dtype find_name(const std::string &text) {
  const std::string name = text.rfind("torch.", 0) == 0 ? text.substr(6) : text;
  return find_dtype([&](int d) { return name == names[d]; });
}
bool has_width(int dtype, int64_t bytes) { return int64_t(reshard_dtype_size(reshard_dtype(dtype))) == bytes; }

nb::handle ndarray() {
  static const nb::handle type = nb::object(nb::module_::import_("numpy").attr("ndarray")).release();
  return type;
}

Array array_with(size_t ndim, nb::handle owner, const What &what) {
  if (ndim > RESHARD_MAX_DIMS)
    unsupported(what, ": ", ndim, " dims; at most ", RESHARD_MAX_DIMS);
  Array a;
  a.ndim = int(ndim), a.owner = nb::borrow(owner);
  return a;
}

// The dtype of a torch tensor. torch has one object for each, which is never freed; a text takes longer to compare.
reshard_dtype torch_dtype(nb::handle dtype, const What &what) {
  static std::map<PyObject *, reshard_dtype> known;
  reshard_dtype &found = known[dtype.ptr()];
  if (found == RESHARD_DTYPE_NONE) {
    found = find_name(str_of(dtype));
    if (found == RESHARD_DTYPE_NONE)
      unsupported(what, ": dtype ", str_of(dtype));
    dtype.inc_ref();
  }
  return found;
}

// A torch tensor: what its memory does not tell is refused by name.
Array torch_array(nb::handle t, const What &what) {
  static nb::handle strided; // torch's object, once it was seen
  for (const char *flag : {"is_conj", "is_neg"})
    if (nb::cast<bool>(t.attr(flag)()))
      unsupported(what, ": a tensor with torch's ", flag, "() bit: its memory has other values");
  nb::object layout = t.attr("layout");
  bool quantized = nb::cast<bool>(t.attr("is_quantized"));
  if (quantized || (!layout.is(strided) && str_of(layout) != "torch.strided"))
    unsupported(what, ": a tensor of layout ", str_of(layout), quantized ? ", quantized" : "");
  if (!layout.is(strided))
    strided = layout.release();
  nb::tuple shape = nb::borrow<nb::tuple>(t.attr("shape")), strides = nb::borrow<nb::tuple>(t.attr("stride")());
  Array a = array_with(shape.size(), t, what);
  if (!nb::cast<bool>(nb::getattr(t, "is_cpu", nb::bool_(false)))) {
    nb::object device = t.attr("device");
    std::string type = nb::cast<std::string>(device.attr("type"));
    if (type != "cpu" && type != "cuda")
      unsupported(what, ": a tensor on device ", str_of(device));
    a.gpu = type == "cuda" ? nb::cast<int>(device.attr("index")) : -1;
  }
  a.dtype = torch_dtype(nb::object(t.attr("dtype")), what);
  for (int d = 0; d < a.ndim; d++)
    a.shape[d] = nb::cast<int64_t>(shape[d]), a.strides[d] = nb::cast<int64_t>(strides[d]);
  a.data = reinterpret_cast<void *>(nb::cast<uintptr_t>(t.attr("data_ptr")()));
  if (a.data == nullptr && a.elements() > 0)
    invalid(what, ": a tensor of shape ", shape_text(a.ndim, a.shape), " whose storage is freed");
  a.writable = true, a.torch = a.owner;
  return a;
}

// The structure behind __array_struct__, as numpy documents it.
struct Interface {
  int two, ndim;
  char kind;
  int width, flags;
  const Py_ssize_t *shape, *strides; // in bytes
  void *data;
};
enum { NOT_SWAPPED = 0x200, WRITEABLE = 0x400 };

// Reads numpy's own description, in a hundredth of the time of DLPack. Types of ml_dtypes go by name.
Array numpy_array(nb::handle object, const What &what) {
  const nb::object capsule = object.attr("__array_struct__");
  const Interface *is = static_cast<const Interface *>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (is == nullptr || is->two != 2)
    nb::raise_python_error();
  Array a = array_with(size_t(is->ndim), object, what);
  a.dtype = find_dtype([&](int d) { return kinds[d] == is->kind && has_width(d, is->width); });
  if (a.dtype == RESHARD_DTYPE_NONE)
    a.dtype = find_name(str_of(nb::object(object.attr("dtype").attr("name"))));
  if (a.dtype == RESHARD_DTYPE_NONE || (is->flags & NOT_SWAPPED) == 0)
    unsupported(what, a.dtype == RESHARD_DTYPE_NONE ? ": dtype " : ": big-endian elements, ",
                str_of(nb::object(object.attr("dtype"))));
  for (int d = 0; d < a.ndim; d++) {
    if (is->strides[d] % is->width != 0 && is->shape[d] > 1)
      unsupported(what, ": elements of ", is->width, " bytes, ", is->strides[d], " bytes apart");
    a.shape[d] = is->shape[d], a.strides[d] = is->strides[d] / is->width;
  }
  a.data = is->data, a.writable = (is->flags & WRITEABLE) != 0;
  return a;
}

// Reads an object that has DLPack or the buffer protocol.
Array exported_array(nb::handle object, const What &what) {
  nb::ndarray<nb::ro> view;
  nb::ndarray<> writable;
  if (!nb::try_cast(object, view, false))
    unsupported(what, ": ", str_of(object.type()), " is no array of numbers (numpy, torch, DLPack, buffer)");
  Array a = array_with(view.ndim(), object, what);
  const nb::dlpack::dtype type = view.dtype();
  a.dtype = find_dtype([&](int d) {
    return type.lanes == 1 && type.code == codes[d] && has_width(d, type.bits / 8) && type.bits % 8 == 0;
  });
  if (a.dtype == RESHARD_DTYPE_NONE)
    unsupported(what, ": an element type that DLPack numbers ", int(type.code), " of ", int(type.bits), " bits");
  int device = view.device_type();
  if (device != nb::device::cpu::value && device != nb::device::cuda::value && device != nb::device::cuda_host::value)
    unsupported(what, ": memory of a device that DLPack numbers ", device);
  a.gpu = device == nb::device::cuda::value ? int(view.device_id()) : -1;
  for (int d = 0; d < a.ndim; d++)
    a.shape[d] = int64_t(view.shape(size_t(d))), a.strides[d] = view.stride(size_t(d));
  a.data = const_cast<void *>(view.data());
  a.writable = nb::try_cast(object, writable, false);
  a.view = view;
  return a;
}

} // namespace

reshard_dtype dtype_of(nb::handle dtype, reshard_dtype other) {
  if (dtype.is_none() && other != RESHARD_DTYPE_NONE)
    return other;
  std::string text = str_of(dtype); // torch's, or a name
  if (nb::hasattr(dtype, "name"))   // numpy.dtype
    text = str_of(nb::object(dtype.attr("name")));
  else if (nb::isinstance<nb::type_object>(dtype)) // numpy.float32, ml_dtypes.bfloat16
    text = str_of(nb::object(dtype.attr("__name__")));
  if (nb::hasattr(dtype, "byteorder") && str_of(nb::object(dtype.attr("byteorder"))) == ">")
    unsupported("dtype ", str_of(dtype), ": big-endian elements");
  reshard_dtype found = find_name(text);
  return found != RESHARD_DTYPE_NONE ? found : got<reshard_dtype>(reshard_dtype_parse, c_text(text, "dtype"));
}

Array array_of(nb::handle object, const What &what) {
  if (object.is_none())
    invalid(what, ": None, where an array with elements is due");
  if (object.type().is(ndarray()))
    return numpy_array(object, what);
  if (nb::hasattr(object, "data_ptr") && nb::hasattr(object, "is_conj"))
    return torch_array(object, what);
  if (nb::hasattr(object, "mask") && nb::hasattr(object, "__array_struct__"))
    unsupported(what, ": a masked array, whose mask would be lost");
  return nb::hasattr(object, "__array_struct__") ? numpy_array(object, what) : exported_array(object, what);
}

std::ostream &operator<<(std::ostream &out, const What &what) {
  out << what.side;
  if (what.rank >= 0)
    out << " of rank " << what.rank << ", '" << *what.name << "'";
  return what.rank >= 0 && what.buffer >= 0 ? out << ", buffer " << what.buffer : out;
}

const char *dtype_name(reshard_dtype dtype) { return names[dtype]; }

nb::handle numpy_type(reshard_dtype dtype, bool bits) {
  static nb::handle types[2][RESHARD_DTYPE_COUNT];
  nb::handle &type = types[bits][dtype];
  if (type.is_valid())
    return type;
  nb::object numpy = nb::module_::import_("numpy"), name = nb::str(names[dtype]);
  if (kinds[dtype] == '-' && bits)
    name = nb::str(reshard_dtype_size(dtype) == 2 ? "uint16" : "uint8");
  else if (kinds[dtype] == '-') {
    try {
      name = nb::module_::import_("ml_dtypes").attr(name);
    } catch (nb::python_error &missing) {
      nb::raise_from(missing, PyExc_ImportError, "numpy has no %s: install ml_dtypes, or take .torch()",
                     reshard_dtype_string(dtype));
    }
  }
  return type = nb::object(numpy.attr("dtype")(name)).release();
}

nb::object numpy_empty(reshard_dtype dtype, int ndim, const int64_t *shape) {
  static const nb::handle empty = nb::object(nb::module_::import_("numpy").attr("empty")).release();
  return empty(tuple_of(ndim, shape), numpy_type(dtype));
}

// By numpy's constructor over the bytes: the buffer protocol and DLPack take three times as long.
nb::object numpy_over(const Array &a, bool bits, nb::handle owner) {
  static char none; // an address for arrays without elements
  void *data = a.data != nullptr ? a.data : &none;
  const size_t bytes = size_t(a.elements()) * reshard_dtype_size(a.dtype);
  return ndarray()(tuple_of(a.ndim, a.shape), numpy_type(a.dtype, bits),
                   a.writable ? nb::cast(nb::ndarray<nb::array_api, uint8_t>(data, {bytes}, owner))
                              : nb::cast(nb::ndarray<nb::array_api, const uint8_t>(data, {bytes}, owner)));
}

nb::object numpy_in(reshard_tensor tensor, const Array &a, bool bits) {
  nb::capsule owner(reshard_tensor_retain(tensor),
                    [](void *t) noexcept { reshard_tensor_release(static_cast<reshard_tensor>(t)); });
  return numpy_over(a, bits, owner);
}
