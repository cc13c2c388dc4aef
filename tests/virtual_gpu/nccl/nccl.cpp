/* NCCL on the virtual GPU: communicators over rank threads, groups, sends and receives, a few collectives.
 *
 * A launch - a group of sends and receives, or a collective - is three operations on its stream: it arrives, moves what
 * comes to this rank, and leaves. All are held until the partners of the launch are there: a move comes after all
 * arrivals that it reads from, a leave after all moves that read from here. So a buffer may be read by a peer from its
 * owner's arrival to its leave. The checker sees whoever else writes to it meanwhile.
 *
 * Launches of one communicator run one after the other, whatever streams they are on; the checker does not count on it.
 * A group that is given several streams of a communicator runs after all of them, and they go on after it.
 *
 * A communicator that does not block launches when it likes: a group may be on no stream yet when the call that ends it
 * has returned. Here that is at one of the next looks at the state of the communicator, which takes no other call
 * before.
 *
 * Calls that would hang with the real NCCL are reported, not waited for: sizes, types or collectives that do not match,
 * messages that nobody takes when the test ends, and who waits for whom. What has hung there although it is allowed is
 * reported too: messages of zero bytes; several to one peer in a group; groups larger than a kernel plan, which each
 * rank cuts by its own list of operations. So is a communicator that two threads use at once, or that is finalised
 * while a graph has launches of it. So are communicators that are launched in different orders on GPUs that they share.
 *
 * This file is about communicators and their making, end.cpp about their end; group.cpp about calls and groups of them,
 * launch.cpp about how what was given to streams meets, order.cpp about the order of communicators. */
#include "nccl.hpp"

#include <algorithm>
#include <cstdarg>
#include <ctime>
#include <unistd.h>

