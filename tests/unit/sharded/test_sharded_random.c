/* Sharded tensors from random layouts through random layouts (support/contracts/layout_chain.h) by threads on the CPU,
 * with every path and a cache of plans of every size. */
#include "support/contracts/layout_chain.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/sharded_ranks.h"

enum { RANKS = 8 };

static void random_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  contract_rank s = {.comm = p->comms[r], .sharder = p->sharders[r]};
  rank_result_set(&p->results[r], layout_chain_run(&s, p->user));
  p->wrong[r] = s.wrong;
}

/* Says what came out wrong, with the way that led there. */
static void check_chain(const sharded_ranks *p, const layout_chain *j) {
  for (int64_t r = 0; r < p->n; r++) {
    if (p->results[r].status == RESHARD_SUCCESS && p->wrong[r] == 0)
      continue;
    for (int64_t i = 0; i < j->n; i++)
      for (int step = 0; step < LAYOUT_CHAIN_STEPS; step++)
        print_error("tensor %d, step %d: %s\n", (int)i, step, j->stops[i][step].text);
    fail_msg("seed %llu, rank %d of %d: %d wrong, %s", (unsigned long long)j->seed, (int)r, (int)p->n, (int)p->wrong[r],
             p->results[r].text);
  }
}

CASE(random_chains_of_layouts_keep_every_element) {
  static int64_t pairs[RESHARD_LAYOUT_KIND_COUNT][RESHARD_LAYOUT_KIND_COUNT];
  int64_t cases = test_scaled(1000, 1);
  for (int64_t c = 1; c <= cases; c++) {
    rng r;
    layout_chain j;
    sharded_ranks p;
    rng_seed(&r, (uint64_t)c);
    int64_t world = rng_in(&r, 1, RANKS);
    reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT,
                                       .cached_plans = rng_in(&r, -1, 2),
                                       .workspace_limit = rng_one_in(&r, 2) ? 65536 : 0,
                                       .path = (reshard_path)rng_below(&r, 3)};
    layout_chain_draw(&r, (uint64_t)c, world, &j);
    for (int64_t i = 0; i < j.n; i++)
      for (int step = 1; step < LAYOUT_CHAIN_STEPS; step++)
        pairs[j.stops[i][step - 1].what.kind][j.stops[i][step].what.kind]++;
    sharded_ranks_open(&p, world, &options);
    sharded_ranks_run(&p, random_body, &j);
    check_chain(&p, &j);
    sharded_ranks_close(&p);
    layout_chain_free(&j);
  }
  for (int a = 0; a < RESHARD_LAYOUT_KIND_COUNT && cases >= 1000; a++)
    for (int b = 0; b < RESHARD_LAYOUT_KIND_COUNT; b++)
      if (pairs[a][b] == 0)
        fail_msg("no case from %s to %s", reshard_layout_kind_string((reshard_layout_kind)a),
                 reshard_layout_kind_string((reshard_layout_kind)b));
}

RUN_CASES
