/* What a sharder keeps and tells: its cache of plans, the memory that a reshard takes at most, its options. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/parts.h"

#include <string.h>

static const reshard_properties f32 = {.dtype = RESHARD_F32};

/* Hits, misses, least recently used out, and nothing kept. */
static void expect(reshard_sharder s, int64_t hits, int64_t misses, int64_t evicted, int64_t cached) {
  reshard_sharder_stats stats;
  assert_int_equal(reshard_sharder_get_stats(s, &stats), RESHARD_SUCCESS);
  if (stats.hits != hits || stats.misses != misses || stats.evicted != evicted || stats.cached != cached)
    fail_msg("%d hits, %d misses, %d evicted, %d cached", (int)stats.hits, (int)stats.misses, (int)stats.evicted,
             (int)stats.cached);
}

static void test_cache(void **state) {
  (void)state;
  static const int64_t shape[2] = {6, 4};
  reshard_layout l[3];
  static const char *const texts[3] = {"rank(0)", "chunk(0)", "chunk(1)"};
  for (int i = 0; i < 3; i++)
    l[i] = parts_layout(texts[i], 2, shape, 1);
  for (int64_t limit = -1; limit <= 3; limit++) {
    parts p;
    reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .cached_plans = limit};
    parts_open(&p, 1, &options);
    reshard_sharder s = p.sharders[0];
    reshard_sharded_tensor t;
    assert_int_equal(reshard_sharded_tensor_empty(s, l[0], &f32, &t), RESHARD_SUCCESS);
    for (int i = 0; i < 9; i++) /* three pairs of layouts in turn */
      assert_int_equal(reshard_sharded_tensor_reshard(1, &t, &l[(i + 1) % 3], NULL), RESHARD_SUCCESS);
    if (limit == 0 || limit == 3)
      expect(s, 6, 3, 0, 3);
    else if (limit == -1)
      expect(s, 0, 9, 0, 0);
    else
      expect(s, 0, 9, 9 - limit, limit);
    reshard_layout same = parts_layout("chunk(0)", 2, shape, 1); /* an equal one, elsewhere */
    reshard_layout back[2] = {same, l[0]};
    reshard_sharder_stats before, after;
    reshard_sharder_get_stats(s, &before);
    assert_int_equal(reshard_sharded_tensor_reshard(1, &t, &back[0], NULL), RESHARD_SUCCESS);
    reshard_sharder_get_stats(s, &after);
    assert_int_equal(after.hits - before.hits, limit == 0 || limit == 3);
    assert_int_equal(after.peak_bytes, 6 * 4 * 4);
    reshard_layout_release(same);
    reshard_sharded_tensor_release(t);
    parts_close(&p);
  }
  for (int i = 0; i < 3; i++)
    reshard_layout_release(l[i]);
}

/* The same layouts with other dtypes and properties are other plans, or other metadata of one plan. */
static void test_cache_properties(void **state) {
  (void)state;
  static const int64_t shape[2] = {6, 4};
  reshard_layout a = parts_layout("rank(0)", 2, shape, 1), b = parts_layout("chunk(0)", 2, shape, 1);
  const reshard_properties properties[4] = {{.dtype = RESHARD_F32},
                                            {.dtype = RESHARD_F32, .requires_grad = 1},
                                            {.dtype = RESHARD_F32, .pin_memory = 1},
                                            {.dtype = RESHARD_I32}};
  parts p;
  parts_open(&p, 1, NULL);
  for (int i = 0; i < 8; i++) {
    const reshard_properties *want = &properties[i % 4];
    reshard_sharded_tensor t;
    reshard_tensor array;
    reshard_tensor_info info;
    assert_int_equal(reshard_sharded_tensor_empty(p.sharders[0], a, want, &t), RESHARD_SUCCESS);
    assert_int_equal(reshard_sharded_tensor_reshard(1, &t, &b, NULL), RESHARD_SUCCESS);
    reshard_properties have = reshard_metadata_properties(reshard_sharded_tensor_metadata(t));
    assert_true(have.dtype == want->dtype && have.requires_grad == want->requires_grad &&
                have.pin_memory == want->pin_memory);
    assert_int_equal(reshard_sharded_tensor_local(t, 0, &array, NULL), RESHARD_SUCCESS);
    assert_int_equal(reshard_tensor_get_info(array, &info), RESHARD_SUCCESS);
    assert_true(info.requires_grad == want->requires_grad && info.pin_memory == want->pin_memory);
    reshard_sharded_tensor_release(t);
  }
  expect(p.sharders[0], 6, 2, 0, 2);
  parts_close(&p);
  reshard_layout_release(a);
  reshard_layout_release(b);
}