namespace vg::nccl {

Nccl &N = *new Nccl; /* until the process is gone: it knows memory that the library has left to it */

void fresh() {
  if (N.generation == M.generation)
    return;
  N.worlds.clear(), N.comms.clear(), N.moves.clear(), N.last_error.clear();
  N.latest.clear(), N.ordered.clear(), N.ordered_worlds.clear();
  N.ids = 0;
  N.generation = M.generation;
}

ncclResult_t warn(ncclResult_t result, const char *format, ...) {
  char text[300];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  N.last_error = text;
  return result;
}

namespace {

/* NCCL takes no two calls on a communicator at once, but ncclCommAbort and ncclCommGetAsyncError. */
void used(ncclComm *c) {
  Thread &thread = self();
  if (thread.clock.at(c->chain) < c->time)
    report("nccl threads " + c->name, "NCCL: %s is used by %s and by %s with no order between them", c->name.c_str(),
           thread.name.c_str(), M.chains[c->chain].c_str());
  c->chain = thread.chain;
  c->time = thread.clock.at(thread.chain);
  thread.released = true;
}

} // namespace

ncclComm *comm_of(ncclComm_t comm, const char *call, bool any_thread) {
  for (auto &c : N.comms)
    if (c.get() == comm && !c->destroyed) {
      if (!any_thread)
        used(comm);
      return comm;
    }
  report(std::string("comm ") + call, "misuse: %s with %s", call, comm ? "a communicator that is no more" : "NULL");
  return nullptr;
}

ncclResult_t ready(ncclComm_t comm, const char *call, ncclComm **out) {
  ncclComm *c = *out = comm_of(comm, call);
  if (!c)
    return ncclInvalidArgument;
  if (c->state == ncclInProgress) {
    report(std::string("nccl early ") + call, "misuse: %s of %s before its last call is through", call,
           c->name.c_str());
    return warn(ncclInvalidArgument, "%s: the last call of the communicator is not through", call);
  }
  if (c->revoked && strcmp(call, "ncclCommShrink") != 0)
    return warn(ncclInvalidUsage, "%s: the communicator was revoked", call);
  if (c->finalized)
    report(std::string("nccl late ") + call, "misuse: %s of %s, which was finalised", call, c->name.c_str());
  return c->finalized ? ncclInvalidArgument : c->state;
}

namespace {

/* --- Making ------------------------------------------------------------------------------------------------------- */
ncclComm *new_comm(World *world, int rank, int device, bool blocking) {
  N.comms.emplace_back(new ncclComm{});
  ncclComm *c = N.comms.back().get();
  c->world = world;
  c->rank = rank;
  c->device = device;
  c->blocking = blocking;
  c->state = ncclInProgress;
  c->name = "rank " + std::to_string(rank) + " of " + world->name;
  return c;
}

bool one_of(int value, int a, int b) { return value == NCCL_CONFIG_UNDEF_INT || value == a || value == b; }

/* NULL is as `otherwise` says. */
ncclResult_t read_config(const ncclConfig_t *config, const char *call, bool otherwise, bool *blocking) {
  *blocking = !config ? otherwise : config->blocking != 0;
  if (config && (config->magic != 0xcafebeef || config->size == 0 || config->size > sizeof *config))
    return warn(ncclInvalidArgument, "%s: the configuration was not begun by NCCL_CONFIG_INITIALIZER", call);
  if (config && (!one_of(config->blocking, 0, 1) || !one_of(config->splitShare, 0, 1)))
    return warn(ncclInvalidArgument, "%s: the configuration has blocking %d, splitShare %d", call, config->blocking,
                config->splitShare);
  return ncclSuccess;
}

/* The calling thread comes after all that have joined. */
void meet(World &w) {
  Thread &thread = self();
  w.clock.join(thread.clock);
  thread.released = true;
}

/* Two ranks of one process on one GPU are refused: hosts that NCCL_HOSTID tells apart are those of processes. */
ncclResult_t check_devices(const World &w) {
  for (int i = 0; i < w.n; i++)
    for (int j = 0; j < i; j++)
      if (w.ranks[(size_t)i]->device == w.ranks[(size_t)j]->device)
        return warn(ncclInvalidUsage, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", i, j,
                    w.ranks[(size_t)i]->device);
  return ncclSuccess;
}

void join(World &w, ncclComm *c) {
  w.ranks.resize((size_t)w.n);
  w.ranks[(size_t)c->rank] = c;
  meet(w);
  if (++w.joined < w.n)
    return;
  ncclResult_t result = check_devices(w);
  for (ncclComm *r : w.ranks)
    r->state = result;
  tell_moved();
}

} // namespace

bool await(const std::function<bool()> &there) {
  while (!there())
    if (!wait_moved(10000))
      return there();
  return true;
}

namespace {

ncclResult_t settled(ncclComm *c, const char *call) {
  if (!c->blocking)
    return c->state;
  if (!await([c] { return c->state != ncclInProgress; })) {
    report("nccl wait", "NCCL: %s waits in %s for ranks that do not come", c->name.c_str(), call);
    return ncclInternalError;
  }
  thread_joins(self(), c->world->clock);
  return c->state;
}

/* --- Splitting ---------------------------------------------------------------------------------------------------- */
void finish_split(World &w) {
  for (int r = 0; r < w.n; r++) {
    if (w.colors[(size_t)r] == NCCL_SPLIT_NOCOLOR)
      continue;
    std::vector<std::pair<int, int>> members;
    for (int s = 0; s < w.n; s++)
      if (w.colors[(size_t)s] == w.colors[(size_t)r])
        members.push_back({w.keys[(size_t)s], s});
    std::sort(members.begin(), members.end());
    std::string name = w.name + "." + std::to_string(w.askers) + "/" + std::to_string(w.colors[(size_t)r]) + "#" +
                       std::to_string(N.comms.size());
    if (members[0].second != r)
      continue;
    World *sub = (N.worlds[name] = std::unique_ptr<World>(new World{})).get();
    sub->n = (int)members.size();
    sub->name = name;
    for (int i = 0; i < sub->n; i++) {
      ncclComm *c = w.made[(size_t)members[(size_t)i].second];
      c->world = sub;
      c->rank = i;
      c->name = "rank " + std::to_string(i) + " of " + name;
      join(*sub, c);
    }
    sub->clock.join(w.clock);
  }
  for (size_t r = 0; r < (size_t)w.n; r++)
    if (w.slots[r])
      *w.slots[r] = w.made[r];
  w.askers = 0;
  w.asked.assign((size_t)w.n, false);
  for (ncclComm *c : w.ranks)
    c->state = ncclSuccess;
  tell_moved();
}

void finish_shrink(World &w) {
  std::string name = w.name + ".left#" + std::to_string(N.comms.size());
  World *sub = (N.worlds[name] = std::unique_ptr<World>(new World{})).get();
  sub->n = (int)w.left.size();
  sub->name = name;
  int rank = 0;
  for (auto &entry : w.left) {
    ncclComm *c = entry.second.first;
    c->world = sub;
    c->rank = rank++;
    c->name = "rank " + std::to_string(c->rank) + " of " + name;
    join(*sub, c);
    *entry.second.second = c;
    w.ranks[(size_t)entry.first]->state = ncclSuccess;
  }
  sub->clock.join(w.clock);
  w.left.clear();
  tell_moved();
}

} // namespace
} // namespace vg::nccl

