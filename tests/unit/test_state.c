/* State dicts as containers: what is put in is found again, in order; every refusal; depth, width, sharing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/crew.h"
#include "support/expect.h"
#include "util.h"

#include <reshard/state_dict.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static reshard_state integer(int64_t value) {
  reshard_state made;
  GOOD(reshard_state_int(value, &made));
  return made;
}

static reshard_state dict(void) {
  reshard_state made;
  GOOD(reshard_state_dict(&made));
  return made;
}

static reshard_state list(void) {
  reshard_state made;
  GOOD(reshard_state_list(&made));
  return made;
}

/* The child's reference goes to the container. */
static reshard_state set(reshard_state container, const char *key, reshard_state child) {
  GOOD(reshard_state_set(container, key, child));
  reshard_state_release(child);
  return container;
}

static reshard_state append(reshard_state container, reshard_state child) {
  GOOD(reshard_state_append(container, child));
  reshard_state_release(child);
  return container;
}

static int64_t value_at(reshard_state s, const char *path) {
  reshard_state found;
  int64_t value = -1;
  GOOD(reshard_state_at(s, path, &found));
  GOOD(reshard_state_get_int(found, &value));
  return value;
}

static void count_release(void *user, void *data) {
  (void)data;
  ++*(int *)user;
}

static reshard_tensor wrapped(int *released) {
  static float memory[6];
  static const int64_t shape[2] = {2, 3};
  reshard_tensor tensor;
  GOOD(reshard_tensor_wrap(RESHARD_F32, 2, shape, NULL, memory, count_release, released, &tensor));
  return tensor;
}

/* --- Leaves --------------------------------------------------------------------------------------------------- */

static void test_leaves(void **state) {
  (void)state;
  int released = 0;
  reshard_tensor tensor = wrapped(&released), got_tensor;
  reshard_state s;
  const void *bytes;
  size_t size;
  int64_t number;
  double real;
  int flag;
  char text[] = "a\0b";

  GOOD(reshard_state_tensor(tensor, &s));
  reshard_tensor_release(tensor);
  GOOD(reshard_state_get_tensor(s, &got_tensor));
  assert_ptr_equal(got_tensor, tensor);
  assert_int_equal(reshard_state_get_kind(s), RESHARD_STATE_TENSOR);
  assert_ptr_equal(reshard_state_retain(s), s);
  reshard_state_release(s);
  assert_int_equal(released, 0);
  reshard_state_release(s);
  assert_int_equal(released, 1);

  GOOD(reshard_state_bytes(text, sizeof text, &s));
  text[0] = 'x'; /* it was copied */
  GOOD(reshard_state_get_bytes(s, &bytes, &size));
  assert_int_equal(size, sizeof text);
  assert_memory_equal(bytes, "a\0b", size);
  reshard_state_release(s);
  GOOD(reshard_state_bytes(NULL, 0, &s));
  GOOD(reshard_state_get_bytes(s, &bytes, &size));
  assert_int_equal(size, 0);
  reshard_state_release(s);

  GOOD(reshard_state_int(INT64_MIN, &s));
  GOOD(reshard_state_get_int(s, &number));
  assert_true(number == INT64_MIN);
  reshard_state_release(s);
  GOOD(reshard_state_float(-0.5, &s));
  GOOD(reshard_state_get_float(s, &real));
  assert_true(real == -0.5);
  reshard_state_release(s);
  GOOD(reshard_state_bool(7, &s));
  GOOD(reshard_state_get_bool(s, &flag));
  assert_int_equal(flag, 1);
  reshard_state_release(s);
  GOOD(reshard_state_null(&s));
  assert_int_equal(reshard_state_get_kind(s), RESHARD_STATE_NULL);
  assert_int_equal(reshard_state_count(s), 0);
  reshard_state_release(s);

  assert_null(reshard_state_retain(NULL));
  reshard_state_release(NULL);
  assert_int_equal(reshard_state_get_kind(NULL), 0);
  assert_int_equal(reshard_state_count(NULL), 0);
}

