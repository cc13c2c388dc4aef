// Communicators, and collective calls of all ranks that one stands for.
#pragma once

#include "core.h"

#include <thread>

struct Transfer;
void end_transfer(Transfer &transfer); // destroys its handles, and takes it from its communicator

using Sharder = Owned<reshard_sharder, reshard_sharder_destroy>;

// All ranks of a communicator that this object stands for: one of a node, n of a local world. Closed at exit.
struct Comm {
  Comm(std::vector<reshard_comm> handles, bool local, bool streams, reshard_device device = nullptr);
  Comm(const Comm &) = delete;
  ~Comm() { close(); }
  void close(); // ends its transfers first; a call that waits in another thread returns with a PeerError
  bool closed() const { return handles.empty(); }
  int64_t size() const { return reshard_comm_size(handles.at(0)); }
  int64_t rank(size_t i) const { return reshard_comm_rank(handles.at(i)); }
  std::vector<reshard_comm> handles;                // none once it is closed
  std::map<int64_t, std::vector<Sharder>> sharders; // by limit; made with the first call of it
  bool local, streams;
  reshard_device device; // whose storage the node's processes read; NULL: none
  std::set<Transfer *> transfers;
  int calls = 0; // that threads are in
  static constexpr const char *noun = "communicator";
};

void *stream_of(const Comm &comm, nb::handle stream); // checked against the communicator's device

inline std::vector<int64_t> missing_of(reshard_comm handle) {
  std::vector<int64_t> missing(size_t(reshard_comm_size(handle)));
  int64_t count = 0;
  check(reshard_comm_missing(handle, missing.data(), &count));
  missing.resize(size_t(count));
  return missing;
}

// Raises the error of a handle's call; that of a deadline has the ranks that are missing.
inline void check_of(reshard_comm handle, reshard_status status, const std::string &text) {
  if (status != RESHARD_SUCCESS)
    raise(status, text, status == RESHARD_ERROR_TIMEOUT ? missing_of(handle) : std::vector<int64_t>());
}

// A call of this thread for all ranks here.
template <typename Call> void run_in(Comm &comm, Call &&call) {
  const reshard_status status = without_gil(call);
  check_of(comm.handles[0], status, reshard_last_error());
}

// A call of each rank here, where C has none for all of them: each on a thread of its own.
template <typename Call> void run_ranks(Comm &comm, Call &&call) {
  size_t n = comm.handles.size();
  if (n == 1)
    return run_in(comm, [&] { return call(size_t(0)); });
  std::vector<reshard_status> statuses(n, RESHARD_SUCCESS);
  std::vector<std::string> texts(n);
  auto one = [&](size_t i) {
    statuses[i] = call(i);
    texts[i] = reshard_last_error();
  };
  run([&] {
    std::vector<std::thread> threads;
    for (size_t i = 1; i < n; i++)
      threads.emplace_back(one, i);
    one(0);
    for (std::thread &t : threads)
      t.join();
    return RESHARD_SUCCESS;
  });
  for (size_t i = 0; i < n; i++)
    check_of(comm.handles[i], statuses[i], texts[i]);
}

void refuse(Comm &comm, const std::string &text); // tells the other ranks; raises only what ends the wait

// Checks what a call of all ranks takes. Where a rank that is a process refuses it, all have its error: the others are
// in the call, or come to it.
template <typename Take> auto joined(Comm &comm, Take &&take) {
  try {
    return take();
  } catch (std::exception &error) {
    if (comm.local || comm.size() == 1)
      throw;
    auto *python = dynamic_cast<nb::python_error *>(&error);
    refuse(comm, python != nullptr ? str_of(python->value()) : error.what());
    throw;
  }
}

// A thing of each rank here.
inline std::vector<nb::object> of_ranks(const Comm &comm, nb::handle given, const char *what) {
  if (comm.handles.size() == 1 && !(comm.local && nb::isinstance<nb::list>(given)))
    return {nb::borrow(given)};
  const size_t ranks = comm.handles.size();
  if (!nb::isinstance<nb::list>(given) && !nb::isinstance<nb::tuple>(given))
    invalid(what, ": a ", nb::str(given.type().attr("__name__")).c_str(), ", where ", ranks,
            " ranks of this process take a list with a thing for each");
  std::vector<nb::object> list = nb::cast<std::vector<nb::object>>(given);
  if (list.size() != ranks)
    invalid(what, ": a list of ", list.size(), " things for ", ranks, " ranks of this process");
  return list;
}
