// Checkpoints: written, converted, checked; rules.
#include "core.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/variant.h>

#include <cerrno>
#include <list>
#include <variant>

#include <unistd.h>

std::string path_of(nb::handle path, bool there) {
  std::string text = nb::cast<std::string>(nb::steal(PyOS_FSPath(path.ptr())));
  c_text(text, "path");
  if (there && access(text.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR))
    raise(RESHARD_ERROR_INVALID, "no file or directory '" + text + "'", {}, "MissingError");
  return text;
}

namespace {

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

} // namespace

void bind_file(nb::module_ &m) {
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
