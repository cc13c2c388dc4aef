/* How many rounds are worth while where bytes are passed on (rule 11 of plans).
 *
 * Rounds cost, and fill slowly where they are few: with h hops K rounds take X (K + 2 (h - 1)) / K of time for what X
 * takes at once, and K + 2 (h - 1) times what a round costs. The best K is the root of 2 (h - 1) X / round. X is the
 * longest that a link is busy: the most that a rank holds of destinations, over its link within; what enters a domain,
 * shared by its ranks, and what a holder sends to all domains that lack it, over their links between. All of that
 * follows from the layouts, without intersecting, and is the same on every rank. */
#include "plan/held.h"
#include "plan/hops.h"
#include "plan/topology.h"

#include <stdlib.h>
#include <string.h>

/* Bytes, summed over the entries. */
typedef struct hop_model {
  const struct reshard_plan_s *plan;
  int64_t domains;         /* [domains] each: */
  int64_t *distinct, *had; /* of one class: arrays of the domain's ranks, equal ones once; of source cells there */
  int64_t *entering;       /* what has to enter it */
  int64_t *receivers;      /* its ranks with destination arrays */
  int64_t *mark;           /* the number of the last cell that is seen there */
  int64_t *held, *sent;    /* [world]: destination bytes; source bytes that leave, as often as they leave */
  int64_t most_alike;      /* domains that have equally many ranks with one array */
  rs_held_pieces pieces;
} hop_model;

static int64_t muldiv(int64_t a, int64_t b, int64_t by) {
  unsigned __int128 all = (unsigned __int128)(uint64_t)a * (uint64_t)b / (uint64_t)by;
  return all < INT64_MAX ? (int64_t)all : INT64_MAX;
}

/* End of the pieces of a cell that begins at i. */
static int64_t cell_end(const rs_held_pieces *p, int64_t i) {
  int64_t end = i + 1;
  while (end < p->n && p->at[end].cell == p->at[i].cell)
    end++;
  return end;
}