static void test_leaf_refusals(void **state) {
  (void)state;
  int released = 0, flag;
  reshard_tensor tensor = wrapped(&released), got_tensor;
  reshard_sharded_tensor sharded;
  reshard_state s = integer(3), d = dict(), l = list(), none;
  const void *bytes;
  size_t size;
  int64_t number;
  double real;
  BAD(reshard_state_dict(NULL), "reshard_state_dict: state is NULL");
  BAD(reshard_state_list(NULL), "reshard_state_list: state is NULL");
  BAD(reshard_state_null(NULL), "reshard_state_null: state is NULL");
  BAD(reshard_state_int(1, NULL), "reshard_state_int: state is NULL");
  BAD(reshard_state_float(1, NULL), "reshard_state_float: state is NULL");
  BAD(reshard_state_bool(1, NULL), "reshard_state_bool: state is NULL");
  BAD(reshard_state_bytes("a", 1, NULL), "reshard_state_bytes: state is NULL");
  BAD(reshard_state_bytes(NULL, 4, &none), "reshard_state_bytes: bytes is NULL, size is 4");
  assert_int_equal(reshard_state_bytes("a", SIZE_MAX, &none), RESHARD_ERROR_OUT_OF_MEMORY);
  BAD(reshard_state_tensor(NULL, &none), "reshard_state_tensor: tensor is NULL");
  BAD(reshard_state_tensor(tensor, NULL), "reshard_state_tensor: state is NULL");
  BAD(reshard_state_sharded(NULL, &none), "reshard_state_sharded: tensor is NULL");

  BAD(reshard_state_get_tensor(s, &got_tensor), "reshard_state_get_tensor: the state is an integer, not a tensor");
  BAD(reshard_state_get_sharded(d, &sharded), "reshard_state_get_sharded: the state is a dict, not a sharded tensor");
  BAD(reshard_state_get_bytes(l, &bytes, &size), "reshard_state_get_bytes: the state is a list, not bytes");
  BAD(reshard_state_get_int(d, &number), "reshard_state_get_int: the state is a dict, not an integer");
  BAD(reshard_state_get_float(s, &real), "reshard_state_get_float: the state is an integer, not a float");
  BAD(reshard_state_get_bool(s, &flag), "reshard_state_get_bool: the state is an integer, not a bool");
  BAD(reshard_state_get_nested(s, NULL, NULL, NULL, NULL),
      "reshard_state_get_nested: the state is an integer, not a nested sharded tensor");
  BAD(reshard_state_get_nested(NULL, NULL, NULL, NULL, NULL),
      "reshard_state_get_nested: the state is NULL, not a nested sharded tensor");
  BAD(reshard_state_get_int(NULL, &number), "reshard_state_get_int: state is NULL");
  BAD(reshard_state_get_int(s, NULL), "reshard_state_get_int: the output is NULL");
  reshard_state_release(s);
  reshard_state_release(d);
  reshard_state_release(l);
  reshard_tensor_release(tensor);
  assert_int_equal(released, 1);
}

/* --- Dicts and lists ------------------------------------------------------------------------------------------ */

static void test_containers(void **state) {
  (void)state;
  static const char *const keys[] = {"z", "a", "", "m.n"};
  reshard_state d = dict(), l = list(), child;
  const char *key;
  for (int64_t i = 0; i < 4; i++) {
    set(d, keys[i], integer(i));
    append(l, integer(10 * i));
  }
  set(d, "a", integer(7)); /* keeps its place */
  assert_int_equal(reshard_state_count(d), 4);
  for (int64_t i = 0; i < 4; i++) {
    int64_t value;
    GOOD(reshard_state_child(d, i, &key, &child));
    assert_string_equal(key, keys[i]);
    GOOD(reshard_state_get_int(child, &value));
    assert_int_equal(value, i == 1 ? 7 : i);
    GOOD(reshard_state_find(d, keys[i], &child));
    GOOD(reshard_state_child(d, i, NULL, NULL));
    GOOD(reshard_state_child(l, i, &key, &child));
    assert_null(key);
    GOOD(reshard_state_get_int(child, &value));
    assert_int_equal(value, 10 * i);
  }
  GOOD(reshard_state_find(d, "a", &child));
  reshard_state_retain(child);
  GOOD(reshard_state_set(d, "a", child)); /* in place of itself */
  reshard_state_release(child);
  assert_int_equal(value_at(d, "a"), 7);
  reshard_state_release(d);
  reshard_state_release(l);
}

