/* Trees of the structure of another one: mapped, flattened, rebuilt. What has not changed is the same node, what is
 * shared stays shared, and nothing is left of a mapping that failed. */
#include "bench/cli/util.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/trees.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Adds 100 to odd numbers, and lists what it was called with. A null ends it. */
typedef struct adder {
  char calls[512];
} adder;

static reshard_status add_hundred(void *user, const char *path, reshard_tree leaf, reshard_tree *mapped) {
  adder *a = user;
  int64_t value;
  snprintf(a->calls + strlen(a->calls), sizeof a->calls - strlen(a->calls), "%s ", path);
  assert_null(*mapped);
  if (reshard_tree_get_kind(leaf) == RESHARD_TREE_NULL)
    return RESHARD_ERROR_UNSUPPORTED;
  if (reshard_tree_get_int(leaf, &value) == RESHARD_SUCCESS && value % 2 != 0)
    *mapped = integer(value + 100);
  else if (value % 4 == 0)
    *mapped = reshard_tree_retain(leaf); /* itself: as if nothing was put there */
  return RESHARD_SUCCESS;
}

CASE(mapping_keeps_nodes_that_do_not_change) {
  adder a = {""};
  reshard_tree root = dict(), same = append(append(list(), integer(2)), integer(4)), mapped, leaf;
  set(root, "same", same);
  set(root, "list", append(append(append(list(), integer(6)), integer(7)), integer(8)));
  set(root, "tuple", append(tuple(), append(tuple(), integer(9))));
  set(root, "struct", set(set(structure("S"), "x", integer(12)), "y", integer(11)));
  set(root, "a.b", text("t"));
  GOOD(reshard_tree_map(root, add_hundred, &a, &mapped));
  assert_string_equal(a.calls, "same.0 same.1 list.0 list.1 list.2 tuple.0.0 struct.x struct.y a.b ");
  assert_ptr_not_equal(mapped, root);
  assert_ptr_equal(node_at(mapped, "same"), same);
  assert_ptr_equal(node_at(mapped, "a.b"), node_at(root, "a.b"));
  assert_ptr_equal(node_at(mapped, "list.0"), node_at(root, "list.0"));
  assert_ptr_equal(node_at(mapped, "list.2"), node_at(root, "list.2"));
  assert_int_equal(value_at(mapped, "list.1"), 107);
  assert_int_equal(value_at(root, "list.1"), 7); /* as it was */
  assert_int_equal(value_at(mapped, "tuple.0.0"), 109);
  assert_int_equal(reshard_tree_get_kind(node_at(mapped, "tuple.0")), RESHARD_TREE_TUPLE);
  const char *name;
  GOOD(reshard_tree_get_struct(node_at(mapped, "struct"), &name));
  assert_string_equal(name, "S");
  assert_int_equal(value_at(mapped, "struct.y"), 111);
  for (int64_t i = 0; i < 5; i++) {
    const char *key, *wanted;
    GOOD(reshard_tree_child(mapped, i, &key, NULL));
    GOOD(reshard_tree_child(root, i, &wanted, NULL));
    assert_string_equal(key, wanted);
  }
  reshard_tree_release(mapped);

  GOOD(reshard_tree_map(root, add_hundred, &a, &mapped));
  BAD(reshard_tree_append(node_at(mapped, "list"), mapped),
      "reshard_tree_append: the child has the container inside it");
  BAD(reshard_tree_append(same, mapped), "reshard_tree_append: the child has the container inside it");
  reshard_tree_release(mapped);

  *a.calls = '\0';
  GOOD(reshard_tree_map(same, add_hundred, &a, &mapped)); /* nothing changes */
  assert_ptr_equal(mapped, same);
  reshard_tree_release(mapped);
  GOOD(reshard_tree_map(node_at(root, "list.1"), add_hundred, &a, &mapped)); /* a leaf */
  assert_string_equal(a.calls, "0 1  ");
  GOOD(reshard_tree_int(107, &leaf));
  int equal;
  GOOD(reshard_tree_equal(mapped, leaf, &equal));
  assert_true(equal);
  reshard_tree_release(leaf);
  reshard_tree_release(mapped);

  BAD(reshard_tree_map(NULL, add_hundred, &a, &mapped), "reshard_tree_map: tree is NULL");
  BAD(reshard_tree_map(root, NULL, &a, &mapped), "reshard_tree_map: map is NULL");
  BAD(reshard_tree_map(root, add_hundred, &a, NULL), "reshard_tree_map: the output is NULL");
  BAD(reshard_tree_map_tensors(root, NULL, &a, &mapped), "reshard_tree_map_tensors: map is NULL");
  reshard_tree_release(root);
}

