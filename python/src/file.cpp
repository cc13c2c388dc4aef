// Checkpoints: opened, read in any layout, written, converted, checked.
#include "core.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>

namespace {

struct Checkpoint {
  explicit Checkpoint(reshard_checkpoint handle) : handle(handle) {}
  Checkpoint(const Checkpoint &) = delete;
  ~Checkpoint() { reshard_checkpoint_close(handle); }
  reshard_checkpoint handle; // NULL once it is closed
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

Checkpoint *open_checkpoint(const std::string &path) {
  reshard_checkpoint handle = nullptr;
  c_text(path, "path");
  run([&] { return reshard_checkpoint_open(path.c_str(), &handle); });
  return new Checkpoint(handle);
}

void close_checkpoint(Checkpoint &c) {
  if (c.calls > 0)
    raise(RESHARD_ERROR_BUSY, "the checkpoint is read in another thread");
  reshard_checkpoint_close(c.handle);
  c.handle = nullptr;
}

nb::tuple tensor_of(Checkpoint &c, int64_t i) {
  Reading in(c);
  reshard_model_tensor t;
  check(reshard_model_get(reshard_checkpoint_model(c.handle), i, &t));
  nb::list shape;
  for (int d = 0; d < t.ndim; d++)
    shape.append(t.shape[d]);
  return nb::make_tuple(t.name, reshard_dtype_string(t.dtype), nb::tuple(shape));
}

Layout *layout_of(Checkpoint &c, int64_t i) {
  Reading in(c);
  reshard_layout layout = nullptr;
  run([&] { return reshard_checkpoint_layout(c.handle, i, &layout); });
  return new Layout(layout);
}

// Reads one rank's part into the caller's arrays, which are contiguous.
void read_part(Checkpoint &c, int64_t i, const Layout &layout, int64_t rank, nb::handle out, int threads) {
  Reading in(c);
  reshard_model_tensor t;
  check(reshard_model_get(reshard_checkpoint_model(c.handle), i, &t));
  Side side = side_of(out, {{&layout, t.dtype, t.name}}, rank, "array", true, false);
  for (const Array &a : side.arrays) {
    if (!a.contiguous())
      invalid(std::string("'") + t.name + "': an array that is not contiguous; read into one that is");
  }
  run([&] { return reshard_checkpoint_read(c.handle, i, layout.handle, rank, threads, side.data.data()); });
}

// The file and the byte from which on a tensor lies whole.
nb::tuple stored_whole(Checkpoint &c, int64_t i) {
  Reading in(c);
  reshard_model_tensor t;
  check(reshard_model_get(reshard_checkpoint_model(c.handle), i, &t));
  for (int64_t piece = 0;; piece++) {
    const char *file = nullptr;
    int64_t offset = 0;
    reshard_box box;
    reshard_status status = reshard_checkpoint_stored(c.handle, i, piece, &file, &offset, &box);
    if (status == RESHARD_ERROR_INVALID)
      raise(RESHARD_ERROR_UNSUPPORTED,
            std::string("'") + t.name + "' lies in " + std::to_string(piece) + " pieces, none of them whole: read it");
    check(status);
    if (std::equal(t.shape, t.shape + t.ndim, box.extent))
      return nb::make_tuple(file, offset);
  }
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
void write_all(const std::string &path, const std::vector<std::tuple<std::string, nb::object, nb::object>> &tensors,
               const std::vector<std::pair<std::string, std::string>> &metadata, bool force) {
  std::vector<reshard_writer_tensor> all;
  std::vector<reshard_text_pair> pairs;
  std::vector<std::unique_ptr<Layout>> whole;
  std::vector<std::vector<Side>> sides;
  for (const auto &[name, layout, arrays] : tensors) {
    const Layout *l;
    std::vector<nb::object> ranks;
    if (layout.is_none()) {
      Array a = array_of(arrays, {("'" + name + "'").c_str()});
      reshard_layout made = nullptr;
      check(reshard_layout_create_single(a.ndim, a.shape, 1, 0, &made));
      whole.push_back(std::make_unique<Layout>(made));
      l = whole.back().get(), ranks.push_back(arrays);
    } else {
      l = &layout_arg(layout);
      for (nb::handle h : arrays)
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
  for (const auto &[key, value] : metadata)
    pairs.push_back({c_text(key, "metadata"), c_text(value, "metadata")});
  options.metadata = pairs.data(), options.nmetadata = int64_t(pairs.size());
  reshard_writer writer = nullptr;
  c_text(path, "path");
  run([&] {
    reshard_status status = reshard_writer_create(path.c_str(), int64_t(all.size()), all.data(), &options, &writer);
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

nb::dict convert(const std::string &in, const std::string &out, std::optional<std::string> src,
                 std::optional<std::string> dst, const Rules *src_rules, const Rules *dst_rules,
                 std::optional<std::string> map, int64_t world, bool force, bool dedup, bool verify, bool leave_out,
                 int threads, nb::object call, nb::handle dtype) {
  reshard_convert_options options = RESHARD_CONVERT_OPTIONS_DEFAULTS;
  options.src = src ? c_text(*src, "src") : nullptr, options.dst = dst ? c_text(*dst, "dst") : nullptr;
  options.src_rules = src_rules != nullptr ? src_rules->handle : nullptr,
  options.dst_rules = dst_rules != nullptr ? dst_rules->handle : nullptr;
  options.world = world, options.force = force, options.dedup = dedup, options.verify = verify,
  options.leave_out = leave_out, options.threads = threads;
  options.dtype = dtype_or(dtype, RESHARD_DTYPE_NONE);
  Progress p{call, nullptr};
  options.progress = progress, options.user = &p;
  std::unique_ptr<reshard_map_s, void (*)(reshard_map)> owned(nullptr, reshard_map_free);
  if (map) {
    reshard_map made = nullptr;
    check(reshard_map_parse(c_text(*map, "map"), nullptr, &made));
    owned.reset(made);
    options.map = made;
  }
  reshard_convert_report report;
  reshard_status status;
  c_text(in, "in"), c_text(out, "out");
  {
    nb::gil_scoped_release release;
    status = reshard_convert(in.c_str(), out.c_str(), &options, &report);
  }
  if (p.raised)
    std::rethrow_exception(p.raised);
  check(status);
  nb::dict d;
  d["tensors"] = report.tensors, d["files"] = report.files, d["world"] = report.world, d["bytes"] = report.bytes;
  d["format"] = reshard_file_format_string(report.format),
  d["source_format"] = reshard_file_format_string(report.source.format);
  d["checked_bytes"] = report.checked_bytes, d["left_out"] = report.source.left_out;
  d["left_out_tensors"] = report.source.left_out_tensors;
  d["converted"] = report.converted, d["unconverted"] = report.unconverted;
  d["seconds"] =
      report.open_seconds + report.reserve_seconds + report.move_seconds + report.sync_seconds + report.verify_seconds;
  return d;
}

struct Findings {
  std::vector<std::string> wrong, unchecked;
};

nb::dict check_files(const std::string &path, int threads) {
  reshard_check_options options = RESHARD_CHECK_OPTIONS_DEFAULTS;
  Findings findings;
  options.threads = threads, options.user = &findings;
  options.found = [](void *user, int wrong, const char *text) {
    Findings &f = *static_cast<Findings *>(user);
    (wrong ? f.wrong : f.unchecked).push_back(text);
  };
  reshard_check_report report = {};
  reshard_status status;
  c_text(path, "path");
  {
    nb::gil_scoped_release release;
    status = reshard_checkpoint_check(path.c_str(), &options, &report);
  }
  if (status != RESHARD_SUCCESS && !(status == RESHARD_ERROR_CORRUPT && !findings.wrong.empty()))
    raise(status);
  nb::dict d;
  d["files"] = report.files, d["unchecked_files"] = report.unchecked_files, d["checked_bytes"] = report.checked_bytes;
  d["wrong"] = nb::cast(findings.wrong), d["unchecked"] = nb::cast(findings.unchecked);
  return d;
}

} // namespace

void bind_file(nb::module_ &m) {
  nb::class_<Checkpoint>(m, "_Checkpoint")
      .def("count",
           [](Checkpoint &c) {
             Reading in(c);
             return reshard_model_count(reshard_checkpoint_model(c.handle));
           })
      .def("find",
           [](Checkpoint &c, const std::string &name) {
             Reading in(c);
             int64_t i = -1;
             return name.find('\0') == std::string::npos &&
                            reshard_checkpoint_find(c.handle, name.c_str(), &i) == RESHARD_SUCCESS
                        ? i
                        : int64_t(-1);
           })
      .def("tensor", &tensor_of, "i"_a, nb::sig("def tensor(self, i: int) -> tuple[str, str, tuple[int, ...]]"))
      .def("layout", &layout_of, "i"_a, nb::rv_policy::take_ownership)
      .def("read", &read_part, "i"_a, "layout"_a, "rank"_a, "out"_a.none(), "threads"_a = 0)
      .def("stored", &stored_whole, "i"_a, nb::sig("def stored(self, i: int) -> tuple[str, int]"))
      .def(
          "metadata",
          [](Checkpoint &c) {
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
          },
          nb::sig("def metadata(self) -> dict[str, str]"))
      .def(
          "info",
          [](Checkpoint &c) {
            Reading in(c);
            reshard_checkpoint_info i;
            check(reshard_checkpoint_get_info(c.handle, &i));
            nb::dict d;
            d["format"] = reshard_file_format_string(i.format), d["tensors"] = i.tensors, d["files"] = i.files,
            d["bytes"] = i.bytes;
            d["stored_bytes"] = i.stored_bytes, d["world"] = i.world, d["left_out"] = i.left_out;
            return d;
          },
          nb::sig("def info(self) -> dict[str, typing.Any]"))
      .def("closed", [](Checkpoint &c) { return c.handle == nullptr; })
      .def("close", &close_checkpoint);
  nb::class_<Rules>(m, "Rules",
                    "The layout of each tensor of a model by name: lines of PATTERN LAYOUT, the first match wins.")
      .def(
          "__init__",
          [](Rules *self, const std::string &text, const std::string &name) {
            reshard_rules made = nullptr;
            check(reshard_rules_parse(c_text(text, "rules"), c_text(name, "name"), &made));
            new (self) Rules(made);
          },
          "text"_a, "name"_a = "rules")
      .def_static(
          "load",
          [](const std::string &path) {
            reshard_rules made = nullptr;
            check(reshard_rules_load(c_text(path, "path"), &made));
            return new Rules(made);
          },
          "path"_a, nb::rv_policy::take_ownership)
      .def("layout", &rules_layout, "name"_a, "shape"_a, "world"_a = 0, nb::rv_policy::take_ownership);
  m.def("_open", &open_checkpoint, nb::rv_policy::take_ownership);
  m.def("_write", &write_all, "path"_a, "tensors"_a, "metadata"_a, "force"_a);
  m.def("_convert", &convert, "src"_a, "dst"_a, "src_layout"_a, "dst_layout"_a, "src_rules"_a.none(),
        "dst_rules"_a.none(), "map"_a, "world"_a, "force"_a, "dedup"_a, "verify"_a, "leave_out"_a, "threads"_a,
        "progress"_a.none(), "dtype"_a.none(),
        nb::sig("def _convert(*arguments: typing.Any) -> dict[str, typing.Any]"));
  m.def("_check", &check_files, "path"_a, "threads"_a,
        nb::sig("def _check(path: str, threads: int) -> dict[str, typing.Any]"));
}
