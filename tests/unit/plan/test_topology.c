/* Plans with a topology: what goes between domains and within, and the least that has to, counted element by element by
 * the oracle; chains that are chosen, beside all others; topologies that are refused. */
#include "support/fixtures/case.h"

#include "bench/verify/case_make.h"
#include "support/fixtures/layouts.h"
#include "support/fixtures/scale.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE(...) \
  ((int)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t))), (const int64_t[]) { __VA_ARGS__ }

typedef struct domains {
  int64_t n, of[ORACLE_WORLD]; /* numbered in the order of their lowest ranks */
} domains;

/* Domains with gaps in their numbers and ranks of one that are no neighbours. Written to `given` as a caller does. */
static domains draw_domains(rng *r, int64_t world, int64_t *given) {
  int64_t size = rng_in(r, 1, world), seen[ORACLE_WORLD];
  bool mixed = rng_one_in(r, 3);
  domains d = {0};
  for (int64_t i = 0; i < world; i++) {
    given[i] = (mixed ? rng_below(r, (world + size - 1) / size) : i / size) * 1000003 - 7;
    int64_t k = 0;
    while (k < d.n && seen[k] != given[i])
      k++;
    if (k == d.n)
      seen[d.n++] = given[i];
    d.of[i] = k;
  }
  return d;
}

static uint64_t domains_of(const domains *d, uint64_t ranks) {
  uint64_t bits = 0;
  for (; ranks != 0; ranks &= ranks - 1)
    bits |= (uint64_t)1 << d->of[__builtin_ctzll(ranks)];
  return bits;
}

/* Adds up the least that leaves and enters, over the elements of one entry. */
static void count_entry(const case_plan *c, const case_entry *e, const domains *d, int64_t *leaving,
                        int64_t *entering) {
  int64_t n = 1, width = (int64_t)reshard_dtype_size(e->dtype);
  for (int k = 0; k < e->src.described.ndim; k++)
    n *= e->src.described.shape[k];
  uint64_t *src = cli_alloc(rs_max(n, 1), sizeof *src), *dst = cli_alloc(rs_max(n, 1), sizeof *dst);
  mark_ranks(&e->src.buffers, c->world, src);
  mark_ranks(&e->dst.buffers, c->world, dst);
  for (int64_t i = 0; i < n; i++) {
    uint64_t lacking = domains_of(d, dst[i]) & ~domains_of(d, src[i]);
    *leaving += lacking != 0 ? width : 0;
    for (; lacking != 0; lacking &= lacking - 1)
      entering[__builtin_ctzll(lacking)] += width;
  }
  free(src);
  free(dst);
}

static void check_counts(uint64_t seed) {
  case_choices fixed = {0};
  case_plan c;
  rs_text why = {0};
  rng r;
  int64_t given[ORACLE_WORLD], leaving = 0, entering[ORACLE_WORLD] = {0}, sum[3] = {0}, enters[ORACLE_WORLD] = {0};
  if (!case_make(seed, &fixed, &c, &why))
    fail_msg("seed %llu: %s", (unsigned long long)seed, why.at);
  rng_seed(&r, seed ^ 0x746f706fu);
  domains d = draw_domains(&r, c.world, given);
  reshard_topology topology = RESHARD_TOPOLOGY_DEFAULTS;
  topology.ranks = c.world;
  topology.domain = given;
  reshard_plan_options options = c.options;
  options.topology = &topology;
  options.nodes = rng_one_in(&r, 2) ? d.of : NULL;
  reshard_entry *entries = case_entries(&c);
  for (int64_t i = 0; i < c.nentries; i++)
    count_entry(&c, &c.entry[i], &d, &leaving, entering);
  for (int64_t rank = 0; rank < c.world && c.nentries > 0; rank++) {
    reshard_plan plan;
    reshard_plan_info info;
    int64_t between[2] = {0, 0}, within[2] = {0, 0};
    if (reshard_plan_create(c.nentries, entries, rank, &options, &plan) != RESHARD_SUCCESS)
      fail_msg("seed %llu: %s", (unsigned long long)seed, reshard_last_error());
    assert_int_equal(reshard_plan_get_info(plan, &info), RESHARD_SUCCESS);
    for (int64_t i = 0, peer, sent, received; i < info.peers; i++) {
      assert_int_equal(reshard_plan_peer(plan, i, &peer, &sent, &received), RESHARD_SUCCESS);
      int64_t *there = d.of[peer] == d.of[rank] ? within : between;
      there[0] += sent;
      there[1] += received;
    }
    assert_int_equal(info.domains, d.n);
    assert_int_equal(info.domain, d.of[rank]);
    assert_true(info.between_sent_bytes == between[0] && info.between_received_bytes == between[1]);
    assert_true(info.within_sent_bytes == within[0] && info.within_received_bytes == within[1]);
    sum[0] += info.leaving_bytes;
    sum[1] += info.leaving_least_bytes;
    sum[2] += info.between_received_bytes;
    enters[d.of[rank]] += info.entering_least_bytes;
    reshard_plan_destroy(plan);
  }
  if (sum[1] != leaving || sum[0] != sum[2] || sum[0] < leaving)
    fail_msg("seed %llu: %lld bytes leave, the least is %lld, counted %lld", (unsigned long long)seed,
             (long long)sum[0], (long long)leaving, (long long)sum[1]);
  for (int64_t k = 0; k < d.n; k++)
    if (enters[k] != entering[k])
      fail_msg("seed %llu: the least that enters domain %lld is %lld, counted %lld", (unsigned long long)seed,
               (long long)k, (long long)entering[k], (long long)enters[k]);
  free(entries);
  case_free(&c);
}

