#include "base/base.h"
#include "bench/cli/util.h"
#include "comm/comm.h"
#include "steps.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static size_t own_bytes(const loss_transport *p, int64_t n, bool columns) {
  return (size_t)(columns ? p->rows * rs_ceil_div(p->columns, n) : rs_ceil_div(p->rows, n) * p->columns);
}

/* Bytes of a source, or of a destination, of any communicator of the trial. */
static size_t most_bytes(const loss_trial *t, bool source) {
  int64_t n = t->n > 1 ? t->n - 1 : 1; /* of those that are left each has more */
  size_t bytes = own_bytes(t->transport, n, !source && !loss_has_ring(t));
  return (size_t)rs_max((int64_t)bytes, (int64_t)own_bytes(t->transport, n, !source)) + (source ? 0 : LOSS_GUARD);
}

static char *alloc_bytes(loss_rank *me, size_t bytes, bool source) {
  if (me->t->transport->alloc != NULL)
    return me->t->transport->alloc(me, bytes, source);
  return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void free_bytes(loss_rank *me, char *at, size_t bytes, bool source) {
  if (me->t->transport->release != NULL)
    me->t->transport->release(me, at, bytes, source);
  else
    munmap(at, bytes);
}

static void copy_memory(loss_rank *me, void *dst, const void *src, size_t bytes) {
  if (me->t->transport->copy != NULL)
    me->t->transport->copy(me, dst, src, bytes);
  else
    memcpy(dst, src, bytes);
}

/* Bytes of a rank: rows that follow one another, those of the one before, or columns. */
static size_t fill_part(const loss_transport *p, char *out, int64_t n, int64_t r, bool columns) {
  int64_t wide = columns ? rs_ceil_div(p->columns, n) : p->columns, high = columns ? p->rows : rs_ceil_div(p->rows, n);
  int64_t first = columns ? rs_min(r * wide, p->columns) : 0, top = columns ? 0 : rs_min(r * high, p->rows);
  int64_t end = rs_min(first + wide, p->columns), bottom = rs_min(top + high, p->rows);
  size_t at = 0;
  for (int64_t i = top; i < bottom; i++)
    for (int64_t k = first; k < end; k++)
      out[at++] = (char)((uint64_t)(i * p->columns + k + 1) * 0x9e3779b97f4a7c15u >> 56);
  return at;
}

void loss_rank_fill_source(loss_rank *me, reshard_comm comm) {
  char *host = cli_alloc((int64_t)most_bytes(me->t, true), 1);
  size_t bytes = fill_part(me->t->transport, host, reshard_comm_size(comm), reshard_comm_rank(comm), false);
  copy_memory(me, me->src, host, bytes);
  free(host);
}

bool loss_rank_is_right(loss_rank *me, reshard_comm comm, const char *at, bool ring) {
  size_t most = most_bytes(me->t, false);
  int64_t n = reshard_comm_size(comm), r = reshard_comm_rank(comm);
  char *want = cli_alloc((int64_t)most, 2), *now = want + most;
  size_t bytes = fill_part(me->t->transport, want, n, ring ? (r + n - 1) % n : r, !ring);
  copy_memory(me, now, at, bytes);
  bool right = memcmp(now, want, bytes) == 0;
  free(want);
  return right;
}

void loss_rank_set_destination(loss_rank *me, int value) {
  size_t most = most_bytes(me->t, false);
  char *host = cli_alloc((int64_t)most, 1);
  memset(host, value, most);
  copy_memory(me, me->dst, host, most);
  free(host);
}

int64_t loss_rank_count_overwritten(loss_rank *me) {
  size_t most = most_bytes(me->t, false);
  char *host = cli_alloc((int64_t)most, 1);
  int64_t wrong = 0;
  copy_memory(me, host, me->dst, most);
  for (size_t i = 0; i < most; i++)
    wrong += host[i] != LOSS_POISON;
  free(host);
  return wrong;
}

void loss_rank_open(loss_rank *me) {
  me->src = alloc_bytes(me, most_bytes(me->t, true), true);
  me->dst = alloc_bytes(me, most_bytes(me->t, false), false);
  me->other = alloc_bytes(me, most_bytes(me->t, false), false);
}

void loss_rank_close(loss_rank *me) {
  free_bytes(me, me->src, most_bytes(me->t, true), true);
  free_bytes(me, me->dst, most_bytes(me->t, false), false);
  free_bytes(me, me->other, most_bytes(me->t, false), false);
}

void loss_rank_give_up_memory(loss_rank *me) {
  size_t bytes = most_bytes(me->t, true);
  char *src = me->src;
  loss_rank_set_destination(me, LOSS_POISON);
  me->src = alloc_bytes(me, bytes, true); /* elsewhere */
  free_bytes(me, src, bytes, true);
}
