// Layouts; and plans: entries of tensors, or of parts of them, and the way of one rank to move them.
#include "core.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

namespace {

// --- Constructors write the layout string, which the library reads: it says what is wrong with it -------------------

Layout parsed(const std::string &text, const Shape &shape, int64_t world) {
  return Layout(got<reshard_layout>(reshard_layout_parse, c_text(text, "layout"), ndim_of(shape), shape.data(), world));
}

// A list of a layout string, behind `before`; nothing where it was left out.
template <typename T> std::string listed(const char *before, const std::vector<T> &list, const char *between = ",") {
  std::ostringstream text;
  for (size_t i = 0; i < list.size(); i++)
    text << (i == 0 ? before : between) << list[i];
  return text.str();
}

Layout chunk(const Shape &shape, int64_t world, int dim, const Shape &ranks) {
  return parsed(text_of("chunk(", dim, listed(";", ranks), ")"), shape, world);
}

Layout mesh(const Shape &shape, int64_t world, const Shape &mesh_shape, const std::vector<std::string> &placements,
            const Shape &order, const Shape &ranks) {
  return parsed(text_of("mesh(", listed("", mesh_shape, "x"), listed("@", ranks), listed(";", placements),
                        listed(";order=", order), ")"),
                shape, world);
}

Layout cyclic(const Shape &shape, int64_t world, const Shape &grid, const Shape &block, const Shape &ranks) {
  return parsed(text_of("cyclic(", listed("", grid, "x"), listed("@", ranks), listed(";", block, "x"), ")"), shape,
                world);
}

Layout boxes(const Shape &shape, int64_t world, const std::vector<std::tuple<int64_t, Shape, Shape>> &boxes,
             bool replicated) {
  std::vector<std::string> all;
  for (const auto &[rank, offset, extent] : boxes)
    all.push_back(text_of(rank, ":[", listed("", offset), "]+[", listed("", extent), "]"));
  return parsed(text_of("boxes(", replicated ? "replicated;" : "", listed("", all, ";"), ")"), shape, world);
}

// --- Queries --------------------------------------------------------------------------------------------------------

std::vector<std::tuple<IntTuple, int64_t, int64_t>> arrays(const Layout &l, int64_t rank) {
  std::vector<std::tuple<IntTuple, int64_t, int64_t>> all;
  for (int64_t i = 0, n = l.count(rank); i < n; i++) {
    const auto info = got<reshard_array_info>(reshard_layout_array, l.handle, rank, i);
    all.emplace_back(tuple_of(l.ndim(), info.shape), info.buffer, info.offset);
  }
  return all;
}

std::vector<IntTuple> buffers(const Layout &l, int64_t rank) {
  std::vector<IntTuple> shapes;
  for (const Array &a : l.buffers(rank))
    shapes.push_back(tuple_of(a.ndim, a.shape));
  return shapes;
}

std::vector<std::pair<int64_t, int64_t>> intervals(const Layout &l, int64_t rank, int64_t array, int dim) {
  int64_t n = 0;
  check(reshard_layout_array_intervals(l.handle, rank, array, dim, 0, 0, nullptr, &n));
  std::vector<reshard_interval> runs(static_cast<size_t>(n));
  check(reshard_layout_array_intervals(l.handle, rank, array, dim, 0, n, runs.data(), &n));
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const reshard_interval &run : runs)
    pairs.emplace_back(run.begin, run.end);
  return pairs;
}

const char *kind(const Layout &l) { return reshard_layout_kind_string(l.kind()); }
std::string shown(const Layout &l) {
  return text_of("reshard.Layout('", l.text(), "', ", nb::repr(l.shape()).c_str(), ", ", l.world(), ")");
}
bool equal(const Layout &l, const Layout &other) { return reshard_layout_equal(l.handle, other.handle) == 1; }
Py_hash_t hash(const Layout &l) { // names, and parts that say the same in other words, are not compared
  return nb::hash(nb::make_tuple(int(l.kind()), l.shape(), l.world(), nb::tuple(nb::cast(buffers(l, 0)))));
}
nb::typed<nb::tuple, nb::any, nb::ellipsis> reduce(const Layout &l) {
  return nb::make_tuple(nb::type<Layout>(), nb::make_tuple(l.text(), l.shape(), l.world()));
}

// --- Plans ----------------------------------------------------------------------------------------------------------

