/* Overlap of strided buffers against sets of bytes. */
#include "bench/verify/random.h"
#include "exec/arrays.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <stdlib.h>
#include <string.h>

enum { ROOM = 1 << 14, BUFFERS = 6 };

static char arena[ROOM];
static rs_entry entries[BUFFERS];
static struct reshard_plan_s plan = {.entries = entries};

/* Marks x's bytes with its bit; true when one was marked by a buffer in `others` before. */
static bool extent_mark(const rs_extent *x, unsigned char *bytes, unsigned char bit, unsigned char others) {
  int64_t at[RESHARD_MAX_DIMS] = {0};
  bool met = false;
  for (;;) {
    const char *p = x->at;
    for (int d = 0; d < x->ndim; d++)
      p += at[d] * x->strides[d];
    for (int64_t b = 0; b < x->width; b++) {
      met |= (bytes[p - arena + b] & others) != 0;
      bytes[p - arena + b] |= bit;
    }
    int d = x->ndim - 1;
    while (d >= 0 && ++at[d] == x->shape[d])
      at[d--] = 0;
    if (d < 0)
      return met;
  }
}

/* A buffer within the arena: nested strides with gaps, dims in any order, some backwards; a source may step over
 * itself. */
static void draw_extent(rng *r, int64_t width, rs_extent *x) {
  do {
    *x = (rs_extent){.plan = &plan, .source = rng_one_in(r, 2), .ndim = (int)rng_below(r, 4), .width = width};
    int order[4] = {0, 1, 2, 3};
    int64_t step = width * (rng_one_in(r, 2) ? 1 : rng_in(r, 1, 5)), below = 0, above = width, elements = 1;
    for (int i = 0; i < x->ndim; i++) {
      int j = (int)rng_in(r, i, x->ndim - 1), d = order[j];
      order[j] = order[i];
      x->shape[d] = rng_in(r, 1, 6);
      x->strides[d] = step;
      if (x->source && rng_one_in(r, 6)) /* broadcast, sliding window, or anything */
        x->strides[d] = width * rng_below(r, 4);
      if (rng_one_in(r, 5))
        x->strides[d] = -x->strides[d];
      int64_t span = x->strides[d] * (x->shape[d] - 1);
      *(span < 0 ? &below : &above) += span;
      elements *= x->shape[d];
      step = step * x->shape[d] + width * (rng_one_in(r, 2) ? 0 : rng_below(r, 12));
    }
    int64_t from = rng_in(r, 0, rng_one_in(r, 2) ? 100 : 1000);
    x->at = arena + from - below;
    x->begin = arena + from;
    x->end = x->at + above;
    bool simple = true;
    for (int d = 0; d < x->ndim; d++)
      simple = simple && x->strides[d] > 0;
    x->dense = simple && !x->source && x->end - x->begin == elements * width;
  } while (x->end > arena + ROOM);
}

static bool wanted(const rs_extent *list, int n) {
  static unsigned char bytes[ROOM];
  memset(bytes, 0, sizeof bytes);
  bool met = false;
  for (int i = 0; i < n; i++) {
    unsigned char sources = 0, destinations = 0;
    for (int j = 0; j < i; j++)
      *(list[j].source ? &sources : &destinations) |= (unsigned char)(1 << j);
    met |=
        extent_mark(&list[i], bytes, (unsigned char)(1 << i), list[i].source ? destinations : sources | destinations);
  }
  return met;
}

CASE(random_overlaps_match_sets_of_bytes) {
  int64_t counts[2] = {0, 0}, cases = test_scaled(200000, 1);
  for (int64_t seed = 0; seed < cases; seed++) {
    rng r;
    rng_seed(&r, (uint64_t)seed);
    rs_extent list[BUFFERS], copy[BUFFERS];
    int n = (int)rng_in(&r, 1, seed % 2 == 0 ? 2 : BUFFERS);
    int64_t width = 1 << rng_below(&r, 5);
    for (int i = 0; i < n; i++) {
      draw_extent(&r, rng_one_in(&r, 4) ? 1 << rng_below(&r, 5) : width, &list[i]);
      list[i].entry = list[i].buffer = i; /* no two are parts of one tensor */
    }
    bool met = wanted(list, n);
    memcpy(copy, list, sizeof copy);
    rs_extents all = {copy, n, BUFFERS};
    reshard_status status = rs_check_overlap(&all);
    if (status != (met ? RESHARD_ERROR_INVALID : RESHARD_SUCCESS))
      fail_msg("seed %lld: %s where %s", (long long)seed, reshard_status_string(status),
               met ? "bytes are shared" : "none is");
    counts[met]++;
  }
  assert_true(counts[0] > cases / 20);
  assert_true(counts[1] > cases / 20);
}

/* Columns of large matrices: as quick as small ones. */
CASE(overlaps_of_large_columns_are_found_in_time) {
  const int64_t rows = 1 << 20, row = 3 << 20;
  char *base = (char *)((uintptr_t)1 << 46); /* never read */
  static const struct {
    int64_t shift;
    bool met;
  } cases[] = {{-4, false},
               {0, false},
               {4, false},
               {252 - (1 << 20), true},
               {256 - (1 << 20), false},
               {16384, false},
               {2 * (1 << 20) - 16384 * 63 - 252, true},
               {2 * (1 << 20) - 16384 * 63 - 256, false}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    rs_extent two[2];
    for (int i = 0; i < 2; i++) { /* every third block of 1 MiB, 64 x 64 floats each of its lines */
      rs_extent x = {.plan = &plan,
                     .at = base + i * ((1 << 20) + cases[c].shift),
                     .ndim = 3,
                     .shape = {rows, 64, 64},
                     .strides = {row, 16384, 4},
                     .width = 4,
                     .entry = i,
                     .buffer = i};
      x.begin = x.at;
      x.end = x.at + (rows - 1) * row + 63 * 16384 + 64 * 4;
      two[i] = x;
    }
    rs_extents all = {two, 2, 2};
    assert_int_equal(rs_check_overlap(&all), cases[c].met ? RESHARD_ERROR_INVALID : RESHARD_SUCCESS);
  }
}

int main(void) {
  for (int i = 0; i < BUFFERS; i++)
    entries[i].name = "t";
  return case_list_run(__FILE__, NULL, NULL);
}
