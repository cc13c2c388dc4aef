/* The k-th allocation fails, for every k, in every call on trees: nothing is left of what failed, and what was there is
 * as it was. */
#include "base/base.h"
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/trees.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void tree_drop(fault_output *out) { reshard_tree_release(out->object); }

/* --- Containers ----------------------------------------------------------------------------------------------- */

static reshard_status make_bytes(fault_output *out, const void *with) {
  reshard_tree s;
  RS_TRY(reshard_tree_bytes(with, 3, &s));
  out->object = s;
  return RESHARD_SUCCESS;
}

/* A container with more than it has room for at first, each child in it once alone and once in a list. What was put
 * before something failed is there. */
static reshard_status tree_fill(fault_output *out, const void *with) {
  bool dict = with != NULL;
  reshard_tree s, child = NULL;
  reshard_status status = dict ? reshard_tree_dict(&s) : reshard_tree_list(&s);
  int64_t n = 0;
  if (status != RESHARD_SUCCESS)
    return status;
  for (; n < 20 && status == RESHARD_SUCCESS; n++) {
    char key[16];
    snprintf(key, sizeof key, "key%d", (int)n);
    status = n % 4 == 0 ? reshard_tree_list(&child) : reshard_tree_int(n, &child);
    if (status != RESHARD_SUCCESS)
      break;
    status = dict ? reshard_tree_set(s, key, child) : reshard_tree_append(s, child);
    if (status == RESHARD_SUCCESS && n % 4 == 0)
      status = reshard_tree_append(child, child) == RESHARD_ERROR_INVALID ? RESHARD_SUCCESS : RESHARD_ERROR_INTERNAL;
    reshard_tree_release(child);
    if (status != RESHARD_SUCCESS)
      break;
  }
  assert_int_equal(reshard_tree_count(s), n);
  for (int64_t i = 0; i < n; i++) {
    const char *key;
    GOOD(reshard_tree_child(s, i, &key, &child));
    assert_true((key != NULL) == dict);
    if (dict)
      GOOD(reshard_tree_find(s, key, &child));
  }
  if (status == RESHARD_SUCCESS)
    out->object = s;
  else
    reshard_tree_release(s);
  return status;
}

/* a > b > c, d: whether a, which is in d, goes into b has to be looked for. */
typedef struct chain {
  reshard_tree a, b, c, d;
} chain;

static void set_up(chain *x) {
  reshard_tree *const all[4] = {&x->a, &x->b, &x->c, &x->d};
  reshard_tree leaf;
  for (int i = 0; i < 4; i++)
    GOOD(reshard_tree_dict(all[i]));
  GOOD(reshard_tree_int(5, &leaf));
  GOOD(reshard_tree_set(x->c, "e.f", leaf));
  GOOD(reshard_tree_set(x->b, "c", x->c));
  GOOD(reshard_tree_set(x->a, "b", x->b));
  GOOD(reshard_tree_set(x->d, "a", x->a));
  reshard_tree_release(leaf);
}

static void tear_down(chain *x) {
  reshard_tree_release(x->a);
  reshard_tree_release(x->b);
  reshard_tree_release(x->c);
  reshard_tree_release(x->d);
}

static reshard_status close_cycle(fault_output *out, const void *with) {
  const chain *x = with;
  reshard_status status = reshard_tree_set(x->c, "d", x->d);
  assert_int_equal(reshard_tree_count(x->c), 1);
  if (status != RESHARD_ERROR_INVALID)
    return status;
  out->number = 1;
  return RESHARD_SUCCESS;
}

static reshard_status at_path(fault_output *out, const void *with) {
  const chain *x = with;
  reshard_tree found;
  RS_TRY(reshard_tree_at(x->d, "a.b.c.e.f", &found));
  out->object = found;
  return RESHARD_SUCCESS;
}

static reshard_status count_leaf(void *user, const char *path, reshard_tree leaf) {
  *(int64_t *)user += strcmp(path, "a.b.c.e.f") == 0;
  return RESHARD_SUCCESS;
}

static reshard_status visit_tree(fault_output *out, const void *with) {
  const chain *x = with;
  int64_t n = 0;
  RS_TRY(reshard_tree_visit(x->d, count_leaf, &n));
  out->number = n;
  return RESHARD_SUCCESS;
}

static bool is_one(const fault_output *out, const void *with) { return out->number == 1; }

