// Checkpoints: written, converted, checked; rules.
#include "core.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/variant.h>

#include <cerrno>
#include <list>
#include <variant>

#include <unistd.h>

std::string path_of(nb::handle path, bool there) {
  PyObject *bytes = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &bytes) == 0)
    nb::raise_python_error();
  const std::string text = nb::steal<nb::bytes>(bytes).c_str();
  if (there && access(text.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR))
    raise(RESHARD_ERROR_INVALID, "no file or directory '" + text + "'", {}, "MissingError");
  return text;
}

namespace {

using Rules = Owned<reshard_rules, reshard_rules_free>;
using Texts = std::map<std::string, std::string>;

Rules parsed(const std::string &text, const std::string &name) {
  return Rules(got<reshard_rules>(reshard_rules_parse, c_text(text, "rules"), c_text(name, "name")));
}

Rules load(nb::handle path) { return Rules(got<reshard_rules>(reshard_rules_load, path_of(path).c_str())); }

Layout rules_layout(const Rules &rules, const std::string &name, const Shape &shape, int64_t world) {
  return Layout(got<reshard_layout>(reshard_rules_layout, rules.handle, c_text(name, "name"), ndim_of(shape),
                                    shape.data(), world));
}

// --- write -----------------------------------------------------------------------------------------------------------

struct Written { // a tensor, and the arrays of all ranks
  Layout layout;
  std::vector<Wanted> wanted;
  std::vector<Side> ranks;
};

void take(const std::string &name, nb::object value, std::list<Written> &all) {
  const std::string quoted = "'" + name + "'";
  nb::object ranks = nb::make_tuple(value);
  if (nb::isinstance<nb::tuple>(value) && nb::len(value) == 2) {
    const Layout &layout = as<Layout>(nb::object(value[0]), quoted.c_str());
    ranks = nb::tuple(nb::object(value[1]));
    if (int64_t(nb::len(ranks)) != layout.world())
      invalid(quoted, ": arrays of ", nb::len(ranks), " ranks for a layout of ", layout.world());
    all.push_back({layout, {}, {}});
  } else {
    const Array a = array_of(value, {quoted.c_str()});
    all.push_back({Layout(got<reshard_layout>(reshard_layout_create_single, a.ndim, a.shape, 1, 0)), {}, {}});
  }
  Written &out = all.back();
  out.wanted = {{&out.layout, RESHARD_DTYPE_NONE, c_text(name, "name")}};
  for (nb::handle one : ranks) {
    out.ranks.push_back(side_of(one, out.wanted, int64_t(out.ranks.size()), "array", false, false));
    for (const Array &a : out.ranks.back().arrays)
      if (!a.contiguous())
        invalid(quoted, ": an array that is not contiguous");
  }
}

// Writes whole tensors, or each rank's part of tensors of layouts.
void write_all(nb::handle path, const nb::typed<nb::mapping, nb::str, nb::any> &tensors,
               const std::optional<Texts> &metadata, bool force) {
  std::vector<reshard_writer_tensor> all;
  std::vector<reshard_text_pair> pairs;
  std::list<Written> taken;
  for (nb::handle item : tensors.items()) {
    if (!nb::isinstance<nb::str>(item[0]))
      throw nb::type_error(text_of("the name ", str_of(nb::object(item[0])), ": names are texts").c_str());
    take(str_of(nb::object(item[0])), nb::object(item[1]), taken);
    const Wanted &w = taken.back().wanted[0];
    all.push_back({w.name.c_str(), w.dtype, w.layout->handle});
  }
  reshard_writer_options options = RESHARD_WRITER_OPTIONS_DEFAULTS;
  const Texts texts = metadata.value_or(Texts()); // the pairs point into it
  for (const auto &[key, value] : texts)
    pairs.push_back({c_text(key, "metadata"), c_text(value, "metadata")});
  options.force = force, options.metadata = pairs.data(), options.nmetadata = int64_t(pairs.size());
  reshard_writer writer = nullptr;
  const std::string to = path_of(path, false);
  run([&] {
    reshard_status status = reshard_writer_create(to.c_str(), int64_t(all.size()), all.data(), &options, &writer);
    int64_t tensor = 0;
    for (const Written &w : taken) {
      for (size_t r = 0; status == RESHARD_SUCCESS && r < w.ranks.size(); r++)
        status = reshard_writer_put(writer, tensor, int64_t(r), w.ranks[r].data.data());
      tensor++;
    }
    if (status == RESHARD_SUCCESS)
      return reshard_writer_commit(writer);
    std::string text = reshard_last_error();
    reshard_writer_abandon(writer);
    return reshard_error_set(status, text.c_str());
  });
}

// --- convert, check --------------------------------------------------------------------------------------------------

// Calls a progress function in Python; what it raises ends the call and comes out of it.
int progress(void *user, const char *stage, int64_t done, int64_t all) {
  nb::gil_scoped_acquire acquire;
  try {
    if (PyErr_CheckSignals() != 0)
      throw nb::python_error();
    if (const nb::object &call = *static_cast<nb::object *>(user); !call.is_none())
      call(stage, done, all);
    return 0;
  } catch (...) {
    keep_raised();
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
  options.world = world, options.force = force, options.dedup = dedup, options.verify = verify;
  options.leave_out = leave_out, options.threads = threads;
  options.dtype = dtype.is_none() ? RESHARD_DTYPE_NONE : dtype_of(dtype);
  options.progress = progress, options.user = &call;
  const Owned<reshard_map, reshard_map_free> owned(
      map ? got<reshard_map>(reshard_map_parse, c_text(*map, "map"), nullptr) : nullptr);
  options.map = owned.handle;
  const auto r = waited<reshard_convert_report>(reshard_convert, in.c_str(), out.c_str(), &options);
  return report_of("tensors", r.tensors, "files", r.files, "world", r.world, "bytes", r.bytes, "format",
                   reshard_file_format_string(r.format), "source_format", reshard_file_format_string(r.source.format),
                   "checked_bytes", r.checked_bytes, "left_out", r.source.left_out, "left_out_tensors",
                   r.source.left_out_tensors, "converted", r.converted, "unconverted", r.unconverted, "seconds",
                   r.open_seconds + r.reserve_seconds + r.move_seconds + r.sync_seconds + r.verify_seconds);
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
  return report_of("files", report.files, "unchecked_files", report.unchecked_files, "checked_bytes",
                   report.checked_bytes, "wrong", nb::cast(found[1]), "unchecked", nb::cast(found[0]));
}

} // namespace

void bind_file(nb::module_ &m) {
  nb::class_<Rules>(m, "Rules",
                    "The layout of each tensor of a model by name: lines of PATTERN LAYOUT, the first match wins.")
      .def(nb::new_(&parsed), "text"_a, "name"_a = "rules")
      .def_static("load", &load, "path"_a)
      .def("layout", &rules_layout, "name"_a, "shape"_a, "world"_a = 0);
  m.def("write", &write_all, "path"_a, "tensors"_a, "metadata"_a = nb::none(), nb::kw_only(), "force"_a = false,
        "Writes a checkpoint, complete or not at all, in the format of the path. tensors: by name an array, or for a\n"
        "directory of shards (layout, arrays of all ranks). metadata: texts beside the tensors of safetensors.");
  m.def("convert", &convert, "src"_a, "dst"_a, nb::kw_only(), "src_layout"_a = nb::none(), "dst_layout"_a = nb::none(),
        "map"_a = nb::none(), "world"_a = 0, "force"_a = false, "dedup"_a = false, "verify"_a = false,
        "leave_out"_a = false, "threads"_a = 0, "progress"_a = nb::none(), "dtype"_a = nb::none(),
        "Converts a checkpoint: cut, reshard, join, fuse. progress(stage, done, all) may raise to cancel. leave_out:\n"
        "tensors of classes that are not read are counted, no error. dtype: of all numbers that no rule or map casts.");
  m.def("check", &check_files, "path"_a, nb::kw_only(), "threads"_a = 0,
        "Checks a checkpoint by its digests. `wrong` has a line for each piece that is not as it was written.");
}
