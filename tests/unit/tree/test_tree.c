/* Trees as containers: what is put in is found again, in order; every refusal; depth, width, sharing. */
#include "bench/cli/util.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/trees.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void count_release(void *user, void *data) { ++*(int *)user; }

static reshard_tensor wrapped(int *released) {
  static float memory[6];
  static const int64_t shape[2] = {2, 3};
  reshard_tensor tensor;
  GOOD(reshard_tensor_wrap(RESHARD_F32, 2, shape, NULL, memory, count_release, released, &tensor));
  return tensor;
}

/* --- Leaves --------------------------------------------------------------------------------------------------- */

CASE(leaves_give_back_what_they_hold) {
  int released = 0;
  reshard_tensor tensor = wrapped(&released), got_tensor;
  reshard_tree s;
  const void *bytes;
  size_t size;
  int64_t number;
  double real;
  int flag;
  char text[] = "a\0b";

  GOOD(reshard_tree_tensor(tensor, &s));
  reshard_tensor_release(tensor);
  GOOD(reshard_tree_get_tensor(s, &got_tensor));
  assert_ptr_equal(got_tensor, tensor);
  assert_int_equal(reshard_tree_get_kind(s), RESHARD_TREE_TENSOR);
  assert_ptr_equal(reshard_tree_retain(s), s);
  reshard_tree_release(s);
  assert_int_equal(released, 0);
  reshard_tree_release(s);
  assert_int_equal(released, 1);

  GOOD(reshard_tree_bytes(text, sizeof text, &s));
  text[0] = 'x'; /* it was copied */
  GOOD(reshard_tree_get_bytes(s, &bytes, &size));
  assert_int_equal(size, sizeof text);
  assert_memory_equal(bytes, "a\0b", size);
  reshard_tree_release(s);
  GOOD(reshard_tree_bytes(NULL, 0, &s));
  GOOD(reshard_tree_get_bytes(s, &bytes, &size));
  assert_int_equal(size, 0);
  reshard_tree_release(s);

  GOOD(reshard_tree_int(INT64_MIN, &s));
  GOOD(reshard_tree_get_int(s, &number));
  assert_true(number == INT64_MIN);
  reshard_tree_release(s);
  GOOD(reshard_tree_float(-0.5, &s));
  GOOD(reshard_tree_get_float(s, &real));
  assert_true(real == -0.5);
  reshard_tree_release(s);
  GOOD(reshard_tree_bool(7, &s));
  GOOD(reshard_tree_get_bool(s, &flag));
  assert_int_equal(flag, 1);
  reshard_tree_release(s);
  GOOD(reshard_tree_null(&s));
  assert_int_equal(reshard_tree_get_kind(s), RESHARD_TREE_NULL);
  assert_int_equal(reshard_tree_count(s), 0);
  reshard_tree_release(s);

  assert_null(reshard_tree_retain(NULL));
  reshard_tree_release(NULL);
  assert_int_equal(reshard_tree_get_kind(NULL), 0);
  assert_int_equal(reshard_tree_count(NULL), 0);
}

CASE(test_leaf_refusals) {
  int released = 0, flag;
  reshard_tensor tensor = wrapped(&released), got_tensor;
  reshard_tree s = integer(3), d = dict(), l = list(), none;
  const void *bytes;
  size_t size;
  int64_t number;
  double real;
  BAD(reshard_tree_dict(NULL), "reshard_tree_dict: the output is NULL");
  BAD(reshard_tree_list(NULL), "reshard_tree_list: the output is NULL");
  BAD(reshard_tree_null(NULL), "reshard_tree_null: the output is NULL");
  BAD(reshard_tree_int(1, NULL), "reshard_tree_int: the output is NULL");
  BAD(reshard_tree_float(1, NULL), "reshard_tree_float: the output is NULL");
  BAD(reshard_tree_bool(1, NULL), "reshard_tree_bool: the output is NULL");
  BAD(reshard_tree_bytes("a", 1, NULL), "reshard_tree_bytes: the output is NULL");
  BAD(reshard_tree_bytes(NULL, 4, &none), "reshard_tree_bytes: bytes is NULL, size is 4");
  assert_int_equal(reshard_tree_bytes("a", SIZE_MAX, &none), RESHARD_ERROR_OUT_OF_MEMORY);
  BAD(reshard_tree_tensor(NULL, &none), "reshard_tree_tensor: tensor is NULL");
  BAD(reshard_tree_tensor(tensor, NULL), "reshard_tree_tensor: the output is NULL");

  BAD(reshard_tree_get_tensor(s, &got_tensor), "reshard_tree_get_tensor: the tree is an integer, not a tensor");
  BAD(reshard_tree_get_bytes(l, &bytes, &size), "reshard_tree_get_bytes: the tree is a list, not bytes");
  BAD(reshard_tree_get_int(d, &number), "reshard_tree_get_int: the tree is a dict, not an integer");
  BAD(reshard_tree_get_float(s, &real), "reshard_tree_get_float: the tree is an integer, not a float");
  BAD(reshard_tree_get_bool(s, &flag), "reshard_tree_get_bool: the tree is an integer, not a bool");
  BAD(reshard_tree_get_int(NULL, &number), "reshard_tree_get_int: tree is NULL");
  BAD(reshard_tree_get_int(s, NULL), "reshard_tree_get_int: the output is NULL");
  reshard_tree_release(s);
  reshard_tree_release(d);
  reshard_tree_release(l);
  reshard_tensor_release(tensor);
  assert_int_equal(released, 1);
}