static void least_bytes_of_domains_are_those_of_elements(void **unused) {
  (void)unused;
  for (int64_t i = 0, n = (int64_t)(1000 * test_scale()); i <= n; i++)
    check_counts(700000 + (uint64_t)i);
}

/* A reshard of 4 ranks with a topology; what the error says is in reshard_last_error. */
static reshard_status plan_with(const reshard_topology *topology, const int64_t *nodes, reshard_plan *plan) {
  reshard_layout src = layout_from_text("chunk(0)", SHAPE(8, 8), 4), dst = layout_from_text("chunk(1)", SHAPE(8, 8), 4);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U8};
  reshard_plan_options options = {RESHARD_PLAN_OPTIONS_INIT, .topology = topology, .nodes = nodes};
  reshard_status status = reshard_plan_create(1, &entry, 1, &options, plan);
  reshard_layout_release(src);
  reshard_layout_release(dst);
  return status;
}

static void topologies_that_do_not_fit_are_refused_with_their_numbers(void **unused) {
  (void)unused;
  const int64_t domain[4] = {7, 7, -2, -2};
  const reshard_topology good = {RESHARD_TOPOLOGY_INIT, 4, domain, 50, 900, 30, 0};
  const struct {
    reshard_topology topology;
    int64_t nodes[4];
    const char *says;
  } bad[] = {
      {{RESHARD_TOPOLOGY_INIT, 3, domain, 50, 900, 30, 0}, {0}, "domains of 3 ranks, the world has 4"},
      {{RESHARD_TOPOLOGY_INIT, 5, domain, 50, 900, 30, 0}, {0}, "domains of 5 ranks, the world has 4"},
      {{RESHARD_TOPOLOGY_INIT, 4, NULL, 50, 900, 30, 0}, {0}, "domains of 0 ranks, the world has 4"},
      {{RESHARD_TOPOLOGY_INIT, 4, domain, 0, 900, 30, 0}, {0}, "a speed of 0 bytes a second between"},
      {{RESHARD_TOPOLOGY_INIT, 4, domain, 50, -5, 30, 0}, {0}, "a speed of -5 bytes a second within"},
      {{RESHARD_TOPOLOGY_INIT, 4, domain, 50, 900, 0, 0}, {0}, "a round costs 0 ns"},
      {{RESHARD_TOPOLOGY_INIT, 4, domain, 50, 900, 30, 3}, {0}, "3 chains, it has 2 domains"},
      {{RESHARD_TOPOLOGY_INIT, 4, domain, 50, 900, 30, -2}, {0}, "-2 chains, it has 2 domains"},
      {{8, 4, domain, 50, 900, 30, 0}, {0}, "size field 8"},
      {good, {5, 5, 3, 5}, "rank 3 is on node 5, the 0th from rank 0 on; the topology has it in the 1th"},
  };
  reshard_plan plan = NULL;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    bool mapped = bad[i].nodes[0] != 0;
    assert_int_equal(plan_with(&bad[i].topology, mapped ? bad[i].nodes : NULL, &plan), RESHARD_ERROR_INVALID);
    assert_null(plan);
    if (strstr(reshard_last_error(), bad[i].says) == NULL)
      fail_msg("'%s' does not say '%s'", reshard_last_error(), bad[i].says);
  }
  const int64_t same[4] = {3, 3, 1, 1};
  assert_int_equal(plan_with(&good, same, &plan), RESHARD_SUCCESS);
  reshard_plan_destroy(plan);
}

