/* index_select against loops: any dim, strides on all sides, both index types, duplicates, progressions, nothing at
 * all; and what is refused before anything is written. */
#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <reshard/tensor.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor with memory of its own, of which gaps are seen. */
typedef struct view {
  reshard_tensor tensor;
  reshard_tensor_info info;
  unsigned char *memory;
  int64_t bytes;
} view;

/* Strides in any order of the dims, with gaps where `loose`. */
static void view_make(rng *r, reshard_dtype dtype, int ndim, const int64_t *shape, bool loose, unsigned char poison,
                      view *out) {
  int64_t strides[RESHARD_MAX_DIMS] = {0}, step = 1;
  int order[RESHARD_MAX_DIMS];
  for (int d = 0; d < ndim; d++)
    order[d] = d;
  for (int d = ndim - 1; d > 0 && loose; d--) {
    int k = (int)rng_below(r, d + 1), swap = order[d];
    order[d] = order[k];
    order[k] = swap;
  }
  for (int i = ndim - 1; i >= 0; i--) {
    if (loose)
      step += rng_below(r, 3);
    strides[order[i]] = step;
    step *= shape[order[i]] > 0 ? shape[order[i]] : 1;
  }
  *out = (view){.bytes = (step + 1) * (int64_t)reshard_dtype_size(dtype)};
  out->memory = cli_alloc(out->bytes, 1);
  memset(out->memory, poison, (size_t)out->bytes);
  CLI_TRY("view: ", reshard_tensor_wrap(dtype, ndim, shape, strides, out->memory, NULL, NULL, &out->tensor));
  CLI_TRY("view: ", reshard_tensor_get_info(out->tensor, &out->info));
}

static void view_free(view *v) {
  reshard_tensor_release(v->tensor);
  free(v->memory);
}

static unsigned char *at(const view *v, const int64_t *index) {
  int64_t place = 0;
  for (int d = 0; d < v->info.ndim; d++)
    place += index[d] * v->info.strides[d];
  return v->memory + place * (int64_t)reshard_dtype_size(v->info.dtype);
}

static void set_index(const view *v, int64_t i, int64_t value) {
  if (v->info.dtype == RESHARD_I64)
    memcpy(at(v, &i), &value, sizeof value);
  else
    memcpy(at(v, &i), &(int32_t){(int32_t)value}, sizeof(int32_t));
}

/* The k-th of the tuples of a shape. */
static void tuple(const view *v, int64_t k, int64_t *index) {
  for (int d = v->info.ndim - 1; d >= 0; d--) {
    index[d] = k % v->info.shape[d];
    k /= v->info.shape[d];
  }
}

typedef enum pattern { ANY, SAME, FORWARD, BACKWARD, EVERY_OTHER, STRETCHES, PATTERNS } pattern;

static int64_t draw_index(rng *r, pattern how, int64_t i, int64_t extent, int64_t last) {
  switch (how) {
  case SAME: return extent / 2;
  case FORWARD: return i % extent;
  case BACKWARD: return extent - 1 - i % extent;
  case EVERY_OTHER: return 2 * i % extent;
  case STRETCHES: return rng_one_in(r, 4) || i == 0 ? rng_below(r, extent) : (last + 1) % extent;
  default: return rng_below(r, extent);
  }
}

/* Makes the content that dst's memory should have: the gaps as they were, the elements from src. */
static void select_naive(const view *src, int dim, const int64_t *values, const view *dst, unsigned char *wanted) {
  int64_t index[RESHARD_MAX_DIMS];
  for (int64_t k = 0; k < dst->info.elements; k++) {
    tuple(dst, k, index);
    int64_t place = at(dst, index) - dst->memory;
    index[dim] = values[index[dim]];
    memcpy(wanted + place, at(src, index), reshard_dtype_size(src->info.dtype));
  }
}

/* Without waiting: what is wrong is in a tensor. */
static void check_async(const view *src, int dim, const view *index, const view *dst, int64_t position, int64_t value) {
  static const int64_t two = 2;
  int64_t found[2] = {7, 7};
  reshard_tensor fault;
  CLI_TRY("fault: ", reshard_tensor_wrap(RESHARD_I64, 1, &two, NULL, found, NULL, NULL, &fault));
  GOOD(reshard_index_select_async(src->tensor, dim, index->tensor, dst->tensor, fault, 1, NULL));
  assert_int_equal(found[0], position);
  assert_int_equal(found[1], value);
  reshard_tensor_release(fault);
}

