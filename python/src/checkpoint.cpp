// Checkpoints that are open, and their tensors, which are read where they are indexed.
#include "core.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

struct Checkpoint {
  explicit Checkpoint(nb::handle path) {
    const std::string text = path_of(path);
    handle = waited<reshard_checkpoint>(reshard_checkpoint_open, text.c_str());
  }
  Checkpoint(const Checkpoint &) = delete;
  ~Checkpoint() { reshard_checkpoint_close(handle); }
  void close() {
    if (calls > 0)
      raise(RESHARD_ERROR_BUSY, "the checkpoint is read in another thread");
    reshard_checkpoint_close(std::exchange(handle, nullptr));
  }
  bool closed() const { return handle == nullptr; }
  reshard_checkpoint handle = nullptr;
  int calls = 0;
  static constexpr const char *noun = "checkpoint";
};

reshard_model_tensor tensor_of(Checkpoint &c, int64_t i) {
  Use<Checkpoint> in(c);
  return got<reshard_model_tensor>(reshard_model_get, reshard_checkpoint_model(c.handle), i);
}

// --- Lazy tensors ----------------------------------------------------------------------------------------------------

struct LazyTensor {
  LazyTensor(nb::object owner, int64_t i)
      : owner(owner), c(as<Checkpoint>(owner, "checkpoint")), i(i), t(tensor_of(c, i)), name(t.name) {
    whole.dtype = t.dtype, whole.ndim = t.ndim;
    for (int64_t d = t.ndim - 1, due = 1; d >= 0; due *= t.shape[d], d--)
      whole.shape[d] = t.shape[d], whole.strides[d] = due;
  }
  nb::object owner;
  Checkpoint &c;
  int64_t i;
  reshard_model_tensor t; // but for its name, which goes with the checkpoint
  std::string name;
  Array whole;       // without memory
  nb::object places; // an array of bytes of that shape, at an address that is never read
  int64_t bytes() const { return whole.elements() * int64_t(reshard_dtype_size(t.dtype)); }
};
char *const NOWHERE = reinterpret_cast<char *>(4096);

// numpy's basic indexing, by numpy: the place, shape and strides of what it takes tell the box that bounds it.
Any get(LazyTensor &l, nb::handle given) {
  nb::list index = nb::isinstance<nb::tuple>(given) ? nb::list(given) : nb::list(nb::make_tuple(given));
  bool dots = false;
  for (size_t k = 0; k < index.size(); k++) {
    nb::object part = index[k];
    dots = dots || part.is(nb::ellipsis());
    if (part.is_none() || part.is(nb::ellipsis()) || PySlice_Check(part.ptr()))
      continue;
    if (PyBool_Check(part.ptr()) || !PyIndex_Check(part.ptr()))
      throw nb::index_error(("'" + l.name + "': only integers, slices, ... and None index a lazy tensor").c_str());
    index[k] = nb::steal(PyNumber_Index(part.ptr()));
  }
  if (!dots)
    index.append(nb::ellipsis()); // a view, never a number
  const Array &whole = l.whole;
  if (!l.places.is_valid())
    l.places = nb::cast(nb::ndarray<nb::numpy, const uint8_t>(
        NOWHERE, size_t(whole.ndim), std::vector<size_t>(whole.shape, whole.shape + whole.ndim).data(), nb::int_(0)));
  const Array part = array_of(l.places[nb::tuple(index)], {"index"});
  reshard_box box = {};
  int64_t at = static_cast<char *>(part.data) - NOWHERE, step[RESHARD_MAX_DIMS];
  bool empty = part.elements() == 0, plain = true;
  for (int d = 0; d < whole.ndim && !empty; d++)
    box.offset[d] = at / whole.strides[d], at %= whole.strides[d], box.extent[d] = step[d] = 1;
  for (int r = 0, d = 0; r < part.ndim && !empty; r++) {
    if (part.shape[r] == 1)
      continue;
    while (whole.shape[d] == 1 || whole.strides[d] > std::abs(part.strides[r]))
      d++;
    step[d] = part.strides[r] / whole.strides[d];
    box.extent[d] = (part.shape[r] - 1) * std::abs(step[d]) + 1;
    box.offset[d] -= step[d] < 0 ? box.extent[d] - 1 : 0;
    plain = plain && step[d] == 1;
  }
  nb::object out = numpy_empty(whole.dtype, plain ? part.ndim : whole.ndim, plain ? part.shape : box.extent);
  void *data = array_of(out, {"array"}).data;
  Use<Checkpoint> in(l.c);
  run([&] { return empty ? RESHARD_SUCCESS : reshard_checkpoint_read_box(l.c.handle, l.i, &box, 0, data); });
  if (plain)
    return part.ndim == 0 && !dots ? nb::object(out[nb::tuple()]) : out;
  nb::list every;
  for (int d = 0; d < whole.ndim; d++)
    every.append(nb::slice(nb::none(), nb::none(), nb::int_(step[d])));
  return out[nb::tuple(every)].attr("reshape")(tuple_of(part.ndim, part.shape));
}

