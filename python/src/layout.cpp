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

Layout *parsed(const std::string &text, const Shape &shape, int64_t world) {
  reshard_layout made = nullptr;
  check(reshard_layout_parse(c_text(text, "layout"), ndim_of(shape), shape.data(), world, &made));
  return new Layout(made);
}

// The list in a layout string, behind `before`; nothing where it was left out.
template <typename T> std::string listed(const char *before, const std::vector<T> &list, const char *between = ",") {
  std::string text;
  for (const T &one : list) {
    text += text.empty() ? before : between;
    if constexpr (std::is_same_v<T, std::string>)
      text += one;
    else
      text += std::to_string(one);
  }
  return text;
}
template <typename T> std::string listed(const char *before, const std::optional<std::vector<T>> &list) {
  if (list && list->empty())
    invalid("an empty list, where numbers are due");
  return list ? listed(before, *list) : "";
}

void same_length(size_t given, size_t n, const char *what) {
  if (given != n)
    invalid(std::string(what) + ": " + std::to_string(given) + " where " + std::to_string(n) + " are due");
}

struct ArrayInfo {
  IntTuple shape;
  int64_t buffer, offset;
};

std::vector<Array> buffers_of(const Layout &l, int64_t rank) {
  std::vector<Array> shapes;
  int64_t n = 0;
  check(reshard_layout_buffer_count(l.handle, rank, &n));
  for (int64_t b = 0; b < n; b++)
    shapes.push_back(buffer_shape(l, rank, b));
  return shapes;
}

std::string layout_text(const Layout &l) {
  return printed(
      [&](char *text, size_t size, size_t *needed) { return reshard_layout_print(l.handle, text, size, needed); });
}

// Constructors write the layout string, which the library reads: it says what is wrong with it.
void bind_making(nb::class_<Layout> &layout) {
  layout.def(nb::new_(&parsed), "text"_a, "shape"_a, "world"_a = 0,
             "Reads a layout string; world 0: the smallest that holds the ranks named.");
  layout.def_static(
      "chunk",
      [](const Shape &shape, int64_t world, int dim, const std::optional<Shape> &ranks) {
        return parsed("chunk(" + std::to_string(dim) + listed(";", ranks) + ")", shape, world);
      },
      "shape"_a, "world"_a, "dim"_a = 0, "ranks"_a = nb::none(), nb::rv_policy::take_ownership);
  layout.def_static(
      "mesh",
      [](const Shape &shape, int64_t world, const Shape &mesh_shape, const std::vector<std::string> &placements,
         const std::optional<std::vector<std::string>> &names, const std::optional<std::vector<int>> &order,
         const std::optional<Shape> &ranks) {
        std::vector<std::string> dims;
        same_length(placements.size(), mesh_shape.size(), "placements");
        same_length(names ? names->size() : mesh_shape.size(), mesh_shape.size(), "names");
        same_length(order ? order->size() : mesh_shape.size(), mesh_shape.size(), "order");
        for (size_t m = 0; m < mesh_shape.size(); m++) {
          dims.push_back((names ? (*names)[m] + "=" : "") + std::to_string(mesh_shape[m]));
          if (names && (*names)[m].find_first_of(",;=@()") != std::string::npos)
            invalid("name '" + (*names)[m] + "' of a mesh dim");
        }
        return parsed("mesh(" + listed("", dims, names ? "," : "x") + listed("@", ranks) + listed(";", placements) +
                          listed(";order=", order) + ")",
                      shape, world);
      },
      "shape"_a, "world"_a, "mesh_shape"_a, "placements"_a, "names"_a = nb::none(), "order"_a = nb::none(),
      "ranks"_a = nb::none(), nb::rv_policy::take_ownership, "Placements are those of layout strings: S0, S0*2, R.");
  layout.def_static(
      "cyclic",
      [](const Shape &shape, int64_t world, const Shape &grid, const Shape &block, const std::optional<Shape> &ranks) {
        return parsed("cyclic(" + listed("", grid, "x") + listed("@", ranks) + listed(";", block, "x") + ")", shape,
                      world);
      },
      "shape"_a, "world"_a, "grid"_a, "block"_a, "ranks"_a = nb::none(), nb::rv_policy::take_ownership);
  layout.def_static(
      "single",
      [](const Shape &shape, int64_t world, int64_t rank) {
        return parsed("rank(" + std::to_string(rank) + ")", shape, world);
      },
      "shape"_a, "world"_a, "rank"_a, nb::rv_policy::take_ownership);
  layout.def_static(
      "flat",
      [](const Shape &shape, int64_t world, const std::optional<Shape> &ranks) {
        return parsed("flat(" + listed("", ranks) + ")", shape, world);
      },
      "shape"_a, "world"_a, "ranks"_a = nb::none(), nb::rv_policy::take_ownership);
  layout.def_static(
      "boxes",
      [](const Shape &shape, int64_t world, const std::vector<std::tuple<int64_t, Shape, Shape>> &boxes,
         bool replicated) {
        Shape ranks;
        std::vector<reshard_box> all;
        for (const auto &[rank, offset, extent] : boxes) {
          same_length(offset.size(), shape.size(), "offset of a box");
          same_length(extent.size(), shape.size(), "extent of a box");
          reshard_box box = {};
          std::copy(offset.begin(), offset.end(), box.offset), std::copy(extent.begin(), extent.end(), box.extent);
          ranks.push_back(rank), all.push_back(box);
        }
        reshard_layout made = nullptr;
        check(reshard_layout_create_boxes(ndim_of(shape), shape.data(), world, int64_t(all.size()), ranks.data(),
                                          all.data(), replicated, &made));
        return new Layout(made);
      },
      "shape"_a, "world"_a, "boxes"_a, "replicated"_a = false, nb::rv_policy::take_ownership,
      "Boxes are (rank, offset, extent).");
}

