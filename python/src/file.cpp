// Checkpoints: open ones, and their tensors, read where they are indexed; written, converted, checked; rules.
#include "core.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/variant.h>

#include <list>
#include <variant>

std::string path_of(nb::handle path) {
  PyObject *bytes = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &bytes) == 0)
    nb::raise_python_error();
  return nb::steal<nb::bytes>(bytes).c_str();
}

namespace {

struct Checkpoint : Owned<reshard_checkpoint, reshard_checkpoint_close> { // NULL once it is closed
  explicit Checkpoint(nb::handle path)
      : Owned(waited<reshard_checkpoint>(reshard_checkpoint_open, path_of(path).c_str())) {}
  void close() {
    if (calls > 0)
      raise(RESHARD_ERROR_BUSY, "the checkpoint is read in another thread");
    reshard_checkpoint_close(std::exchange(handle, nullptr));
  }
  bool closed() const { return handle == nullptr; }
  int calls = 0;
  static constexpr const char *noun = "checkpoint";
};

reshard_model_tensor tensor_of(Checkpoint &c, int64_t i) {
  return got<reshard_model_tensor>(reshard_model_get, reshard_checkpoint_model(c.handle), i);
}

// --- Lazy tensors ---------------------------------------------------------------------------------------------------

struct LazyTensor {
  LazyTensor(nb::object owner, nb::handle name_object) : owner(owner), c(as<Checkpoint>(owner, "checkpoint")) {
    Use<Checkpoint> in(c);
    if (!nb::try_cast(name_object, name) || name.find('\0') != std::string::npos ||
        reshard_checkpoint_find(c.handle, name.c_str(), &i) != RESHARD_SUCCESS) {
      PyErr_SetObject(PyExc_KeyError, name_object.ptr());
      nb::raise_python_error();
    }
    const reshard_model_tensor t = tensor_of(c, i);
    whole.dtype = t.dtype, whole.ndim = t.ndim;
    std::copy(t.shape, t.shape + t.ndim, whole.shape);
  }
  nb::object owner;
  Checkpoint &c;
  int64_t i = 0;
  std::string name;
  Array whole; // without memory
  int64_t bytes() const { return whole.elements() * int64_t(reshard_dtype_size(whole.dtype)); }
};

// numpy's basic indexing: the box that bounds what it names is read, and numpy takes that from it.
Any get(LazyTensor &l, nb::handle given) {
  const Array &whole = l.whole;
  nb::list index = nb::isinstance<nb::tuple>(given) ? nb::list(given) : nb::list(nb::make_tuple(given));
  auto wrong = [&](const auto &...parts) { throw nb::index_error(text_of("'", l.name, "': ", parts...).c_str()); };
  int over = whole.ndim; // dims that the index does not name
  for (nb::handle part : index)
    over -= !part.is_none() && !part.is(nb::ellipsis());
  if (over < 0)
    wrong(whole.ndim - over, " indices for ", whole.ndim, " dims");
  reshard_box box = {};
  std::copy(whole.shape, whole.shape + whole.ndim, box.extent);
  bool dots = false;
  for (size_t k = 0, d = 0; k < index.size(); k++) {
    const nb::object part = index[k];
    if (part.is(nb::ellipsis())) {
      if (std::exchange(dots, true))
        wrong("more than one ...");
      d += size_t(over);
    } else if (PySlice_Check(part.ptr())) {
      const auto [begin, end, step, n] = nb::borrow<nb::slice>(part).compute(size_t(whole.shape[d]));
      const int64_t last = int64_t(n - 1) * step; // from the first on
      box.offset[d] = n == 0 ? 0 : begin + std::min<int64_t>(last, 0);
      box.extent[d++] = n == 0 ? 0 : std::abs(last) + 1;
      index[k] = nb::slice(nb::none(), nb::none(), nb::int_(step));
    } else if (!part.is_none()) {
      const nb::object number = nb::steal(PyBool_Check(part.ptr()) ? nullptr : PyNumber_Index(part.ptr()));
      if (!number.is_valid() && (PyErr_Clear(), true))
        wrong("only integers, slices, ... and None index a lazy tensor");
      const int64_t extent = whole.shape[d], at = PyNumber_AsSsize_t(number.ptr(), nullptr); // at most what it can be
      if (at < -extent || at >= extent)
        wrong("index ", at, " of dim ", d, ", which has ", extent);
      box.offset[d] = at < 0 ? at + extent : at, box.extent[d++] = 1;
      index[k] = nb::int_(0);
    }
  }
  const nb::object out = numpy_empty(whole.dtype, whole.ndim, box.extent);
  void *data = array_of(out, {"array"}).data;
  Use<Checkpoint> in(l.c);
  run([&] { return reshard_checkpoint_read_box(l.c.handle, l.i, &box, 0, data); });
  return out[nb::tuple(index)];
}

Layout whole_layout(const Array &a) { // on the one rank of a world
  return Layout(got<reshard_layout>(reshard_layout_create_single, a.ndim, a.shape, 1, 0));
}

// Reads one rank's part into the caller's arrays, which are contiguous, or into new ones.
Any read_part(LazyTensor &l, const Layout &layout, int64_t rank, nb::object out, int threads) {
  Use<Checkpoint> in(l.c);
  if (out.is_none()) {
    nb::list made;
    for (const Array &a : layout.buffers(rank))
      made.append(numpy_empty(l.whole.dtype, a.ndim, a.shape));
    out = layout.value(rank, made);
  }
  std::vector<Wanted> wanted{{&layout, l.whole.dtype, l.name, true}};
  Side side = side_of(out, wanted, rank, "array", true, ON_CPU);
  run([&] { return reshard_checkpoint_read(l.c.handle, l.i, layout.handle, rank, threads, side.data.data()); });
  return out;
}

Any read_whole(LazyTensor &l, nb::object out, int threads) {
  return read_part(l, whole_layout(l.whole), 0, out, threads);
}
Any read_torch(LazyTensor &l) {
  nb::object torch = nb::module_::import_("torch"), dtype = torch.attr(dtype_name(l.whole.dtype));
  return read_whole(l, torch.attr("empty")(tuple_of(l.whole.ndim, l.whole.shape), "dtype"_a = dtype), 0);
}
Any read_as(LazyTensor &l, nb::handle dtype, nb::handle copy) {
  if (copy.is(nb::bool_(false)))
    throw nb::value_error("a lazy tensor is read into new memory");
  nb::object all = read_whole(l, nb::none(), 0);
  return dtype.is_none() ? all : nb::object(all.attr("astype")(dtype));
}

// A view of the file. numpy's memmap and Python's mmap take four times as long.
Any map(LazyTensor &l) {
  struct Mapping {
    ~Mapping() { reshard_checkpoint_unmap(data, bytes); }
    const void *data;
    size_t bytes;
  };
  Use<Checkpoint> in(l.c);
  const void *data = got<const void *>(reshard_checkpoint_map, l.c.handle, l.i);
  Array a = l.whole;
  a.data = const_cast<void *>(data);
  nb::capsule owner(new Mapping{data, size_t(l.bytes())}, [](void *m) noexcept { delete static_cast<Mapping *>(m); });
  return numpy_over(a, owner);
}

Layout stored_layout(LazyTensor &l) {
  Use<Checkpoint> in(l.c);
  return Layout(waited<reshard_layout>(reshard_checkpoint_layout, l.c.handle, l.i));
}
Any dtype(LazyTensor &l) { return nb::borrow(numpy_type(l.whole.dtype)); }
std::string shown(LazyTensor &l) {
  return text_of("<reshard tensor '", l.name, "', ", reshard_dtype_string(l.whole.dtype), ", ",
                 shape_text(l.whole.ndim, l.whole.shape), ", ", l.bytes(), " bytes, not read>");
}

// --- Checkpoints ----------------------------------------------------------------------------------------------------

nb::typed<nb::dict, nb::str, nb::str> metadata_of(Checkpoint &c) {
  nb::dict d;
  for (int64_t i = 0; i < got<reshard_checkpoint_info>(reshard_checkpoint_get_info, c.handle).metadata; i++) {
    const char *key = nullptr, *value = nullptr;
    check(reshard_checkpoint_metadata(c.handle, i, &key, &value));
    d[key] = value;
  }
  return d;
}
std::vector<std::string> names_of(Checkpoint &c) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < reshard_model_count(reshard_checkpoint_model(c.handle)); i++)
    names.push_back(tensor_of(c, i).name);
  return names;
}

