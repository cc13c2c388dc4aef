/* The end of communicators, and what is left of them at the end. */
#include "nccl.hpp"

#include <algorithm>
#include <ctime>

namespace vg::nccl {

int64_t now_ns() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

namespace {

/* The communicator of a split that an abort gives up: it is there, and broken. */
void give_up_split(ncclComm *c) {
  World &w = *c->world;
  size_t r = (size_t)c->rank;
  auto left = w.left.find(c->rank);
  if (left != w.left.end()) {
    *left->second.second = left->second.first;
    w.left.erase(left);
  }
  if (r >= w.asked.size() || !w.asked[r] || !w.slots[r])
    return;
  *w.slots[r] = w.made[r];
  w.slots[r] = nullptr;
}

int64_t now_ms() { return now_ns() / 1000000; }

size_t in_graphs(ncclComm *c) {
  auto &list = c->captured;
  list.erase(std::remove_if(list.begin(), list.end(), [](auto &l) { return l.expired(); }), list.end());
  return list.size();
}

/* All that was launched has run, no graph is left that may launch more, and all ranks want to end: there is a barrier.
 */
ncclResult_t ending(ncclComm *c) {
  bool aborted = false, all = true;
  for (ncclComm *r : c->world->ranks) {
    aborted |= r->aborted || r->revoked;
    all &= r->finalized || r->destroyed;
  }
  if (aborted)
    return warn(ncclRemoteError, "%s ends, and another rank has aborted", c->name.c_str());
  return all && c->placed.empty() && !M.live[c->last] && in_graphs(c) == 0 ? ncclSuccess : ncclInProgress;
}

} // namespace

void look_at_end(ncclComm *c) {
  run_some(draw() % 4);
  c->state = ending(c);
  int64_t patience = M.options.patience_ms ? M.options.patience_ms : 10000;
  if (c->state == ncclInProgress && now_ms() - c->since_ms > patience) {
    report("nccl finalize", "NCCL: %s waits in ncclCommFinalize for ranks, work or graphs that do not end",
           c->name.c_str());
    c->state = ncclInternalError;
  }
}

static void stop(ncclComm *c) {
  give_up_split(c);
  drop_job(c);
  cut_off(c);
  c->revoked = true;
}

void end_for_shrink(ncclComm_t comm) {
  ncclComm *c = comm_of(comm, "ncclCommShrink", true);
  if (!c)
    return;
  stop(c);
  c->state = ncclSuccess;
  tell_moved();
}

} // namespace vg::nccl

using namespace vg;
using namespace vg::nccl;

/* Reports what is left when the machine ends. */
void vg_nccl_leaks() {
  fresh();
  for (auto &entry : N.worlds)
    for (auto *lists : {&entry.second->sends, &entry.second->receives})
      for (auto &list : *lists)
        for (const Pending &p : list.second)
          report("nccl alone", "NCCL: rank %d of %s waits for rank %d: %zu bytes that it %s, and nobody %s",
                 p.place->launch->comm->rank, entry.second->name.c_str(), p.message.peer, p.message.bytes,
                 p.message.send ? "sends" : "wants", p.message.send ? "receives" : "sends");
  for (auto &entry : N.worlds)
    for (auto &list : entry.second->collectives)
      for (auto &p : list)
        report("nccl collective alone", "NCCL: rank %d of %s waits in %s for ranks that do not come",
               p->launch->comm->rank, entry.second->name.c_str(), name_of(p->launch->what));
  for (auto &c : N.comms) {
    if (c->job)
      report("nccl unseen " + c->name, "NCCL: %s was never asked whether its last group is launched", c->name.c_str());
    if (!c->destroyed)
      report("nccl leak " + c->name, "leak: %s was not destroyed", c->name.c_str());
  }
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  VG_NCCL(ncclCommFinalize, CALL_PLAIN);
  ncclComm *c;
  ncclResult_t result = ready(comm, "ncclCommFinalize", &c);
  if (c && c->revoked)
    report("nccl finalize revoked", "misuse: ncclCommFinalize of %s, which was revoked, or shrunk after an error",
           c->name.c_str());
  if (result != ncclSuccess)
    return result;
  if (in_graphs(c))
    report("nccl graphs",
           "NCCL: %s is finalised while %zu of its launches are in graphs: it waits until these are destroyed",
           c->name.c_str(), in_graphs(c));
  c->finalized = true;
  c->state = ncclInProgress;
  c->since_ms = now_ms();
  if (!c->blocking)
    return draw() % 2 ? ncclInProgress : (look_at_end(c), c->state);
  (void)run_until({c->last});
  if (!await([c] { return ending(c) != ncclInProgress; }))
    report("nccl finalize", "NCCL: %s waits in ncclCommFinalize for ranks, work or graphs that do not end",
           c->name.c_str());
  c->state = ending(c);
  return c->state;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  VG_NCCL(ncclCommDestroy, CALL_DESTROY);
  ncclComm *c = comm_of(comm, "ncclCommDestroy");
  if (!c)
    return ncclInvalidArgument;
  if (c->state == ncclInProgress)
    report("nccl early destroy", "misuse: ncclCommDestroy of %s before its last call is through", c->name.c_str());
  if (!c->placed.empty())
    report("nccl destroy", "NCCL: %s is destroyed while %zu launches wait for others", c->name.c_str(),
           c->placed.size());
  drop_job(c);
  cut_off(c);
  c->destroyed = true;
  tell_moved();
  VG_NCCL_END(ncclSuccess);
}

/* Stops what is under way, as an abort does; the communicator is there for a shrink. */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  VG_NCCL(ncclCommRevoke, CALL_PLAIN);
  ncclComm *c = comm_of(comm, "ncclCommRevoke", true);
  if (!c || flags != NCCL_REVOKE_DEFAULT)
    return ncclInvalidArgument;
  if (c->finalized)
    report("nccl late revoke", "misuse: ncclCommRevoke of %s, which was finalised", c->name.c_str());
  stop(c);
  c->state = ncclInProgress; /* until one of the next looks */
  tell_moved();
  return ncclInProgress;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  VG_NCCL(ncclCommAbort, CALL_DESTROY);
  ncclComm *c = comm_of(comm, "ncclCommAbort", true);
  if (!c)
    return ncclInvalidArgument;
  give_up_split(c);
  drop_job(c);
  cut_off(c);
  c->aborted = c->destroyed = true;
  tell_moved();
  VG_NCCL_END(ncclSuccess);
}
