// Plans: entries of tensors, or of parts of them, and the way of one rank to move them.
#include "core.h"

#include <nanobind/stl/tuple.h>

namespace {

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
        {e.dst, e.src, e.dst_dtype, e.dtype, e.name, e.dst_offset, e.dst_extent, e.src_offset, e.src_extent, {}});
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
std::vector<std::tuple<int64_t, int64_t, int64_t>> peers(const Plan &plan) {
  std::vector<std::tuple<int64_t, int64_t, int64_t>> list(size_t(info_of(plan).peers));
  for (size_t i = 0; i < list.size(); i++) {
    auto &[rank, sent, received] = list[i];
    check(reshard_plan_peer(plan.handle, int64_t(i), &rank, &sent, &received));
  }
  return list;
}

void bind_info(nb::module_ &m) {
  nb::class_<reshard_plan_info> info(m, "PlanInfo",
                                     "Figures of a plan; bytes are bytes. include/reshard/plan.h says what each is.");
#define FIELD(name) info.def_ro(#name, &reshard_plan_info::name)
  FIELD(rank), FIELD(world), FIELD(entries), FIELD(bytes), FIELD(sent_bytes), FIELD(received_bytes), FIELD(kept_bytes);
  FIELD(peers), FIELD(messages_sent), FIELD(messages_received), FIELD(rounds), FIELD(workspace_bytes);
  FIELD(packs_skipped), FIELD(unpacks_skipped), FIELD(stages), FIELD(segments), FIELD(memory_bytes), FIELD(classes);
  FIELD(lower_bound_bytes), FIELD(plan_ns), FIELD(exclusive_bytes), FIELD(workspace_limit), FIELD(staged_bytes);
  FIELD(least_rounds);
#undef FIELD
}

} // namespace

Plan make_plan(std::vector<Entry> entries, int64_t rank, Limit limit) {
  const std::vector<reshard_entry> c = c_entries(entries);
  const reshard_plan_options options = c_options(limit);
  const reshard_plan plan = waited<reshard_plan>(reshard_plan_create, int64_t(c.size()), c.data(), rank, &options);
  return Plan(plan, std::move(entries), rank);
}

void bind_plan(nb::module_ &m) {
  bind_info(m);
  nb::class_<Entry>(m, "Entry", "A tensor of a plan, or a region of src that becomes, permuted, one of dst.")
      .def(nb::new_([](const Layout &src, const Layout &dst, nb::handle dtype, const std::string &name,
                       std::optional<Shape> src_offset, std::optional<Shape> src_extent,
                       std::optional<Shape> dst_offset, std::optional<Shape> dst_extent,
                       std::optional<std::vector<int>> permutation, nb::handle dst_dtype) {
             reshard_dtype from = dtype_of(dtype), to = dtype_of(dst_dtype, from);
             return Entry{src, dst, from, to, name, src_offset, src_extent, dst_offset, dst_extent, permutation};
           }),
           "src"_a, "dst"_a, "dtype"_a, "name"_a = "tensor", nb::kw_only(), "src_offset"_a = nb::none(),
           "src_extent"_a = nb::none(), "dst_offset"_a = nb::none(), "dst_extent"_a = nb::none(),
           "permutation"_a = nb::none(), "dst_dtype"_a = nb::none(), "dst_dtype: of dst, converted on the way.")
      .def_ro("src", &Entry::src)
      .def_ro("dst", &Entry::dst)
      .def_prop_ro("dtype", [](const Entry &e) { return reshard_dtype_string(e.dtype); })
      .def_prop_ro("dst_dtype", [](const Entry &e) { return reshard_dtype_string(e.dst_dtype); })
      .def_ro("name", &Entry::name);
  nb::class_<Plan>(m, "Plan", "The way of one rank of a world to move tensors. Immutable; needs no communicator.")
      .def(nb::new_([](const Layout &src, const Layout &dst, nb::handle dtype, int64_t rank, Limit limit,
                       nb::handle dst_dtype) {
             reshard_dtype from = dtype_of(dtype), to = dtype_of(dst_dtype, from);
             return make_plan({{src, dst, from, to, "tensor", {}, {}, {}, {}, {}}}, rank, limit);
           }),
           "src"_a, "dst"_a, "dtype"_a, "rank"_a, nb::kw_only(), "limit"_a = nb::none(), "dst_dtype"_a = nb::none())
      .def(nb::new_(&make_plan), "entries"_a, "rank"_a, nb::kw_only(), "limit"_a = nb::none(),
           "limit: bytes of staging a rank; -1: none.")
      .def_static("all", &plans_of_all, "entries"_a, nb::kw_only(), "limit"_a = nb::none(),
                  "The plans of all ranks, which find each intersection once.")
      .def_ro("rank", &Plan::rank)
      .def_ro("entries", &Plan::entries)
      .def_prop_ro("info", &info_of)
      .def_prop_ro("workspace", &workspace, "Bytes that suffice as workspace of a transfer on this rank.")
      .def("peers", &peers, "(rank, bytes sent, bytes received) of each peer.")
      .def("reverse", &reverse, "The plan of the adjoint.")
      .def("_repr_svg_", &drawn)
      .def("to_json", [](const Plan &p) { return printed(reshard_plan_explain, p.handle, RESHARD_JSON); })
      .def("__str__", [](const Plan &p) { return printed(reshard_plan_explain, p.handle, RESHARD_TEXT); });
}