/* Its domains are the nodes: nothing else changes where nothing is passed on, of the way back neither. */
static void domains_are_the_nodes_of_a_plan(void **unused) {
  (void)unused;
  const int64_t nodes[6] = {0, 0, 0, 1, 1, 1};
  reshard_topology topology = RESHARD_TOPOLOGY_DEFAULTS;
  topology.ranks = 6;
  topology.domain = nodes;
  reshard_layout src = layout_from_text("mesh(2x3;R,S0)", SHAPE(12, 30), 6),
                 dst = layout_from_text("mesh(6;S1)", SHAPE(12, 30), 6);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U8};
  const reshard_plan_options options[2] = {{RESHARD_PLAN_OPTIONS_INIT, .nodes = nodes},
                                           {RESHARD_PLAN_OPTIONS_INIT, .topology = &topology}};
  for (int64_t rank = 0; rank < 6; rank++) {
    reshard_plan plan[2], back;
    reshard_plan_info info[2];
    for (int k = 0; k < 2; k++) {
      assert_int_equal(reshard_plan_create(1, &entry, rank, &options[k], &plan[k]), RESHARD_SUCCESS);
      assert_int_equal(reshard_plan_get_info(plan[k], &info[k]), RESHARD_SUCCESS);
    }
    assert_true(info[0].peers == info[1].peers && info[0].domains == 0 && info[1].domains == 2);
    assert_int_equal(info[1].between_received_bytes, 0); /* each node has all of the source */
    assert_int_equal(info[1].within_received_bytes, info[0].received_bytes);
    for (int64_t i = 0; i < info[0].peers; i++) {
      int64_t a[3], b[3];
      assert_int_equal(reshard_plan_peer(plan[0], i, &a[0], &a[1], &a[2]), RESHARD_SUCCESS);
      assert_int_equal(reshard_plan_peer(plan[1], i, &b[0], &b[1], &b[2]), RESHARD_SUCCESS);
      assert_memory_equal(a, b, sizeof a);
    }
    assert_int_equal(reshard_plan_reverse(plan[1], &back), RESHARD_SUCCESS);
    assert_int_equal(reshard_plan_get_info(back, &info[0]), RESHARD_SUCCESS);
    assert_int_equal(info[0].domains, 2);
    reshard_plan_destroy(back);
    for (int k = 0; k < 2; k++)
      reshard_plan_destroy(plan[k]);
  }
  reshard_layout_release(src);
  reshard_layout_release(dst);
}

/* --- Chains ------------------------------------------------------------------------------------------------------- */

/* Trainers, each with rows of a matrix, to engines that are replicas of a few parts. The model counts domains with
 * equally many receivers of an array, so domains are full. */
typedef struct fleet {
  int64_t trainers, engines, parts, rows, columns, domain;
  reshard_topology topology;
} fleet;

/* Time of the busiest link, ns, stretched by rounds of later hops, and of the rounds; *chains: of the plan. */
static double fleet_time(const fleet *f, int64_t asked, int64_t *chains) {
  enum { MOST = 96 };
  const int64_t shape[2] = {f->rows, f->columns}, world = f->trainers + f->engines * f->parts;
  char text[64];
  int64_t domain[MOST], streams = 0, rounds = 0, hops = 1;
  double busy = 0;
  reshard_plan plan[MOST];
  reshard_plan_info info;
  assert_true(world <= MOST);
  for (int64_t r = 0; r < world; r++)
    domain[r] = r / f->domain;
  reshard_topology t = f->topology;
  t.ranks = world;
  t.domain = domain;
  t.chains = asked;
  snprintf(text, sizeof text, "chunk(0;0-%d)", (int)f->trainers - 1);
  reshard_layout src = layout_from_text(text, 2, shape, world);
  snprintf(text, sizeof text, "mesh(%dx%d@%d-%d;R,S1)", (int)f->engines, (int)f->parts, (int)f->trainers,
           (int)world - 1);
  reshard_layout dst = layout_from_text(text, 2, shape, world);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_BF16};
  reshard_plan_options options = {RESHARD_PLAN_OPTIONS_INIT, .topology = &t};
  assert_int_equal(reshard_plan_create_all(1, &entry, world, NULL, &options, plan), RESHARD_SUCCESS);
  for (int64_t r = 0; r < world; r++) {
    assert_int_equal(reshard_plan_get_info(plan[r], &info), RESHARD_SUCCESS);
    streams = rs_max(streams, info.streams);
    hops = rs_max(hops, info.hops);
    busy = fmax(busy, 1e9 * (double)rs_max(info.between_sent_bytes, info.between_received_bytes) / (double)t.between);
    busy = fmax(busy, 1e9 * (double)rs_max(info.within_sent_bytes, info.within_received_bytes) / (double)t.within);
    *chains = info.chains;
  }
  for (int64_t r = 0; r < world; r++) {
    assert_int_equal(reshard_plan_get_info_at(plan[r], 0, streams, &info), RESHARD_SUCCESS);
    rounds = rs_max(rounds, info.rounds);
    reshard_plan_destroy(plan[r]);
  }
  reshard_layout_release(src);
  reshard_layout_release(dst);
  double steps = (double)(rounds + 2 * (hops - 1));
  return busy * steps / (double)rounds + steps * (double)t.round_ns;
}

