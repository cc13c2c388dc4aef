/* NCCL on the virtual GPU: communicators over rank threads, groups, sends and receives, a few collectives.
 *
 * A launch - a group of sends and receives, or a collective - is three operations on its stream: it arrives, moves what
 * comes to this rank, and leaves. All are held until the partners of the launch are there: a move comes after all
 * arrivals that it reads from, a leave after all moves that read from here. So a buffer may be read by a peer from its
 * owner's arrival to its leave, and the checker sees whoever else writes to it meanwhile.
 *
 * Launches of one communicator run one after the other, whatever streams they are on; the checker does not count on it.
 *
 * What would hang on the real thing is reported, not waited for: sizes, types or collectives that do not match, messages
 * that nobody takes when the test ends, and who waits for whom. What has hung there although it is allowed is reported
 * too: messages of zero bytes, several to one peer in a group, groups that mix streams, groups larger than a kernel
 * plan, which each rank cuts by its own list of operations. So is a communicator that two threads use at once. */
#include "machine.hpp"

#include <nccl.h>

#include <algorithm>
#include <ctime>
#include <deque>

using namespace vg;

namespace {

enum { PLAN_BUDGET = 8000 }; /* operations in a group: known to pass; 24,000 are known to hang */

struct Message {
  bool send;
  char *at;
  size_t bytes;
  ncclDataType_t type;
  int peer;
};

enum class What { Group, AllGather, AllToAll, Broadcast };
const char *const names[] = {"group", "ncclAllGather", "ncclAlltoAll", "ncclBroadcast"};

/* What a rank gives to a stream: made once, placed at each launch of a graph that it was captured into. */
struct Launch {
  ncclComm *comm;
  What what;
  std::vector<Message> messages; /* of a group */
  char *send = nullptr, *receive = nullptr; /* of a collective */
  size_t bytes = 0;
  ncclDataType_t type = ncclInt8;
  int root = 0;
  bool operator==(const Launch &o) const {
    return what == o.what && bytes == o.bytes && type == o.type && root == o.root;
  }
};

struct Copy {
  char *to;
  const char *from;
  size_t bytes;
};

/* A launch on its way. */
struct Placed {
  std::shared_ptr<Launch> launch;
  Id arrive = 0, move = 0, leave = 0;
  size_t missing = 0; /* partners that are not there yet */
  std::vector<Copy> copies;
};
using Place = std::shared_ptr<Placed>;

struct Pending {
  Place place;
  Message message;
};

struct World {
  int n;
  std::string name;
  std::vector<ncclComm *> ranks;
  int joined = 0;
  bool broken = false;
  Clock clock; /* of the threads that have joined */
  std::map<std::pair<int, int>, std::deque<Pending>> sends, receives; /* by (from, to) */
  std::vector<std::deque<Place>> collectives; /* by rank, those that wait for others */
  /* a split: what each rank asked for */
  std::vector<int> colors, keys;
  std::vector<ncclComm *> made;
  std::vector<bool> asked;
  int askers = 0;
};

struct GroupEntry {
  ncclComm *comm;
  Stream *stream;
  Message message;
};

struct ThreadState {
  uint64_t generation = 0;
  int depth = 0;
  std::vector<GroupEntry> group;
};
thread_local ThreadState state;

/* Of this machine: all objects live until the next one begins, so that stale handles are recognised. */
struct Nccl {
  uint64_t generation = 0;
  uint64_t ids = 0;
  std::map<std::string, std::unique_ptr<World>> worlds;
  std::vector<std::unique_ptr<ncclComm>> comms;
  std::map<Id, Place> moves;
};
Nccl N;

} // namespace

struct ncclComm {
  World *world;
  int rank, device;
  bool blocking, aborted, destroyed, finalized;
  ncclResult_t state;
  std::string name;
  std::vector<Place> placed; /* not complete yet */
  Id last;                   /* what its last launch leaves by: the next one comes after it */
  uint32_t chain, time;      /* of the thread that has called last */
};