static void one(uint64_t seed) {
  static const reshard_dtype dtypes[] = {RESHARD_I8, RESHARD_F16, RESHARD_F32, RESHARD_F64, RESHARD_C128};
  rng r;
  rng_seed(&r, seed);
  int ndim = (int)rng_in(&r, 1, seed % 16 == 0 ? 8 : 4), dim = (int)rng_below(&r, ndim);
  int64_t shape[RESHARD_MAX_DIMS], n = rng_one_in(&r, 12) ? 0 : rng_in(&r, 1, 30);
  for (int d = 0; d < ndim; d++)
    shape[d] = rng_one_in(&r, 40) && d != dim ? 0 : rng_in(&r, 1, ndim > 4 ? 3 : 9);
  reshard_dtype dtype = dtypes[rng_below(&r, 5)];
  view src, dst, index;
  view_make(&r, dtype, ndim, shape, rng_one_in(&r, 2), 0, &src);
  int64_t extent = shape[dim], *values = cli_alloc(n + 1, sizeof *values);
  for (int64_t b = 0; b < src.bytes; b++)
    src.memory[b] = (unsigned char)rng_next(&r);
  shape[dim] = n;
  view_make(&r, dtype, ndim, shape, rng_one_in(&r, 2), 0xdb, &dst);
  reshard_dtype index_dtype = rng_one_in(&r, 2) ? RESHARD_I32 : RESHARD_I64;
  view_make(&r, index_dtype, 1, &n, rng_one_in(&r, 2), 0x7f, &index);
  pattern how = (pattern)rng_below(&r, PATTERNS);
  for (int64_t i = 0; i < n; i++) {
    values[i] = draw_index(&r, how, i, extent, i > 0 ? values[i - 1] : 0);
    set_index(&index, i, values[i]);
  }
  unsigned char *wanted = cli_alloc(dst.bytes, 1);
  memcpy(wanted, dst.memory, (size_t)dst.bytes);
  select_naive(&src, dim, values, &dst, wanted);
  int given = rng_one_in(&r, 2) ? dim : dim - ndim;
  reshard_status status =
      reshard_index_select(src.tensor, given, index.tensor, dst.tensor, (int)rng_below(&r, 3), NULL);
  if (status != RESHARD_SUCCESS)
    fail_msg("seed %llu: %s", (unsigned long long)seed, reshard_last_error());
  if (memcmp(wanted, dst.memory, (size_t)dst.bytes) != 0)
    fail_msg("seed %llu: wrong", (unsigned long long)seed);
  memset(dst.memory, 0xdb, (size_t)dst.bytes);
  check_async(&src, given, &index, &dst, -1, 0);
  if (memcmp(wanted, dst.memory, (size_t)dst.bytes) != 0)
    fail_msg("seed %llu: wrong without waiting", (unsigned long long)seed);
  if (n > 0) {
    int64_t k = rng_below(&r, n), bad = rng_one_in(&r, 2) ? -1 - rng_below(&r, 5) : extent + rng_below(&r, 5);
    set_index(&index, k, bad);
    memset(dst.memory, 0xdb, (size_t)dst.bytes);
    memset(wanted, 0xdb, (size_t)dst.bytes);
    check_async(&src, given, &index, &dst, k, bad);
    if (memcmp(wanted, dst.memory, (size_t)dst.bytes) != 0)
      fail_msg("seed %llu: something is written", (unsigned long long)seed);
  }
  free(wanted);
  free(values);
  view_free(&src);
  view_free(&dst);
  view_free(&index);
}

CASE(random_selections_match_loops) {
  for (int64_t seed = 1; seed <= test_scaled(3000, 1); seed++)
    one((uint64_t)seed);
}

