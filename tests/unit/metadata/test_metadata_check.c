/* Do shards make up a tensor? On random boxes against counting every element; what an error names must be so. */
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <reshard/metadata.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIMS = 4, EXTENT = 5, SHARDS = 64, ELEMENTS = EXTENT * EXTENT * EXTENT * EXTENT };

static const reshard_properties f32 = {.dtype = RESHARD_F32};

typedef struct boxes {
  int ndim;
  int64_t shape[DIMS];
  int64_t n;
  reshard_shard shards[SHARDS];
} boxes;

static bool is_empty(const boxes *b, const reshard_box *box) {
  bool empty = false;
  for (int d = 0; d < b->ndim; d++)
    empty |= box->extent[d] == 0;
  return empty;
}

/* A box is cut again and again: the pieces cover it. */
static void box_split(rng *r, boxes *b, reshard_box box, int depth) {
  int64_t most = 0;
  int dim = -1;
  for (int d = 0; d < b->ndim; d++)
    if (box.extent[d] > most && (dim < 0 || rng_one_in(r, 2))) {
      most = box.extent[d];
      dim = d;
    }
  if (depth == 0 || dim < 0 || rng_one_in(r, 6)) {
    b->shards[b->n] = (reshard_shard){box, {b->n, RESHARD_DEVICE_CPU, -1}};
    b->n++;
    return;
  }
  int64_t first = rng_in(r, 0, box.extent[dim]);
  reshard_box rest = box;
  box.extent[dim] = first;
  rest.offset[dim] += first;
  rest.extent[dim] -= first;
  box_split(r, b, box, depth - 1);
  box_split(r, b, rest, depth - 1);
}

static void make_boxes(rng *r, boxes *b) {
  *b = (boxes){.ndim = (int)rng_in(r, 0, DIMS)};
  reshard_box whole = {{0}, {0}};
  for (int d = 0; d < b->ndim; d++)
    b->shape[d] = whole.extent[d] = rng_one_in(r, 12) ? 0 : rng_in(r, 1, EXTENT);
  box_split(r, b, whole, (int)rng_in(r, 0, 5));
  for (int64_t i = b->n - 1; i > 0; i--) {
    int64_t j = rng_in(r, 0, i);
    reshard_shard swap = b->shards[i];
    b->shards[i] = b->shards[j];
    b->shards[j] = swap;
  }
}

/* Something that is often wrong then. */
static void spoil(rng *r, boxes *b) {
  int64_t i = rng_below(r, b->n), j = rng_below(r, b->n);
  int d = b->ndim > 0 ? (int)rng_below(r, b->ndim) : 0;
  reshard_box *box = &b->shards[i].box;
  switch (rng_below(r, b->ndim > 0 ? 6 : 2)) {
  case 0: b->shards[i] = b->shards[--b->n]; break;
  case 1:
    if (b->n < SHARDS)
      b->shards[b->n++] = b->shards[j];
    break;
  case 2: box->offset[d] += box->offset[d] == 0 || rng_one_in(r, 2) ? 1 : -1; break;
  case 3: box->extent[d] += box->extent[d] == 0 || rng_one_in(r, 2) ? 1 : -1; break;
  case 4: box->offset[d] = rng_in(r, 0, b->shape[d]); break;
  default:
    for (int e = 0; e < b->ndim; e++) {
      box->offset[e] = rng_in(r, 0, b->shape[e]);
      box->extent[e] = rng_in(r, 0, b->shape[e] - box->offset[e]);
    }
  }
}

static bool inside(const boxes *b, const reshard_box *box) {
  bool is = true;
  for (int d = 0; d < b->ndim; d++)
    is &= box->offset[d] + box->extent[d] <= b->shape[d];
  return is;
}

static bool boxes_hold(const boxes *b, const reshard_box *box, int64_t element) {
  bool is = true;
  for (int d = b->ndim - 1; d >= 0; d--) {
    int64_t at = element % b->shape[d];
    element /= b->shape[d];
    is &= at >= box->offset[d] && at < box->offset[d] + box->extent[d];
  }
  return is;
}

static int64_t elements_of(const boxes *b) {
  int64_t n = 1;
  for (int d = 0; d < b->ndim; d++)
    n *= b->shape[d];
  return n;
}

/* "[0,4)x[8,12)" or "[]"; where it ends. */
static const char *read_box(const boxes *b, const char *text, reshard_box *box) {
  *box = (reshard_box){{0}, {0}};
  if (b->ndim == 0) {
    assert_memory_equal(text, "[]", 2);
    return text + 2;
  }
  for (int d = 0; d < b->ndim; d++) {
    long long begin, end;
    int read = 0;
    assert_true(d == 0 || *text++ == 'x');
    assert_int_equal(sscanf(text, "[%lld,%lld)%n", &begin, &end, &read), 2);
    assert_true(read > 0 && begin < end);
    box->offset[d] = begin;
    box->extent[d] = end - begin;
    text += read;
  }
  return text;
}

