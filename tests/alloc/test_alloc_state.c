/* The k-th allocation fails, for every k, in every call on state dicts but saving and loading. */
#include "base/base.h"
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/sharded_ranks.h"
#include "support/oracles/nested.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void tree_drop(fault_output *out) { reshard_tree_release(out->object); }

/* --- Nested tensors ------------------------------------------------------------------------------------------- */

enum { RANKS = 3 };

typedef struct world {
  reshard_comm alone;
  reshard_sharder sharder;
  reshard_metadata outer;
  reshard_shard shards[2];
  reshard_tree inner[2], tree;
} world;

static reshard_tree own(reshard_sharder sharder, const char *layout, int64_t n, const int64_t *shape) {
  static const reshard_properties i32 = {.dtype = RESHARD_I32};
  reshard_layout cut;
  reshard_sharded_tensor t;
  reshard_tree s;
  assert_int_equal(reshard_layout_parse(layout, 2, shape, n, &cut), RESHARD_SUCCESS);
  assert_int_equal(reshard_sharded_tensor_empty(sharder, cut, &i32, NULL, &t), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_sharded(t, &s), RESHARD_SUCCESS);
  reshard_sharded_tensor_release(t);
  reshard_layout_release(cut);
  return s;
}

/* One rank that has all, so that flattening together is a call of one thread. */
static void open_world(world *w) {
  static const reshard_properties i32 = {.dtype = RESHARD_I32};
  static const int64_t shape[2] = {8, 3}, half[2] = {4, 3};
  reshard_tree list, nested;
  assert_int_equal(reshard_comm_create_local(1, NULL, &w->alone), RESHARD_SUCCESS);
  assert_int_equal(reshard_sharder_create(w->alone, NULL, &w->sharder), RESHARD_SUCCESS);
  for (int k = 0; k < 2; k++) {
    w->shards[k] = (reshard_shard){{{4 * k, 0}, {4, 3}}, {0, RESHARD_DEVICE_CPU, -1}};
    w->inner[k] = own(w->sharder, k == 0 ? "cyclic(1x1;2x2)" : "flat()", 1, half);
  }
  assert_int_equal(reshard_metadata_create(&i32, 2, shape, 2, w->shards, &w->outer), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_nested(w->sharder, w->outer, 2, w->shards, w->inner, &nested), RESHARD_SUCCESS);
  assert_int_equal(reshard_tree_list(&list), RESHARD_SUCCESS);
  assert_int_equal(reshard_tree_append(list, w->inner[0]), RESHARD_SUCCESS);
  assert_int_equal(reshard_tree_append(list, nested), RESHARD_SUCCESS);
  assert_int_equal(reshard_tree_append(list, nested), RESHARD_SUCCESS);
  assert_int_equal(reshard_tree_dict(&w->tree), RESHARD_SUCCESS);
  assert_int_equal(reshard_tree_set(w->tree, "list", list), RESHARD_SUCCESS);
  assert_int_equal(reshard_tree_set(w->tree, "nested", nested), RESHARD_SUCCESS);
  reshard_tree_release(list);
  reshard_tree_release(nested);
}

static void close_world(world *w) {
  reshard_tree_release(w->tree);
  for (int k = 0; k < 2; k++)
    reshard_tree_release(w->inner[k]);
  reshard_metadata_release(w->outer);
  reshard_sharder_destroy(w->sharder);
  reshard_comm_destroy(w->alone);
}

static reshard_status nest_two(fault_output *out, const void *with) {
  const world *w = with;
  reshard_tree s;
  RS_TRY(reshard_state_nested(w->sharder, w->outer, 2, w->shards, w->inner, &s));
  out->object = s;
  return RESHARD_SUCCESS;
}

static reshard_status state_flatten(fault_output *out, const void *with) {
  const world *w = with;
  reshard_tree s;
  RS_TRY(reshard_state_flatten_sharded_tensors(w->tree, &s));
  out->object = s;
  return RESHARD_SUCCESS;
}

static reshard_status flatten_global(fault_output *out, const void *with) {
  const world *w = with;
  reshard_tree s;
  RS_TRY(reshard_state_flatten_sharded_tensors_global(w->sharder, w->tree, &s));
  out->object = s;
  return RESHARD_SUCCESS;
}

static bool flat_well(const fault_output *out, const void *with) {
  reshard_tree found;
  reshard_sharded_tensor t;
  return reshard_tree_at(out->object, "list.2", &found) == RESHARD_SUCCESS &&
         reshard_state_get_sharded(found, &t) == RESHARD_SUCCESS &&
         reshard_metadata_check(reshard_sharded_tensor_metadata(t)) == RESHARD_SUCCESS;
}

/* All local tensors become others: of sharded and nested tensors, flat pieces, at several places. */
static reshard_status other_tensor(void *user, const char *path, reshard_tensor tensor, reshard_tensor *mapped) {
  reshard_tensor_info info;
  reshard_status status = reshard_tensor_get_info(tensor, &info);
  return status == RESHARD_SUCCESS ? reshard_tensor_create(RESHARD_F32, info.ndim, info.shape, mapped) : status;
}

static reshard_status map_all(fault_output *out, const void *with) {
  reshard_tree s;
  RS_TRY(reshard_tree_map_tensors(((const world *)with)->tree, other_tensor, NULL, &s));
  out->object = s;
  return RESHARD_SUCCESS;
}

