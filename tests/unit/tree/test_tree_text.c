/* Trees as drawings; equal trees; arguments of a call packed and unpacked. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/trees.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const reshard_tree_type handle = {.name = "handle"}, other_type = {.name = "handle"};

static reshard_tree opaque(const reshard_tree_type *type, void *value) {
  reshard_tree made;
  GOOD(reshard_tree_opaque(type, value, &made));
  return made;
}

/* --- Drawings ------------------------------------------------------------------------------------------------- */

static void assert_drawn(reshard_tree tree, const char *wanted) {
  char drawn[4096];
  size_t needed;
  GOOD(reshard_tree_print(tree, drawn, sizeof drawn, &needed));
  assert_string_equal(drawn, wanted);
  assert_int_equal(needed, strlen(wanted) + 1);
}

CASE(trees_are_drawn_in_the_room_given) {
  static const int64_t sizes[3] = {3, 2, 1}, order[3] = {2, 0, 1};
  reshard_tree root = dict(), tied, shared, p;
  reshard_tensor weight, data = floats(6);
  GOOD(reshard_tensor_create(RESHARD_BF16, 2, (int64_t[]){13, 21}, &weight));
  reshard_tensor_set_requires_grad(weight, 1);
  tied = leaf_of(weight);
  shared = append(list(), integer(1));
  GOOD(reshard_tree_packed(data, 3, sizes, order, NULL, &p));
  reshard_tensor_release(data);
  set(root, "weight", reshard_tree_retain(tied));
  set(root, "once", leaf_of(floats(2)));
  set(root, "layers", append(append(append(list(), dict()), reshard_tree_retain(shared)), set(dict(), "tied", tied)));
  set(root, "hyper", set(set(structure("Options"), "lr", real(0.1)), "name", text("adam")));
  set(root, "again", shared);
  set(root, "p", p);
  set(root, "t", append(append(append(tuple(), flag(1)), flag(0)), nothing()));
  set(root, "b\nyte", text("two\nlines"));
  set(root, "o", opaque(&handle, root));
  assert_drawn(root, "dict\n"
                     "├── weight: &1 tensor bf16 13x21 requires_grad\n"
                     "├── once: tensor f32 2\n"
                     "├── layers: list\n"
                     "│   ├── 0: dict, empty\n"
                     "│   ├── 1: &2 list\n"
                     "│   │   └── 0: 1\n"
                     "│   └── 2: dict\n"
                     "│       └── tied: *1\n"
                     "├── hyper: struct Options\n"
                     "│   ├── lr: 0.1\n"
                     "│   └── name: \"adam\"\n"
                     "├── again: *2\n"
                     "├── p: packed sequence, batch sizes 3 2 1, sorted 2 0 1\n"
                     "│   └── data: tensor f32 6\n"
                     "├── t: tuple\n"
                     "│   ├── 0: true\n"
                     "│   ├── 1: false\n"
                     "│   └── 2: null\n"
                     "├── b?yte: 9 bytes\n"
                     "└── o: <handle>\n");
  char drawn[16];
  size_t needed = 0;
  BAD(reshard_tree_print(node_at(root, "hyper"), drawn, sizeof drawn, &needed),
      "the text needs 57 bytes, the buffer has 16");
  assert_int_equal(needed, 57);
  assert_string_equal(drawn, "struct Options\n");
  BAD(reshard_tree_print(NULL, drawn, sizeof drawn, &needed), "reshard_tree_print: tree is NULL");
  BAD(reshard_tree_print(root, NULL, 1, &needed), "reshard_tree_print: the buffer is NULL");
  assert_drawn(node_at(root, "hyper.lr"), "0.1\n");
  reshard_tree_release(root);
}

/* Floats come back from their text, and are none that an integer could be; a locale changes nothing. */
CASE(floats_come_back_from_their_text) {
  static const struct {
    double value;
    const char *text;
  } rows[] = {{0.1, "0.1\n"},
              {1, "1.0\n"},
              {-0.0, "-0.0\n"},
              {1e100, "1e+100\n"},
              {1.0 / 3, "0.3333333333333333\n"},
              {5e-324, "4.94065645841247e-324\n"},
              {NAN, "nan\n"},
              {INFINITY, "inf\n"},
              {-INFINITY, "-inf\n"},
              {123456789012345680, "1.2345678901234568e+17\n"},
              {100000, "100000.0\n"}};
  for (int with = 0; with < 2; with++) {
    if (with == 1 && setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL)
      break; /* not on this machine */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
      reshard_tree leaf = real(rows[i].value);
      assert_drawn(leaf, rows[i].text);
      reshard_tree_release(leaf);
    }
  }
  setlocale(LC_NUMERIC, "C");
}