// Reads one rank's part into the caller's arrays, which are contiguous.
void read_part(LazyTensor &l, const Layout &layout, int64_t rank, nb::handle out, int threads) {
  Use<Checkpoint> in(l.c);
  std::vector<Wanted> wanted{{&layout, l.t.dtype, l.name}};
  Side side = side_of(out, wanted, rank, "array", true, false);
  for (const Array &a : side.arrays)
    if (!a.contiguous())
      invalid("'", l.name, "': an array that is not contiguous; read into one that is");
  run([&] { return reshard_checkpoint_read(l.c.handle, l.i, layout.handle, rank, threads, side.data.data()); });
}

Any read_whole(LazyTensor &l, nb::object out, int threads) {
  const Layout layout(got<reshard_layout>(reshard_layout_create_single, l.t.ndim, l.t.shape, 1, 0));
  if (out.is_none())
    out = numpy_empty(l.t.dtype, l.t.ndim, l.t.shape);
  read_part(l, layout, 0, out, threads);
  return out;
}
Any read_torch(LazyTensor &l) {
  nb::object torch = nb::module_::import_("torch"), dtype = torch.attr(dtype_name(l.t.dtype));
  return read_whole(l, torch.attr("empty")(tuple_of(l.t.ndim, l.t.shape), "dtype"_a = dtype), 0);
}
Any read_as(LazyTensor &l, nb::handle dtype, nb::handle copy) {
  if (copy.is(nb::bool_(false)))
    throw nb::value_error("a lazy tensor is read into new memory");
  nb::object all = read_whole(l, nb::none(), 0);
  return dtype.is_none() ? all : nb::object(all.attr("astype")(dtype));
}

// The file and the byte from which on a tensor lies whole.
const char *stored_whole(LazyTensor &l, int64_t *offset) {
  for (int64_t piece = 0;; piece++) {
    const char *file = nullptr;
    reshard_box box;
    reshard_status status = reshard_checkpoint_stored(l.c.handle, l.i, piece, &file, offset, &box);
    if (status == RESHARD_ERROR_INVALID)
      unsupported("'", l.name, "' lies in ", piece, " pieces, none of them whole: read it");
    check(status);
    if (std::equal(l.t.shape, l.t.shape + l.t.ndim, box.extent))
      return file;
  }
}

struct Mapping {
  Mapping(const char *file, int64_t offset, int64_t length, const std::string &name)
      : before(offset % sysconf(_SC_PAGESIZE)), bytes(size_t(before + length)) {
    struct stat info = {};
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    const bool known = fd >= 0 && fstat(fd, &info) == 0, whole = known && info.st_size >= offset + length;
    at = whole ? mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, offset - before) : MAP_FAILED;
    const int number = errno;
    if (fd >= 0)
      ::close(fd);
    if (at == MAP_FAILED)
      raise(RESHARD_ERROR_SYSTEM, text_of("'", name, "' of '", file, "': ",
                                          known && !whole ? "the file has become shorter" : std::strerror(number)));
  }
  ~Mapping() { munmap(at, bytes); }
  void *at;
  int64_t before; // bytes from the page's begin
  size_t bytes;
};

Any map(LazyTensor &l) {
  Array a = l.whole;
  if (a.elements() == 0)
    return numpy_empty(a.dtype, a.ndim, a.shape);
  Use<Checkpoint> in(l.c);
  int64_t offset = 0;
  const char *file = stored_whole(l, &offset);
  auto mapping = std::make_unique<Mapping>(file, offset, l.bytes(), l.name);
  a.data = static_cast<char *>(mapping->at) + mapping->before;
  nb::capsule owner(mapping.release(), [](void *m) noexcept { delete static_cast<Mapping *>(m); });
  return numpy_over(a, false, owner);
}

