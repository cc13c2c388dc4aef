// Arrays of other libraries. torch's are asked by DLPack's C functions, else by name, since DLPack's Python functions
// take eight times as long; numpy's by its own description. All others come by DLPack, by CUDA's form of numpy's
// description, or by the buffer protocol.
#include "core.h"

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
// By a number of one of the tables.
template <typename Kind> reshard_dtype find_kind(const Kind *of, int kind, int bits) {
  return find_dtype([&](int d) { return of[d] == kind && 8 * int(reshard_dtype_size(reshard_dtype(d))) == bits; });
}

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

// DLPack's C functions of a type, as its headers have them; torch has them from 2.10 on.
struct Exchange {
  uint32_t major, minor;
  const Exchange *older;
  void *make, *give;
  int (*take)(void *managed, void **object);
  int (*look)(void *object, nb::dlpack::dltensor *seen); // NULL: there is none
};
const Exchange *exchange_of(nb::handle type) { // NULL: it has none
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  auto *is = static_cast<const Exchange *>(
      capsule.is_none() ? nullptr : PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (is != nullptr && is->major != 1)
    is = is->older;
  return is;
}

// Reads a tensor by them; false: it is not of the CPU, or has no plain memory, which its names tell better.
bool looked(nb::handle t, Array &a) {
  const Exchange *exchange = exchange_of(t.type());
  nb::dlpack::dltensor seen;
  if (exchange == nullptr || exchange->look == nullptr || exchange->look(t.ptr(), &seen) != 0)
    return PyErr_Clear(), false;
  a.dtype = find_kind(codes, seen.dtype.code, seen.dtype.bits);
  if (seen.device.device_type != nb::device::cpu::value || seen.ndim > RESHARD_MAX_DIMS ||
      a.dtype == RESHARD_DTYPE_NONE)
    return false;
  a.ndim = seen.ndim, a.data = static_cast<char *>(seen.data) + seen.byte_offset;
  std::copy(seen.shape, seen.shape + a.ndim, a.shape), std::copy(seen.strides, seen.strides + a.ndim, a.strides);
  return true;
}

// Asks a tensor by name.
Array asked(nb::handle t, const What &what) {
  const nb::object device = t.attr("device");
  const std::string on = str_of(device.attr("type")), layout = str_of(t.attr("layout")),
                    dtype = str_of(t.attr("dtype"));
  const bool quantized = nb::cast<bool>(t.attr("is_quantized"));
  const Shape shape = nb::cast<Shape>(t.attr("shape"));
  Array a = array_with(shape.size(), t, what);
  a.dtype = find_name(dtype);
  if (quantized || layout != "torch.strided" || (on != "cpu" && on != "cuda") || a.dtype == RESHARD_DTYPE_NONE)
    unsupported(what, ": a tensor on device ", str_of(device), ", of layout ", layout, " and dtype ", dtype,
                quantized ? ", quantized" : "");
  const Shape strides = nb::cast<Shape>(t.attr("stride")());
  for (size_t d = 0; d < shape.size(); d++)
    a.shape[d] = shape[d], a.strides[d] = strides.at(d);
  a.gpu = on == "cuda" ? nb::cast<int>(device.attr("index")) : ON_CPU;
  a.data = address_of(t.attr("data_ptr")());
  return a;
}

// A torch tensor: what its memory does not tell is refused by name.
Array torch_array(nb::handle t, const What &what) {
  for (const char *flag : {"is_conj", "is_neg"})
    if (nb::cast<bool>(t.attr(flag)()))
      unsupported(what, ": a tensor with torch's ", flag, "() bit: its memory has other values");
  Array a = array_with(0, t, what);
  if (!looked(t, a))
    a = asked(t, what);
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
  a.dtype = find_kind(kinds, is->kind, 8 * is->width);
  if (a.dtype == RESHARD_DTYPE_NONE)
    a.dtype = find_name(str_of(object.attr("dtype").attr("name")));
  if (a.dtype == RESHARD_DTYPE_NONE || (is->flags & NOT_SWAPPED) == 0)
    unsupported(what, a.dtype == RESHARD_DTYPE_NONE ? ": dtype " : ": big-endian elements, ",
                str_of(object.attr("dtype")));
  for (int d = 0; d < a.ndim; d++) {
    if (is->strides[d] % is->width != 0 && is->shape[d] > 1)
      unsupported(what, ": elements of ", is->width, " bytes, ", is->strides[d], " bytes apart");
    a.shape[d] = is->shape[d], a.strides[d] = is->strides[d] / is->width;
  }
  a.data = is->data, a.writable = (is->flags & WRITEABLE) != 0;
  return a;
}

// Reads __cuda_array_interface__, which is numpy's own description, by numpy, over memory that nobody touches here. It
// does not tell which GPU.
Array cuda_array(nb::handle object, const What &what) {
  const nb::object described = nb::module_::import_("types").attr("SimpleNamespace")(
      "__array_interface__"_a = object.attr("__cuda_array_interface__"));
  Array a = numpy_array(nb::module_::import_("numpy").attr("asarray")(described), what);
  a.owner = nb::borrow(object), a.gpu = ON_SOME_GPU;
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
  a.dtype = find_kind(codes, type.code, type.bits);
  if (a.dtype == RESHARD_DTYPE_NONE || type.lanes != 1)
    unsupported(what, ": an element type that DLPack numbers ", int(type.code), " of ", int(type.bits), " bits");
  int device = view.device_type();
  if (device != nb::device::cpu::value && device != nb::device::cuda::value && device != nb::device::cuda_host::value)
    unsupported(what, ": memory of a device that DLPack numbers ", device);
  a.gpu = device == nb::device::cuda::value ? int(view.device_id()) : ON_CPU;
  for (int d = 0; d < a.ndim; d++)
    a.shape[d] = int64_t(view.shape(size_t(d))), a.strides[d] = view.stride(size_t(d));
  a.data = const_cast<void *>(view.data());
  // JAX's are written by nobody, which their DLPack does not say.
  a.writable = !nb::hasattr(object, "addressable_shards") && nb::try_cast(object, writable, false);
  a.view = view;
  return a;
}

} // namespace

