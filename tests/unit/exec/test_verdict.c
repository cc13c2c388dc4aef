/* The verdict on the records of all ranks: a failure, then packing, then binding anew, else what is bound runs. */
#include "exec/record.h"
#include "support/fixtures/case.h"

#include <stdio.h>
#include <string.h>

enum { RANKS = 3 };

/* Bits of what a rank brings. */
enum { FAILED = 1, PRIVATE = 2, ONLY = 4, MOVED = 8, MAILED = 16, LONG = 32, KINDS = 64 };

static rs_record record_of(unsigned bits) {
  return (rs_record){.call = RS_RECORD_CREATE,
                     .status = bits & FAILED ? RESHARD_ERROR_SYSTEM : RESHARD_SUCCESS,
                     .private_entry = bits & PRIVATE ? 0 : -1,
                     .only = (bits & ONLY) != 0,
                     .moved = (bits & MOVED) != 0,
                     .eager_limit = bits & MAILED ? 100 : 0,
                     .most_bytes = bits & LONG ? 100 : 99};
}

/* The first rank with a bit; -1: none. */
static int64_t first_with(const unsigned *bits, unsigned bit) {
  for (int64_t r = 0; r < RANKS; r++)
    if (bits[r] & bit)
      return r;
  return -1;
}

static rs_verdict expect(const unsigned *bits, int64_t *rank) {
  bool told = first_with(bits, ONLY) >= 0;
  bool small = first_with(bits, MAILED) >= 0 && first_with(bits, LONG) < 0;
  *rank = first_with(bits, FAILED);
  if (*rank >= 0)
    return RS_VERDICT_FAIL;
  *rank = first_with(bits, PRIVATE);
  if (*rank >= 0)
    return told ? RS_VERDICT_FAIL : RS_VERDICT_PACK;
  if (small && !told)
    return RS_VERDICT_PACK;
  *rank = first_with(bits, MOVED);
  return *rank >= 0 ? RS_VERDICT_REBIND : RS_VERDICT_RUN;
}

CASE(verdict_follows_from_what_any_rank_brings) {
  int64_t seen[RS_VERDICT_PACK + 1] = {0};
  for (unsigned i = 0; i < KINDS * KINDS * KINDS; i++) {
    unsigned bits[RANKS] = {i % KINDS, i / KINDS % KINDS, i / KINDS / KINDS};
    rs_record all[RANKS];
    int64_t rank, wanted_rank;
    rs_verdict wanted = expect(bits, &wanted_rank);
    for (int r = 0; r < RANKS; r++)
      all[r] = record_of(bits[r]);
    if (rs_records_judge(RANKS, all, &rank) != wanted || rank != wanted_rank)
      fail_msg("records %#x %#x %#x: rank %lld, not verdict %d by rank %lld", bits[0], bits[1], bits[2],
               (long long)rank, (int)wanted, (long long)wanted_rank);
    seen[wanted]++;
  }
  for (int v = RS_VERDICT_FAIL; v <= RS_VERDICT_PACK; v++)
    assert_true(seen[v] > 0);
}

static void change_call(rs_record *r) { r->call = RS_RECORD_AGREE; }
static void change_field(rs_record *r) { r->fields[RS_FIELDS - 1]++; }
static void change_path(rs_record *r) { r->path++; }
static void change_use(rs_record *r) { r->use++; }
static void change_cached(rs_record *r) { r->cached++; }
static void change_value(rs_record *r) { r->value++; }
static void change_key(rs_record *r) { r->key++; }
static void change_name_and_value(rs_record *r) {
  snprintf(r->argument, sizeof r->argument, "another");
  r->value++;
}
static void change_rounds(rs_record *r) { r->rounds++; }

/* Whichever rank is the odd one, also where it has moved, or has a source that others cannot map. */
CASE(ranks_fail_where_they_ask_for_different_things) {
  static const struct {
    const char *what;
    int32_t call;
    void (*change)(rs_record *record);
    bool fails;
  } cases[] = {
      {"call", RS_RECORD_REBIND, change_call, true},
      {"field of a plan", RS_RECORD_CREATE, change_field, true},
      {"path", RS_RECORD_CREATE, change_path, true},
      {"use of collectives", RS_RECORD_CREATE, change_use, true},
      {"cached transfer", RS_RECORD_AGREE, change_cached, true},
      {"argument", RS_RECORD_AGREE, change_value, true},
      {"value of another argument", RS_RECORD_AGREE, change_name_and_value, false},
      {"key of a rebind", RS_RECORD_REBIND, change_key, true},
      {"key of a new transfer", RS_RECORD_CREATE, change_key, false},
      {"rounds", RS_RECORD_CREATE, change_rounds, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int odd = 0; odd < RANKS; odd++)
      for (unsigned bits = 0; bits < KINDS; bits++) {
        rs_record all[RANKS];
        int64_t rank;
        for (int r = 0; r < RANKS; r++) {
          all[r] = record_of(MOVED);
          all[r].call = cases[i].call;
        }
        all[odd] = record_of(bits & ~(unsigned)(FAILED | ONLY));
        all[odd].call = cases[i].call;
        cases[i].change(&all[odd]);
        rs_verdict verdict = rs_records_judge(RANKS, all, &rank);
        if ((verdict == RS_VERDICT_FAIL) != cases[i].fails)
          fail_msg("%s of rank %d: verdict %d", cases[i].what, odd, (int)verdict);
        if (cases[i].fails)
          assert_int_equal(rank, odd > 0 ? odd : 1); /* the first that is not as rank 0 is */
      }
}

CASE(lone_rank_runs_what_it_has_bound) {
  rs_record record = {.call = RS_RECORD_AGREE, .private_entry = -1};
  int64_t rank;
  assert_int_equal(rs_records_judge(1, &record, &rank), RS_VERDICT_RUN);
  record.moved = true;
  assert_int_equal(rs_records_judge(1, &record, &rank), RS_VERDICT_REBIND);
}

RUN_CASES