/* 40 levels: lines end to move to the right at 32, and say where they are. */
CASE(test_print_deep) {
  char drawn[16384], line[256];
  reshard_tree top = append(append(list(), integer(7)), integer(8));
  for (int i = 0; i < 39; i++)
    top = append(append(list(), top), integer(i));
  GOOD(reshard_tree_print(top, drawn, sizeof drawn, NULL));
  char *at = drawn + strlen("list\n");
  for (int depth = 1; depth <= 40; depth++) {
    size_t n = 0;
    *line = '\0';
    for (int d = 1; d < depth && d < 32; d++)
      n += (size_t)snprintf(line + n, sizeof line - n, "│   ");
    n += (size_t)snprintf(line + n, sizeof line - n, "├── ");
    if (depth > 32)
      n += (size_t)snprintf(line + n, sizeof line - n, "(level %d) ", depth);
    snprintf(line + n, sizeof line - n, depth < 40 ? "0: list\n" : "0: 7\n");
    if (strncmp(at, line, strlen(line)) != 0)
      fail_msg("level %d is drawn as %.200s", depth, at);
    at += strlen(line);
  }
  reshard_tree_release(top);
}

/* --- Equality ------------------------------------------------------------------------------------------------- */

/* A tree of all kinds, but for one thing that is different: 0 for none. */
enum { DIFFERENCES = 23 };
static reshard_tree sample(int d, reshard_tensor tensor, reshard_tensor data) {
  static const int64_t sizes[2] = {2, 1}, ones[3] = {1, 1, 1}, order[2] = {1, 0}, plain[2] = {0, 1};
  reshard_tree root = d == 1 ? structure("dict") : dict(), sequence = d == 2 ? tuple() : list(), p, q;
  append(append(sequence, integer(d == 3 ? 2 : 1)), real(d == 4 ? 0.25 : 0.5));
  set(root, d == 5 ? "lisT" : "list", sequence);
  set(root, "bool", flag(d != 6));
  set(root, "kind", d == 7 ? flag(1) : integer(1));
  set(root, "text", text(d == 8 ? "abd" : "abc"));
  set(root, "size", text(d == 9 ? "ab" : "abc"));
  set(root, "s", structure(d == 10 ? "T" : "S"));
  set(root, "o", opaque(d == 11 ? &other_type : &handle, NULL));
  set(root, "v", opaque(&handle, d == 12 ? (void *)1 : NULL));
  set(root, "tensor", leaf_of(reshard_tensor_retain(d == 13 ? data : tensor)));
  set(root, "none", d == 14 ? dict() : nothing());
  set(root, "nan", real(d == 15 ? 0 : NAN));
  set(root, "zero", real(d == 16 ? 1 : 0));
  GOOD(reshard_tree_packed(data, d == 17 ? 3 : 2, d == 17 ? ones : sizes, NULL, NULL, &p));
  set(root, "p", p);
  GOOD(reshard_tree_packed(d == 18 ? tensor : data, 2, sizes,
                           d == 19   ? NULL
                           : d == 20 ? plain
                                     : order,
                           d == 21   ? NULL
                           : d == 20 ? plain
                                     : order,
                           &q));
  set(root, "q", q);
  set(root, d == 22 ? "laste" : "last", nothing());
  if (d == 23)
    set(root, "more", nothing());
  return root;
}

CASE(trees_that_differ_in_anything_are_not_equal) {
  reshard_tensor tensor = floats(3), data = floats(3);
  int equal = -1;
  for (int a = 0; a <= DIFFERENCES; a++) {
    reshard_tree one = sample(a, tensor, data);
    for (int b = 0; b <= DIFFERENCES; b++) {
      reshard_tree two = sample(b, tensor, data);
      GOOD(reshard_tree_equal(one, two, &equal));
      if (equal != (a == b))
        fail_msg("differences %d and %d: equal is %d", a, b, equal);
      reshard_tree_release(two);
    }
    GOOD(reshard_tree_equal(one, one, &equal));
    assert_int_equal(equal, 1);
    reshard_tree_release(one);
  }
  reshard_tensor_release(tensor);
  reshard_tensor_release(data);

  /* The order of keys counts; which nodes are shared does not; a key that was there does not. */
  reshard_tree ab = set(set(dict(), "a", integer(1)), "b", integer(1)), ba, leaf = integer(1);
  ba = set(set(dict(), "b", integer(1)), "a", integer(1));
  GOOD(reshard_tree_equal(ab, ba, &equal));
  assert_int_equal(equal, 0);
  reshard_tree same = set(set(dict(), "a", reshard_tree_retain(leaf)), "b", leaf);
  GOOD(reshard_tree_equal(ab, same, &equal));
  assert_int_equal(equal, 1);
  BAD(reshard_tree_equal(NULL, ab, &equal), "reshard_tree_equal: a is NULL");
  BAD(reshard_tree_equal(ab, NULL, &equal), "reshard_tree_equal: b is NULL");
  BAD(reshard_tree_equal(ab, ba, NULL), "reshard_tree_equal: the output is NULL");
  reshard_tree_release(ab);
  reshard_tree_release(ba);
  reshard_tree_release(same);
}

/* --- Arguments ------------------------------------------------------------------------------------------------ */