namespace {

ThreadState &here() {
  if (state.generation != M.generation)
    state = ThreadState{M.generation, 0, {}};
  return state;
}

void fresh() {
  if (N.generation != M.generation) {
    N.worlds.clear(), N.comms.clear(), N.moves.clear();
    N.ids = 0;
    N.generation = M.generation;
  }
}

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

ncclComm *check(ncclComm_t comm, const char *call, bool any_thread = false) {
  for (auto &c : N.comms)
    if (c.get() == comm && !c->destroyed) {
      if (!any_thread)
        used(comm);
      return comm;
    }
  report(std::string("comm ") + call, "misuse: %s with %s", call, comm ? "a communicator that is no more" : "NULL");
  return nullptr;
}

/* --- Matching --------------------------------------------------------------------------------------------------------*/
void complete(const Place &p) {
  for (Id id : {p->arrive, p->move, p->leave})
    let_go(id);
  auto &list = p->launch->comm->placed;
  list.erase(std::find(list.begin(), list.end(), p));
  tell_moved();
}

void less(const Place &p) {
  if (--p->missing == 0)
    complete(p);
}

/* `to` reads what `from` has sent. */
void connect(const Place &from, const Place &to, Copy copy) {
  if (from != to) {
    come_after(to->move, from->arrive);
    come_after(from->leave, to->move);
  }
  to->copies.push_back(copy);
}

void match_pair(World &w, std::pair<int, int> pair) {
  auto &sends = w.sends[pair], &receives = w.receives[pair];
  while (!sends.empty() && !receives.empty()) {
    Pending s = sends.front(), r = receives.front();
    sends.pop_front(), receives.pop_front();
    if (s.message.bytes != r.message.bytes)
      report("nccl size", "NCCL: rank %d sends %zu bytes to rank %d of %s, which receives %zu", pair.first, s.message.bytes,
             pair.second, w.name.c_str(), r.message.bytes);
    else if (s.message.type != r.message.type)
      report("nccl type", "NCCL: rank %d sends type %d to rank %d of %s, which receives type %d", pair.first,
             (int)s.message.type, pair.second, w.name.c_str(), (int)r.message.type);
    connect(s.place, r.place, {r.message.at, s.message.at, std::min(s.message.bytes, r.message.bytes)});
    if (s.place == r.place) { /* to itself */
      s.place->missing--;
      less(r.place);
      continue;
    }
    less(s.place);
    less(r.place);
  }
}

void place_group(const Place &p) {
  World &w = *p->launch->comm->world;
  int me = p->launch->comm->rank;
  p->missing = p->launch->messages.size();
  std::set<std::pair<int, int>> pairs;
  for (const Message &m : p->launch->messages) {
    std::pair<int, int> pair = m.send ? std::make_pair(me, m.peer) : std::make_pair(m.peer, me);
    (m.send ? w.sends : w.receives)[pair].push_back({p, m});
    pairs.insert(pair);
  }
  for (auto &pair : pairs)
    match_pair(w, pair);
}

/* What rank `to` gets from rank `from` in a collective; no bytes: nothing. */
Copy part(const Launch &from, const Launch &to) {
  size_t n = to.bytes;
  size_t f = (size_t)from.comm->rank, t = (size_t)to.comm->rank;
  switch (to.what) {
  case What::AllGather: return {to.receive + f * n, from.send, n};
  case What::AllToAll: return {to.receive + f * n, from.send + t * n, n};
  default: return {to.receive, from.send, (int)f == to.root && f != t ? n : 0};
  }
}

void place_collective(const Place &p) {
  World &w = *p->launch->comm->world;
  w.collectives.resize((size_t)w.n);
  p->missing = 1;
  w.collectives[(size_t)p->launch->comm->rank].push_back(p);
  for (auto &list : w.collectives)
    if (list.empty())
      return;
  std::vector<Place> all;
  for (auto &list : w.collectives) {
    all.push_back(list.front());
    list.pop_front();
  }
  for (auto &q : all)
    if (!(*q->launch == *all[0]->launch))
      report("nccl collective", "NCCL: rank 0 of %s is in %s of %zu bytes of type %d, rank %d in %s of %zu bytes of type %d",
             w.name.c_str(), names[(int)all[0]->launch->what], all[0]->launch->bytes, (int)all[0]->launch->type,
             q->launch->comm->rank, names[(int)q->launch->what], q->launch->bytes, (int)q->launch->type);
  for (auto &to : all)
    for (auto &from : all) {
      Copy c = part(*from->launch, *to->launch);
      if (c.bytes)
        connect(from, to, c);
    }
  for (auto &q : all)
    less(q);
}

void post(const Place &p) {
  ncclComm *c = p->launch->comm;
  c->placed.push_back(p);
  N.moves[p->move] = p;
  if (p->launch->what == What::Group)
    place_group(p);
  else
    place_collective(p);
}

/* --- Giving a launch to a stream -------------------------------------------------------------------------------------*/
void add_ranges(const Launch &l, bool sends, std::vector<Range> &out) {
  size_t n = (size_t)l.comm->world->n;
  if (l.what == What::Group) {
    for (const Message &m : l.messages)
      if (m.send == sends)
        out.push_back({(uintptr_t)m.at, m.bytes, !sends});
    return;
  }
  bool root = l.what != What::Broadcast || l.root == l.comm->rank;
  if (sends && root)
    out.push_back({(uintptr_t)l.send, l.what == What::AllToAll ? n * l.bytes : l.bytes, false});
  if (!sends && (l.what != What::Broadcast || !root))
    out.push_back({(uintptr_t)l.receive, l.what == What::Broadcast ? l.bytes : n * l.bytes, true});
}

ncclResult_t give(std::shared_ptr<Launch> launch, Stream &stream) {
  ncclComm *c = launch->comm;
  auto next = std::make_shared<Place>(); /* that is being placed: its three operations follow one another */
  const char *name = keep(std::string(names[(int)launch->what]) + " of rank " + std::to_string(c->rank));
  Work arrive, move, leave;
  arrive.what = move.what = leave.what = name;
  add_ranges(*launch, true, arrive.ranges);
  add_ranges(*launch, false, move.ranges);
  arrive.placed = [launch, next](Id id) {
    *next = std::make_shared<Placed>();
    (*next)->launch = launch;
    (*next)->arrive = id;
    depend(M.live[id], launch->comm->last);
  };
  move.placed = [next](Id id) { (*next)->move = id; };
  move.after = [](const Op &op) {
    auto it = N.moves.find(op.id);
    for (const Copy &copy : it->second->copies)
      memmove(copy.to, copy.from, copy.bytes);
    N.moves.erase(it);
  };
  leave.placed = [launch, next](Id id) {
    (*next)->leave = id;
    launch->comm->last = id;
    post(*next);
  };
  for (Work *work : {&arrive, &move, &leave})
    if (submit(stream, std::move(*work)) != cudaSuccess)
      return ncclUnhandledCudaError;
  return ncclSuccess;
}

/* Everything of this rank that has not found its partners ends without moving anything. */
void cut_off(ncclComm *c) {
  World &w = *c->world;
  while (!c->placed.empty()) {
    Place p = c->placed.front();
    for (auto *lists : {&w.sends, &w.receives})
      for (auto &entry : *lists) {
        auto &list = entry.second;
        list.erase(std::remove_if(list.begin(), list.end(), [&](const Pending &q) { return q.place == p; }), list.end());
      }
    for (auto &list : w.collectives)
      list.erase(std::remove(list.begin(), list.end(), p), list.end());
    complete(p);
  }
}

/* --- Making ----------------------------------------------------------------------------------------------------------*/
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

/* The calling thread comes after all that have joined. */
void meet(World &w) {
  Thread &thread = self();
  w.clock.join(thread.clock);
  thread.released = true;
}

void join(World &w, ncclComm *c) {
  w.ranks.resize((size_t)w.n);
  w.ranks[(size_t)c->rank] = c;
  meet(w);
  if (++w.joined < w.n)
    return;
  bool twice = false;
  for (int i = 0; i < w.n; i++)
    for (int j = 0; j < i; j++)
      twice |= w.ranks[(size_t)i]->device == w.ranks[(size_t)j]->device;
  for (ncclComm *r : w.ranks)
    r->state = twice ? ncclInvalidUsage : ncclSuccess; /* two ranks on one GPU */
  tell_moved();
}

/* Waits as a blocking communicator does; false: nobody came for 10 seconds. */
bool await(const std::function<bool()> &there) {
  while (!there())
    if (!wait_moved(10000))
      return there();
  return true;
}

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
  w.askers = 0;
  w.asked.assign((size_t)w.n, false);
  for (ncclComm *c : w.ranks)
    c->state = ncclSuccess;
  tell_moved();
}

} // namespace

