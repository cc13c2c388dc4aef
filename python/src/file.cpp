// Checkpoints: opened, read by index and in any layout, written, converted, checked.
#include "core.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/variant.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <variant>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

// The path of a str, bytes or os.PathLike, which has to be there.
std::string path_of(nb::handle path, bool there = true) {
  std::string text = nb::cast<std::string>(nb::steal(PyOS_FSPath(path.ptr())));
  c_text(text, "path");
  if (there && access(text.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR))
    raise(RESHARD_ERROR_INVALID, "no file or directory '" + text + "'", {}, "MissingError");
  return text;
}

struct Checkpoint {
  explicit Checkpoint(nb::handle path) {
    const std::string text = path_of(path);
    run([&] { return reshard_checkpoint_open(text.c_str(), &handle); });
  }
  Checkpoint(const Checkpoint &) = delete;
  ~Checkpoint() { reshard_checkpoint_close(handle); }
  void close() {
    if (calls > 0)
      raise(RESHARD_ERROR_BUSY, "the checkpoint is read in another thread");
    reshard_checkpoint_close(handle);
    handle = nullptr;
  }
  reshard_checkpoint handle = nullptr; // NULL once it is closed
  int calls = 0;
};

struct Reading { // keeps a checkpoint open until a call returns
  explicit Reading(Checkpoint &c) : c(c) {
    if (c.handle == nullptr)
      invalid("the checkpoint is closed");
    c.calls++;
  }
  ~Reading() { c.calls--; }
  Checkpoint &c;
};

int64_t find(Checkpoint &c, const std::string &name) {
  Reading in(c);
  int64_t i = -1;
  bool found = name.find('\0') == std::string::npos && reshard_checkpoint_find(c.handle, name.c_str(), &i) == 0;
  return found ? i : -1;
}

reshard_model_tensor tensor_of(Checkpoint &c, int64_t i) {
  Reading in(c);
  reshard_model_tensor t;
  check(reshard_model_get(reshard_checkpoint_model(c.handle), i, &t));
  return t;
}

// --- Lazy tensors ----------------------------------------------------------------------------------------------------

struct LazyTensor {
  LazyTensor(nb::object owner, int64_t i)
      : owner(owner), c(nb::cast<Checkpoint &>(owner)), i(i), t(tensor_of(c, i)), name(t.name) {}
  nb::object owner;
  Checkpoint &c;
  int64_t i;
  reshard_model_tensor t; // but for its name, which goes with the checkpoint
  std::string name;
  nb::object places; // an array of bytes of that shape, at an address that is never read
  Array array() const {
    Array a;
    a.dtype = t.dtype, a.ndim = t.ndim;
    for (int64_t d = t.ndim - 1, due = 1; d >= 0; due *= t.shape[d], d--)
      a.shape[d] = t.shape[d], a.strides[d] = due;
    return a;
  }
  int64_t bytes() const { return array().elements() * int64_t(reshard_dtype_size(t.dtype)); }
};
char *const NOWHERE = reinterpret_cast<char *>(4096);

nb::typed<nb::object, LazyTensor> lazy_tensor(nb::object self, const std::string &name) {
  int64_t i = find(nb::cast<Checkpoint &>(self), name);
  if (i < 0)
    throw nb::key_error(name.c_str());
  return nb::cast(new LazyTensor(self, i), nb::rv_policy::take_ownership);
}

