// Plans: entries of tensors, or of parts of them, and the way of one rank to move them.
#include "core.h"

#include <nanobind/stl/tuple.h>

int64_t limit_of(std::optional<int64_t> limit) { return limit ? *limit : RESHARD_DEFAULT_LIMIT; }

namespace {

// The C form of entries; its pointers are into the entries.
std::vector<reshard_entry> c_entries(const std::vector<Entry> &entries) {
  std::vector<reshard_entry> all;
  for (const Entry &e : entries) {
    const Layout &src = layout_arg(e.src), &dst = layout_arg(e.dst);
    reshard_entry c = RESHARD_ENTRY_DEFAULTS;
    auto numbers = [&](const auto &list, int ndim, const char *what) {
      if (list && list->size() != size_t(ndim))
        invalid("entry '" + e.name + "': " + what + " of " + std::to_string(list->size()) + " numbers for " +
                std::to_string(ndim) + " dims");
      return list ? list->data() : nullptr;
    };
    int from = reshard_layout_ndim(src.handle), to = reshard_layout_ndim(dst.handle);
    c.src = src.handle, c.dst = dst.handle, c.dtype = e.dtype, c.dst_dtype = e.dst_dtype,
    c.name = c_text(e.name, "name");
    c.src_offset = numbers(e.src_offset, from, "src_offset"), c.src_extent = numbers(e.src_extent, from, "src_extent");
    c.dst_offset = numbers(e.dst_offset, to, "dst_offset"), c.dst_extent = numbers(e.dst_extent, to, "dst_extent");
    c.permutation = numbers(e.permutation, to, "permutation");
    all.push_back(c);
  }
  return all;
}

reshard_plan_options c_options(int64_t limit) {
  reshard_plan_options options = RESHARD_PLAN_OPTIONS_DEFAULTS;
  options.workspace_limit = limit;
  options.on_cpu = 1;
  return options;
}

Plan *reverse(const Plan &plan) {
  reshard_plan back = nullptr;
  run([&] { return reshard_plan_reverse(plan.handle, &back); });
  std::vector<Entry> entries = plan.entries;
  for (Entry &e : entries) {
    std::swap(e.src, e.dst);
    std::swap(e.dtype, e.dst_dtype);
    std::swap(e.src_offset, e.dst_offset);
    std::swap(e.src_extent, e.dst_extent);
    if (e.permutation) {
      std::vector<int> back_to(size_t(reshard_layout_ndim(layout_arg(e.dst).handle)), -1);
      for (size_t d = 0; d < e.permutation->size(); d++)
        if ((*e.permutation)[d] >= 0)
          back_to[size_t((*e.permutation)[d])] = int(d);
      e.permutation = back_to;
    }
  }
  return new Plan(back, std::move(entries), plan.rank);
}

std::string explained(const Plan &plan, reshard_format format) {
  return printed([&](char *text, size_t size, size_t *needed) {
    return reshard_plan_explain(plan.handle, format, text, size, needed);
  });
}

void bind_info(nb::module_ &m) {
  nb::class_<reshard_plan_info> info(m, "PlanInfo",
                                     "Figures of a plan; bytes are bytes. include/reshard/plan.h says what each is.");
#define FIELD(name) info.def_ro(#name, &reshard_plan_info::name)
  FIELD(rank), FIELD(world), FIELD(entries), FIELD(bytes), FIELD(sent_bytes), FIELD(received_bytes), FIELD(kept_bytes),
      FIELD(peers);
  FIELD(messages_sent), FIELD(messages_received), FIELD(rounds), FIELD(workspace_bytes), FIELD(packs_skipped),
      FIELD(unpacks_skipped);
  FIELD(stages), FIELD(segments), FIELD(memory_bytes), FIELD(classes), FIELD(lower_bound_bytes), FIELD(plan_ns),
      FIELD(exclusive_bytes);
  FIELD(workspace_limit), FIELD(staged_bytes), FIELD(least_rounds);
#undef FIELD
}

} // namespace

reshard_plan make_plan(const std::vector<Entry> &entries, int64_t rank, int64_t limit) {
  std::vector<reshard_entry> c = c_entries(entries);
  reshard_plan_options options = c_options(limit);
  reshard_plan plan = nullptr;
  run([&] { return reshard_plan_create(int64_t(c.size()), c.data(), rank, &options, &plan); });
  return plan;
}