using namespace vg;
using namespace vg::nccl;

ncclResult_t ncclGetVersion(int *version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
  switch (result) {
  case ncclSuccess: return "no error";
  case ncclUnhandledCudaError: return "unhandled cuda error";
  case ncclSystemError: return "unhandled system error";
  case ncclInternalError: return "internal error";
  case ncclInvalidArgument: return "invalid argument";
  case ncclInvalidUsage: return "invalid usage";
  case ncclRemoteError: return "remote process exited or there was a network error";
  case ncclInProgress: return "NCCL operation in progress";
  default: return "unknown result code";
  }
}

const char *ncclGetLastError(ncclComm_t) {
  static thread_local std::string text;
  Lock lock;
  fresh();
  text = N.last_error;
  return text.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  VG_NCCL(ncclGetUniqueId, CALL_NO_GPU_NEEDED);
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal / 2, "communicator %d", (int)++N.ids);
  const int64_t draw[] = {now_ns(), getpid()}; /* no other id is the same, of any process: behind the name */
  memcpy(id->internal + sizeof id->internal / 2, draw, sizeof draw);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n, ncclUniqueId id, int rank, ncclConfig_t *config) {
  VG_NCCL(ncclCommInitRankConfig, CALL_CREATE);
  bool blocking;
  ncclResult_t result = read_config(config, "ncclCommInitRankConfig", true, &blocking);
  *comm = nullptr;
  if (result != ncclSuccess)
    return result;
  std::unique_ptr<World> &world = N.worlds[id.internal];
  if (!world) {
    world.reset(new World{});
    world->n = n;
    world->name = id.internal;
  }
  if (rank < 0 || rank >= n || world->n != n || (rank < (int)world->ranks.size() && world->ranks[(size_t)rank]))
    return warn(ncclInvalidArgument, "Invalid rank requested : %d/%d", rank, n);
  ncclComm *c = new_comm(world.get(), rank, self().device, blocking);
  *comm = c;
  join(*world, c);
  return settled(c, "ncclCommInitRankConfig");
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int n, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, n, id, rank, nullptr);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result) {
  static const int call_index_ = call_index("ncclCommGetAsyncError");
  Api api(call_index_, "ncclCommGetAsyncError", CALL_NO_CONTEXT);
  fresh();
  if (api.fault != cudaSuccess && M.fault.error) {
    *result = fault_result();
    return ncclSuccess;
  }
  if (api.fault != cudaSuccess)
    return fault_result();
  ncclComm *c = comm_of(comm, "ncclCommGetAsyncError", true);
  if (!c)
    return ncclInvalidArgument;
  look(c);
  if (c->finalized && c->state == ncclInProgress)
    look_at_end(c);
  if (c->revoked && c->state == ncclInProgress && c->world->left.count(c->rank) == 0 && draw() % 2)
    c->state = ncclSuccess;
  *result = c->state;
  if (c->state == ncclSuccess)
    thread_joins(self(), c->world->clock);
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
  VG_NCCL(ncclCommCount, CALL_NO_CONTEXT);
  ncclComm *c;
  ncclResult_t result = ready(comm, "ncclCommCount", &c);
  if (result == ncclSuccess)
    *count = c->world->n;
  return result;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
  VG_NCCL(ncclCommUserRank, CALL_NO_CONTEXT);
  ncclComm *c;
  ncclResult_t result = ready(comm, "ncclCommUserRank", &c);
  if (result == ncclSuccess)
    *rank = c->rank;
  return result;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
  VG_NCCL(ncclCommCuDevice, CALL_NO_CONTEXT);
  ncclComm *c;
  ncclResult_t result = ready(comm, "ncclCommCuDevice", &c);
  if (result == ncclSuccess)
    *device = c->device;
  return result;
}

