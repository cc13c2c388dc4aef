/* The machine that reads pickles: what it makes of opcodes, and what it refuses, with the byte. */
#include "file/format/pickle.h"
#include "file/ground/file.h"
#include "support/fixtures/case.h"

#include <stdlib.h>
#include <string.h>

#define P(text) text, (int64_t)sizeof(text) - 1

static void read_pickle(const char *bytes, int64_t size, rs_pickle *p) {
  if (rs_pickle_read("p", bytes, size, size, 0, p) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
}

static int64_t number_of(const rs_pickle *p, int64_t value) {
  assert_true(rs_pickle_is(p, value, RS_PICKLE_INT));
  return rs_pickle_number(p, value);
}

CASE(numbers_of_each_opcode_are_read) {
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
    read_pickle(cases[i].bytes, cases[i].size, &p);
    assert_int_equal(number_of(&p, p.root), cases[i].number);
    rs_pickle_free(&p);
  }
  rs_pickle p; /* of more than 64 bits */
  read_pickle(P("\x80\x02\x8a\x09\x01\x01\x01\x01\x01\x01\x01\x01\x01."), &p);
  assert_true(rs_pickle_is(&p, p.root, RS_PICKLE_OTHER));
  rs_pickle_free(&p);
}

CASE(containers_keep_their_last_values) {
  rs_pickle p;
  /* {"a": (1, 2), "l": [3, "x"], "l": [4]}, the last "l" counts */
  read_pickle(P("\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}(\x8c\x01"
                "aK\x01K\x02\x86\x8c\x01"
                "l](K\x03\x8c\x01xe\x8c\x01l]K\x04"
                "au."),
              &p);
  int64_t list = rs_pickle_under(&p, p.root, "l"), extents[4];
  int n = 0;
  assert_int_equal(rs_pickle_items(&p, p.root), 6);
  assert_true(rs_pickle_extents(&p, rs_pickle_under(&p, p.root, "a"), 2, &n, extents));
  assert_true(n == 2 && extents[0] == 1 && extents[1] == 2);
  assert_false(rs_pickle_extents(&p, rs_pickle_under(&p, p.root, "a"), 1, &n, extents));
  assert_int_equal(number_of(&p, rs_pickle_item(&p, list, 0)), 4);
  assert_int_equal(rs_pickle_item(&p, list, 1), -1);
  assert_int_equal(rs_pickle_under(&p, p.root, "b"), -1);
  rs_pickle_free(&p);
}

CASE(calls_of_known_classes_give_their_values) {
  rs_pickle p;
  int64_t extents[4];
  int n = 0;
  /* torch.Size((2, 3)) by its name in lines and from the stack, kept in the memo */
  read_pickle(P("\x80\x02"
                "ctorch\nSize\nq\x05K\x02K\x03\x86\x85Rq\x01h\x05)Rh\x01\x87."),
              &p);
  assert_true(rs_pickle_is(&p, rs_pickle_item(&p, p.root, 0), RS_PICKLE_TUPLE));
  assert_true(rs_pickle_extents(&p, rs_pickle_item(&p, p.root, 0), 4, &n, extents) && n == 2 && extents[1] == 3);
  assert_true(rs_pickle_extents(&p, rs_pickle_item(&p, p.root, 1), 4, &n, extents) && n == 0);
  assert_int_equal(rs_pickle_item(&p, p.root, 2), rs_pickle_item(&p, p.root, 0));
  rs_pickle_free(&p);
  /* an OrderedDict is a dict; its attributes are not looked at */
  read_pickle(P("\x80\x02"
                "ccollections\nOrderedDict\n)RX\x01\x00\x00\x00kK\x07s}b."),
              &p);
  assert_int_equal(number_of(&p, rs_pickle_under(&p, p.root, "k")), 7);
  rs_pickle_free(&p);
}

CASE(malformed_opcodes_are_refused_with_the_byte) {
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
         "ctorch\nSize\n)N\x92."),
       "keywords that are no dict"},
      {P("\x80\x04"
         "ccollections\nOrderedDict\nN\x85R."),
       "a dict made of what are no pairs"},
      {P("\x80\x04"
         "ccollections\nCounter\n]K\x01\x85"
         "a\x85R."),
       "a dict made of what are no pairs"},
      {P("\x80\x04"
         "ccollections\nOrderedDict\n}}\x86R."),
       "a dict with more arguments"},
      {P("\x80\x02N}b."), "a state for what is no object"},
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
    reshard_status status = rs_pickle_read("p", cases[i].bytes, cases[i].size, cases[i].size, 0, &p);
    rs_pickle_free(&p);
    if (status != RESHARD_ERROR_INVALID || strstr(reshard_last_error(), cases[i].why) == NULL)
      fail_msg("case %zu: expected '%s', got %s: %s", i, cases[i].why, reshard_status_string(status),
               reshard_last_error());
  }
}

