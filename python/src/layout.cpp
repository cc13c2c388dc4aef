// Layouts and plans.
#include "core.h"

#include <nanobind/operators.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <cstring>

namespace {

const char *const kinds[] = {"chunk", "mesh", "cyclic", "single", "flat", "boxes"};

int ndim_of(const Shape &shape) {
  if (shape.size() > RESHARD_MAX_DIMS)
    raise(RESHARD_ERROR_UNSUPPORTED, "a shape of " + std::to_string(shape.size()) + " dims; at most 8");
  return int(shape.size());
}

// A list as C takes it: NULL where it was left out.
template <typename T> const T *data_or_null(const std::optional<std::vector<T>> &list) {
  return list ? list->data() : nullptr;
}

template <typename T> void same_length(const std::vector<T> &list, size_t n, const char *what) {
  if (list.size() != n)
    invalid(std::string(what) + ": " + std::to_string(list.size()) + " numbers where " + std::to_string(n) +
            " are due");
}

template <typename Make> Layout *made(Make &&make) {
  reshard_layout layout = nullptr;
  check(make(&layout));
  return new Layout(layout);
}

// Placements in the words of layout strings: "S0", "S-1", "S0*2", "R".
reshard_placement placement_of(const std::string &text) {
  reshard_placement p{};
  if (text == "R")
    return p;
  char *end = nullptr;
  p.kind = RESHARD_PLACEMENT_SHARD;
  if (text.size() > 1 && text[0] == 'S') {
    p.dim = int(std::strtol(text.c_str() + 1, &end, 10));
    if (end != text.c_str() + 1 && *end == '*' && end[1] >= '0' && end[1] <= '9')
      p.kind = RESHARD_PLACEMENT_STRIDED_SHARD, p.split_factor = std::strtoll(end + 1, &end, 10);
    if (end != text.c_str() + 1 && *end == '\0')
      return p;
  }
  invalid("placement '" + text + "': S0 (Shard(0)), S0*2 (_StridedShard) or R (Replicate)");
}

struct ArrayInfo {
  nb::tuple shape;
  int64_t buffer, offset;
};

nb::tuple tuple_of(int n, const int64_t *numbers) {
  nb::list list;
  for (int i = 0; i < n; i++)
    list.append(numbers[i]);
  return nb::tuple(list);
}

std::string layout_text(const Layout &l) {
  return printed(
      [&](char *text, size_t size, size_t *needed) { return reshard_layout_print(l.handle, text, size, needed); });
}

void bind_making(nb::class_<Layout> &layout) {
  layout.def(
      "__init__",
      [](Layout *self, const std::string &text, const Shape &shape, int64_t world) {
        reshard_layout made = nullptr;
        check(reshard_layout_parse(c_text(text, "layout"), ndim_of(shape), shape.data(), world, &made));
        new (self) Layout(made);
      },
      "text"_a, "shape"_a, "world"_a = 0, "Reads a layout string; world 0: the smallest that holds the ranks named.");
  layout.def_static(
      "chunk",
      [](const Shape &shape, int64_t world, int dim, std::optional<Shape> ranks) {
        return made([&](reshard_layout *l) {
          return reshard_layout_create_chunk(ndim_of(shape), shape.data(), world, dim,
                                             ranks ? int64_t(ranks->size()) : 0, data_or_null(ranks), l);
        });
      },
      "shape"_a, "world"_a, "dim"_a = 0, "ranks"_a = nb::none(), nb::rv_policy::take_ownership);
  layout.def_static(
      "mesh",
      [](const Shape &shape, int64_t world, const Shape &mesh_shape, const std::vector<std::string> &placements,
         std::optional<std::vector<std::string>> names, std::optional<std::vector<int>> order,
         std::optional<Shape> ranks) {
        same_length(placements, mesh_shape.size(), "placements");
        std::vector<reshard_placement> cuts;
        std::vector<const char *> texts;
        int64_t n = 1;
        for (const std::string &text : placements)
          cuts.push_back(placement_of(text));
        if (names) {
          same_length(*names, mesh_shape.size(), "names");
          for (const std::string &name : *names)
            texts.push_back(c_text(name, "name"));
        }
        if (order)
          same_length(*order, mesh_shape.size(), "order");
        for (int64_t extent : mesh_shape)
          n = extent < 0 || (extent > 0 && n > INT64_MAX / extent) ? -1 : n * extent;
        if (ranks && n >= 0)
          same_length(*ranks, size_t(n), "ranks");
        return made([&](reshard_layout *l) {
          return reshard_layout_create_mesh(ndim_of(shape), shape.data(), world, int(mesh_shape.size()),
                                            mesh_shape.data(), names ? texts.data() : nullptr, cuts.data(),
                                            data_or_null(order), data_or_null(ranks), l);
        });
      },
      "shape"_a, "world"_a, "mesh_shape"_a, "placements"_a, "names"_a = nb::none(), "order"_a = nb::none(),
      "ranks"_a = nb::none(), nb::rv_policy::take_ownership);
  layout.def_static(
      "cyclic",
      [](const Shape &shape, int64_t world, const Shape &grid, const Shape &block, std::optional<Shape> ranks) {
        same_length(grid, shape.size(), "grid"), same_length(block, shape.size(), "block");
        int64_t n = 1;
        for (int64_t extent : grid)
          n = extent < 0 || (extent > 0 && n > INT64_MAX / extent) ? -1 : n * extent;
        if (ranks && n >= 0)
          same_length(*ranks, size_t(n), "ranks");
        return made([&](reshard_layout *l) {
          return reshard_layout_create_cyclic(ndim_of(shape), shape.data(), world, grid.data(), block.data(),
                                              data_or_null(ranks), l);
        });
      },
      "shape"_a, "world"_a, "grid"_a, "block"_a, "ranks"_a = nb::none(), nb::rv_policy::take_ownership);
  layout.def_static(
      "single",
      [](const Shape &shape, int64_t world, int64_t rank) {
        return made([&](reshard_layout *l) {
          return reshard_layout_create_single(ndim_of(shape), shape.data(), world, rank, l);
        });
      },
      "shape"_a, "world"_a, "rank"_a, nb::rv_policy::take_ownership);
  layout.def_static(
      "flat",
      [](const Shape &shape, int64_t world, std::optional<Shape> ranks) {
        return made([&](reshard_layout *l) {
          return reshard_layout_create_flat(ndim_of(shape), shape.data(), world, ranks ? int64_t(ranks->size()) : 0,
                                            data_or_null(ranks), l);
        });
      },
      "shape"_a, "world"_a, "ranks"_a = nb::none(), nb::rv_policy::take_ownership);
  layout.def_static(
      "boxes",
      [](const Shape &shape, int64_t world, const std::vector<std::tuple<int64_t, Shape, Shape>> &boxes,
         bool replicated) {
        Shape ranks;
        std::vector<reshard_box> all;
        for (const auto &[rank, offset, extent] : boxes) {
          same_length(offset, shape.size(), "offset of a box"), same_length(extent, shape.size(), "extent of a box");
          reshard_box box = {};
          std::copy(offset.begin(), offset.end(), box.offset), std::copy(extent.begin(), extent.end(), box.extent);
          ranks.push_back(rank), all.push_back(box);
        }
        return made([&](reshard_layout *l) {
          return reshard_layout_create_boxes(ndim_of(shape), shape.data(), world, int64_t(all.size()), ranks.data(),
                                             all.data(), replicated, l);
        });
      },
      "shape"_a, "world"_a, "boxes"_a, "replicated"_a = false, nb::rv_policy::take_ownership,
      "Boxes are (rank, offset, extent).");
}

void bind_queries(nb::class_<Layout> &layout) {
  nb::class_<ArrayInfo>(layout, "Array",
                        "An array of a rank: its shape, the buffer that has it, and the elements before it there.")
      .def_ro("shape", &ArrayInfo::shape, nb::for_getter(nb::sig("def shape(self) -> tuple[int, ...]")))
      .def_ro("buffer", &ArrayInfo::buffer)
      .def_ro("offset", &ArrayInfo::offset)
      .def("__repr__", [](const ArrayInfo &a) {
        return "Array(shape=" + std::string(nb::repr(a.shape).c_str()) + ", buffer=" + std::to_string(a.buffer) +
               ", offset=" + std::to_string(a.offset) + ")";
      });
  layout
      .def_prop_ro(
          "shape",
          [](const Layout &l) { return tuple_of(reshard_layout_ndim(l.handle), reshard_layout_shape(l.handle)); },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro("ndim", [](const Layout &l) { return reshard_layout_ndim(l.handle); })
      .def_prop_ro("world", [](const Layout &l) { return reshard_layout_world(l.handle); })
      .def_prop_ro("kind", [](const Layout &l) { return kinds[reshard_layout_get_kind(l.handle)]; })
      .def(
          "arrays",
          [](const Layout &l, int64_t rank) {
            int64_t n = 0;
            check(reshard_layout_array_count(l.handle, rank, &n));
            std::vector<ArrayInfo> arrays;
            for (int64_t i = 0; i < n; i++) {
              reshard_array_info info;
              check(reshard_layout_array(l.handle, rank, i, &info));
              arrays.push_back({tuple_of(reshard_layout_ndim(l.handle), info.shape), info.buffer, info.offset});
            }
            return arrays;
          },
          "rank"_a)
      .def(
          "intervals",
          [](const Layout &l, int64_t rank, int64_t array, int dim) {
            int64_t n = 0;
            check(reshard_layout_array_intervals(l.handle, rank, array, dim, 0, 0, nullptr, &n));
            std::vector<reshard_interval> runs(static_cast<size_t>(n));
            check(reshard_layout_array_intervals(l.handle, rank, array, dim, 0, n, runs.data(), &n));
            std::vector<std::pair<int64_t, int64_t>> pairs;
            for (const reshard_interval &run : runs)
              pairs.emplace_back(run.begin, run.end);
            return pairs;
          },
          "rank"_a, "array"_a = 0, "dim"_a = 0,
          "The runs of global indices that an array has in a dim: (begin, end), ascending.")
      .def("__str__", layout_text)
      .def("__repr__",
           [](const Layout &l) {
             return "reshard.Layout('" + layout_text(l) + "', " +
                    shape_text(reshard_layout_ndim(l.handle), reshard_layout_shape(l.handle)) + ", " +
                    std::to_string(reshard_layout_world(l.handle)) + ")";
           })
      .def(
          "__eq__",
          [](const Layout &l, const Layout &other) { return reshard_layout_equal(l.handle, other.handle) == 1; },
          nb::is_operator(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__",
           [](const Layout &l) { return nb::hash(nb::make_tuple(layout_text(l), reshard_layout_world(l.handle))); })
      .def(
          "__reduce__",
          [](nb::object self) {
            const Layout &l = nb::cast<const Layout &>(self);
            nb::tuple shape = tuple_of(reshard_layout_ndim(l.handle), reshard_layout_shape(l.handle));
            return nb::make_tuple(self.type(), nb::make_tuple(layout_text(l), shape, reshard_layout_world(l.handle)));
          },
          nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"));
}

} // namespace

const Layout &layout_arg(nb::handle object) { return nb::cast<const Layout &>(object); }

void bind_layout(nb::module_ &m) {
  m.def("dtype_size", [](const std::string &name) { return reshard_dtype_size(dtype_of(nb::str(name.c_str()))); });
  nb::class_<Layout> layout(m, "Layout", "The boxes of a global tensor that each rank holds. Immutable.");
  bind_making(layout);
  bind_queries(layout);
}