// The C form of entries; its pointers are into the entries.
std::vector<reshard_entry> c_entries(const std::vector<Entry> &entries) {
  std::vector<reshard_entry> all;
  for (const Entry &e : entries) {
    auto numbers = [&](const auto &list, const Layout &of, const char *what) {
      if (list && list->size() != size_t(of.ndim()))
        invalid("entry '", e.name, "': ", what, " of ", list->size(), " numbers for ", of.ndim(), " dims");
      return list ? list->data() : nullptr;
    };
    reshard_entry c = RESHARD_ENTRY_DEFAULTS;
    c.src = e.src.handle, c.dst = e.dst.handle, c.dtype = e.dtype, c.dst_dtype = e.dst_dtype;
    c.name = c_text(e.name, "name");
    c.src_offset = numbers(e.src_offset, e.src, "src_offset");
    c.src_extent = numbers(e.src_extent, e.src, "src_extent");
    c.dst_offset = numbers(e.dst_offset, e.dst, "dst_offset");
    c.dst_extent = numbers(e.dst_extent, e.dst, "dst_extent");
    c.permutation = numbers(e.permutation, e.dst, "permutation");
    c.block = numbers(e.block, e.block_of(e.dtype) != nullptr ? e.src : e.dst, "block");
    c.scale_dtype = e.scale_dtype;
    all.push_back(c);
  }
  return all;
}

reshard_plan_options c_options(Limit limit) {
  reshard_plan_options options = RESHARD_PLAN_OPTIONS_DEFAULTS;
  options.workspace_limit = limit_of(limit), options.on_cpu = 1;
  return options;
}

std::vector<Plan> plans_of_all(const std::vector<Entry> &entries, Limit limit) {
  const std::vector<reshard_entry> c = c_entries(entries);
  const reshard_plan_options options = c_options(limit);
  const int64_t world = entries.empty() ? 0 : entries[0].src.world();
  std::vector<reshard_plan> made(static_cast<size_t>(world));
  run([&] { return reshard_plan_create_all(int64_t(c.size()), c.data(), world, nullptr, &options, made.data()); });
  std::vector<Plan> plans;
  for (reshard_plan plan : made)
    plans.emplace_back(plan, entries, int64_t(plans.size()));
  return plans;
}

Plan reverse(const Plan &plan) {
  std::vector<Entry> entries;
  for (const Entry &e : plan.entries) {
    entries.push_back(
        {e.dst, e.src, e.dst_dtype, e.dtype, e.name, e.dst_offset, e.dst_extent, e.src_offset, e.src_extent});
    if (!e.permutation)
      continue;
    std::vector<int> &back = entries.back().permutation.emplace(size_t(e.src.ndim()), -1);
    for (size_t d = 0; d < e.permutation->size(); d++)
      if ((*e.permutation)[d] >= 0)
        back[size_t((*e.permutation)[d])] = int(d);
  }
  return Plan(waited<reshard_plan>(reshard_plan_reverse, plan.handle), std::move(entries), plan.rank);
}

reshard_plan_info info_of(const Plan &plan) { return got<reshard_plan_info>(reshard_plan_get_info, plan.handle); }
size_t workspace(const Plan &plan) { return got<size_t>(reshard_plan_workspace, plan.handle); }
std::optional<std::string> drawn(nb::handle plan) {
  return nb::cast<std::optional<std::string>>(nb::module_::import_("reshard.__main__").attr("draw")(plan));
}

