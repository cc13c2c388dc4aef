// Transfers: a plan bound to a communicator and to arrays, which it keeps; execute; and redistribute over sharders.
#include "core.h"
#include "ranks.h"

#include <cstring>
#include <reshard/sharded.h>

void *stream_of(nb::handle stream) {
  if (stream.is_none())
    return nullptr;
  nb::object value = nb::borrow(stream);
  if (nb::hasattr(stream, "__cuda_stream__")) // (version, handle)
    value = nb::object(stream.attr("__cuda_stream__")())[1];
  else if (nb::hasattr(stream, "cuda_stream")) // torch
    value = stream.attr("cuda_stream");
  else if (nb::hasattr(stream, "ptr")) // CuPy
    value = stream.attr("ptr");
  return reinterpret_cast<void *>(nb::cast<uintptr_t>(nb::int_(value)));
}

struct Transfer {
  ~Transfer() { end_transfer(*this); }
  Comm *comm = nullptr;
  nb::object comm_object;
  std::vector<nb::object> plans;     // of this communicator's ranks; they outlive the handles
  std::vector<reshard_plan> limited; // made for a limit of the transfer's own
  std::vector<reshard_transfer> handles;
  std::vector<Side> src, dst;
  Array workspace;
  int executing = 0;
};

void end_transfer(Transfer &t) {
  if (t.comm != nullptr)
    t.comm->transfers.erase(&t);
  t.comm = nullptr;
  std::vector<reshard_transfer> handles;
  handles.swap(t.handles);
  {
    nb::gil_scoped_release release;
    for (reshard_transfer handle : handles)
      reshard_transfer_destroy(handle);
  }
  for (reshard_plan plan : t.limited)
    reshard_plan_destroy(plan);
  t.limited.clear();
  t.src.clear(), t.dst.clear(), t.plans.clear();
  t.comm_object.reset();
}

