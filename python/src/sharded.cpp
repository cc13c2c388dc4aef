// Tensors of all ranks over sharders: redistribute, and state dicts that are saved and loaded.
#include "core.h"
#include "ranks.h"

#include <reshard/sharded.h>
#include <reshard/state_dict.h>

namespace {

reshard_tensor wrap(const Array &a) {
  reshard_tensor tensor = nullptr;
  check(reshard_tensor_wrap(a.dtype, a.ndim, a.shape, a.strides, a.data, nullptr, nullptr, &tensor));
  return tensor;
}

const std::vector<reshard_sharder> &sharders_of(Comm &comm, int64_t limit) {
  std::vector<reshard_sharder> &of = comm.sharders[limit];
  if (!of.empty())
    return of;
  if (comm.streams)
    raise(RESHARD_ERROR_UNSUPPORTED, "redistribute on a communicator of GPUs: use Transfer");
  reshard_sharder_options options = RESHARD_SHARDER_OPTIONS_DEFAULTS;
  options.workspace_limit = limit;
  std::vector<reshard_sharder> made(comm.handles.size());
  run_ranks(comm, [&](size_t i) { return reshard_sharder_create(comm.handles[i], &options, &made[i]); });
  return of = std::move(made);
}

struct Tensors { // references that go with the scope
  ~Tensors() {
    for (reshard_sharded_tensor s : sharded)
      reshard_sharded_tensor_release(s);
    for (reshard_tensor t : plain)
      reshard_tensor_release(t);
  }
  std::vector<reshard_sharded_tensor> sharded;
  std::vector<reshard_tensor> plain;
};

// The tensors of one rank as sharded ones over the caller's memory.
void shard(reshard_sharder sharder, int64_t rank, const std::vector<Wanted> &wanted,
           const std::vector<reshard_dtype> &dtypes, const Side &side, Tensors &own) {
  size_t at = 0;
  for (size_t e = 0; e < wanted.size(); e++) {
    int64_t buffers = 0, arrays = 0;
    check(reshard_layout_buffer_count(wanted[e].layout->handle, rank, &buffers));
    check(reshard_layout_array_count(wanted[e].layout->handle, rank, &arrays));
    std::vector<reshard_tensor> parts;
    for (int64_t k = 0; k < arrays; k++) {
      reshard_array_info info;
      check(reshard_layout_array(wanted[e].layout->handle, rank, k, &info));
      const Array &whole = side.arrays[at + size_t(info.buffer)];
      Array a = whole;
      a.dtype = dtypes[e];
      a.ndim = reshard_layout_ndim(wanted[e].layout->handle);
      std::copy(info.shape, info.shape + a.ndim, a.shape);
      if (reshard_layout_get_kind(wanted[e].layout->handle) == RESHARD_LAYOUT_FLAT || whole.elements() == 0)
        std::copy(info.strides, info.strides + a.ndim, a.strides);
      a.data = whole.data != nullptr
                   ? static_cast<char *>(whole.data) + size_t(info.offset) * reshard_dtype_size(a.dtype)
                   : nullptr;
      parts.push_back(wrap(a));
      own.plain.push_back(parts.back());
    }
    at += size_t(buffers);
    reshard_properties properties = {};
    properties.dtype = dtypes[e];
    reshard_sharded_tensor made = nullptr;
    check(reshard_sharded_tensor_from_layout(sharder, wanted[e].layout->handle, &properties, int64_t(parts.size()),
                                             parts.data(), &made));
    own.sharded.push_back(made);
  }
}

// The dtype of each tensor, which its arrays on all ranks here have.
std::vector<reshard_dtype> dtypes_of(Comm &comm, const std::vector<Wanted> &wanted, const std::vector<Side> &sides) {
  std::vector<reshard_dtype> dtypes(wanted.size(), RESHARD_DTYPE_NONE);
  for (size_t i = 0; i < sides.size(); i++) {
    size_t at = 0;
    for (size_t e = 0; e < wanted.size(); e++) {
      int64_t buffers = 0;
      check(reshard_layout_buffer_count(wanted[e].layout->handle, reshard_comm_rank(comm.handles[i]), &buffers));
      for (int64_t b = 0; b < buffers; b++, at++) {
        reshard_dtype dtype = sides[i].arrays[at].dtype;
        if (dtypes[e] == RESHARD_DTYPE_NONE)
          dtypes[e] = dtype;
        else if (dtype != RESHARD_DTYPE_NONE && dtype != dtypes[e])
          invalid("'" + wanted[e].name + "': arrays of " + reshard_dtype_string(dtypes[e]) + " and of " +
                  reshard_dtype_string(dtype) + " of one tensor");
      }
    }
  }
  for (size_t e = 0; e < wanted.size(); e++)
    if (dtypes[e] == RESHARD_DTYPE_NONE)
      invalid("'" + wanted[e].name + "': this rank gives no array, so no dtype; an array without elements tells it");
  return dtypes;
}

// The tensors that the ranks here give, as sharded ones.
std::vector<Tensors> take_tensors(Comm &comm, const std::vector<reshard_sharder> &sharders, nb::handle arrays,
                                  const std::vector<Wanted> &wanted, bool write) {
  std::vector<Side> sides;
  const std::vector<nb::object> given = of_ranks(comm, arrays, "arrays");
  for (size_t i = 0; i < given.size(); i++)
    sides.push_back(side_of(given[i], wanted, reshard_comm_rank(comm.handles[i]), write ? "destination" : "source",
                            write, comm.streams));
  const std::vector<reshard_dtype> dtypes = dtypes_of(comm, wanted, sides);
  std::vector<Tensors> own(given.size());
  for (size_t i = 0; i < given.size(); i++)
    shard(sharders[i], reshard_comm_rank(comm.handles[i]), wanted, dtypes, sides[i], own[i]);
  return own;
}

nb::object results_of(const Tensors &own, const std::vector<const Layout *> &dst, bool one, bool bits) {
  nb::list all;
  for (size_t e = 0; e < dst.size(); e++) {
    reshard_sharded_tensor s = own.sharded[dst.size() + e];
    auto part = [&](int64_t k) {
      reshard_tensor t = nullptr;
      check(reshard_sharded_tensor_local(s, k, &t, nullptr));
      return t != nullptr ? numpy_of(t, bits) : nb::none();
    };
    int64_t count = reshard_sharded_tensor_local_count(s);
    nb::object value;
    if (reshard_layout_get_kind(dst[e]->handle) == RESHARD_LAYOUT_BOXES) {
      value = nb::list();
      for (int64_t k = 0; k < count; k++)
        nb::borrow<nb::list>(value).append(part(k));
    } else
      value = count > 0 ? part(0) : nb::none();
    if (one)
      return value;
    all.append(value);
  }
  return all;
}

std::vector<const Layout *> layouts_of(nb::handle given, std::vector<nb::object> &keep) {
  std::vector<const Layout *> list;
  if (nb::isinstance<Layout>(given))
    keep.push_back(nb::borrow(given));
  else
    for (nb::handle h : given)
      keep.push_back(nb::borrow(h));
  for (const nb::object &o : keep)
    list.push_back(&layout_arg(o));
  return list;
}

// Parts that ranks share: several arrays of a rank in one buffer.
bool shares_parts(const Layout &l) {
  int64_t n = 0;
  for (int64_t rank = 0; reshard_layout_get_kind(l.handle) == RESHARD_LAYOUT_MESH && n < 2; rank++) {
    if (rank == reshard_layout_world(l.handle))
      return false;
    check(reshard_layout_array_count(l.handle, rank, &n));
  }
  return n > 1;
}

Any redistribute(nb::handle arrays, nb::handle src, nb::handle dst, Comm &comm, std::optional<int64_t> limit,
                 nb::handle stream, nb::handle dtype, bool bits) {
  CommCall in(comm);
  std::vector<nb::object> keep_src, keep_dst;
  std::vector<const Layout *> from, to;
  std::vector<Wanted> wanted;
  std::vector<reshard_dtype> dtypes;
  void *on = nullptr;
  bool joint = false; // several arrays in one buffer
  joined(comm, [&] {
    from = layouts_of(src, keep_src), to = layouts_of(dst, keep_dst);
    if (from.size() != to.size() || from.empty())
      invalid(std::to_string(from.size()) + " source layouts and " + std::to_string(to.size()) +
              " destination layouts");
    for (const Layout *l : to)
      joint = joint || shares_parts(*l) ||
              (reshard_layout_get_kind(l->handle) == RESHARD_LAYOUT_FLAT && reshard_layout_ndim(l->handle) > 1);
    for (size_t e = 0; e < from.size(); e++)
      wanted.push_back({from[e], RESHARD_DTYPE_NONE, from.size() == 1 ? "tensor" : std::to_string(e)});
    dtypes.assign(from.size(), dtype_or(dtype, RESHARD_DTYPE_NONE));
    on = stream_of(comm, stream);
  });
  if (joint)
    return nb::module_::import_("reshard._buffers")
        .attr("redistribute")(arrays, src, dst, nb::find(comm), limit, dtype);
  const std::vector<reshard_sharder> &sharders = sharders_of(comm, limit_of(limit));
  std::vector<Tensors> own = joined(comm, [&] { return take_tensors(comm, sharders, arrays, wanted, false); });
  std::vector<reshard_layout> layouts;
  for (const Layout *l : to)
    layouts.push_back(l->handle);
  size_t n = from.size();
  std::vector<std::vector<reshard_sharded_tensor>> results(own.size(), std::vector<reshard_sharded_tensor>(n));
  run_ranks(comm, [&](size_t i) {
    return reshard_sharded_tensor_reshard_to_as(int64_t(n), own[i].sharded.data(), layouts.data(), dtypes.data(), on,
                                                results[i].data());
  });
  nb::list ranks;
  for (size_t i = 0; i < own.size(); i++) {
    own[i].sharded.insert(own[i].sharded.end(), results[i].begin(), results[i].end());
    ranks.append(results_of(own[i], to, nb::isinstance<Layout>(src), bits));
  }
  return comm.local ? nb::object(ranks) : nb::object(ranks[0]);
}

// --- State dicts -----------------------------------------------------------------------------------------------------

// Saves named tensors of all ranks as a directory of shards, or loads into them. One array for each on every rank.
void move_state(Comm &comm, const std::string &path, const std::vector<std::string> &names, nb::handle arrays,
                nb::handle layouts, bool save, bool option, nb::handle dtype) {
  CommCall in(comm);
  std::vector<nb::object> keep;
  std::vector<Wanted> wanted;
  reshard_state_save_options saving = RESHARD_STATE_SAVE_OPTIONS_DEFAULTS;
  reshard_state_load_options loading = RESHARD_STATE_LOAD_OPTIONS_DEFAULTS;
  joined(comm, [&] {
    std::vector<const Layout *> of = layouts_of(layouts, keep);
    for (size_t e = 0; e < names.size(); e++)
      wanted.push_back({of.at(e), RESHARD_DTYPE_NONE, c_text(names[e], "name")});
    saving.force = loading.partial = option;
    saving.dtype = dtype_or(dtype, RESHARD_DTYPE_NONE);
    c_text(path, "path");
  });
  const std::vector<reshard_sharder> &sharders = sharders_of(comm, limit_of({}));
  std::vector<Tensors> own = joined(comm, [&] { return take_tensors(comm, sharders, arrays, wanted, !save); });
  std::vector<std::unique_ptr<reshard_tree_s, void (*)(reshard_tree)>> trees;
  for (const Tensors &tensors : own) {
    reshard_tree tree = nullptr, leaf = nullptr;
    check(reshard_tree_dict(&tree));
    trees.emplace_back(tree, reshard_tree_release);
    for (size_t e = 0; e < names.size(); e++) {
      check(reshard_state_sharded(tensors.sharded[e], &leaf));
      reshard_status status = reshard_tree_set(tree, names[e].c_str(), leaf);
      reshard_tree_release(leaf);
      check(status);
    }
  }
  run_ranks(comm, [&](size_t i) {
    return save ? reshard_state_save(sharders[i], trees[i].get(), path.c_str(), &saving, nullptr)
                : reshard_state_load(sharders[i], trees[i].get(), path.c_str(), &loading, nullptr);
  });
}

} // namespace

void bind_sharded(nb::module_ &m) {
  m.def("redistribute", &redistribute, "arrays"_a.none(), "src"_a, "dst"_a, "comm"_a, nb::kw_only(),
        "limit"_a = nb::none(), "stream"_a = nb::none(), "dtype"_a = nb::none(), "_bits"_a = false,
        "Moves this rank's arrays from one layout to another; returns new numpy arrays, as `empty` makes them. "
        "Collective.\n\n"
        "One tensor, or lists of arrays and layouts, which are one plan. A rank that holds several boxes gives a list "
        "of\narrays. In a local world everything is a list with one such thing per rank. Plans are kept by the "
        "communicator.\nlimit: bytes of staging a rank, as of Plan. dtype: of the results, converted on the way.");
  m.def("_move_state", &move_state, "comm"_a, "path"_a, "names"_a, "arrays"_a, "layouts"_a, "save"_a, "option"_a,
        "dtype"_a.none() = nb::none());
}
