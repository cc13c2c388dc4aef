/* Layouts and plans of nearly 2^63 elements, ranks or intervals: nothing overflows, and nothing is counted by going
 * through it. Small ones of the same kinds are counted so, and agree. */
#include "layout/layout.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/layouts.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <reshard/reshard.h>

#include <stdio.h>
#include <string.h>

#define M INT64_MAX

/* The rank's elements, and its first and last interval in dim 0. */
CASE(huge_layouts_answer_for_any_rank) {
  static const struct {
    const char *text;
    int64_t n, world, rank, elements, intervals, first[2], last[2];
  } cases[] = {
      {"flat(0-1)", M, 2, 0, M / 2 + 1, 1, {0, M / 2 + 1}, {0, M / 2 + 1}},
      {"flat(0-1)", M, 2, 1, M / 2, 1, {M / 2 + 1, M}, {M / 2 + 1, M}},
      {"flat(0-2)", M, 3, 2, M / 3 - 1, 1, {2 * (M / 3 + 1), M}, {2 * (M / 3 + 1), M}},
      {"flat()", M, 1, 0, M, 1, {0, M}, {0, M}},
      {"flat()", M, M, M - 1, 1, 1, {M - 1, M}, {M - 1, M}},
      {"flat()", M - 5, M, M - 6, 1, 1, {M - 6, M - 5}, {M - 6, M - 5}},
      {"chunk(0)", M, 2, 1, M / 2, 1, {M / 2 + 1, M}, {M / 2 + 1, M}},
      {"chunk(0)", M, M, M - 1, 1, 1, {M - 1, M}, {M - 1, M}},
      {"cyclic(2;4611686018427387904)", M, 2, 1, M / 2, 1, {M / 2 + 1, M}, {M / 2 + 1, M}},
      {"cyclic(2;9223372036854775807)", M, 2, 0, M, 1, {0, M}, {0, M}},
      {"cyclic(2;1)", M, 2, 0, M / 2 + 1, M / 2 + 1, {0, 1}, {M - 1, M}},
      {"cyclic(2;1)", M, 2, 1, M / 2, M / 2, {1, 2}, {M - 2, M - 1}},
      {"cyclic(2;1)", (int64_t)1 << 29, 2, 0, 1 << 28, 1 << 28, {0, 1}, {(1 << 29) - 2, (1 << 29) - 1}},
      {"cyclic(2;1048576)",
       M,
       2,
       0,
       (int64_t)1 << 62,
       (int64_t)1 << 42,
       {0, 1 << 20},
       {M - (1 << 21) + 1, M - (1 << 20) + 1}},
      {"mesh(2;S0*4611686018427387905)", M, 2, 0, M / 2 + 1, M / 2 + 1, {0, 1}, {M - 1, M}},
      {"mesh(2;S0*9223372036854775807)", M, 2, 0, M, 1, {0, M}, {0, M}},
      {"mesh(2x2;S0,S0*2305843009213693952)", M, 4, 3, M / 4, M / 4, {M / 2 + 2, M / 2 + 3}, {M - 2, M - 1}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_layout layout = layout_from_text(cases[i].text, 1, &cases[i].n, cases[i].world);
    int64_t elements, count;
    reshard_interval first, last;
    GOOD(reshard_layout_buffer_elements(layout, cases[i].rank, 0, &elements));
    GOOD(reshard_layout_array_intervals(layout, cases[i].rank, 0, 0, 0, 1, &first, &count));
    if (elements != cases[i].elements || count != cases[i].intervals || first.begin != cases[i].first[0] ||
        first.end != cases[i].first[1])
      fail_msg("%s, rank %lld: %lld elements, %lld intervals, the first is [%lld,%lld)", cases[i].text,
               (long long)cases[i].rank, (long long)elements, (long long)count, (long long)first.begin,
               (long long)first.end);
    GOOD(reshard_layout_array_intervals(layout, cases[i].rank, 0, 0, count - 1, 5, &last, &count));
    if (last.begin != cases[i].last[0] || last.end != cases[i].last[1])
      fail_msg("%s, rank %lld: the last interval is [%lld,%lld)", cases[i].text, (long long)cases[i].rank,
               (long long)last.begin, (long long)last.end);
    reshard_layout_release(layout);
  }
}

/* Shapes of two dims, and what is refused. */
CASE(test_flat_of_dims) {
  const int64_t shape[2] = {3, M / 3}; /* M is 7 * 7 * 73 * 127 * 337 * 92737 * 649657, no multiple of 3 */
  reshard_layout layout = layout_from_text("flat()", 2, shape, 2);
  int64_t a, b;
  GOOD(reshard_layout_buffer_elements(layout, 0, 0, &a));
  GOOD(reshard_layout_buffer_elements(layout, 1, 0, &b));
  assert_true(a - b <= 1 && a >= b && a + b == 3 * (M / 3));
  reshard_layout_release(layout);
  assert_int_equal(reshard_layout_create_flat(2, shape, M, 0, NULL, &layout), RESHARD_ERROR_INVALID);
}

/* Every kind from and to every other, of nearly M / 3 bytes on 3 ranks. */
CASE(huge_plans_do_not_overflow) {
  static const char *const kinds[] = {"flat()",  "chunk(0)",  "cyclic(3;1024819115206086201)",     "mesh(3;S0*5)",
                                      "rank(1)", "mesh(3;R)", "boxes(2:[0]+[3074457345618257578])"};
  const int64_t n = M / 3 - 1024; /* messages are staged in steps of 256 */
  for (size_t s = 0; s < sizeof kinds / sizeof *kinds; s++)
    for (size_t d = 0; d < sizeof kinds / sizeof *kinds; d++) {
      reshard_layout src = layout_from_text(kinds[s], 1, &n, 3), dst = layout_from_text(kinds[d], 1, &n, 3);
      reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U8};
      int64_t sent = 0, received = 0;
      for (int64_t r = 0; r < 3; r++) {
        reshard_plan plan = NULL;
        reshard_plan_info info;
        int64_t wanted = 0, arrays;
        GOOD(reshard_layout_array_count(dst, r, &arrays));
        if (arrays > 0)
          GOOD(reshard_layout_buffer_elements(dst, r, 0, &wanted));
        if (reshard_plan_create(1, &entry, r, NULL, &plan) != RESHARD_SUCCESS)
          fail_msg("%s to %s: %s", kinds[s], kinds[d], reshard_last_error());
        GOOD(reshard_plan_get_info(plan, &info));
        if (info.received_bytes + info.self_copy_bytes != wanted)
          fail_msg("%s to %s: rank %lld receives %lld and keeps %lld bytes of %lld", kinds[s], kinds[d], (long long)r,
                   (long long)info.received_bytes, (long long)info.self_copy_bytes, (long long)wanted);
        sent += info.sent_bytes;
        received += info.received_bytes;
        reshard_plan_destroy(plan);
      }
      assert_true(sent == received);
      reshard_layout_release(src);
      reshard_layout_release(dst);
    }
}

