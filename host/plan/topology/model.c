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
#include "base/order.h"
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
  int64_t domains;        /* [domains] each: */
  two_sums *needed;       /* of one class: arrays of the domain's ranks */
  two_sums *entering;     /* what enters it */
  int64_t *had;           /* of one class: source cells there */
  int64_t *receivers;     /* its ranks with destination arrays */
  int64_t *mark;          /* the number of the last cell that is seen there */
  int64_t *held;          /* [world]: destination bytes */
  two_sums *sent;         /* [world]: source bytes that leave for one domain, or for all ranks */
  int64_t most_alike;     /* domains that have equally many ranks with one array */
  int64_t cell;           /* the number of the cell that is seen */
  int64_t width;          /* of one class: bytes of an element in all entries */
  int64_t bytes;          /* of one class */
  two_sums all;           /* of one class: `needed` of all domains */
  RS_VEC(int64_t) counts; /* of a cell's domains */
} hop_model;

static int64_t muldiv(int64_t a, int64_t b, int64_t by) {
  unsigned __int128 all = (unsigned __int128)(uint64_t)a * (uint64_t)b / (uint64_t)by;
  return all < INT64_MAX ? (int64_t)all : INT64_MAX;
}

static int64_t add_most(int64_t a, int64_t b) { return rs_add(a, b, &a) ? a : INT64_MAX; }

static void sort_values(int64_t *values, int64_t n) {
  int64_t i = 1;
  while (i < n && values[i - 1] <= values[i])
    i++;
  if (i < n)
    qsort(values, (size_t)n, sizeof *values, rs_order_numbers);
}

/* The most domains with equally many ranks, of those that holders of a cell are in. */
static reshard_status count_alike(hop_model *m, const rs_holder *holders, int64_t nholders) {
  int64_t n = 0, alike = 0;
  RS_TRY(rs_vec_reserve(&m->counts, nholders));
  int64_t *counts = m->counts.at;
  for (int64_t k = 0; k < nholders; k++)
    counts[k] = m->plan->nodes[holders[k].rank];
  sort_values(counts, nholders);
  for (int64_t k = 0, from = 0; k < nholders; k++)
    if (k + 1 == nholders || counts[k + 1] != counts[k]) { /* of one domain */
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

/* Sums up the destination arrays of a cell. */
static reshard_status add_destination(void *user, int64_t elements, const rs_holder *holders, int64_t n) {
  hop_model *m = user;
  int64_t bytes = elements * m->width;
  m->cell++;
  for (int64_t k = 0; k < n; k++) {
    int64_t d = m->plan->nodes[holders[k].rank];
    m->held[holders[k].rank] += bytes;
    m->needed[d].each += bytes;
    m->needed[d].once += m->mark[d] != m->cell ? bytes : 0;
    m->mark[d] = m->cell;
  }
  return count_alike(m, holders, n);
}

/* Sums up what holders of a source cell send to domains without any. */
static reshard_status add_source(void *user, int64_t elements, const rs_holder *holders, int64_t n) {
  hop_model *m = user;
  int64_t here = elements * m->width, each = here / n;
  two_sums lacking = m->all;
  m->cell++;
  for (int64_t k = 0; k < n; k++) {
    int64_t d = m->plan->nodes[holders[k].rank];
    if (m->mark[d] == m->cell)
      continue;
    m->mark[d] = m->cell;
    m->had[d] += here;
    lacking.once -= m->needed[d].once;
    lacking.each -= m->needed[d].each;
  }
  two_sums share = {muldiv(each, rs_min(lacking.once, m->bytes), m->bytes), muldiv(each, lacking.each, m->bytes)};
  for (int64_t k = 0; k < n; k++) {
    two_sums *sent = &m->sent[holders[k].rank];
    sent->once += share.once;
    sent->each = add_most(sent->each, share.each);
  }
  return RESHARD_SUCCESS;
}

/* Sums up a class. */
static reshard_status add_class(hop_model *m, const rs_class *c) {
  m->width = c->wire.width * c->entries;
  m->bytes = rs_space_elements(&c->space) * m->width;
  m->all = (two_sums){0, 0};
  memset(m->needed, 0, (size_t)m->domains * sizeof *m->needed);
  memset(m->had, 0, (size_t)m->domains * sizeof *m->had);
  RS_TRY(rs_class_visit_held(c, false, add_destination, m));
  for (int64_t d = 0; d < m->domains; d++) {
    m->needed[d].once = rs_min(m->needed[d].once, m->bytes);
    m->all.once = add_most(m->all.once, m->needed[d].once);
    m->all.each = add_most(m->all.each, m->needed[d].each);
  }
  RS_TRY(rs_class_visit_held(c, true, add_source, m));
  for (int64_t d = 0; d < m->domains && m->bytes > 0; d++) {
    int64_t lacks = m->bytes - rs_min(m->had[d], m->bytes);
    m->entering[d].once += muldiv(m->needed[d].once, lacks, m->bytes);
    m->entering[d].each = add_most(m->entering[d].each, muldiv(m->needed[d].each, lacks, m->bytes));
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
  int order = RS_ORDER(y->slope, x->slope);
  return order != 0 ? order : RS_ORDER(y->least, x->least);
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
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < plan->classes.n; i++)
    RS_THEN(status, add_class(&m, &plan->classes.at[i]));
  if (status == RESHARD_SUCCESS) {
    find_times(&m, &t);
    choose_chains(&m, &t, topology);
  }
  free(m.counts.at);
  free(sums);
  return status;
}