// numpy's basic indexing, by numpy: the place, shape and strides of what it takes tell the box that bounds it.
Any get(LazyTensor &l, nb::handle given) {
  nb::list index = nb::isinstance<nb::tuple>(given) ? nb::list(given) : nb::list();
  if (!nb::isinstance<nb::tuple>(given))
    index.append(given);
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
  if (!l.places.is_valid())
    l.places = nb::cast(nb::ndarray<nb::numpy, const uint8_t>(
        NOWHERE, size_t(l.t.ndim), std::vector<size_t>(l.t.shape, l.t.shape + l.t.ndim).data(), nb::int_(0)));
  const Array part = array_of(l.places[nb::tuple(index)], {"index"});
  reshard_box box = {};
  const Array whole = l.array();
  int64_t at = static_cast<char *>(part.data) - NOWHERE, step[RESHARD_MAX_DIMS];
  bool empty = part.elements() == 0, plain = true;
  for (int d = 0; d < l.t.ndim && !empty; d++)
    box.offset[d] = at / whole.strides[d], at %= whole.strides[d], box.extent[d] = step[d] = 1;
  for (int r = 0, d = 0; r < part.ndim && !empty; r++) {
    if (part.shape[r] == 1)
      continue;
    while (l.t.shape[d] == 1 || whole.strides[d] > std::abs(part.strides[r]))
      d++;
    step[d] = part.strides[r] / whole.strides[d];
    box.extent[d] = (part.shape[r] - 1) * std::abs(step[d]) + 1;
    box.offset[d] -= step[d] < 0 ? box.extent[d] - 1 : 0;
    plain = plain && step[d] == 1;
  }
  nb::object out = plain ? numpy_empty(l.t.dtype, part.ndim, part.shape) : numpy_empty(l.t.dtype, l.t.ndim, box.extent);
  void *data = array_of(out, {"array"}).data;
  Reading in(l.c);
  run([&] { return empty ? RESHARD_SUCCESS : reshard_checkpoint_read_box(l.c.handle, l.i, &box, 0, data); });
  if (plain)
    return part.ndim == 0 && !dots ? nb::object(out[nb::tuple()]) : out;
  nb::list every;
  for (int d = 0; d < l.t.ndim; d++)
    every.append(nb::slice(nb::none(), nb::none(), nb::int_(step[d])));
  return out[nb::tuple(every)].attr("reshape")(tuple_of(part.ndim, part.shape));
}

// Reads one rank's part into the caller's arrays, which are contiguous.
void read_part(LazyTensor &l, const Layout &layout, int64_t rank, nb::handle out, int threads) {
  Reading in(l.c);
  Side side = side_of(out, {{&layout, l.t.dtype, l.name}}, rank, "array", true, false);
  for (const Array &a : side.arrays)
    if (!a.contiguous())
      invalid("'" + l.name + "': an array that is not contiguous; read into one that is");
  run([&] { return reshard_checkpoint_read(l.c.handle, l.i, layout.handle, rank, threads, side.data.data()); });
}

Any read_whole(LazyTensor &l, nb::object out, int threads) {
  reshard_layout whole = nullptr;
  check(reshard_layout_create_single(l.t.ndim, l.t.shape, 1, 0, &whole));
  const Layout layout(whole);
  if (out.is_none())
    out = numpy_empty(l.t.dtype, l.t.ndim, l.t.shape);
  read_part(l, layout, 0, out, threads);
  return out;
}

Any read_torch(LazyTensor &l) {
  nb::object torch = nb::module_::import_("torch"), dtype = torch.attr(dtype_name(l.t.dtype));
  return read_whole(l, torch.attr("empty")(tuple_of(l.t.ndim, l.t.shape), "dtype"_a = dtype), 0);
}

// The file and the byte from which on a tensor lies whole.
const char *stored_whole(LazyTensor &l, int64_t *offset) {
  for (int64_t piece = 0;; piece++) {
    const char *file = nullptr;
    reshard_box box;
    reshard_status status = reshard_checkpoint_stored(l.c.handle, l.i, piece, &file, offset, &box);
    if (status == RESHARD_ERROR_INVALID)
      raise(RESHARD_ERROR_UNSUPPORTED,
            "'" + l.name + "' lies in " + std::to_string(piece) + " pieces, none of them whole: read it");
    check(status);
    if (std::equal(l.t.shape, l.t.shape + l.t.ndim, box.extent))
      return file;
  }
}

