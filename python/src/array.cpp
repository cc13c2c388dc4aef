// Arrays of other libraries. torch's are asked by name, since DLPack takes eight times as long and hides lazy bits.
// numpy's own description tells the rest of its arrays. All others come by DLPack or the buffer protocol.
#include "core.h"

#include <algorithm>
#include <cstring>

namespace {

struct Name {
  const char *name;
  reshard_dtype dtype;
  char kind; // of numpy; 0: it has none
  int code;  // of DLPack
};
// Names of numpy, ml_dtypes and torch; those of the library are read by reshard_dtype_parse.
const Name names[] = {{"bool", RESHARD_BOOL, 'b', 6},
                      {"uint8", RESHARD_U8, 'u', 1},
                      {"int8", RESHARD_I8, 'i', 0},
                      {"uint16", RESHARD_U16, 'u', 1},
                      {"int16", RESHARD_I16, 'i', 0},
                      {"uint32", RESHARD_U32, 'u', 1},
                      {"int32", RESHARD_I32, 'i', 0},
                      {"uint64", RESHARD_U64, 'u', 1},
                      {"int64", RESHARD_I64, 'i', 0},
                      {"float8_e4m3fn", RESHARD_F8_E4M3, 0, 10},
                      {"float8_e5m2", RESHARD_F8_E5M2, 0, 12},
                      {"float8_e8m0fnu", RESHARD_F8_E8M0, 0, 14},
                      {"float16", RESHARD_F16, 'f', 2},
                      {"bfloat16", RESHARD_BF16, 0, 4},
                      {"float32", RESHARD_F32, 'f', 2},
                      {"float64", RESHARD_F64, 'f', 2},
                      {"complex64", RESHARD_C64, 'c', 5},
                      {"complex128", RESHARD_C128, 'c', 5}};

reshard_dtype find_name(const char *name) {
  for (const Name &known : names)
    if (std::strcmp(known.name, name) == 0)
      return known.dtype;
  return RESHARD_DTYPE_NONE;
}

// str() of an object, which an attribute is made first.
std::string text_of(const nb::object &object) { return nb::cast<std::string>(nb::steal(PyObject_Str(object.ptr()))); }

reshard_dtype dlpack_dtype(nb::dlpack::dtype t) {
  for (const Name &known : names)
    if (t.lanes == 1 && t.code == known.code && t.bits == 8 * reshard_dtype_size(known.dtype))
      return known.dtype;
  return RESHARD_DTYPE_NONE;
}

nb::handle ndarray() {
  static const nb::handle type = nb::object(nb::module_::import_("numpy").attr("ndarray")).release();
  return type;
}

// The dtype of a torch tensor. torch has one object for each, which is never freed; a text takes longer to compare.
reshard_dtype torch_dtype(nb::handle dtype, const What &what) {
  static std::map<PyObject *, reshard_dtype> known;
  reshard_dtype &found = known[dtype.ptr()];
  if (found == RESHARD_DTYPE_NONE) {
    std::string text = text_of(nb::borrow(dtype));
    found = find_name(text.c_str() + (text.rfind("torch.", 0) == 0 ? 6 : 0));
    if (found == RESHARD_DTYPE_NONE)
      raise(RESHARD_ERROR_UNSUPPORTED, what + ": dtype " + text);
    dtype.inc_ref();
  }
  return found;
}

// A torch tensor: what its memory does not tell is refused by name.
Array torch_array(nb::handle t, const What &what) {
  static const char *const lazy[] = {"is_conj", "is_neg"};
  static nb::handle strided; // torch's object, once it was seen
  for (const char *flag : lazy)
    if (nb::cast<bool>(t.attr(flag)()))
      raise(RESHARD_ERROR_UNSUPPORTED,
            what + ": a tensor with torch's " + flag + "() bit: its memory has other values");
  nb::object layout = t.attr("layout");
  if (!layout.is(strided) || nb::cast<bool>(t.attr("is_quantized"))) {
    std::string text = text_of(layout);
    if (text != "torch.strided" || nb::cast<bool>(t.attr("is_quantized")))
      raise(RESHARD_ERROR_UNSUPPORTED,
            what + ": a tensor of layout " + text + (text == "torch.strided" ? ", quantized" : ""));
    strided = nb::object(layout).release();
  }
  Array a;
  if (!nb::cast<bool>(nb::getattr(t, "is_cpu", nb::bool_(false)))) {
    nb::object device = t.attr("device");
    std::string type = nb::cast<std::string>(device.attr("type"));
    if (type != "cpu" && type != "cuda")
      raise(RESHARD_ERROR_UNSUPPORTED, what + ": a tensor on device " + text_of(device));
    a.gpu = type == "cuda" ? nb::cast<int>(device.attr("index")) : -1;
  }
  a.dtype = torch_dtype(nb::object(t.attr("dtype")), what);
  nb::tuple shape = nb::borrow<nb::tuple>(t.attr("shape")), strides = nb::borrow<nb::tuple>(t.attr("stride")());
  if (shape.size() > RESHARD_MAX_DIMS)
    raise(RESHARD_ERROR_UNSUPPORTED, what + ": " + std::to_string(shape.size()) + " dims; at most 8");
  a.ndim = int(shape.size());
  for (int d = 0; d < a.ndim; d++)
    a.shape[d] = nb::cast<int64_t>(shape[d]), a.strides[d] = nb::cast<int64_t>(strides[d]);
  a.data = reinterpret_cast<void *>(nb::cast<uintptr_t>(t.attr("data_ptr")()));
  if (a.data == nullptr && a.elements() > 0)
    invalid(what + ": a tensor of shape " + shape_text(a.ndim, a.shape) + " whose storage is freed");
  a.writable = true;
  a.owner = a.torch = nb::borrow(t);
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
  Array a;
  for (const Name &known : names)
    if (known.kind == is->kind && int(reshard_dtype_size(known.dtype)) == is->width)
      a.dtype = known.dtype;
  if (a.dtype == RESHARD_DTYPE_NONE)
    a.dtype = find_name(text_of(nb::object(object.attr("dtype").attr("name"))).c_str());
  if (a.dtype == RESHARD_DTYPE_NONE)
    raise(RESHARD_ERROR_UNSUPPORTED, what + ": dtype " + text_of(nb::object(object.attr("dtype"))));
  if ((is->flags & NOT_SWAPPED) == 0)
    raise(RESHARD_ERROR_UNSUPPORTED,
          what + ": big-endian elements (" + text_of(nb::object(object.attr("dtype"))) + ")");
  if (is->ndim > RESHARD_MAX_DIMS)
    raise(RESHARD_ERROR_UNSUPPORTED, what + ": " + std::to_string(is->ndim) + " dims; at most 8");
  a.ndim = is->ndim;
  for (int d = 0; d < a.ndim; d++) {
    if (is->strides[d] % is->width != 0 && is->shape[d] > 1)
      raise(RESHARD_ERROR_UNSUPPORTED, what + ": elements of " + std::to_string(is->width) + " bytes, " +
                                           std::to_string(is->strides[d]) + " bytes apart");
    a.shape[d] = is->shape[d], a.strides[d] = is->strides[d] / is->width;
  }
  a.data = is->data;
  a.writable = (is->flags & WRITEABLE) != 0;
  a.owner = nb::borrow(object);
  return a;
}

} // namespace