/* Communicator of the ranks that are left: all but the excluded ones, in their order. All name the same. */
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int n, ncclComm_t *made, ncclConfig_t *config, int flags) {
  VG_NCCL(ncclCommShrink, CALL_CREATE);
  ncclComm *c;
  bool blocking;
  if (flags & NCCL_SHRINK_ABORT)
    end_for_shrink(comm);
  ncclResult_t result = ready(comm, "ncclCommShrink", &c);
  if (result == ncclSuccess)
    result = read_config(config, "ncclCommShrink", c->blocking, &blocking);
  std::vector<int> list(excluded, excluded + n);
  if (result == ncclSuccess && (n < 1 || std::count(list.begin(), list.end(), c->rank) > 0))
    result = warn(ncclInvalidArgument, "ncclCommShrink: %d excluded ranks, or the caller among them", n);
  if (result != ncclSuccess)
    return result;
  World &w = *c->world;
  if (w.left.empty())
    w.excluded = list;
  else if (w.excluded != list)
    report("nccl shrink", "NCCL: %s shrinks by another list than others", c->name.c_str());
  *made = nullptr;
  w.left[c->rank] = {new_comm(&w, 0, c->device, blocking), made};
  c->state = ncclInProgress;
  meet(w);
  if (w.left.size() + list.size() == (size_t)w.n)
    finish_shrink(w);
  return settled(c, "ncclCommShrink");
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config) {
  VG_NCCL(ncclCommSplit, CALL_CREATE);
  ncclComm *c;
  bool blocking;
  ncclResult_t result = ready(comm, "ncclCommSplit", &c);
  if (result == ncclSuccess)
    result = read_config(config, "ncclCommSplit", c->blocking, &blocking);
  if (result == ncclSuccess && color < 0 && color != NCCL_SPLIT_NOCOLOR)
    result = warn(ncclInvalidArgument, "ncclCommSplit: color %d", color);
  if (result != ncclSuccess)
    return result;
  World &w = *c->world;
  size_t n = (size_t)w.n, r = (size_t)c->rank;
  w.colors.resize(n), w.keys.resize(n), w.made.resize(n), w.slots.resize(n), w.asked.resize(n);
  w.colors[r] = color;
  w.keys[r] = key;
  w.asked[r] = true;
  *made = nullptr; /* until all have asked */
  w.slots[r] = made;
  w.made[r] = color == NCCL_SPLIT_NOCOLOR ? nullptr : new_comm(&w, 0, c->device, blocking);
  c->state = ncclInProgress;
  meet(w);
  if (++w.askers == w.n)
    finish_split(w);
  return settled(c, "ncclCommSplit");
}