CASE(containers_survive_any_failed_allocation) {
  chain x;
  set_up(&x);
  assert_int_equal(fault_local_run(&(fault_local){"bytes", make_bytes, fault_any_output, tree_drop, "abc"}), 2);
  assert_true(fault_local_run(&(fault_local){"dict", tree_fill, fault_any_output, tree_drop, "dict"}) > 45);
  assert_true(fault_local_run(&(fault_local){"list", tree_fill, fault_any_output, tree_drop, NULL}) > 20);
  assert_true(fault_local_run(&(fault_local){"cycle", close_cycle, is_one, NULL, &x}) >= 2);
  assert_true(fault_local_run(&(fault_local){"path", at_path, fault_any_output, NULL, &x}) >= 4);
  assert_true(fault_local_run(&(fault_local){"visit", visit_tree, is_one, NULL, &x}) >= 2);
  tear_down(&x);
}

/* --- Kinds ---------------------------------------------------------------------------------------------------- */

static reshard_status make_struct(fault_output *out, const void *with) {
  reshard_tree s;
  RS_TRY(reshard_tree_struct(with, &s));
  out->object = s;
  return RESHARD_SUCCESS;
}

static reshard_status make_packed(fault_output *out, const void *with) {
  static const int64_t sizes[2] = {2, 1}, order[2] = {1, 0};
  reshard_tree s;
  RS_TRY(reshard_tree_packed((reshard_tensor)with, 2, sizes, order, order, &s));
  out->object = s;
  return RESHARD_SUCCESS;
}

static void add_one(void *value) { ++*(int *)value; }
static void take_one(void *value) { --*(int *)value; }
static const reshard_tree_type counted = {.name = "Counter", .retain = add_one, .release = take_one};

static reshard_status make_opaque(fault_output *out, const void *with) {
  reshard_tree s;
  reshard_status status = reshard_tree_opaque(&counted, (void *)with, &s);
  assert_int_equal(*(const int *)with, status == RESHARD_SUCCESS);
  if (status == RESHARD_SUCCESS)
    out->object = s;
  return status;
}

/* A set and a dict with integer keys, which are as they were after an error. */
static reshard_status fill_set(fault_output *out, const void *with) {
  reshard_tree s, d = NULL, leaf = (reshard_tree)with;
  reshard_status status = reshard_tree_create_set(&s);
  if (status != RESHARD_SUCCESS)
    return status;
  status = reshard_tree_append(s, leaf);
  assert_int_equal(reshard_tree_count(s), status == RESHARD_SUCCESS);
  RS_THEN(status, reshard_tree_append(s, leaf));
  RS_THEN(status, reshard_tree_dict(&d));
  if (status == RESHARD_SUCCESS) {
    status = reshard_tree_set_int(d, -3, s);
    assert_int_equal(reshard_tree_count(d), status == RESHARD_SUCCESS);
  }
  reshard_tree_release(s);
  if (status == RESHARD_SUCCESS)
    out->object = d;
  else
    reshard_tree_release(d);
  return status;
}

static bool one_member(const fault_output *out, const void *with) {
  reshard_tree s;
  return reshard_tree_find_int(out->object, -3, &s) == RESHARD_SUCCESS && reshard_tree_count(s) == 1;
}

CASE(kinds_of_nodes_survive_any_failed_allocation) {
  reshard_tensor data = floats(3);
  int count = 0;
  assert_int_equal(fault_local_run(&(fault_local){"struct", make_struct, fault_any_output, tree_drop, "S"}), 3);
  assert_int_equal(fault_local_run(&(fault_local){"packed", make_packed, fault_any_output, tree_drop, data}), 8);
  assert_int_equal(fault_local_run(&(fault_local){"opaque", make_opaque, fault_any_output, tree_drop, &count}), 1);
  assert_int_equal(count, 0);
  reshard_tree leaf = text("member");
  assert_true(fault_local_run(&(fault_local){"set", fill_set, one_member, tree_drop, leaf}) >= 10);
  reshard_tree_release(leaf);
  reshard_tensor_release(data);
}

/* --- Trees of trees ------------------------------------------------------------------------------------------- */

/* Something of each kind, twenty levels deep, with leaves, a container and a tensor that are at several places. */
static reshard_tree sample(void) {
  static const int64_t sizes[2] = {2, 1};
  reshard_tensor tensor = floats(3);
  reshard_tree low = set(dict(), "t", leaf_of(reshard_tensor_retain(tensor))), root = dict(), deep = integer(1);
  set(low, "again", leaf_of(reshard_tensor_retain(tensor)));
  for (int i = 0; i < 20; i++)
    deep = append(append(i % 2 ? list() : tuple(), deep), integer(i));
  set(set(root, "low", reshard_tree_retain(low)), "deep", deep);
  set(root, "s", set(structure("S"), "low", low));
  reshard_tree numbers = dict(), members = NULL, leaf = integer(40);
  GOOD(reshard_tree_set_int(numbers, 5, leaf));
  GOOD(reshard_tree_create_set(&members));
  append(append(append(members, leaf), text("m")), integer(41));
  set(set(root, "numbers", numbers), "members", members);
  return set(root, "p", packed(tensor, 2, sizes));
}

