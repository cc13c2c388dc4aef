/* The selection kernel against a loop: any dim of any view, both kinds of indices, all widths and alignments, indices
 * out of range, and selections that are cut in several launches. Memory is exact, so that one byte too far is found. */
#include "kernels/index_select.h"

#include "executor/probes.h"
#include "simt.h"
#include "support/fixtures/draw.h"
#include "support/fixtures/scale.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fixtures/case.h"

enum { MOST_DIMS = 9 }; /* that selected along, and all loops that a job has room for */

/* A dense array of `n` dims of runs in a random order of dims, with gaps that keep `unit`; some dims backwards. */
static int64_t lay_out(int n, const int64_t *shape, int64_t run, int64_t unit, int64_t *strides, int64_t *first) {
  int order[MOST_DIMS] = {0};
  for (int i = 0; i < n; i++) {
    int k = (int)between(0, i);
    order[i] = order[k];
    order[k] = i;
  }
  int64_t extent = run;
  *first = 0;
  for (int i = 0; i < n; i++) {
    extent += chance(3) ? between(1, 3) * unit : 0;
    strides[order[i]] = extent;
    if (chance(8)) {
      strides[order[i]] = -extent;
      *first += (shape[order[i]] - 1) * extent;
    }
    extent *= shape[order[i]];
  }
  return extent;
}

static void put_index(char *at, int bytes, int64_t value) {
  int32_t narrow = (int32_t)value;
  memcpy(at, bytes == 4 ? (void *)&narrow : (void *)&value, (size_t)bytes);
}
static int64_t get_index(const char *at, int bytes) {
  int32_t narrow;
  int64_t wide;
  memcpy(bytes == 4 ? (void *)&narrow : (void *)&wide, at, (size_t)bytes);
  return bytes == 4 ? narrow : wide;
}

/* Writes what the selection should into want, which is as dst; the first bad index into *fault. */
static void select_expect(const rs_select *s, char *want, rs_select_fault *fault) {
  int64_t rows = 1;
  *fault = (rs_select_fault){-1, 0};
  for (int i = 0; i < s->naxes; i++)
    rows *= s->axes[i].n;
  for (int64_t i = 0; i < s->count; i++) {
    int64_t value = get_index(s->index + i * s->index_stride, s->index_bytes);
    if (value < 0 || value >= s->extent) {
      if (fault->position < 0)
        *fault = (rs_select_fault){i, value};
      continue;
    }
    for (int64_t row = 0; row < rows; row++) {
      int64_t rest = row, src = value * s->src_stride, dst = i * s->dst_stride;
      for (int k = 0; k < s->naxes; k++) {
        src += rest % s->axes[k].n * s->axes[k].src;
        dst += rest % s->axes[k].n * s->axes[k].dst;
        rest /= s->axes[k].n;
      }
      memcpy(want + dst, s->src + src, (size_t)s->run);
    }
  }
}

static void check_case(uint64_t seed) {
  draw_state = seed;
  int64_t unit = INT64_C(1) << between(0, 4);
  rs_select s = {
      .element = (int32_t)unit, .index_bytes = chance(2) ? 4 : 8, .run = unit * between(1, chance(4) ? 90 : 5)};
  int dims = (int)(chance(10) ? MOST_DIMS : between(1, 5)), dim = (int)between(0, dims - 1);
  int64_t src_shape[MOST_DIMS], dst_shape[MOST_DIMS], src_strides[MOST_DIMS], dst_strides[MOST_DIMS], total = s.run;
  for (int i = 0; i < dims; i++) {
    src_shape[i] = dst_shape[i] = dims == MOST_DIMS ? 2 : total < 20000 ? between(1, chance(3) ? 2 : 9) : 1;
    total *= src_shape[i];
  }
  if (dims == 1 && chance(2))
    src_shape[0] = between(1, 300);
  dst_shape[dim] = s.count = total < 20000 ? between(chance(20) ? 0 : 1, chance(3) ? 200 : 12) : 1;
  s.extent = src_shape[dim];
  int64_t src_first, dst_first, shift = chance(2) ? 0 : between(0, 20) * (chance(2) ? 1 : unit);
  int64_t src_bytes = lay_out(dims, src_shape, s.run, unit, src_strides, &src_first) + shift;
  int64_t dst_shift = chance(2) ? 0 : between(0, 20) * (chance(2) ? 1 : unit);
  int64_t dst_bytes = lay_out(dims, dst_shape, s.run, unit, dst_strides, &dst_first) + dst_shift;
  dst_first = (s.count == 0 ? 0 : dst_first) + dst_shift;
  s.index_stride = s.index_bytes * (chance(3) ? between(2, 3) : 1);
  char *src = malloc((size_t)src_bytes), *dst = malloc((size_t)dst_bytes + 1), *want = malloc((size_t)dst_bytes + 1);
  char *index = malloc((size_t)(s.count == 0 ? 1 : (s.count - 1) * s.index_stride + s.index_bytes));
  for (int64_t i = 0; i < src_bytes; i++)
    src[i] = (char)draw();
  memset(dst, 0x5a, (size_t)dst_bytes + 1);
  memcpy(want, dst, (size_t)dst_bytes + 1);
  bool bad = chance(4);
  for (int64_t i = 0; i < s.count; i++) {
    int64_t value = between(0, s.extent - 1);
    if (bad && chance(s.count / 2 + 1))
      value = chance(2) ? s.extent + between(0, 5) : -between(1, INT32_MAX);
    put_index(index + i * s.index_stride, s.index_bytes, value);
  }
  s.src = src + shift + src_first;
  s.dst = dst + dst_first;
  s.index = index;
  s.src_stride = src_strides[dim];
  s.dst_stride = dst_strides[dim];
  for (int i = 0; i < dims; i++)
    if (i != dim)
      s.axes[s.naxes++] = (rs_axis){src_shape[i], src_strides[i], dst_strides[i]};
  rs_select_fault fault = {77, 77}, first;
  select_expect(&s, want + dst_first, &first);
  bool checked = first.position >= 0 || chance(2);
  simt_set_order(chance(2) ? 0 : draw());
  int error = (chance(3) ? rs_index_select_launch_small : rs_index_select_launch)(&s, checked ? &fault : NULL,
                                                                                  chance(3) ? 1 : 0, NULL);
  simt_set_order(0);
  if (error != 0)
    fail_msg("seed %llu: error %d", (unsigned long long)seed, error);
  if (memcmp(dst, want, (size_t)dst_bytes + 1) != 0)
    fail_msg("seed %llu: dim %d of %d, run %lld, %lld of %lld", (unsigned long long)seed, dim, dims, (long long)s.run,
             (long long)s.count, (long long)s.extent);
  if (checked && (fault.position != first.position || fault.value != first.value))
    fail_msg("seed %llu: index[%lld] = %lld is said to be bad, it is index[%lld] = %lld", (unsigned long long)seed,
             (long long)fault.position, (long long)fault.value, (long long)first.position, (long long)first.value);
  free(src);
  free(dst);
  free(want);
  free(index);
}