static int by_value(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

/* The most domains with equally many ranks, of those that pieces [i, end) are in. count: [domains], zero. */
static reshard_status count_alike(hop_model *m, int64_t i, int64_t end) {
  int64_t *counts, n = 0, alike = 0;
  RS_TRY(rs_alloc(&counts, end - i + 1, sizeof *counts));
  for (int64_t k = i; k < end; k++)
    counts[k - i] = m->plan->nodes[m->pieces.at[k].rank];
  qsort(counts, (size_t)(end - i), sizeof *counts, by_value);
  for (int64_t k = 0, from = 0; k < end - i; k++)
    if (k + 1 == end - i || counts[k + 1] != counts[k]) { /* of one domain */
      counts[n++] = k + 1 - from;
      from = k + 1;
    }
  qsort(counts, (size_t)n, sizeof *counts, by_value);
  for (int64_t k = 0; k < n; k++) {
    alike = k > 0 && counts[k] == counts[k - 1] ? alike + 1 : 1;
    m->most_alike = rs_max(m->most_alike, alike);
  }
  free(counts);
  return RESHARD_SUCCESS;
}

/* Sums up the destination arrays of a class; cells are numbered from *cell on. */
static reshard_status add_destinations(hop_model *m, const rs_class *c, int64_t bytes, int64_t *cell) {
  const int64_t *nodes = m->plan->nodes;
  int64_t width = c->wire.width * c->entries;
  memset(m->distinct, 0, (size_t)m->domains * sizeof *m->distinct);
  RS_TRY(rs_class_pieces(c, false, m->plan->world, &m->pieces));
  for (int64_t i = 0, end; i < m->pieces.n; i = end, ++*cell) {
    end = cell_end(&m->pieces, i);
    RS_TRY(count_alike(m, i, end));
    for (int64_t k = i; k < end; k++) {
      const rs_held_piece *p = &m->pieces.at[k];
      m->held[p->rank] += p->elements * width;
      m->distinct[nodes[p->rank]] += m->mark[nodes[p->rank]] != *cell ? p->elements * width : 0;
      m->mark[nodes[p->rank]] = *cell;
    }
  }
  for (int64_t d = 0; d < m->domains; d++)
    m->distinct[d] = rs_min(m->distinct[d], bytes);
  return RESHARD_SUCCESS;
}

/* Sums up what holders of a class send to domains without any. */
static reshard_status add_sources(hop_model *m, const rs_class *c, int64_t bytes, int64_t *cell) {
  const int64_t *nodes = m->plan->nodes;
  int64_t width = c->wire.width * c->entries, all = 0;
  memset(m->had, 0, (size_t)m->domains * sizeof *m->had);
  for (int64_t d = 0; d < m->domains; d++)
    if (!rs_add(all, m->distinct[d], &all))
      all = INT64_MAX;
  RS_TRY(rs_class_pieces(c, true, m->plan->world, &m->pieces));
  for (int64_t i = 0, end; i < m->pieces.n; i = end, ++*cell) {
    int64_t lacking = all, here = m->pieces.at[i].elements * width;
    end = cell_end(&m->pieces, i);
    for (int64_t k = i; k < end; k++) {
      int64_t d = nodes[m->pieces.at[k].rank];
      if (m->mark[d] == *cell)
        continue;
      m->mark[d] = *cell;
      m->had[d] += here;
      lacking -= m->distinct[d];
    }
    for (int64_t k = i; k < end; k++)
      m->sent[m->pieces.at[k].rank] += muldiv(here / (end - i), rs_min(lacking, bytes), bytes);
  }
  for (int64_t d = 0; d < m->domains; d++)
    m->entering[d] += muldiv(m->distinct[d], bytes - rs_min(m->had[d], bytes), bytes);
  return RESHARD_SUCCESS;
}

static int64_t time_of(int64_t bytes, int64_t speed) { return muldiv(bytes, 1000000000, speed); }

/* The time that the busiest link is busy, ns. */
static int64_t busiest_time(hop_model *m) {
  const rs_topology *t = m->plan->topology;
  int64_t x = 0, most = 0;
  for (int64_t r = 0; r < m->plan->world; r++) {
    most = rs_max(most, m->held[r]);
    m->receivers[m->plan->nodes[r]] += m->held[r] > 0;
    x = rs_max(x, muldiv(time_of(m->sent[r], t->between), rs_max(1, m->most_alike), 1));
  }
  for (int64_t d = 0; d < m->domains; d++)
    x = rs_max(x, time_of(m->entering[d] / rs_max(1, m->receivers[d]), t->between));
  return rs_max(x, time_of(most, t->within));
}

static int64_t root(int64_t x) {
  int64_t low = 0, high = (int64_t)1 << 31;
  RS_LOWER_BOUND(low, high, (i + 1) * (i + 1) <= x);
  return low;
}

static reshard_status sum_up(hop_model *m, int64_t *x) {
  int64_t cell = 1;
  for (int64_t i = 0; i < m->plan->classes.n; i++) {
    const rs_class *c = &m->plan->classes.at[i];
    int64_t bytes = rs_space_elements(&c->space) * c->wire.width * c->entries;
    if (bytes == 0)
      continue;
    RS_TRY(add_destinations(m, c, bytes, &cell));
    RS_TRY(add_sources(m, c, bytes, &cell));
  }
  *x = busiest_time(m);
  return RESHARD_SUCCESS;
}

reshard_status rs_hops_pipeline(const struct reshard_plan_s *plan, int64_t *rounds) {
  int64_t domains = plan->topology->domains, x = 0, *sums;
  RS_TRY(rs_alloc_zero(&sums, 5 * domains + 2 * plan->world, sizeof *sums));
  hop_model m = {.plan = plan,
                 .domains = domains,
                 .distinct = sums,
                 .had = sums + domains,
                 .entering = sums + 2 * domains,
                 .receivers = sums + 3 * domains,
                 .mark = sums + 4 * domains,
                 .held = sums + 5 * domains,
                 .sent = sums + 5 * domains + plan->world};
  reshard_status status = sum_up(&m, &x);
  *rounds = rs_max(1, root(muldiv(x, 2, plan->topology->round_ns)));
  free(m.pieces.at);
  free(sums);
  return status;
}