static reshard_status leaf_change(void *user, const char *path, reshard_tree leaf, reshard_tree *mapped) {
  int64_t value;
  return reshard_tree_get_int(leaf, &value) == RESHARD_SUCCESS ? reshard_tree_int(value + 1, mapped) : RESHARD_SUCCESS;
}

static reshard_status map(fault_output *out, const void *with) {
  reshard_tree s;
  RS_TRY(reshard_tree_map((reshard_tree)with, leaf_change, NULL, &s));
  out->object = s;
  return RESHARD_SUCCESS;
}

static bool mapped_well(const fault_output *out, const void *with) {
  return value_at(out->object, "deep.0.0.0.1") == 17 && value_at((reshard_tree)with, "deep.0.0.0.1") == 16 &&
         node_at(out->object, "s") == node_at((reshard_tree)with, "s");
}

static reshard_status change_tensor(void *user, const char *path, reshard_tensor tensor, reshard_tensor *mapped) {
  static const int64_t three = 3;
  return reshard_tensor_create(RESHARD_F32, 1, &three, mapped);
}

static reshard_status map_tensors(fault_output *out, const void *with) {
  reshard_tree s;
  RS_TRY(reshard_tree_map_tensors((reshard_tree)with, change_tensor, NULL, &s));
  out->object = s;
  return RESHARD_SUCCESS;
}

static bool tensors_well(const fault_output *out, const void *with) {
  reshard_tensor a, b;
  return node_at(out->object, "low") == node_at(out->object, "s.low") &&
         node_at(out->object, "deep") == node_at((reshard_tree)with, "deep") &&
         reshard_tree_get_tensor(node_at(out->object, "low.t"), &a) == RESHARD_SUCCESS &&
         reshard_tree_get_tensor(node_at(out->object, "p.data"), &b) == RESHARD_SUCCESS && a == b;
}

/* A mapped dict whose names are the other's until it is filled: then a copy of them is. */
static reshard_status fill_mapped(fault_output *out, const void *with) {
  reshard_tree mapped, child, copied = NULL;
  GOOD(reshard_tree_child((reshard_tree)with, 0, NULL, &child));
  reshard_status status = reshard_tree_map_tensors(child, change_tensor, NULL, &mapped);
  if (status != RESHARD_SUCCESS)
    return status;
  status = reshard_tree_set(mapped, "new", child);
  assert_int_equal(reshard_tree_count(mapped), status == RESHARD_SUCCESS ? 3 : 2);
  assert_int_equal(reshard_tree_count(child), 2);
  GOOD(reshard_tree_find(mapped, "again", &copied));
  if (status == RESHARD_SUCCESS)
    out->object = mapped;
  else
    reshard_tree_release(mapped);
  return status;
}

static reshard_status tree_flatten(fault_output *out, const void *with) {
  const reshard_tree_leaves *flat;
  RS_TRY(reshard_tree_flatten((reshard_tree)with, &flat));
  out->object = (void *)flat;
  return RESHARD_SUCCESS;
}

static bool flat_well(const fault_output *out, const void *with) {
  const reshard_tree_leaves *flat = out->object;
  bool good = flat->n == 27; /* one is at two places */
  for (int64_t i = 0; i < flat->n; i++)
    good = good && node_at((reshard_tree)with, flat->paths[i]) == flat->leaves[i];
  return good;
}

static void release_flat(fault_output *out) { reshard_tree_leaves_release(out->object); }

typedef struct rebuild {
  reshard_tree tree;
  const reshard_tree_leaves *flat;
  reshard_tree leaves[27];
} rebuild;

static reshard_status rebuild_tree(fault_output *out, const void *with) {
  const rebuild *r = with;
  reshard_tree s;
  RS_TRY(reshard_tree_rebuild(r->tree, r->flat->n, r->leaves, &s));
  out->object = s;
  return RESHARD_SUCCESS;
}

static reshard_status compare_trees(fault_output *out, const void *with) {
  const reshard_tree *both = with;
  int equal;
  RS_TRY(reshard_tree_equal(both[0], both[1], &equal));
  out->number = equal;
  return RESHARD_SUCCESS;
}

static bool is_equal(const fault_output *out, const void *with) { return out->number == 1; }

static reshard_status print(fault_output *out, const void *with) {
  char text[4096];
  RS_TRY(reshard_tree_print((reshard_tree)with, text, sizeof text, NULL));
  out->number = strstr(text, "low: *") != NULL;
  return RESHARD_SUCCESS;
}