static reshard_tree pair(void) { return set(set(dict(), "a", integer(1)), "b", integer(2)); }

static void assert_pair(reshard_tree d) {
  const char *key;
  assert_int_equal(reshard_tree_count(d), 2);
  assert_int_equal(value_at(d, "b"), 2);
  GOOD(reshard_tree_child(d, 1, &key, NULL));
  assert_string_equal(key, "b");
}

/* A mapped dict shares its names with the one before, until one of the two changes, or the other is gone. */
CASE(test_names_after_map) {
  for (int k = 0; k < 4; k++) {
    adder a = {""};
    reshard_tree before = pair(), after, none;
    GOOD(reshard_tree_map(before, add_hundred, &a, &after));
    reshard_tree changed = k % 2 ? before : after, other = k % 2 ? after : before;
    if (k < 2) {
      set(changed, "c", integer(3));
      assert_int_equal(value_at(changed, "c"), 3);
    } else {
      GOOD(reshard_tree_replace_by_prefix(changed, "", "c."));
      assert_int_equal(value_at(changed, "c.b"), 2);
    }
    assert_int_equal(reshard_tree_find(other, "c", &none), RESHARD_ERROR_INVALID);
    assert_pair(other);
    reshard_tree_release(other);
    set(changed, "d", integer(4)); /* it has them alone now */
    assert_int_equal(value_at(changed, "d"), 4);
    reshard_tree_release(changed);
  }
}

CASE(shared_leaves_are_mapped_once) {
  adder a = {""};
  reshard_tree leaf = integer(1), even = integer(2), inner = dict(), root = list(), mapped;
  set(inner, "k", reshard_tree_retain(leaf));
  set(inner, "e", reshard_tree_retain(even));
  append(append(append(root, inner), leaf), reshard_tree_retain(inner));
  append(append(root, even), set(dict(), "again", reshard_tree_retain(inner)));
  GOOD(reshard_tree_map(root, add_hundred, &a, &mapped));
  assert_string_equal(a.calls, "0.k 0.e ");
  assert_ptr_not_equal(node_at(mapped, "0"), inner);
  assert_ptr_equal(node_at(mapped, "0"), node_at(mapped, "2"));
  assert_ptr_equal(node_at(mapped, "0"), node_at(mapped, "4.again"));
  assert_ptr_equal(node_at(mapped, "1"), node_at(mapped, "0.k"));
  assert_ptr_equal(node_at(mapped, "3"), even);
  assert_int_equal(value_at(mapped, "4.again.k"), 101);
  reshard_tree_release(mapped);
  reshard_tree_release(root);

  /* 2^60 paths, 61 nodes */
  reshard_tree top = set(dict(), "n", integer(1));
  char path[2 * 60 + 2] = "";
  for (int i = 0; i < 60; i++) {
    top = append(append(list(), reshard_tree_retain(top)), top);
    strcat(path, i % 2 ? "0." : "1.");
  }
  *a.calls = '\0';
  GOOD(reshard_tree_map(top, add_hundred, &a, &mapped));
  assert_int_equal(value_at(mapped, strcat(path, "n")), 101);
  assert_ptr_equal(node_at(mapped, "0"), node_at(mapped, "1"));
  const reshard_tree_leaves *leaves;
  GOOD(reshard_tree_flatten(mapped, &leaves));
  assert_int_equal(leaves->n, 1);
  int equal;
  GOOD(reshard_tree_equal(top, mapped, &equal));
  assert_false(equal);
  reshard_tree_leaves_release(leaves);
  reshard_tree back;
  reshard_tree one = integer(1);
  GOOD(reshard_tree_rebuild(mapped, 1, &one, &back));
  GOOD(reshard_tree_equal(top, back, &equal)); /* pair by pair, not path by path */
  assert_true(equal);
  reshard_tree_release(one);
  reshard_tree_release(back);
  reshard_tree_release(mapped);
  reshard_tree_release(top);
}

CASE(failed_mapping_leaves_nothing) {
  adder a = {""};
  reshard_tree root = list(), mapped = root;
  append(append(root, integer(1)), append(append(append(list(), integer(3)), nothing()), integer(5)));
  assert_int_equal(reshard_tree_map(root, add_hundred, &a, &mapped), RESHARD_ERROR_UNSUPPORTED);
  assert_string_equal(a.calls, "0 1.0 1.1 ");
  assert_ptr_equal(mapped, root); /* that nothing is left of it is what the sanitizer says */
  reshard_tree_release(root);
}

