/* Views against a model that knows no strides: the list of the places in the storage, one for each element in row-major
 * order. Slicing, transposing and reshaping are done on that list. */
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <reshard/tensor.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 512 }; /* elements */

typedef struct model {
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS], n;
  int64_t place[MOST]; /* of each element, in elements from where the storage begins */
} model;

static int64_t product(int ndim, const int64_t *shape) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++)
    n *= shape[d];
  return n;
}

/* The index of the i-th element. */
static void unravel(int ndim, const int64_t *shape, int64_t i, int64_t *index) {
  for (int d = ndim - 1; d >= 0; d--) {
    index[d] = i % shape[d];
    i /= shape[d];
  }
}

static int64_t ravel(int ndim, const int64_t *shape, const int64_t *index) {
  int64_t i = 0;
  for (int d = 0; d < ndim; d++)
    i = i * shape[d] + index[d];
  return i;
}

static model model_narrow(const model *m, int dim, int64_t start, int64_t length) {
  model out = *m;
  int64_t index[RESHARD_MAX_DIMS];
  out.shape[dim] = length;
  out.n = product(out.ndim, out.shape);
  for (int64_t i = 0; i < out.n; i++) {
    unravel(out.ndim, out.shape, i, index);
    index[dim] += start;
    out.place[i] = m->place[ravel(m->ndim, m->shape, index)];
  }
  return out;
}

static model model_permute(const model *m, const int *order) {
  model out = *m;
  int64_t index[RESHARD_MAX_DIMS], from[RESHARD_MAX_DIMS];
  for (int d = 0; d < m->ndim; d++)
    out.shape[d] = m->shape[order[d]];
  for (int64_t i = 0; i < out.n; i++) {
    unravel(out.ndim, out.shape, i, index);
    for (int d = 0; d < m->ndim; d++)
      from[order[d]] = index[d];
    out.place[i] = m->place[ravel(m->ndim, m->shape, from)];
  }
  return out;
}

/* Can the places be had by one step per dim? */
static bool model_has_steps(const model *m) {
  int64_t step[RESHARD_MAX_DIMS] = {0}, index[RESHARD_MAX_DIMS] = {0};
  if (m->n == 0)
    return true;
  for (int d = 0; d < m->ndim; d++)
    if (m->shape[d] > 1) {
      index[d] = 1;
      step[d] = m->place[ravel(m->ndim, m->shape, index)] - m->place[0];
      index[d] = 0;
    }
  for (int64_t i = 0; i < m->n; i++) {
    int64_t at = m->place[0];
    unravel(m->ndim, m->shape, i, index);
    for (int d = 0; d < m->ndim; d++)
      at += index[d] * step[d];
    if (at != m->place[i])
      return false;
  }
  return true;
}

/* Every element is where the model says, and what is told of the tensor is true. exact: it was made by slicing,
 * transposing and reshaping alone. */
static void expect_model(reshard_tensor t, const model *m, const int16_t *storage, bool exact) {
  reshard_tensor_info info;
  bool consecutive = true, twice = false;
  GOOD(reshard_tensor_get_info(t, &info));
  assert_int_equal(info.ndim, m->ndim);
  assert_memory_equal(info.shape, m->shape, (size_t)m->ndim * sizeof *m->shape);
  assert_int_equal(info.elements, m->n);
  assert_true(info.requires_grad && info.pin_memory);
  for (int64_t i = 0; i < m->n; i++) {
    int64_t index[RESHARD_MAX_DIMS], at = 0;
    unravel(m->ndim, m->shape, i, index);
    for (int d = 0; d < m->ndim; d++)
      at += index[d] * info.strides[d];
    if (info.offset + at != m->place[i] || (const int16_t *)info.data + at != storage + m->place[i])
      fail_msg("element %d is at %d + %d and should be at %d", (int)i, (int)info.offset, (int)at, (int)m->place[i]);
    consecutive = consecutive && m->place[i] == m->place[0] + i;
    for (int64_t j = 0; j < i && !twice; j++)
      twice = m->place[i] == m->place[j];
  }
  assert_int_equal(info.contiguous, consecutive);
  assert_true(twice ? info.overlapping : !exact || !info.overlapping);
}

