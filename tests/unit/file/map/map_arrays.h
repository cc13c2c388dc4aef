/* Small tensors by name, and a map applied to them element by element. For cmocka tests: what is wrong fails the test.
 */
#ifndef TESTS_UNIT_MAP_ARRAYS_H
#define TESTS_UNIT_MAP_ARRAYS_H
#include "file/map/line.h"
#include "support/fixtures/case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ZERO = -2 }; /* the value of elements that no tensor has */
enum { NAME = 64, TENSORS = 2048, TEXT = 1 << 16, LARGEST = 1 << 20 };

/* A tensor of 32-bit elements. */
typedef struct array {
  char name[NAME];
  reshard_dtype dtype;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  int64_t n;
  int32_t *data;
} array;

typedef struct set {
  int64_t n;
  array at[TENSORS];
} set;

static inline array make_array(int ndim, const int64_t *shape) {
  array a = {.dtype = RESHARD_I32, .ndim = ndim, .n = 1};
  for (int d = 0; d < ndim; d++) {
    a.shape[d] = shape[d];
    a.n *= shape[d];
  }
  if (a.n > LARGEST) /* for its shape alone */
    return a;
  a.data = malloc((size_t)(a.n > 0 ? a.n : 1) * sizeof *a.data);
  assert_non_null(a.data);
  for (int64_t i = 0; i < a.n; i++)
    a.data[i] = -1;
  return a;
}

static inline void clear(set *s) {
  for (int64_t i = 0; i < s->n; i++)
    free(s->at[i].data);
  s->n = 0;
}

static inline array *find(set *s, const char *name) {
  for (int64_t i = 0; i < s->n; i++)
    if (strcmp(s->at[i].name, name) == 0)
      return &s->at[i];
  return NULL;
}

static inline int64_t flat(const array *a, const int64_t *index) {
  int64_t at = 0;
  for (int d = 0; d < a->ndim; d++) {
    assert_in_range(index[d], 0, a->shape[d] - 1);
    at = at * a->shape[d] + index[d];
  }
  return at;
}

/* The next index of these extents, row-major; false behind the last. */
static inline bool next(int ndim, const int64_t *extent, int64_t *index) {
  for (int d = ndim - 1; d >= 0; d--) {
    if (++index[d] < extent[d])
      return true;
    index[d] = 0;
  }
  return false;
}

/* --- Maps applied to arrays -------------------------------------------------------------------------------------- */

static inline reshard_model model_of(const set *s) {
  reshard_model model;
  assert_int_equal(rs_model_new(&model), RESHARD_SUCCESS);
  for (int64_t i = 0; i < s->n; i++)
    if (rs_model_add(model, "test", s->at[i].name, strlen(s->at[i].name), s->at[i].dtype, s->at[i].ndim,
                     s->at[i].shape) != RESHARD_SUCCESS)
      fail_msg("%s", reshard_last_error());
  return model;
}

/* One element after the other; none may be written twice. */
static inline void follow(const rs_copy_region *region, const array *src, array *dst) {
  int64_t i[RESHARD_MAX_DIMS] = {0};
  for (int d = 0; d < dst->ndim; d++)
    if (region->dst_extent[d] == 0)
      return;
  bool named[RESHARD_MAX_DIMS] = {false};
  for (int d = 0; d < dst->ndim; d++) {
    int from = region->permutation[d];
    assert_in_range(from + 1, 0, src->ndim);
    assert_int_equal(region->dst_extent[d], from < 0 ? 1 : region->src_extent[from]);
    assert_false(from >= 0 && named[from]);
    if (from >= 0)
      named[from] = true;
  }
  for (int d = 0; d < src->ndim; d++)
    assert_true(named[d] || region->src_extent[d] == 1);
  do {
    int64_t from[RESHARD_MAX_DIMS], to[RESHARD_MAX_DIMS];
    memcpy(from, region->src_offset, sizeof from);
    for (int d = 0; d < dst->ndim; d++) {
      to[d] = region->dst_offset[d] + i[d];
      if (region->permutation[d] >= 0)
        from[region->permutation[d]] += i[d];
    }
    int32_t *element = &dst->data[flat(dst, to)];
    assert_int_equal(*element, -1);
    *element = src->data[flat(src, from)];
  } while (next(dst->ndim, region->dst_extent, i));
}

