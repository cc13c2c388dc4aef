// The buffers that a rank gives, checked. The C calls see pointers alone, and would read beyond the end of an array.
#include "core.h"

#include <algorithm>

namespace {

bool is_list(nb::handle h) { return nb::isinstance<nb::list>(h) || nb::isinstance<nb::tuple>(h); }

std::string given_text(nb::handle given) {
  return is_list(given) ? text_of(nb::len(given), " arrays") : std::string("one array");
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
    invalid(side, " of rank ", rank, ": ", given_text(given), " for ", entries, " entries");
  return list;
}

// One array, where `want` is due.
Array taken(const Array &want, reshard_dtype dtype, nb::handle object, const What &what, bool write, bool gpu) {
  Array a;
  if (want.elements() == 0 && object.is_none()) {
    a.dtype = dtype;
    return a;
  }
  a = array_of(object, what);
  if (dtype != RESHARD_DTYPE_NONE && a.dtype != dtype)
    invalid(what, ": ", reshard_dtype_string(a.dtype), ", where ", reshard_dtype_string(dtype), " is due");
  bool same = a.ndim == want.ndim && std::equal(a.shape, a.shape + a.ndim, want.shape);
  if (!same && !(want.elements() == 0 && a.elements() == 0))
    invalid(what, ": shape ", shape_text(a.ndim, a.shape), ", where ", shape_text(want.ndim, want.shape), " is due");
  if (write && !a.writable)
    invalid(what, ": read-only, and a destination");
  if ((a.gpu >= 0) != gpu)
    invalid(what, ": on ", gpu ? "the CPU" : "a GPU", ", and the communicator is of ", gpu ? "GPUs" : "the CPU");
  if (want.flat && want.elements() > 1 && a.strides[0] != 1)
    invalid(what, ": elements ", a.strides[0], " apart; a flat piece is contiguous");
  a.flat = want.flat;
  return a;
}

} // namespace

const std::vector<Array> &Layout::buffers(int64_t rank) const {
  const auto found = kept.find(rank);
  if (found != kept.end())
    return found->second;
  std::vector<Array> all(size_t(got<int64_t>(reshard_layout_buffer_count, handle, rank)));
  for (size_t b = 0; b < all.size(); b++) {
    Array &want = all[b];
    const int64_t elements = got<int64_t>(reshard_layout_buffer_elements, handle, rank, int64_t(b)), n = count(rank);
    want.ndim = 1, want.shape[0] = elements, want.flat = kind() == RESHARD_LAYOUT_FLAT;
    for (int64_t i = kind() == RESHARD_LAYOUT_BOXES ? int64_t(b) : 0; !want.flat && i < n; i++) {
      const reshard_array_info info = array(rank, i);
      if (info.buffer != int64_t(b))
        continue;
      want.ndim = ndim(), std::copy(info.shape, info.shape + want.ndim, want.shape);
      for (int d = 0; d < want.ndim && elements > 0; d++) // of the arrays together, which lie side by side in it
        want.shape[d] = (d == 0 ? elements : info.strides[d - 1]) / info.strides[d];
      break;
    }
  }
  return kept.emplace(rank, std::move(all)).first->second;
}

Side side_of(nb::handle given, std::vector<Wanted> &wanted, int64_t rank, const char *side, bool write, bool gpu) {
  Side out;
  bool one = wanted.size() == 1 && wanted[0].layout->buffers(rank).size() == 1;
  std::vector<nb::object> list = per_entry(given, wanted.size(), one, side, rank);
  for (size_t e = 0; e < wanted.size(); e++) {
    const std::vector<Array> &due = wanted[e].layout->buffers(rank);
    What what{side, rank, &wanted[e].name};
    auto add = [&](size_t b, nb::handle object) {
      out.arrays.push_back(taken(due[b], wanted[e].dtype, object, what, write, gpu));
      wanted[e].dtype = out.arrays.back().dtype;
      out.data.push_back(due[b].elements() == 0 ? nullptr : out.arrays.back().data);
    };
    if (due.size() == 1 && !is_list(list[e])) {
      add(0, list[e]);
      continue;
    }
    if (due.empty() && list[e].is_none())
      continue;
    if (!is_list(list[e]) || nb::len(list[e]) != due.size())
      invalid(what, ": ", given_text(list[e]), ", where ", due.size(), " are due");
    for (size_t b = 0; b < due.size(); b++)
      what.buffer = int64_t(b), add(b, nb::object(list[e][b]));
  }
  for (size_t i = 0; i < out.arrays.size(); i++)
    out.strides.push_back(out.arrays[i].flat || out.data[i] == nullptr ? nullptr : out.arrays[i].strides);
  return out;
}