void bind_queries(nb::class_<Layout> &layout) {
  nb::class_<ArrayInfo>(layout, "Array",
                        "An array of a rank: its shape, the buffer that has it, and the elements before it there.")
      .def_ro("shape", &ArrayInfo::shape)
      .def_ro("buffer", &ArrayInfo::buffer)
      .def_ro("offset", &ArrayInfo::offset)
      .def("__repr__", [](const ArrayInfo &a) {
        return "Array(shape=" + std::string(nb::repr(a.shape).c_str()) + ", buffer=" + std::to_string(a.buffer) +
               ", offset=" + std::to_string(a.offset) + ")";
      });
  layout
      .def_prop_ro(
          "shape",
          [](const Layout &l) { return tuple_of(reshard_layout_ndim(l.handle), reshard_layout_shape(l.handle)); })
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
          "buffers",
          [](const Layout &l, int64_t rank) {
            std::vector<IntTuple> shapes;
            for (const Array &a : buffers_of(l, rank))
              shapes.push_back(tuple_of(a.ndim, a.shape));
            return shapes;
          },
          "rank"_a,
          "Shapes of the buffers that a rank has: of its arrays, but one of elements for flat, and one of parts that "
          "ranks share.")
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
           [](const Layout &l) { // names, and parts that say the same in other words, are not compared
             nb::tuple shape = tuple_of(reshard_layout_ndim(l.handle), reshard_layout_shape(l.handle));
             nb::list first;
             for (const Array &a : buffers_of(l, 0))
               first.append(tuple_of(a.ndim, a.shape));
             return nb::hash(nb::make_tuple(int(reshard_layout_get_kind(l.handle)), shape,
                                            reshard_layout_world(l.handle), nb::tuple(first)));
           })
      .def("__reduce__", [](nb::object self) -> nb::typed<nb::tuple, nb::any, nb::ellipsis> {
        const Layout &l = nb::cast<const Layout &>(self);
        nb::tuple shape = tuple_of(reshard_layout_ndim(l.handle), reshard_layout_shape(l.handle));
        return nb::make_tuple(self.type(), nb::make_tuple(layout_text(l), shape, reshard_layout_world(l.handle)));
      });
}

} // namespace

const Layout &layout_arg(nb::handle object) { return nb::cast<const Layout &>(object); }

void bind_layout(nb::module_ &m) {
  nb::class_<Layout> layout(m, "Layout", "The boxes of a global tensor that each rank holds. Immutable.");
  bind_making(layout);
  bind_queries(layout);
}