/* --- Dicts and lists ------------------------------------------------------------------------------------------ */

CASE(containers_keep_order_and_replace_keys) {
  static const char *const keys[] = {"z", "a", "", "m.n"};
  reshard_tree d = dict(), l = list(), child;
  const char *key;
  for (int64_t i = 0; i < 4; i++) {
    set(d, keys[i], integer(i));
    append(l, integer(10 * i));
  }
  set(d, "a", integer(7)); /* keeps its place */
  assert_int_equal(reshard_tree_count(d), 4);
  for (int64_t i = 0; i < 4; i++) {
    int64_t value;
    GOOD(reshard_tree_child(d, i, &key, &child));
    assert_string_equal(key, keys[i]);
    GOOD(reshard_tree_get_int(child, &value));
    assert_int_equal(value, i == 1 ? 7 : i);
    GOOD(reshard_tree_find(d, keys[i], &child));
    GOOD(reshard_tree_child(d, i, NULL, NULL));
    GOOD(reshard_tree_child(l, i, &key, &child));
    assert_null(key);
    GOOD(reshard_tree_get_int(child, &value));
    assert_int_equal(value, 10 * i);
  }
  GOOD(reshard_tree_find(d, "a", &child));
  reshard_tree_retain(child);
  GOOD(reshard_tree_set(d, "a", child)); /* in place of itself */
  reshard_tree_release(child);
  assert_int_equal(value_at(d, "a"), 7);
  reshard_tree_release(d);
  reshard_tree_release(l);
}

CASE(test_container_refusals) {
  reshard_tree d = dict(), l = list(), s = integer(1), found = NULL;
  const char *key;
  BAD(reshard_tree_set(NULL, "a", s), "reshard_tree_set: the container is NULL");
  BAD(reshard_tree_set(d, NULL, s), "reshard_tree_set: the key is NULL");
  BAD(reshard_tree_set(d, "a", NULL), "reshard_tree_set: the child is NULL");
  BAD(reshard_tree_set(l, "a", s), "reshard_tree_set: the container is a list, not a dict or a struct");
  BAD(reshard_tree_set(s, "a", s), "reshard_tree_set: the container is an integer, not a dict or a struct");
  BAD(reshard_tree_append(d, s), "reshard_tree_append: the container is a dict, not a list or a tuple");
  BAD(reshard_tree_append(NULL, s), "reshard_tree_append: the container is NULL");
  BAD(reshard_tree_append(l, NULL), "reshard_tree_append: the child is NULL");
  BAD(reshard_tree_child(l, 0, &key, &found), "reshard_tree_child: child 0 of a list with 0");
  set(d, "a", integer(2));
  BAD(reshard_tree_child(d, 1, &key, &found), "reshard_tree_child: child 1 of a dict with 1");
  BAD(reshard_tree_child(d, -1, &key, &found), "reshard_tree_child: child -1 of a dict with 1");
  BAD(reshard_tree_child(s, 0, &key, &found), "reshard_tree_child: child 0 of an integer with 0");
  BAD(reshard_tree_child(NULL, 0, &key, &found), "reshard_tree_child: child 0 of NULL with 0");
  BAD(reshard_tree_find(d, "b", &found), "reshard_tree_find: a dict has no key 'b'");
  BAD(reshard_tree_find(d, "a\nb", &found), "reshard_tree_find: a dict has no key 'a?b'");
  BAD(reshard_tree_find(d, NULL, &found), "reshard_tree_find: the key is NULL");
  BAD(reshard_tree_find(NULL, "a", &found), "reshard_tree_find: tree is NULL");
  BAD(reshard_tree_find(d, "a", NULL), "reshard_tree_find: the output is NULL");
  BAD(reshard_tree_find(l, "a", &found), "reshard_tree_find: the tree is a list, not a dict");
  BAD(reshard_tree_at(d, "a.b", &found), "the tree has no path 'a.b'");
  BAD(reshard_tree_at(NULL, "a", &found), "reshard_tree_at: tree is NULL");
  BAD(reshard_tree_at(d, NULL, &found), "reshard_tree_at: path is NULL");
  BAD(reshard_tree_at(d, "a", NULL), "reshard_tree_at: found is NULL");
  BAD(reshard_tree_visit(NULL, NULL, NULL), "reshard_tree_visit: tree is NULL");
  BAD(reshard_tree_visit(d, NULL, NULL), "reshard_tree_visit: visit is NULL");
  assert_null(found);
  assert_int_equal(reshard_tree_count(d), 1); /* as it was */
  reshard_tree_release(d);
  reshard_tree_release(l);
  reshard_tree_release(s);
}