Any map(LazyTensor &l) {
  Array a = l.array();
  if (a.elements() == 0)
    return numpy_empty(a.dtype, a.ndim, a.shape);
  Reading in(l.c);
  int64_t offset = 0, before;
  const char *file = stored_whole(l, &offset);
  struct stat info = {};
  int fd = open(file, O_RDONLY | O_CLOEXEC);
  before = offset % sysconf(_SC_PAGESIZE);
  size_t bytes = size_t(before + l.bytes());
  void *at = MAP_FAILED;
  if (fd >= 0 && fstat(fd, &info) == 0 && info.st_size >= offset + l.bytes())
    at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, offset - before);
  int number = fd < 0 || info.st_size >= offset + l.bytes() ? errno : EOVERFLOW;
  if (fd >= 0)
    close(fd);
  if (at == MAP_FAILED)
    raise(RESHARD_ERROR_SYSTEM, "'" + l.name + "' of '" + file + "': " +
                                    (number == EOVERFLOW ? "the file has become shorter" : std::strerror(number)));
  struct Mapped {
    void *at;
    size_t bytes;
  };
  nb::capsule owner(new Mapped{at, bytes}, [](void *m) noexcept {
    munmap(static_cast<Mapped *>(m)->at, static_cast<Mapped *>(m)->bytes);
    delete static_cast<Mapped *>(m);
  });
  a.data = static_cast<char *>(at) + before;
  return numpy_over(a, false, owner);
}

struct Rules {
  explicit Rules(reshard_rules handle) : handle(handle) {}
  Rules(const Rules &) = delete;
  ~Rules() { reshard_rules_free(handle); }
  reshard_rules handle;
};

Layout *rules_layout(const Rules &rules, const std::string &name, const Shape &shape, int64_t world) {
  reshard_layout layout = nullptr;
  check(reshard_rules_layout(rules.handle, c_text(name, "name"), int(shape.size()), shape.data(), world, &layout));
  return new Layout(layout);
}

// Writes whole tensors, or each rank's part of tensors of layouts.
void write_all(nb::handle path, const nb::typed<nb::mapping, nb::str, nb::any> &tensors,
               const std::optional<std::map<std::string, std::string>> &metadata, bool force) {
  std::vector<reshard_writer_tensor> all;
  std::vector<reshard_text_pair> pairs;
  std::list<std::string> names;
  std::vector<std::unique_ptr<Layout>> whole;
  std::vector<std::vector<Side>> sides;
  for (nb::handle item : tensors.items()) {
    const std::string &name = names.emplace_back(nb::cast<std::string>(item[0]));
    nb::object value = item[1];
    const Layout *l;
    std::vector<nb::object> ranks;
    if (!nb::isinstance<nb::tuple>(value)) {
      Array a = array_of(value, {("'" + name + "'").c_str()});
      reshard_layout made = nullptr;
      check(reshard_layout_create_single(a.ndim, a.shape, 1, 0, &made));
      whole.push_back(std::make_unique<Layout>(made));
      l = whole.back().get(), ranks.push_back(value);
    } else {
      l = &layout_arg(value[0]);
      for (nb::handle h : value[1])
        ranks.push_back(nb::borrow(h));
      if (int64_t(ranks.size()) != reshard_layout_world(l->handle))
        invalid("'" + name + "': arrays of " + std::to_string(ranks.size()) + " ranks for a layout of " +
                std::to_string(reshard_layout_world(l->handle)));
    }
    sides.emplace_back();
    reshard_dtype dtype = RESHARD_DTYPE_NONE;
    for (size_t r = 0; r < ranks.size(); r++) {
      sides.back().push_back(side_of(ranks[r], {{l, dtype, name}}, int64_t(r), "array", false, false));
      for (const Array &a : sides.back().back().arrays) {
        if (dtype == RESHARD_DTYPE_NONE)
          dtype = a.dtype;
        if (!a.contiguous())
          invalid("'" + name + "': an array that is not contiguous");
      }
    }
    all.push_back({c_text(name, "name"), dtype, l->handle});
  }
  reshard_writer_options options = RESHARD_WRITER_OPTIONS_DEFAULTS;
  options.force = force;
  if (metadata)
    for (const auto &[key, value] : *metadata)
      pairs.push_back({c_text(key, "metadata"), c_text(value, "metadata")});
  options.metadata = pairs.data(), options.nmetadata = int64_t(pairs.size());
  reshard_writer writer = nullptr;
  const std::string to = path_of(path, false);
  run([&] {
    reshard_status status = reshard_writer_create(to.c_str(), int64_t(all.size()), all.data(), &options, &writer);
    for (size_t i = 0; status == RESHARD_SUCCESS && i < all.size(); i++)
      for (size_t r = 0; status == RESHARD_SUCCESS && r < sides[i].size(); r++)
        status = reshard_writer_put(writer, int64_t(i), int64_t(r), sides[i][r].data.data());
    if (status == RESHARD_SUCCESS)
      return reshard_writer_commit(writer);
    std::string text = reshard_last_error();
    reshard_writer_abandon(writer);
    return status;
  });
}