/* --- Tensors -------------------------------------------------------------------------------------------------- */

/* A new tensor of `rows` rows for each of 2 or 6. */
typedef struct maker {
  int64_t rows, calls;
  char paths[256];
} maker;

static reshard_status make_other(void *user, const char *path, reshard_tensor tensor, reshard_tensor *mapped) {
  maker *m = user;
  reshard_tensor_info info;
  GOOD(reshard_tensor_get_info(tensor, &info));
  assert_null(*mapped);
  m->calls++;
  snprintf(m->paths + strlen(m->paths), sizeof m->paths - strlen(m->paths), "%s ", path);
  if (info.shape[0] == 9)
    *mapped = reshard_tensor_retain(tensor);
  if (info.shape[0] == 2 || info.shape[0] == 6)
    *mapped = floats(m->rows > 0 ? m->rows : info.shape[0]);
  return RESHARD_SUCCESS;
}

static reshard_tensor tensor_at(reshard_tree tree, const char *path) {
  reshard_tensor tensor;
  GOOD(reshard_tree_get_tensor(node_at(tree, path), &tensor));
  return tensor;
}

CASE(tensors_of_all_kinds_of_nodes_are_mapped) {
  static const int64_t sizes[3] = {3, 2, 1};
  static const reshard_tree_type type = {.name = "T"};
  maker m = {0};
  reshard_tree root = dict(), mapped, opaque;
  reshard_tensor two = floats(2), kept, data;
  GOOD(reshard_tree_opaque(&type, &m, &opaque));
  set(root, "a", leaf_of(reshard_tensor_retain(two)));
  set(root, "b", append(append(list(), leaf_of(floats(5))), leaf_of(reshard_tensor_retain(two))));
  set(root, "n", append(tuple(), integer(1)));
  set(root, "o", opaque);
  set(root, "s", set(structure("S"), "t", leaf_of(two)));
  set(root, "p", packed(floats(6), 3, sizes));
  set(root, "nine", leaf_of(floats(9)));
  kept = tensor_at(root, "b.0");
  GOOD(reshard_tree_map_tensors(root, make_other, &m, &mapped));
  assert_string_equal(m.paths, "a b.0 p.data nine "); /* the one that three leaves have once */
  assert_ptr_not_equal(tensor_at(mapped, "a"), two);
  assert_ptr_equal(tensor_at(mapped, "a"), tensor_at(mapped, "b.1"));
  assert_ptr_equal(tensor_at(mapped, "a"), tensor_at(mapped, "s.t"));
  assert_ptr_equal(tensor_at(mapped, "b.0"), kept);
  assert_ptr_equal(node_at(mapped, "b.0"), node_at(root, "b.0"));
  assert_ptr_equal(node_at(mapped, "n"), node_at(root, "n"));
  assert_ptr_equal(node_at(mapped, "o"), opaque);
  assert_ptr_equal(node_at(mapped, "nine"), node_at(root, "nine"));
  const int64_t *got;
  int64_t steps;
  GOOD(reshard_tree_get_packed(node_at(mapped, "p"), &data, &steps, &got, NULL, NULL));
  assert_ptr_not_equal(data, tensor_at(root, "p.data"));
  assert_true(steps == 3 && got[0] == 3 && got[2] == 1);
  reshard_tree_release(mapped);

  m.rows = 7;
  reshard_tree unchanged = mapped = NULL;
  BAD(reshard_tree_map_tensors(root, make_other, &m, &mapped),
      "path 'p.data': the data of a packed sequence has 6 rows, and would have 7");
  adder a = {""};
  GOOD(reshard_tree_map(root, add_hundred, &a, &unchanged));
  reshard_tree_release(unchanged);
  reshard_tree_release(root);
}

static reshard_status to_integer(void *user, const char *path, reshard_tree leaf, reshard_tree *mapped) {
  return reshard_tree_int(1, mapped);
}

CASE(test_packed_stays) {
  static const int64_t one = 1;
  reshard_tree root = set(dict(), "p", packed(floats(1), 1, &one)), mapped = NULL;
  BAD(reshard_tree_map(root, to_integer, NULL, &mapped),
      "path 'p.data': the data of a packed sequence would become an integer");
  assert_null(mapped);
  reshard_tree_release(root);
}