/* --- Tuples, structs, packed sequences, values of the caller's ------------------------------------------------ */

CASE(test_tuples_and_structs) {
  reshard_tree t = append(append(tuple(), integer(1)), integer(2)), s = structure("Point"), found;
  const char *name, *key;
  set(set(s, "x", integer(3)), "y", t);
  set(s, "x", integer(4)); /* keeps its place */
  assert_int_equal(reshard_tree_get_kind(s), RESHARD_TREE_STRUCT);
  assert_int_equal(reshard_tree_get_kind(node_at(s, "y")), RESHARD_TREE_TUPLE);
  GOOD(reshard_tree_get_struct(s, &name));
  assert_string_equal(name, "Point");
  assert_int_equal(reshard_tree_count(s), 2);
  GOOD(reshard_tree_child(s, 0, &key, &found));
  assert_string_equal(key, "x");
  GOOD(reshard_tree_find(s, "y", &found));
  assert_ptr_equal(found, t);
  GOOD(reshard_tree_child(found, 1, &key, NULL));
  assert_null(key);
  assert_int_equal(value_at(s, "x"), 4);
  assert_int_equal(value_at(s, "y.1"), 2);
  BAD(reshard_tree_append(s, t), "reshard_tree_append: the container is a struct, not a list or a tuple");
  BAD(reshard_tree_set(t, "x", t), "reshard_tree_set: the container is a tuple, not a dict or a struct");
  BAD(reshard_tree_append(t, s), "reshard_tree_append: the child has the container inside it");
  BAD(reshard_tree_get_struct(t, &name), "reshard_tree_get_struct: the tree is a tuple, not a struct");
  BAD(reshard_tree_find(s, "z", &found), "reshard_tree_find: a struct has no key 'z'");
  BAD(reshard_tree_struct(NULL, &found), "reshard_tree_struct: name is NULL");
  BAD(reshard_tree_struct("s", NULL), "reshard_tree_struct: the output is NULL");
  BAD(reshard_tree_tuple(NULL), "reshard_tree_tuple: the output is NULL");
  reshard_tree_release(s);
}