/* So many indices that they go to the device in batches, and so many bytes that threads help. */
CASE(many_indices_go_in_batches) {
  enum { ROWS = 1000, WANTED = 150000 };
  static const int64_t shape[2] = {ROWS, 3}, wanted[2] = {WANTED, 3}, n = WANTED;
  rng r;
  rng_seed(&r, 5);
  reshard_tensor src, dst, index;
  reshard_tensor_info s, d, x;
  CLI_TRY("", reshard_tensor_create(RESHARD_I64, 2, shape, &src));
  CLI_TRY("", reshard_tensor_create(RESHARD_I64, 2, wanted, &dst));
  CLI_TRY("", reshard_tensor_create(RESHARD_I32, 1, &n, &index));
  reshard_tensor_get_info(src, &s);
  reshard_tensor_get_info(dst, &d);
  reshard_tensor_get_info(index, &x);
  for (int64_t i = 0; i < ROWS * 3; i++)
    ((int64_t *)s.data)[i] = i * 7;
  for (int64_t i = 0; i < WANTED; i++)
    ((int32_t *)x.data)[i] = (int32_t)rng_below(&r, ROWS);
  GOOD(reshard_index_select(src, 0, index, dst, 0, NULL));
  for (int64_t i = 0; i < WANTED * 3; i++)
    assert_int_equal(((int64_t *)d.data)[i], (((int32_t *)x.data)[i / 3] * 3 + i % 3) * 7);
  reshard_tensor_release(src);
  reshard_tensor_release(dst);
  reshard_tensor_release(index);
}

CASE(test_fault_refused) {
  static const int64_t n = 4, two = 2, every_other = 2, three = 3;
  int64_t memory[12] = {0, 1, 2, 3};
  reshard_tensor src, dst, index, fault, bad[4];
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I64, 1, &n, NULL, memory, NULL, NULL, &src));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I64, 1, &two, NULL, memory + 4, NULL, NULL, &dst));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I64, 1, &two, NULL, memory + 6, NULL, NULL, &index));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I64, 1, &two, NULL, memory + 8, NULL, NULL, &fault));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_F64, 1, &two, NULL, memory + 8, NULL, NULL, &bad[0]));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I64, 1, &three, NULL, memory + 8, NULL, NULL, &bad[1]));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I64, 1, &two, &every_other, memory + 8, NULL, NULL, &bad[2]));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I64, 1, &two, NULL, memory + 5, NULL, NULL, &bad[3]));
  static const char *const texts[4] = {"fault is f64 of shape 2, i64 of shape 2 is needed",
                                       "fault is i64 of shape 3, i64", "fault is i64 of shape 2 and not contiguous",
                                       "dst or fault overlaps another"};
  for (int i = 0; i < 4; i++) {
    FAILS_WITH(reshard_index_select_async(src, 0, index, dst, bad[i], 0, NULL), RESHARD_ERROR_INVALID, texts[i]);
    reshard_tensor_release(bad[i]);
  }
  assert_int_equal(reshard_index_select_async(src, 0, index, dst, NULL, 0, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_index_select_async(src, 0, index, dst, fault, 0, memory), RESHARD_ERROR_INVALID);
  assert_int_equal(memory[8], 0); /* nothing was written */
  reshard_tensor_release(src);
  reshard_tensor_release(dst);
  reshard_tensor_release(index);
  reshard_tensor_release(fault);
}

