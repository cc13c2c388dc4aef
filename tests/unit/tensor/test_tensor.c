/* Tensors: what they are made of, who frees them, what is refused. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"

#include <reshard/tensor.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

CASE(created_tensors_are_contiguous_and_aligned) {
  static const int64_t shape[3] = {5, 1, 7}, empty[3] = {5, 0, 7}, large[1] = {3 << 20};
  for (int d = RESHARD_BOOL; d < RESHARD_DTYPE_COUNT; d++) {
    reshard_tensor t;
    reshard_tensor_info info;
    GOOD(reshard_tensor_create((reshard_dtype)d, 3, shape, &t));
    GOOD(reshard_tensor_get_info(t, &info));
    assert_true((int)info.dtype == d && info.ndim == 3 && info.elements == 35 && info.contiguous);
    assert_true(info.shape[0] == 5 && info.shape[1] == 1 && info.shape[2] == 7);
    assert_true(info.strides[0] == 7 && info.strides[1] == 7 && info.strides[2] == 1);
    assert_true(info.requires_grad == 0 && info.pin_memory == 0);
    assert_int_equal((uintptr_t)info.data % 256, 0);
    memset(info.data, 1, 35 * reshard_dtype_size((reshard_dtype)d));
    reshard_tensor_release(t);
  }
  reshard_tensor t;
  reshard_tensor_info info;
  GOOD(reshard_tensor_create(RESHARD_F32, 3, empty, &t));
  GOOD(reshard_tensor_get_info(t, &info));
  assert_true(info.elements == 0 && info.contiguous && info.data == NULL);
  reshard_tensor_release(t);
  GOOD(reshard_tensor_create(RESHARD_C128, 0, NULL, &t)); /* a scalar */
  GOOD(reshard_tensor_get_info(t, &info));
  assert_true(info.elements == 1 && info.contiguous && info.data != NULL);
  reshard_tensor_release(t);
  GOOD(reshard_tensor_create(RESHARD_U8, 1, large, &t));
  GOOD(reshard_tensor_get_info(t, &info));
  memset(info.data, 2, (size_t)large[0]);
  reshard_tensor_set_requires_grad(t, 5);
  reshard_tensor_set_pin_memory(t, -1);
  GOOD(reshard_tensor_get_info(t, &info));
  assert_true(info.requires_grad == 1 && info.pin_memory == 1);
  reshard_tensor_release(t);
}

static void count(void *user, void *data) {
  assert_non_null(data);
  ++*(int *)user;
}

CASE(wrapped_tensors_have_the_strides_given) {
  static const int64_t shape[2] = {3, 4}, rows[2] = {4, 1}, columns[2] = {1, 3}, apart[2] = {9, 2},
                       broadcast[2] = {0, 1};
  int32_t memory[64];
  static const struct {
    const int64_t *strides;
    int contiguous;
  } cases[] = {{NULL, 1}, {columns, 0}, {apart, 0}, {broadcast, 0}, {rows, 1}};
  for (int i = 0; i < 5; i++) {
    reshard_tensor t;
    reshard_tensor_info info;
    int freed = 0;
    GOOD(reshard_tensor_wrap(RESHARD_I32, 2, shape, cases[i].strides, memory, count, &freed, &t));
    GOOD(reshard_tensor_get_info(t, &info));
    assert_ptr_equal(info.data, memory);
    assert_int_equal(info.contiguous, cases[i].contiguous);
    assert_int_equal(info.strides[0], cases[i].strides != NULL ? cases[i].strides[0] : 4);
    assert_ptr_equal(reshard_tensor_retain(t), t);
    reshard_tensor_release(t);
    assert_int_equal(freed, 0);
    reshard_tensor_release(t);
    assert_int_equal(freed, 1);
  }
  reshard_tensor t; /* strides that are not walked do not matter; nor does a release function */
  reshard_tensor_info info;
  GOOD(reshard_tensor_wrap(RESHARD_I32, 2, (int64_t[]){1, 4}, (int64_t[]){99, 1}, memory, NULL, NULL, &t));
  GOOD(reshard_tensor_get_info(t, &info));
  assert_true(info.contiguous);
  reshard_tensor_release(t);
  GOOD(reshard_tensor_wrap(RESHARD_I32, 2, (int64_t[]){0, 4}, (int64_t[]){1, 7}, NULL, NULL, NULL, &t));
  reshard_tensor_release(t);
  reshard_tensor_release(NULL);
  assert_null(reshard_tensor_retain(NULL));
}

