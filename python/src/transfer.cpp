// Transfers: a plan bound to a communicator and to arrays, which it keeps; execute.
#include "core.h"

void *stream_of(Comm &comm, nb::handle stream) {
  if (stream.is_none() == comm.streams())
    invalid(comm.streams() ? "no stream: a communicator of GPUs wants one (0 is the legacy default stream)"
                           : "a stream, and the communicator is of the CPU, which has none");
  if (stream.is_none())
    return nullptr;
  // Torch's, CuPy's, or a number.
  nb::object value = nb::getattr(stream, "cuda_stream", nb::getattr(stream, "ptr", nb::borrow(stream)));
  if (nb::hasattr(stream, "__cuda_stream__")) // (version, handle)
    value = stream.attr("__cuda_stream__")()[1];
  void *address = address_of(value);
  comm.used[address] = nb::borrow(stream);
  return address;
}

struct Arrays { // of all ranks here, checked; C takes pointers into the sides
  std::vector<Side> src, dst;
  std::vector<reshard_arrays> each;
  std::vector<const reshard_arrays *> list;
};

struct Transfer {
  Transfer() = default;
  Transfer(const Transfer &) = delete;
  ~Transfer() { end_transfer(*this); }
  void close() {
    if (calls > 0)
      raise(RESHARD_ERROR_BUSY, "the transfer executes in another thread");
    end_transfer(*this);
  }
  bool closed() const { return handles.empty(); }
  Comm *comm = nullptr;
  nb::object comm_object;
  std::vector<nb::object> plans; // of this communicator's ranks; they outlive the handles
  std::vector<reshard_transfer> handles;
  Arrays arrays;
  std::vector<Array> workspaces;
  int calls = 0;
  static constexpr const char *noun = "transfer";
};

void end_transfer(Transfer &t) {
  if (t.comm != nullptr)
    t.comm->transfers.erase(&t);
  t.comm = nullptr;
  run([handles = std::exchange(t.handles, {})] {
    std::for_each(handles.begin(), handles.end(), reshard_transfer_destroy);
    return RESHARD_SUCCESS;
  });
  t.arrays = {}, t.plans.clear(), t.comm_object.reset();
}

