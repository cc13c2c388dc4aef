/* Asynchronous copies, which come as late as they may: when somebody waits for them. So what reads before it waited
 * reads poison. */
#include "executor.h"

#include <stdlib.h>

static simt_watch watch;
void simt_set_watch(simt_watch hook) { watch = hook; }

namespace simt {

void drop(queue *q) {
  while (q->first != nullptr) {
    pending *next = q->first->next;
    free(q->first);
    q->first = next;
  }
  q->end = &q->first;
}

/* Copies that nobody has waited for. */
void drop_all(executor *e) {
  bool any = e->failed;
  for (int i = 0; i < e->nmbarriers; i++)
    any = any || e->mbarriers[i].copies.first != nullptr;
  if (!any)
    return;
  simt_acquire(&e->end); // they were allocated by threads
  for (int i = 0; i < e->nmbarriers; i++)
    drop(&e->mbarriers[i].copies);
  for (int t = 0; t < e->n; t++)
    if (e->threads[t].at != IDLE) {
      drop(&e->threads[t].loads);
      drop(&e->threads[t].stores);
    }
}

static void copy_now(queue *q, int last_group) {
  while (q->first != nullptr && q->first->group <= last_group) {
    pending *p = q->first;
    if (watch != nullptr) {
      watch(p->src, p->bytes, 0);
      watch(p->dst, p->bytes, 1);
    }
    memcpy(p->dst, p->src, p->bytes); // in the order of the thread that waits for it, and checked by ASan
    q->first = p->next;
    free(p);
  }
  if (q->first == nullptr)
    q->end = &q->first;
}

static void add(queue *q, void *dst, const void *src, size_t bytes) {
  pending *p = static_cast<pending *>(malloc(sizeof *p));
  if (p == nullptr) {
    set_error("no memory for an asynchronous copy");
    fail(self);
  }
  *p = {dst, src, bytes, q->group, nullptr};
  *q->end = p;
  q->end = &p->next;
}
static void check_async(const void *shared, const void *global, size_t bytes, bool bulk) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global);
  bool fits = bulk ? bytes > 0 && bytes % 16 == 0 && bits % 16 == 0
                   : (bytes == 4 || bytes == 8 || bytes == 16) && bits % bytes == 0;
  if (fits)
    return;
  set_error("thread %d: an asynchronous copy of %zu bytes between %p and %p", self->now, bytes, global, shared);
  fail(self);
}
static queue *loads() { return &self->threads[self->now].loads; }
static queue *stores() { return &self->threads[self->now].stores; }
void async_copy(void *shared, const void *global, size_t bytes) {
  check_async(shared, global, bytes, false);
  add(loads(), shared, global, bytes);
}
void async_commit() { loads()->group++; }
void async_wait(int in_flight) { copy_now(loads(), loads()->group - 1 - in_flight); }
void bulk_store(void *global, const void *shared, size_t bytes) {
  check_async(shared, global, bytes, true);
  add(stores(), global, shared, bytes);
}
void bulk_commit() { stores()->group++; }
void bulk_wait_read(int in_flight) { copy_now(stores(), stores()->group - 1 - in_flight); }
void bulk_wait(int in_flight) { bulk_wait_read(in_flight); }

static mbarrier *find_mbarrier(uint64_t *key) {
  executor *e = self;
  for (int i = 0; i < e->nmbarriers; i++)
    if (e->mbarriers[i].key == key)
      return &e->mbarriers[i];
  set_error("thread %d uses an mbarrier that was not initialised", e->now);
  fail(e);
  return nullptr;
}
void mbarrier_init(uint64_t *key, unsigned count) {
  executor *e = self;
  if (e->nmbarriers == MOST_MBARRIERS) {
    set_error("more than %d mbarriers", MOST_MBARRIERS);
    fail(e);
  }
  mbarrier *b = &e->mbarriers[e->nmbarriers++];
  *b = {};
  b->key = key;
  b->count = count;
  b->copies.end = &b->copies.first;
}
void proxy_fence() {
  for (int i = 0; i < self->nmbarriers; i++)
    self->mbarriers[i].fenced = true;
}
/* Where all have arrived and all announced bytes are on their way the phase can end: it does so when somebody waits
 * for it, or begins the next one. */
static void mbarrier_end_phase(mbarrier *b) {
  if (b->arrived != b->count || b->announced != b->loaded)
    return;
  copy_now(&b->copies, 0);
  b->arrived = 0;
  b->announced = b->loaded = 0;
  b->phase++;
  simt_release(b);
}
static bool mbarrier_passed(mbarrier *b, unsigned parity) {
  if ((b->phase & 1) == parity)
    mbarrier_end_phase(b);
  return (b->phase & 1) != parity;
}
/* Those that wait look again whenever something has happened to the barrier. */
static void mbarrier_wake(uint64_t *key) {
  executor *e = self;
  for (int t = 0; t < e->n; t++)
    if (e->threads[t].at == AT_MBARRIER && e->threads[t].mbarrier == key)
      make_ready(e, t);
}
void mbarrier_arrive_expect(uint64_t *key, unsigned bytes) {
  mbarrier *b = find_mbarrier(key);
  if (b->arrived == b->count) { // the phase before
    simt_acquire(b);
    mbarrier_end_phase(b);
  }
  simt_release(b);
  b->announced += bytes;
  if (++b->arrived > b->count) {
    set_error("thread %d: %u arrivals at an mbarrier of %u", self->now, b->arrived, b->count);
    fail(self);
  }
  mbarrier_wake(key);
}
void mbarrier_arrive(uint64_t *key) { mbarrier_arrive_expect(key, 0); }
void bulk_load(void *shared, const void *global, size_t bytes, uint64_t *key) {
  check_async(shared, global, bytes, true);
  mbarrier *b = find_mbarrier(key);
  if (!b->fenced) {
    set_error("thread %d: no fence between an mbarrier's initialisation and a bulk copy", self->now);
    fail(self);
  }
  add(&b->copies, shared, global, bytes);
  b->loaded += static_cast<int64_t>(bytes);
  simt_release(b);
  mbarrier_wake(key);
}
void mbarrier_wait(uint64_t *key, unsigned parity, site at) {
  executor *e = self;
  mbarrier *b = find_mbarrier(key);
  thread *t = &e->threads[e->now];
  simt_acquire(b);
  while (!mbarrier_passed(b, parity)) {
    t->at = AT_MBARRIER;
    t->where = at;
    t->mbarrier = key;
    wait(e);
    simt_acquire(b);
  }
  simt_acquire(b);
}

} // namespace simt
