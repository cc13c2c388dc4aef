// The buffers that a rank gives, checked. The C calls see pointers alone, and would read beyond the end of an array.
#include "core.h"

namespace {

bool is_list(nb::handle h) { return nb::isinstance<nb::list>(h) || nb::isinstance<nb::tuple>(h); }

std::string given_text(nb::handle given) {
  return is_list(given) ? std::to_string(nb::len(given)) + " arrays" : std::string("one array");
}

// The thing given for each entry. One entry may be given bare.
std::vector<nb::object> per_entry(nb::handle given, size_t entries, bool one_buffer, const char *side, int64_t rank) {
  std::vector<nb::object> list;
  if (is_list(given))
    for (nb::handle h : given)
      list.push_back(nb::borrow(h));
  if (entries == 1 && (!is_list(given) || (!one_buffer && !(list.size() == 1 && is_list(list[0])))))
    return {nb::borrow(given)};
  if (!is_list(given) || list.size() != entries)
    invalid(std::string(side) + " of rank " + std::to_string(rank) + ": " + given_text(given) + " for " +
            std::to_string(entries) + " entries");
  return list;
}

void add(Side &out, const Wanted &w, nb::handle object, int64_t rank, int64_t b, const What &what, bool write,
         bool gpu) {
  Array want = buffer_shape(*w.layout, rank, b), a;
  out.stride_numbers.emplace_back();
  if (want.elements() == 0 && object.is_none()) {
    a.dtype = w.dtype;
  } else {
    a = array_of(object, what);
    if (w.dtype != RESHARD_DTYPE_NONE && a.dtype != w.dtype)
      invalid(what + ": " + reshard_dtype_string(a.dtype) + ", where " + reshard_dtype_string(w.dtype) + " is due");
    bool same = a.ndim == want.ndim && std::equal(a.shape, a.shape + a.ndim, want.shape);
    if (!same && !(want.elements() == 0 && a.elements() == 0))
      invalid(what + ": shape " + shape_text(a.ndim, a.shape) + ", where " + shape_text(want.ndim, want.shape) +
              " is due");
    if (write && !a.writable)
      invalid(what + ": read-only, and a destination");
    if ((a.gpu >= 0) != gpu)
      invalid(what + (gpu ? ": on the CPU, and the communicator is of GPUs"
                          : ": on a GPU, and the communicator is of the CPU"));
    std::copy(a.strides, a.strides + a.ndim, out.stride_numbers.back().begin());
  }
  bool flat = want.ndim != reshard_layout_ndim(w.layout->handle) ||
              reshard_layout_get_kind(w.layout->handle) == RESHARD_LAYOUT_FLAT;
  if (flat && want.elements() > 1 && a.strides[0] != 1)
    invalid(what + ": elements " + std::to_string(a.strides[0]) + " apart; a flat piece is contiguous");
  out.data.push_back(want.elements() == 0 ? nullptr : a.data);
  out.strides.push_back(flat || want.elements() == 0 ? nullptr : reinterpret_cast<int64_t *>(1)); // set below
  out.arrays.push_back(std::move(a));
}

} // namespace

Array buffer_shape(const Layout &layout, int64_t rank, int64_t b) {
  Array want;
  int64_t n = 0, elements = 0;
  check(reshard_layout_buffer_elements(layout.handle, rank, b, &elements));
  check(reshard_layout_array_count(layout.handle, rank, &n));
  want.ndim = 1, want.shape[0] = elements;
  bool flat = reshard_layout_get_kind(layout.handle) == RESHARD_LAYOUT_FLAT;
  for (int64_t i = reshard_layout_get_kind(layout.handle) == RESHARD_LAYOUT_BOXES ? b : 0; !flat && i < n; i++) {
    reshard_array_info info;
    check(reshard_layout_array(layout.handle, rank, i, &info));
    if (info.buffer != b)
      continue;
    want.ndim = reshard_layout_ndim(layout.handle), std::copy(info.shape, info.shape + want.ndim, want.shape);
    for (int d = 0; d < want.ndim && elements > 0; d++) // of the arrays together, which lie side by side in it
      want.shape[d] = (d == 0 ? elements : info.strides[d - 1]) / info.strides[d];
    break;
  }
  return want;
}

Side side_of(nb::handle given, const std::vector<Wanted> &wanted, int64_t rank, const char *side, bool write,
             bool gpu) {
  Side out;
  std::vector<int64_t> counts(wanted.size());
  for (size_t e = 0; e < wanted.size(); e++)
    check(reshard_layout_buffer_count(wanted[e].layout->handle, rank, &counts[e]));
  std::vector<nb::object> list = per_entry(given, wanted.size(), wanted.size() == 1 && counts[0] == 1, side, rank);
  for (size_t e = 0; e < wanted.size(); e++) {
    What what{side, rank, &wanted[e].name};
    if (counts[e] == 1 && !is_list(list[e])) {
      add(out, wanted[e], list[e], rank, 0, what, write, gpu);
      continue;
    }
    if (counts[e] == 0 && list[e].is_none())
      continue;
    if (!is_list(list[e]) || int64_t(nb::len(list[e])) != counts[e])
      invalid(what + ": " + given_text(list[e]) + ", where " + std::to_string(counts[e]) + " are due");
    for (what.buffer = 0; what.buffer < counts[e]; what.buffer++)
      add(out, wanted[e], list[e][what.buffer], rank, what.buffer, what, write, gpu);
  }
  for (size_t i = 0; i < out.strides.size(); i++)
    if (out.strides[i] != nullptr)
      out.strides[i] = out.stride_numbers[i].data();
  return out;
}