static void test_container_refusals(void **state) {
  (void)state;
  reshard_state d = dict(), l = list(), s = integer(1), found = NULL;
  const char *key;
  BAD(reshard_state_set(NULL, "a", s), "reshard_state_set: the container is NULL");
  BAD(reshard_state_set(d, NULL, s), "reshard_state_set: the key is NULL");
  BAD(reshard_state_set(d, "a", NULL), "reshard_state_set: the child is NULL");
  BAD(reshard_state_set(l, "a", s), "reshard_state_set: the container is a list, not a dict");
  BAD(reshard_state_set(s, "a", s), "reshard_state_set: the container is an integer, not a dict");
  BAD(reshard_state_append(d, s), "reshard_state_append: the container is a dict, not a list");
  BAD(reshard_state_append(NULL, s), "reshard_state_append: the container is NULL");
  BAD(reshard_state_append(l, NULL), "reshard_state_append: the child is NULL");
  BAD(reshard_state_child(l, 0, &key, &found), "reshard_state_child: child 0 of a list with 0");
  set(d, "a", integer(2));
  BAD(reshard_state_child(d, 1, &key, &found), "reshard_state_child: child 1 of a dict with 1");
  BAD(reshard_state_child(d, -1, &key, &found), "reshard_state_child: child -1 of a dict with 1");
  BAD(reshard_state_child(s, 0, &key, &found), "reshard_state_child: child 0 of an integer with 0");
  BAD(reshard_state_child(NULL, 0, &key, &found), "reshard_state_child: child 0 of NULL with 0");
  BAD(reshard_state_find(d, "b", &found), "the dict has no key 'b'");
  BAD(reshard_state_find(d, "a\nb", &found), "the dict has no key 'a?b'");
  BAD(reshard_state_find(d, NULL, &found), "reshard_state_find: the key is NULL");
  BAD(reshard_state_find(NULL, "a", &found), "reshard_state_find: state is NULL");
  BAD(reshard_state_find(d, "a", NULL), "reshard_state_find: the output is NULL");
  BAD(reshard_state_find(l, "a", &found), "reshard_state_find: the state is a list, not a dict");
  BAD(reshard_state_at(d, "a.b", &found), "the state has no path 'a.b'");
  BAD(reshard_state_at(NULL, "a", &found), "reshard_state_at: state is NULL");
  BAD(reshard_state_at(d, NULL, &found), "reshard_state_at: path is NULL");
  BAD(reshard_state_at(d, "a", NULL), "reshard_state_at: found is NULL");
  BAD(reshard_state_visit(NULL, NULL, NULL), "reshard_state_visit: state is NULL");
  BAD(reshard_state_visit(d, NULL, NULL), "reshard_state_visit: visit is NULL");
  BAD(reshard_state_flatten_sharded_tensors(NULL, &found), "reshard_state_flatten_sharded_tensors: state is NULL");
  BAD(reshard_state_flatten_sharded_tensors(d, NULL), "reshard_state_flatten_sharded_tensors: flat is NULL");
  BAD(reshard_state_flatten_sharded_tensors_global(NULL, d, &found),
      "reshard_state_flatten_sharded_tensors_global: sharder is NULL");
  assert_null(found);
  assert_int_equal(reshard_state_count(d), 1); /* as it was */
  reshard_state_release(d);
  reshard_state_release(l);
  reshard_state_release(s);
}

/* --- Paths ---------------------------------------------------------------------------------------------------- */

static void test_paths(void **state) {
  (void)state;
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
  reshard_state root = dict(), inner = dict(), l = list(), found;
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
  GOOD(reshard_state_at(root, "", &found));
  assert_ptr_equal(found, root);
  GOOD(reshard_state_at(root, "a.d", &found));
  assert_int_equal(reshard_state_count(found), 1);
  for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
    char text[128];
    snprintf(text, sizeof text, "the state has no path '%s'", missing[i]);
    if (reshard_state_at(root, missing[i], &found) == RESHARD_SUCCESS)
      fail_msg("'%s' was found", missing[i]);
    assert_string_equal(reshard_last_error(), text);
  }
  assert_int_equal(value_at(root, "."), 8); /* two empty keys */
  reshard_state_release(root);
}

static reshard_status note_path(void *user, const char *path, reshard_state leaf) {
  char *text = user;
  int64_t value;
  if (reshard_state_get_int(leaf, &value) != RESHARD_SUCCESS)
    return RESHARD_ERROR_UNSUPPORTED;
  snprintf(text + strlen(text), 256 - strlen(text), "%s=%d ", path, (int)value);
  return RESHARD_SUCCESS;
}