/* What is left when the machine ends. */
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
               p->launch->comm->rank, entry.second->name.c_str(), names[(int)p->launch->what]);
  for (auto &c : N.comms)
    if (!c->destroyed)
      report("nccl leak " + c->name, "leak: %s was not destroyed", c->name.c_str());
}

static ncclResult_t fault_result() {
  return M.fault.error ? (ncclResult_t)M.fault.error : ncclUnhandledCudaError;
}

#define VG_NCCL(name, flags)                                                                                           \
  static const int call_index_ = call_index(#name);                                                                    \
  Api api(call_index_, #name, flags);                                                                                  \
  fresh();                                                                                                             \
  if (api.fault != cudaSuccess && !((flags)&CALL_DESTROY))                                                             \
  return fault_result()
#define VG_NCCL_END(result) return api.fault != cudaSuccess ? fault_result() : (result)

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

const char *ncclGetLastError(ncclComm_t) { return "virtual NCCL"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  VG_NCCL(ncclGetUniqueId, CALL_NO_GPU_NEEDED);
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "communicator %d", (int)++N.ids);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n, ncclUniqueId id, int rank, ncclConfig_t *config) {
  VG_NCCL(ncclCommInitRankConfig, CALL_CREATE);
  std::unique_ptr<World> &world = N.worlds[id.internal];
  if (!world) {
    world.reset(new World{});
    world->n = n;
    world->name = id.internal;
  }
  if (rank < 0 || rank >= n || world->n != n || (rank < (int)world->ranks.size() && world->ranks[(size_t)rank]))
    return ncclInvalidArgument;
  ncclComm *c = new_comm(world.get(), rank, self().device, !config || config->blocking != 0);
  *comm = c;
  join(*world, c);
  return settled(c, "ncclCommInitRankConfig");
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int n, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, n, id, rank, nullptr);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result) {
  static const int call_index_ = call_index("ncclCommGetAsyncError");
  Api api(call_index_, "ncclCommGetAsyncError", CALL_PLAIN);
  fresh();
  if (api.fault != cudaSuccess && M.fault.error) {
    *result = fault_result();
    return ncclSuccess;
  }
  if (api.fault != cudaSuccess)
    return fault_result();
  ncclComm *c = check(comm, "ncclCommGetAsyncError", true);
  if (!c)
    return ncclInvalidArgument;
  *result = c->state;
  if (c->state == ncclSuccess)
    thread_joins(self(), c->world->clock);
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
  VG_NCCL(ncclCommCount, CALL_PLAIN);
  ncclComm *c = check(comm, "ncclCommCount");
  if (c)
    *count = c->world->n;
  return c ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
  VG_NCCL(ncclCommUserRank, CALL_PLAIN);
  ncclComm *c = check(comm, "ncclCommUserRank");
  if (c)
    *rank = c->rank;
  return c ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
  VG_NCCL(ncclCommCuDevice, CALL_PLAIN);
  ncclComm *c = check(comm, "ncclCommCuDevice");
  if (c)
    *device = c->device;
  return c ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config) {
  VG_NCCL(ncclCommSplit, CALL_CREATE);
  ncclComm *c = check(comm, "ncclCommSplit");
  if (!c || c->state != ncclSuccess)
    return ncclInvalidArgument;
  World &w = *c->world;
  size_t n = (size_t)w.n, r = (size_t)c->rank;
  w.colors.resize(n), w.keys.resize(n), w.made.resize(n), w.asked.resize(n);
  if (w.asked[r]) {
    report("nccl split", "NCCL: %s splits again before the others have split once", c->name.c_str());
    return ncclInvalidUsage;
  }
  w.colors[r] = color;
  w.keys[r] = key;
  w.asked[r] = true;
  *made = color == NCCL_SPLIT_NOCOLOR ? nullptr : new_comm(&w, 0, c->device, !config || config->blocking != 0);
  w.made[r] = *made; /* who asked may have given up, and `made` be gone, when the others come */
  c->state = ncclInProgress;
  meet(w);
  if (++w.askers == w.n)
    finish_split(w);
  return settled(c, "ncclCommSplit");
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  VG_NCCL(ncclCommFinalize, CALL_PLAIN);
  ncclComm *c = check(comm, "ncclCommFinalize");
  if (!c)
    return ncclInvalidArgument;
  c->finalized = true;
  if (!c->placed.empty())
    report("nccl finalize", "NCCL: %s is finalised while %zu launches wait for others", c->name.c_str(), c->placed.size());
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  VG_NCCL(ncclCommDestroy, CALL_DESTROY);
  ncclComm *c = check(comm, "ncclCommDestroy");
  if (!c)
    return ncclInvalidArgument;
  if (!c->placed.empty())
    report("nccl destroy", "NCCL: %s is destroyed while %zu launches wait for others", c->name.c_str(), c->placed.size());
  cut_off(c);
  c->destroyed = true;
  VG_NCCL_END(ncclSuccess);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  VG_NCCL(ncclCommAbort, CALL_DESTROY);
  ncclComm *c = check(comm, "ncclCommAbort", true);
  if (!c)
    return ncclInvalidArgument;
  cut_off(c);
  c->aborted = c->destroyed = true;
  VG_NCCL_END(ncclSuccess);
}

