// Tensors of all ranks over sharders: redistribute, and state dicts that are saved and loaded.
#include "core.h"

#include <reshard/state_dict.h>

namespace {

const std::vector<Sharder> &sharders_of(Comm &comm, Limit limit) {
  std::vector<Sharder> &of = comm.sharders[limit_of(limit)];
  if (!of.empty())
    return of;
  reshard_sharder_options options = RESHARD_SHARDER_OPTIONS_DEFAULTS;
  options.workspace_limit = limit_of(limit);
  std::vector<Sharder> made(comm.handles.size());
  run_ranks(comm, [&](size_t i) { return reshard_sharder_create(comm.handles[i], &options, &made[i].handle); });
  return of = std::move(made);
}

struct Given {
  std::vector<Wanted> wanted; // with the dtype that the arrays of each have
  std::vector<Side> sides;    // by rank
};

std::vector<const Layout *> layouts_of(nb::handle given, const char *what) {
  std::vector<const Layout *> list;
  for (nb::handle h : is_list(given) ? nb::borrow(given) : nb::make_tuple(given))
    list.push_back(&as<Layout>(h, what));
  return list;
}

Given take(Comm &comm, nb::handle arrays, std::vector<Wanted> wanted, bool write) {
  Given all{std::move(wanted), {}};
  for (const nb::object &given : of_ranks(comm, arrays, "arrays"))
    all.sides.push_back(
        side_of(given, all.wanted, comm.rank(all.sides.size()), write ? "destination" : "source", write, comm.gpu));
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
  const Side &side = given.sides[i];
  size_t first = 0; // of the tensor's buffers
  for (const Wanted &w : given.wanted) {
    reshard_properties properties = {};
    properties.dtype = w.dtype;
    own.all.push_back(got<reshard_sharded_tensor>(reshard_sharded_tensor_from_buffers, sharders[i].handle,
                                                  w.layout->handle, &properties, side.data.data() + first,
                                                  side.strides.data() + first));
    first += w.layout->buffers(comm.rank(i)).size();
  }
}

// One rank's value of a tensor, of numpy (of a GPU with DLPack) or of the type `like`, which has no None.
nb::object value_of(reshard_sharded_tensor tensor, const Layout &layout, int64_t rank, nb::handle like,
                    nb::handle stream) {
  nb::list values;
  for (size_t b = 0; b < layout.buffers(rank).size(); b++) {
    const Tensor buffer(got<reshard_tensor>(reshard_sharded_tensor_buffer, tensor, int64_t(b)));
    values.append(array_in(buffer.handle, stream, like));
  }
  const nb::object value = layout.value(rank, values);
  return value.is_none() && !like.is_none() ? nb::object(values[0]) : value;
}

// The type of torch's tensors, where all that is given are such; else None.
nb::object torch_type(const Given &given) {
  nb::object type = nb::none();
  for (const Side &side : given.sides)
    for (const Array &a : side.arrays)
      if (a.owner.is_valid()) {
        if (!a.torch.is_valid())
          return nb::none();
        type = nb::borrow(a.torch.type());
      }
  return type;
}

Any redistribute(nb::handle arrays, nb::handle src, nb::handle dst, Comm &comm, Limit limit, nb::handle stream,
                 nb::handle dtype, nb::handle like) {
  Use<Comm> in(comm);
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
    on = stream_of(comm, stream);
    Given all = take(comm, arrays, std::move(wanted), false);
    for (const Wanted &w : all.wanted)
      dtypes.push_back(dtype_of(is_list(dtype) ? nb::object(dtype[dtypes.size()]) : nb::borrow(dtype), w.dtype));
    return all;
  });
  const std::vector<Sharder> &sharders = sharders_of(comm, limit);
  const size_t n = to.size(), ranks = comm.handles.size();
  std::vector<reshard_layout> layouts;
  for (const Layout *l : to)
    layouts.push_back(l->handle);
  std::vector<Tensors> sources(ranks), made(ranks);
  for (size_t i = 0; i < ranks; i++)
    shard(comm, sharders, given, i, sources[i]), made[i].all.resize(n);
  run_ranks(comm, [&](size_t i) {
    return reshard_sharded_tensor_reshard_to_as(int64_t(n), sources[i].all.data(), layouts.data(), dtypes.data(), on,
                                                made[i].all.data());
  });
  const nb::object kind = like.is_none() && comm.streams() ? torch_type(given) : nb::borrow(like);
  nb::list results;
  for (size_t i = 0; i < ranks; i++) {
    nb::list values;
    for (size_t e = 0; e < n; e++)
      values.append(value_of(made[i].all[e], *to[e], comm.rank(i), kind, stream));
    results.append(bare ? nb::object(values[0]) : values);
  }
  return for_ranks(comm, results);
}

using Tree = Owned<reshard_tree, reshard_tree_release>;

// Saves named tensors of all ranks as a directory of shards, or loads into them. One array for each on every rank.
void move_state(Comm &comm, nb::handle path, const std::vector<std::string> &names, nb::handle arrays,
                nb::handle layouts, bool save, bool option, nb::handle dtype) {
  Use<Comm> in(comm);
  if (comm.streams())
    unsupported("files on a communicator of GPUs: save and load tensors of the CPU");
  reshard_state_save_options saving = RESHARD_STATE_SAVE_OPTIONS_DEFAULTS;
  reshard_state_load_options loading = RESHARD_STATE_LOAD_OPTIONS_DEFAULTS;
  saving.force = loading.partial = option;
  std::string to;
  const Given given = joined(comm, [&] {
    std::vector<Wanted> wanted;
    for (const Layout *l : layouts_of(layouts, "layouts"))
      wanted.push_back({l, RESHARD_DTYPE_NONE, c_text(names.at(wanted.size()), "name")});
    saving.dtype = dtype_of(dtype);
    to = path_of(path);
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
    return save ? reshard_state_save(sharders[i].handle, trees[i].handle, to.c_str(), &saving, nullptr)
                : reshard_state_load(sharders[i].handle, trees[i].handle, to.c_str(), &loading, nullptr);
  });
}

} // namespace

void bind_sharded(nb::module_ &m) {
  m.def(
      "redistribute", &redistribute, "arrays"_a.none(), "src"_a, "dst"_a, "comm"_a, nb::kw_only(), "limit"_n,
      "stream"_n, "dtype"_n, "_like"_n,
      "Moves this rank's arrays of one tensor, or lists of them, from layout to layout. Collective. Returns new numpy\n"
      "arrays, as `empty` makes them; of torch's tensors on a GPU such. limit: as of Plan. dtype: of the results,\n"
      "converted on the way.");
  m.def("_move_state", &move_state, "comm"_a, "path"_a, "names"_a, "arrays"_a, "layouts"_a, "save"_a, "option"_a,
        "dtype"_a.none() = nb::none());
}