enum { FINE, OUTSIDE, OVERLAP, GAP, OUTCOMES };

/* Checks the fault that the error names; returns its kind. */
static int boxes_judge(const boxes *b, const char *text) {
  long long i, j, offset, size;
  int d, end = 0;
  reshard_box box;
  if (sscanf(text, "no shard holds %n", &end) == 0 && end > 0) {
    assert_memory_equal(read_box(b, text + end, &box), " of shape ", 10);
    assert_false(is_empty(b, &box));
    assert_true(inside(b, &box));
    for (int64_t e = 0; e < elements_of(b); e++)
      for (int64_t s = 0; s < b->n && boxes_hold(b, &box, e); s++)
        assert_false(boxes_hold(b, &b->shards[s].box, e));
    return GAP;
  }
  if (sscanf(text, "shards %lld (rank:%*d/cpu) and %lld (rank:%*d/cpu) overlap at %n", &i, &j, &end) == 2) {
    assert_true(end > 0 && i != j && i >= 0 && j >= 0 && i < b->n && j < b->n);
    reshard_box pair[2];
    const char *rest = read_box(b, text + end, &box);
    assert_memory_equal(rest, ": they are ", 11);
    rest = read_box(b, rest + 11, &pair[0]);
    assert_memory_equal(rest, " and ", 5);
    assert_int_equal(*read_box(b, rest + 5, &pair[1]), 0);
    for (int64_t k = 0; k < 2; k++)
      for (int64_t e = 0; e < elements_of(b); e++)
        assert_int_equal(boxes_hold(b, &pair[k], e), boxes_hold(b, &b->shards[k == 0 ? i : j].box, e));
    for (int64_t e = 0; e < elements_of(b); e++)
      assert_int_equal(boxes_hold(b, &box, e),
                       boxes_hold(b, &b->shards[i].box, e) && boxes_hold(b, &b->shards[j].box, e));
    return OVERLAP;
  }
  assert_int_equal(sscanf(text, "shard %lld (rank:%*d/cpu) has offset %lld and size %lld in dim %d of shape ", &i,
                          &offset, &size, &d),
                   4);
  assert_true(i >= 0 && i < b->n && d >= 0 && d < b->ndim && offset + size > b->shape[d]);
  assert_true(b->shards[i].box.offset[d] == offset && b->shards[i].box.extent[d] == size);
  return OUTSIDE;
}

CASE(random_boxes_are_checked_as_by_counting) {
  int64_t outcomes[OUTCOMES] = {0};
  for (int64_t seed = 1; seed <= test_scaled(20000, 1); seed++) {
    rng r;
    boxes b;
    reshard_metadata m;
    rng_seed(&r, (uint64_t)seed);
    make_boxes(&r, &b);
    for (int64_t k = rng_in(&r, 0, 2); k > 0 && b.n > 0; k--)
      spoil(&r, &b);
    bool all_inside = true, overlap = false, gap = false;
    for (int64_t s = 0; s < b.n; s++)
      all_inside &= inside(&b, &b.shards[s].box);
    for (int64_t e = 0; e < elements_of(&b); e++) {
      int64_t holders = 0;
      for (int64_t s = 0; s < b.n; s++)
        holders += boxes_hold(&b, &b.shards[s].box, e);
      overlap |= holders > 1;
      gap |= holders == 0;
    }
    assert_int_equal(reshard_metadata_create(&f32, b.ndim, b.shape, b.n, b.shards, &m), RESHARD_SUCCESS);
    reshard_status status = reshard_metadata_check(m);
    reshard_metadata_release(m);
    bool right = all_inside && !overlap && !gap;
    if (status != (right ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID))
      fail_msg("seed %lld: %s, inside %d, overlap %d, gap %d", (long long)seed,
               right ? reshard_last_error() : "no error", all_inside, overlap, gap);
    int outcome = right ? FINE : boxes_judge(&b, reshard_last_error());
    assert_true(outcome == FINE || (outcome == OUTSIDE) == !all_inside);
    assert_true((outcome != OVERLAP || overlap) && (outcome != GAP || gap));
    outcomes[outcome]++;
  }
  for (int o = 0; o < OUTCOMES; o++)
    assert_true(outcomes[o] > 100 || test_scaled(20000, 1) < 20000);
}