reshard_dtype dtype_of(nb::handle dtype, reshard_dtype other) {
  if (dtype.is_none())
    return other;
  const bool type = nb::isinstance<nb::type_object>(dtype); // numpy.float32, ml_dtypes.bfloat16
  // Else numpy.dtype, torch's, or a name.
  const std::string text = type ? name_of(dtype) : str_of(nb::getattr(dtype, "name", nb::borrow(dtype)));
  if (!type && str_of(nb::getattr(dtype, "byteorder", nb::none())) == ">")
    unsupported("dtype ", str_of(dtype), ": big-endian elements");
  const reshard_dtype found = find_name(text);
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
  if (nb::hasattr(object, "__cuda_array_interface__") && !nb::hasattr(object, "__dlpack__"))
    return cuda_array(object, what);
  return nb::hasattr(object, "__array_struct__") ? numpy_array(object, what) : exported_array(object, what);
}

std::ostream &operator<<(std::ostream &out, const What &what) {
  out << what.side;
  if (what.rank >= 0)
    out << " of rank " << what.rank << ", '" << *what.name << "'";
  return what.rank >= 0 && what.buffer >= 0 ? out << ", buffer " << what.buffer : out;
}

const char *dtype_name(reshard_dtype dtype) { return names[dtype]; }

nb::handle numpy_type(reshard_dtype dtype) {
  static nb::handle types[RESHARD_DTYPE_COUNT];
  nb::handle &type = types[dtype];
  if (type.is_valid())
    return type;
  try {
    nb::object name = nb::str(names[dtype]);
    if (kinds[dtype] == '-')
      name = nb::module_::import_("ml_dtypes").attr(name);
    return type = nb::object(nb::module_::import_("numpy").attr("dtype")(name)).release();
  } catch (nb::python_error &missing) {
    nb::raise_from(missing, PyExc_ImportError, "numpy has no %s: install ml_dtypes, or take .torch()",
                   reshard_dtype_string(dtype));
  }
}