/* --- Groups and what is in them -------------------------------------------------------------------------------------*/
static ncclResult_t flush(std::vector<GroupEntry> entries) {
  std::vector<ncclComm *> order;
  std::map<ncclComm *, std::shared_ptr<Launch>> launches;
  std::map<ncclComm *, Stream *> streams;
  std::set<std::pair<ncclComm *, std::pair<bool, int>>> peers;
  for (GroupEntry &e : entries) {
    if (!launches[e.comm]) {
      launches[e.comm] = std::make_shared<Launch>(Launch{e.comm, What::Group, {}});
      streams[e.comm] = e.stream;
      order.push_back(e.comm);
    }
    if (streams[e.comm] != e.stream)
      report("nccl streams", "NCCL: a group of %s mixes %s and %s", e.comm->name.c_str(), e.stream->name.c_str(),
             streams[e.comm]->name.c_str());
    if (!peers.insert({e.comm, {e.message.send, e.message.peer}}).second)
      report("nccl twice", "NCCL: a group of %s has two %s one peer, rank %d", e.comm->name.c_str(),
             e.message.send ? "sends to" : "receives from", e.message.peer);
    launches[e.comm]->messages.push_back(e.message);
  }
  for (ncclComm *c : order) {
    if (launches[c]->messages.size() > PLAN_BUDGET)
      report("nccl budget", "NCCL: a group of %s has %zu operations: more than one kernel plan, which each rank cuts as it sees it",
             c->name.c_str(), launches[c]->messages.size());
    ncclResult_t result = give(launches[c], *streams[c]);
    if (result != ncclSuccess)
      return result;
  }
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  VG_NCCL(ncclGroupStart, CALL_PLAIN);
  here().depth++;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  static const int call_index_ = call_index("ncclGroupEnd");
  Api api(call_index_, "ncclGroupEnd", CALL_PLAIN);
  fresh();
  ThreadState &t = here();
  if (t.depth == 0)
    return ncclInvalidUsage;
  if (--t.depth > 0)
    return ncclSuccess;
  std::vector<GroupEntry> entries;
  entries.swap(t.group);
  if (api.fault != cudaSuccess) /* as if the launch had failed */
    return fault_result();
  return flush(std::move(entries));
}

