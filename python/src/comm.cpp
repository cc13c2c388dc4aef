// Communicators: ranks that are threads of this process, or processes of one node.
#include "core.h"

#include <chrono>
#include <cstring>

#include <sys/syscall.h>
#include <unistd.h>

namespace {

using Timeout = std::optional<double>; // in seconds

int64_t milliseconds(Timeout timeout) {
  if (timeout && !(*timeout > 0 && *timeout < 1e12))
    invalid("timeout of ", *timeout, " s: seconds above 0, or None");
  return timeout ? std::max<int64_t>(1, int64_t(*timeout * 1000)) : 0;
}

// A GPU by "cuda:1", torch.device, or its number; no handle for the CPU.
struct Place : Owned<reshard_device, reshard_device_release> {
  explicit Place(nb::handle given) {
    const std::string name = given.is_none() ? "cpu" : (PyLong_Check(given.ptr()) ? "cuda:" : "") + str_of(given);
    if (name == "cpu")
      return;
    handle = got<reshard_device>(reshard_device_create, c_text(name, "device"), nullptr);
    gpu = got<reshard_device_info>(reshard_device_get_info, handle).index;
  }
  int gpu = ON_CPU;
};

using Gather = std::pair<nb::object, int64_t>; // an all-gather of the caller's, in Python, of so many ranks

reshard_status gather(void *user, const void *mine, size_t bytes, void *all) {
  const Gather &g = *static_cast<Gather *>(user);
  return reshard_status(in_python(RESHARD_ERROR_PEER, [&] {
    nb::object given = g.first(nb::bytes(static_cast<const char *>(mine), bytes));
    nb::bytes joined = is_list(given) ? nb::bytes(nb::bytes("", 0).attr("join")(given)) : nb::bytes(given);
    if (joined.size() != size_t(g.second) * bytes)
      invalid("the all-gather returned ", joined.size(), " bytes, not ", g.second, " x ", bytes);
    std::memcpy(all, joined.c_str(), joined.size());
  }));
}

// A handler of signals that raises ends the main thread's wait. Others hear no signals, and would wait for the GIL.
int poll_signals(void *) { return syscall(SYS_gettid) == getpid() ? in_python(1, check_signals) : 0; }

Comm *make_node(std::optional<int64_t> n, std::optional<int64_t> rank, nb::object allgather, Timeout timeout,
                const std::string &job, nb::handle device) {
  const Place place(device);
  const bool given = !allgather.is_none();
  if (given != n.has_value() || given != rank.has_value())
    invalid("node(n, rank, allgather): all three, or none: node() reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT");
  reshard_node_options options = RESHARD_NODE_OPTIONS_DEFAULTS;
  options.timeout_ms = milliseconds(timeout), options.device = place.handle;
  options.job = job.empty() ? nullptr : c_text(job, "job");
  reshard_rendezvous meeting = RESHARD_RENDEZVOUS_DEFAULTS;
  if (given)
    meeting.n = *n, meeting.rank = *rank;
  else
    check(reshard_rendezvous_from_environment(&meeting));
  if (timeout)
    meeting.timeout_ms = options.timeout_ms;
  Gather g{allgather, meeting.n};
  return new Comm({waited<reshard_comm>(reshard_comm_create_node, meeting.n, meeting.rank,
                                        given ? gather : reshard_rendezvous_allgather,
                                        given ? static_cast<void *>(&g) : static_cast<void *>(&meeting), &options)},
                  false, place.gpu);
}

Comm *make_local(int64_t n, int threads, Timeout timeout, nb::handle device) {
  if (n < 1)
    invalid("local(", n, "): 1 rank or more");
  const Place place(device);
  reshard_local_options options = RESHARD_LOCAL_OPTIONS_DEFAULTS;
  options.devices = &place.handle, options.ndevices = place.gpu == ON_CPU ? 0 : 1;
  options.threads = threads, options.timeout_ms = milliseconds(timeout);
  std::vector<reshard_comm> comms(static_cast<size_t>(n));
  check(reshard_comm_create_local(n, &options, comms.data()));
  return new Comm(std::move(comms), true, place.gpu);
}

Comm *from_nccl(nb::object comm, Timeout timeout, nb::handle device) {
  const Place place(device);
  void *handle = address_of(nb::getattr(comm, "ptr", comm));
  nb::module_::import_("reshard._groups").attr("_open_nccl")();
  return new Comm({waited<reshard_comm>(reshard_comm_from_nccl, handle, place.handle, milliseconds(timeout))}, false,
                  place.handle != nullptr ? place.gpu : ON_SOME_GPU);
}

nb::bytes nccl_id() {
  char id[RESHARD_NCCL_ID_BYTES];
  check(reshard_nccl_unique_id(id));
  return nb::bytes(id, sizeof id);
}
Comm *create_nccl(nb::bytes id, int64_t n, int64_t rank, Timeout timeout, nb::handle device) {
  if (id.size() != RESHARD_NCCL_ID_BYTES)
    invalid("an id of NCCL of ", id.size(), " bytes");
  const Place place(device);
  return new Comm(
      {waited<reshard_comm>(reshard_comm_create_nccl, id.c_str(), n, rank, place.handle, milliseconds(timeout))}, false,
      place.gpu);
}

Shape numbers_of(Comm &comm, nb::handle given, const char *what) { // of each rank here
  Shape list;
  for (const nb::object &one : of_ranks(comm, given, what))
    if (list.push_back(PyLong_AsLongLong(one.ptr())); PyErr_Occurred() != nullptr)
      nb::raise_python_error();
  return list;
}

// Communicators of the ranks here: one object for those of one color.
Any split(Comm &comm, nb::handle colors, nb::handle keys) {
  const size_t n = comm.handles.size();
  Shape color = numbers_of(comm, colors, "color"), key = keys.is_none() ? Shape(n, 0) : numbers_of(comm, keys, "key");
  std::vector<reshard_comm> subs(n);
  run_ranks(comm, [&](size_t i) { return reshard_comm_split(comm.handles[i], color[i], key[i], &subs[i]); });
  std::map<int64_t, std::vector<reshard_comm>> groups;
  std::map<int64_t, nb::object> made;
  for (size_t i = 0; i < n; i++)
    if (subs[i] != nullptr)
      groups[color[i]].push_back(subs[i]);
  for (auto &[of, all] : groups) {
    std::sort(all.begin(), all.end(),
              [](reshard_comm a, reshard_comm b) { return reshard_comm_rank(a) < reshard_comm_rank(b); });
    made[of] = nb::cast(new Comm(all, comm.local, comm.gpu), nb::rv_policy::take_ownership);
  }
  nb::list result;
  for (size_t i = 0; i < n; i++)
    result.append(subs[i] != nullptr ? made[color[i]] : nb::none());
  return for_ranks(comm, result);
}

Comm *shrink(Comm &comm, const Shape &lost) {
  if (comm.local && comm.handles.size() > 1)
    unsupported("shrink of a local world: all of its ranks are in this process");
  reshard_comm sub = nullptr;
  run_in(comm, [&] { return reshard_comm_shrink(comm.handles[0], int64_t(lost.size()), lost.data(), &sub); });
  return new Comm({sub}, false, comm.gpu);
}

reshard_device device_of(Comm &comm) {
  if (comm.gpu == ON_SOME_GPU)
    unsupported("a communicator made by from_nccl without device=");
  if (comm.device == nullptr) {
    reshard_device_options options = RESHARD_DEVICE_OPTIONS_DEFAULTS;
    options.shared = comm.local ? 0 : 1;
    options.threads = 1, options.keep_bytes = comm.local ? -1 : 0; // it moves nothing; what is not shared goes back
    const std::string name = comm.streams() ? "cuda:" + std::to_string(comm.gpu) : "cpu";
    comm.device = got<reshard_device>(reshard_device_create, name.c_str(), &options);
  }
  return comm.device;
}

Any empty(const Shape &shape, nb::handle dtype, Comm &comm, nb::handle stream) {
  Use<Comm> in(comm);
  const Tensor tensor(got<reshard_tensor>(reshard_tensor_create_on, device_of(comm), dtype_of(dtype), ndim_of(shape),
                                          shape.data(), stream_of(comm, stream)));
  return array_in(tensor.handle, stream);
}

std::set<Comm *> open_comms; // what is left at exit is closed before the interpreter goes

Report stats(Comm &comm) {
  reshard_comm_stats sum = {};
  for (reshard_comm handle : comm.handles) {
    const reshard_comm_stats one = got<reshard_comm_stats>(reshard_comm_get_stats, handle);
    sum.received_bytes += one.received_bytes, sum.received_messages += one.received_messages;
    sum.between_bytes += one.between_bytes, sum.within_bytes += one.within_bytes;
    sum.leaving_bytes += one.leaving_bytes;
  }
  return report_of(FIELD(sum, received_bytes), FIELD(sum, received_messages), FIELD(sum, between_bytes),
                   FIELD(sum, within_bytes), FIELD(sum, leaving_bytes));
}
std::string report(Comm &comm, int64_t last) { return printed(reshard_comm_report, comm.handles[0], last); }

} // namespace

