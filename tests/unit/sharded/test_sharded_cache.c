/* State of a sharder: its cache of plans, the memory that a reshard takes at most, its options. */
#include "bench/cli/util.h"
#include "sharded/sharder.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/dtensor.h>

#include <string.h>

static const reshard_properties f32 = {.dtype = RESHARD_F32};

/* Hits, misses, least recently used out, and nothing kept. */
static void cache_expect(reshard_sharder s, int64_t hits, int64_t misses, int64_t evicted, int64_t cached) {
  reshard_sharder_stats stats;
  assert_int_equal(reshard_sharder_get_stats(s, &stats), RESHARD_SUCCESS);
  if (stats.hits != hits || stats.misses != misses || stats.evicted != evicted || stats.cached != cached)
    fail_msg("%d hits, %d misses, %d evicted, %d cached", (int)stats.hits, (int)stats.misses, (int)stats.evicted,
             (int)stats.cached);
}

CASE(cache_drops_the_plan_used_longest_ago) {
  static const int64_t shape[2] = {6, 4};
  reshard_layout l[3];
  static const char *const texts[3] = {"rank(0)", "chunk(0)", "chunk(1)"};
  for (int i = 0; i < 3; i++)
    l[i] = layout_from_text(texts[i], 2, shape, 1);
  for (int64_t limit = -1; limit <= 3; limit++) {
    sharded_ranks p;
    reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .cached_plans = limit};
    sharded_ranks_open(&p, 1, &options);
    reshard_sharder s = p.sharders[0];
    reshard_sharded_tensor t;
    assert_int_equal(reshard_sharded_tensor_empty(s, l[0], &f32, NULL, &t), RESHARD_SUCCESS);
    for (int i = 0; i < 9; i++) /* three pairs of layouts in turn */
      assert_int_equal(reshard_sharded_tensor_reshard(1, &t, &l[(i + 1) % 3], NULL), RESHARD_SUCCESS);
    if (limit == 0 || limit == 3)
      cache_expect(s, 6, 3, 0, 3);
    else if (limit == -1)
      cache_expect(s, 0, 9, 0, 0);
    else
      cache_expect(s, 0, 9, 9 - limit, limit);
    reshard_layout same = layout_from_text("chunk(0)", 2, shape, 1); /* an equal one, elsewhere */
    reshard_layout back[2] = {same, l[0]};
    reshard_sharder_stats before, after;
    reshard_sharder_get_stats(s, &before);
    assert_int_equal(reshard_sharded_tensor_reshard(1, &t, &back[0], NULL), RESHARD_SUCCESS);
    reshard_sharder_get_stats(s, &after);
    assert_int_equal(after.hits - before.hits, limit == 0 || limit == 3);
    assert_int_equal(after.peak_bytes, 6 * 4 * 4);
    reshard_layout_release(same);
    reshard_sharded_tensor_release(t);
    sharded_ranks_close(&p);
  }
  for (int i = 0; i < 3; i++)
    reshard_layout_release(l[i]);
}

/* The same layouts with other dtypes and properties are other plans, or other metadata of one plan. */
CASE(test_cache_properties) {
  static const int64_t shape[2] = {6, 4};
  reshard_layout a = layout_from_text("rank(0)", 2, shape, 1), b = layout_from_text("chunk(0)", 2, shape, 1);
  const reshard_properties properties[4] = {{.dtype = RESHARD_F32},
                                            {.dtype = RESHARD_F32, .requires_grad = 1},
                                            {.dtype = RESHARD_F32, .pin_memory = 1},
                                            {.dtype = RESHARD_I32}};
  sharded_ranks p;
  sharded_ranks_open(&p, 1, NULL);
  for (int i = 0; i < 8; i++) {
    const reshard_properties *want = &properties[i % 4];
    reshard_sharded_tensor t;
    reshard_tensor array;
    reshard_tensor_info info;
    assert_int_equal(reshard_sharded_tensor_empty(p.sharders[0], a, want, NULL, &t), RESHARD_SUCCESS);
    assert_int_equal(reshard_sharded_tensor_reshard(1, &t, &b, NULL), RESHARD_SUCCESS);
    reshard_properties have = reshard_metadata_properties(reshard_sharded_tensor_metadata(t));
    assert_true(have.dtype == want->dtype && have.requires_grad == want->requires_grad &&
                have.pin_memory == want->pin_memory);
    assert_int_equal(reshard_sharded_tensor_local(t, 0, &array, NULL), RESHARD_SUCCESS);
    assert_int_equal(reshard_tensor_get_info(array, &info), RESHARD_SUCCESS);
    assert_true(info.requires_grad == want->requires_grad && info.pin_memory == want->pin_memory);
    reshard_sharded_tensor_release(t);
  }
  cache_expect(p.sharders[0], 6, 2, 0, 2);
  sharded_ranks_close(&p);
  reshard_layout_release(a);
  reshard_layout_release(b);
}