nb::object numpy_empty(reshard_dtype dtype, int ndim, const int64_t *shape) {
  return ndarray()(tuple_of(ndim, shape), numpy_type(dtype));
}

// By numpy's constructor over the bytes: the buffer protocol and DLPack take three times as long.
nb::object numpy_over(const Array &a, nb::handle owner) {
  static char none; // an address for arrays without elements
  void *data = a.data != nullptr ? a.data : &none;
  const size_t bytes = size_t(a.elements()) * reshard_dtype_size(a.dtype);
  return ndarray()(tuple_of(a.ndim, a.shape), numpy_type(a.dtype),
                   a.writable ? nb::cast(nb::ndarray<nb::array_api, uint8_t>(data, {bytes}, owner))
                              : nb::cast(nb::ndarray<nb::array_api, const uint8_t>(data, {bytes}, owner)));
}

nb::object array_in(reshard_tensor tensor, nb::handle stream, nb::handle like) {
  const auto info = got<reshard_tensor_info>(reshard_tensor_get_info, tensor);
  Array a;
  a.data = info.data, a.dtype = info.dtype, a.ndim = info.ndim, a.writable = true;
  std::copy(info.shape, info.shape + info.ndim, a.shape);
  a.gpu = info.device_type == RESHARD_DEVICE_CUDA ? info.device_index : ON_CPU;
  // A stream of others may end before the tensor; torch's do not.
  if (!like.is_none() && (a.gpu == ON_CPU || nb::hasattr(stream, "cuda_stream"))) {
    void *object = nullptr;
    if (exchange_of(like)->take(got<void *>(reshard_tensor_to_dlpack, tensor, 1), &object) != 0)
      nb::raise_python_error();
    return nb::steal(static_cast<PyObject *>(object));
  }
  nb::capsule storage(reshard_tensor_retain(tensor),
                      [](void *t) noexcept { reshard_tensor_release(static_cast<reshard_tensor>(t)); });
  if (a.gpu == ON_CPU)
    return numpy_over(a, storage);
  const std::vector<size_t> shape(a.shape, a.shape + a.ndim);
  const nb::dlpack::dtype type = {uint8_t(codes[a.dtype]), uint8_t(8 * reshard_dtype_size(a.dtype)), 1};
  nb::object made =
      nb::cast(nb::ndarray<nb::array_api>(a.data, shape.size(), shape.data(), nb::make_tuple(stream, storage), nullptr,
                                          type, nb::device::cuda::value, a.gpu));
  return like.is_none() ? made : nb::object(nb::module_::import_("torch").attr("from_dlpack")(made));
}

static std::string given_text(nb::handle given) {
  return is_list(given) ? text_of(nb::len(given), " arrays") : std::string("one array");
}

// The thing given for each entry. One entry may be given bare.
static std::vector<nb::object> per_entry(nb::handle given, size_t entries, bool one_buffer, const char *side,
                                         int64_t rank) {
  std::vector<nb::object> list;
  if (is_list(given))
    list = nb::cast<std::vector<nb::object>>(given);
  if (entries == 1 && (!is_list(given) || (!one_buffer && !(list.size() == 1 && is_list(list[0])))))
    return {nb::borrow(given)};
  if (!is_list(given) || list.size() != entries)
    invalid(side, " of rank ", rank, ": ", given_text(given), " for ", entries, " entries");
  return list;
}