CASE(packed_sequences_check_their_orders) {
  static const int64_t sizes[3] = {3, 2, 1}, sorted[3] = {2, 0, 1}, unsorted[3] = {1, 2, 0}, far[3] = {0, 1, 3},
                       twice[3] = {1, 1, 0}, rising[3] = {2, 3, 1}, none[2] = {6, 0}, huge[2] = {INT64_MAX, INT64_MAX};
  const int64_t *got_sizes, *got_sorted, *got_unsorted;
  reshard_tensor data = floats(6), scalar, got;
  reshard_tree p, found;
  const char *key;
  int64_t steps;
  GOOD(reshard_tensor_create(RESHARD_F32, 0, NULL, &scalar));

  GOOD(reshard_tree_packed(data, 3, sizes, sorted, unsorted, &p));
  assert_int_equal(reshard_tree_get_kind(p), RESHARD_TREE_PACKED);
  GOOD(reshard_tree_get_packed(p, &got, &steps, &got_sizes, &got_sorted, &got_unsorted));
  assert_ptr_equal(got, data);
  assert_int_equal(steps, 3);
  assert_memory_equal(got_sizes, sizes, sizeof sizes);
  assert_memory_equal(got_sorted, sorted, sizeof sorted);
  assert_memory_equal(got_unsorted, unsorted, sizeof unsorted);
  assert_int_equal(reshard_tree_count(p), 1);
  GOOD(reshard_tree_child(p, 0, &key, &found));
  assert_string_equal(key, "data");
  assert_ptr_equal(node_at(p, "data"), found);
  GOOD(reshard_tree_get_tensor(found, &got));
  assert_ptr_equal(got, data);
  BAD(reshard_tree_set(p, "data", found),
      "reshard_tree_set: the container is a packed sequence, not a dict or a struct");
  BAD(reshard_tree_append(p, found), "reshard_tree_append: the container is a packed sequence, not a list or a tuple");
  reshard_tree_release(p);

  for (int with = 0; with < 3; with++) { /* one order, or none */
    GOOD(reshard_tree_packed(data, 3, sizes, with == 1 ? sorted : NULL, with == 2 ? unsorted : NULL, &p));
    GOOD(reshard_tree_get_packed(p, NULL, NULL, NULL, &got_sorted, &got_unsorted));
    assert_true((got_sorted != NULL) == (with == 1) && (got_unsorted != NULL) == (with == 2));
    if (with == 2)
      assert_memory_equal(got_unsorted, unsorted, sizeof unsorted);
    reshard_tree_release(p);
  }

  BAD(reshard_tree_packed(NULL, 3, sizes, NULL, NULL, &p), "reshard_tree_packed: data is NULL");
  BAD(reshard_tree_packed(data, 3, NULL, NULL, NULL, &p), "reshard_tree_packed: batch_sizes is NULL");
  BAD(reshard_tree_packed(data, 3, sizes, NULL, NULL, NULL), "reshard_tree_packed: the output is NULL");
  BAD(reshard_tree_packed(scalar, 3, sizes, NULL, NULL, &p),
      "reshard_tree_packed: the data is a scalar, it has no rows");
  BAD(reshard_tree_packed(data, 0, sizes, NULL, NULL, &p), "reshard_tree_packed: 0 steps, 1 is the least");
  BAD(reshard_tree_packed(data, 2, none, NULL, NULL, &p),
      "reshard_tree_packed: batch size 0 of step 1, 1 is the least");
  BAD(reshard_tree_packed(data, 3, rising, NULL, NULL, &p),
      "reshard_tree_packed: batch size 3 of step 1 is more than the 2 of the step before");
  BAD(reshard_tree_packed(data, 2, sizes, NULL, NULL, &p),
      "reshard_tree_packed: the batch sizes have 5 rows, the data has 6");
  BAD(reshard_tree_packed(data, 2, huge, NULL, NULL, &p),
      "reshard_tree_packed: the sum of the batch sizes overflows at step 1");
  BAD(reshard_tree_packed(data, 3, sizes, far, NULL, &p), "reshard_tree_packed: sorted[2] is 3, the batch has 3");
  BAD(reshard_tree_packed(data, 3, sizes, twice, NULL, &p), "reshard_tree_packed: sorted[0] and sorted[1] are both 1");
  BAD(reshard_tree_packed(data, 3, sizes, NULL, twice, &p),
      "reshard_tree_packed: unsorted[0] and unsorted[1] are both 1");
  BAD(reshard_tree_packed(data, 3, sizes, sorted, sorted, &p),
      "reshard_tree_packed: unsorted[0] is 2, sorted has 0 at 1");
  BAD(reshard_tree_get_packed(NULL, NULL, NULL, NULL, NULL, NULL), "reshard_tree_get_packed: tree is NULL");
  reshard_tensor_release(data);
  reshard_tensor_release(scalar);
}

static void add_one(void *value) { ++*(int *)value; }
static void take_one(void *value) { --*(int *)value; }