// A progress function in Python; what it raises ends the call and comes out of it.
struct Progress {
  nb::object call;
  std::exception_ptr raised;
};

int progress(void *user, const char *stage, int64_t done, int64_t all) {
  Progress &p = *static_cast<Progress *>(user);
  nb::gil_scoped_acquire acquire;
  try {
    if (PyErr_CheckSignals() != 0)
      throw nb::python_error();
    if (!p.call.is_none())
      p.call(stage, done, all);
    return 0;
  } catch (...) {
    p.raised = std::current_exception();
    return 1;
  }
}

using Report = nb::typed<nb::dict, nb::str, nb::any>;
using LayoutOrRules = std::variant<std::monostate, std::string, Rules *>;

Report convert(nb::handle src, nb::handle dst, const LayoutOrRules &src_layout, const LayoutOrRules &dst_layout,
               std::optional<std::string> map, int64_t world, bool force, bool dedup, bool verify, bool leave_out,
               int threads, nb::object call, nb::handle dtype) {
  const std::string in = path_of(src), out = path_of(dst, false);
  if (out.empty())
    invalid("an empty path");
  reshard_convert_options options = RESHARD_CONVERT_OPTIONS_DEFAULTS;
  auto take = [](const LayoutOrRules &given, const char *&text, reshard_rules &rules) {
    if (const std::string *t = std::get_if<std::string>(&given))
      text = c_text(*t, "layout");
    else if (Rules *const *r = std::get_if<Rules *>(&given))
      rules = (*r)->handle;
  };
  take(src_layout, options.src, options.src_rules), take(dst_layout, options.dst, options.dst_rules);
  options.world = world, options.force = force, options.dedup = dedup, options.verify = verify,
  options.leave_out = leave_out, options.threads = threads;
  options.dtype = dtype_or(dtype, RESHARD_DTYPE_NONE);
  Progress p{call, nullptr};
  options.progress = progress, options.user = &p;
  std::unique_ptr<reshard_map_s, void (*)(reshard_map)> owned(nullptr, reshard_map_free);
  if (map) {
    check(reshard_map_parse(c_text(*map, "map"), nullptr, &options.map));
    owned.reset(options.map);
  }
  reshard_convert_report r;
  reshard_status status;
  {
    nb::gil_scoped_release release;
    status = reshard_convert(in.c_str(), out.c_str(), &options, &r);
  }
  if (p.raised)
    std::rethrow_exception(p.raised);
  check(status);
  Report d;
  d["tensors"] = r.tensors, d["files"] = r.files, d["world"] = r.world, d["bytes"] = r.bytes;
  d["format"] = reshard_file_format_string(r.format);
  d["source_format"] = reshard_file_format_string(r.source.format);
  d["checked_bytes"] = r.checked_bytes, d["left_out"] = r.source.left_out;
  d["left_out_tensors"] = r.source.left_out_tensors;
  d["converted"] = r.converted, d["unconverted"] = r.unconverted;
  d["seconds"] = r.open_seconds + r.reserve_seconds + r.move_seconds + r.sync_seconds + r.verify_seconds;
  return d;
}