/* Makes the tensors of a map from src, every element of them written. */
static inline reshard_status apply(reshard_map map, const set *src, set *dst) {
  reshard_model source = model_of(src), target = (reshard_model)1, again = NULL;
  rs_copy_regions regions = {NULL, -1, -1};
  reshard_status status = rs_map_apply(map, source, &target, &regions);
  if (status != RESHARD_SUCCESS) {
    assert_ptr_equal(target, (reshard_model)1);
    assert_int_equal(regions.n, -1);
    reshard_model_free(source);
    return status;
  }
  assert_int_equal(reshard_map_model(map, source, &again), RESHARD_SUCCESS);
  assert_int_equal(reshard_model_count(again), reshard_model_count(target));
  reshard_model_free(again);
  dst->n = 0;
  for (int64_t i = 0; i < reshard_model_count(target); i++) {
    reshard_model_tensor t;
    assert_int_equal(reshard_model_get(target, i, &t), RESHARD_SUCCESS);
    assert_true(dst->n < TENSORS);
    dst->at[dst->n] = make_array(t.ndim, t.shape);
    dst->at[dst->n].dtype = t.dtype;
    snprintf(dst->at[dst->n++].name, NAME, "%s", t.name);
  }
  for (int64_t i = 0; i < regions.n; i++) {
    const rs_copy_region *region = &regions.at[i];
    array *to = &dst->at[region->dst], zeros = {.ndim = 0};
    for (int d = 0; region->src < 0 && d < to->ndim; d++)
      zeros.ndim += region->permutation[d] >= 0;
    if (region->src < 0) {
      zeros = make_array(zeros.ndim, region->src_extent);
      for (int64_t j = 0; j < zeros.n; j++)
        zeros.data[j] = ZERO;
    }
    follow(region, region->src < 0 ? &zeros : &src->at[region->src], to);
    free(zeros.data);
  }
  for (int64_t i = 0; i < dst->n; i++)
    for (int64_t j = 0; j < dst->at[i].n; j++)
      assert_int_not_equal(dst->at[i].data[j], -1);
  free(regions.at);
  reshard_model_free(target);
  reshard_model_free(source);
  return RESHARD_SUCCESS;
}

/* "a 2x3, b scalar f16, ...": element j of tensor i is i * 1000 + j. */
static inline void read_set(const char *text, set *s) {
  s->n = 0;
  while (*text != '\0') {
    char name[NAME], shape[NAME], dtype[NAME] = "i32";
    int length = (int)strcspn(text, ","), used = 0;
    char piece[256];
    snprintf(piece, sizeof piece, "%.*s", length, text);
    assert_true(sscanf(piece, " %63s %63s %63s%n", name, shape, dtype, &used) >= 2);
    int64_t extents[RESHARD_MAX_DIMS];
    int ndim = 0;
    for (char *p = shape; *p != '\0' && strcmp(shape, "scalar") != 0; p += *p == 'x')
      extents[ndim++] = strtoll(p, &p, 10);
    array *a = &s->at[s->n];
    *a = make_array(ndim, extents);
    snprintf(a->name, NAME, "%s", name);
    assert_int_equal(reshard_dtype_parse(dtype, &a->dtype), RESHARD_SUCCESS);
    for (int64_t j = 0; a->data != NULL && j < a->n; j++)
      a->data[j] = (int32_t)(s->n * 1000 + j);
    s->n++;
    text += length;
    text += *text == ',';
  }
}

/* "x 2x2: a0 a1 b0 b1, y 1: ..." */
static inline void show(const set *from, const set *s, char *text, size_t size) {
  rs_text out = {.at = text, .size = size};
  text[0] = '\0';
  for (int64_t i = 0; i < s->n; i++) {
    char shape[RS_SHAPE_TEXT];
    rs_text_add(&out, "%s%s %s", i > 0 ? ", " : "", s->at[i].name, rs_shape_text(shape, s->at[i].ndim, s->at[i].shape));
    if (s->at[i].dtype != RESHARD_I32)
      rs_text_add(&out, " %s", reshard_dtype_string(s->at[i].dtype));
    for (int64_t j = 0; j < s->at[i].n; j++)
      if (s->at[i].data[j] == ZERO)
        rs_text_add(&out, "%s 0", j == 0 ? ":" : "");
      else
        rs_text_add(&out, "%s %s%d", j == 0 ? ":" : "", from->at[s->at[i].data[j] / 1000].name,
                    s->at[i].data[j] % 1000);
  }
  assert_true(out.length < size);
}

#endif
