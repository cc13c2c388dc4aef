/* Sets and integer keys in trees, through everything that is done with trees: made, visited, mapped, flattened,
 * rebuilt, compared, drawn, saved and loaded. As torch/distributed/utils.py and torch/distributed/checkpoint have them.
 */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scratch.h"
#include "support/fixtures/sharded_ranks.h"
#include "support/fixtures/trees.h"

#include <reshard/move.h>
#include <reshard/state_dict.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static reshard_tree new_set(void) {
  reshard_tree made;
  GOOD(reshard_tree_create_set(&made));
  return made;
}

/* Takes the child; returns the dict. */
static reshard_tree set_int(reshard_tree d, int64_t key, reshard_tree child) {
  GOOD(reshard_tree_set_int(d, key, child));
  reshard_tree_release(child);
  return d;
}

static bool equal_sets(reshard_tree a, reshard_tree b) {
  int is;
  GOOD(reshard_tree_equal(a, b, &is));
  return is;
}

static void assert_drawn(reshard_tree tree, const char *expected) {
  char text[1024];
  GOOD(reshard_tree_print(tree, text, sizeof text, NULL));
  assert_string_equal(text, expected);
}

static reshard_status add_path(void *user, const char *path, reshard_tree leaf) {
  strcat(strcat(user, path), " ");
  return RESHARD_SUCCESS;
}

static void assert_paths(reshard_tree tree, const char *expected) {
  char text[512] = "", flat[512] = "";
  const reshard_tree_leaves *leaves;
  reshard_tree same;
  GOOD(reshard_tree_visit(tree, add_path, text));
  assert_string_equal(text, expected);
  GOOD(reshard_tree_flatten(tree, &leaves));
  for (int64_t i = 0; i < leaves->n; i++)
    strcat(strcat(flat, leaves->paths[i]), " ");
  assert_string_equal(flat, expected);
  GOOD(reshard_tree_rebuild(tree, leaves->n, leaves->leaves, &same));
  assert_ptr_equal(same, tree);
  reshard_tree_release(same);
  reshard_tree_leaves_release(leaves);
}

/* --- Sets -------------------------------------------------------------------------------------------------------- */

CASE(sets_hold_equal_members_once) {
  reshard_tensor tensor = floats(2);
  reshard_tree s = new_set(), copy;
  assert_int_equal(reshard_tree_get_kind(s), RESHARD_TREE_SET);
  for (int twice = 0; twice < 2; twice++) {
    append(append(append(s, integer(1)), real(1)), flag(1));
    append(append(append(s, text("1")), text("")), nothing());
    append(append(s, real(twice ? -0.0 : 0.0)), real(NAN));
    append(append(s, leaf_of(reshard_tensor_retain(tensor))), leaf_of(reshard_tensor_retain(tensor)));
    assert_int_equal(reshard_tree_count(s), 9);
  }
  append(s, leaf_of(floats(2))); /* another tensor of the same elements: a tensor is itself */
  assert_int_equal(reshard_tree_count(s), 10);
  append(s, text("1\n"));
  assert_int_equal(value_at(s, "0"), 1);
  const char *key = "?";
  GOOD(reshard_tree_child(s, 3, &key, &copy));
  assert_null(key);
  reshard_tree root = set(dict(), "s", s);
  assert_paths(root, "s.0 s.1 s.2 s.3 s.4 s.5 s.6 s.7 s.8 s.9 s.10 ");
  BAD(reshard_tree_append(s, root), "reshard_tree_append: the child is a dict, a set has leaves");
  BAD(reshard_tree_append(s, s), "reshard_tree_append: the child is a set, a set has leaves");
  BAD(reshard_tree_set(s, "k", root), "reshard_tree_set: the container is a set, not a dict or a struct");
  BAD(reshard_tree_find(s, "0", &copy), "reshard_tree_find: the tree is a set, not a dict");
  BAD(reshard_tree_create_set(NULL), "reshard_tree_create_set: the output is NULL");
  FAILS_WITH(reshard_tree_at(root, "s.11", &copy), RESHARD_ERROR_INVALID, "no path");
  reshard_tree_release(root);
  reshard_tensor_release(tensor);
}