CASE(random_selections_match_a_loop) {
  for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(8000, 600); seed++)
    check_case(seed);
}

/* Long rows, which are read and written 16 bytes at a time: as many accesses as that. */
CASE(long_rows_go_16_bytes_at_a_time) {
  enum { ROWS = 40, RUN = 5120 * 2, COUNT = 64 };
  char *src = aligned_alloc(16, ROWS * RUN), *dst = aligned_alloc(16, COUNT * RUN);
  int64_t index[COUNT];
  for (int i = 0; i < ROWS * RUN; i++)
    src[i] = (char)draw();
  for (int i = 0; i < COUNT; i++)
    index[i] = between(0, ROWS - 1);
  rs_select s = {.src = src,
                 .dst = dst,
                 .index = (char *)index,
                 .count = COUNT,
                 .extent = ROWS,
                 .index_stride = 8,
                 .src_stride = RUN,
                 .dst_stride = RUN,
                 .index_bytes = 8,
                 .element = 2,
                 .run = RUN};
  int64_t before = simt_get_counts().threads;
  assert_int_equal(rs_index_select_launch(&s, NULL, 0, NULL), 0);
  int64_t threads = simt_get_counts().threads - before, units = COUNT * RUN / 16;
  assert_true(threads >= units / 4 && threads <= units / 4 + 256);
  int64_t launches = simt_get_counts().launches;
  assert_int_equal(rs_index_select_launch(&s, NULL, 2, NULL), 0); /* of two blocks each, in halves of halves */
  launches = simt_get_counts().launches - launches;
  assert_true(launches >= units / (2 * 1024) && launches <= units / 1024 + 1);
  for (int i = 0; i < COUNT; i++)
    assert_memory_equal(dst + i * RUN, src + index[i] * RUN, RUN);
  free(src);
  free(dst);
}

/* Runs that are too long for one launch, of any width, one index and several; and one that is just short enough. */
CASE(test_long_runs) {
  for (int64_t unit = 1; unit <= 16; unit *= 2)
    for (int64_t count = 0; count <= 3; count++) {
      int64_t run = count == 0 ? 16 * 3000 : unit * (10001 + count);
      char *src = aligned_alloc(16, 16 * (size_t)run), *dst = aligned_alloc(16, 16 * (size_t)run);
      for (int64_t i = 0; i < 4 * run; i++)
        src[i] = (char)draw();
      memset(dst, 0x5a, 16 * (size_t)run);
      int32_t index[] = {2, 0, 3};
      rs_select s = {.src = src,
                     .dst = dst,
                     .index = (char *)index,
                     .count = count == 0 ? 1 : count,
                     .extent = 4,
                     .index_stride = 4,
                     .src_stride = run,
                     .dst_stride = run,
                     .index_bytes = 4,
                     .element = 1,
                     .run = run};
      int64_t before = simt_get_counts().launches;
      assert_int_equal(rs_index_select_launch_small(&s, NULL, 0, NULL), 0);
      assert_int_equal(simt_get_counts().launches - before > 1, count > 0);
      for (int i = 0; i < s.count; i++)
        assert_memory_equal(dst + i * run, src + index[i] * run, (size_t)run);
      assert_int_equal(dst[s.count * run], 0x5a);
      free(src);
      free(dst);
    }
}

CASE(selections_that_do_not_fit_are_refused) {
  rs_select s = {.count = 1, .extent = 1, .index_bytes = 2, .run = 1};
  assert_int_equal(rs_index_select_launch(&s, NULL, 0, NULL), 1);
  s.index_bytes = 8;
  s.naxes = 9;
  assert_int_equal(rs_index_select_launch(&s, NULL, 0, NULL), 1);
  s.naxes = 1; /* a loop of no steps: nothing to do */
  rs_select_fault fault = {5, 5};
  assert_int_equal(rs_index_select_launch(&s, &fault, 0, NULL), 0);
  assert_int_equal(fault.position, -1);
}

RUN_CASES