struct Findings {
  std::vector<std::string> wrong, unchecked;
};

Report check_files(nb::handle path, int threads) {
  const std::string text = path_of(path);
  reshard_check_options options = RESHARD_CHECK_OPTIONS_DEFAULTS;
  Findings findings;
  options.threads = threads, options.user = &findings;
  options.found = [](void *user, int wrong, const char *text) {
    Findings &f = *static_cast<Findings *>(user);
    (wrong ? f.wrong : f.unchecked).push_back(text);
  };
  reshard_check_report report = {};
  run([&] {
    reshard_status status = reshard_checkpoint_check(text.c_str(), &options, &report);
    return status == RESHARD_ERROR_CORRUPT && !findings.wrong.empty() ? RESHARD_SUCCESS : status;
  });
  Report d;
  d["files"] = report.files, d["unchecked_files"] = report.unchecked_files, d["checked_bytes"] = report.checked_bytes;
  d["wrong"] = nb::cast(findings.wrong), d["unchecked"] = nb::cast(findings.unchecked);
  return d;
}

nb::typed<nb::dict, nb::str, nb::str> metadata_of(Checkpoint &c) {
  Reading in(c);
  reshard_checkpoint_info info;
  check(reshard_checkpoint_get_info(c.handle, &info));
  nb::dict d;
  for (int64_t i = 0; i < info.metadata; i++) {
    const char *key = nullptr, *value = nullptr;
    check(reshard_checkpoint_metadata(c.handle, i, &key, &value));
    d[key] = value;
  }
  return d;
}

Report info_of(Checkpoint &c) {
  Reading in(c);
  reshard_checkpoint_info i;
  check(reshard_checkpoint_get_info(c.handle, &i));
  Report d;
  d["format"] = reshard_file_format_string(i.format), d["tensors"] = i.tensors, d["files"] = i.files;
  d["bytes"] = i.bytes, d["stored_bytes"] = i.stored_bytes, d["world"] = i.world, d["left_out"] = i.left_out;
  return d;
}

Layout *stored_layout(LazyTensor &l) {
  Reading in(l.c);
  reshard_layout layout = nullptr;
  run([&] { return reshard_checkpoint_layout(l.c.handle, l.i, &layout); });
  return new Layout(layout);
}

std::vector<std::string> names_of(Checkpoint &c) {
  Reading in(c);
  std::vector<std::string> names;
  for (int64_t i = 0; i < reshard_model_count(reshard_checkpoint_model(c.handle)); i++)
    names.push_back(tensor_of(c, i).name);
  return names;
}

void bind_lazy(nb::module_ &m) {
  nb::class_<LazyTensor>(m, "LazyTensor",
                         "A tensor of a checkpoint. Nothing is read until it is indexed, and then the part that the "
                         "index names.")
      .def_ro("name", &LazyTensor::name)
      .def_prop_ro(
          "dtype", [](LazyTensor &l) { return Any(nb::borrow(numpy_type(l.t.dtype))); },
          "numpy's, of ml_dtypes where it has none.")
      .def_prop_ro("layout", &stored_layout, nb::rv_policy::take_ownership, "The layout as the files have it.")
      .def_prop_ro("shape", [](LazyTensor &l) { return tuple_of(l.t.ndim, l.t.shape); })
      .def_prop_ro("ndim", [](LazyTensor &l) { return l.t.ndim; })
      .def_prop_ro("size", [](LazyTensor &l) { return l.array().elements(); })
      .def_prop_ro("nbytes", &LazyTensor::bytes)
      .def("__len__",
           [](LazyTensor &l) {
             if (l.t.ndim == 0)
               throw nb::type_error("len() of a tensor without dims");
             return l.t.shape[0];
           })
      .def("__getitem__", &get, "index"_a.none())
      .def("_read", &read_part, "layout"_a, "rank"_a, "out"_a.none(), "threads"_a)
      .def("read", &read_whole, "out"_a = nb::none(), nb::kw_only(), "threads"_a = 0,
           "The whole tensor: a new numpy array, or into `out`, contiguous, of numpy or torch.")
      .def("torch", &read_torch, "The whole tensor as a new torch tensor.")
      .def("map", &map,
           "A read-only view of the file, which it keeps open, where the tensor lies whole. A file cut meanwhile is "
           "SIGBUS.")
      .def(
          "__array__",
          [](LazyTensor &l, nb::handle dtype, nb::object copy) -> Any {
            if (copy.is(nb::bool_(false)))
              throw nb::value_error("a lazy tensor is read into new memory");
            nb::object whole = read_whole(l, nb::none(), 0);
            return dtype.is_none() ? whole : nb::object(whole.attr("astype")(dtype));
          },
          "dtype"_a = nb::none(), "copy"_a = nb::none())
      .def("__repr__", [](LazyTensor &l) {
        return "<reshard tensor '" + l.name + "', " + reshard_dtype_string(l.t.dtype) + ", " +
               shape_text(l.t.ndim, l.t.shape) + ", " + std::to_string(l.bytes()) + " bytes, not read>";
      });
}

} // namespace