reshard_dtype dtype_of(nb::handle dtype) {
  std::string text;
  if (nb::isinstance<nb::str>(dtype))
    text = nb::cast<std::string>(dtype);
  else if (nb::hasattr(dtype, "name")) // numpy.dtype
    text = text_of(nb::object(dtype.attr("name")));
  else if (nb::isinstance<nb::type_object>(dtype)) // numpy.float32, ml_dtypes.bfloat16
    text = text_of(nb::object(dtype.attr("__name__")));
  else
    text = text_of(nb::borrow(dtype));
  if (text.rfind("torch.", 0) == 0)
    text = text.substr(6);
  reshard_dtype found = find_name(text.c_str());
  if (found == RESHARD_DTYPE_NONE)
    check(reshard_dtype_parse(c_text(text, "dtype"), &found));
  return found;
}

Array array_of(nb::handle object, const What &what) {
  if (object.is_none())
    invalid(what + ": None, where an array with elements is due");
  if (object.type().is(ndarray()))
    return numpy_array(object, what);
  if (nb::hasattr(object, "data_ptr") && nb::hasattr(object, "is_conj"))
    return torch_array(object, what);
  if (nb::hasattr(object, "__array_struct__"))
    return numpy_array(object, what);
  nb::ndarray<nb::ro> view;
  if (!nb::try_cast(object, view, false))
    raise(RESHARD_ERROR_UNSUPPORTED,
          what + ": " + text_of(nb::borrow(object.type())) + " is no array of numbers (numpy, torch, DLPack, buffer)");
  Array a;
  a.dtype = dlpack_dtype(view.dtype());
  if (a.dtype == RESHARD_DTYPE_NONE)
    raise(RESHARD_ERROR_UNSUPPORTED, what + ": an element type that DLPack numbers " +
                                         std::to_string(view.dtype().code) + " of " +
                                         std::to_string(view.dtype().bits) + " bits");
  if (view.ndim() > RESHARD_MAX_DIMS)
    raise(RESHARD_ERROR_UNSUPPORTED, what + ": " + std::to_string(view.ndim()) + " dims; at most 8");
  int device = view.device_type();
  if (device != nb::device::cpu::value && device != nb::device::cuda::value && device != nb::device::cuda_host::value)
    raise(RESHARD_ERROR_UNSUPPORTED, what + ": memory of a device that DLPack numbers " + std::to_string(device));
  a.gpu = device == nb::device::cuda::value ? int(view.device_id()) : -1;
  a.ndim = int(view.ndim());
  for (int d = 0; d < a.ndim; d++)
    a.shape[d] = int64_t(view.shape(d)), a.strides[d] = view.stride(d);
  a.data = const_cast<void *>(view.data());
  nb::ndarray<> writable;
  a.writable = nb::try_cast(object, writable, false);
  a.owner = nb::borrow(object), a.view = view;
  return a;
}