void bind_layout(nb::module_ &m) {
  nb::class_<Layout>(m, "Layout", "The boxes of a global tensor that each rank holds. Immutable.")
      .def(nb::new_(&parsed), "text"_a, "shape"_a, "world"_a = 0,
           "Reads a layout string; world 0: the smallest that holds the ranks named.")
      .def_static("chunk", &chunk, "shape"_a, "world"_a, "dim"_a = 0, "ranks"_a = Shape())
      .def_static("mesh", &mesh, "shape"_a, "world"_a, "mesh_shape"_a, "placements"_a, "order"_a = Shape(),
                  "ranks"_a = Shape(), "Placements are those of layout strings: S0, S0*2, R.")
      .def_static("cyclic", &cyclic, "shape"_a, "world"_a, "grid"_a, "block"_a, "ranks"_a = Shape())
      .def_static("boxes", &boxes, "shape"_a, "world"_a, "boxes"_a, "replicated"_a = false,
                  "Boxes are (rank, offset, extent).")
      .def_prop_ro("shape", &Layout::shape)
      .def_prop_ro("ndim", &Layout::ndim)
      .def_prop_ro("world", &Layout::world)
      .def_prop_ro("kind", &kind)
      .def("arrays", &arrays, "rank"_a,
           "(shape, buffer, offset) of each array of a rank: the buffer that has it, and the elements before it there.")
      .def("buffers", &buffers, "rank"_a,
           "Shapes of what a rank gives: its arrays; of flat one of elements; of parts that ranks share one of all.")
      .def("intervals", &intervals, "rank"_a, "array"_a = 0, "dim"_a = 0,
           "The runs of global indices that an array has in a dim: (begin, end), ascending.")
      .def("__str__", &Layout::text)
      .def("__repr__", &shown)
      .def("__eq__", &equal, nb::is_operator(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", &hash)
      .def("__reduce__", &reduce);
}

} // namespace

Plan make_plan(std::vector<Entry> entries, int64_t rank, Limit limit) {
  const std::vector<reshard_entry> c = c_entries(entries);
  const reshard_plan_options options = c_options(limit);
  const reshard_plan plan = waited<reshard_plan>(reshard_plan_create, int64_t(c.size()), c.data(), rank, &options);
  return Plan(plan, std::move(entries), rank);
}

void bind_plan(nb::module_ &m) {
  bind_layout(m);
  nb::class_<reshard_plan_info> info(m, "PlanInfo", "Figures of a plan: include/reshard/plan.h says what each is.");
#define OF(name) info.def_ro(#name, &reshard_plan_info::name)
  OF(rank), OF(world), OF(entries), OF(bytes), OF(sent_bytes), OF(received_bytes), OF(self_copy_bytes), OF(peers);
  OF(messages_sent), OF(messages_received), OF(rounds), OF(workspace_bytes), OF(packs_skipped), OF(unpacks_skipped);
  OF(stages), OF(segments), OF(memory_bytes), OF(classes), OF(lower_bound_bytes), OF(plan_ns), OF(exclusive_bytes);
  OF(workspace_limit), OF(staged_bytes), OF(least_rounds);
  nb::class_<Entry>(m, "Entry", "A tensor of a plan, or a region of src that becomes, permuted, one of dst.")
      .def(nb::new_([](const Layout &src, const Layout &dst, nb::handle dtype, const std::string &name,
                       Numbers src_offset, Numbers src_extent, Numbers dst_offset, Numbers dst_extent, Dims permutation,
                       nb::handle dst_dtype, Numbers block, nb::handle scale_dtype) {
             const reshard_dtype given = dtype_of(dtype), scales = dtype_of(scale_dtype);
             return Entry{src,        dst,         given,      dtype_of(dst_dtype, given),
                          name,       src_offset,  src_extent, dst_offset,
                          dst_extent, permutation, block,      scales};
           }),
           "src"_a, "dst"_a, "dtype"_a, "name"_a = "tensor", nb::kw_only(), "src_offset"_n, "src_extent"_n,
           "dst_offset"_n, "dst_extent"_n, "permutation"_n, "dst_dtype"_n, "block"_n, "scale_dtype"_n,
           "dst_dtype: of dst, converted on the way. block: of f8_e4m3 with scales, which are behind its values.")
      .def_ro("src", &Entry::src)
      .def_ro("dst", &Entry::dst)
      .def_prop_ro("dtype", [](const Entry &e) { return reshard_dtype_string(e.dtype); })
      .def_prop_ro("dst_dtype", [](const Entry &e) { return reshard_dtype_string(e.dst_dtype); })
      .def_ro("name", &Entry::name);
  nb::class_<Plan>(m, "Plan", "The way of one rank of a world to move tensors. Immutable; needs no communicator.")
      .def(nb::new_([](const Layout &src, const Layout &dst, nb::handle dtype, int64_t rank, Limit limit,
                       nb::handle dst_dtype) {
             reshard_dtype from = dtype_of(dtype), to = dtype_of(dst_dtype, from);
             return make_plan({{src, dst, from, to, "tensor"}}, rank, limit);
           }),
           "src"_a, "dst"_a, "dtype"_a, "rank"_a, nb::kw_only(), "limit"_n, "dst_dtype"_n)
      .def(nb::new_(&make_plan), "entries"_a, "rank"_a, nb::kw_only(), "limit"_n,
           "limit: bytes of staging a rank; -1: none.")
      .def_static("all", &plans_of_all, "entries"_a, nb::kw_only(), "limit"_n,
                  "The plans of all ranks, which find each intersection once.")
      .def_ro("rank", &Plan::rank)
      .def_ro("entries", &Plan::entries)
      .def_prop_ro("info", &info_of)
      .def_prop_ro("workspace", &workspace, "Bytes that suffice as workspace of a transfer on this rank.")
      .def("reverse", &reverse, "The plan of the adjoint.")
      .def("_repr_svg_", &drawn)
      .def("to_json", [](const Plan &p) { return printed(reshard_plan_explain, p.handle, RESHARD_JSON); })
      .def("__repr__", [](const Plan &p) { return printed(reshard_plan_explain, p.handle, RESHARD_TEXT); });
}