/* A plan without entries is of any rank that there can be. */
CASE(test_ranks_of_plans) {
  reshard_plan plan = NULL;
  GOOD(reshard_plan_create(0, NULL, M - 1, NULL, &plan));
  reshard_plan_destroy(plan);
  plan = NULL;
  FAILS_WITH(reshard_plan_create(0, NULL, M, NULL, &plan), RESHARD_ERROR_INVALID, "rank 9223372036854775807");
  assert_int_equal(reshard_plan_create(0, NULL, -1, NULL, &plan), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_plan_create(0, NULL, INT64_MIN, NULL, &plan), RESHARD_ERROR_INVALID);
  assert_null(plan);
}

/* --- Small ones, index by index ----------------------------------------------------------------------------------- */

static uint64_t seed = 1;
static int64_t number_draw(int64_t most) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)((seed >> 33) % (uint64_t)most) + 1;
}

enum { MOST = 64 };

/* Intervals of a part, from where each index goes. */
static int64_t find_intervals(const rs_dim *dim, int64_t part, reshard_interval *intervals) {
  int64_t n = 0;
  for (int64_t i = 0; i < dim->n; i++) {
    int64_t held, local, run;
    rs_dim_locate(dim, i, &held, &local, &run);
    if (held != part)
      continue;
    if (n > 0 && intervals[n - 1].end == i)
      intervals[n - 1].end++;
    else
      intervals[n++] = (reshard_interval){i, i + 1};
  }
  return n;
}

static void check_layout(const char *text, int64_t n, int64_t ranks) {
  reshard_layout layout = layout_from_text(text, 1, &n, ranks);
  for (int64_t r = 0; r < ranks; r++) {
    reshard_interval wanted[MOST], found[MOST];
    int64_t count, some = number_draw(MOST) - 1, room = number_draw(4);
    int64_t in_all = find_intervals(&layout->dim[0], rs_layout_cell(layout, r, 0), wanted);
    GOOD(reshard_layout_array_intervals(layout, r, 0, 0, 0, MOST, found, &count));
    if (count != in_all || memcmp(found, wanted, (size_t)count * sizeof *found) != 0)
      fail_msg("%s of %lld: rank %lld has %lld intervals, %lld were found", text, (long long)n, (long long)r,
               (long long)in_all, (long long)count);
    found[0] = found[room] = (reshard_interval){-1, -1};
    GOOD(reshard_layout_array_intervals(layout, r, 0, 0, some, room, found, &count));
    int64_t listed = rs_max(0, rs_min(room, in_all - some));
    assert_int_equal(count, in_all);
    assert_int_equal(found[room].begin, -1);
    assert_true(listed == 0 ? found[0].begin == -1 : memcmp(found, wanted + some, (size_t)listed * sizeof *found) == 0);
  }
  reshard_layout_release(layout);
}

CASE(small_cyclic_layouts_match_their_elements) {
  for (int64_t i = 0; i < test_scaled(4000, 1); i++) {
    char text[96];
    int64_t n = number_draw(MOST) - 1, a = number_draw(4), b = number_draw(4), c = number_draw(3);
    snprintf(text, sizeof text, "cyclic(%lld;%lld)", (long long)a, (long long)number_draw(9));
    check_layout(text, n, a);
    snprintf(text, sizeof text, "mesh(%lldx%lldx%lld;S0%s,S0%s,S0)", (long long)a, (long long)b, (long long)c,
             i % 3 == 1   ? "*3"
             : i % 3 == 2 ? "*7"
                          : "",
             i % 4 == 1   ? "*2"
             : i % 4 == 2 ? "*5"
                          : "");
    check_layout(text, n, a * b * c);
  }
}

RUN_CASES
