/* The twin of CUB's batched copy, which stands for it where there is no GPU. */
#include "bench/micro/cub_copy.h"

#include "simt.h"

#include <stdint.h>
#include <string.h>

#include "tests/support/fixtures/case.h"

CASE(test_cub_twin) {
  char src[100], dst[100] = {0}, want[100] = {0};
  for (int i = 0; i < 100; i++)
    src[i] = (char)i;
  const void *srcs[3] = {src, src + 50, src + 7};
  void *dsts[3] = {dst + 90, dst, dst + 60};
  const uint64_t bytes[3] = {10, 33, 0};
  size_t workspace = 0;
  assert_int_equal(rs_cub_copy_workspace(3, &workspace), 0);
  assert_true(workspace > 0);
  memcpy(want + 90, src, 10);
  memcpy(want, src + 50, 33);
  assert_int_equal(rs_cub_copy_launch(3, srcs, dsts, bytes, &workspace, sizeof workspace, NULL), 0);
  assert_memory_equal(dst, want, sizeof want);
  assert_int_equal(rs_cub_copy_launch(INT64_C(1) << 32, srcs, dsts, bytes, &workspace, 8, NULL), 1);
  assert_int_equal(rs_cub_copy_launch(3, srcs, dsts, bytes, NULL, 0, NULL), 1);
}

RUN_CASES
