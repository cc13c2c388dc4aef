/* How many chains pass bytes on, and in how many rounds (rule 11 of plans).
 *
 * With c chains of at most h - 1 domains a byte takes h hops. Rounds cost, and fill slowly where they are few: K of
 * them take X (K + 2 (h - 1)) / K of time for what X takes at once, and K + 2 (h - 1) times what a round costs. The
 * best K is the root of 2 (h - 1) X / round. X is the longest that a link is busy: the most that a rank holds of
 * destinations, over its link within; what enters a domain, shared by its ranks, and what a holder sends, to c domains
 * of those that lack it, over their links between. A rank that receives passes on as much as enters, but where each
 * domain has a chain. c is what takes the least time, or 0 where that of today's messages is less: each of the
 * domain's ranks receives for itself then. All of that follows from the layouts, without intersecting, and is the same
 * on every rank: whole nanoseconds, each quotient rounded down. */
#include "plan/held.h"
#include "plan/hops.h"
#include "plan/topology.h"

#include <stdlib.h>
#include <string.h>

/* A sum where bytes enter domains once, and one where each rank receives for itself. */
typedef struct two_sums {
  int64_t once, each;
} two_sums;

/* Bytes, summed over the entries. */
typedef struct hop_model {
  const struct reshard_plan_s *plan;
  int64_t domains;    /* [domains] each: */
  two_sums *needed;   /* of one class: arrays of the domain's ranks */
  two_sums *entering; /* what enters it */
  int64_t *had;       /* of one class: source cells there */
  int64_t *receivers; /* its ranks with destination arrays */
  int64_t *mark;      /* the number of the last cell that is seen there */
  int64_t *held;      /* [world]: destination bytes */
  two_sums *sent;     /* [world]: source bytes that leave for one domain, or for all ranks */
  int64_t most_alike; /* domains that have equally many ranks with one array */
  rs_held_pieces pieces;
  RS_VEC(int64_t) counts; /* of a cell's domains */
} hop_model;

static int64_t muldiv(int64_t a, int64_t b, int64_t by) {
  unsigned __int128 all = (unsigned __int128)(uint64_t)a * (uint64_t)b / (uint64_t)by;
  return all < INT64_MAX ? (int64_t)all : INT64_MAX;
}

static int64_t add_most(int64_t a, int64_t b) { return rs_add(a, b, &a) ? a : INT64_MAX; }

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

static void sort_values(int64_t *values, int64_t n) {
  int64_t i = 1;
  while (i < n && values[i - 1] <= values[i])
    i++;
  if (i < n)
    qsort(values, (size_t)n, sizeof *values, by_value);
}

/* The most domains with equally many ranks, of those that pieces [i, end) are in. */
static reshard_status count_alike(hop_model *m, int64_t i, int64_t end) {
  int64_t n = 0, alike = 0;
  RS_TRY(rs_vec_reserve(&m->counts, end - i));
  int64_t *counts = m->counts.at;
  for (int64_t k = i; k < end; k++)
    counts[k - i] = m->plan->nodes[m->pieces.at[k].rank];
  sort_values(counts, end - i);
  for (int64_t k = 0, from = 0; k < end - i; k++)
    if (k + 1 == end - i || counts[k + 1] != counts[k]) { /* of one domain */
      counts[n++] = k + 1 - from;
      from = k + 1;
    }
  sort_values(counts, n);
  for (int64_t k = 0; k < n; k++) {
    alike = k > 0 && counts[k] == counts[k - 1] ? alike + 1 : 1;
    m->most_alike = rs_max(m->most_alike, alike);
  }
  return RESHARD_SUCCESS;
}

/* Sums up the destination arrays of a class; cells are numbered from *cell on. */
static reshard_status add_destinations(hop_model *m, const rs_class *c, int64_t bytes, int64_t *cell) {
  const int64_t *nodes = m->plan->nodes;
  int64_t width = c->wire.width * c->entries;
  memset(m->needed, 0, (size_t)m->domains * sizeof *m->needed);
  RS_TRY(rs_class_pieces(c, false, m->plan->world, &m->pieces));
  for (int64_t i = 0, end; i < m->pieces.n; i = end, ++*cell) {
    end = cell_end(&m->pieces, i);
    RS_TRY(count_alike(m, i, end));
    for (int64_t k = i; k < end; k++) {
      const rs_held_piece *p = &m->pieces.at[k];
      m->held[p->rank] += p->elements * width;
      m->needed[nodes[p->rank]].each += p->elements * width;
      m->needed[nodes[p->rank]].once += m->mark[nodes[p->rank]] != *cell ? p->elements * width : 0;
      m->mark[nodes[p->rank]] = *cell;
    }
  }
  for (int64_t d = 0; d < m->domains; d++)
    m->needed[d].once = rs_min(m->needed[d].once, bytes);
  return RESHARD_SUCCESS;
}

