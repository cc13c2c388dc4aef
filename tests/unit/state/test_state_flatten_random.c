/* Random nestings of sharded tensors made flat, against brute force. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/sharded_ranks.h"
#include "support/oracles/nested.h"

#include <string.h>

typedef struct random_case {
  nested_case *nested;
  reshard_tree trees[SHARDED_RANKS_MOST], flat[SHARDED_RANKS_MOST];
  reshard_layout layouts[SHARDED_RANKS_MOST]; /* of what they are flattened to */
} random_case;

/* Gathers it to all: elements that are not their number. */
static int64_t gather_wrong(reshard_sharded_tensor t) {
  reshard_metadata m = reshard_sharded_tensor_metadata(t);
  reshard_tensor out;
  reshard_tensor_info info;
  int64_t wrong = 0;
  if (reshard_tensor_create(RESHARD_I32, reshard_metadata_ndim(m), reshard_metadata_shape(m), &out) != RESHARD_SUCCESS)
    return 1;
  reshard_tensor_get_info(out, &info);
  if (info.elements > 0)
    memset(info.data, 0xff, (size_t)info.elements * sizeof(int32_t));
  if (reshard_sharded_tensor_gather_all(t, out, NULL) != RESHARD_SUCCESS)
    wrong = 1;
  for (int64_t i = 0; i < info.elements; i++)
    wrong += ((const int32_t *)info.data)[i] != (int32_t)i;
  reshard_tensor_release(out);
  return wrong;
}

static void random_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  random_case *c = p->user;
  reshard_tree flat = NULL;
  reshard_sharded_tensor t;
  reshard_status status = reshard_state_flatten_sharded_tensors_global(p->sharders[r], c->trees[r], &flat);
  rank_result_set(&p->results[r], status);
  if (status != RESHARD_SUCCESS)
    return;
  if (reshard_state_get_sharded(flat, &t) != RESHARD_SUCCESS) {
    p->wrong[r] = 1;
    return;
  }
  p->wrong[r] = nested_check(t) + nested_check_owners(c->nested, t, r, true) + gather_wrong(t);
  c->layouts[r] = reshard_layout_retain(reshard_sharded_tensor_layout(t));
  reshard_tree_release(flat);
}

CASE(random_nestings_match_brute_force) {
  enum { RANKS = 6 };
  sharded_ranks p;
  int64_t shards = 0, depths[5] = {0}, cases = test_scaled(400, 1);
  sharded_ranks_open(&p, RANKS, NULL);
  for (int64_t seed = 0; seed < cases; seed++) {
    int depth = 1 + (int)(seed % 4);
    random_case c = {.nested = nested_create((uint64_t)seed, RANKS, depth)};
    for (int64_t r = 0; r < RANKS; r++) {
      reshard_tree flat;
      reshard_sharded_tensor t;
      c.trees[r] = nested_state(c.nested, p.sharders[r], r);
      if (reshard_state_flatten_sharded_tensors(c.trees[r], &flat) != RESHARD_SUCCESS)
        fail_msg("seed %d, rank %d: %s", (int)seed, (int)r, reshard_last_error());
      GOOD(reshard_state_get_sharded(flat, &t));
      int64_t wrong = nested_check(t), owners = nested_check_owners(c.nested, t, r, false);
      if (wrong != 0 || owners != 0)
        fail_msg("seed %d, rank %d: %d elements and %d owners are wrong", (int)seed, (int)r, (int)wrong, (int)owners);
      shards += reshard_metadata_count(reshard_sharded_tensor_metadata(t));
      reshard_tree_release(flat);
    }
    sharded_ranks_run(&p, random_body, &c);
    for (int64_t r = 0; r < RANKS; r++)
      if (p.results[r].status != RESHARD_SUCCESS || p.wrong[r] != 0)
        fail_msg("seed %d, rank %d, together: %s, %d wrong", (int)seed, (int)r, p.results[r].text, (int)p.wrong[r]);
    for (int64_t r = 0; r < RANKS; r++) {
      assert_true(reshard_layout_equal(c.layouts[0], c.layouts[r]));
      reshard_tree_release(c.trees[r]);
    }
    for (int64_t r = 0; r < RANKS; r++)
      reshard_layout_release(c.layouts[r]);
    nested_free(c.nested);
    depths[depth]++;
  }
  print_message("%d nestings of depth 1 to 4 (%d each), %.1f shards on average\n", (int)cases, (int)depths[4],
                (double)shards / (double)(cases * RANKS));
  sharded_ranks_close(&p);
}

RUN_CASES