static void test_visit(void **state) {
  (void)state;
  char text[256] = "";
  reshard_state root = dict(), shared = dict(), leaf = integer(9), stop;
  set(shared, "u", integer(1));
  set(root, "b", append(append(list(), integer(2)), reshard_state_retain(shared)));
  set(root, "empty", list());
  set(root, "a.c", shared);
  set(root, "", integer(3));
  GOOD(reshard_state_visit(root, note_path, text));
  assert_string_equal(text, "b.0=2 b.1.u=1 a.c.u=1 =3 ");
  text[0] = '\0';
  GOOD(reshard_state_visit(leaf, note_path, text));
  assert_string_equal(text, "=9 ");
  GOOD(reshard_state_null(&stop));
  set(root, "empty", stop);
  text[0] = '\0';
  assert_int_equal(reshard_state_visit(root, note_path, text), RESHARD_ERROR_UNSUPPORTED);
  assert_string_equal(text, "b.0=2 b.1.u=1 ");
  reshard_state_release(root);
  reshard_state_release(leaf);
}

/* --- Cycles, and what is none --------------------------------------------------------------------------------- */

static void test_cycles(void **state) {
  (void)state;
  static const char set_text[] = "reshard_state_set: the child has the container inside it";
  static const char append_text[] = "reshard_state_append: the child has the container inside it";
  reshard_state d = dict(), l = list(), other = dict(), flat;
  BAD(reshard_state_set(d, "a", d), set_text);
  BAD(reshard_state_append(l, l), append_text);
  GOOD(reshard_state_append(l, d));
  BAD(reshard_state_set(d, "l", l), set_text);
  set(other, "l", reshard_state_retain(l)); /* other > l > d */
  BAD(reshard_state_set(d, "o", other), set_text);
  assert_int_equal(reshard_state_count(d), 0);
  GOOD(reshard_state_append(l, d)); /* twice in one container is no cycle */
  set(other, "d", reshard_state_retain(d));
  set(d, "n", integer(1));
  assert_int_equal(value_at(other, "l.1.n"), 1);
  GOOD(reshard_state_flatten_sharded_tensors(other, &flat));
  assert_ptr_equal(flat, other);
  reshard_state_release(flat);
  set(other, "l", integer(0)); /* l goes out: now it may take other */
  GOOD(reshard_state_append(l, other));
  assert_int_equal(value_at(l, "2.d.n"), 1);
  BAD(reshard_state_set(other, "l", l), set_text);
  reshard_state_release(l);
  reshard_state_release(other);
  reshard_state_release(d);
}

/* Each level has the next one twice: 2^60 paths, 60 nodes. Whatever looks for something looks at a node once. */
static void test_sharing(void **state) {
  (void)state;
  reshard_state low = dict(), top = low, found, flat;
  char path[4 * 60 + 3] = "";
  for (int i = 0; i < 60; i++) {
    reshard_state up = dict();
    set(up, "a", reshard_state_retain(top));
    set(up, "a.a", top);
    top = up;
    strcat(path, i % 2 ? ".a" : ".a.a");
  }
  assert_int_equal(reshard_state_at(top, strcat(path, ".b") + 1, &found), RESHARD_ERROR_INVALID);
  BAD(reshard_state_set(low, "a", top), "reshard_state_set: the child has the container inside it");
  set(low, "b", integer(5));
  GOOD(reshard_state_flatten_sharded_tensors(top, &flat));
  assert_ptr_equal(flat, top);
  reshard_state_release(flat);
  assert_int_equal(value_at(top, path + 1), 5);
  reshard_state_release(top);
}

/* --- Deep and wide -------------------------------------------------------------------------------------------- */

enum { DEEP = 100000 };

typedef struct seen {
  int64_t leaves;
  size_t length;
} seen;

static reshard_status note_depth(void *user, const char *path, reshard_state leaf) {
  seen *s = user;
  (void)leaf;
  s->leaves++;
  s->length = strlen(path);
  return RESHARD_SUCCESS;
}