/* --- Flat and back -------------------------------------------------------------------------------------------- */

CASE(flatten_and_rebuild_are_inverse) {
  static const char *const paths[] = {"a.0", "a.1.x", "b", "a.0", "s.f"};
  static const int64_t values[] = {1, 2, 3, 4, 6};
  reshard_tree root = dict(), shared = integer(2), rebuilt;
  const reshard_tree_leaves *flat;
  set(root, "a", append(append(list(), integer(1)), set(dict(), "x", reshard_tree_retain(shared))));
  set(root, "b", integer(3));
  set(root, "again", shared);
  set(root, "a.0", integer(4)); /* a path that is there already: no matter here */
  set(root, "empty", tuple());
  set(root, "s", set(set(structure("S"), "e", list()), "f", integer(6)));
  GOOD(reshard_tree_flatten(root, &flat));
  assert_int_equal(flat->n, 5);
  for (int64_t i = 0; i < flat->n; i++) {
    int64_t value;
    assert_string_equal(flat->paths[i], paths[i]);
    GOOD(reshard_tree_get_int(flat->leaves[i], &value));
    assert_int_equal(value, values[i]);
  }
  GOOD(reshard_tree_rebuild(root, flat->n, flat->leaves, &rebuilt)); /* with its own leaves */
  assert_ptr_equal(rebuilt, root);
  reshard_tree_release(rebuilt);

  reshard_tree leaves[5];
  memcpy(leaves, flat->leaves, sizeof leaves);
  leaves[1] = append(list(), integer(20)); /* may be any node */
  GOOD(reshard_tree_rebuild(root, 5, leaves, &rebuilt));
  assert_int_equal(value_at(rebuilt, "a.1.x.0"), 20);
  assert_ptr_equal(node_at(rebuilt, "again"), leaves[1]);
  assert_ptr_equal(node_at(rebuilt, "s"), node_at(root, "s"));
  assert_ptr_equal(node_at(rebuilt, "empty"), node_at(root, "empty"));
  reshard_tree_release(rebuilt);
  rebuilt = NULL;
  BAD(reshard_tree_rebuild(root, 4, leaves, &rebuilt), "reshard_tree_rebuild: 4 leaves, the structure has 5");
  BAD(reshard_tree_rebuild(root, 6, leaves, &rebuilt), "reshard_tree_rebuild: 6 leaves, the structure has 5");
  BAD(reshard_tree_rebuild(root, -1, leaves, &rebuilt), "reshard_tree_rebuild: -1 leaves, the structure has 5");
  BAD(reshard_tree_rebuild(NULL, 5, leaves, &rebuilt), "reshard_tree_rebuild: structure is NULL");
  BAD(reshard_tree_rebuild(root, 5, NULL, &rebuilt), "reshard_tree_rebuild: leaves is NULL");
  BAD(reshard_tree_rebuild(root, 5, leaves, NULL), "reshard_tree_rebuild: the output is NULL");
  reshard_tree_release(leaves[1]);
  leaves[1] = NULL;
  BAD(reshard_tree_rebuild(root, 5, leaves, &rebuilt), "reshard_tree_rebuild: leaf 1 is NULL");
  BAD(reshard_tree_flatten(NULL, &flat), "reshard_tree_flatten: tree is NULL");
  BAD(reshard_tree_flatten(root, NULL), "reshard_tree_flatten: the output is NULL");
  assert_null(rebuilt);
  reshard_tree_release(root);
  assert_int_equal(flat->n, 5); /* the leaves are held */
  assert_int_equal(reshard_tree_get_kind(flat->leaves[0]), RESHARD_TREE_INT);
  reshard_tree_leaves_release(flat);
  reshard_tree_leaves_release(NULL);

  reshard_tree leaf = integer(1), none = list();
  GOOD(reshard_tree_flatten(leaf, &flat));
  assert_true(flat->n == 1 && flat->leaves[0] == leaf && *flat->paths[0] == '\0');
  GOOD(reshard_tree_rebuild(none, 0, NULL, &rebuilt));
  assert_ptr_equal(rebuilt, none);
  reshard_tree_release(rebuilt);
  GOOD(reshard_tree_rebuild(leaf, 1, (reshard_tree[]){none}, &rebuilt));
  assert_ptr_equal(rebuilt, none);
  reshard_tree_release(rebuilt);
  reshard_tree_leaves_release(flat);
  GOOD(reshard_tree_flatten(none, &flat));
  assert_int_equal(flat->n, 0);
  reshard_tree_leaves_release(flat);
  reshard_tree_release(none);
  reshard_tree_release(leaf);
}