using Rules = Owned<reshard_rules, reshard_rules_free>;
using Texts = std::map<std::string, std::string>;
Rules parsed_rules(const std::string &text, const std::string &name) {
  return Rules(got<reshard_rules>(reshard_rules_parse, c_text(text, "rules"), c_text(name, "name")));
}
Rules load_rules(nb::handle path) { return Rules(got<reshard_rules>(reshard_rules_load, path_of(path).c_str())); }
Layout rules_layout(const Rules &rules, const std::string &name, const Shape &shape, int64_t world) {
  return Layout(got<reshard_layout>(reshard_rules_layout, rules.handle, c_text(name, "name"), ndim_of(shape),
                                    shape.data(), world));
}

// --- write ----------------------------------------------------------------------------------------------------------

struct Written { // a tensor, and the arrays of all ranks
  Layout layout;
  std::vector<Wanted> wanted;
  std::vector<Side> ranks;
};

void take(const std::string &name, nb::object value, std::list<Written> &all) {
  const std::string quoted = "'" + name + "'";
  const bool cut = nb::isinstance<nb::tuple>(value) && nb::len(value) == 2;
  Written &out = all.emplace_back(
      Written{cut ? as<Layout>(value[0], quoted.c_str()) : whole_layout(array_of(value, {quoted.c_str()})), {}, {}});
  const nb::tuple ranks = cut ? nb::tuple(nb::object(value[1])) : nb::make_tuple(value);
  if (int64_t(ranks.size()) != out.layout.world())
    invalid(quoted, ": arrays of ", ranks.size(), " ranks for a layout of ", out.layout.world());
  out.wanted = {{&out.layout, RESHARD_DTYPE_NONE, c_text(name, "name"), true}};
  for (nb::handle one : ranks)
    out.ranks.push_back(side_of(one, out.wanted, int64_t(out.ranks.size()), "array", false, ON_CPU));
}

