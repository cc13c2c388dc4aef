/* Filling, stamps, checksums, and the twin of CUB's batched copy, at any size and alignment of memory that is exact. */
#include "bench/gpu/cub_copy.h"
#include "kernels/fill.h"

#include "simt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int64_t sizes[] = {0, 1, 5, 15, 16, 17, 31, 32, 33, 100, 4095, 4096, 5003, 9001};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void test_fill(void **state) {
  (void)state;
  unsigned char pattern[16];
  for (int i = 0; i < 16; i++)
    pattern[i] = (unsigned char)(i * 17 + 3);
  for (int s = 0; s < SIZES; s++)
    for (int64_t shift = 0; shift<17; shift += s> 10 ? 5 : 1) {
      char *memory = malloc((size_t)(shift + sizes[s]) + 1);
      memset(memory, 0x11, (size_t)(shift + sizes[s]) + 1);
      assert_int_equal(rs_fill_launch(memory + shift, (size_t)sizes[s], pattern, NULL), 0);
      for (int64_t i = 0; i < shift; i++)
        assert_int_equal(memory[i], 0x11);
      for (int64_t i = 0; i < sizes[s]; i++)
        assert_int_equal((unsigned char)memory[shift + i], pattern[i % 16]);
      assert_int_equal(memory[shift + sizes[s]], 0x11);
      free(memory);
    }
}

/* Bytes of element i, as bench/bench/data.c has them. */
static void stamp(unsigned char *at, int width, uint64_t key, int64_t i) {
  int parts = width == 16 ? 2 : 1, bytes = width == 16 ? 8 : width;
  for (int k = 0; k < parts; k++) {
    uint64_t value = (key + (uint64_t)(i * parts + k)) * 0x9e3779b97f4a7c15u >> (64 - 8 * bytes);
    memcpy(at + 8 * k, &value, (size_t)bytes);
  }
}

static void test_stamps(void **state) {
  (void)state;
  for (int width = 1; width <= 16; width *= 2)
    for (int s = 0; s < SIZES; s++) {
      int64_t n = sizes[s] / (width > 4 ? 4 : 1), first = 1000 + s;
      unsigned char *memory = malloc((size_t)(n * width) + 1), want[16];
      memset(memory, 0, (size_t)(n * width) + 1);
      assert_int_equal(rs_stamp_launch(memory, width, n, 99, first, NULL), 0);
      for (int64_t i = 0; i < n; i++) {
        stamp(want, width, 99, first + i);
        assert_memory_equal(memory + i * width, want, (size_t)width);
      }
      assert_int_equal(memory[n * width], 0);
      uint64_t wrong = 3;
      assert_int_equal(rs_stamp_check_launch(memory, width, n, 99, first, &wrong, NULL), 0);
      assert_int_equal(wrong, 3);
      uint64_t spoilt = 0;
      for (int64_t i = 0; i < n; i += 7, spoilt++)
        memory[i * width + i % width] ^= 0x40;
      assert_int_equal(rs_stamp_check_launch(memory, width, n, 99, first, &wrong, NULL), 0);
      assert_int_equal(wrong, 3 + spoilt);
      free(memory);
    }
  uint64_t wrong = 0;
  assert_int_equal(rs_stamp_launch(&wrong, 3, 1, 0, 0, NULL), 1);
  assert_int_equal(rs_stamp_check_launch(&wrong, 32, 1, 0, 0, &wrong, NULL), 1);
}

/* What the checksum is, so that it stays comparable between versions. */
static uint64_t checksum_by_hand(const unsigned char *at, int64_t n) {
  const uint64_t odd = 0xd6e8feb86659fd93u;
  uint64_t sum = 0;
  for (int64_t word = 0; 8 * word < n; word++) {
    uint64_t x = 0;
    for (int64_t k = 7; k >= 0; k--)
      x = x << 8 | (8 * word + k < n ? at[8 * word + k] : 0);
    x ^= (uint64_t)(word + 1) * 0x9e3779b97f4a7c15u;
    for (int round = 0; round < 2; round++)
      x = (x ^ x >> 32) * odd;
    sum += x ^ x >> 32;
  }
  return sum;
}

static uint64_t checksum(const void *at, int64_t n) {
  uint64_t sum = 0;
  assert_int_equal(rs_checksum_launch(at, (size_t)n, &sum, NULL), 0);
  return sum;
}

static void test_checksum(void **state) {
  (void)state;
  for (int s = 0; s < SIZES; s++) {
    int64_t n = sizes[s];
    unsigned char *memory = malloc((size_t)n + 9), *same = malloc((size_t)n + 9);
    for (int64_t i = 0; i < n + 9; i++)
      memory[i] = (unsigned char)(i * i + i / 300);
    uint64_t sum = checksum(memory, n);
    assert_int_equal(sum, checksum_by_hand(memory, n));
    assert_int_equal(rs_checksum_host(memory, (size_t)n), sum);
    for (int64_t shift = 1; shift < 9; shift++) {
      memcpy(same + shift, memory, (size_t)n);
      assert_int_equal(checksum(same + shift, n), sum);
    }
    for (int64_t i = 0; i < n; i += n / 8 + 1) {
      memory[i] ^= 1;
      assert_int_not_equal(checksum(memory, n), sum);
      memory[i] ^= 1;
    }
    if (n >= 16) { /* two words exchanged */
      memcpy(same, memory, (size_t)n);
      memcpy(same, memory + 8, 8);
      memcpy(same + 8, memory, 8);
      assert_int_not_equal(checksum(same, n), sum);
    }
    free(memory);
    free(same);
  }
  uint64_t sum = 5; /* is added to */
  assert_int_equal(rs_checksum_launch("a", 1, &sum, NULL), 0);
  assert_int_equal(sum, 5 + rs_checksum_host("a", 1));
}

static void test_cub_twin(void **state) {
  (void)state;
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fill),
      cmocka_unit_test(test_stamps),
      cmocka_unit_test(test_checksum),
      cmocka_unit_test(test_cub_twin),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