/* Staging stays within the limit, and the peak says so. */
static void limited_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const reshard_layout *sides = p->user;
  reshard_sharded_tensor tensor = NULL;
  reshard_sharder_stats stats = {0};
  reshard_status status = reshard_sharded_tensor_empty(p->sharders[r], sides[0], &f32, NULL, &tensor);
  if (status == RESHARD_SUCCESS) {
    sharded_fill(tensor, r, 1);
    status = reshard_sharded_tensor_reshard(1, &tensor, &sides[1], NULL);
    p->wrong[r] += sharded_check(tensor, r, 1);
    reshard_sharder_get_stats(p->sharders[r], &stats);
    p->wrong[r] += stats.peak_bytes > 64 * 16 * 4 + 8192 || stats.peak_bytes <= 64 * 16 * 4;
  }
  rank_result_set(&p->results[r], status);
  reshard_sharded_tensor_release(tensor);
}

CASE(reshard_stays_within_the_workspace_limit) {
  static const int64_t shape[2] = {64, 64};
  reshard_layout sides[2] = {layout_from_text("chunk(0)", 2, shape, 4), layout_from_text("chunk(1)", 2, shape, 4)};
  reshard_sharder_options options = {
      .size = RESHARD_SHARDER_OPTIONS_INIT, .workspace_limit = 8192, .path = RESHARD_PATH_PACKED};
  sharded_ranks_check(4, &options, limited_body, sides, RESHARD_SUCCESS, NULL);
  reshard_layout_release(sides[0]);
  reshard_layout_release(sides[1]);
}

/* A tensor goes to and fro between two layouts. Returns how much the pool asked of the device's allocator after the
 * first time; *held: most that it had in use and kept at one time. */
enum { ARRAY = 300 * 500 * 4 };

static int64_t to_and_fro(const reshard_sharder_options *options, size_t *held) {
  static const int64_t shape[2] = {300, 500};
  reshard_layout l[2] = {layout_from_text("rank(0)", 2, shape, 1), layout_from_text("chunk(1)", 2, shape, 1)};
  reshard_memory_stats first, stats;
  reshard_sharded_tensor t;
  reshard_tensor kept;
  sharded_ranks p;
  sharded_ranks_open(&p, 1, options);
  reshard_device device = reshard_device_retain(p.sharders[0]->device);
  assert_int_equal(reshard_sharded_tensor_empty(p.sharders[0], l[0], &f32, NULL, &t), RESHARD_SUCCESS);
  sharded_fill(t, 0, 3);
  for (int i = 1; i <= 6; i++) {
    assert_int_equal(reshard_sharded_tensor_reshard(1, &t, &l[i % 2], NULL), RESHARD_SUCCESS);
    assert_int_equal(reshard_device_get_memory_stats(device, i == 1 ? &first : &stats), RESHARD_SUCCESS);
    assert_int_equal(sharded_check(t, 0, 3), 0);
  }
  assert_true(stats.in_use_bytes >= ARRAY && stats.in_use_bytes < ARRAY + 4096);
  assert_true(stats.peak_bytes >= 2 * ARRAY && stats.peak_bytes < 2 * ARRAY + 8192);
  *held = stats.peak_held_bytes;
  assert_int_equal(reshard_sharded_tensor_local(t, 0, &kept, NULL), RESHARD_SUCCESS);
  reshard_tensor_retain(kept);
  reshard_sharded_tensor_release(t);
  sharded_ranks_close(&p);
  reshard_device_release(device);
  assert_int_equal(array_check(l[0], 0, 0, kept, 3), 0); /* what is out when the sharder goes lives on */
  reshard_tensor_release(kept);
  reshard_layout_release(l[0]);
  reshard_layout_release(l[1]);
  return stats.upstream_allocs - first.upstream_allocs;
}

