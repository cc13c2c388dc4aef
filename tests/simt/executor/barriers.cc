/* Barriers of blocks and operations of warps: who has arrived, and what all of them bring along. A warp has one
 * operation for each mask; its values are kept in two rounds by turns, as nobody can begin the next but one before all
 * have read the last. */
#include "executor.h"

namespace simt {

/* --- Block barriers ----------------------------------------------------------------------------------------------*/
static int block_operation(site at, int vote, char kind) {
  executor *e = self;
  thread *t = &e->threads[e->now];
  unsigned phase = e->phase;
  int *votes = &e->votes[phase & 1];
  if (e->arrived == 0) {
    e->where = at;
    e->kind = kind;
    *votes = kind == '&';
  } else if (!same_site(at, e->where)) {
    set_error("thread %d is at the barrier of %s:%d, others are at that of %s:%d", e->now, base_name(at.file), at.line,
              base_name(e->where.file), e->where.line);
    fail(e);
  }
  *votes = kind == '&' ? (*votes && vote) : kind == '|' ? (*votes || vote) : *votes + (vote != 0);
  simt_release(&e->order[phase & 1]);
  t->where = at;
  if (++e->arrived < e->n) {
    t->at = AT_BLOCK;
    wait(e);
  } else {
    e->arrived = 0;
    e->phase++;
    for (int i = 0; i < e->n; i++)
      if (e->threads[i].at == AT_BLOCK)
        make_ready(e, i);
    make_ready(e, e->now); // last, so that it does not always run ahead
    wait(e);
  }
  simt_acquire(&e->order[phase & 1]);
  return *votes;
}

/* --- Warps -------------------------------------------------------------------------------------------------------*/
static unsigned alive(const executor *e, int w) {
  unsigned bits = 0;
  for (int i = 0; i < 32 && 32 * w + i < e->n; i++)
    if (e->threads[32 * w + i].at != DONE)
      bits |= 1u << i;
  return bits;
}

static void warp_complete(executor *e, int w, warp_operation *o) {
  if (o->arrived == 0 || (o->mask & alive(e, w) & ~o->arrived) != 0)
    return;
  for (int i = 0; i < 32; i++)
    if (o->arrived >> i & 1)
      make_ready(e, 32 * w + i);
  o->arrived = 0;
  o->phase++;
}

void warp_left(executor *e, int t) {
  warp *w = &e->warps[t / 32];
  for (int i = 0; i < w->n; i++)
    warp_complete(e, t / 32, &w->operations[i]);
}

static warp_operation *find_operation(executor *e, warp *w, unsigned mask, site at) {
  warp_operation *found = nullptr;
  for (int i = 0; i < w->n; i++) {
    warp_operation *o = &w->operations[i];
    if (o->mask == mask)
      found = o;
    else if (o->arrived != 0 && (o->mask & mask) != 0) {
      set_error("thread %d is at %s:%d with mask %08x, other lanes of it are at %s:%d with mask %08x", e->now,
                base_name(at.file), at.line, mask, base_name(o->where.file), o->where.line, o->mask);
      fail(e);
    }
  }
  if (found == nullptr) {
    if (w->n == WARP_MASKS) {
      set_error("more than %d masks in one warp", WARP_MASKS);
      fail(e);
    }
    found = &w->operations[w->n++];
    *found = {};
    found->mask = mask;
  }
  return found;
}

static const uint64_t *warp_operate(unsigned mask, uint64_t value, site at, bool orders) {
  executor *e = self;
  thread *t = &e->threads[e->now];
  int w = e->now / 32, lane = e->now % 32;
  if (!(mask >> lane & 1)) {
    set_error("thread %d is at %s:%d with mask %08x, in which its lane %d is not", e->now, base_name(at.file), at.line,
              mask, lane);
    fail(e);
  }
  warp_operation *o = find_operation(e, &e->warps[w], mask, at);
  unsigned phase = o->phase;
  if (o->arrived == 0) {
    o->where = at;
    for (uint64_t &lane_value : o->lanes[phase & 1])
      lane_value = 0xdbdbdbdbdbdbdbdbu;
  } else if (!same_site(at, o->where)) {
    set_error("thread %d is at the warp operation of %s:%d, others are at that of %s:%d", e->now, base_name(at.file),
              at.line, base_name(o->where.file), o->where.line);
    fail(e);
  }
  o->lanes[phase & 1][lane] = value;
  o->arrived |= 1u << lane;
  t->where = at;
  t->at = AT_WARP;
  if (orders)
    simt_release(&o->order[phase & 1]);
  warp_complete(e, w, o);
  wait(e);
  if (orders)
    simt_acquire(&o->order[phase & 1]);
  return o->lanes[phase & 1];
}

void block_barrier(site at) { block_operation(at, 0, ' '); }
int block_vote(site at, int predicate, char kind) { return block_operation(at, predicate, kind); }
void warp_barrier(unsigned mask, site at) { warp_operate(mask, 0, at, true); }
const uint64_t *warp_exchange(unsigned mask, uint64_t value, site at) { return warp_operate(mask, value, at, false); }

} // namespace simt
