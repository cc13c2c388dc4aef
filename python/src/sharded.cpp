// Tensors of all ranks over sharders: redistribute, and state dicts that are saved and loaded.
#include "ranks.h"

#include <reshard/state_dict.h>

#include <algorithm>

namespace {

const std::vector<Sharder> &sharders_of(Comm &comm, Limit limit) {
  std::vector<Sharder> &of = comm.sharders[limit_of(limit)];
  if (!of.empty())
    return of;
  if (comm.streams)
    unsupported("redistribute on a communicator of GPUs: use Transfer");
  reshard_sharder_options options = RESHARD_SHARDER_OPTIONS_DEFAULTS;
  options.workspace_limit = limit_of(limit);
  std::vector<Sharder> made(comm.handles.size());
  run_ranks(comm, [&](size_t i) { return reshard_sharder_create(comm.handles[i], &options, &made[i].handle); });
  return of = std::move(made);
}

// --- Arrays of the ranks here ----------------------------------------------------------------------------------------

struct Given {
  std::vector<Wanted> wanted; // with the dtype that the arrays of each have
  std::vector<Side> sides;    // by rank
};

std::vector<const Layout *> layouts_of(nb::handle given, const char *what) {
  std::vector<const Layout *> list;
  if (!nb::isinstance<nb::list>(given) && !nb::isinstance<nb::tuple>(given))
    return {&as<Layout>(given, what)};
  for (nb::handle h : given)
    list.push_back(&as<Layout>(h, what));
  return list;
}

Given take(Comm &comm, nb::handle arrays, std::vector<Wanted> wanted, bool write) {
  Given all{std::move(wanted), {}};
  const std::vector<nb::object> given = of_ranks(comm, arrays, "arrays");
  for (size_t i = 0; i < given.size(); i++)
    all.sides.push_back(
        side_of(given[i], all.wanted, comm.rank(i), write ? "destination" : "source", write, comm.streams));
  for (size_t i = 0; i < given.size(); i++) {
    size_t at = 0;
    for (Wanted &w : all.wanted)
      for (size_t end = at + w.layout->buffers(comm.rank(i)).size(); at < end; at++) {
        const reshard_dtype dtype = all.sides[i].arrays[at].dtype;
        if (w.dtype == RESHARD_DTYPE_NONE)
          w.dtype = dtype;
        else if (dtype != RESHARD_DTYPE_NONE && dtype != w.dtype)
          invalid("'", w.name, "': arrays of ", reshard_dtype_string(w.dtype), " and of ", reshard_dtype_string(dtype),
                  " of one tensor");
      }
  }
  for (const Wanted &w : all.wanted)
    if (w.dtype == RESHARD_DTYPE_NONE)
      invalid("'", w.name, "': this rank gives no array, so no dtype; an array without elements tells it");
  return all;
}

struct Tensors { // sharded ones of one rank; references that go with the scope
  ~Tensors() { std::for_each(all.begin(), all.end(), reshard_sharded_tensor_release); }
  std::vector<reshard_sharded_tensor> all;
};

// The tensors of rank i here as sharded ones over the caller's memory.
void shard(Comm &comm, const std::vector<Sharder> &sharders, const Given &given, size_t i, Tensors &own) {
  const int64_t rank = comm.rank(i);
  const Array *buffers = given.sides[i].arrays.data();
  for (const Wanted &w : given.wanted) {
    std::vector<Owned<reshard_tensor, reshard_tensor_release>> parts;
    std::vector<reshard_tensor> handles;
    for (int64_t k = 0, n = w.layout->count(rank); k < n; k++) {
      const reshard_array_info info = w.layout->array(rank, k);
      const Array &a = buffers[info.buffer];
      bool plain = w.layout->kind() == RESHARD_LAYOUT_FLAT || a.elements() == 0 || a.data == nullptr;
      char *data = static_cast<char *>(a.data);
      handles.push_back(got<reshard_tensor>(
          reshard_tensor_wrap, w.dtype, w.layout->ndim(), info.shape, plain ? info.strides : a.strides,
          data != nullptr ? data + size_t(info.offset) * reshard_dtype_size(w.dtype) : nullptr, nullptr, nullptr));
      parts.emplace_back(handles.back());
    }
    buffers += w.layout->buffers(rank).size();
    reshard_properties properties = {};
    properties.dtype = w.dtype;
    own.all.push_back(got<reshard_sharded_tensor>(reshard_sharded_tensor_from_layout, sharders[i].handle,
                                                  w.layout->handle, &properties, int64_t(handles.size()),
                                                  handles.data()));
  }
}

// --- redistribute ----------------------------------------------------------------------------------------------------

// One rank's value of a tensor: a list of its buffers for boxes, else the only one, or None.
nb::object one_value(const Layout &layout, nb::list buffers) {
  if (layout.kind() == RESHARD_LAYOUT_BOXES)
    return buffers;
  return buffers.size() > 0 ? nb::object(buffers[0]) : nb::none();
}

// Layouts of which a rank has several arrays in one buffer: a transfer fills it.
nb::list moved_into_buffers(Comm &comm, nb::handle arrays, const Given &given, const std::vector<const Layout *> &to,
                            const std::vector<reshard_dtype> &dtypes, Limit limit, bool bare) {
  nb::module_ core = nb::module_::import_("reshard._core");
  nb::object owner = nb::find(comm);
  nb::list plans, results;
  for (size_t i = 0; i < comm.handles.size(); i++) {
    std::vector<Entry> entries;
    nb::list values;
    for (size_t e = 0; e < to.size(); e++) {
      const Wanted &w = given.wanted[e];
      const reshard_dtype dtype = dtypes[e] != RESHARD_DTYPE_NONE ? dtypes[e] : w.dtype;
      nb::list buffers;
      for (const Array &a : to[e]->buffers(comm.rank(i)))
        buffers.append(core.attr("empty")(tuple_of(a.ndim, a.shape), reshard_dtype_string(dtype), owner));
      values.append(one_value(*to[e], buffers));
      entries.push_back({*w.layout, *to[e], w.dtype, dtype, w.name, {}, {}, {}, {}, {}});
    }
    plans.append(nb::cast(make_plan(entries, comm.rank(i), limit)));
    results.append(bare ? nb::object(values[0]) : values);
  }
  auto mine = [&](const nb::list &all) { return comm.local ? nb::object(all) : nb::object(all[0]); };
  nb::object transfer = core.attr("Transfer")(mine(plans), owner, arrays, mine(results));
  transfer.attr("execute")();
  transfer.attr("close")();
  return results;
}

nb::list moved(Comm &comm, const Given &given, const std::vector<const Layout *> &to,
               const std::vector<reshard_dtype> &dtypes, Limit limit, void *stream, bool bare, bool bits) {
  const std::vector<Sharder> &sharders = sharders_of(comm, limit);
  const size_t n = to.size(), ranks = comm.handles.size();
  std::vector<reshard_layout> layouts;
  for (const Layout *l : to)
    layouts.push_back(l->handle);
  std::vector<Tensors> sources(ranks), made(ranks);
  for (size_t i = 0; i < ranks; i++)
    shard(comm, sharders, given, i, sources[i]), made[i].all.resize(n);
  run_ranks(comm, [&](size_t i) {
    return reshard_sharded_tensor_reshard_to_as(int64_t(n), sources[i].all.data(), layouts.data(), dtypes.data(),
                                                stream, made[i].all.data());
  });
  nb::list results;
  for (const Tensors &own : made) {
    nb::list values;
    for (size_t e = 0; e < n; e++) {
      nb::list parts;
      for (int64_t k = 0; k < reshard_sharded_tensor_local_count(own.all[e]); k++) {
        reshard_tensor part = nullptr;
        check(reshard_sharded_tensor_local(own.all[e], k, &part, nullptr));
        parts.append(part != nullptr ? numpy_of(part, bits) : nb::none());
      }
      values.append(one_value(*to[e], parts));
    }
    results.append(bare ? nb::object(values[0]) : values);
  }
  return results;
}

Any redistribute(nb::handle arrays, nb::handle src, nb::handle dst, Comm &comm, Limit limit, nb::handle stream,
                 nb::handle dtype, bool bits) {
  CommCall in(comm);
  const bool bare = nb::isinstance<Layout>(src);
  std::vector<const Layout *> to;
  std::vector<reshard_dtype> dtypes;
  void *on = nullptr;
  const Given given = joined(comm, [&] {
    const std::vector<const Layout *> from = layouts_of(src, "src");
    std::vector<Wanted> wanted;
    to = layouts_of(dst, "dst");
    if (from.size() != to.size() || from.empty())
      invalid(from.size(), " source layouts and ", to.size(), " destination layouts");
    for (const Layout *l : from)
      wanted.push_back({l, RESHARD_DTYPE_NONE, from.size() == 1 ? "tensor" : std::to_string(wanted.size())});
    dtypes.assign(to.size(), dtype.is_none() ? RESHARD_DTYPE_NONE : dtype_of(dtype));
    on = stream_of(comm, stream);
    return take(comm, arrays, std::move(wanted), false);
  });
  const bool joint = std::any_of(to.begin(), to.end(), [](const Layout *l) { return l->joint(); });
  nb::list results = joint ? moved_into_buffers(comm, arrays, given, to, dtypes, limit, bare)
                           : moved(comm, given, to, dtypes, limit, on, bare, bits);
  return comm.local ? nb::object(results) : nb::object(results[0]);
}

// --- State dicts -----------------------------------------------------------------------------------------------------

using Tree = Owned<reshard_tree, reshard_tree_release>;

// Saves named tensors of all ranks as a directory of shards, or loads into them. One array for each on every rank.
void move_state(Comm &comm, const std::string &path, const std::vector<std::string> &names, nb::handle arrays,
                nb::handle layouts, bool save, bool option, nb::handle dtype) {
  CommCall in(comm);
  reshard_state_save_options saving = RESHARD_STATE_SAVE_OPTIONS_DEFAULTS;
  reshard_state_load_options loading = RESHARD_STATE_LOAD_OPTIONS_DEFAULTS;
  saving.force = loading.partial = option;
  const Given given = joined(comm, [&] {
    std::vector<Wanted> wanted;
    for (const Layout *l : layouts_of(layouts, "layouts"))
      wanted.push_back({l, RESHARD_DTYPE_NONE, c_text(names.at(wanted.size()), "name")});
    saving.dtype = dtype.is_none() ? RESHARD_DTYPE_NONE : dtype_of(dtype);
    c_text(path, "path");
    return take(comm, arrays, std::move(wanted), !save);
  });
  const std::vector<Sharder> &sharders = sharders_of(comm, {});
  std::vector<Tensors> own(comm.handles.size());
  std::vector<Tree> trees;
  for (size_t i = 0; i < own.size(); i++) {
    shard(comm, sharders, given, i, own[i]);
    trees.emplace_back(got<reshard_tree>(reshard_tree_dict));
    for (size_t e = 0; e < names.size(); e++) {
      const Tree leaf(got<reshard_tree>(reshard_state_sharded, own[i].all[e]));
      check(reshard_tree_set(trees[i].handle, names[e].c_str(), leaf.handle));
    }
  }
  run_ranks(comm, [&](size_t i) {
    return save ? reshard_state_save(sharders[i].handle, trees[i].handle, path.c_str(), &saving, nullptr)
                : reshard_state_load(sharders[i].handle, trees[i].handle, path.c_str(), &loading, nullptr);
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