// Writes whole tensors, or each rank's part of tensors of layouts.
void write_all(nb::handle path, const nb::typed<nb::mapping, nb::str, nb::any> &tensors,
               const std::optional<Texts> &metadata, bool force) {
  std::vector<reshard_writer_tensor> all;
  std::vector<reshard_text_pair> pairs;
  std::list<Written> taken;
  for (nb::handle item : tensors.items()) {
    if (!nb::isinstance<nb::str>(item[0]))
      throw nb::type_error(text_of("the name ", str_of(item[0]), ": names are texts").c_str());
    take(str_of(item[0]), item[1], taken);
    const Wanted &w = taken.back().wanted[0];
    all.push_back({w.name.c_str(), w.dtype, w.layout->handle});
  }
  reshard_writer_options options = RESHARD_WRITER_OPTIONS_DEFAULTS;
  const Texts texts = metadata.value_or(Texts()); // the pairs point into it
  for (const auto &[key, value] : texts)
    pairs.push_back({c_text(key, "metadata"), c_text(value, "metadata")});
  options.force = force, options.metadata = pairs.data(), options.nmetadata = int64_t(pairs.size());
  Owned<reshard_writer, reshard_writer_abandon> writer(
      waited<reshard_writer>(reshard_writer_create, path_of(path).c_str(), int64_t(all.size()), all.data(), &options));
  int64_t tensor = 0;
  for (const Written &w : taken) {
    for (size_t r = 0; r < w.ranks.size(); r++)
      run([&] { return reshard_writer_put(writer.handle, tensor, int64_t(r), w.ranks[r].data.data()); });
    tensor++;
  }
  run([&] { return reshard_writer_commit(std::exchange(writer.handle, nullptr)); });
}

// --- convert, check -------------------------------------------------------------------------------------------------

int progress(void *user, const char *stage, int64_t done, int64_t all) {
  return in_python(1, [&] {
    check_signals();
    if (const nb::object &call = *static_cast<nb::object *>(user); !call.is_none())
      call(stage, done, all);
  });
}

using LayoutOrRules = std::variant<std::monostate, std::string, Rules *>;

Report convert(nb::handle src, nb::handle dst, const LayoutOrRules &src_layout, const LayoutOrRules &dst_layout,
               std::optional<std::string> map, int64_t world, bool force, bool dedup, bool verify, bool leave_out,
               int threads, nb::object call, nb::handle dtype) {
  const std::string in = path_of(src), out = path_of(dst);
  reshard_convert_options options = RESHARD_CONVERT_OPTIONS_DEFAULTS;
  auto take = [](const LayoutOrRules &given, const char *&text, reshard_rules &rules) {
    if (const std::string *t = std::get_if<std::string>(&given))
      text = c_text(*t, "layout");
    else if (Rules *const *r = std::get_if<Rules *>(&given))
      rules = (*r)->handle;
  };
  take(src_layout, options.src, options.src_rules), take(dst_layout, options.dst, options.dst_rules);
  options.world = world, options.force = force, options.dedup = dedup, options.verify = verify;
  options.leave_out = leave_out, options.threads = threads;
  if (const std::string text = str_of(dtype); text.find('/') != std::string::npos) // with blocks
    check(reshard_dtype_parse_blocks(c_text(text, "dtype"), &options.dtype, &options.blocks));
  else
    options.dtype = dtype_of(dtype);
  options.progress = progress, options.user = &call;
  const Owned<reshard_map, reshard_map_free> owned(
      map ? got<reshard_map>(reshard_map_parse, c_text(*map, "map"), nullptr) : nullptr);
  options.map = owned.handle;
  const auto r = waited<reshard_convert_report>(reshard_convert, in.c_str(), out.c_str(), &options);
  const double seconds = r.open_seconds + r.reserve_seconds + r.move_seconds + r.sync_seconds + r.verify_seconds;
  return report_of("format"_a = reshard_file_format_string(r.format), FIELD(r, tensors), FIELD(r, files),
                   FIELD(r, world), "source_format"_a = reshard_file_format_string(r.source.format), FIELD(r, bytes),
                   FIELD(r, checked_bytes), FIELD(r.source, left_out), FIELD(r.source, left_out_tensors),
                   FIELD(r, converted), FIELD(r, unconverted), FIELD(r, scaled), "seconds"_a = seconds);
}