/* Staging stays within the limit, and the peak says so. */
static void limited_body(void *user, int64_t r) {
  parts *p = user;
  const reshard_layout *sides = p->user;
  reshard_sharded_tensor tensor = NULL;
  reshard_sharder_stats stats = {0};
  reshard_status status = reshard_sharded_tensor_empty(p->sharders[r], sides[0], &f32, &tensor);
  if (status == RESHARD_SUCCESS) {
    parts_fill_all(tensor, r, 1);
    status = reshard_sharded_tensor_reshard(1, &tensor, &sides[1], NULL);
    p->wrong[r] += parts_check_all(tensor, r, 1);
    reshard_sharder_get_stats(p->sharders[r], &stats);
    p->wrong[r] += stats.peak_bytes > 64 * 16 * 4 + 8192 || stats.peak_bytes <= 64 * 16 * 4;
  }
  crew_note(&p->results[r], status);
  reshard_sharded_tensor_release(tensor);
}

static void test_limit(void **state) {
  (void)state;
  static const int64_t shape[2] = {64, 64};
  reshard_layout sides[2] = {parts_layout("chunk(0)", 2, shape, 4), parts_layout("chunk(1)", 2, shape, 4)};
  reshard_sharder_options options = {
      .size = RESHARD_SHARDER_OPTIONS_INIT, .workspace_limit = 8192, .path = RESHARD_PATH_PACKED};
  parts p;
  parts_open(&p, 4, &options);
  parts_run(&p, limited_body, sides);
  parts_assert(&p, RESHARD_SUCCESS, NULL);
  parts_close(&p);
  reshard_layout_release(sides[0]);
  reshard_layout_release(sides[1]);
}

/* Memory of released arrays is taken again, up to a limit; what is out when the sharder goes lives on. */
static void *data_of(reshard_sharded_tensor t) {
  reshard_tensor array;
  reshard_tensor_info info;
  assert_int_equal(reshard_sharded_tensor_local(t, 0, &array, NULL), RESHARD_SUCCESS);
  assert_int_equal(reshard_tensor_get_info(array, &info), RESHARD_SUCCESS);
  return info.data;
}

static void test_reused(void **state) {
  (void)state;
  static const int64_t shape[2] = {300, 500}, half[2] = {300, 250}; /* 600,000 and 300,000 bytes */
  reshard_layout l[2] = {parts_layout("rank(0)", 2, shape, 1), parts_layout("chunk(1)", 2, shape, 1)},
                 small = parts_layout("rank(0)", 2, half, 1);
  static const int64_t limits[] = {0, 500000, 700000, 2000000};
  for (int k = 0; k < 4; k++) {
    reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .reused_bytes = limits[k]};
    parts p;
    reshard_sharded_tensor t, other;
    parts_open(&p, 1, &options);
    assert_int_equal(reshard_sharded_tensor_empty(p.sharders[0], l[0], &f32, &t), RESHARD_SUCCESS);
    parts_fill_all(t, 0, 3);
    void *first = data_of(t);
    assert_int_equal(reshard_sharded_tensor_reshard(1, &t, &l[1], NULL), RESHARD_SUCCESS);
    void *second = data_of(t);
    assert_ptr_not_equal(first, second);
    assert_int_equal(reshard_sharded_tensor_empty(p.sharders[0], small, &f32, &other), RESHARD_SUCCESS);
    if (k >= 2)
      assert_ptr_not_equal(data_of(other), first); /* too large for it */
    assert_int_equal(reshard_sharded_tensor_reshard(1, &t, &l[0], NULL), RESHARD_SUCCESS);
    if (k >= 2)
      assert_ptr_equal(data_of(t), first);
    assert_int_equal(parts_check_all(t, 0, 3), 0);
    reshard_tensor kept;
    assert_int_equal(reshard_sharded_tensor_local(t, 0, &kept, NULL), RESHARD_SUCCESS);
    reshard_tensor_retain(kept);
    reshard_sharded_tensor_release(t);
    reshard_sharded_tensor_release(other);
    parts_close(&p);
    assert_int_equal(parts_check(l[0], 0, 0, kept, 3), 0);
    reshard_tensor_release(kept);
  }
  reshard_layout_release(l[0]);
  reshard_layout_release(l[1]);
  reshard_layout_release(small);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_cache), cmocka_unit_test(test_cache_properties),
                                     cmocka_unit_test(test_limit), cmocka_unit_test(test_reused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
