/* The order in which a rank copies what comes from others: the next rank's first, and round to the one before it. So
 * ranks that all read one another do not all begin with the same one. */
#include "exec/arrays.h"
#include "plan/plan.h"
#include "support/fixtures/case.h"

#include <string.h>

enum { RANKS = 5, ROWS = 20 };

static char memory[RANKS][2][ROWS * ROWS]; /* more than any array has */

/* Ranks whose sources are looked for, in order. */
typedef struct reads {
  int64_t rank[4 * RANKS], n, left_out;
} reads;

static reshard_status view_of(void *user, int64_t rank, int64_t entry, bool source, int64_t array, rs_view *view) {
  reads *r = user;
  (void)entry, (void)array;
  if (source && (r->n == 0 || r->rank[r->n - 1] != rank))
    r->rank[r->n++] = rank;
  *view = (rs_view){.at = memory[rank][source], .strides = {ROWS, 1}};
  return RESHARD_SUCCESS;
}

static bool maps(void *user, int64_t rank) { return rank != ((const reads *)user)->left_out; }

static void pull(int64_t rank, const char *from, const char *to, reads *r) {
  static const int64_t shape[] = {ROWS, ROWS};
  reshard_layout src, dst;
  reshard_plan plan;
  rs_copies copies = {0};
  int64_t foreign = 0;
  assert_int_equal(reshard_layout_parse(from, 2, shape, RANKS, &src), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse(to, 2, shape, RANKS, &dst), RESHARD_SUCCESS);
  const reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U8, .name = "t"};
  assert_int_equal(reshard_plan_create(1, &entry, rank, NULL, &plan), RESHARD_SUCCESS);
  assert_int_equal(rs_pull(plan, NULL, view_of, r->left_out >= 0 ? maps : NULL, r, &copies, &foreign), RESHARD_SUCCESS);
  rs_copies_free(&copies);
  reshard_plan_destroy(plan);
  reshard_layout_release(src);
  reshard_layout_release(dst);
}

CASE(all_read_all) {
  for (int64_t rank = 0; rank < RANKS; rank++) {
    reads r = {.left_out = -1};
    pull(rank, "chunk(0)", "chunk(1)", &r);
    assert_int_equal(r.n, RANKS);
    for (int64_t k = 0; k < RANKS; k++) /* its own before them */
      assert_int_equal(r.rank[k], (rank + k) % RANKS);
  }
}

CASE(some_are_left_out) {
  for (int64_t rank = 0; rank < RANKS; rank++) {
    reads r = {.left_out = (rank + 1) % RANKS};
    pull(rank, "chunk(0)", "chunk(1)", &r);
    assert_int_equal(r.n, RANKS - 1);
    for (int64_t k = 1; k < RANKS - 1; k++)
      assert_int_equal(r.rank[k], (rank + 1 + k) % RANKS);
  }
}

/* Ranks 1 and 2 hold all: those behind them begin at the first. */
CASE(few_send) {
  for (int64_t rank = 0; rank < RANKS; rank++) {
    reads r = {.left_out = -1};
    pull(rank, "mesh(2@1-2;S0)", "mesh(5;R)", &r);
    int64_t n = 0, expected[2] = {0};
    for (int64_t k = 0; k < RANKS; k++)
      if ((rank + k) % RANKS == 1 || (rank + k) % RANKS == 2)
        expected[n++] = (rank + k) % RANKS;
    assert_int_equal(r.n, n);
    assert_memory_equal(r.rank, expected, sizeof expected);
  }
}

RUN_CASES