CASE(calls_on_trees_survive_any_failed_allocation) {
  reshard_tree tree = sample(), other;
  rebuild r = {.tree = tree};
  GOOD(reshard_tree_flatten(tree, &r.flat));
  memcpy(r.leaves, r.flat->leaves, sizeof r.leaves);
  r.leaves[1] = r.leaves[0];
  assert_true(fault_local_run(&(fault_local){"map", map, mapped_well, tree_drop, tree}) > 45);
  assert_true(fault_local_run(&(fault_local){"map tensors", map_tensors, tensors_well, tree_drop, tree}) > 15);
  assert_true(fault_local_run(&(fault_local){"fill mapped", fill_mapped, fault_any_output, tree_drop, tree}) > 10);
  assert_true(fault_local_run(&(fault_local){"flatten", tree_flatten, flat_well, release_flat, tree}) > 10);
  assert_true(fault_local_run(&(fault_local){"rebuild", rebuild_tree, fault_any_output, tree_drop, &r}) > 10);
  assert_true(fault_local_run(&(fault_local){"print", print, is_equal, NULL, tree}) > 8);
  /* Equal, and other containers where there was a change: the leaves are the first one's again. */
  reshard_tree both[2] = {tree, NULL};
  GOOD(reshard_tree_map(tree, leaf_change, NULL, &other));
  GOOD(reshard_tree_rebuild(other, r.flat->n, r.flat->leaves, &both[1]));
  assert_true(both[1] != tree);
  assert_true(fault_local_run(&(fault_local){"equal", compare_trees, is_equal, NULL, both}) >= 1);
  reshard_tree_release(both[1]);
  reshard_tree_release(other);
  reshard_tree_leaves_release(r.flat);
  reshard_tree_release(tree);
}

/* Shared containers on both sides: the pairs are noted. */
CASE(comparing_shared_containers_survives_any_failed_allocation) {
  reshard_tree both[2];
  for (int i = 0; i < 2; i++) {
    both[i] = append(list(), integer(1));
    for (int k = 0; k < 20; k++)
      both[i] = append(append(list(), reshard_tree_retain(both[i])), both[i]);
  }
  assert_true(fault_local_run(&(fault_local){"pairs", compare_trees, is_equal, NULL, both}) > 22);
  reshard_tree_release(both[0]);
  reshard_tree_release(both[1]);
}

/* --- Names ---------------------------------------------------------------------------------------------------- */

static reshard_status rename_keys(fault_output *out, const void *with) {
  reshard_tree dict = (reshard_tree)with, found;
  reshard_status status = reshard_tree_replace_by_prefix(dict, "a.", "much longer.");
  bool renamed = reshard_tree_find(dict, "much longer.3", &found) == RESHARD_SUCCESS;
  bool there = reshard_tree_find(dict, "a.3", &found) == RESHARD_SUCCESS;
  if (renamed != (status == RESHARD_SUCCESS) || there == renamed)
    return RESHARD_ERROR_CORRUPT;
  if (status != RESHARD_SUCCESS) { /* the text of what failed, not of what was not found */
    reshard_status again = reshard_tree_replace_by_prefix(dict, "a.", "a.");
    return again == RESHARD_ERROR_INVALID ? status : RESHARD_ERROR_CORRUPT;
  }
  fault_mark(false); /* and back */
  status = reshard_tree_replace_by_prefix(dict, "much longer.", "a.");
  fault_mark(true);
  out->number = 1;
  return status;
}

typedef struct arguments {
  reshard_tree args, kwargs;
} arguments;

static reshard_status pack_unpack(fault_output *out, const void *with) {
  const arguments *a = with;
  reshard_tree values = NULL, names = NULL, args = NULL, kwargs = NULL;
  reshard_status status = reshard_tree_pack_kwargs(a->args, a->kwargs, &values, &names);
  RS_THEN(status, reshard_tree_unpack_kwargs(values, names, &args, &kwargs));
  assert_true((args != NULL) == (status == RESHARD_SUCCESS) && (kwargs != NULL) == (args != NULL));
  if (status == RESHARD_SUCCESS)
    out->object = kwargs;
  reshard_tree_release(args);
  reshard_tree_release(values);
  reshard_tree_release(names);
  return status;
}

CASE(names_of_keys_survive_any_failed_allocation) {
  reshard_tree keys = set(set(set(dict(), "b.2", integer(1)), "a.3", integer(2)), "a.5", integer(3));
  arguments a = {append(append(tuple(), integer(1)), integer(2)), keys};
  assert_true(fault_local_run(&(fault_local){"kwargs", pack_unpack, fault_any_output, tree_drop, &a}) > 15);
  assert_true(fault_local_run(&(fault_local){"prefix", rename_keys, is_equal, NULL, keys}) >= 6);
  reshard_tree_release(a.args);
  reshard_tree_release(keys);
}

RUN_CASES