static void chosen_chains_take_little_more_time_than_the_best(void **unused) {
  (void)unused;
  int64_t taken = 0, passing = 0;
  double worst = 1;
  for (uint64_t seed = 1; taken < rs_max(1, (int64_t)(12 * test_scale())); seed++) {
    rng r;
    rng_seed(&r, seed);
    fleet f = {.domain = (int64_t)2 << rng_below(&r, 4)};
    f.parts = (int64_t)1 << rng_below(&r, 3);
    f.trainers = f.domain * rng_in(&r, 1, 16 / f.domain);
    f.engines = f.domain * rng_in(&r, 1, 32 / f.domain) / f.parts;
    f.rows = rng_in(&r, 1, 64) << 12;
    f.columns = rng_in(&r, 1, 16) << 12;
    f.topology = (reshard_topology)RESHARD_TOPOLOGY_DEFAULTS;
    f.topology.between = rng_in(&r, 10, 100) * 1000000000;
    f.topology.within = f.topology.between * rng_in(&r, 4, 20);
    f.topology.round_ns = rng_in(&r, 5, 50) * 1000;
    int64_t chains, one, domains = (f.trainers + f.engines * f.parts + f.domain - 1) / f.domain;
    double chosen = fleet_time(&f, 0, &chains), best = fleet_time(&f, RESHARD_NO_CHAINS, &one);
    if (chosen < 1e7)
      continue;
    taken++;
    passing += chains > 0;
    assert_int_equal(one, 0);
    for (int64_t c = 1; c <= domains; c++) {
      best = fmin(best, fleet_time(&f, c, &one));
      assert_int_equal(one, c);
    }
    worst = fmax(worst, chosen / best);
    if (chosen > 1.15 * best)
      fail_msg("seed %llu: %lld chains of %lld domains take %.3f ms, the best %.3f", (unsigned long long)seed,
               (long long)chains, (long long)domains, 1e-6 * chosen, 1e-6 * best);
  }
  print_message("%lld cases, %lld of them with chains; the chosen take %.3f x the best at most\n", (long long)taken,
                (long long)passing, worst);
  assert_true(taken < 12 || passing > taken / 2);
}

/* E(c) by hand: 100 bytes/s between and 1,000 within, a round costs 1 ms. */
static void chains_are_chosen_by_the_least_time(void **unused) {
  (void)unused;
  const struct {
    int64_t trainers, engines, domain, chains;
  } fleets[] = {
      {2, 4, 2, 1},  /* one trainer's half to two domains is as much as enters a rank of them in a chain */
      {16, 4, 4, 0}, /* one replica of each domain, and links to spare */
      {8, 8, 8, 1},  /* one domain of receivers: they share what enters */
      {1, 1, 1, 0},  /* a copy */
  };
  for (size_t i = 0; i < sizeof fleets / sizeof *fleets; i++) {
    fleet f = {fleets[i].trainers, fleets[i].engines, 1, 1024, 1024, fleets[i].domain, RESHARD_TOPOLOGY_DEFAULTS};
    if (i == 1)
      f.parts = 4;
    f.topology.between = 100;
    f.topology.within = 1000;
    f.topology.round_ns = 1000000;
    int64_t chains;
    (void)fleet_time(&f, 0, &chains);
    if (chains != fleets[i].chains)
      fail_msg("fleet %d: %lld chains, not %lld", (int)i, (long long)chains, (long long)fleets[i].chains);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(least_bytes_of_domains_are_those_of_elements),
                                     cmocka_unit_test(chosen_chains_take_little_more_time_than_the_best),
                                     cmocka_unit_test(chains_are_chosen_by_the_least_time),
                                     cmocka_unit_test(topologies_that_do_not_fit_are_refused_with_their_numbers),
                                     cmocka_unit_test(domains_are_the_nodes_of_a_plan)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