std::vector<int64_t> missing_of(reshard_comm comm) {
  std::vector<int64_t> missing(size_t(reshard_comm_size(comm)));
  int64_t count = 0;
  check(reshard_comm_missing(comm, missing.data(), &count));
  missing.resize(size_t(count));
  return missing;
}

Comm::Comm(std::vector<reshard_comm> given, bool local, int gpu) : handles(std::move(given)), local(local), gpu(gpu) {
  for (reshard_comm handle : handles)
    check(reshard_comm_set_poll(handle, poll_signals, nullptr));
  open_comms.insert(this);
}

void Comm::close() {
  open_comms.erase(this);
  if (closed())
    return;
  if (calls > 0)
    (void)reshard_comm_abort(handles[0]);
  while (calls > 0) {
    nb::gil_scoped_release release;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  while (!transfers.empty())
    end_transfer(**transfers.begin());
  const std::vector<reshard_comm> ended = std::exchange(handles, {});
  auto ended_sharders = std::exchange(sharders, {});
  const auto unused = std::exchange(used, {});
  nb::gil_scoped_release release;
  ended_sharders.clear();
  for (reshard_comm c : ended)
    reshard_comm_destroy(c);
  reshard_device_release(std::exchange(device, nullptr)); // arrays keep it as long as they live
}

void bind_comm(nb::module_ &m) {
  nb::class_<Comm> comm(
      m, "Comm", "Ranks that move tensors together. For n ranks of this process calls take a list, a thing per rank.",
      nb::is_weak_referenceable());
  comm.def_prop_ro("rank", opened(+[](Comm &c) { return c.rank(0); }), "This rank; of a local world 0.")
      .def_prop_ro("size", opened(+[](Comm &c) { return c.size(); }))
      .def_ro("local", &Comm::local, "True where all ranks are in this process.")
      .def("barrier",
           opened(+[](Comm &c) { run_ranks(c, [&](size_t i) { return reshard_comm_barrier(c.handles[i]); }); }))
      .def("split", opened(&split), "color"_a, "key"_n,
           "Ranks of one color make a communicator; a negative color: None. Collective.")
      .def("shrink", opened(&shrink), "lost"_a = Shape(),
           "A communicator of those that are there. lost: the ranks left out; none: those of `missing`.")
      .def_prop_ro("missing", opened(+[](Comm &c) { return tuple_of(missing_of(c.handles[0])); }),
                   "Ranks that had not come when a deadline passed.")
      .def("_refuse", &refuse)
      .def("abort", opened(+[](Comm &c) { run([&] { return reshard_comm_abort(c.handles[0]); }); }))
      .def("report", opened(&report), "last"_a = 0, "Where the ranks of this process are, as text.")
      .def_prop_ro("stats", opened(&stats));
  bind_closing(comm, "Ends its transfers, then itself. Closing twice is allowed.");
  m.def("local", &make_local, "n"_a, nb::kw_only(), "threads"_a = 0, "timeout"_n, "device"_n,
        "n ranks of this process, driven by one thread. device: of their arrays, as \"cuda:1\"; None: the CPU.");
  m.def("node", &make_node, "n"_n, "rank"_n, "allgather"_n, nb::kw_only(), "timeout"_n, "job"_a = "", "device"_n,
        "One rank of a node's processes. Collective. allgather(bytes): the bytes of all; without it torchrun's names.\n"
        "device: of this rank's arrays, as \"cuda:1\"; None: the CPU.");
  m.def("from_nccl", &from_nccl, "comm"_a, nb::kw_only(), "timeout"_n, "device"_n,
        "Wraps an ncclComm_t: its address, or an object that has it as .ptr. Borrowed. device: the GPU that it is on,\n"
        "which `empty` wants to know.");
  m.def("_nccl_id", &nccl_id);
  m.def("_create_nccl", &create_nccl, "id"_a, "n"_a, "rank"_a, "timeout"_n, "device"_n);
  m.def("empty", &empty, "shape"_a, "dtype"_a, "comm"_a, nb::kw_only(), "stream"_n,
        "A numpy array, not initialised, of storage that the other processes of the node read directly. Of a GPU an\n"
        "object that has DLPack, in the order of stream.");
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
    while (!open_comms.empty())
      (*open_comms.begin())->close();
  }));
}