CASE(wrong_shapes_and_dtypes_are_refused) {
  static const int64_t shape[2] = {3, 4}, negative[2] = {3, -4}, huge[2] = {INT64_C(1) << 31, INT64_C(1) << 31};
  reshard_tensor t = NULL;
  reshard_tensor_info info;
  int x;
  BAD(reshard_tensor_create(RESHARD_F32, 2, shape, NULL), "reshard_tensor_create: tensor is NULL");
  BAD(reshard_tensor_create((reshard_dtype)77, 2, shape, &t), "reshard_tensor_create: unknown dtype 77");
  BAD(reshard_tensor_create(RESHARD_F32, 9, shape, &t), "reshard_tensor_create: 9 dims, 0 to 8 are allowed");
  BAD(reshard_tensor_create(RESHARD_F32, -1, shape, &t), "reshard_tensor_create: -1 dims, 0 to 8 are allowed");
  BAD(reshard_tensor_create(RESHARD_F32, 2, NULL, &t), "reshard_tensor_create: shape is NULL");
  BAD(reshard_tensor_create(RESHARD_F32, 2, negative, &t), "reshard_tensor_create: extent -4 of dim 1 is negative");
  BAD(reshard_tensor_create(RESHARD_F32, 2, huge, &t),
      "reshard_tensor_create: the bytes of shape 2147483648x2147483648 overflow 63 bits at dim 0");
  BAD(reshard_tensor_wrap(RESHARD_F32, 2, shape, NULL, NULL, NULL, NULL, &t),
      "reshard_tensor_wrap: data is NULL and should hold 12 elements");
  BAD(reshard_tensor_wrap(RESHARD_F32, 2, shape, (int64_t[]){4, -1}, &x, NULL, NULL, &t),
      "reshard_tensor_wrap: stride -1 of dim 1 is negative");
  BAD(reshard_tensor_wrap(RESHARD_F32, 2, shape, (int64_t[]){INT64_MAX / 4, 1}, &x, NULL, NULL, &t),
      "reshard_tensor_wrap: the bytes of shape 3x4 overflow 63 bits at dim 0");
  BAD(reshard_tensor_wrap(RESHARD_F32, 2, shape, NULL, &x, NULL, NULL, NULL), "reshard_tensor_wrap: tensor is NULL");
  assert_int_equal(reshard_tensor_create(RESHARD_U8, 1, (int64_t[]){INT64_C(1) << 60}, &t),
                   RESHARD_ERROR_OUT_OF_MEMORY);
  assert_null(t);
  BAD(reshard_tensor_get_info(NULL, &info), "reshard_tensor_get_info: tensor is NULL");
  reshard_tensor_set_requires_grad(NULL, 1);
  reshard_tensor_set_pin_memory(NULL, 1);
}

/* Strides that let two elements share memory. */
CASE(strides_that_overlap_are_told) {
  static const struct {
    int ndim;
    int64_t shape[3], strides[3];
    bool distinct;
  } cases[] = {
      {2, {3, 4}, {4, 1}, true},  {2, {3, 4}, {1, 3}, true},       {2, {3, 4}, {3, 1}, false},
      {2, {3, 4}, {0, 1}, false}, {2, {1, 4}, {0, 1}, true},       {2, {3, 4}, {100, 7}, true},
      {1, {5}, {0}, false},       {3, {2, 3, 4}, {1, 2, 6}, true}, {3, {2, 3, 4}, {1, 2, 5}, false},
      {0, {0}, {0}, true},        {2, {0, 4}, {0, 0}, true},
  };
  char memory[512];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_tensor t;
    GOOD(reshard_tensor_wrap(RESHARD_U8, cases[i].ndim, cases[i].shape, cases[i].strides, memory, NULL, NULL, &t));
    reshard_tensor_info info;
    GOOD(reshard_tensor_get_info(t, &info));
    assert_int_equal(info.overlapping, !cases[i].distinct);
    reshard_tensor_release(t);
  }
}

/* References that come and go on several threads. */
static void share(void *user, int64_t r) {
  for (int i = 0; i < 10000; i++)
    reshard_tensor_release(reshard_tensor_retain(user));
  reshard_tensor_release(user);
}

CASE(last_reference_of_any_thread_frees) {
  int freed = 0;
  char memory[4];
  reshard_tensor t;
  GOOD(reshard_tensor_wrap(RESHARD_U8, 1, (int64_t[]){4}, NULL, memory, count, &freed, &t));
  for (int r = 0; r < 3; r++)
    reshard_tensor_retain(t);
  rank_threads_run(4, share, t);
  assert_int_equal(freed, 1);
}

RUN_CASES