// One array, where `want` is due.
static Array taken(const Array &want, nb::handle object, const What &what, bool write, int gpu) {
  const bool nothing = want.elements() == 0;
  Array a;
  a.dtype = want.dtype;
  if (nothing && object.is_none())
    return a;
  a = array_of(object, what);
  if (want.dtype != RESHARD_DTYPE_NONE && a.dtype != want.dtype)
    invalid(what, ": ", reshard_dtype_string(a.dtype), ", where ", reshard_dtype_string(want.dtype), " is due");
  if (!std::equal(a.shape, a.shape + a.ndim, want.shape, want.shape + want.ndim) && !(nothing && a.elements() == 0))
    invalid(what, ": shape ", shape_text(a.ndim, a.shape), ", where ", shape_text(want.ndim, want.shape), " is due");
  if (write && !a.writable)
    invalid(what, ": read-only, and a destination");
  if ((a.gpu == ON_CPU) != (gpu == ON_CPU))
    invalid(what, ": on ", gpu != ON_CPU ? "the CPU" : "a GPU", ", and the communicator is of ",
            gpu != ON_CPU ? "GPUs" : "the CPU");
  if (a.gpu >= 0 && gpu >= 0 && a.gpu != gpu)
    invalid(what, ": on GPU ", a.gpu, ", and the communicator is on GPU ", gpu);
  if (want.flat && !a.contiguous())
    invalid(what, ": not contiguous, as flat pieces and arrays of files are");
  a.flat = want.flat;
  return a;
}

// The buffers of a rank, without memory; with blocks those of their scales.
static std::vector<Array> shapes_of(const Layout &layout, int64_t rank, const int64_t *block) {
  std::vector<Array> all(size_t(got<int64_t>(reshard_layout_buffer_count, layout.handle, rank)));
  for (size_t b = 0; b < all.size(); b++) {
    all[b].flat = layout.kind() == RESHARD_LAYOUT_FLAT;
    check(reshard_layout_buffer_shape(layout.handle, rank, int64_t(b), block, &all[b].ndim, all[b].shape));
  }
  return all;
}

const std::vector<Array> &Layout::buffers(int64_t rank) const {
  auto found = kept.find(rank);
  if (found == kept.end())
    found = kept.emplace(rank, shapes_of(*this, rank, nullptr)).first;
  return found->second;
}

static std::vector<Array> with_scales(const Wanted &w, int64_t rank) {
  std::vector<Array> all = w.layout->buffers(rank);
  for (Array &of : shapes_of(*w.layout, rank, w.block->data())) {
    of.dtype = w.scales == RESHARD_DTYPE_NONE ? RESHARD_F32 : w.scales;
    all.push_back(of);
  }
  return all;
}

Side side_of(nb::handle given, std::vector<Wanted> &wanted, int64_t rank, const char *side, bool write, int gpu) {
  Side out;
  const bool one = wanted.size() == 1 && wanted[0].block == nullptr && wanted[0].layout->buffers(rank).size() == 1;
  const std::vector<nb::object> list = per_entry(given, wanted.size(), one, side, rank);
  for (size_t e = 0; e < wanted.size(); e++) {
    Wanted &w = wanted[e];
    std::vector<Array> scaled;
    const std::vector<Array> &due = w.block == nullptr ? w.layout->buffers(rank) : scaled = with_scales(w, rank);
    What what{side, rank, &w.name};
    auto add = [&](Array want, nb::handle object) {
      const bool scales = want.dtype != RESHARD_DTYPE_NONE;
      want.dtype = scales ? want.dtype : w.dtype, want.flat |= w.file;
      const Array &a = out.arrays.emplace_back(taken(want, object, what, write, gpu));
      out.data.push_back(want.elements() == 0 ? nullptr : a.data);
      w.dtype = scales ? w.dtype : a.dtype;
    };
    if (due.size() == 1 && !is_list(list[e])) {
      add(due[0], list[e]);
      continue;
    }
    if (due.empty() && list[e].is_none())
      continue;
    if (!is_list(list[e]) || nb::len(list[e]) != due.size())
      invalid(what, ": ", given_text(list[e]), ", where ", due.size(), " are due");
    for (size_t b = 0; b < due.size(); b++)
      what.buffer = int64_t(b), add(due[b], nb::object(list[e][b]));
  }
  for (size_t i = 0; i < out.arrays.size(); i++)
    out.strides.push_back(out.arrays[i].flat || out.data[i] == nullptr ? nullptr : out.arrays[i].strides);
  return out;
}
