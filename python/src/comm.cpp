// Communicators: ranks that are threads of this process, or processes of one node.
#include "core.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "ranks.h"

#include <sched.h>

namespace {

// A CPU whose storage other processes of the node read. n of them share the cores.
reshard_device shared_device(int64_t n) {
  cpu_set_t cores;
  int count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
  reshard_device_options options = RESHARD_DEVICE_OPTIONS_DEFAULTS;
  options.shared = 1;
  options.threads = getenv("RESHARD_THREADS") != nullptr ? 0 : std::max(1, int(count / std::max<int64_t>(1, n)));
  reshard_device device = nullptr;
  check(reshard_device_create("cpu", &options, &device));
  return device;
}

int64_t milliseconds(std::optional<double> timeout) {
  if (!timeout)
    return 0;
  if (!(*timeout > 0 && *timeout < 1e12))
    invalid("timeout of " + std::to_string(*timeout) + " s: seconds above 0, or None");
  return std::max<int64_t>(1, int64_t(*timeout * 1000));
}

// An all-gather of the caller's, in Python. What it raises comes out of the call that it was made for.
struct Gather {
  nb::object call;
  int64_t n;
  std::exception_ptr raised;
};

reshard_status gather(void *user, const void *mine, size_t bytes, void *all) {
  Gather &g = *static_cast<Gather *>(user);
  nb::gil_scoped_acquire acquire;
  try {
    nb::object got = g.call(nb::bytes(static_cast<const char *>(mine), bytes));
    nb::bytes joined = nb::isinstance<nb::list>(got) || nb::isinstance<nb::tuple>(got)
                           ? nb::bytes(nb::bytes("", 0).attr("join")(got))
                           : nb::bytes(got);
    if (joined.size() != size_t(g.n) * bytes)
      invalid("the all-gather returned " + std::to_string(joined.size()) + " bytes, not " + std::to_string(g.n) +
              " x " + std::to_string(bytes));
    std::memcpy(all, joined.c_str(), joined.size());
    return RESHARD_SUCCESS;
  } catch (...) {
    g.raised = std::current_exception();
    return RESHARD_ERROR_PEER;
  }
}

Comm *make_node(std::optional<int64_t> n, std::optional<int64_t> rank, nb::object allgather,
                std::optional<double> timeout, const std::string &job) {
  reshard_node_options options = RESHARD_NODE_OPTIONS_DEFAULTS;
  options.timeout_ms = milliseconds(timeout);
  options.job = job.empty() ? nullptr : c_text(job, "job");
  reshard_comm comm = nullptr;
  Gather g{allgather, n.value_or(0), nullptr};
  reshard_rendezvous meeting = RESHARD_RENDEZVOUS_DEFAULTS;
  if (allgather.is_none()) {
    if (n || rank)
      invalid("node(n, rank) needs an all-gather too; node() reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT");
    check(reshard_rendezvous_from_environment(&meeting));
    if (timeout)
      meeting.timeout_ms = options.timeout_ms;
  } else if (!n || !rank)
    invalid("node(n, rank, allgather): all three, or none");
  reshard_device device = options.device = shared_device(allgather.is_none() ? meeting.local_n : *n);
  reshard_status status;
  {
    nb::gil_scoped_release release;
    status = allgather.is_none() ? reshard_comm_create_node(meeting.n, meeting.rank, reshard_rendezvous_allgather,
                                                            &meeting, &options, &comm)
                                 : reshard_comm_create_node(*n, *rank, gather, &g, &options, &comm);
  }
  if (status != RESHARD_SUCCESS)
    reshard_device_release(device);
  if (g.raised)
    std::rethrow_exception(g.raised);
  check(status);
  Comm *made = new Comm({comm}, false, false);
  made->device = device;
  return made;
}

Comm *make_local(int64_t n, int threads, std::optional<double> timeout) {
  if (n < 1)
    invalid("local(" + std::to_string(n) + "): 1 rank or more");
  reshard_local_options options = RESHARD_LOCAL_OPTIONS_DEFAULTS;
  options.threads = threads, options.timeout_ms = milliseconds(timeout);
  std::vector<reshard_comm> comms(static_cast<size_t>(n));
  check(reshard_comm_create_local(n, &options, comms.data()));
  return new Comm(std::move(comms), true, false);
}

Comm *from_nccl(nb::object comm, std::optional<double> timeout) {
  nb::object pointer = nb::hasattr(comm, "ptr") ? comm.attr("ptr") : comm;
  void *handle = reinterpret_cast<void *>(nb::cast<uintptr_t>(nb::int_(pointer)));
  int64_t ms = milliseconds(timeout);
  reshard_comm made = nullptr;
  run([&] { return reshard_comm_from_nccl(handle, nullptr, ms, &made); });
  return new Comm({made}, false, true);
}

Comm *create_nccl(nb::bytes id, int64_t n, int64_t rank, std::optional<double> timeout) {
  int64_t ms = milliseconds(timeout);
  reshard_comm made = nullptr;
  if (id.size() != RESHARD_NCCL_ID_BYTES)
    invalid("an id of NCCL of " + std::to_string(id.size()) + " bytes");
  run([&] { return reshard_comm_create_nccl(id.c_str(), n, rank, nullptr, ms, &made); });
  return new Comm({made}, false, true);
}

// A number, or a list of one per rank of a local world.
Shape per_rank(Comm &comm, nb::handle given, const char *what) {
  if (comm.handles.size() == 1 && nb::isinstance<nb::int_>(given))
    return {nb::cast<int64_t>(given)};
  Shape list = nb::cast<Shape>(given);
  if (list.size() != comm.handles.size())
    invalid(std::string(what) + ": " + std::to_string(list.size()) + " numbers for " +
            std::to_string(comm.handles.size()) + " ranks");
  return list;
}

// Communicators of the ranks here: one object for those of one color.
Any split(Comm &comm, nb::handle colors, nb::handle keys) {
  CommCall in(comm);
  Shape color = per_rank(comm, colors, "color"),
        key = keys.is_none() ? Shape(comm.handles.size(), 0) : per_rank(comm, keys, "key");
  std::vector<reshard_comm> subs(comm.handles.size());
  run_ranks(comm, [&](size_t i) { return reshard_comm_split(comm.handles[i], color[i], key[i], &subs[i]); });
  nb::list result;
  std::vector<nb::object> made(subs.size());
  for (size_t i = 0; i < subs.size(); i++) {
    for (size_t j = 0; subs[i] != nullptr && j < i && !made[i].is_valid(); j++)
      if (subs[j] != nullptr && color[j] == color[i])
        made[i] = made[j];
    if (subs[i] == nullptr)
      made[i] = nb::none();
    else if (!made[i].is_valid()) { // the first of its color: all of them, by their new ranks
      std::vector<reshard_comm> all;
      for (size_t j = i; j < subs.size(); j++)
        if (subs[j] != nullptr && color[j] == color[i])
          all.push_back(subs[j]);
      std::sort(all.begin(), all.end(),
                [](reshard_comm a, reshard_comm b) { return reshard_comm_rank(a) < reshard_comm_rank(b); });
      Comm *sub = new Comm(all, comm.local, comm.streams);
      sub->device = reshard_device_retain(comm.device);
      remember(sub);
      made[i] = nb::cast(sub, nb::rv_policy::take_ownership);
    }
    result.append(made[i]);
  }
  return comm.local ? nb::object(result) : made[0];
}

Comm *shrink(Comm &comm, const Shape &lost) {
  CommCall in(comm);
  if (comm.local && comm.handles.size() > 1)
    raise(RESHARD_ERROR_UNSUPPORTED, "shrink of a local world: all of its ranks are in this process");
  reshard_comm sub = nullptr;
  run_ranks(comm,
            [&](size_t i) { return reshard_comm_shrink(comm.handles[i], int64_t(lost.size()), lost.data(), &sub); });
  Comm *made = new Comm({sub}, false, comm.streams);
  made->device = reshard_device_retain(comm.device);
  remember(made);
  return made;
}

// Storage that the node's processes read directly.
Any empty(const Shape &shape, nb::handle dtype, Comm &comm) {
  CommCall in(comm);
  if (comm.streams)
    raise(RESHARD_ERROR_UNSUPPORTED, "empty on a communicator of GPUs: take the tensors of torch or CuPy");
  reshard_dtype type = dtype_of(dtype);
  reshard_tensor tensor = nullptr;
  if (comm.device != nullptr)
    check(reshard_tensor_create_on(comm.device, type, int(shape.size()), shape.data(), nullptr, &tensor));
  else
    check(reshard_tensor_create(type, int(shape.size()), shape.data(), &tensor));
  std::unique_ptr<reshard_tensor_s, void (*)(reshard_tensor)> owned(tensor, reshard_tensor_release);
  return numpy_of(tensor);
}

std::set<Comm *> &open_comms() { // what is left at exit is closed before the interpreter goes
  static std::set<Comm *> set;
  return set;
}

nb::typed<nb::dict, nb::str, int64_t> stats(Comm &comm) {
  reshard_comm_stats sum = {0, 0}, one;
  for (reshard_comm handle : comm.handles) {
    check(reshard_comm_get_stats(handle, &one));
    sum.received_bytes += one.received_bytes, sum.received_messages += one.received_messages;
  }
  nb::dict d;
  d["received_bytes"] = sum.received_bytes, d["received_messages"] = sum.received_messages;
  return d;
}

// A function of an open communicator, which stays open meanwhile.
template <typename Call> auto opened(Call call) {
  return [call](Comm &comm) {
    CommCall in(comm);
    return call(comm);
  };
}

} // namespace

