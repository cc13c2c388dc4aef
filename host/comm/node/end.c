/* The end of a node communicator. The rank that decides it leaves the reason in its part of the block; the first one
 * counts, and all tell their callers the same. A rank looks at it before a call and between two turns of a wait. An
 * abort of what the communicator was split from ends it too, so ranks look at those as well. */
#include "comm/node/wait.h"

#include <stdio.h>

void rs_node_end(rs_node *c, reshard_status status, const char *text, const bool *missing) {
  rs_node_why *why = &rs_node_own_rank(c)->why;
  int64_t goes_on = 0, n = c->base.size;
  pthread_mutex_lock(&c->ending);
  if (atomic_load(&c->block->ended) == 0) {
    why->status = status;
    snprintf(why->text, sizeof why->text, "%s", text);
    for (int64_t r = 0; r < n; r++)
      c->losses[c->base.rank * n + r] = missing != NULL && missing[r];
    atomic_compare_exchange_strong(&c->block->ended, &goes_on, c->base.rank + 1);
  }
  pthread_mutex_unlock(&c->ending);
  rs_node_ring_all(c);
}

reshard_status rs_node_give_up(rs_node *c, reshard_status status, const bool *missing) {
  rs_node_end(c, status, reshard_last_error(), missing);
  return rs_node_check(c, true); /* another may have ended it first */
}

/* The end of the communicator, or the abort of what it was split from, written to storage; NULL: it goes on. */
static const rs_node_why *find_end(const rs_node *c, rs_node_why *storage) {
  int64_t by = atomic_load_explicit(&c->block->ended, memory_order_acquire);
  if (by != 0)
    return &c->ranks[by - 1].why;
  for (const rs_node *above = c->parent; above != NULL; above = above->parent) {
    by = atomic_load_explicit(&above->block->aborted, memory_order_acquire);
    if (by == 0)
      continue;
    storage->status = RESHARD_ERROR_PEER;
    rs_comm_abort_text(storage->text, sizeof storage->text, by - 1);
    return storage;
  }
  return NULL;
}

bool rs_node_has_ended(const rs_node *c) {
  rs_node_why storage;
  return find_end(c, &storage) != NULL;
}

/* A kernel of this rank may have waited in vain, or found another transfer: the first call after that ends the
 * communicator. */
static reshard_status end_if_late(rs_node *c, bool waits) {
  const volatile int64_t *late = &rs_node_own_rank(c)->late;
  char text[RS_CALL_TEXT];
  int64_t told = *late, rank = told > 0 ? told - 1 : -told - 1, me = rs_node_name(c, c->base.rank);
  reshard_status status;
  if (told == 0)
    return RESHARD_SUCCESS;
  for (int64_t r = 0; r < c->base.size; r++)
    c->missing[r] = rs_node_name(c, r) == rank && told > 0;
  if (told > 0)
    status = rs_comm_error_timeout(rs_node_named(c), "execute on the GPU", c->base.timeout_ms,
                                   rs_ranges_text(text, sizeof text, 1, &rank));
  else
    status = rs_error(RESHARD_ERROR_MISMATCH, "ranks %lld and %lld execute different transfers",
                      (long long)rs_min(me, rank), (long long)rs_max(me, rank));
  rs_node_end(c, status, reshard_last_error(), c->missing);
  return rs_node_check(c, waits);
}

reshard_status rs_node_check(rs_node *c, bool waits) {
  if (c->base.life.quit)
    return rs_comm_error_destroyed(&c->base);
  rs_node_why storage;
  const rs_node_why *why = find_end(c, &storage);
  if (why == NULL && c->pinned != NULL)
    RS_TRY(end_if_late(c, waits));
  if (why == NULL)
    return RESHARD_SUCCESS;
  return waits || why->status == RESHARD_ERROR_MISMATCH /* which is all ranks' error, whenever they hear of it */
             ? rs_error((reshard_status)why->status, "%s", why->text)
             : rs_error(RESHARD_ERROR_PEER, "the communicator has ended: %s", why->text);
}

void rs_node_abort(rs_node *c) {
  char text[64];
  int64_t none = 0;
  rs_comm_abort_text(text, sizeof text, c->base.rank);
  atomic_compare_exchange_strong(&c->block->aborted, &none, c->base.rank + 1);
  rs_node_end(c, RESHARD_ERROR_PEER, text, NULL);
}

int64_t rs_node_absent(reshard_comm comm, int64_t *ranks) {
  const rs_node *c = rs_node_of(comm);
  int64_t n = 0, by = atomic_load(&c->block->ended);
  for (int64_t r = 0; r < comm->size && by != 0; r++)
    if (c->losses[(by - 1) * comm->size + r])
      ranks[n++] = r;
  return n;
}