CASE(wrong_selections_are_refused_before_a_write) {
  static const int64_t shape[2] = {5, 6}, wanted[2] = {5, 4}, n = 4, overlapping[2] = {3, 1}, two[2] = {2, 2};
  int32_t source[64] = {0}, result[64];
  int64_t indices[8] = {0, 5, 3, 2};
  reshard_tensor src, dst, index, other, one, many, bad, folded, within;
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I32, 2, shape, NULL, source, NULL, NULL, &src));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I32, 2, wanted, NULL, result, NULL, NULL, &dst));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I64, 1, &n, NULL, indices, NULL, NULL, &index));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_F32, 2, wanted, NULL, result, NULL, NULL, &other));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I32, 1, &n, NULL, result, NULL, NULL, &one));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I64, 2, two, NULL, indices, NULL, NULL, &many));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I8, 1, &n, NULL, indices, NULL, NULL, &bad));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I32, 2, wanted, overlapping, result, NULL, NULL, &folded));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I32, 2, wanted, NULL, source + 10, NULL, NULL, &within));
  const struct {
    reshard_tensor src, index, dst;
    int dim, threads;
    void *stream;
    const char *text;
  } cases[] = {
      {NULL, index, dst, 1, 1, NULL, "src is NULL"},
      {src, NULL, dst, 1, 1, NULL, "index is NULL"},
      {src, index, NULL, 1, 1, NULL, "dst is NULL"},
      {src, index, dst, 2, 1, NULL, "dim 2 of a tensor of 2 dims"},
      {src, index, dst, -3, 1, NULL, "dim -3 of a tensor of 2 dims"},
      {src, index, dst, 1, -1, NULL, "-1 threads, 0 to 4096 are possible"},
      {src, index, dst, 1, 4097, NULL, "4097 threads, 0 to 4096 are possible"},
      {src, many, dst, 1, 1, NULL, "an index of 2 dims and dtype i64, 1 dim of i32 or i64 is needed"},
      {src, bad, dst, 1, 1, NULL, "an index of 1 dims and dtype i8, 1 dim of i32 or i64 is needed"},
      {src, index, other, 1, 1, NULL, "src is i32, dst is f32"},
      {src, index, dst, 0, 1, NULL, "dst is 5x4, 4x6 is needed"},
      {src, index, one, 1, 1, NULL, "dst is 4, 5x4 is needed"},
      {src, index, folded, 1, 1, NULL, "strides 3x1 of dst of shape 5x4 overlap"},
      {src, index, within, 1, 1, NULL, "dst overlaps src or the index"},
  };
  memset(result, 0x5a, sizeof result);
  char text[256];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(reshard_index_select(cases[i].src, cases[i].dim, cases[i].index, cases[i].dst, cases[i].threads,
                                          cases[i].stream),
                     RESHARD_ERROR_INVALID);
    snprintf(text, sizeof text, "reshard_index_select: %s", cases[i].text);
    assert_string_equal(reshard_last_error(), text);
  }
  FAILS_WITH(reshard_index_select(src, 1, index, dst, 1, text), RESHARD_ERROR_INVALID, "on the CPU it is NULL");
  static const int64_t wrong[] = {6, -1, INT64_MAX, INT64_MIN};
  for (int i = 0; i < 4; i++) { /* the last index: all before it are good */
    indices[3] = wrong[i];
    assert_int_equal(reshard_index_select(src, 1, index, dst, 1, NULL), RESHARD_ERROR_INVALID);
    snprintf(text, sizeof text, "reshard_index_select: index[3] = %lld, dim 1 has 6 indices", (long long)wrong[i]);
    assert_string_equal(reshard_last_error(), text);
  }
  for (size_t i = 0; i < sizeof result / sizeof *result; i++)
    assert_int_equal(result[i], 0x5a5a5a5a);
  indices[3] = 5;
  GOOD(reshard_index_select(src, 1, index, dst, 1, NULL));
  assert_int_equal(source[0], result[0]);
  reshard_tensor all[] = {src, dst, index, other, one, many, bad, folded, within};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    reshard_tensor_release(all[i]);
}

/* A source that is a broadcast view, and one that interleaves with dst. */
CASE(sources_may_be_views_beside_the_destination) {
  int32_t memory[40];
  static const int64_t shape[2] = {4, 5}, apart[2] = {10, 2}, repeated[2] = {0, 1}, n = 4;
  int64_t indices[4] = {3, 0, 1, 3};
  reshard_tensor even, odd, broadcast, index, dst;
  for (int i = 0; i < 40; i++)
    memory[i] = i;
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I32, 2, shape, apart, memory, NULL, NULL, &even));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I32, 2, shape, apart, memory + 1, NULL, NULL, &odd));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I64, 1, &n, NULL, indices, NULL, NULL, &index));
  CLI_TRY("", reshard_tensor_wrap(RESHARD_I32, 2, shape, repeated, memory, NULL, NULL, &broadcast));
  CLI_TRY("", reshard_tensor_create(RESHARD_I32, 2, shape, &dst));
  GOOD(reshard_index_select(even, 0, index, odd, 1, NULL));
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 5; j++) {
      assert_int_equal(memory[10 * i + 2 * j], 10 * i + 2 * j);
      assert_int_equal(memory[10 * i + 2 * j + 1], 10 * indices[i] + 2 * j);
    }
  GOOD(reshard_index_select(broadcast, 0, index, dst, 1, NULL));
  reshard_tensor_info info;
  GOOD(reshard_tensor_get_info(dst, &info));
  for (int i = 0; i < 20; i++)
    assert_int_equal(((int32_t *)info.data)[i], memory[i % 5]);
  reshard_tensor all[] = {even, odd, broadcast, index, dst};
  for (int i = 0; i < 5; i++)
    reshard_tensor_release(all[i]);
}

RUN_CASES