CASE(test_equal_sets) {
  reshard_tree a = new_set(), b = new_set(), c = new_set(), l = list();
  for (int i = 0; i < 100; i++) {
    append(a, integer(i));
    append(b, integer(99 - i));
    append(c, integer(i + 1));
    append(l, integer(i));
  }
  append(append(a, real(NAN)), real(0.0));
  append(append(b, real(-0.0)), real(-NAN));
  append(append(c, real(NAN)), real(0.0));
  assert_true(equal_sets(a, b) && equal_sets(b, a));
  assert_false(equal_sets(a, c) || equal_sets(c, a) || equal_sets(a, l) || equal_sets(l, a));
  append(b, text("more"));
  assert_false(equal_sets(a, b));
  reshard_tree both[2] = {append(list(), a), append(list(), b)};
  assert_false(equal_sets(both[0], both[1]));
  append(a, text("more"));
  assert_true(equal_sets(both[0], both[1]));
  reshard_tree_release(both[0]);
  reshard_tree_release(both[1]);
  reshard_tree_release(c);
  reshard_tree_release(l);
}

/* Adding one keeps 100,000 different: it does not look through all of them. */
CASE(test_many_members) {
  reshard_tree s = new_set();
  for (int twice = 0; twice < 2; twice++)
    for (int64_t i = 0; i < 100000; i++)
      append(s, integer(i));
  assert_int_equal(reshard_tree_count(s), 100000);
  reshard_tree_release(s);
}

static reshard_status halve(void *user, const char *path, reshard_tree leaf, reshard_tree *mapped) {
  int64_t value;
  return reshard_tree_get_int(leaf, &value) == RESHARD_SUCCESS ? reshard_tree_int(value / 2, mapped) : RESHARD_SUCCESS;
}

static reshard_status to_list(void *user, const char *path, reshard_tree leaf, reshard_tree *mapped) {
  return strcmp(path, "s.1") == 0 ? reshard_tree_list(mapped) : RESHARD_SUCCESS;
}

CASE(test_mapped_sets) {
  reshard_tree s = new_set(), mapped = NULL;
  append(append(append(append(s, text("x")), integer(4)), integer(5)), integer(6));
  reshard_tree root = set(dict(), "s", s);
  GOOD(reshard_tree_map(root, halve, NULL, &mapped));
  assert_drawn(mapped, "dict\n└── s: set\n    ├── 0: \"x\"\n    ├── 1: 2\n    └── 2: 3\n");
  append(node_at(mapped, "s"), integer(3)); /* it knows what it has */
  append(node_at(mapped, "s"), integer(4));
  assert_int_equal(reshard_tree_count(node_at(mapped, "s")), 4);
  assert_int_equal(reshard_tree_count(s), 4); /* as it was */
  assert_int_equal(value_at(root, "s.3"), 6);
  reshard_tree_release(mapped);
  mapped = NULL;
  BAD(reshard_tree_map(root, to_list, NULL, &mapped), "path 's.1': a leaf of a set would become a list");
  assert_null(mapped);
  const reshard_tree_leaves *leaves;
  GOOD(reshard_tree_flatten(root, &leaves));
  assert_int_equal(leaves->n, 4);
  reshard_tree others[4] = {integer(1), integer(2), integer(1), integer(2)};
  GOOD(reshard_tree_rebuild(root, 4, others, &mapped));
  assert_int_equal(reshard_tree_count(node_at(mapped, "s")), 2);
  reshard_tree_release(mapped);
  for (int i = 0; i < 4; i++)
    reshard_tree_release(others[i]);
  reshard_tree_leaves_release(leaves);
  reshard_tree_release(root);
}

/* _apply_to_tensors goes into sets, so that a cast does; _recursive_to does not. That a move leaves them where they are
 * needs two devices: test_vg_move. */
CASE(test_cast_in_sets) {
  const int64_t n = 2;
  const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .threads = 1};
  reshard_device cpu;
  reshard_tensor tensor, cast;
  reshard_tensor_info info;
  GOOD(reshard_device_create("cpu", &options, &cpu));
  GOOD(reshard_tensor_create(RESHARD_F32, 1, &n, &tensor));
  GOOD(reshard_tensor_get_info(tensor, &info));
  memcpy(info.data, (float[]){1, -2}, 8);
  reshard_tree s = append(append(new_set(), integer(7)), leaf_of(tensor)), is;
  GOOD(reshard_tree_cast(s, RESHARD_F64, cpu, NULL, &is));
  assert_int_equal(reshard_tree_get_kind(is), RESHARD_TREE_SET);
  GOOD(reshard_tree_get_tensor(node_at(is, "1"), &cast));
  GOOD(reshard_tensor_get_info(cast, &info));
  assert_true(info.dtype == RESHARD_F64 && ((double *)info.data)[0] == 1 && ((double *)info.data)[1] == -2);
  assert_ptr_equal(node_at(is, "0"), node_at(s, "0"));
  reshard_tree_release(is);
  reshard_tree_release(s);
  reshard_device_release(cpu);
}

/* --- Integer keys ------------------------------------------------------------------------------------------------ */

