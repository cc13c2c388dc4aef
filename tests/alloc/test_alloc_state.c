/* The k-th allocation fails, for every k, in every call on state dicts but saving and loading. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "probe.h"
#include "support/crew.h"
#include "support/nests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool any(const probe_out *out, const void *with) {
  (void)with;
  return out->object != NULL;
}

static void release(probe_out *out) { reshard_state_release(out->object); }

/* --- Containers ----------------------------------------------------------------------------------------------- */

static reshard_status make_bytes(probe_out *out, const void *with) {
  reshard_state s;
  reshard_status status = reshard_state_bytes(with, 3, &s);
  if (status == RESHARD_SUCCESS)
    out->object = s;
  return status;
}

/* A container with more than it has room for at first, each child in it once alone and once in a list. What was put
 * before something failed is there. */
static reshard_status fill(probe_out *out, const void *with) {
  bool dict = with != NULL;
  reshard_state s, child = NULL;
  reshard_status status = dict ? reshard_state_dict(&s) : reshard_state_list(&s);
  int64_t n = 0;
  if (status != RESHARD_SUCCESS)
    return status;
  for (; n < 20 && status == RESHARD_SUCCESS; n++) {
    char key[16];
    snprintf(key, sizeof key, "key%d", (int)n);
    status = n % 4 == 0 ? reshard_state_list(&child) : reshard_state_int(n, &child);
    if (status != RESHARD_SUCCESS)
      break;
    status = dict ? reshard_state_set(s, key, child) : reshard_state_append(s, child);
    if (status == RESHARD_SUCCESS && n % 4 == 0)
      status = reshard_state_append(child, child) == RESHARD_ERROR_INVALID ? RESHARD_SUCCESS : RESHARD_ERROR_INTERNAL;
    reshard_state_release(child);
    if (status != RESHARD_SUCCESS)
      break;
  }
  assert_int_equal(reshard_state_count(s), n);
  for (int64_t i = 0; i < n; i++) {
    const char *key;
    assert_int_equal(reshard_state_child(s, i, &key, &child), RESHARD_SUCCESS);
    assert_true((key != NULL) == dict);
    if (dict)
      assert_int_equal(reshard_state_find(s, key, &child), RESHARD_SUCCESS);
  }
  if (status == RESHARD_SUCCESS)
    out->object = s;
  else
    reshard_state_release(s);
  return status;
}

/* a > b > c, d: whether a, which is in d, goes into b has to be looked for. */
typedef struct chain {
  reshard_state a, b, c, d;
} chain;

static void set_up(chain *x) {
  reshard_state *const all[4] = {&x->a, &x->b, &x->c, &x->d};
  reshard_state leaf;
  for (int i = 0; i < 4; i++)
    assert_int_equal(reshard_state_dict(all[i]), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_int(5, &leaf), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_set(x->c, "e.f", leaf), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_set(x->b, "c", x->c), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_set(x->a, "b", x->b), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_set(x->d, "a", x->a), RESHARD_SUCCESS);
  reshard_state_release(leaf);
}

static void tear_down(chain *x) {
  reshard_state_release(x->a);
  reshard_state_release(x->b);
  reshard_state_release(x->c);
  reshard_state_release(x->d);
}

static reshard_status close_cycle(probe_out *out, const void *with) {
  const chain *x = with;
  reshard_status status = reshard_state_set(x->c, "d", x->d);
  assert_int_equal(reshard_state_count(x->c), 1);
  if (status != RESHARD_ERROR_INVALID)
    return status;
  out->number = 1;
  return RESHARD_SUCCESS;
}

static reshard_status at_path(probe_out *out, const void *with) {
  const chain *x = with;
  reshard_state found;
  reshard_status status = reshard_state_at(x->d, "a.b.c.e.f", &found);
  if (status == RESHARD_SUCCESS)
    out->object = found;
  return status;
}

static reshard_status count_leaf(void *user, const char *path, reshard_state leaf) {
  (void)leaf;
  *(int64_t *)user += strcmp(path, "a.b.c.e.f") == 0;
  return RESHARD_SUCCESS;
}

static reshard_status visit(probe_out *out, const void *with) {
  const chain *x = with;
  int64_t n = 0;
  reshard_status status = reshard_state_visit(x->d, count_leaf, &n);
  if (status == RESHARD_SUCCESS)
    out->number = n;
  return status;
}

static bool is_one(const probe_out *out, const void *with) {
  (void)with;
  return out->number == 1;
}