/* A shape of as many elements, perhaps with a -1 in it. */
static int random_shape(rng *random, int64_t n, int64_t *shape) {
  int ndim = 0;
  while (n > 1 && ndim < 6) {
    int64_t extent = 1 + rng_below(random, n);
    while (n % extent != 0)
      extent--;
    shape[ndim++] = extent;
    n /= extent;
  }
  if (n != 1 || ndim == 0)
    shape[ndim++] = n;
  return ndim;
}

static void random_case(rng *random, reshard_tensor base, const int16_t *storage, int64_t size) {
  model m = {.ndim = 1, .shape = {size}, .n = size};
  reshard_tensor t = reshard_tensor_retain(base);
  bool exact = true;
  for (int64_t i = 0; i < size; i++)
    m.place[i] = i;
  for (int step = 0; step < 6; step++) {
    reshard_tensor view = NULL;
    model next = m;
    reshard_status status = RESHARD_SUCCESS, wanted = RESHARD_SUCCESS;
    int kind = (int)rng_below(random, 8);
    if (kind < 2 && m.ndim > 0) {
      int dim = (int)rng_below(random, m.ndim);
      int64_t extent = m.shape[dim], start = rng_below(random, extent + 1);
      int64_t length = rng_below(random, 8) == 0 ? 0 : rng_below(random, extent - start + 1);
      next = model_narrow(&m, dim, start, length);
      bool back = start < extent && rng_below(random, 2) == 0; /* counted from the end */
      status = reshard_tensor_narrow(t, rng_below(random, 2) ? dim : dim - m.ndim, back ? start - extent : start,
                                     length, &view);
    } else if (kind < 4) {
      int order[RESHARD_MAX_DIMS];
      for (int d = 0; d < m.ndim; d++) {
        int other = (int)rng_below(random, d + 1);
        order[d] = order[other];
        order[other] = d;
      }
      next = model_permute(&m, order);
      for (int d = 0; d < m.ndim; d++)
        order[d] -= rng_below(random, 2) ? m.ndim : 0;
      status = reshard_tensor_permute(t, order, &view);
    } else if (kind < 7) {
      int64_t given[RESHARD_MAX_DIMS];
      next.ndim = random_shape(random, m.n, next.shape);
      memcpy(given, next.shape, sizeof given);
      int open = (int)rng_below(random, next.ndim);
      if (m.n > 0 && rng_below(random, 2))
        given[open] = -1;
      wanted = model_has_steps(&next) ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID;
      status = reshard_tensor_reshape(t, next.ndim, given, &view);
    } else {
      int64_t strides[RESHARD_MAX_DIMS], offset = rng_below(random, size + 2), last = offset;
      next.ndim = (int)rng_below(random, 4);
      for (int d = 0; d < next.ndim; d++) {
        next.shape[d] = rng_below(random, 6);
        strides[d] = rng_below(random, 12);
        last += strides[d] * (next.shape[d] - 1);
      }
      next.n = product(next.ndim, next.shape);
      for (int64_t i = 0; i < next.n; i++) {
        int64_t index[RESHARD_MAX_DIMS];
        next.place[i] = offset;
        unravel(next.ndim, next.shape, i, index);
        for (int d = 0; d < next.ndim; d++)
          next.place[i] += index[d] * strides[d];
      }
      wanted = next.n == 0 || last < size ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID;
      status = reshard_tensor_as_strided(t, next.ndim, next.shape, strides, offset, &view);
      exact = false;
    }
    if (status != wanted)
      fail_msg("kind %d of view: %s: %s", kind, reshard_status_string(status), reshard_last_error());
    if (status != RESHARD_SUCCESS)
      continue;
    m = next;
    reshard_tensor_release(t);
    t = view;
    expect_model(t, &m, storage, exact);
  }
  reshard_tensor_release(t);
}