namespace {

const char *const paths[] = {"auto", "direct", "packed", "mixed"};

reshard_path path_of(const std::string &text) {
  for (int i = 0; i < 4; i++)
    if (text == paths[i])
      return reshard_path(i);
  invalid("path '" + text + "': auto, direct, packed or mixed");
}

void opened(const Transfer &t) {
  if (t.handles.empty())
    invalid("the transfer is closed");
}

void stream_check(const Comm &comm, nb::handle stream) {
  if (!comm.streams && !stream.is_none())
    invalid("a stream, and the communicator is of the CPU, which has none");
  if (comm.streams && stream.is_none())
    invalid("no stream: a communicator of GPUs wants one (0 is the legacy default stream)");
}

// A thing of each rank here.
std::vector<nb::object> of_ranks(const Comm &comm, nb::handle given, const char *what) {
  if (comm.handles.size() == 1 && !(comm.local && nb::isinstance<nb::list>(given)))
    return {nb::borrow(given)};
  std::vector<nb::object> list;
  if (nb::isinstance<nb::list>(given) || nb::isinstance<nb::tuple>(given))
    for (nb::handle h : given)
      list.push_back(nb::borrow(h));
  if (list.size() != comm.handles.size())
    invalid(std::string(what) + ": a list of " + std::to_string(list.size()) + " things for " +
            std::to_string(comm.handles.size()) + " ranks of this process");
  return list;
}

void take_sides(const Transfer &t, const Comm &comm, nb::handle src, nb::handle dst, std::vector<Side> &from,
                std::vector<Side> &to) {
  std::vector<nb::object> srcs = of_ranks(comm, src, "src"), dsts = of_ranks(comm, dst, "dst");
  for (size_t i = 0; i < t.plans.size(); i++) {
    const Plan &plan = nb::cast<const Plan &>(t.plans[i]);
    std::vector<Wanted> sources, destinations;
    for (const Entry &e : plan.entries) {
      sources.push_back({&layout_arg(e.src), e.dtype, e.name});
      destinations.push_back({&layout_arg(e.dst), e.dtype, e.name});
    }
    from.push_back(side_of(srcs[i], sources, plan.rank, "source", false, comm.streams));
    to.push_back(side_of(dsts[i], destinations, plan.rank, "destination", true, comm.streams));
  }
}

reshard_arrays c_arrays(const Side &src, const Side &dst) {
  reshard_arrays arrays = RESHARD_ARRAYS_DEFAULTS;
  arrays.src = src.data.data(), arrays.dst = dst.data.data();
  arrays.src_strides = src.strides.data(), arrays.dst_strides = dst.strides.data();
  arrays.nsrc = int64_t(src.data.size()), arrays.ndst = int64_t(dst.data.size());
  return arrays;
}

void take_workspace(Transfer &t, nb::handle workspace, reshard_transfer_options &options) {
  if (workspace.is_none())
    return;
  if (t.plans.size() > 1)
    raise(RESHARD_ERROR_UNSUPPORTED, "workspace of a local world: a transfer has one per rank");
  t.workspace = array_of(workspace, "workspace");
  if (!t.workspace.writable ||
      (t.workspace.ndim > 0 && t.workspace.elements() > 1 && (t.workspace.ndim != 1 || t.workspace.strides[0] != 1)))
    invalid("workspace: a contiguous, writable array of one dim");
  options.workspace = t.workspace.data;
  options.workspace_bytes = size_t(t.workspace.elements()) * reshard_dtype_size(t.workspace.dtype);
}

Transfer *make_transfer(nb::handle plan, nb::handle comm_object, nb::handle src, nb::handle dst,
                        const std::string &path, std::optional<int64_t> limit, nb::handle workspace) {
  Comm &comm = nb::cast<Comm &>(comm_object);
  CommCall in(comm);
  reshard_transfer_options options = RESHARD_TRANSFER_OPTIONS_DEFAULTS;
  options.path = path_of(path);
  auto t = std::make_unique<Transfer>();
  t->plans = of_ranks(comm, plan, "plan");
  std::vector<reshard_plan> plans;
  for (size_t i = 0; i < t->plans.size(); i++) {
    const Plan &p = nb::cast<const Plan &>(t->plans[i]);
    if (p.rank != reshard_comm_rank(comm.handles[i]))
      invalid("a plan of rank " + std::to_string(p.rank) + " for rank " +
              std::to_string(reshard_comm_rank(comm.handles[i])) + " of the communicator");
    plans.push_back(p.handle);
    if (limit) {
      plans.back() = make_plan(p.entries, p.rank, *limit);
      t->limited.push_back(plans.back());
    }
  }
  take_sides(*t, comm, src, dst, t->src, t->dst);
  take_workspace(*t, workspace, options);
  std::vector<reshard_transfer> made(plans.size());
  run_ranks(comm, [&](size_t i) { // all succeed, or none
    reshard_arrays arrays = c_arrays(t->src[i], t->dst[i]);
    return reshard_transfer_create(plans[i], comm.handles[i], &arrays, &options, &made[i]);
  });
  t->handles = std::move(made), t->comm = &comm, t->comm_object = nb::borrow(comm_object);
  comm.transfers.insert(t.get());
  return t.release();
}

struct Executing {
  explicit Executing(Transfer &t) : t(t) { t.executing++; }
  ~Executing() { t.executing--; }
  Transfer &t;
};

void still_there(const std::vector<Side> &sides) {
  for (const Side &side : sides)
    for (const Array &a : side.arrays)
      if (a.torch.is_valid() && reinterpret_cast<void *>(nb::cast<uintptr_t>(a.torch.attr("data_ptr")())) != a.data)
        invalid("a tensor of the transfer has other storage than when it was bound");
}

void execute(Transfer &t, nb::handle stream) {
  opened(t);
  CommCall in(*t.comm);
  Executing now(t);
  stream_check(*t.comm, stream);
  still_there(t.src), still_there(t.dst);
  void *s = stream_of(stream);
  if (t.handles.size() == 1)
    run([&] { return reshard_execute(t.handles[0], s); });
  else
    run([&] { return reshard_execute_all(int64_t(t.handles.size()), t.handles.data(), s); });
}

void rebind(Transfer &t, nb::handle src, nb::handle dst) {
  opened(t);
  CommCall in(*t.comm);
  Executing now(t);
  std::vector<Side> from, to;
  take_sides(t, *t.comm, src, dst, from, to);
  run_ranks(*t.comm, [&](size_t i) {
    reshard_arrays arrays = c_arrays(from[i], to[i]);
    return reshard_transfer_rebind(t.handles[i], &arrays);
  });
  t.src = std::move(from), t.dst = std::move(to);
}

void close_transfer(Transfer &t) {
  if (t.executing > 0)
    raise(RESHARD_ERROR_BUSY, "the transfer executes in another thread");
  end_transfer(t);
}

// --- redistribute ----------------------------------------------------------------------------------------------------

reshard_tensor wrap(const Array &a) {
  reshard_tensor tensor = nullptr;
  check(reshard_tensor_wrap(a.dtype, a.ndim, a.shape, a.strides, a.data, nullptr, nullptr, &tensor));
  return tensor;
}

void sharders_of(Comm &comm) {
  if (!comm.sharders.empty())
    return;
  if (comm.streams)
    raise(RESHARD_ERROR_UNSUPPORTED, "redistribute on a communicator of GPUs: use Transfer");
  std::vector<reshard_sharder> made(comm.handles.size());
  run_ranks(comm, [&](size_t i) { return reshard_sharder_create(comm.handles[i], nullptr, &made[i]); });
  comm.sharders = std::move(made);
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
void shard(Comm &comm, size_t i, const std::vector<Wanted> &wanted, const std::vector<reshard_dtype> &dtypes,
           const Side &side, Tensors &own) {
  size_t at = 0;
  int64_t rank = reshard_comm_rank(comm.handles[i]);
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
    check(reshard_sharded_tensor_from_layout(comm.sharders[i], wanted[e].layout->handle, &properties,
                                             int64_t(parts.size()), parts.data(), &made));
    own.sharded.push_back(made);
  }
}

nb::object results_of(const Tensors &own, size_t first, size_t n, const std::vector<const Layout *> &dst, bool one,
                      int64_t rank) {
  nb::list all;
  for (size_t e = 0; e < n; e++) {
    reshard_sharded_tensor s = own.sharded[first + e];
    nb::list parts;
    for (int64_t k = 0; k < reshard_sharded_tensor_local_count(s); k++) {
      reshard_tensor t = nullptr;
      check(reshard_sharded_tensor_local(s, k, &t, nullptr));
      parts.append(t != nullptr ? numpy_of(t) : nb::none());
    }
    int64_t buffers = 0;
    check(reshard_layout_buffer_count(dst[e]->handle, rank, &buffers));
    bool boxes = reshard_layout_get_kind(dst[e]->handle) == RESHARD_LAYOUT_BOXES;
    all.append(boxes ? nb::object(parts) : nb::len(parts) > 0 ? nb::object(parts[0]) : nb::none());
  }
  return one ? nb::object(all[0]) : nb::object(all);
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

nb::tuple redistribute(nb::handle arrays, nb::handle src, nb::handle dst, Comm &comm) {
  CommCall in(comm);
  std::vector<nb::object> keep_src, keep_dst;
  std::vector<const Layout *> from = layouts_of(src, keep_src), to = layouts_of(dst, keep_dst);
  if (from.size() != to.size() || from.empty())
    invalid(std::to_string(from.size()) + " source layouts and " + std::to_string(to.size()) + " destination layouts");
  for (const Layout *l : to)
    if (reshard_layout_get_kind(l->handle) == RESHARD_LAYOUT_FLAT && reshard_layout_ndim(l->handle) > 1)
      raise(RESHARD_ERROR_UNSUPPORTED, "redistribute to flat: use Transfer, with one buffer of the piece");
  sharders_of(comm);
  std::vector<Wanted> wanted;
  for (size_t e = 0; e < from.size(); e++)
    wanted.push_back({from[e], RESHARD_DTYPE_NONE, from.size() == 1 ? "tensor" : std::to_string(e)});
  std::vector<nb::object> given = of_ranks(comm, arrays, "arrays");
  std::vector<Side> sides;
  std::vector<reshard_dtype> dtypes(from.size(), RESHARD_DTYPE_NONE);
  for (size_t i = 0; i < given.size(); i++) {
    sides.push_back(side_of(given[i], wanted, reshard_comm_rank(comm.handles[i]), "source", false, comm.streams));
    size_t at = 0;
    for (size_t e = 0; e < from.size(); e++) {
      int64_t buffers = 0;
      check(reshard_layout_buffer_count(from[e]->handle, reshard_comm_rank(comm.handles[i]), &buffers));
      for (int64_t b = 0; b < buffers; b++)
        if (dtypes[e] == RESHARD_DTYPE_NONE)
          dtypes[e] = sides[i].arrays[at + size_t(b)].dtype;
        else if (sides[i].arrays[at + size_t(b)].dtype != RESHARD_DTYPE_NONE &&
                 sides[i].arrays[at + size_t(b)].dtype != dtypes[e])
          invalid(std::string("arrays of ") + reshard_dtype_string(dtypes[e]) + " and of " +
                  reshard_dtype_string(sides[i].arrays[at + size_t(b)].dtype) + " of one tensor");
      at += size_t(buffers);
    }
  }
  for (size_t e = 0; e < from.size(); e++)
    if (dtypes[e] == RESHARD_DTYPE_NONE)
      invalid("tensor " + std::to_string(e) +
              ": this rank gives no array, so no dtype; an array without elements tells it");
  std::vector<Tensors> own(given.size());
  for (size_t i = 0; i < given.size(); i++)
    shard(comm, i, wanted, dtypes, sides[i], own[i]);
  std::vector<reshard_layout> layouts;
  for (const Layout *l : to)
    layouts.push_back(l->handle);
  size_t n = from.size();
  std::vector<std::vector<reshard_sharded_tensor>> results(given.size(), std::vector<reshard_sharded_tensor>(n));
  run_ranks(comm, [&](size_t i) {
    return reshard_sharded_tensor_reshard_to(int64_t(n), own[i].sharded.data(), layouts.data(), nullptr,
                                             results[i].data());
  });
  nb::list ranks;
  for (size_t i = 0; i < given.size(); i++) {
    own[i].sharded.insert(own[i].sharded.end(), results[i].begin(), results[i].end());
    ranks.append(results_of(own[i], n, n, to, nb::isinstance<Layout>(src), reshard_comm_rank(comm.handles[i])));
  }
  nb::list names;
  for (reshard_dtype dtype : dtypes)
    names.append(reshard_dtype_string(dtype));
  return nb::make_tuple(comm.local ? nb::object(ranks) : nb::object(ranks[0]), names);
}

nb::dict info(const Transfer &t) {
  opened(t);
  reshard_transfer_info i;
  check(reshard_transfer_get_info(t.handles[0], &i));
  nb::dict d;
  d["path"] = paths[i.path], d["workspace_bytes"] = i.workspace_bytes, d["copies"] = i.copies, d["rounds"] = i.rounds;
  d["packs_skipped"] = i.packs_skipped, d["unpacks_skipped"] = i.unpacks_skipped;
  d["collective"] = reshard_collective_string(i.collective), d["collective_why"] = i.collective_why;
  d["workspace_limit"] = i.workspace_limit, d["least_rounds"] = i.least_rounds;
  return d;
}

} // namespace

void bind_transfer(nb::module_ &m) {
  nb::class_<Transfer>(m, "Transfer", "A plan bound to a communicator and arrays, which it keeps. Collective.",
                       nb::is_weak_referenceable())
      .def(nb::new_(&make_transfer), "plan"_a, "comm"_a, "src"_a.none(), "dst"_a.none(), nb::kw_only(),
           "path"_a = "auto", "limit"_a = nb::none(), "workspace"_a = nb::none())
      .def("execute", &execute, "stream"_a = nb::none(),
           "Moves the data. On the CPU the destination is complete when it returns.")
      .def("rebind", &rebind, "src"_a.none(), "dst"_a.none(),
           "Binds other arrays. After an error it is bound as before.")
      .def_prop_ro("info", &info, nb::sig("def info(self) -> dict[str, typing.Any]"))
      .def_prop_ro("closed", [](const Transfer &t) { return t.handles.empty(); })
      .def("close", &close_transfer)
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Transfer"))
      .def(
          "__exit__", [](Transfer &t, nb::handle, nb::handle, nb::handle) { close_transfer(t); }, "type"_a.none(),
          "value"_a.none(), "traceback"_a.none());
  m.def("_redistribute", &redistribute, "arrays"_a.none(), "src"_a, "dst"_a, "comm"_a, // and the dtypes' names
        nb::sig("def _redistribute(arrays: typing.Any, src: typing.Any, dst: typing.Any, comm: Comm) -> "
                "tuple[typing.Any, list[str]]"));
}
