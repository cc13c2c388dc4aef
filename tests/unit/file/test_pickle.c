/* The machine that reads pickles: what it makes of opcodes, and what it refuses, with the byte. */
#include "file/format/pickle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#define P(text) text, (int64_t)sizeof(text) - 1

static void read_pickle(const char *bytes, int64_t size, unsigned in, rs_pickle *p) {
  if (rs_pickle_read("p", bytes, size, in, p) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
}

static int64_t number_of(const rs_pickle *p, int64_t value) {
  assert_true(rs_pickle_is(p, value, RS_PICKLE_INT));
  return rs_pickle_get(p, value)->number;
}

static void test_numbers(void **state) {
  (void)state;
  static const struct {
    const char *bytes;
    int64_t size, number;
  } cases[] = {{P("\x80\x02K\xff."), 255},
               {P("\x80\x02M\x01\x02."), 0x201},
               {P("\x80\x02J\xfe\xff\xff\xff."), -2},
               {P("\x80\x02\x8a\x00."), 0},
               {P("\x80\x02\x8a\x01\x80."), -128},
               {P("\x80\x02\x8a\x02\x80\x00."), 128},
               {P("\x80\x02\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), INT64_MAX},
               {P("\x80\x02\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."), INT64_MIN}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rs_pickle p;
    read_pickle(cases[i].bytes, cases[i].size, RS_IN_TENSORS, &p);
    assert_int_equal(number_of(&p, p.root), cases[i].number);
    rs_pickle_free(&p);
  }
  rs_pickle p; /* of more than 64 bits */
  read_pickle(P("\x80\x02\x8a\x09\x01\x01\x01\x01\x01\x01\x01\x01\x01."), RS_IN_TENSORS, &p);
  assert_true(rs_pickle_is(&p, p.root, RS_PICKLE_OTHER));
  rs_pickle_free(&p);
}

static void test_containers(void **state) {
  (void)state;
  rs_pickle p;
  /* {"a": (1, 2), "l": [3, "x"], "l": [4]}, the last "l" counts */
  read_pickle(P("\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}(\x8c\x01"
                "aK\x01K\x02\x86\x8c\x01"
                "l](K\x03\x8c\x01xe\x8c\x01l]K\x04"
                "au."),
              RS_IN_TENSORS, &p);
  int64_t list = rs_pickle_under(&p, p.root, "l"), extents[4];
  int n = 0;
  assert_int_equal(rs_pickle_get(&p, p.root)->count, 6);
  assert_true(rs_pickle_extents(&p, rs_pickle_under(&p, p.root, "a"), 2, &n, extents));
  assert_true(n == 2 && extents[0] == 1 && extents[1] == 2);
  assert_false(rs_pickle_extents(&p, rs_pickle_under(&p, p.root, "a"), 1, &n, extents));
  assert_int_equal(number_of(&p, rs_pickle_item(&p, list, 0)), 4);
  assert_int_equal(rs_pickle_item(&p, list, 1), -1);
  assert_int_equal(rs_pickle_under(&p, p.root, "b"), -1);
  rs_pickle_free(&p);
}

static void test_calls(void **state) {
  (void)state;
  rs_pickle p;
  int64_t extents[4];
  int n = 0;
  /* torch.Size((2, 3)) by its name in lines and from the stack, kept in the memo */
  read_pickle(P("\x80\x02"
                "ctorch\nSize\nq\x05K\x02K\x03\x86\x85Rq\x01h\x05)Rh\x01\x87."),
              RS_IN_METADATA, &p);
  assert_true(rs_pickle_is_object(&p, rs_pickle_item(&p, p.root, 0), RS_ROLE_SIZE));
  assert_true(rs_pickle_extents(&p, rs_pickle_item(&p, p.root, 0), 4, &n, extents) && n == 2 && extents[1] == 3);
  assert_true(rs_pickle_extents(&p, rs_pickle_item(&p, p.root, 1), 4, &n, extents) && n == 0);
  assert_int_equal(rs_pickle_item(&p, p.root, 2), rs_pickle_item(&p, p.root, 0));
  rs_pickle_free(&p);
  /* an OrderedDict is a dict; its attributes are not looked at */
  read_pickle(P("\x80\x02"
                "ccollections\nOrderedDict\n)RX\x01\x00\x00\x00kK\x07s}b."),
              RS_IN_TENSORS, &p);
  assert_int_equal(number_of(&p, rs_pickle_under(&p, p.root, "k")), 7);
  rs_pickle_free(&p);
}

static void test_refused(void **state) {
  (void)state;
  static const struct {
    const char *bytes;
    int64_t size;
    const char *why;
  } cases[] = {
      {P(""), "p: byte 0 of the pickle: it ends without a STOP"},
      {P("\x80\x02"), "byte 2 of the pickle: it ends without a STOP"},
      {P("\x80\x09."), "byte 0 of the pickle: a protocol that is not read"},
      {P("\x80\x02."), "byte 2 of the pickle: no value"},
      {P("\x80\x02NN."), "more than one value"},
      {P("\x80\x02N.N"), "ends at byte 4 of 5"},
      {P("\x80\x02I1\n."), "byte 2 of the pickle: opcode 0x49"},
      {P("\x80\x02\x8c\x05"
         "abc."),
       "5 bytes follow, 4 are left"},
      {P("\x80\x02J\x01\x01"), "in the middle of a number"},
      {P("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff."), "18446744073709551615 bytes follow"},
      {P("\x80\x02"
         "cos\nsystem\nX\x02\x00\x00\x00ls\x85R."),
       "byte 2 of the pickle: it names 'os.system'"},
      {P("\x80\x04\x8c\x08"
         "builtins\x8c\x04"
         "eval\x93."),
       "byte 18 of the pickle: it names 'builtins.eval'"},
      {P("\x80\x02"
         "ctorch\nSi"),
       "a name without an end"},
      {P("\x80\x04K\x01\x8c\x04"
         "eval\x93."),
       "a name that is no text"},
      {P("\x80\x02NNR."), "a call of what is no class"},
      {P("\x80\x04"
         "ctorch\nSize\nNR."),
       "a call of what is no class, or with what is no tuple"},
      {P("\x80\x04"
         "ctorch\nSize\n)}X\x01\x00\x00\x00kNs\x92."),
       "arguments by keyword"},
      {P("\x80\x04"
         "ccollections\nOrderedDict\n]\x85R."),
       "an OrderedDict with arguments"},
      {P("\x80\x02N}b."), "a state for what is no object"},
      {P("\x80\x02"
         "ctorch\nSize\n)R}b}b."),
       "a second state"},
      {P("\x80\x02h\x00."), "nothing is in the memo"},
      {P("\x80\x02Nr\xff\xff\xff\x7f."), "larger than the pickle"},
      {P("\x80\x02q\x00."), "no value is there to be kept"},
      {P("\x80\x02t."), "no mark"},
      {P("\x80\x02N(a."), "no container"},
      {P("\x80\x02NNa."), "items for what is no list"},
      {P("\x80\x02]NNs."), "for what is no dict"},
      {P("\x80\x02}(Nu."), "a key without a value"},
      {P("\x80\x02N(\x86."), "too few values"},
      {P("\x80\x02NQQ"), "without a STOP"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rs_pickle p;
    reshard_status status = rs_pickle_read("p", cases[i].bytes, cases[i].size, RS_IN_METADATA | RS_IN_TENSORS, &p);
    rs_pickle_free(&p);
    if (status != RESHARD_ERROR_INVALID || strstr(reshard_last_error(), cases[i].why) == NULL)
      fail_msg("case %zu: expected '%s', got %s: %s", i, cases[i].why, reshard_status_string(status),
               reshard_last_error());
  }
}

/* A class of tensors has no business in the metadata, nor the metadata's among tensors. */
static void test_names_by_place(void **state) {
  (void)state;
  static const char tensor[] = "\x80\x02"
                               "ctorch._utils\n_rebuild_tensor_v2\n.",
                    metadata[] = "\x80\x02"
                                 "ctorch.distributed.checkpoint.metadata\nMetadata\n.";
  rs_pickle p;
  for (int i = 0; i < 4; i++) {
    const char *bytes = i % 2 == 0 ? tensor : metadata;
    int64_t size = i % 2 == 0 ? (int64_t)sizeof tensor - 1 : (int64_t)sizeof metadata - 1;
    reshard_status status = rs_pickle_read("p", bytes, size, i < 2 ? RS_IN_TENSORS : RS_IN_METADATA, &p);
    rs_pickle_free(&p);
    assert_int_equal(status, i == 0 || i == 3 ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID);
  }
}

static void test_text(void **state) {
  (void)state;
  rs_pickle p;
  rs_pickle_text text = {0};
  bool added = false;
  read_pickle(P("\x80\x02(X\x02\x00\x00\x00\xc3\xbcJ\xfe\xff\xff\xffX\x01\x00\x00\x00\xffX\x01\x00\x00\x00\x00Nt."),
              RS_IN_TENSORS, &p);
  static const bool should[] = {true, true, false, false, false};
  for (int i = 0; i < 5; i++) {
    assert_int_equal(rs_pickle_add_text(&p, rs_pickle_item(&p, p.root, i), &text, &added), RESHARD_SUCCESS);
    assert_int_equal(added, should[i]);
  }
  assert_string_equal(text.at, "\xc3\xbc-2");
  free(text.at);
  rs_pickle_free(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers),        cmocka_unit_test(test_containers),
                                     cmocka_unit_test(test_calls),          cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_names_by_place), cmocka_unit_test(test_text)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