/* --- Deep ----------------------------------------------------------------------------------------------------- */

static reshard_tree chain(int64_t levels, int64_t value) {
  reshard_tree top = integer(value);
  for (int64_t i = 0; i < levels; i++) {
    reshard_tree up = i % 3 == 0 ? list() : i % 3 == 1 ? tuple() : dict();
    top = i % 3 == 2 ? set(up, "k", top) : append(up, top);
  }
  return top;
}

static reshard_status add_to_one(void *user, const char *path, reshard_tree leaf, reshard_tree *mapped) {
  int64_t value;
  *(size_t *)user = strlen(path);
  GOOD(reshard_tree_get_int(leaf, &value));
  return reshard_tree_int(value + 1, mapped);
}

CASE(deep_trees_are_mapped_without_stack) {
  const int64_t levels = test_scaled(1000000, 1); /* fewer where an instrument makes all of it slow */
  reshard_tree deep = chain(levels, 1), two = chain(levels, 2), mapped, rebuilt;
  const reshard_tree_leaves *flat;
  size_t length = 0, needed;
  int equal;
  GOOD(reshard_tree_map(deep, add_to_one, &length, &mapped));
  assert_int_equal(length, 2 * levels - 1);
  GOOD(reshard_tree_equal(mapped, two, &equal));
  assert_true(equal);
  GOOD(reshard_tree_equal(deep, two, &equal));
  assert_false(equal);
  GOOD(reshard_tree_flatten(two, &flat));
  assert_int_equal(strlen(flat->paths[0]), 2 * levels - 1);
  GOOD(reshard_tree_rebuild(deep, 1, flat->leaves, &rebuilt));
  reshard_tree_leaves_release(flat);
  GOOD(reshard_tree_equal(rebuilt, two, &equal));
  assert_true(equal);
  assert_int_equal(reshard_tree_print(deep, NULL, 0, &needed), RESHARD_ERROR_INVALID);
  assert_true(needed > 30 * (size_t)levels && needed < 300 * (size_t)levels); /* a line each, none without end */
  reshard_tree_release(rebuilt);
  reshard_tree_release(mapped);
  reshard_tree_release(two);
  reshard_tree_release(deep);
}

/* --- Threads -------------------------------------------------------------------------------------------------- */

typedef struct mapping {
  reshard_tree shared;
  int64_t wrong[4];
} mapping;

static reshard_status negate(void *user, const char *path, reshard_tree leaf, reshard_tree *mapped) {
  int64_t value;
  reshard_status status = reshard_tree_get_int(leaf, &value);
  return status == RESHARD_SUCCESS ? reshard_tree_int(-value, mapped) : status;
}

/* All map one tree; each fills what has become of it, whose names it shares with the others' until then. */
static void map_shared(void *user, int64_t rank) {
  mapping *m = user;
  for (int64_t i = 0; i < 200; i++) {
    reshard_tree mapped = NULL, found = NULL, extra = NULL;
    int64_t value = 0, failed = 0;
    failed += reshard_tree_map(m->shared, negate, NULL, &mapped) != RESHARD_SUCCESS;
    failed += reshard_tree_int(rank, &extra) != RESHARD_SUCCESS;
    failed += reshard_tree_set(mapped, rank % 2 ? "odd" : "even", extra) != RESHARD_SUCCESS;
    failed += reshard_tree_at(mapped, "s.x.0", &found) != RESHARD_SUCCESS;
    failed += reshard_tree_get_int(found, &value) != RESHARD_SUCCESS;
    m->wrong[rank] += failed != 0 || value != -4 || reshard_tree_count(mapped) != 3;
    reshard_tree_release(extra);
    reshard_tree_release(mapped);
  }
}

CASE(threads_map_one_tree) {
  reshard_tree shared = append(list(), integer(4));
  mapping m = {.shared = set(dict(), "s", set(structure("S"), "x", reshard_tree_retain(shared)))};
  set(m.shared, "again", shared);
  rank_threads_run(4, map_shared, &m);
  for (int r = 0; r < 4; r++)
    assert_int_equal(m.wrong[r], 0);
  assert_int_equal(reshard_tree_count(m.shared), 2);
  reshard_tree_release(m.shared);
}

RUN_CASES