/* A class in no list takes arguments, keywords, states, items and calls, and is told by its name. */
CASE(unknown_class_is_kept_and_told_by_name) {
  rs_pickle p;
  char text[RS_QUOTE];
  static const char class[] = "\x80\x04"
                              "cos\nsystem\n",
                    absorbs[] = "N\x85}X\x01\x00\x00\x00kNs\x92}b}b(K\x01K\x02uK\x05"
                                "a(K\x06"
                                "e.";
  char bytes[sizeof class + sizeof absorbs];
  int64_t size = (int64_t)(sizeof class + sizeof absorbs) - 2, item, items = 0;
  memcpy(bytes, class, sizeof class);
  memcpy(bytes + sizeof class - 1, absorbs, sizeof absorbs);
  read_pickle(bytes, size, &p);
  rs_pickle_parts parts = rs_pickle_parts_of(&p, p.root);
  assert_true(rs_pickle_is(&p, p.root, RS_PICKLE_OBJECT) && rs_pickle_name_of(&p, p.root) == NULL);
  assert_string_equal(rs_pickle_describe(text, &p, p.root), "os.system");
  assert_true(rs_pickle_items(&p, parts.arguments) == 1 && rs_pickle_is(&p, parts.state, RS_PICKLE_DICT));
  rs_pickle_cursor more = rs_pickle_begin(&p, parts.more); /* keywords, a state, a key, a value, two items */
  for (; rs_pickle_next(&more, &item); items++)
    assert_true(items < 2 ? rs_pickle_is(&p, item, RS_PICKLE_DICT) : rs_pickle_is(&p, item, RS_PICKLE_INT));
  assert_int_equal(items, 6);
  rs_pickle_free(&p);
  read_pickle(P("\x80\x04\x8c\x08"
                "builtins\x8c\x07"
                "getattr\x93)R)R."),
              &p); /* what a call gives is called */
  assert_true(rs_pickle_is(&p, p.root, RS_PICKLE_OBJECT));
  assert_string_equal(rs_pickle_describe(text, &p, rs_pickle_parts_of(&p, p.root).class), "builtins.getattr");
  assert_string_equal(rs_pickle_describe(text, &p, p.root), "an object");
  rs_pickle_free(&p);
}

/* Dicts of other classes are dicts: of their items, of a dict, of pairs. */
CASE(dicts_of_other_classes_are_dicts) {
  static const struct {
    const char *bytes;
    int64_t size;
  } cases[] = {{P("\x80\x02"
                  "ccollections\nCounter\n}X\x01\x00\x00\x00kK\x07s\x85R.")},
               {P("\x80\x02"
                  "ccollections\ndefaultdict\nN\x85RX\x01\x00\x00\x00kK\x07s.")},
               {P("\x80\x02"
                  "ccollections\ndefaultdict\nc__builtin__\nlist\n}X\x01\x00\x00\x00kK\x07s\x86R.")},
               {P("\x80\x02"
                  "ccollections\nOrderedDict\n]X\x01\x00\x00\x00kK\x07\x86"
                  "a\x85R.")},
               {P("\x80\x02"
                  "ccollections\nOrderedDict\n)R(X\x01\x00\x00\x00kK\x07u}b}b.")}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rs_pickle p;
    read_pickle(cases[i].bytes, cases[i].size, &p);
    assert_true(rs_pickle_is(&p, p.root, RS_PICKLE_DICT));
    assert_int_equal(number_of(&p, rs_pickle_under(&p, p.root, "k")), 7);
    rs_pickle_free(&p);
  }
}

/* Memory is bounded by the file: 64 MiB and 8 times its bytes. The worst inputs have few opcodes again and again. */
CASE(memory_is_bounded_by_the_file) {
  static const struct {
    const char *again;
    bool within; /* it fits, and ends without a STOP */
  } worst[] = {{"]", false},    {"}", false},         {"N", true},   {"(", true},
               {")\x85", true}, {"cm\nname\n", true}, {"]a", false}, {"}Q", false}};
  enum { SIZE = 12 << 20 };
  char *bytes = malloc(SIZE);
  assert_non_null(bytes);
  memcpy(bytes, "\x80\x02]", 3);
  for (size_t i = 0; i < sizeof worst / sizeof *worst; i++) {
    size_t n = strlen(worst[i].again);
    rs_pickle p;
    for (size_t at = 3; at < SIZE; at++)
      bytes[at] = worst[i].again[(at - 3) % n];
    reshard_status status = rs_pickle_read("p", bytes, SIZE, SIZE, 0, &p);
    int64_t taken = p.words.cap * (int64_t)sizeof *p.words.at;
    rs_pickle_free(&p);
    if (taken > rs_budget_limit(SIZE) || status != (worst[i].within ? RESHARD_ERROR_INVALID : RESHARD_ERROR_CORRUPT) ||
        (!worst[i].within &&
         strstr(reshard_last_error(), "at most 167772160 are taken for a file of 12582912") == NULL))
      fail_msg("case %zu: %lld bytes, %s: %s", i, (long long)taken, reshard_status_string(status),
               reshard_last_error());
  }
  rs_pickle held; /* what fits alone, beside what its reader holds */
  memset(bytes + 3, 'N', SIZE - 3);
  assert_int_equal(rs_pickle_read("p", bytes, SIZE, SIZE, rs_budget_limit(SIZE) - SIZE, &held), RESHARD_ERROR_CORRUPT);
  rs_pickle_free(&held);
  free(bytes);
}

CASE(texts_are_told_apart_from_bytes_that_are_none) {
  rs_pickle p;
  rs_pickle_text text = {0};
  bool added = false;
  read_pickle(P("\x80\x02(X\x02\x00\x00\x00\xc3\xbcJ\xfe\xff\xff\xffX\x01\x00\x00\x00\xffX\x01\x00\x00\x00\x00Nt."),
              &p);
  static const bool should[] = {true, true, false, false, false};
  for (int i = 0; i < 5; i++) {
    assert_int_equal(rs_pickle_add_text(&p, rs_pickle_item(&p, p.root, i), &text, &added), RESHARD_SUCCESS);
    assert_int_equal(added, should[i]);
  }
  assert_string_equal(text.at, "\xc3\xbc-2");
  free(text.at);
  rs_pickle_free(&p);
}

RUN_CASES