CASE(opaque_values_are_retained_and_released) {
  static const reshard_tree_type counted = {.name = "Counter", .retain = add_one, .release = take_one},
                                 plain = {.name = "handle"}, owned = {.name = "owner", .release = take_one},
                                 nameless = {.name = NULL};
  int count = 0;
  void *value;
  reshard_tree a, b, c;
  GOOD(reshard_tree_opaque(&counted, &count, &a));
  assert_int_equal(count, 1);
  GOOD(reshard_tree_opaque(&counted, &count, &b));
  assert_int_equal(count, 2);
  GOOD(reshard_tree_get_opaque(a, &counted, &value));
  assert_ptr_equal(value, &count);
  assert_ptr_equal(reshard_tree_get_type(a), &counted);
  reshard_tree_release(a);
  assert_int_equal(count, 1);
  a = append(list(), b);
  GOOD(reshard_tree_opaque(&plain, (void *)7, &c)); /* a number */
  GOOD(reshard_tree_get_opaque(c, &plain, &value));
  assert_true(value == (void *)7);
  append(a, c);
  GOOD(reshard_tree_opaque(&plain, NULL, &c));
  GOOD(reshard_tree_get_opaque(c, &plain, &value));
  assert_null(value);
  append(a, c);
  GOOD(reshard_tree_opaque(&owned, &count, &c)); /* takes over what is there */
  assert_int_equal(count, 1);
  BAD(reshard_tree_get_opaque(c, &counted, &value), "reshard_tree_get_opaque: the tree is a owner, not a Counter");
  BAD(reshard_tree_get_opaque(a, &counted, &value), "reshard_tree_get_opaque: the tree is a list, not a Counter");
  BAD(reshard_tree_get_opaque(c, NULL, &value), "reshard_tree_get_opaque: type is NULL");
  BAD(reshard_tree_get_opaque(c, &owned, NULL), "reshard_tree_get_opaque: the output is NULL");
  BAD(reshard_tree_opaque(NULL, &count, &b), "reshard_tree_opaque: type is NULL");
  BAD(reshard_tree_opaque(&nameless, &count, &b), "reshard_tree_opaque: the type's name is NULL");
  BAD(reshard_tree_opaque(&owned, &count, NULL), "reshard_tree_opaque: the output is NULL");
  assert_int_equal(count, 1);
  reshard_tree_release(c);
  assert_int_equal(count, 0);
  assert_null(reshard_tree_get_type(a));
  assert_null(reshard_tree_get_type(NULL));
  reshard_tree_release(a);
  assert_int_equal(count, -1);
}

/* --- Paths ---------------------------------------------------------------------------------------------------- */

CASE(paths_find_nodes_or_nothing) {
  static const char *const missing[] = {"a.",
                                        "a.b.",
                                        ".a.b",
                                        "l.01",
                                        "l.-1",
                                        "l.+1",
                                        "l.2",
                                        "l.1.",
                                        "l.1.k.x",
                                        "l.1.k2",
                                        "l.",
                                        "b.c",
                                        "a.b.q",
                                        "l.99999999999999999999",
                                        "l.9223372036854775807"};
  reshard_tree root = dict(), inner = dict(), l = list(), found;
  set(inner, "b", integer(1));
  set(inner, "b.c", integer(2));
  set(inner, "d", set(dict(), "e", integer(3)));
  append(append(l, integer(10)), set(dict(), "k", integer(11)));
  set(root, "a", inner);
  set(root, "l", l);
  set(root, "a.d", set(dict(), "f", integer(4)));
  set(root, "a.b", integer(5)); /* a's b comes first */
  set(root, "x.y.z", integer(6));
  set(root, "x.y", set(dict(), "z", integer(7)));
  set(root, "", set(dict(), "", integer(8)));
  assert_int_equal(value_at(root, "a.b"), 1);
  assert_int_equal(value_at(root, "a.b.c"), 2);
  assert_int_equal(value_at(root, "a.d.e"), 3);
  assert_int_equal(value_at(root, "a.d.f"), 4); /* after a's d was tried */
  assert_int_equal(value_at(root, "x.y.z"), 6);
  assert_int_equal(value_at(root, "l.0"), 10);
  assert_int_equal(value_at(root, "l.1.k"), 11);
  GOOD(reshard_tree_at(root, "", &found));
  assert_ptr_equal(found, root);
  GOOD(reshard_tree_at(root, "a.d", &found));
  assert_int_equal(reshard_tree_count(found), 1);
  for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
    char text[128];
    snprintf(text, sizeof text, "the tree has no path '%s'", missing[i]);
    if (reshard_tree_at(root, missing[i], &found) == RESHARD_SUCCESS)
      fail_msg("'%s' was found", missing[i]);
    assert_string_equal(reshard_last_error(), text);
  }
  assert_int_equal(value_at(root, "."), 8); /* two empty keys */
  reshard_tree_release(root);
}

