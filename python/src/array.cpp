// Arrays of other libraries. torch's are asked by name, since DLPack takes eight times as long and hides lazy bits.
// numpy's own description tells the rest of its arrays. All others come by DLPack or the buffer protocol.
#include "core.h"

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

// A torch tensor: what its memory does not tell is refused by name.
Array torch_array(nb::handle t, const What &what) {
  static const char *const lazy[] = {"is_conj", "is_neg"};
  for (const char *flag : lazy)
    if (nb::cast<bool>(t.attr(flag)()))
      raise(RESHARD_ERROR_UNSUPPORTED,
            what + ": a tensor with torch's " + flag + "() bit: its memory has other values");
  std::string layout = text_of(nb::object(t.attr("layout")));
  if (layout != "torch.strided" || nb::cast<bool>(t.attr("is_quantized")))
    raise(RESHARD_ERROR_UNSUPPORTED,
          what + ": a tensor of layout " + layout + (layout == "torch.strided" ? ", quantized" : ""));
  nb::object device = t.attr("device");
  std::string type = nb::cast<std::string>(device.attr("type"));
  if (type != "cpu" && type != "cuda")
    raise(RESHARD_ERROR_UNSUPPORTED, what + ": a tensor on device " + text_of(device));
  Array a;
  a.gpu = type == "cuda" ? nb::cast<int>(device.attr("index")) : -1;
  std::string dtype = text_of(nb::object(t.attr("dtype")));
  a.dtype = find_name(dtype.c_str() + (dtype.rfind("torch.", 0) == 0 ? 6 : 0));
  if (a.dtype == RESHARD_DTYPE_NONE)
    raise(RESHARD_ERROR_UNSUPPORTED, what + ": dtype " + dtype);
  nb::tuple shape = nb::tuple(t.attr("shape")), strides = nb::tuple(t.attr("stride")());
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
  static const nb::handle ndarray = nb::object(nb::module_::import_("numpy").attr("ndarray")).release();
  if (object.type().is(ndarray))
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

// By numpy's constructor over the bytes: the buffer protocol and DLPack take three times as long.
nb::object numpy_of(reshard_tensor tensor, bool bits) {
  static const nb::handle ndarray = nb::object(nb::module_::import_("numpy").attr("ndarray")).release();
  static nb::handle types[2][RESHARD_DTYPE_COUNT];
  reshard_tensor_info info;
  check(reshard_tensor_get_info(tensor, &info));
  nb::handle &type = types[bits][info.dtype];
  if (!type.is_valid()) {
    nb::object make = nb::module_::import_("reshard._dtypes").attr("numpy_dtype");
    type = make(reshard_dtype_string(info.dtype), bits).release();
  }
  Array a;
  a.ndim = info.ndim;
  nb::list shape, strides;
  int64_t width = int64_t(reshard_dtype_size(info.dtype)), end = width;
  for (int d = 0; d < info.ndim; d++) {
    a.shape[d] = info.shape[d], a.strides[d] = info.strides[d];
    end += (info.shape[d] - 1) * info.strides[d] * width;
    shape.append(info.shape[d]), strides.append(info.strides[d] * width);
  }
  static char none; // an address for arrays without elements
  size_t bytes = a.elements() > 0 ? size_t(end) : 0;
  nb::capsule owner(reshard_tensor_retain(tensor),
                    [](void *t) noexcept { reshard_tensor_release(static_cast<reshard_tensor>(t)); });
  nb::object memory =
      nb::cast(nb::ndarray<nb::array_api, uint8_t>(info.data != nullptr ? info.data : &none, {bytes}, owner));
  return a.contiguous() ? ndarray(nb::tuple(shape), type, memory)
                        : ndarray(nb::tuple(shape), type, memory, 0, nb::tuple(strides));
}