void bind_file(nb::module_ &m) {
  nb::class_<Checkpoint>(m, "_Checkpoint")
      .def(nb::init<nb::handle>(), "path"_a)
      .def("__len__", [](Checkpoint &c) { return names_of(c).size(); })
      .def("__contains__", [](Checkpoint &c, const std::string &name) { return find(c, name) >= 0; })
      .def("__getitem__", &lazy_tensor)
      .def("names", &names_of)
      .def("metadata", &metadata_of)
      .def("info", &info_of)
      .def("closed", [](Checkpoint &c) { return c.handle == nullptr; })
      .def("close", &Checkpoint::close);
  bind_lazy(m);
  nb::class_<Rules>(m, "Rules",
                    "The layout of each tensor of a model by name: lines of PATTERN LAYOUT, the first match wins.")
      .def(nb::new_([](const std::string &text, const std::string &name) {
             reshard_rules made = nullptr;
             check(reshard_rules_parse(c_text(text, "rules"), c_text(name, "name"), &made));
             return new Rules(made);
           }),
           "text"_a, "name"_a = "rules")
      .def_static(
          "load",
          [](nb::handle path) {
            reshard_rules made = nullptr;
            check(reshard_rules_load(path_of(path, false).c_str(), &made));
            return new Rules(made);
          },
          "path"_a, nb::rv_policy::take_ownership)
      .def("layout", &rules_layout, "name"_a, "shape"_a, "world"_a = 0, nb::rv_policy::take_ownership);
  m.def("write", &write_all, "path"_a, "tensors"_a, "metadata"_a = nb::none(), nb::kw_only(), "force"_a = false,
        "Writes a checkpoint, complete or not at all.\n\n"
        "tensors: by name an array, or (layout, arrays of all ranks) for a directory of shards. The path decides the\n"
        "format. metadata: texts beside the tensors, in safetensors files.");
  m.def("convert", &convert, "src"_a, "dst"_a, nb::kw_only(), "src_layout"_a = nb::none(), "dst_layout"_a = nb::none(),
        "map"_a = nb::none(), "world"_a = 0, "force"_a = false, "dedup"_a = false, "verify"_a = false,
        "leave_out"_a = false, "threads"_a = 0, "progress"_a = nb::none(), "dtype"_a = nb::none(),
        "Converts one checkpoint into another: cut, reshard, join, fuse. progress(stage, done, all) may raise to "
        "cancel.\n\n"
        "- leave_out: tensors below classes that are not read are counted, not an error.\n"
        "- dtype: of all numbers in dst, converted in the same pass; rules and casts of a map go before it.");
  m.def("check", &check_files, "path"_a, nb::kw_only(), "threads"_a = 0,
        "Reads a checkpoint and checks it by its digests. `wrong` has a line for each piece that is not as it was "
        "written.");
}
