/* Plans that are collectives, and the option that forces or forbids one. Their data is tested where a communicator has
 * collectives: tests/virtual_gpu/library/nccl/test_vg_nccl_collective.c. */
#include "support/fixtures/case.h"
#include "support/reshards/rows_to_columns.h"

#include <stdio.h>
#include <string.h>

#define NONE       RESHARD_COLLECTIVE_NONE
#define GATHER     RESHARD_COLLECTIVE_ALL_GATHER
#define ALL_TO_ALL RESHARD_COLLECTIVE_ALL_TO_ALL
#define BROADCAST  RESHARD_COLLECTIVE_BROADCAST

typedef struct row {
  const char *src, *dst;
  int64_t shape[2], limit;
  int64_t rank; /* whose pattern; -1: all have it */
  reshard_pattern pattern;
} row;

static const row rows[] = {
    {"mesh(4;S0)", "mesh(4;R)", {8, 12}, 0, -1, {GATHER, -1, 96, "the same to everybody, as much from everybody"}},
    {"mesh(4;S1)", "mesh(4;R)", {8, 12}, 0, -1, {GATHER, -1, 96, "the same to everybody, as much from everybody"}},
    {"mesh(2x2;S0,S1)", "mesh(2x2;R,R)", {8, 12}, 0, -1, {GATHER, -1, 96, "the same"}},
    {"cyclic(4x1;2x12)", "mesh(4;R)", {16, 12}, 0, -1, {GATHER, -1, 192, "the same"}},
    {"mesh(4;S0)", "mesh(4;R)", {10, 12}, 0, 0, {NONE, -1, 0, "messages differ in length"}},
    {"mesh(4;S0)", "mesh(4;R)", {3, 12}, 0, 3, {NONE, -1, 0, "not everybody is sent to"}},
    {"mesh(4;S0)", "mesh(4;R)", {8, 12}, 65536, -1, {GATHER, -1, 96, "the same"}},
    {"mesh(4;S0)", "mesh(4;S1)", {8, 12}, 0, -1, {ALL_TO_ALL, -1, 24, "as much to everybody as from everybody"}},
    {"mesh(4;S1)", "mesh(4;S0)", {8, 12}, 0, -1, {ALL_TO_ALL, -1, 24, "as much"}},
    {"mesh(4;S0)", "mesh(4;S1)", {8, 13}, 0, 0, {NONE, -1, 0, "messages differ in length"}},
    {"rank(1)", "mesh(4;R)", {8, 12}, 0, 1, {BROADCAST, 1, 384, "the same to everybody"}},
    {"rank(1)", "mesh(4;R)", {8, 12}, 0, 3, {BROADCAST, 1, 384, "all from one rank"}},
    {"rank(1)", "mesh(4;S0)", {8, 12}, 0, 1, {NONE, -1, 0, "one rank sends different bytes to each"}},
    {"mesh(4;S0)", "rank(1)", {8, 12}, 0, 2, {NONE, -1, 0, "not everybody is sent to"}},
    {"mesh(4;R)", "mesh(4;S0)", {8, 12}, 0, -1, {NONE, -1, 0, "it exchanges nothing"}},
    {"mesh(2x2;S0,R)", "mesh(2x2;R,S0)", {8, 12}, 0, 1, {NONE, -1, 0, "not everybody is sent to"}},
};

static void check_pattern(const row *x, int64_t rank) {
  reshard_layout src, dst;
  reshard_plan plan;
  reshard_pattern got;
  assert_int_equal(reshard_layout_parse(x->src, 2, x->shape, 4, &src), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse(x->dst, 2, x->shape, 4, &dst), RESHARD_SUCCESS);
  reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_F32};
  reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = x->limit};
  assert_int_equal(reshard_plan_create(1, &entry, rank, &options, &plan), RESHARD_SUCCESS);
  assert_int_equal(reshard_plan_get_pattern(plan, &got), RESHARD_SUCCESS);
  if (got.kind != x->pattern.kind || got.root != x->pattern.root || got.bytes != x->pattern.bytes ||
      strstr(got.why, x->pattern.why) == NULL)
    fail_msg("%s -> %s, rank %d: %s, root %d, %d bytes, %s", x->src, x->dst, (int)rank,
             reshard_collective_string(got.kind), (int)got.root, (int)got.bytes, got.why);
  char text[4096], line[200];
  assert_int_equal(reshard_plan_explain(plan, RESHARD_TEXT, text, sizeof text, NULL), RESHARD_SUCCESS);
  snprintf(line, sizeof line, "pattern   %s: %s", reshard_collective_string(got.kind), got.why);
  assert_non_null(strstr(text, line));
  reshard_plan_destroy(plan);
  reshard_layout_release(src);
  reshard_layout_release(dst);
}

CASE(messages_that_are_a_collective_are_found) {
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    for (int64_t r = 0; r < 4; r++)
      if (rows[i].rank < 0 || rows[i].rank == r)
        check_pattern(&rows[i], r);
  reshard_pattern pattern;
  assert_int_equal(reshard_plan_get_pattern(NULL, &pattern), RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_collective_string((reshard_collective)9), "unknown");
}

/* Ranks of one process have no collectives: what is forced is refused, and nobody is told that it was taken. */
CASE(collective_that_is_forced_and_lacking_is_refused) {
  rows_to_columns s;
  for (int path = RESHARD_PATH_DIRECT; path <= RESHARD_PATH_PACKED; path++) {
    rows_to_columns_open(&s, 4, 0, (reshard_path)path, NULL);
    reshard_transfer_info info;
    rows_to_columns_must_create(&s);
    assert_int_equal(reshard_transfer_get_info(s.transfers[2], &info), RESHARD_SUCCESS);
    assert_int_equal(info.collective, NONE);
    assert_string_equal(info.collective_why, path == RESHARD_PATH_DIRECT
                                                 ? "rank 0: the direct path is one pass already"
                                                 : "rank 0: the communicator has no collectives");
    rows_to_columns_must_execute(&s);
    rows_to_columns_destroy(&s);
    for (int64_t r = 0; r < 4; r++)
      s.options[r].collective = RESHARD_COLLECTIVE_USE_FORCE;
    rows_to_columns_create(&s);
    rows_to_columns_assert_all(&s, RESHARD_ERROR_UNSUPPORTED, "a collective is forced, and there is none: rank 0: the ",
                               NULL);
    s.options[2].collective = RESHARD_COLLECTIVE_USE_FORBID;
    rows_to_columns_create(&s);
    rows_to_columns_assert_all(&s, RESHARD_ERROR_MISMATCH, "use of collectives force on rank 0, forbid on rank 2",
                               NULL);
    s.options[1].collective = (reshard_collective_use)7;
    rows_to_columns_create(&s);
    rows_to_columns_assert_all(&s, RESHARD_ERROR_INVALID, "rank 1: unknown use of collectives 7", NULL);
    rows_to_columns_close(&s);
  }
}

RUN_CASES