static reshard_status note_path(void *user, const char *path, reshard_tree leaf) {
  char *text = user;
  int64_t value;
  if (reshard_tree_get_int(leaf, &value) != RESHARD_SUCCESS)
    return RESHARD_ERROR_UNSUPPORTED;
  snprintf(text + strlen(text), 256 - strlen(text), "%s=%d ", path, (int)value);
  return RESHARD_SUCCESS;
}

CASE(visits_go_in_order_and_can_stop) {
  char text[256] = "";
  reshard_tree root = dict(), shared = dict(), leaf = integer(9), stop;
  set(shared, "u", integer(1));
  set(root, "b", append(append(list(), integer(2)), reshard_tree_retain(shared)));
  set(root, "empty", list());
  set(root, "a.c", shared);
  set(root, "", integer(3));
  GOOD(reshard_tree_visit(root, note_path, text));
  assert_string_equal(text, "b.0=2 b.1.u=1 a.c.u=1 =3 ");
  text[0] = '\0';
  GOOD(reshard_tree_visit(leaf, note_path, text));
  assert_string_equal(text, "=9 ");
  GOOD(reshard_tree_null(&stop));
  set(root, "empty", stop);
  text[0] = '\0';
  assert_int_equal(reshard_tree_visit(root, note_path, text), RESHARD_ERROR_UNSUPPORTED);
  assert_string_equal(text, "b.0=2 b.1.u=1 ");
  reshard_tree_release(root);
  reshard_tree_release(leaf);
}

/* --- Cycles, and what is none --------------------------------------------------------------------------------- */

CASE(container_inside_itself_is_refused) {
  static const char set_text[] = "reshard_tree_set: the child has the container inside it";
  static const char append_text[] = "reshard_tree_append: the child has the container inside it";
  reshard_tree d = dict(), l = list(), other = dict();
  BAD(reshard_tree_set(d, "a", d), set_text);
  BAD(reshard_tree_append(l, l), append_text);
  GOOD(reshard_tree_append(l, d));
  BAD(reshard_tree_set(d, "l", l), set_text);
  set(other, "l", reshard_tree_retain(l)); /* other > l > d */
  BAD(reshard_tree_set(d, "o", other), set_text);
  assert_int_equal(reshard_tree_count(d), 0);
  GOOD(reshard_tree_append(l, d)); /* twice in one container is no cycle */
  set(other, "d", reshard_tree_retain(d));
  set(d, "n", integer(1));
  assert_int_equal(value_at(other, "l.1.n"), 1);
  set(other, "l", integer(0)); /* l goes out: now it may take other */
  GOOD(reshard_tree_append(l, other));
  assert_int_equal(value_at(l, "2.d.n"), 1);
  BAD(reshard_tree_set(other, "l", l), set_text);
  reshard_tree_release(l);
  reshard_tree_release(other);
  reshard_tree_release(d);
}

/* Each level has the next one twice: 2^60 paths, 60 nodes. Whatever looks for something looks at a node once. */
CASE(shared_nodes_are_looked_at_once) {
  reshard_tree low = dict(), top = low, found;
  char path[4 * 60 + 3] = "";
  for (int i = 0; i < 60; i++) {
    reshard_tree up = dict();
    set(up, "a", reshard_tree_retain(top));
    set(up, "a.a", top);
    top = up;
    strcat(path, i % 2 ? ".a" : ".a.a");
  }
  assert_int_equal(reshard_tree_at(top, strcat(path, ".b") + 1, &found), RESHARD_ERROR_INVALID);
  BAD(reshard_tree_set(low, "a", top), "reshard_tree_set: the child has the container inside it");
  set(low, "b", integer(5));
  assert_int_equal(value_at(top, path + 1), 5);
  reshard_tree_release(top);
}

/* --- Deep and wide -------------------------------------------------------------------------------------------- */

/* A million; fewer where an instrument makes all of it slow. */
static int64_t levels(void) { return test_scaled(1000000, 1); }

typedef struct seen {
  int64_t leaves;
  size_t length;
} seen;