static void test_containers(void **state) {
  (void)state;
  chain x;
  set_up(&x);
  assert_int_equal(probe_run(&(probe){"bytes", make_bytes, any, release, "abc"}), 2);
  assert_true(probe_run(&(probe){"dict", fill, any, release, "dict"}) > 45);
  assert_true(probe_run(&(probe){"list", fill, any, release, NULL}) > 20);
  assert_true(probe_run(&(probe){"cycle", close_cycle, is_one, NULL, &x}) >= 2);
  assert_true(probe_run(&(probe){"path", at_path, any, NULL, &x}) >= 4);
  assert_true(probe_run(&(probe){"visit", visit, is_one, NULL, &x}) >= 2);
  tear_down(&x);
}

/* --- Nested tensors ------------------------------------------------------------------------------------------- */

enum { RANKS = 3 };

typedef struct world {
  reshard_comm alone;
  reshard_sharder sharder;
  reshard_metadata outer;
  reshard_shard shards[2];
  reshard_state inner[2], tree;
} world;

static reshard_state own(reshard_sharder sharder, const char *layout, int64_t n, const int64_t *shape) {
  static const reshard_properties i32 = {.dtype = RESHARD_I32};
  reshard_layout cut;
  reshard_sharded_tensor t;
  reshard_state s;
  assert_int_equal(reshard_layout_parse(layout, 2, shape, n, &cut), RESHARD_SUCCESS);
  assert_int_equal(reshard_sharded_tensor_empty(sharder, cut, &i32, &t), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_sharded(t, &s), RESHARD_SUCCESS);
  reshard_sharded_tensor_release(t);
  reshard_layout_release(cut);
  return s;
}

/* One rank that has all, so that flattening together is a call of one thread. */
static void open_world(world *w) {
  static const reshard_properties i32 = {.dtype = RESHARD_I32};
  static const int64_t shape[2] = {8, 3}, half[2] = {4, 3};
  reshard_state list, nested;
  assert_int_equal(reshard_comm_create_local(1, NULL, &w->alone), RESHARD_SUCCESS);
  assert_int_equal(reshard_sharder_create(w->alone, NULL, &w->sharder), RESHARD_SUCCESS);
  for (int k = 0; k < 2; k++) {
    w->shards[k] = (reshard_shard){{{4 * k, 0}, {4, 3}}, {0, RESHARD_DEVICE_CPU, -1}};
    w->inner[k] = own(w->sharder, k == 0 ? "cyclic(1x1;2x2)" : "flat()", 1, half);
  }
  assert_int_equal(reshard_metadata_create(&i32, 2, shape, 2, w->shards, &w->outer), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_nested(w->sharder, w->outer, 2, w->shards, w->inner, &nested), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_list(&list), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_append(list, w->inner[0]), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_append(list, nested), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_append(list, nested), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_dict(&w->tree), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_set(w->tree, "list", list), RESHARD_SUCCESS);
  assert_int_equal(reshard_state_set(w->tree, "nested", nested), RESHARD_SUCCESS);
  reshard_state_release(list);
  reshard_state_release(nested);
}

static void close_world(world *w) {
  reshard_state_release(w->tree);
  for (int k = 0; k < 2; k++)
    reshard_state_release(w->inner[k]);
  reshard_metadata_release(w->outer);
  reshard_sharder_destroy(w->sharder);
  reshard_comm_destroy(w->alone);
}

static reshard_status nest_two(probe_out *out, const void *with) {
  const world *w = with;
  reshard_state s;
  reshard_status status = reshard_state_nested(w->sharder, w->outer, 2, w->shards, w->inner, &s);
  if (status == RESHARD_SUCCESS)
    out->object = s;
  return status;
}

static reshard_status flatten(probe_out *out, const void *with) {
  const world *w = with;
  reshard_state s;
  reshard_status status = reshard_state_flatten_sharded_tensors(w->tree, &s);
  if (status == RESHARD_SUCCESS)
    out->object = s;
  return status;
}

static reshard_status flatten_global(probe_out *out, const void *with) {
  const world *w = with;
  reshard_state s;
  reshard_status status = reshard_state_flatten_sharded_tensors_global(w->sharder, w->tree, &s);
  if (status == RESHARD_SUCCESS)
    out->object = s;
  return status;
}

static bool flat_well(const probe_out *out, const void *with) {
  reshard_state found;
  reshard_sharded_tensor t;
  (void)with;
  return reshard_state_at(out->object, "list.2", &found) == RESHARD_SUCCESS &&
         reshard_state_get_sharded(found, &t) == RESHARD_SUCCESS &&
         reshard_metadata_check(reshard_sharded_tensor_metadata(t)) == RESHARD_SUCCESS;
}