std::string What::text() const {
  if (rank < 0)
    return side;
  std::string text = std::string(side) + " of rank " + std::to_string(rank) + ", '" + *name + "'";
  return buffer < 0 ? text : text + ", buffer " + std::to_string(buffer);
}

const char *dtype_name(reshard_dtype dtype) {
  for (const Name &known : names)
    if (known.dtype == dtype)
      return known.name;
  return reshard_dtype_string(dtype);
}

nb::handle numpy_type(reshard_dtype dtype, bool bits) {
  static nb::handle types[2][RESHARD_DTYPE_COUNT];
  nb::handle &type = types[bits][dtype];
  if (type.is_valid())
    return type;
  nb::object numpy = nb::module_::import_("numpy"), name = nb::str(dtype_name(dtype));
  bool has = std::any_of(std::begin(names), std::end(names), [&](const Name &n) { return n.dtype == dtype && n.kind; });
  if (!has && bits)
    name = nb::str(reshard_dtype_size(dtype) == 2 ? "uint16" : "uint8");
  else if (!has) {
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
  int64_t width = int64_t(reshard_dtype_size(a.dtype)), end = width, strides[RESHARD_MAX_DIMS];
  for (int d = 0; d < a.ndim; d++)
    strides[d] = a.strides[d] * width, end += (a.shape[d] - 1) * strides[d];
  size_t bytes = a.elements() > 0 ? size_t(end) : 0;
  void *data = a.data != nullptr ? a.data : &none;
  nb::object memory = a.writable ? nb::cast(nb::ndarray<nb::array_api, uint8_t>(data, {bytes}, owner))
                                 : nb::cast(nb::ndarray<nb::array_api, const uint8_t>(data, {bytes}, owner));
  nb::object shape = tuple_of(a.ndim, a.shape);
  return a.contiguous() ? ndarray()(shape, numpy_type(a.dtype, bits), memory)
                        : ndarray()(shape, numpy_type(a.dtype, bits), memory, 0, tuple_of(a.ndim, strides));
}

nb::object numpy_of(reshard_tensor tensor, bool bits) {
  reshard_tensor_info info;
  check(reshard_tensor_get_info(tensor, &info));
  Array a;
  a.data = info.data, a.dtype = info.dtype, a.ndim = info.ndim, a.writable = true;
  std::copy(info.shape, info.shape + a.ndim, a.shape), std::copy(info.strides, info.strides + a.ndim, a.strides);
  nb::capsule owner(reshard_tensor_retain(tensor),
                    [](void *t) noexcept { reshard_tensor_release(static_cast<reshard_tensor>(t)); });
  return numpy_over(a, bits, owner);
}