static reshard_status note_depth(void *user, const char *path, reshard_tree leaf) {
  seen *s = user;
  s->leaves++;
  s->length = strlen(path);
  return RESHARD_SUCCESS;
}

static void use_deep(reshard_tree top) {
  seen s = {0};
  int64_t deep = levels();
  char *path = cli_alloc(2 * deep + 2, 1);
  reshard_tree child;
  for (int64_t i = 0; i < deep; i++)
    memcpy(path + 2 * i, "0.", 2);
  path[2 * deep - 1] = '\0'; /* a "0" for each level */
  GOOD(reshard_tree_visit(top, note_depth, &s));
  assert_int_equal(s.leaves, 1);
  assert_int_equal(s.length, strlen(path));
  assert_int_equal(value_at(top, path), 42);
  strcpy(path + 2 * deep - 1, ".0");
  assert_int_equal(reshard_tree_at(top, path, &child), RESHARD_ERROR_INVALID);
  GOOD(reshard_tree_child(top, 0, NULL, &child));
  reshard_tree_retain(child);
  reshard_tree_release(top);
  reshard_tree_release(child);
  free(path);
}

CASE(deep_trees_take_no_stack) {
  reshard_tree top = append(list(), integer(42)), at;
  for (int64_t i = 1; i < levels(); i++) /* from the leaf */
    top = append(list(), top);
  use_deep(top);
  at = top = list();
  for (int64_t i = 1; i < levels(); i++) { /* from the root */
    reshard_tree below = list();
    append(at, below);
    at = below;
  }
  append(at, integer(42));
  BAD(reshard_tree_append(at, top), "reshard_tree_append: the child has the container inside it");
  use_deep(top);
}

CASE(wide_dicts_are_found_in_time) {
  enum { KEYS = 20000 };
  reshard_tree d = dict(), found;
  char key[32];
  double begin = rs_seconds();
  for (int64_t round = 0; round < 2; round++)
    for (int64_t i = 0; i < KEYS; i++) {
      snprintf(key, sizeof key, "layers.%d.weight", (int)i);
      set(d, key, integer(i + round));
    }
  assert_int_equal(reshard_tree_count(d), KEYS);
  for (int64_t i = 0; i < KEYS; i++) {
    const char *kept;
    int64_t value;
    snprintf(key, sizeof key, "layers.%d.weight", (int)i);
    GOOD(reshard_tree_child(d, i, &kept, NULL));
    assert_string_equal(kept, key);
    GOOD(reshard_tree_find(d, key, &found));
    GOOD(reshard_tree_get_int(found, &value));
    assert_int_equal(value, i + 1);
    assert_int_equal(value_at(d, key), i + 1);
  }
  print_message("%d keys put twice and found twice: %.1f ms\n", (int)KEYS, 1e3 * (rs_seconds() - begin));
  reshard_tree_release(d);
}

/* --- Threads -------------------------------------------------------------------------------------------------- */

typedef struct sharing {
  reshard_tree shared;
  int64_t wrong[4];
} sharing;

/* Each puts what all share in containers of its own. */
static void share(void *user, int64_t rank) {
  sharing *s = user;
  for (int64_t i = 0; i < 200; i++) {
    reshard_tree d = NULL, l = NULL, found = NULL;
    int64_t value = 0, failed = 0;
    failed += reshard_tree_dict(&d) != RESHARD_SUCCESS || reshard_tree_list(&l) != RESHARD_SUCCESS;
    failed += reshard_tree_set(d, "s", s->shared) != RESHARD_SUCCESS;
    failed += reshard_tree_append(l, s->shared) != RESHARD_SUCCESS;
    failed += reshard_tree_set(d, "l", l) != RESHARD_SUCCESS;
    failed += reshard_tree_append(l, s->shared) != RESHARD_SUCCESS;
    failed += reshard_tree_at(d, rank % 2 ? "l.1.n" : "s.n", &found) != RESHARD_SUCCESS;
    failed += reshard_tree_get_int(found, &value) != RESHARD_SUCCESS;
    s->wrong[rank] += failed != 0 || value != 4;
    reshard_tree_release(l);
    reshard_tree_release(d);
  }
}

CASE(threads_share_one_tree) {
  sharing s = {.shared = set(dict(), "n", integer(4))};
  rank_threads_run(4, share, &s);
  for (int r = 0; r < 4; r++)
    assert_int_equal(s.wrong[r], 0);
  reshard_tree_release(s.shared);
}

RUN_CASES