static void use_deep(reshard_state top) {
  seen s = {0};
  char *path = cli_alloc(2 * DEEP + 2, 1);
  reshard_state flat, child;
  for (int64_t i = 0; i < DEEP; i++)
    memcpy(path + 2 * i, "0.", 2);
  path[2 * DEEP - 1] = '\0'; /* a "0" for each level */
  GOOD(reshard_state_visit(top, note_depth, &s));
  assert_int_equal(s.leaves, 1);
  assert_int_equal(s.length, strlen(path));
  assert_int_equal(value_at(top, path), 42);
  strcpy(path + 2 * DEEP - 1, ".0");
  assert_int_equal(reshard_state_at(top, path, &child), RESHARD_ERROR_INVALID);
  GOOD(reshard_state_flatten_sharded_tensors(top, &flat));
  assert_ptr_equal(flat, top);
  reshard_state_release(flat);
  GOOD(reshard_state_child(top, 0, NULL, &child));
  reshard_state_retain(child);
  reshard_state_release(top);
  reshard_state_release(child);
  free(path);
}

static void test_deep(void **state) {
  (void)state;
  reshard_state top = append(list(), integer(42)), at;
  for (int64_t i = 1; i < DEEP; i++) /* from the leaf */
    top = append(list(), top);
  use_deep(top);
  at = top = list();
  for (int64_t i = 1; i < DEEP; i++) { /* from the root */
    reshard_state below = list();
    append(at, below);
    at = below;
  }
  append(at, integer(42));
  BAD(reshard_state_append(at, top), "reshard_state_append: the child has the container inside it");
  use_deep(top);
}

static void test_wide(void **state) {
  (void)state;
  enum { KEYS = 20000 };
  reshard_state d = dict(), found;
  char key[32];
  double begin = cli_seconds();
  for (int64_t round = 0; round < 2; round++)
    for (int64_t i = 0; i < KEYS; i++) {
      snprintf(key, sizeof key, "layers.%d.weight", (int)i);
      set(d, key, integer(i + round));
    }
  assert_int_equal(reshard_state_count(d), KEYS);
  for (int64_t i = 0; i < KEYS; i++) {
    const char *kept;
    int64_t value;
    snprintf(key, sizeof key, "layers.%d.weight", (int)i);
    GOOD(reshard_state_child(d, i, &kept, NULL));
    assert_string_equal(kept, key);
    GOOD(reshard_state_find(d, key, &found));
    GOOD(reshard_state_get_int(found, &value));
    assert_int_equal(value, i + 1);
    assert_int_equal(value_at(d, key), i + 1);
  }
  print_message("%d keys put twice and found twice: %.1f ms\n", (int)KEYS, 1e3 * (cli_seconds() - begin));
  reshard_state_release(d);
}

/* --- Threads -------------------------------------------------------------------------------------------------- */

typedef struct sharing {
  reshard_state shared;
  int64_t wrong[4];
} sharing;

/* Each puts what all share in containers of its own. */
static void share(void *user, int64_t rank) {
  sharing *s = user;
  for (int64_t i = 0; i < 200; i++) {
    reshard_state d = NULL, l = NULL, found = NULL;
    int64_t value = 0, failed = 0;
    failed += reshard_state_dict(&d) != RESHARD_SUCCESS || reshard_state_list(&l) != RESHARD_SUCCESS;
    failed += reshard_state_set(d, "s", s->shared) != RESHARD_SUCCESS;
    failed += reshard_state_append(l, s->shared) != RESHARD_SUCCESS;
    failed += reshard_state_set(d, "l", l) != RESHARD_SUCCESS;
    failed += reshard_state_append(l, s->shared) != RESHARD_SUCCESS;
    failed += reshard_state_at(d, rank % 2 ? "l.1.n" : "s.n", &found) != RESHARD_SUCCESS;
    failed += reshard_state_get_int(found, &value) != RESHARD_SUCCESS;
    s->wrong[rank] += failed != 0 || value != 4;
    reshard_state_release(l);
    reshard_state_release(d);
  }
}

static void test_threads(void **state) {
  (void)state;
  sharing s = {.shared = set(dict(), "n", integer(4))};
  crew_run(4, share, &s);
  for (int r = 0; r < 4; r++)
    assert_int_equal(s.wrong[r], 0);
  reshard_state_release(s.shared);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_leaves),     cmocka_unit_test(test_leaf_refusals),
      cmocka_unit_test(test_containers), cmocka_unit_test(test_container_refusals),
      cmocka_unit_test(test_paths),      cmocka_unit_test(test_visit),
      cmocka_unit_test(test_cycles),     cmocka_unit_test(test_sharing),
      cmocka_unit_test(test_deep),       cmocka_unit_test(test_wide),
      cmocka_unit_test(test_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
