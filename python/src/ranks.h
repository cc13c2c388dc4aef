// Collective calls of all ranks that a communicator object stands for.
#pragma once

#include "core.h"

#include <thread>

void remember(Comm *comm);             // closed at exit
void end_transfer(Transfer &transfer); // destroys its handles, and takes it from its communicator

inline std::vector<int64_t> missing_of(reshard_comm handle) {
  std::vector<int64_t> missing(size_t(reshard_comm_size(handle)));
  int64_t count = 0;
  check(reshard_comm_missing(handle, missing.data(), &count));
  missing.resize(size_t(count));
  return missing;
}

// Raises the error of a handle's call; that of a deadline has the ranks that are missing.
[[noreturn]] inline void raise_of(reshard_comm handle, reshard_status status, const std::string &text) {
  raise(status, text, status == RESHARD_ERROR_TIMEOUT ? missing_of(handle) : std::vector<int64_t>());
}

// A call of this thread for all ranks here.
template <typename Call> void run_in(Comm &comm, Call &&call) {
  reshard_status status;
  {
    nb::gil_scoped_release release;
    status = call();
  }
  if (status != RESHARD_SUCCESS)
    raise_of(comm.handles[0], status, reshard_last_error());
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
    if (statuses[i] != RESHARD_SUCCESS)
      texts[i] = reshard_last_error();
  };
  {
    nb::gil_scoped_release release;
    std::vector<std::thread> threads;
    for (size_t i = 1; i < n; i++)
      threads.emplace_back(one, i);
    one(0);
    for (std::thread &t : threads)
      t.join();
  }
  for (size_t i = 0; i < n; i++)
    if (statuses[i] != RESHARD_SUCCESS)
      raise_of(comm.handles[i], statuses[i], texts[i]);
}

void refuse(Comm &comm, const std::string &text); // tells the other ranks; raises only what ends the wait

// A thing of each rank here.
inline std::vector<nb::object> of_ranks(const Comm &comm, nb::handle given, const char *what) {
  if (comm.handles.size() == 1 && !(comm.local && nb::isinstance<nb::list>(given)))
    return {nb::borrow(given)};
  const std::string ranks = std::to_string(comm.handles.size());
  if (!nb::isinstance<nb::list>(given) && !nb::isinstance<nb::tuple>(given))
    invalid(std::string(what) + ": a " + nb::str(given.type().attr("__name__")).c_str() + ", where " + ranks +
            " ranks of this process take a list with a thing for each");
  std::vector<nb::object> list;
  for (nb::handle h : given)
    list.push_back(nb::borrow(h));
  if (list.size() != comm.handles.size())
    invalid(std::string(what) + ": a list of " + std::to_string(list.size()) + " things for " + ranks +
            " ranks of this process");
  return list;
}

// Checks what a call of all ranks takes. Where a rank that is a process refuses it, all have its error: the others are
// in the call, or come to it.
template <typename Take> auto joined(Comm &comm, Take &&take) {
  try {
    return take();
  } catch (std::exception &error) {
    if (comm.local || comm.size() == 1)
      throw;
    auto *python = dynamic_cast<nb::python_error *>(&error);
    refuse(comm, python != nullptr ? nb::str(python->value()).c_str() : error.what());
    throw;
  }
}
