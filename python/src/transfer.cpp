// Transfers: a plan bound to a communicator and to arrays, which it keeps; execute.
#include "core.h"
#include "ranks.h"

#include <cstring>

void *stream_of(const Comm &comm, nb::handle stream) {
  if (!comm.streams && !stream.is_none())
    invalid("a stream, and the communicator is of the CPU, which has none");
  if (comm.streams && stream.is_none())
    invalid("no stream: a communicator of GPUs wants one (0 is the legacy default stream)");
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
  std::vector<Array> workspaces;
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

void take_sides(const Transfer &t, const Comm &comm, nb::handle src, nb::handle dst, std::vector<Side> &from,
                std::vector<Side> &to) {
  std::vector<nb::object> srcs = of_ranks(comm, src, "src"), dsts = of_ranks(comm, dst, "dst");
  for (size_t i = 0; i < t.plans.size(); i++) {
    const Plan &plan = nb::cast<const Plan &>(t.plans[i]);
    std::vector<Wanted> sources, destinations;
    for (const Entry &e : plan.entries) {
      sources.push_back({&layout_arg(e.src), e.dtype, e.name});
      destinations.push_back({&layout_arg(e.dst), e.dst_dtype, e.name});
    }
    from.push_back(side_of(srcs[i], sources, plan.rank, "source", false, comm.streams));
    to.push_back(side_of(dsts[i], destinations, plan.rank, "destination", true, comm.streams));
  }
}

// The arrays of the ranks here as C takes them; pointers into the sides.
struct ArrayLists {
  ArrayLists(const std::vector<Side> &src, const std::vector<Side> &dst) : arrays(src.size(), RESHARD_ARRAYS_DEFAULTS) {
    for (size_t i = 0; i < src.size(); i++) {
      arrays[i].src = src[i].data.data(), arrays[i].dst = dst[i].data.data();
      arrays[i].src_strides = src[i].strides.data(), arrays[i].dst_strides = dst[i].strides.data();
      arrays[i].nsrc = int64_t(src[i].data.size()), arrays[i].ndst = int64_t(dst[i].data.size());
      list.push_back(&arrays[i]);
    }
  }
  std::vector<reshard_arrays> arrays;
  std::vector<const reshard_arrays *> list;
};

void take_workspace(Transfer &t, nb::handle workspace, reshard_transfer_options &options) {
  Array a = array_of(workspace, {"workspace"});
  if (!a.writable || !a.contiguous() || a.ndim > 1)
    invalid("workspace: a contiguous, writable array of one dim");
  options.workspace = a.data;
  options.workspace_bytes = size_t(a.elements()) * reshard_dtype_size(a.dtype);
  t.workspaces.push_back(std::move(a));
}

void take_arguments(Transfer &t, Comm &comm, nb::handle plan, nb::handle src, nb::handle dst, const std::string &path,
                    std::optional<int64_t> limit, nb::handle workspace, std::vector<reshard_plan> &plans,
                    std::vector<reshard_transfer_options> &options) {
  t.plans = of_ranks(comm, plan, "plan");
  std::vector<nb::object> workspaces;
  if (!workspace.is_none())
    workspaces = of_ranks(comm, workspace, "workspace");
  for (size_t i = 0; i < t.plans.size(); i++) {
    const Plan &p = nb::cast<const Plan &>(t.plans[i]);
    int64_t rank = reshard_comm_rank(comm.handles[i]);
    if (p.rank != rank)
      invalid("a plan of rank " + std::to_string(p.rank) + " for rank " + std::to_string(rank) +
              " of the communicator");
    plans.push_back(p.handle);
    if (limit)
      t.limited.push_back(plans.back() = make_plan(p.entries, p.rank, *limit));
    options[i].path = path_of(path);
    if (!workspaces.empty() && !workspaces[i].is_none())
      take_workspace(t, workspaces[i], options[i]);
  }
  take_sides(t, comm, src, dst, t.src, t.dst);
}

Transfer *make_transfer(nb::handle plan, nb::handle comm_object, nb::handle src, nb::handle dst,
                        const std::string &path, std::optional<int64_t> limit, nb::handle workspace) {
  Comm &comm = nb::cast<Comm &>(comm_object);
  CommCall in(comm);
  auto t = std::make_unique<Transfer>();
  size_t n = comm.handles.size();
  std::vector<reshard_transfer_options> options(n, RESHARD_TRANSFER_OPTIONS_DEFAULTS);
  std::vector<const reshard_transfer_options *> list;
  std::vector<reshard_plan> plans;
  joined(comm, [&] { take_arguments(*t, comm, plan, src, dst, path, limit, workspace, plans, options); });
  for (const reshard_transfer_options &o : options)
    list.push_back(&o);
  ArrayLists arrays(t->src, t->dst);
  std::vector<reshard_transfer> made(n);
  run_in(comm, [&] {
    return reshard_transfer_create_all(int64_t(n), plans.data(), comm.handles.data(), arrays.list.data(), list.data(),
                                       made.data());
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
  void *s = stream_of(*t.comm, stream);
  still_there(t.src), still_there(t.dst);
  run_in(*t.comm, [&] {
    return t.handles.size() == 1 ? reshard_execute(t.handles[0], s)
                                 : reshard_execute_all(int64_t(t.handles.size()), t.handles.data(), s);
  });
}

void rebind(Transfer &t, nb::handle src, nb::handle dst) {
  opened(t);
  CommCall in(*t.comm);
  Executing now(t);
  std::vector<Side> from, to;
  auto take = [&] { take_sides(t, *t.comm, src, dst, from, to); };
  reshard_transfer_info info;
  check(reshard_transfer_get_info(t.handles[0], &info));
  info.path == RESHARD_PATH_PACKED ? take() : joined(*t.comm, take); // of messages each rank binds alone
  ArrayLists arrays(from, to);
  run_in(*t.comm,
         [&] { return reshard_transfer_rebind_all(int64_t(t.handles.size()), t.handles.data(), arrays.list.data()); });
  t.src = std::move(from), t.dst = std::move(to);
}

void close_transfer(Transfer &t) {
  if (t.executing > 0)
    raise(RESHARD_ERROR_BUSY, "the transfer executes in another thread");
  end_transfer(t);
}

Report info(const Transfer &t) {
  opened(t);
  reshard_transfer_info i;
  check(reshard_transfer_get_info(t.handles[0], &i));
  Report d;
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
      .def_prop_ro("info", &info)
      .def_prop_ro("closed", [](const Transfer &t) { return t.handles.empty(); })
      .def("close", &close_transfer)
      .def("__enter__", &entered<Transfer>)
      .def(
          "__exit__", [](Transfer &t, nb::args) { close_transfer(t); }, EXIT);
}