CASE(arguments_are_packed_and_unpacked) {
  for (int n = 0; n < 4; n++)
    for (int k = 0; k < 4; k++)
      for (int kind = 0; kind < 2; kind++) {
        static const char *const keys[] = {"x", "", "z.w"};
        reshard_tree args = kind ? list() : tuple(), kwargs = dict(), values, names, got_args, got_kwargs;
        int equal;
        for (int i = 0; i < n; i++)
          append(args, integer(i));
        for (int i = 0; i < k; i++)
          set(kwargs, keys[i], append(list(), integer(10 + i)));
        GOOD(reshard_tree_pack_kwargs(n == 0 && kind ? NULL : args, k == 0 && kind ? NULL : kwargs, &values, &names));
        assert_int_equal(reshard_tree_count(values), n + k);
        assert_int_equal(reshard_tree_count(names), k);
        assert_int_equal(reshard_tree_get_kind(values), RESHARD_TREE_TUPLE);
        assert_int_equal(reshard_tree_get_kind(names), RESHARD_TREE_TUPLE);
        for (int i = 0; i < n + k; i++) { /* the same nodes */
          reshard_tree value, given, name;
          const void *bytes;
          size_t size;
          GOOD(reshard_tree_child(values, i, NULL, &value));
          GOOD(reshard_tree_child(i < n ? args : kwargs, i < n ? i : i - n, NULL, &given));
          assert_ptr_equal(value, given);
          if (i < n)
            continue;
          GOOD(reshard_tree_child(names, i - n, NULL, &name));
          GOOD(reshard_tree_get_bytes(name, &bytes, &size));
          assert_int_equal(size, strlen(keys[i - n]));
          assert_memory_equal(bytes, keys[i - n], size);
        }
        GOOD(reshard_tree_unpack_kwargs(values, k == 0 && kind ? NULL : names, &got_args, &got_kwargs));
        assert_int_equal(reshard_tree_get_kind(got_args), RESHARD_TREE_TUPLE);
        GOOD(reshard_tree_equal(got_kwargs, kwargs, &equal));
        assert_true(equal);
        assert_int_equal(reshard_tree_count(got_args), n);
        for (int i = 0; i < n; i++) {
          reshard_tree value, given;
          GOOD(reshard_tree_child(got_args, i, NULL, &value));
          GOOD(reshard_tree_child(args, i, NULL, &given));
          assert_ptr_equal(value, given);
        }
        reshard_tree_release(got_args);
        reshard_tree_release(got_kwargs);
        reshard_tree_release(values);
        reshard_tree_release(names);
        reshard_tree_release(args);
        reshard_tree_release(kwargs);
      }
}

CASE(test_kwargs_refused) {
  reshard_tree values = append(tuple(), integer(1)), names = append(append(list(), text("a")), text("b")), d = dict(),
               number = integer(1), a = NULL, b = NULL, nul;
  BAD(reshard_tree_unpack_kwargs(values, names, &a, &b), "reshard_tree_unpack_kwargs: 2 names for 1 values");
  BAD(reshard_tree_unpack_kwargs(NULL, names, &a, &b), "reshard_tree_unpack_kwargs: 2 names for 0 values");
  append(append(values, integer(2)), integer(3));
  BAD(reshard_tree_unpack_kwargs(d, names, &a, &b),
      "reshard_tree_unpack_kwargs: values is a dict, a tuple or a list is needed");
  BAD(reshard_tree_unpack_kwargs(values, number, &a, &b),
      "reshard_tree_unpack_kwargs: names is an integer, a tuple or a list is needed");
  BAD(reshard_tree_unpack_kwargs(values, names, NULL, &b), "reshard_tree_unpack_kwargs: an output is NULL");
  BAD(reshard_tree_unpack_kwargs(values, names, &a, NULL), "reshard_tree_unpack_kwargs: an output is NULL");
  append(names, text("a"));
  BAD(reshard_tree_unpack_kwargs(values, names, &a, &b), "reshard_tree_unpack_kwargs: names 0 and 2 are both 'a'");
  reshard_tree_release(names);
  names = append(append(list(), text("a")), integer(1));
  BAD(reshard_tree_unpack_kwargs(values, names, &a, &b),
      "reshard_tree_unpack_kwargs: name 1 is an integer, bytes are needed");
  reshard_tree_release(names);
  GOOD(reshard_tree_bytes("a\0b", 3, &nul));
  names = append(list(), nul);
  BAD(reshard_tree_unpack_kwargs(values, names, &a, &b),
      "reshard_tree_unpack_kwargs: name 0 of 3 bytes has a NUL at 1");
  BAD(reshard_tree_pack_kwargs(d, d, &a, &b), "reshard_tree_pack_kwargs: args is a dict, a tuple or a list is needed");
  BAD(reshard_tree_pack_kwargs(values, values, &a, &b),
      "reshard_tree_pack_kwargs: kwargs is a tuple, a dict is needed");
  BAD(reshard_tree_pack_kwargs(values, d, NULL, &b), "reshard_tree_pack_kwargs: an output is NULL");
  BAD(reshard_tree_pack_kwargs(values, d, &a, NULL), "reshard_tree_pack_kwargs: an output is NULL");
  assert_null(a);
  assert_null(b);
  reshard_tree_release(values);
  reshard_tree_release(names);
  reshard_tree_release(number);
  reshard_tree_release(d);
}

RUN_CASES