static size_t size_of(ncclDataType_t type) {
  switch (type) {
  case ncclFloat16:
  case ncclBfloat16: return 2;
  case ncclInt32:
  case ncclUint32:
  case ncclFloat32: return 4;
  case ncclInt64:
  case ncclUint64:
  case ncclFloat64: return 8;
  default: return 1;
  }
}

static ncclResult_t message(const char *call, bool send, const void *at, size_t n, ncclDataType_t type, int peer,
                            ncclComm_t comm, cudaStream_t handle) {
  size_t bytes = n * size_of(type);
  ncclComm *c = check(comm, call);
  Stream *stream = stream_of(handle, call);
  if (!c || !stream || c->state != ncclSuccess || peer < 0 || peer >= c->world->n)
    return ncclInvalidArgument;
  if (bytes == 0)
    report(std::string("nccl zero ") + call, "NCCL: %s of zero bytes by %s", call, c->name.c_str());
  if (stream->device != c->device)
    report(std::string("nccl device ") + call, "NCCL: %s of %s on %s", call, c->name.c_str(), stream->name.c_str());
  GroupEntry e{c, stream, {send, (char *)at, bytes, type, peer}};
  if (here().depth > 0) {
    here().group.push_back(e);
    return ncclSuccess;
  }
  return flush({e});
}

ncclResult_t ncclSend(const void *at, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  VG_NCCL(ncclSend, CALL_PLAIN);
  return message("ncclSend", true, at, n, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void *at, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  VG_NCCL(ncclRecv, CALL_PLAIN);
  return message("ncclRecv", false, at, n, type, peer, comm, stream);
}

static ncclResult_t collective(const char *call, What what, const void *send, void *receive, size_t n,
                               ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t handle) {
  ncclComm *c = check(comm, call);
  Stream *stream = stream_of(handle, call);
  if (!c || !stream || c->state != ncclSuccess || root < 0 || root >= c->world->n)
    return ncclInvalidArgument;
  auto launch = std::make_shared<Launch>(Launch{c, what, {}});
  launch->send = (char *)send;
  launch->receive = (char *)receive;
  launch->bytes = n * size_of(type);
  launch->type = type;
  launch->root = root;
  return give(launch, *stream);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t n, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  VG_NCCL(ncclAllGather, CALL_PLAIN);
  return collective("ncclAllGather", What::AllGather, send, receive, n, type, 0, comm, stream);
}

ncclResult_t ncclAlltoAll(const void *send, void *receive, size_t n, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  VG_NCCL(ncclAlltoAll, CALL_PLAIN);
  return collective("ncclAlltoAll", What::AllToAll, send, receive, n, type, 0, comm, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  VG_NCCL(ncclBroadcast, CALL_PLAIN);
  return collective("ncclBroadcast", What::Broadcast, send, receive, n, type, root, comm, stream);
}