void refuse(Comm &comm, const std::string &text) {
  CommCall in(comm);
  reshard_status mine = reshard_error_set(RESHARD_ERROR_INVALID, text.c_str()), status;
  {
    nb::gil_scoped_release release;
    status = reshard_comm_agree(comm.handles[0], mine);
  }
  if (status == RESHARD_ERROR_CANCELLED)
    check(status);
}

void remember(Comm *comm) { open_comms().insert(comm); }

CommCall::CommCall(Comm &comm) : comm(comm) {
  if (comm.handles.empty())
    invalid("the communicator is closed");
  comm.calls++;
}

Comm::~Comm() { close(); }

void Comm::close() {
  open_comms().erase(this);
  if (handles.empty())
    return;
  if (calls > 0) {
    (void)reshard_comm_abort(handles[0]);
    while (calls > 0) {
      nb::gil_scoped_release release;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  while (!transfers.empty())
    end_transfer(**transfers.begin());
  std::vector<reshard_comm> ended;
  std::map<int64_t, std::vector<reshard_sharder>> ended_sharders;
  ended.swap(handles), ended_sharders.swap(sharders);
  nb::gil_scoped_release release;
  for (const auto &[limit, of] : ended_sharders)
    for (reshard_sharder s : of)
      reshard_sharder_destroy(s);
  for (reshard_comm c : ended)
    reshard_comm_destroy(c);
  reshard_device_release(device); // arrays keep it as long as they live
  device = nullptr;
}

void bind_comm(nb::module_ &m) {
  nb::class_<Comm>(m, "Comm",
                   "Ranks that move tensors together. For n ranks of this process calls take a list, a thing per rank.",
                   nb::is_weak_referenceable())
      .def_prop_ro("rank", opened([](Comm &c) { return reshard_comm_rank(c.handles[0]); }),
                   "This rank; of a local world 0.")
      .def_prop_ro("size", opened([](Comm &c) { return c.size(); }))
      .def_prop_ro(
          "local", [](Comm &c) { return c.local; }, "True where all ranks are in this process.")
      .def_prop_ro("closed", [](Comm &c) { return c.handles.empty(); })
      .def_prop_ro("global_ranks", opened([](Comm &c) {
                     Shape numbers(size_t(c.size()));
                     std::iota(numbers.begin(), numbers.end(), 0);
                     const int64_t *ranks = reshard_comm_global_ranks(c.handles[0]);
                     return tuple_of(int(c.size()), ranks != nullptr ? ranks : numbers.data());
                   }))
      .def("barrier",
           opened([](Comm &c) { run_ranks(c, [&](size_t i) { return reshard_comm_barrier(c.handles[i]); }); }))
      .def("split", &split, "color"_a, "key"_a = nb::none(),
           "Ranks of one color make a communicator; a negative color: None. Collective.")
      .def("shrink", &shrink, "lost"_a = Shape(), nb::rv_policy::take_ownership,
           "A communicator of those that are there. lost: the ranks left out; none: those of `missing`.")
      .def_prop_ro("missing", opened([](Comm &c) {
                     Shape missing = missing_of(c.handles[0]);
                     return tuple_of(int(missing.size()), missing.data());
                   }),
                   "Ranks that had not come when a deadline passed.")
      .def("_refuse", &refuse)
      .def("abort", opened([](Comm &c) { run([&] { return reshard_comm_abort(c.handles[0]); }); }))
      .def(
          "report",
          [](Comm &c, int64_t last) {
            CommCall in(c);
            return printed([&](char *text, size_t size, size_t *needed) {
              return reshard_comm_report(c.handles[0], last, text, size, needed);
            });
          },
          "last"_a = 0, "Where the ranks of this process are, as text.")
      .def_prop_ro("stats", opened(stats))
      .def("close", &Comm::close, "Ends its transfers, then itself. Closing twice is allowed.")
      .def("__enter__", &entered<Comm>)
      .def(
          "__exit__", [](Comm &c, nb::args) { c.close(); }, EXIT);
  auto own = [](Comm *comm) { return remember(comm), comm; };
  m.def(
      "local",
      [own](int64_t n, int threads, std::optional<double> timeout) { return own(make_local(n, threads, timeout)); },
      "n"_a, nb::kw_only(), "threads"_a = 0, "timeout"_a = nb::none(), nb::rv_policy::take_ownership,
      "n ranks of this process, driven by one thread.");
  m.def(
      "node",
      [own](std::optional<int64_t> n, std::optional<int64_t> rank, nb::object allgather, std::optional<double> timeout,
            const std::string &job) { return own(make_node(n, rank, allgather, timeout, job)); },
      "n"_a = nb::none(), "rank"_a = nb::none(), "allgather"_a = nb::none(), nb::kw_only(), "timeout"_a = nb::none(),
      "job"_a = "", nb::rv_policy::take_ownership,
      "One rank of processes of a node. Collective. allgather(mine) returns the bytes of all ranks, or a list of "
      "them.\n"
      "Without arguments RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT tell, as torchrun sets them.");
  m.def(
      "from_nccl", [own](nb::object comm, std::optional<double> timeout) { return own(from_nccl(comm, timeout)); },
      "comm"_a, nb::kw_only(), "timeout"_a = nb::none(), nb::rv_policy::take_ownership,
      "Wraps an ncclComm_t: its address, or an object that has it as .ptr. Borrowed.");
  m.def("_nccl_id", [] {
    char id[RESHARD_NCCL_ID_BYTES];
    check(reshard_nccl_unique_id(id));
    return nb::bytes(id, sizeof id);
  });
  m.def(
      "_create_nccl",
      [own](nb::bytes id, int64_t n, int64_t rank, std::optional<double> t) {
        return own(create_nccl(id, n, rank, t));
      },
      "id"_a, "n"_a, "rank"_a, "timeout"_a = nb::none(), nb::rv_policy::take_ownership);
  m.def("empty", &empty, "shape"_a, "dtype"_a, "comm"_a,
        "A numpy array of storage that the other processes of the node read directly, which halves the copies.\n\n"
        "Not initialised. It lives as long as the array, also beyond the communicator.");
  m.def("_close_all", [] {
    while (!open_comms().empty())
      (*open_comms().begin())->close();
  });
}