CASE(test_int_keys) {
  static const int64_t keys[] = {0, -1, 10, INT64_MAX, INT64_MIN};
  reshard_tree d = dict(), found;
  const char *key;
  int64_t number = 77;
  set(d, "0", integer(100));
  for (int i = 0; i < 5; i++)
    set_int(d, keys[i], integer(i));
  set(set(d, "x", integer(101)), "-1", integer(102));
  assert_int_equal(reshard_tree_count(d), 8);
  for (int i = 0; i < 5; i++) {
    int64_t value, is;
    GOOD(reshard_tree_find_int(d, keys[i], &found));
    GOOD(reshard_tree_get_int(found, &value));
    assert_int_equal(value, i);
    assert_int_equal(reshard_tree_int_key(d, 1 + i, &is), 1);
    assert_true(is == keys[i]);
  }
  GOOD(reshard_tree_find(d, "0", &found)); /* the string is another key */
  assert_ptr_equal(found, node_at(d, "0"));
  GOOD(reshard_tree_find(d, "-1", &found));
  assert_int_equal(value_at(d, "-1"), 1); /* by path: the first in order */
  assert_int_equal(value_at(d, "-9223372036854775808"), 4);
  GOOD(reshard_tree_child(d, 2, &key, NULL));
  assert_string_equal(key, "-1");
  assert_int_equal(reshard_tree_int_key(d, 0, &number) + reshard_tree_int_key(d, 6, &number), 0);
  assert_int_equal(reshard_tree_int_key(d, 8, &number) + reshard_tree_int_key(d, -1, &number), 0);
  assert_int_equal(reshard_tree_int_key(NULL, 0, &number) + reshard_tree_int_key(d, 1, NULL), 0);
  assert_int_equal(number, 77);
  set_int(d, 0, integer(55)); /* replaced in its place */
  assert_int_equal(reshard_tree_count(d), 8);
  GOOD(reshard_tree_find_int(d, 0, &found));
  BAD(reshard_tree_find_int(d, 5, &found), "reshard_tree_find_int: a dict has no integer key 5");
  BAD(reshard_tree_find(d, "10", &found), "reshard_tree_find: a dict has no key '10'");
  reshard_tree l = list(), s = structure("S");
  BAD(reshard_tree_set_int(l, 0, d), "reshard_tree_set_int: the container is a list, not a dict");
  BAD(reshard_tree_set_int(s, 0, d), "reshard_tree_set_int: the container is a struct, not a dict");
  BAD(reshard_tree_set_int(d, 0, d), "reshard_tree_set_int: the child has the container inside it");
  BAD(reshard_tree_set_int(d, 0, NULL), "reshard_tree_set_int: the child is NULL");
  BAD(reshard_tree_find_int(l, 0, &found), "reshard_tree_find_int: the tree is a list, not a dict");
  reshard_tree_release(l);
  reshard_tree_release(s);
  reshard_tree_release(d);
}

/* An optimizer's state, whose parameters have numbers. */
static reshard_tree optimizer(void) {
  reshard_tree numbers = dict(), deeper = set(dict(), "step", integer(3));
  set_int(numbers, 0, set(dict(), "step", integer(1)));
  set_int(numbers, 1, deeper);
  return set(set(dict(), "state", numbers), "groups", append(list(), set(dict(), "lr", real(0.5))));
}

CASE(test_int_keys_in_trees) {
  reshard_tree a = optimizer(), b = optimizer(), strings = optimizer(), mapped, values = NULL, names = NULL;
  assert_paths(a, "state.0.step state.1.step groups.0.lr "); /* as flatten_state_dict has them */
  assert_int_equal(value_at(a, "state.1.step"), 3);
  assert_drawn(a, "dict\n├── state: dict\n│   ├── [0]: dict\n│   │   └── step: 1\n│   └── [1]: dict\n"
                  "│       └── step: 3\n└── groups: list\n    └── 0: dict\n        └── lr: 0.5\n");
  assert_true(equal_sets(a, b));
  set(strings, "state", set(set(dict(), "0", set(dict(), "step", integer(1))), "1", set(dict(), "step", integer(3))));
  assert_false(equal_sets(a, strings) || equal_sets(strings, a));
  GOOD(reshard_tree_map(a, halve, NULL, &mapped));
  reshard_tree state_of = node_at(mapped, "state"), found;
  int64_t key = -1;
  assert_true(reshard_tree_int_key(state_of, 1, &key) && key == 1);
  assert_int_equal(value_at(mapped, "state.1.step"), 1);
  set_int(state_of, 2, integer(9)); /* names that were shared are copied, with the kind of each */
  GOOD(reshard_tree_find_int(state_of, 0, &found));
  FAILS_WITH(reshard_tree_find_int(node_at(a, "state"), 2, &found), RESHARD_ERROR_INVALID, "no integer key 2");
  set(state_of, "1x", integer(8));
  GOOD(reshard_tree_replace_by_prefix(state_of, "1", "0")); /* of strings alone */
  assert_paths(state_of, "0.step 1.step 2 0x ");
  GOOD(reshard_tree_find_int(state_of, 1, &found));
  reshard_tree_release(mapped);
  BAD(reshard_tree_pack_kwargs(NULL, node_at(a, "state"), &values, &names),
      "reshard_tree_pack_kwargs: kwargs has the integer key 0, a name is a string");
  assert_true(values == NULL && names == NULL);
  reshard_tree_release(a);
  reshard_tree_release(b);
  reshard_tree_release(strings);
}