static bool others(const fault_output *out, const void *with) {
  reshard_tree leaf;
  reshard_metadata outer;
  return reshard_tree_at(out->object, "nested", &leaf) == RESHARD_SUCCESS &&
         reshard_state_get_nested(leaf, &outer, NULL, NULL, NULL) == RESHARD_SUCCESS &&
         reshard_metadata_properties(outer).dtype == RESHARD_F32;
}

CASE(nested_trees_survive_any_failed_allocation) {
  world w;
  open_world(&w);
  assert_true(fault_local_run(&(fault_local){"nested", nest_two, fault_any_output, tree_drop, &w}) >= 7);
  assert_true(fault_local_run(&(fault_local){"mapped", map_all, others, tree_drop, &w}) >= 20);
  assert_true(fault_local_run(&(fault_local){"flatten", state_flatten, flat_well, tree_drop, &w}) >= 30);
  assert_true(fault_local_run(&(fault_local){"flatten together", flatten_global, flat_well, tree_drop, &w}) >= 35);
  close_world(&w);
}

/* --- Random nestings ------------------------------------------------------------------------------------------ */

typedef struct random_case {
  const nested_case *nested;
  int64_t rank;
  reshard_tree tree;
} random_case;

static reshard_status flatten_random(fault_output *out, const void *with) {
  const random_case *c = with;
  reshard_tree s;
  RS_TRY(reshard_state_flatten_sharded_tensors(c->tree, &s));
  out->object = s;
  return RESHARD_SUCCESS;
}

static bool random_well(const fault_output *out, const void *with) {
  const random_case *c = with;
  reshard_sharded_tensor t;
  return reshard_state_get_sharded(out->object, &t) == RESHARD_SUCCESS && nested_check(t) == 0 &&
         nested_check_owners(c->nested, t, c->rank, false) == 0;
}

CASE(random_state_dicts_survive_any_failed_allocation) {
  reshard_comm comms[RANKS];
  reshard_sharder sharders[RANKS];
  assert_int_equal(reshard_comm_create_local(RANKS, NULL, comms), RESHARD_SUCCESS);
  sharders_open(RANKS, comms, NULL, sharders);
  for (uint64_t seed = 0; seed < 12; seed++) {
    nested_case *n = nested_create(seed, RANKS, 1 + (int)(seed % 3));
    random_case c = {n, (int64_t)(seed % RANKS), NULL};
    c.tree = nested_state(n, sharders[c.rank], c.rank);
    fault_local_run(&(fault_local){"random", flatten_random, random_well, tree_drop, &c});
    reshard_tree_release(c.tree);
    nested_free(n);
  }
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_sharder_destroy(sharders[r]);
    reshard_comm_destroy(comms[r]);
  }
}

/* --- One rank of several is short of memory: all have its error -------------------------------------------------- */

typedef struct threads_case {
  nested_case *nested;
  reshard_sharder sharders[RANKS];
  reshard_tree trees[RANKS];
  int64_t short_of; /* rank */
  rank_result results[RANKS];
  int64_t wrong[RANKS];
} threads_case;

static void flatten_body(void *user, int64_t r) {
  threads_case *c = user;
  reshard_tree flat = NULL;
  reshard_sharded_tensor t;
  fault_mark(r == c->short_of);
  reshard_status status = reshard_state_flatten_sharded_tensors_global(c->sharders[r], c->trees[r], &flat);
  fault_mark(false);
  rank_result_set(&c->results[r], status);
  c->wrong[r] = (status == RESHARD_SUCCESS) != (flat != NULL);
  if (flat != NULL && reshard_state_get_sharded(flat, &t) == RESHARD_SUCCESS)
    c->wrong[r] += nested_check(t) + nested_check_owners(c->nested, t, r, true);
  reshard_tree_release(flat);
}

CASE(flattening_survives_a_failed_allocation_of_any_rank) {
  reshard_comm comms[RANKS];
  threads_case c = {.nested = nested_create(6, RANKS, 2)};
  assert_int_equal(reshard_comm_create_local(RANKS, NULL, comms), RESHARD_SUCCESS);
  sharders_open(RANKS, comms, NULL, c.sharders);
  for (int64_t r = 0; r < RANKS; r++)
    c.trees[r] = nested_state(c.nested, c.sharders[r], r);
  for (c.short_of = 0; c.short_of < RANKS; c.short_of++) {
    fault_kind kind = FAULT_MEMORY;
    int64_t k = 0;
    for (; kind != FAULT_NONE; k++) {
      int64_t live = fault_live();
      fault_arm(k);
      rank_threads_run(RANKS, flatten_body, &c);
      fault_disarm();
      kind = fault_fired();
      for (int64_t r = 0; r < RANKS; r++) {
        assert_int_equal(c.results[r].status, fault_status(kind));
        assert_int_equal(c.wrong[r], 0);
        if (kind != FAULT_NONE)
          assert_string_equal(c.results[r].text, c.results[0].text);
      }
      assert_int_equal(fault_live(), live);
    }
    assert_true(k > 20);
  }
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_tree_release(c.trees[r]);
    reshard_sharder_destroy(c.sharders[r]);
    reshard_comm_destroy(comms[r]);
  }
  nested_free(c.nested);
}

RUN_CASES