static void validate(int ndim, const int64_t *shape, int64_t n, const reshard_shard *shards, const char *error) {
  reshard_metadata m;
  if (reshard_metadata_create(&f32, ndim, shape, n, shards, &m) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  reshard_status status = reshard_metadata_check(m);
  reshard_metadata_release(m);
  assert_int_equal(status, error == NULL ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID);
  if (error != NULL)
    assert_string_equal(reshard_last_error(), error);
}

CASE(gaps_and_overlaps_of_shards_are_named) {
  const int64_t shape[2] = {5, 4}, none[2] = {5, 0}, huge[3] = {INT64_MAX / 8, 2, 4};
  const reshard_remote_device a = {0, RESHARD_DEVICE_CUDA, 2}, b = {1, RESHARD_DEVICE_CPU, -1},
                              c = {-1, RESHARD_DEVICE_CUDA, 0};
  validate(2, shape, 2, (const reshard_shard[]){{{{0, 0}, {3, 4}}, a}, {{{2, 1}, {3, 2}}, b}},
           "shards 0 (rank:0/cuda:2) and 1 (rank:1/cpu) overlap at [2,3)x[1,3): they are [0,3)x[0,4) and [2,5)x[1,3)");
  validate(2, shape, 2, (const reshard_shard[]){{{{0, 0}, {5, 4}}, a}, {{{0, 0}, {5, 4}}, c}},
           "shards 0 (rank:0/cuda:2) and 1 (cuda:0) overlap at [0,5)x[0,4): they are [0,5)x[0,4) and "
           "[0,5)x[0,4)"); /* replicas are an overlap */
  validate(2, shape, 2, (const reshard_shard[]){{{{0, 0}, {2, 4}}, a}, {{{2, 1}, {3, 3}}, b}},
           "no shard holds [2,5)x[0,1) of shape 5x4");
  validate(2, shape, 0, NULL, "no shard holds [0,5)x[0,4) of shape 5x4");
  validate(2, shape, 1, (const reshard_shard[]){{{{0, 0}, {5, 5}}, b}},
           "shard 0 (rank:1/cpu) has offset 0 and size 5 in dim 1 of shape 5x4");
  /* an empty shard may be at the end, not beyond, and never overlaps */
  const reshard_shard whole = {{{0, 0}, {5, 4}}, a};
  validate(2, shape, 3, (const reshard_shard[]){whole, {{{5, 0}, {0, 4}}, b}, {{{2, 1}, {3, 0}}, c}}, NULL);
  validate(2, shape, 2, (const reshard_shard[]){whole, {{{6, 0}, {0, 4}}, b}},
           "shard 1 (rank:1/cpu) has offset 6 and size 0 in dim 0 of shape 5x4");
  validate(2, none, 0, NULL, NULL);
  validate(2, none, 2, (const reshard_shard[]){{{{0, 0}, {5, 0}}, a}, {{{0, 0}, {5, 0}}, b}}, NULL);
  validate(0, NULL, 1, &whole, NULL);
  validate(0, NULL, 0, NULL, "no shard holds [] of shape scalar");
  validate(0, NULL, 2, (const reshard_shard[]){{{{0}, {0}}, a}, {{{0}, {0}}, b}},
           "shards 0 (rank:0/cuda:2) and 1 (rank:1/cpu) overlap at []: they are [] and []");
  const reshard_shard half[2] = {{{{0, 0, 0}, {INT64_MAX / 8, 1, 4}}, a}, {{{0, 1, 0}, {INT64_MAX / 8, 1, 4}}, b}};
  validate(3, huge, 2, half, NULL);
  validate(3, huge, 1, half, "no shard holds [0,1152921504606846975)x[1,2)x[0,4) of shape 1152921504606846975x2x4");
  assert_int_equal(reshard_metadata_check(NULL), RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_last_error(), "reshard_metadata_check: metadata is NULL");
}

/* Every shard meets every other in dim 0: what makes a sweep quadratic. One of them is left out, or there twice. */
CASE(many_shards_are_checked_in_time) {
  enum { N = 1 << 16 };
  const int64_t shape[2] = {7, 2 * N}, missing = 2 * (N / 3);
  reshard_shard *shards = calloc(N + 1, sizeof *shards);
  char text[256];
  assert_non_null(shards);
  for (int64_t i = 0; i < N; i++)
    shards[i] = (reshard_shard){{{0, 2 * (i * 40503 % N)}, {7, 2}}, {i, RESHARD_DEVICE_CPU, -1}};
  validate(2, shape, N, shards, NULL);
  shards[N] = shards[N / 2];
  long long begin = shards[N].box.offset[1];
  snprintf(text, sizeof text,
           "shards %d (rank:%d/cpu) and %d (rank:%d/cpu) overlap at [0,7)x[%lld,%lld): they are [0,7)x[%lld,%lld) and "
           "[0,7)x[%lld,%lld)",
           N / 2, N / 2, N, N / 2, begin, begin + 2, begin, begin + 2, begin, begin + 2);
  validate(2, shape, N + 1, shards, text);
  for (int64_t i = 0; i < N; i++)
    if (shards[i].box.offset[1] == missing)
      shards[i] = shards[N - 1];
  snprintf(text, sizeof text, "no shard holds [0,7)x[%lld,%lld) of shape 7x131072", (long long)missing,
           (long long)missing + 2);
  validate(2, shape, N - 1, shards, text);
  free(shards);
}

RUN_CASES