Layout stored_layout(LazyTensor &l) {
  Use<Checkpoint> in(l.c);
  return Layout(waited<reshard_layout>(reshard_checkpoint_layout, l.c.handle, l.i));
}
Any dtype(LazyTensor &l) { return nb::borrow(numpy_type(l.t.dtype)); }
int64_t length(LazyTensor &l) {
  if (l.t.ndim == 0)
    throw nb::type_error("len() of a tensor without dims");
  return l.t.shape[0];
}
std::string shown(LazyTensor &l) {
  return text_of("<reshard tensor '", l.name, "', ", reshard_dtype_string(l.t.dtype), ", ",
                 shape_text(l.t.ndim, l.t.shape), ", ", l.bytes(), " bytes, not read>");
}

// --- Checkpoints -----------------------------------------------------------------------------------------------------

nb::typed<nb::dict, nb::str, nb::str> metadata_of(Checkpoint &c) {
  Use<Checkpoint> in(c);
  nb::dict d;
  for (int64_t i = 0; i < got<reshard_checkpoint_info>(reshard_checkpoint_get_info, c.handle).metadata; i++) {
    const char *key = nullptr, *value = nullptr;
    check(reshard_checkpoint_metadata(c.handle, i, &key, &value));
    d[key] = value;
  }
  return d;
}
Report info_of(Checkpoint &c) {
  Use<Checkpoint> in(c);
  const auto i = got<reshard_checkpoint_info>(reshard_checkpoint_get_info, c.handle);
  return report_of("format", reshard_file_format_string(i.format), "tensors", i.tensors, "files", i.files, "bytes",
                   i.bytes, "stored_bytes", i.stored_bytes, "world", i.world, "left_out", i.left_out);
}
std::vector<std::string> names_of(Checkpoint &c) {
  Use<Checkpoint> in(c);
  std::vector<std::string> names;
  for (int64_t i = 0; i < reshard_model_count(reshard_checkpoint_model(c.handle)); i++)
    names.push_back(tensor_of(c, i).name);
  return names;
}

} // namespace

void bind_checkpoint(nb::module_ &m) {
  nb::class_<LazyTensor>(m, "LazyTensor", "A tensor of a checkpoint. An index reads the part that it names, then.")
      .def(nb::init<nb::object, int64_t>(), "checkpoint"_a, "i"_a)
      .def_ro("name", &LazyTensor::name)
      .def_prop_ro("dtype", &dtype, "numpy's, of ml_dtypes where it has none.")
      .def_prop_ro("layout", &stored_layout, "The layout as the files have it.")
      .def_prop_ro("shape", [](LazyTensor &l) { return tuple_of(l.t.ndim, l.t.shape); })
      .def_prop_ro("ndim", [](LazyTensor &l) { return l.t.ndim; })
      .def_prop_ro("size", [](LazyTensor &l) { return l.whole.elements(); })
      .def_prop_ro("nbytes", &LazyTensor::bytes)
      .def("__len__", &length)
      .def("__getitem__", &get, "index"_a.none())
      .def("_read", &read_part, "layout"_a, "rank"_a, "out"_a.none(), "threads"_a)
      .def("read", &read_whole, "out"_a = nb::none(), nb::kw_only(), "threads"_a = 0,
           "The whole tensor: a new numpy array, or into `out`, contiguous, of numpy or torch.")
      .def("torch", &read_torch, "The whole tensor as a new torch tensor.")
      .def("map", &map,
           "A read-only view of the file, where the tensor lies whole in it. A file cut meanwhile is SIGBUS.")
      .def("__array__", &read_as, "dtype"_a = nb::none(), "copy"_a = nb::none())
      .def("__repr__", &shown);
  nb::class_<Checkpoint> checkpoint(m, "_Checkpoint");
  checkpoint.def(nb::init<nb::handle>(), "path"_a)
      .def("names", &names_of)
      .def_prop_ro("metadata", &metadata_of)
      .def_prop_ro("info", &info_of)
      .def_prop_ro("closed", &Checkpoint::closed)
      .def("close", &Checkpoint::close);
}