CASE(random_views_match_lists_of_places) {
  int64_t cases = test_scaled(6000, 1);
  for (int64_t c = 0; c < cases; c++) {
    rng random;
    rng_seed(&random, 0x71e3 + (uint64_t)c);
    int64_t size = 1 + rng_below(&random, c % 3 == 0 ? 300 : 60);
    if (c % 3 == 1)
      size = 60;
    reshard_tensor base;
    reshard_tensor_info info;
    GOOD(reshard_tensor_create(RESHARD_I16, 1, &size, &base));
    reshard_tensor_set_requires_grad(base, 1);
    reshard_tensor_set_pin_memory(base, 1);
    GOOD(reshard_tensor_get_info(base, &info));
    random_case(&random, base, info.data, size);
    reshard_tensor_release(base);
  }
  printf("%lld chains of views\n", (long long)cases);
}

CASE(views_that_do_not_fit_are_refused) {
  static const int64_t shape[2] = {3, 4};
  reshard_tensor t, view = NULL, empty, bytes;
  GOOD(reshard_tensor_create(RESHARD_U8, 1, (int64_t[]){5}, &bytes));
  BAD(reshard_tensor_as_strided(bytes, 1, (int64_t[]){4}, NULL, 2, &view),
      "reshard_tensor_as_strided: shape 4 with strides 1 at offset 2 reaches 6 bytes, the storage has 5");
  GOOD(reshard_tensor_as_strided(bytes, 1, (int64_t[]){4}, NULL, 1, &view));
  reshard_tensor_release(view);
  reshard_tensor_release(bytes);
  view = NULL;
  GOOD(reshard_tensor_create(RESHARD_F32, 2, shape, &t));
  GOOD(reshard_tensor_create(RESHARD_F32, 2, (int64_t[]){0, 4}, &empty));
  BAD(reshard_tensor_as_strided(NULL, 2, shape, NULL, 0, &view), "reshard_tensor_as_strided: tensor is NULL");
  BAD(reshard_tensor_as_strided(t, 2, shape, NULL, 0, NULL), "reshard_tensor_as_strided: view is NULL");
  BAD(reshard_tensor_as_strided(t, 2, shape, (int64_t[]){4, 2}, 0, &view),
      "reshard_tensor_as_strided: shape 3x4 with strides 4x2 at offset 0 reaches 60 bytes, the storage has 48");
  BAD(reshard_tensor_as_strided(t, 2, shape, NULL, 1, &view),
      "reshard_tensor_as_strided: shape 3x4 with strides 4x1 at offset 1 reaches 52 bytes, the storage has 48");
  BAD(reshard_tensor_as_strided(t, 0, NULL, NULL, INT64_MAX / 2, &view),
      "reshard_tensor_as_strided: shape scalar with strides scalar at offset 4611686018427387903 reaches beyond "
      "9223372036854775807 bytes, the storage has 48");
  BAD(reshard_tensor_as_strided(t, 2, shape, NULL, -1, &view), "reshard_tensor_as_strided: offset -1 is negative");
  BAD(reshard_tensor_as_strided(t, 2, shape, (int64_t[]){-4, 1}, 0, &view),
      "reshard_tensor_as_strided: stride -4 of dim 0 is negative");
  BAD(reshard_tensor_as_strided(t, 9, shape, NULL, 0, &view), "reshard_tensor_as_strided: 9 dims, 0 to 8 are allowed");
  BAD(reshard_tensor_narrow(NULL, 0, 0, 1, &view), "reshard_tensor_narrow: tensor is NULL");
  BAD(reshard_tensor_narrow(t, 2, 0, 1, &view), "reshard_tensor_narrow: dim 2 of a tensor of 2 dims");
  BAD(reshard_tensor_narrow(t, -3, 0, 1, &view), "reshard_tensor_narrow: dim -3 of a tensor of 2 dims");
  BAD(reshard_tensor_narrow(t, -1, 2, 3, &view), "reshard_tensor_narrow: start 2 and length 3 in dim 1 of extent 4");
  BAD(reshard_tensor_narrow(t, 0, -4, 1, &view), "reshard_tensor_narrow: start -4 and length 1 in dim 0 of extent 3");
  BAD(reshard_tensor_narrow(t, 0, 0, -1, &view), "reshard_tensor_narrow: start 0 and length -1 in dim 0 of extent 3");
  BAD(reshard_tensor_narrow(t, 0, INT64_MAX, INT64_MAX, &view),
      "reshard_tensor_narrow: start 9223372036854775807 and length 9223372036854775807 in dim 0 of extent 3");
  BAD(reshard_tensor_permute(NULL, (int[]){0, 1}, &view), "reshard_tensor_permute: tensor is NULL");
  BAD(reshard_tensor_permute(t, NULL, &view), "reshard_tensor_permute: order is NULL");
  BAD(reshard_tensor_permute(t, (int[]){0, 2}, &view), "reshard_tensor_permute: dim 2 of a tensor of 2 dims");
  BAD(reshard_tensor_permute(t, (int[]){1, -1}, &view), "reshard_tensor_permute: dim 1 is in the order twice");
  BAD(reshard_tensor_reshape(NULL, 0, NULL, &view), "reshard_tensor_reshape: tensor is NULL");
  BAD(reshard_tensor_reshape(t, 1, NULL, &view), "reshard_tensor_reshape: 1 dims, shape NULL");
  BAD(reshard_tensor_reshape(t, 9, shape, &view), "reshard_tensor_reshape: 9 dims, shape given");
  BAD(reshard_tensor_reshape(t, 1, (int64_t[]){11}, &view),
      "reshard_tensor_reshape: shape 11 for 12 elements of shape 3x4");
  BAD(reshard_tensor_reshape(t, 2, (int64_t[]){-1, -1}, &view),
      "reshard_tensor_reshape: shape -1x-1 for 12 elements of shape 3x4");
  BAD(reshard_tensor_reshape(t, 2, (int64_t[]){-1, 5}, &view),
      "reshard_tensor_reshape: shape -1x5 for 12 elements of shape 3x4");
  BAD(reshard_tensor_reshape(t, 2, (int64_t[]){-2, -6}, &view),
      "reshard_tensor_reshape: shape -2x-6 for 12 elements of shape 3x4");
  BAD(reshard_tensor_reshape(t, 2, (int64_t[]){INT64_MAX, INT64_MAX}, &view),
      "reshard_tensor_reshape: shape 9223372036854775807x9223372036854775807 for 12 elements of shape 3x4");
  BAD(reshard_tensor_reshape(empty, 2, (int64_t[]){-1, 0}, &view),
      "reshard_tensor_reshape: shape -1x0 for 0 elements of shape 0x4");
  assert_null(view);
  reshard_tensor across;
  GOOD(reshard_tensor_permute(t, (int[]){1, 0}, &across));
  BAD(reshard_tensor_reshape(across, 1, (int64_t[]){12}, &view),
      "reshard_tensor_reshape: shape 4x3 with strides 1x4 cannot be seen as 12 without a copy");
  GOOD(reshard_tensor_reshape(across, 3, (int64_t[]){2, -1, 3}, &view)); /* within a dim it can be cut */
  reshard_tensor_release(view);
  GOOD(reshard_tensor_reshape(empty, 3, (int64_t[]){7, 0, 3}, &view));
  reshard_tensor_release(view);
  reshard_tensor_release(across);
  reshard_tensor_release(empty);
  reshard_tensor_release(t);
}

RUN_CASES