CASE(freed_memory_is_kept_as_the_device_says) {
  static const struct {
    int64_t keep_bytes;
    int again; /* of five */
    size_t held;
  } cases[] = {{0, 0, 2 * ARRAY}, {-1, 5, 2 * ARRAY}, {ARRAY / 2, 5, 2 * ARRAY}, {16 * ARRAY, 0, 2 * ARRAY}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    size_t held;
    const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .keep_bytes = cases[i].keep_bytes};
    assert_int_equal(to_and_fro(&options, &held), cases[i].again);
    assert_true(held < cases[i].held + 8192);
  }
}

/* The pool of a device that is given, with its rule and its limit: two arrays fit, three do not. */
CASE(test_given_device) {
  static const int64_t shape[2] = {300, 500};
  const reshard_device_options rules = {
      .size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .limit_bytes = 5 * ARRAY / 2, .keep_bytes = -1};
  reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT};
  reshard_layout l = layout_from_text("rank(0)", 2, shape, 1);
  reshard_memory_stats stats;
  size_t held;
  assert_int_equal(reshard_device_create("cpu", &rules, &options.device), RESHARD_SUCCESS);
  assert_int_equal(to_and_fro(&options, &held), 5);
  sharded_ranks p;
  reshard_sharded_tensor t[3] = {NULL};
  reshard_sharder refused = NULL;
  sharded_ranks_open(&p, 1, &options);
  for (int i = 0; i < 2; i++)
    assert_int_equal(reshard_sharded_tensor_empty(p.sharders[0], l, &f32, NULL, &t[i]), RESHARD_SUCCESS);
  sharded_fill(t[0], 0, 5);
  assert_int_equal(reshard_sharded_tensor_empty(p.sharders[0], l, &f32, NULL, &t[2]), RESHARD_ERROR_OUT_OF_MEMORY);
  assert_int_equal(reshard_sharded_tensor_reshard(1, t, &l, NULL), RESHARD_ERROR_OUT_OF_MEMORY);
  assert_int_equal(sharded_check(t[0], 0, 5), 0);
  assert_null(t[2]);
  options.keep_bytes = 1;
  BAD(reshard_sharder_create(p.comms[0], &options, &refused), "rank 0: 1 bytes kept: the device given says that");
  for (int i = 0; i < 2; i++)
    reshard_sharded_tensor_release(t[i]);
  sharded_ranks_close(&p);
  assert_int_equal(reshard_device_get_memory_stats(options.device, &stats), RESHARD_SUCCESS);
  assert_true(stats.in_use_bytes == 0 && stats.kept_bytes == 0 && stats.upstream_allocs == stats.upstream_frees);
  reshard_device_release(options.device);
  reshard_layout_release(l);
}

/* To and fro between two placings: from the second time on in the memory that is there. */
static void redistribute_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const int64_t size = 2, shape[2] = {512, 512};
  const reshard_placement cuts[2] = {{.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                                     {.kind = RESHARD_PLACEMENT_SHARD, .dim = 1}};
  reshard_mesh mesh;
  reshard_dtensor tensor, next;
  reshard_memory_stats first = {0}, stats = {0};
  reshard_status status = RESHARD_SUCCESS;
  CLI_TRY("mesh: ", reshard_mesh_create(p->comms[r], 0, 1, &size, NULL, 0, NULL, &mesh));
  CLI_TRY("tensor: ", reshard_dtensor_empty(p->sharders[r], &(reshard_placing){mesh, &cuts[0], NULL}, 2, shape, &f32,
                                            NULL, &tensor));
  array_fill(reshard_dtensor_layout(tensor), r, 0, reshard_dtensor_local(tensor), 3);
  for (int i = 1; i <= 6 && status == RESHARD_SUCCESS; i++) {
    status = reshard_dtensor_redistribute(1, &tensor, &(reshard_placing){mesh, &cuts[i % 2], NULL}, NULL, &next);
    if (status != RESHARD_SUCCESS)
      break;
    p->wrong[r] += array_check(reshard_dtensor_layout(next), r, 0, reshard_dtensor_local(next), 3);
    reshard_dtensor_release(tensor);
    tensor = next;
    reshard_device_get_memory_stats(p->sharders[r]->device, i == 1 ? &first : &stats);
  }
  p->wrong[r] += stats.upstream_allocs != first.upstream_allocs || stats.peak_bytes < 1 << 20;
  rank_result_set(&p->results[r], status);
  reshard_dtensor_release(tensor);
  reshard_mesh_release(mesh);
}

CASE(redistributes_keep_their_plans) { sharded_ranks_check(2, NULL, redistribute_body, NULL, RESHARD_SUCCESS, NULL); }

RUN_CASES