/* --- Saved and loaded -------------------------------------------------------------------------------------------- */

#ifdef RS_HAVE_JANSSON
enum { RANKS = 2 };

typedef struct saving {
  reshard_tree saved[RANKS], loaded[RANKS];
  const char *path;
} saving;

/* {"state": {0: {"exp_avg": tensor}, 7: {"exp_avg": tensor}}, "set": {tensor, 1, "a"}} */
static reshard_tree make_state(int64_t value) {
  reshard_tree numbers = dict(), members = new_set();
  reshard_tensor tensors[3];
  for (int i = 0; i < 3; i++) {
    reshard_tensor_info info;
    tensors[i] = floats(4);
    GOOD(reshard_tensor_get_info(tensors[i], &info));
    for (int e = 0; e < 4; e++)
      ((float *)info.data)[e] = (float)(value * (10 * i + e));
  }
  set_int(numbers, 0, set(dict(), "exp_avg", leaf_of(tensors[0])));
  set_int(numbers, 7, set(dict(), "exp_avg", leaf_of(tensors[1])));
  append(append(append(members, leaf_of(tensors[2])), integer(value)), text(value == 1 ? "a" : "b"));
  return set(set(dict(), "state", numbers), "set", members);
}

static void save_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  saving *s = p->user;
  rank_result_set(&p->results[r], reshard_state_save(p->sharders[r], s->saved[r], s->path, NULL, NULL));
}
static void load_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  saving *s = p->user;
  rank_result_set(&p->results[r], reshard_state_load(p->sharders[r], s->loaded[r], s->path, NULL, NULL));
}

CASE(sets_and_integer_keys_are_saved_and_loaded) {
  static const char *const paths[3] = {"state.0.exp_avg", "state.7.exp_avg", "set.0"};
  saving s = {.path = scratch_path("checkpoint")};
  sharded_ranks p;
  sharded_ranks_open(&p, RANKS, NULL);
  for (int r = 0; r < RANKS; r++) {
    s.saved[r] = make_state(1);
    s.loaded[r] = make_state(2);
  }
  sharded_ranks_run(&p, save_body, &s);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  sharded_ranks_run(&p, load_body, &s);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  for (int r = 0; r < RANKS; r++) {
    for (int i = 0; i < 3; i++) {
      reshard_tensor tensor;
      reshard_tensor_info info;
      GOOD(reshard_tree_get_tensor(node_at(s.loaded[r], paths[i]), &tensor));
      GOOD(reshard_tensor_get_info(tensor, &info));
      for (int e = 0; e < 4; e++)
        assert_true(((float *)info.data)[e] == (float)(10 * i + e));
    }
    reshard_tree members = node_at(s.loaded[r], "set");
    assert_int_equal(value_at(members, "1"), 1);
    append(append(append(members, text("a")), integer(1)), integer(2)); /* it knows what was loaded */
    assert_int_equal(reshard_tree_count(members), 4);
    int64_t key = -1;
    assert_true(reshard_tree_int_key(node_at(s.loaded[r], "state"), 1, &key) && key == 7);
  }
  for (int r = 0; r < RANKS; r++)
    set(node_at(s.saved[r], "state"), "0", set(dict(), "exp_avg", integer(1)));
  s.path = scratch_path("other");
  sharded_ranks_run(&p, save_body, &s); /* a dict that has 0 and "0": flatten_state_dict's duplicated key */
  sharded_ranks_assert(&p, RESHARD_ERROR_INVALID, "path 'state.0.exp_avg': two leaves have it");
  for (int r = 0; r < RANKS; r++) {
    reshard_tree_release(s.saved[r]);
    reshard_tree_release(s.loaded[r]);
  }
  sharded_ranks_close(&p);
}
#endif

RUN_CASES_WITH(scratch_setup, scratch_teardown)