static void test_nested(void **state) {
  (void)state;
  world w;
  open_world(&w);
  assert_true(probe_run(&(probe){"nested", nest_two, any, release, &w}) >= 7);
  assert_true(probe_run(&(probe){"flatten", flatten, flat_well, release, &w}) >= 30);
  assert_true(probe_run(&(probe){"flatten together", flatten_global, flat_well, release, &w}) >= 35);
  close_world(&w);
}

/* --- Random nestings ------------------------------------------------------------------------------------------ */

typedef struct random_case {
  const nest *nest;
  int64_t rank;
  reshard_state tree;
} random_case;

static reshard_status flatten_random(probe_out *out, const void *with) {
  const random_case *c = with;
  reshard_state s;
  reshard_status status = reshard_state_flatten_sharded_tensors(c->tree, &s);
  if (status == RESHARD_SUCCESS)
    out->object = s;
  return status;
}

static bool random_well(const probe_out *out, const void *with) {
  const random_case *c = with;
  reshard_sharded_tensor t;
  return reshard_state_get_sharded(out->object, &t) == RESHARD_SUCCESS && nests_check(t) == 0 &&
         nest_check_owners(c->nest, t, c->rank, false) == 0;
}

static void test_random(void **state) {
  (void)state;
  reshard_comm comms[RANKS];
  reshard_sharder sharders[RANKS];
  assert_int_equal(reshard_comm_create_local(RANKS, NULL, comms), RESHARD_SUCCESS);
  for (int64_t r = 0; r < RANKS; r++)
    assert_int_equal(reshard_sharder_create(comms[r], NULL, &sharders[r]), RESHARD_SUCCESS);
  for (uint64_t seed = 0; seed < 12; seed++) {
    nest *n = nest_make(seed, RANKS, 1 + (int)(seed % 3));
    random_case c = {n, (int64_t)(seed % RANKS), NULL};
    c.tree = nest_state(n, sharders[c.rank], c.rank);
    probe_run(&(probe){"random", flatten_random, random_well, release, &c});
    reshard_state_release(c.tree);
    nest_free(n);
  }
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_sharder_destroy(sharders[r]);
    reshard_comm_destroy(comms[r]);
  }
}

/* --- One rank of several is short of memory: all have its error -------------------------------------------------- */

typedef struct crew_case {
  nest *nest;
  reshard_sharder sharders[RANKS];
  reshard_state trees[RANKS];
  int64_t short_of; /* rank */
  crew_result results[RANKS];
  int64_t wrong[RANKS];
} crew_case;

static void flatten_body(void *user, int64_t r) {
  crew_case *c = user;
  reshard_state flat = NULL;
  reshard_sharded_tensor t;
  fault_mark(r == c->short_of);
  reshard_status status = reshard_state_flatten_sharded_tensors_global(c->sharders[r], c->trees[r], &flat);
  fault_mark(false);
  crew_note(&c->results[r], status);
  c->wrong[r] = (status == RESHARD_SUCCESS) != (flat != NULL);
  if (flat != NULL && reshard_state_get_sharded(flat, &t) == RESHARD_SUCCESS)
    c->wrong[r] += nests_check(t) + nest_check_owners(c->nest, t, r, true);
  reshard_state_release(flat);
}

static void test_ranks(void **state) {
  (void)state;
  reshard_comm comms[RANKS];
  crew_case c = {.nest = nest_make(6, RANKS, 2)};
  assert_int_equal(reshard_comm_create_local(RANKS, NULL, comms), RESHARD_SUCCESS);
  for (int64_t r = 0; r < RANKS; r++) {
    assert_int_equal(reshard_sharder_create(comms[r], NULL, &c.sharders[r]), RESHARD_SUCCESS);
    c.trees[r] = nest_state(c.nest, c.sharders[r], r);
  }
  for (c.short_of = 0; c.short_of < RANKS; c.short_of++) {
    fault_kind kind = FAULT_MEMORY;
    int64_t k = 0;
    for (; kind != FAULT_NONE; k++) {
      int64_t live = fault_live();
      fault_arm(k);
      crew_run(RANKS, flatten_body, &c);
      fault_disarm();
      kind = fault_fired();
      for (int64_t r = 0; r < RANKS; r++) {
        assert_int_equal(c.results[r].status, probe_status(kind));
        assert_int_equal(c.wrong[r], 0);
        if (kind != FAULT_NONE)
          assert_string_equal(c.results[r].text, c.results[0].text);
      }
      assert_int_equal(fault_live(), live);
    }
    assert_true(k > 20);
  }
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_state_release(c.trees[r]);
    reshard_sharder_destroy(c.sharders[r]);
    reshard_comm_destroy(comms[r]);
  }
  nest_free(c.nest);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_containers), cmocka_unit_test(test_nested),
                                     cmocka_unit_test(test_random), cmocka_unit_test(test_ranks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
