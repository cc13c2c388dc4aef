/* Launch order of communicators that share GPUs.
 *
 * A kernel of NCCL waits on its GPU for those of its peers, and may keep the next one off it. So where two
 * communicators share GPUs, their launches have to come in one order on all of these; a parent and its children too,
 * and whatever a graph launches. Launches that exchange something have to be there together, and each launch comes
 * after those before it on its GPU: with a circle in that, some run hangs, if not this one.
 *
 * A launch is forgotten when nothing before it waits any more: no circle goes through it then. */
#include "nccl.hpp"

#include <algorithm>

namespace vg::nccl {
namespace {

/* GPUs that both have. */
int shared_gpus(const World &a, const World &b) {
  int n = 0;
  for (const ncclComm *x : a.ranks)
    n += std::any_of(b.ranks.begin(), b.ranks.end(), [x](const ncclComm *y) { return x->device == y->device; });
  return n;
}

/* Threads that launch with no order between them may do so in another order on another rank, or the next time. */
void check_threads(const Latest &latest, const ncclComm *c) {
  if (!latest.comm || latest.comm->world == c->world || self().clock.at(latest.chain) >= latest.time ||
      shared_gpus(*latest.comm->world, *c->world) < 2)
    return;
  report("nccl order of threads " + c->name,
         "NCCL: %s and %s are launched on GPU %d by %s and by %s with no order between them", latest.comm->name.c_str(),
         c->name.c_str(), c->device, M.chains[latest.chain].c_str(), self().name.c_str());
}

/* Launches that have to be there together with p, and p. */
std::vector<Placed *> together(Placed *p) {
  std::vector<Placed *> all{p};
  for (size_t i = 0; i < all.size(); i++)
    for (Placed *q : all[i]->partners)
      if (std::find(all.begin(), all.end(), q) == all.end())
        all.push_back(q);
  return all;
}

/* A launch of another communicator that is before p on one GPU and after it on another; else NULL. */
Placed *find_circle(Placed *p) {
  using Seen = std::pair<Placed *, Placed *>; /* and the launch of another communicator on the way there */
  std::set<Seen> seen;
  std::vector<Seen> todo;
  std::vector<Placed *> own = together(p);
  auto look = [&](Placed *q, Placed *other) {
    if (seen.insert({q, other}).second)
      todo.push_back({q, other});
  };
  for (Placed *q : own)
    if (q->before)
      look(q->before, nullptr);
  while (!todo.empty()) {
    auto [q, other] = todo.back();
    todo.pop_back();
    if (!other && q->launch->comm->world != p->launch->comm->world)
      other = q;
    if (std::find(own.begin(), own.end(), q) != own.end()) {
      if (other)
        return other;
      continue;
    }
    if (q->before)
      look(q->before, other);
    for (Placed *partner : q->partners)
      look(partner, other);
  }
  return nullptr;
}

/* Forgets p and those together with it, and what could not be forgotten because of them. */
void forget(Placed *first) {
  std::vector<Placed *> todo{first};
  while (!todo.empty()) {
    Placed *p = todo.back();
    todo.pop_back();
    if (N.ordered.count(p) == 0)
      continue;
    std::vector<Placed *> all = together(p);
    if (std::any_of(all.begin(), all.end(), [](Placed *q) { return q->missing > 0 || q->before; }))
      continue;
    for (Placed *q : all) {
      if (q->after) {
        q->after->before = nullptr;
        if (std::find(all.begin(), all.end(), q->after) == all.end() && q->after->missing == 0)
          todo.push_back(q->after);
      }
      Latest &latest = N.latest[q->launch->comm->device];
      if (latest.place == q)
        latest.place = nullptr;
      if (--N.ordered_worlds[q->launch->comm->world] == 0)
        N.ordered_worlds.erase(q->launch->comm->world);
    }
    for (Placed *q : all)
      N.ordered.erase(q);
  }
}

} // namespace

void order_placed(const Place &p) {
  ncclComm *c = p->launch->comm;
  Latest &latest = N.latest[c->device];
  check_threads(latest, c);
  p->before = latest.place;
  if (p->before)
    p->before->after = p.get();
  Thread &thread = self();
  latest = {p.get(), c, thread.chain, thread.clock.at(thread.chain)};
  thread.released = true;
  N.ordered[p.get()] = p;
  N.ordered_worlds[c->world]++;
}

void order_met(const Place &a, const Place &b) {
  if (a == b || std::find(a->partners.begin(), a->partners.end(), b.get()) != a->partners.end())
    return;
  a->partners.push_back(b.get());
  b->partners.push_back(a.get());
}

/* Each new circle goes through the newest launch. */
void order_check(const Place &p) {
  Placed *other = N.ordered_worlds.size() > 1 && N.ordered.count(p.get()) ? find_circle(p.get()) : nullptr;
  if (other)
    report("nccl order " + p->launch->comm->world->name + other->launch->comm->world->name,
           "NCCL: %s and %s are launched in one order on a GPU and in the opposite one on another",
           p->launch->comm->name.c_str(), other->launch->comm->name.c_str());
}

void order_complete(const Place &p) { forget(p.get()); }

void order_cut(const Place &p) {
  for (Placed *q : p->partners)
    q->partners.erase(std::find(q->partners.begin(), q->partners.end(), p.get()));
  p->partners.clear();
  p->missing = 0;
}

} // namespace vg::nccl