namespace {

Arrays take_arrays(const Transfer &t, const Comm &comm, nb::handle src, nb::handle dst) {
  std::vector<nb::object> srcs = of_ranks(comm, src, "src"), dsts = of_ranks(comm, dst, "dst");
  Arrays all;
  all.each.assign(t.plans.size(), RESHARD_ARRAYS_DEFAULTS);
  for (size_t i = 0; i < t.plans.size(); i++) {
    const Plan &plan = *nb::inst_ptr<Plan>(t.plans[i]);
    std::vector<Wanted> sources, destinations;
    for (const Entry &e : plan.entries) {
      sources.push_back({&e.src, e.dtype, e.name, false, e.block_of(e.dtype), e.scale_dtype});
      destinations.push_back({&e.dst, e.dst_dtype, e.name, false, e.block_of(e.dst_dtype), e.scale_dtype});
    }
    const Side &from = all.src.emplace_back(side_of(srcs[i], sources, plan.rank, "source", false, comm.gpu));
    const Side &to = all.dst.emplace_back(side_of(dsts[i], destinations, plan.rank, "destination", true, comm.gpu));
    reshard_arrays &c = all.each[i];
    c.src = from.data.data(), c.src_strides = from.strides.data(), c.nsrc = int64_t(from.data.size());
    c.dst = to.data.data(), c.dst_strides = to.strides.data(), c.ndst = int64_t(to.data.size());
    all.list.push_back(&c);
  }
  return all;
}

Transfer *make_transfer(nb::handle plan, nb::handle comm_object, nb::handle src, nb::handle dst,
                        const std::string &path, Limit limit, nb::handle workspace) {
  Comm &comm = as<Comm>(comm_object, "comm");
  Use<Comm> in(comm);
  auto t = std::make_unique<Transfer>();
  const size_t n = comm.handles.size();
  std::vector<reshard_transfer_options> options(n, RESHARD_TRANSFER_OPTIONS_DEFAULTS);
  std::vector<const reshard_transfer_options *> list;
  std::vector<reshard_plan> plans;
  Arrays arrays = joined(comm, [&] {
    t->plans = of_ranks(comm, plan, "plan");
    const auto workspaces =
        workspace.is_none() ? std::vector<nb::object>(n, nb::none()) : of_ranks(comm, workspace, "workspace");
    for (size_t i = 0; i < n; i++) {
      const Plan &p = as<Plan>(t->plans[i], "plan");
      if (p.rank != comm.rank(i))
        invalid("a plan of rank ", p.rank, " for rank ", comm.rank(i), " of the communicator");
      if (limit)
        t->plans[i] = nb::cast(make_plan(p.entries, p.rank, limit));
      plans.push_back(nb::inst_ptr<Plan>(t->plans[i])->handle);
      options[i].path = got<reshard_path>(reshard_path_parse, c_text(path, "path")), list.push_back(&options[i]);
      if (workspaces[i].is_none())
        continue;
      const Array &a = t->workspaces.emplace_back(array_of(workspaces[i], {"workspace"}));
      if (!a.writable || !a.contiguous() || a.ndim > 1)
        invalid("workspace: a contiguous, writable array of one dim");
      options[i].workspace = a.data;
      options[i].workspace_bytes = size_t(a.elements()) * reshard_dtype_size(a.dtype);
    }
    return take_arrays(*t, comm, src, dst);
  });
  std::vector<reshard_transfer> made(n);
  run_in(comm, [&] {
    return reshard_transfer_create_all(int64_t(n), plans.data(), comm.handles.data(), arrays.list.data(), list.data(),
                                       made.data());
  });
  t->arrays = std::move(arrays), t->handles = std::move(made), t->comm = &comm;
  t->comm_object = nb::borrow(comm_object);
  comm.transfers.insert(t.get());
  return t.release();
}

void still_there(const std::vector<Side> &sides) {
  for (const Side &side : sides)
    for (const Array &a : side.arrays)
      if (a.torch.is_valid() && address_of(a.torch.attr("data_ptr")()) != a.data)
        invalid("a tensor of the transfer has other storage than when it was bound");
}

void execute(Transfer &t, nb::handle stream) {
  Use<Comm> in(*t.comm);
  void *s = stream_of(*t.comm, stream);
  still_there(t.arrays.src), still_there(t.arrays.dst);
  run_in(*t.comm, [&] {
    return t.handles.size() == 1 ? reshard_execute(t.handles[0], s)
                                 : reshard_execute_all(int64_t(t.handles.size()), t.handles.data(), s);
  });
}

void rebind(Transfer &t, nb::handle src, nb::handle dst) {
  Use<Comm> in(*t.comm);
  auto take = [&] { return take_arrays(t, *t.comm, src, dst); };
  // Of messages each rank binds alone.
  Arrays arrays = got<reshard_transfer_info>(reshard_transfer_get_info, t.handles[0]).path == RESHARD_PATH_PACKED
                      ? take()
                      : joined(*t.comm, take);
  run_in(*t.comm,
         [&] { return reshard_transfer_rebind_all(int64_t(t.handles.size()), t.handles.data(), arrays.list.data()); });
  t.arrays = std::move(arrays);
}

Report info(Transfer &t) {
  const auto i = got<reshard_transfer_info>(reshard_transfer_get_info, t.handles[0]);
  return report_of("path"_a = reshard_path_string(i.path), "collective"_a = reshard_collective_string(i.collective),
                   FIELD(i, workspace_bytes), FIELD(i, copies), FIELD(i, rounds), FIELD(i, packs_skipped),
                   FIELD(i, unpacks_skipped), FIELD(i, collective_why), FIELD(i, workspace_limit),
                   FIELD(i, least_rounds));
}

} // namespace

void bind_transfer(nb::module_ &m) {
  nb::class_<Transfer> transfer(m, "Transfer", "A plan bound to a communicator and arrays, which it keeps. Collective.",
                                nb::is_weak_referenceable());
  transfer
      .def(nb::new_(&make_transfer), "plan"_a, "comm"_a, "src"_a.none(), "dst"_a.none(), nb::kw_only(),
           "path"_a = "auto", "limit"_n, "workspace"_n)
      .def("execute", opened(&execute), "stream"_n,
           "Moves the data. On the CPU the destination is complete when it returns.")
      .def("rebind", opened(&rebind), "src"_a.none(), "dst"_a.none(),
           "Binds other arrays. After an error it is bound as before.")
      .def_prop_ro("info", opened(&info));
  bind_closing(transfer, "Frees what it has between ranks, and its arrays.");
}