void bind_plan(nb::module_ &m) {
  bind_info(m);
  nb::class_<Entry>(m, "Entry",
                    "A tensor of a plan, or a part of one: a region, through a permutation, of src becomes one of dst.")
      .def(
          "__init__",
          [](Entry *self, nb::handle src, nb::handle dst, nb::handle dtype, const std::string &name,
             std::optional<Shape> src_offset, std::optional<Shape> src_extent, std::optional<Shape> dst_offset,
             std::optional<Shape> dst_extent, std::optional<std::vector<int>> permutation, nb::handle dst_dtype) {
            layout_arg(src), layout_arg(dst);
            reshard_dtype from = dtype_of(dtype);
            new (self) Entry{
                nb::borrow(src), nb::borrow(dst), from,       dtype_or(dst_dtype, from), name, src_offset, src_extent,
                dst_offset,      dst_extent,      permutation};
          },
          "src"_a, "dst"_a, "dtype"_a, "name"_a = "tensor", nb::kw_only(), "src_offset"_a = nb::none(),
          "src_extent"_a = nb::none(), "dst_offset"_a = nb::none(), "dst_extent"_a = nb::none(),
          "permutation"_a = nb::none(), "dst_dtype"_a = nb::none(), "dst_dtype: of dst, converted on the way.")
      .def_ro("src", &Entry::src)
      .def_ro("dst", &Entry::dst)
      .def_prop_ro("dtype", [](const Entry &e) { return reshard_dtype_string(e.dtype); })
      .def_prop_ro("dst_dtype", [](const Entry &e) { return reshard_dtype_string(e.dst_dtype); })
      .def_ro("name", &Entry::name);
  nb::class_<Plan>(
      m, "Plan",
      "The way of one rank of a world to move tensors from one layout to another. Immutable; needs no communicator.")
      .def(
          "__init__",
          [](Plan *self, nb::handle src, nb::handle dst, nb::handle dtype, int64_t rank, std::optional<int64_t> limit,
             nb::handle dst_dtype) {
            reshard_dtype from = dtype_of(dtype);
            std::vector<Entry> entries{
                {nb::borrow(src), nb::borrow(dst), from, dtype_or(dst_dtype, from), "tensor", {}, {}, {}, {}, {}}};
            new (self) Plan(make_plan(entries, rank, limit_of(limit)), entries, rank);
          },
          "src"_a, "dst"_a, "dtype"_a, "rank"_a, nb::kw_only(), "limit"_a = nb::none(), "dst_dtype"_a = nb::none())
      .def(
          "__init__",
          [](Plan *self, const std::vector<Entry> &entries, int64_t rank, std::optional<int64_t> limit) {
            new (self) Plan(make_plan(entries, rank, limit_of(limit)), entries, rank);
          },
          "entries"_a, "rank"_a, nb::kw_only(), "limit"_a = nb::none(), "limit: bytes of staging a rank; -1: none.")
      .def_static(
          "all",
          [](const std::vector<Entry> &entries, std::optional<int64_t> limit) {
            std::vector<reshard_entry> c = c_entries(entries);
            reshard_plan_options options = c_options(limit_of(limit));
            int64_t world = entries.empty() ? 0 : reshard_layout_world(layout_arg(entries[0].src).handle);
            std::vector<reshard_plan> plans(static_cast<size_t>(world));
            run([&] {
              return reshard_plan_create_all(int64_t(c.size()), c.data(), world, nullptr, &options, plans.data());
            });
            nb::typed<nb::list, Plan> list;
            for (int64_t r = 0; r < world; r++)
              list.append(nb::cast(new Plan(plans[size_t(r)], entries, r), nb::rv_policy::take_ownership));
            return list;
          },
          "entries"_a, nb::kw_only(), "limit"_a = nb::none(),
          "The plans of all ranks, which find each intersection once.")
      .def_ro("rank", &Plan::rank)
      .def_ro("entries", &Plan::entries)
      .def_prop_ro("info",
                   [](const Plan &plan) {
                     reshard_plan_info info;
                     check(reshard_plan_get_info(plan.handle, &info));
                     return info;
                   })
      .def_prop_ro(
          "workspace",
          [](const Plan &plan) {
            size_t bytes = 0;
            check(reshard_plan_workspace(plan.handle, &bytes));
            return bytes;
          },
          "Bytes that suffice as workspace of a transfer on this rank.")
      .def(
          "peers",
          [](const Plan &plan) {
            reshard_plan_info info;
            check(reshard_plan_get_info(plan.handle, &info));
            std::vector<std::tuple<int64_t, int64_t, int64_t>> list;
            for (int64_t i = 0; i < info.peers; i++) {
              int64_t rank = 0, sent = 0, received = 0;
              check(reshard_plan_peer(plan.handle, i, &rank, &sent, &received));
              list.emplace_back(rank, sent, received);
            }
            return list;
          },
          "(rank, bytes sent, bytes received) of each peer.")
      .def("reverse", &reverse, nb::rv_policy::take_ownership, "The plan of the adjoint.")
      .def(
          "_repr_svg_",
          [](const nb::object &plan) {
            return nb::cast<std::optional<std::string>>(nb::module_::import_("reshard.__main__").attr("draw")(plan));
          },
          "The plan's first entry, drawn by the packaged program.")
      .def("to_json", [](const Plan &plan) { return explained(plan, RESHARD_JSON); })
      .def("__str__", [](const Plan &plan) { return explained(plan, RESHARD_TEXT); });
}
