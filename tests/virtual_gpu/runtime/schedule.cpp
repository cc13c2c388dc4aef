/* Operations, and the order in which they run. An operation is ready when all that it depends on has run; which ready
 * one runs next is what the policy and the seed say. Clocks are known when an operation is issued, so the checker does
 * not depend on that choice; shadows are looked at when it runs, because what a kernel touches is known only then. */
#include "machine.hpp"

#include <algorithm>

namespace vg {

void schedule_begin() {
  M.favourite = M.victim = nullptr;
  M.marks = 0;
}

Op *new_op(Stream &stream, const char *what, uint32_t chain) {
  Op *op;
  if (M.spare.empty()) {
    op = new Op{};
  } else {
    op = M.spare.back();
    M.spare.pop_back();
  }
  op->stream = &stream;
  op->device = stream.device;
  op->blockers = 1; /* until start */
  op->mark = 0;
  op->running = false;
  op->id = note(chain, 0, what);
  M.live[op->id] = op;
  return op;
}

void depend(Op *op, Id before) {
  Op *b = M.live[before];
  if (!b)
    return;
  b->next.push_back(op);
  op->deps.push_back(before);
  op->blockers++;
}

void release(Op *op) {
  if (--op->blockers == 0) {
    M.ready.push_back(op);
    tell_moved();
  }
}

void start(Op *op) {
  if (op->work.placed)
    op->blockers++;
  release(op);
  if (op->work.placed)
    op->work.placed(op->id);
}

void let_go(Id held) { release(M.live[held]); }

void come_after(Id later, Id before) {
  depend(M.live[later], before);
  learn(M.live[later], Clock(M.live[before]->clock));
}

/* Clocks have been given on already, to what was issued after it: to operations, and to streams, events and
 * waits that they are at the end of. These have all that it has: where it learns nothing, they do not. */
void learn(Op *from, const Clock &clock) {
  if (from->clock.has(clock))
    return;
  std::vector<Op *> todo{from};
  std::set<Id> reached{from->id};
  while (!todo.empty()) {
    Op *op = todo.back();
    todo.pop_back();
    op->clock.join(clock);
    for (Op *next : op->next)
      if (reached.insert(next->id).second)
        todo.push_back(next);
  }
  auto touched = [&reached](const Frontier &frontier) {
    for (Id id : frontier)
      if (reached.count(id))
        return true;
    return false;
  };
  for (auto &stream : M.streams)
    if (touched(stream->frontier))
      stream->clock.join(clock);
  for (auto &event : M.events)
    if (touched(event->frontier))
      event->clock.join(clock);
  for (Awaited *awaited : M.awaited)
    if (touched(awaited->frontier))
      awaited->clock.join(clock);
  graphs_come_after(touched, clock);
}

bool finished(const Frontier &frontier) {
  for (Id id : frontier)
    if (M.live[id])
      return false;
  return true;
}

void merge(Frontier &into, const Frontier &from) {
  for (Id id : from)
    if (M.live[id] && std::find(into.begin(), into.end(), id) == into.end())
      into.push_back(id);
}

/* The stream's next operation comes after all that the thread knows; on the legacy stream, also after all that
 * blocking streams of its device have; on those, after all that the legacy stream has. */
void arrive(Stream &stream) {
  Thread &thread = self();
  if (stream.joined_thread != thread.chain || stream.joined_version != thread.version) {
    stream.clock.join(thread.clock);
    stream.joined_thread = thread.chain;
    stream.joined_version = thread.version;
  }
  thread.released = true;
  if (!stream.blocking || stream.destroyed)
    return;
  Device &device = M.devices[(size_t)stream.device];
  if (stream.legacy) {
    for (Stream *other : device.streams)
      if (other->blocking && !other->legacy) {
        stream.clock.join(other->clock);
        merge(stream.frontier, other->frontier);
      }
  } else if (stream.joined_legacy != device.legacy->version) {
    stream.joined_legacy = device.legacy->version;
    stream.clock.join(device.legacy->clock);
    merge(stream.frontier, device.legacy->frontier);
  }
}

cudaError_t submit(Stream &stream, Work &&work, Id *id) {
  if (id)
    *id = 0;
  if (stream.capture)
    return capture_work(stream, std::move(work));
  arrive(stream);
  Op *op = new_op(stream, work.what, stream.chain);
  op->work = std::move(work);
  uint32_t time = stream.clock.at(stream.chain) + 1;
  stream.clock.set(stream.chain, time);
  M.notes[op->id].time = time;
  op->clock = stream.clock;
  for (Id before : stream.frontier)
    depend(op, before);
  stream.frontier.assign(1, op->id);
  if (stream.legacy)
    stream.version++;
  if (id)
    *id = op->id;
  start(op);
  return cudaSuccess;
}

/* --- Running ------------------------------------------------------------------------------------------------------ */
/* Kernels that poll may find what they wait for now. */
static void poll_again() {
  M.ready.insert(M.ready.end(), M.polling.begin(), M.polling.end());
  M.polling.clear();
}

static void finish(Op *op) {
  M.live[op->id] = nullptr;
  for (Op *next : op->next)
    release(next);
  op->next.clear();
  op->deps.clear();
  op->work = Work{};
  op->clock.t.clear();
  M.spare.push_back(op);
  M.counts.operations++;
  poll_again();
  tell_moved();
}

static void run_op(Op *op) {
  Work &work = op->work;
  if (M.timed)
    time_op_begins();
  bool lost = M.devices[(size_t)op->device].broken != cudaSuccess && !work.placed;
  for (const Range &range : work.ranges)
    if (!lost)
      access(op->id, op->clock, op->device, range.at, range.n, range.write, work.peers);
  if (lost) {
    /* the GPU has a fault that stays */
  } else if (work.unlocked) {
    Thread &thread = self();
    Op *before = thread.running;
    thread.running = op;
    M.unlocked_running++;
    lock_depth--;
    __real_pthread_mutex_unlock(&M.lock);
    work.run();
    __real_pthread_mutex_lock(&M.lock);
    lock_depth++;
    host_seen(thread);
    M.unlocked_running--;
    self().running = before;
  } else if (work.run) {
    if (work.watch) {
      watch_begin(*op);
      work.run();
      if (!watch_end(*op)) {
        op->running = false;
        M.polling.push_back(op);
        return;
      }
    } else {
      work.run();
    }
  }
  if (work.after)
    work.after(*op);
  if (M.timed)
    time_op_ends(*op);
  finish(op);
}

/* Position in M.ready of what runs next. */
static size_t choose(const std::vector<Op *> &ready) {
  size_t n = ready.size(), best = 0;
  switch (M.policy) {
  case VG_DEPTH_FIRST:
    for (size_t i = 0; i < n; i++)
      if (ready[i]->stream == M.favourite)
        return i;
    best = draw() % n;
    M.favourite = ready[best]->stream;
    return best;
  case VG_NEWEST_FIRST:
    for (size_t i = 1; i < n; i++)
      if (ready[i]->id > ready[best]->id)
        best = i;
    return best;
  case VG_VICTIM:
    if (!M.victim && M.streams.size())
      M.victim = M.streams[draw() % M.streams.size()].get();
    best = draw() % n;
    for (size_t i = 0; i < n && ready[best]->stream == M.victim; i++)
      best = (best + 1) % n;
    return best;
  case VG_IN_ORDER:
    for (size_t i = 1; i < n; i++)
      if (ready[i]->id < ready[best]->id)
        best = i;
    return best;
  default: return draw() % n;
  }
}

static void step(size_t at) {
  Op *op = M.ready[at];
  M.ready[at] = M.ready.back();
  M.ready.pop_back();
  op->running = true;
  digest(op->id);
  run_op(op);
}

static void mark(Id id) {
  std::vector<Id> todo{id};
  while (!todo.empty()) {
    Op *op = M.live[todo.back()];
    todo.pop_back();
    if (!op || op->mark == M.marks)
      continue;
    op->mark = M.marks;
    todo.insert(todo.end(), op->deps.begin(), op->deps.end());
  }
}

/* Positions in M.ready of what is marked. */
static std::vector<size_t> needed_now() {
  std::vector<size_t> at;
  for (size_t i = 0; i < M.ready.size(); i++)
    if (M.ready[i]->mark == M.marks)
      at.push_back(i);
  return at;
}

/* Another thread may give what is waited for (a message of a peer, a host function that runs). */
static bool wait_for_others() {
  if (M.threads <= 1 && !M.unlocked_running)
    return false;
  return wait_moved(M.options.patience_ms ? M.options.patience_ms : 10000);
}

/* Other threads, or the time, may bring what kernels poll for. */
static bool wait_to_poll(int64_t &waited) {
  int64_t patience = M.options.patience_ms ? M.options.patience_ms : 10000;
  if (M.polling.empty() || waited >= patience)
    return false;
  wait_moved(1);
  waited++;
  poll_again();
  return true;
}

bool run_until(const Frontier &target) {
  /* Half of the time nothing runs that is not needed: all else is as late as it can be. */
  bool lazy = draw() % 2;
  int64_t waited = 0, operations = M.counts.operations;
  M.marks++;
  while (!finished(target)) {
    if (operations != M.counts.operations)
      waited = 0;
    operations = M.counts.operations;
    if (M.ready.empty()) {
      if (wait_to_poll(waited))
        continue;
      if (wait_for_others())
        continue;
      if (finished(target))
        break;
      for (Id id : target)
        if (M.live[id])
          report("stuck", "stuck: the host waits for %s, which waits for what never comes", describe(id).c_str());
      return false;
    }
    if (!lazy) {
      step(choose(M.ready));
      continue;
    }
    std::vector<size_t> at = needed_now();
    if (at.empty()) { /* at first, and when others have added something */
      M.marks++;
      for (Id id : target)
        mark(id);
      at = needed_now();
    }
    std::vector<Op *> needed;
    for (size_t i : at)
      needed.push_back(M.ready[i]);
    if (needed.empty())
      lazy = false; /* it waits for what others have to do first */
    else
      step(at[choose(needed)]);
  }
  return true;
}

cudaError_t thread_awaits(Thread &thread, Awaited awaited) {
  M.awaited.push_back(&awaited);
  bool done = run_until(awaited.frontier);
  M.awaited.erase(std::find(M.awaited.begin(), M.awaited.end(), &awaited));
  if (!done)
    return cudaErrorLaunchTimeout;
  thread_joins(thread, awaited.clock);
  return cudaSuccess;
}

void run_all() {
  for (int64_t waited = 0;;) {
    while (!M.ready.empty())
      step(choose(M.ready));
    if (wait_to_poll(waited))
      continue;
    for (Op *op : M.polling)
      report("polls", "stuck: %s polls for what never comes", describe(op->id).c_str());
    M.polling.clear();
    if (!M.unlocked_running || !wait_for_others())
      return;
  }
}

bool run_some(uint64_t most) {
  uint64_t n = 0;
  poll_again();
  for (; n < most && !M.ready.empty(); n++)
    step(choose(M.ready));
  return n > 0;
}

} // namespace vg