/* Sums up what holders of a class send to domains without any. */
static reshard_status add_sources(hop_model *m, const rs_class *c, int64_t bytes, int64_t *cell) {
  const int64_t *nodes = m->plan->nodes;
  int64_t width = c->wire.width * c->entries, each = 0;
  two_sums all = {0, 0}, before = all, share = all; /* cells are alike, mostly */
  memset(m->had, 0, (size_t)m->domains * sizeof *m->had);
  for (int64_t d = 0; d < m->domains; d++) {
    all.once = add_most(all.once, m->needed[d].once);
    all.each = add_most(all.each, m->needed[d].each);
  }
  RS_TRY(rs_class_pieces(c, true, m->plan->world, &m->pieces));
  for (int64_t i = 0, end; i < m->pieces.n; i = end, ++*cell) {
    int64_t here = m->pieces.at[i].elements * width;
    two_sums lacking = all;
    end = cell_end(&m->pieces, i);
    for (int64_t k = i; k < end; k++) {
      int64_t d = nodes[m->pieces.at[k].rank];
      if (m->mark[d] == *cell)
        continue;
      m->mark[d] = *cell;
      m->had[d] += here;
      lacking.once -= m->needed[d].once;
      lacking.each -= m->needed[d].each;
    }
    if (i == 0 || here / (end - i) != each || lacking.once != before.once || lacking.each != before.each) {
      each = here / (end - i);
      before = lacking;
      share = (two_sums){muldiv(each, rs_min(lacking.once, bytes), bytes), muldiv(each, lacking.each, bytes)};
    }
    for (int64_t k = i; k < end; k++) {
      two_sums *sent = &m->sent[m->pieces.at[k].rank];
      sent->once += share.once;
      sent->each = add_most(sent->each, share.each);
    }
  }
  for (int64_t d = 0; d < m->domains; d++) {
    int64_t lacks = bytes - rs_min(m->had[d], bytes);
    m->entering[d].once += muldiv(m->needed[d].once, lacks, bytes);
    m->entering[d].each = add_most(m->entering[d].each, muldiv(m->needed[d].each, lacks, bytes));
  }
  return RESHARD_SUCCESS;
}

static int64_t time_of(int64_t bytes, int64_t speed) { return muldiv(bytes, 1000000000, speed); }

/* Time of a link out of a domain with c chains: c * slope + least. */
typedef struct link_time {
  int64_t slope, least;
} link_time;
static int by_falling_slope(const void *a, const void *b) {
  const link_time *x = a, *y = b;
  if (x->slope != y->slope)
    return x->slope > y->slope ? -1 : 1;
  return x->least > y->least ? -1 : x->least < y->least;
}

/* Times of links, ns. */
typedef struct link_times {
  int64_t within, entering, sending; /* the busiest: within a domain, into one, and out of one for one domain */
  int64_t each;                      /* the busiest where each rank receives for itself */
  link_time *out;                    /* of ranks that receive: those that may be the busiest for some c, falling */
  int64_t nout;
} link_times;

