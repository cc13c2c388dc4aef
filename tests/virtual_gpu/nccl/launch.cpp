/* Launches: the calls that ranks give to their streams meet and move data (nccl.cpp has the rules). */
#include "nccl.hpp"

#include <algorithm>

namespace vg::nccl {

const char *name_of(What what) {
  switch (what) {
  case What::AllGather: return "ncclAllGather";
  case What::AllToAll: return "ncclAlltoAll";
  case What::Broadcast: return "ncclBroadcast";
  default: return "group";
  }
}

/* --- Matching ----------------------------------------------------------------------------------------------------- */
static void complete(const Place &p) {
  for (Id id : {p->arrive, p->move, p->leave})
    let_go(id);
  auto &list = p->launch->comm->placed;
  list.erase(std::find(list.begin(), list.end(), p));
  order_complete(p);
  tell_moved();
}

static void less(const Place &p) {
  if (--p->missing == 0)
    complete(p);
}

/* Ranks of one process reach into each other's buffers where their GPUs can. Plain memory is open to all GPUs when NCCL
 * has enabled them; that of a pool to those that its owner has opened it to. */
static void must_reach(const ncclComm *rank, const ncclComm *owner, const char *at) {
  const Alloc *alloc = find((uintptr_t)at);
  if (M.processes[rank->chain] != M.processes[owner->chain])
    return;
  if (!M.options.no_peers && rank->device != owner->device && alloc && alloc->pool &&
      !alloc->pool->access[(size_t)rank->device])
    report("nccl pool " + owner->name,
           "NCCL: %s, on GPU %d, cannot reach into %s of %s, of a pool that is not open to it", rank->name.c_str(),
           rank->device, describe(*alloc).c_str(), owner->name.c_str());
}

/* `to` reads what `from` has sent. */
static void connect(const Place &from, const Place &to, Copy copy) {
  order_met(from, to);
  if (from != to) {
    come_after(to->move, from->arrive);
    come_after(from->leave, to->move);
  }
  must_reach(to->launch->comm, from->launch->comm, copy.from);
  must_reach(from->launch->comm, to->launch->comm, copy.to);
  to->copies.push_back(copy);
}

static void match_pair(World &w, std::pair<int, int> pair) {
  auto &sends = w.sends[pair], &receives = w.receives[pair];
  while (!sends.empty() && !receives.empty()) {
    Pending s = sends.front(), r = receives.front();
    sends.pop_front(), receives.pop_front();
    if (s.message.bytes != r.message.bytes)
      report("nccl size", "NCCL: rank %d sends %zu bytes to rank %d of %s, which receives %zu", pair.first,
             s.message.bytes, pair.second, w.name.c_str(), r.message.bytes);
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

static void place_group(const Place &p) {
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

/* Bytes that rank `to` gets from rank `from` in a collective; may be empty. */
static Copy part(const Launch &from, const Launch &to) {
  size_t n = to.bytes;
  size_t f = (size_t)from.comm->rank, t = (size_t)to.comm->rank;
  switch (to.what) {
  case What::AllGather: return {to.receive + f * n, from.send, n};
  case What::AllToAll: return {to.receive + f * n, from.send + t * n, n};
  default: return {to.receive, from.send, (int)f == to.root && to.receive != from.send ? n : 0};
  }
}

static void place_collective(const Place &p) {
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
      report("nccl collective",
             "NCCL: rank 0 of %s is in %s of %zu bytes of type %d, rank %d in %s of %zu bytes of type %d",
             w.name.c_str(), name_of(all[0]->launch->what), all[0]->launch->bytes, (int)all[0]->launch->type,
             q->launch->comm->rank, name_of(q->launch->what), q->launch->bytes, (int)q->launch->type);
  for (auto &to : all)
    for (auto &from : all) {
      Copy c = part(*from->launch, *to->launch);
      if (c.bytes)
        connect(from, to, c);
    }
  for (auto &q : all)
    less(q);
}

static void post(const Place &p) {
  ncclComm *c = p->launch->comm;
  c->placed.push_back(p);
  N.moves[p->move] = p;
  if (c->aborted) { /* its kernels see that; of a revoked one they do not: NCCL has taken the word to end back */
    complete(p);
    return;
  }
  order_placed(p);
  if (p->launch->what == What::Group)
    place_group(p);
  else
    place_collective(p);
  order_check(p);
}

/* --- Giving a launch to a stream ---------------------------------------------------------------------------------- */
static void add_ranges(const Launch &l, bool sends, std::vector<Range> &out) {
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
  if (!sends &&
      (l.what != What::Broadcast || !root || l.receive != l.send)) /* a root gets it, too, or has it in place */
    out.push_back({(uintptr_t)l.receive, l.what == What::Broadcast ? l.bytes : n * l.bytes, true});
}

ncclResult_t give(std::shared_ptr<Launch> launch, Stream &stream) {
  ncclComm *c = launch->comm;
  auto next = std::make_shared<Place>(); /* that is being placed: its three operations follow one another */
  const char *name = keep(std::string(name_of(launch->what)) + " of rank " + std::to_string(c->rank));
  Work arrive, move, leave;
  arrive.what = move.what = leave.what = name;
  add_ranges(*launch, true, arrive.ranges);
  add_ranges(*launch, false, move.ranges);
  if (stream.capture)
    c->captured.push_back(launch);
  arrive.placed = [launch, next](Id id) {
    if (launch->comm->destroyed)
      report("nccl graph launch", "NCCL: a graph is launched with what was captured of %s, which is no more",
             launch->comm->name.c_str());
    else if (launch->comm->revoked)
      report("nccl graph after revocation", "NCCL: a graph is launched with what was captured of %s, which was revoked",
             launch->comm->name.c_str());
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

void cut_off(ncclComm *c) {
  World &w = *c->world;
  while (!c->placed.empty()) {
    Place p = c->placed.front();
    for (auto *lists : {&w.sends, &w.receives})
      for (auto &entry : *lists) {
        auto &list = entry.second;
        list.erase(std::remove_if(list.begin(), list.end(), [&](const Pending &q) { return q.place == p; }),
                   list.end());
      }
    for (auto &list : w.collectives)
      list.erase(std::remove(list.begin(), list.end(), p), list.end());
    order_cut(p);
    complete(p);
  }
}

} // namespace vg::nccl
