/* Views of a tensor without dims: lists without entries may be NULL, and only those. */
#include "support/fixtures/case.h"

#include <reshard/tensor.h>

CASE(lists_of_a_scalar_may_be_null) {
  reshard_tensor scalar, row, view;
  reshard_tensor_info info;
  assert_int_equal(reshard_tensor_create(RESHARD_F32, 0, NULL, &scalar), RESHARD_SUCCESS);
  assert_int_equal(reshard_tensor_create(RESHARD_F32, 1, (const int64_t[]){1}, &row), RESHARD_SUCCESS);
  assert_int_equal(reshard_tensor_permute(scalar, NULL, &view), RESHARD_SUCCESS);
  assert_int_equal(reshard_tensor_get_info(view, &info), RESHARD_SUCCESS);
  assert_true(info.ndim == 0 && info.elements == 1);
  reshard_tensor_release(view);
  assert_int_equal(reshard_tensor_permute(row, NULL, &view), RESHARD_ERROR_INVALID);
  reshard_tensor_release(row);
  reshard_tensor_release(scalar);
}

RUN_CASES