/* Finds the times; t->out has room for all domains. */
static void find_times(hop_model *m, link_times *t) {
  const rs_topology *topology = m->plan->topology;
  const int64_t *nodes = m->plan->nodes, between = topology->between;
  int64_t most = 0, n = 0;
  for (int64_t r = 0; r < m->plan->world; r++) {
    most = rs_max(most, m->held[r]);
    m->receivers[nodes[r]] += m->held[r] > 0;
  }
  t->within = time_of(most, topology->within);
  for (int64_t d = 0; d < m->domains; d++) {
    int64_t receivers = rs_max(1, m->receivers[d]);
    t->out[d] = (link_time){0, time_of(m->entering[d].once / receivers, between)};
    t->entering = rs_max(t->entering, t->out[d].least);
    t->each = rs_max(t->each, time_of(m->entering[d].each / receivers, between));
  }
  for (int64_t r = 0; r < m->plan->world; r++) {
    int64_t sending = time_of(m->sent[r].once, between);
    t->sending = rs_max(t->sending, sending);
    t->each = rs_max(t->each, time_of(m->sent[r].each, between));
    if (m->held[r] > 0)
      t->out[nodes[r]].slope = rs_max(t->out[nodes[r]].slope, sending);
  }
  qsort(t->out, (size_t)m->domains, sizeof *t->out, by_falling_slope);
  for (int64_t d = 0; d < m->domains; d++) /* a link that sends less, and passes on less, is not the busiest */
    if (n == 0 || t->out[d].least > t->out[n - 1].least)
      t->out[n++] = t->out[d];
  t->nout = n;
}

static int64_t root(int64_t x) {
  int64_t low = 0, high = (int64_t)1 << 31;
  RS_LOWER_BOUND(low, high, (i + 1) * (i + 1) <= x);
  return low;
}

/* The time that c chains take, of at most `most`; *rounds: those that are worth while. */
static int64_t chains_time(const link_times *t, int64_t round_ns, int64_t c, int64_t most, int64_t *rounds) {
  int64_t x = rs_max(rs_max(t->within, t->entering), muldiv(t->sending, c, 1)), later = 2 * rs_ceil_div(most, c);
  for (int64_t i = 0; c < most && i < t->nout; i++)
    x = rs_max(x, add_most(muldiv(t->out[i].slope, c, 1), t->out[i].least));
  *rounds = rs_max(1, root(muldiv(later, x, round_ns)));
  return add_most(muldiv(x, *rounds + later, *rounds), muldiv(*rounds + later, round_ns, 1));
}

static void choose_chains(const hop_model *m, const link_times *t, rs_topology *topology) {
  int64_t most = m->most_alike, round_ns = topology->round_ns, rounds, least = INT64_MAX;
  topology->chains = rs_max(0, topology->asked);
  if (most > 0 && topology->asked > 0)
    (void)chains_time(t, round_ns, rs_min(topology->asked, most), most, &topology->pipelined);
  for (int64_t c = 1; topology->asked == 0 && c <= most; c++) {
    int64_t time = chains_time(t, round_ns, c, most, &rounds);
    if (time > least)
      continue;
    least = time;
    topology->chains = c;
    topology->pipelined = rounds;
  }
  if (topology->asked == 0 && add_most(t->each, round_ns) < least)
    topology->chains = 0;
}

static reshard_status sum_up(hop_model *m) {
  int64_t cell = 1;
  for (int64_t i = 0; i < m->plan->classes.n; i++) {
    const rs_class *c = &m->plan->classes.at[i];
    int64_t bytes = rs_space_elements(&c->space) * c->wire.width * c->entries;
    if (bytes == 0)
      continue;
    RS_TRY(add_destinations(m, c, bytes, &cell));
    RS_TRY(add_sources(m, c, bytes, &cell));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_topology_choose(struct reshard_plan_s *plan) {
  rs_topology *topology = plan->topology;
  if (topology->asked == RESHARD_NO_CHAINS)
    return RESHARD_SUCCESS;
  int64_t domains = topology->domains, *sums;
  RS_TRY(rs_alloc_zero(&sums, 9 * domains + 3 * plan->world, sizeof *sums));
  two_sums *pairs = (two_sums *)sums;
  hop_model m = {.plan = plan,
                 .domains = domains,
                 .needed = pairs,
                 .entering = pairs + domains,
                 .sent = pairs + 2 * domains,
                 .had = sums + 4 * domains + 2 * plan->world};
  link_times t = {.out = (link_time *)(m.had + 3 * domains)};
  m.receivers = m.had + domains;
  m.mark = m.had + 2 * domains;
  m.held = m.had + 5 * domains;
  reshard_status status = sum_up(&m);
  if (status == RESHARD_SUCCESS) {
    find_times(&m, &t);
    choose_chains(&m, &t, topology);
  }
  free(m.pieces.at);
  free(m.counts.at);
  free(sums);
  return status;
}