Report check_files(nb::handle path, int threads) {
  const std::string text = path_of(path);
  reshard_check_options options = RESHARD_CHECK_OPTIONS_DEFAULTS;
  std::vector<std::string> found[2]; // not checked, wrong
  options.threads = threads, options.user = found;
  options.found = [](void *user, int wrong, const char *line) {
    static_cast<std::vector<std::string> *>(user)[wrong != 0].push_back(line);
  };
  reshard_check_report report = {};
  run([&] {
    reshard_status status = reshard_checkpoint_check(text.c_str(), &options, &report);
    return status == RESHARD_ERROR_CORRUPT && !found[1].empty() ? RESHARD_SUCCESS : status;
  });
  return report_of(FIELD(report, files), FIELD(report, unchecked_files), FIELD(report, checked_bytes),
                   "wrong"_a = nb::cast(found[1]), "unchecked"_a = nb::cast(found[0]));
}

} // namespace

void bind_file(nb::module_ &m) {
  nb::class_<LazyTensor>(m, "LazyTensor", "A tensor of a checkpoint. An index reads the part that it names, then.")
      .def(nb::init<nb::object, nb::handle>(), "checkpoint"_a, "name"_a.none())
      .def_ro("name", &LazyTensor::name)
      .def_prop_ro("dtype", &dtype, "numpy's, of ml_dtypes where it has none.")
      .def_prop_ro("layout", &stored_layout, "The layout as the files have it.")
      .def_prop_ro("shape", [](LazyTensor &l) { return tuple_of(l.whole.ndim, l.whole.shape); })
      .def_prop_ro("ndim", [](LazyTensor &l) { return l.whole.ndim; })
      .def_prop_ro("nbytes", &LazyTensor::bytes)
      .def("__getitem__", &get, "index"_a.none())
      .def("_read", &read_part, "layout"_a, "rank"_a, "out"_a.none(), "threads"_a)
      .def("read", &read_whole, "out"_n, nb::kw_only(), "threads"_a = 0,
           "The whole tensor: a new numpy array, or into `out`, contiguous, of numpy or torch.")
      .def("torch", &read_torch, "The whole tensor as a new torch tensor.")
      .def("map", &map,
           "A read-only view of the file, where the tensor lies whole in it. A file cut meanwhile is SIGBUS.")
      .def("__array__", &read_as, "dtype"_n, "copy"_n)
      .def("__repr__", &shown);
  nb::class_<Checkpoint> checkpoint(m, "_Checkpoint");
  checkpoint.def(nb::init<nb::handle>(), "path"_a)
      .def("names", opened(&names_of))
      .def_prop_ro("metadata", opened(&metadata_of));
  bind_closing(checkpoint, "Closes its files. Tensors that were read, and maps, stay.");
  nb::class_<Rules>(m, "Rules",
                    "The layout of each tensor of a model by name: lines of PATTERN LAYOUT, the first match wins.")
      .def(nb::new_(&parsed_rules), "text"_a, "name"_a = "rules")
      .def_static("load", &load_rules, "path"_a)
      .def("layout", &rules_layout, "name"_a, "shape"_a, "world"_a = 0);
  m.def("write", &write_all, "path"_a, "tensors"_a, "metadata"_n, "force"_a = false,
        "Writes a checkpoint, complete or not at all, in the format of the path. tensors: by name an array, or for a\n"
        "directory of shards (layout, arrays of all ranks). metadata: texts beside the tensors of safetensors.");
  m.def("convert", &convert, "src"_a, "dst"_a, nb::kw_only(), "src_layout"_n, "dst_layout"_n, "map"_n, "world"_a = 0,
        "force"_a = false, "dedup"_a = false, "verify"_a = false, "leave_out"_a = false, "threads"_a = 0, "progress"_n,
        "dtype"_n,
        "Converts a checkpoint: cut, reshard, join, fuse. progress(stage, done, all) may raise to cancel. leave_out:\n"
        "tensors of classes that are not read are counted, no error. dtype: of all numbers that no rule or map casts.");
  m.def("check", &check_files, "path"_a, nb::kw_only(), "threads"_a = 0,
        "Checks a checkpoint by its digests. `wrong` has a line for each piece that is not as it was written.");
}
