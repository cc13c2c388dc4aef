/* The executor of kernels itself: what a kernel can do, and the mistakes that it has to find. */
#include "executor/probes.h"
#include "simt.h"
#include "support/fixtures/rank_threads.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/fixtures/case.h"

enum { MISALIGNED = 716, FAILED = 719, INVALID_VALUE = 1, INVALID_CONFIGURATION = 9, POISON = 0xdb };

CASE(threads_have_their_coordinates_in_any_order) {
  const unsigned grids[][3] = {{1, 1, 1}, {5, 1, 1}, {2, 3, 4}}, blocks[][3] = {{1, 1, 1}, {33, 1, 1}, {4, 3, 5}};
  for (uint64_t order = 0; order < 4; order++)
    for (int g = 0; g < 3; g++)
      for (int b = 0; b < 3; b++) {
        const unsigned *G = grids[g], *B = blocks[b];
        size_t n = (size_t)G[0] * G[1] * G[2] * B[0] * B[1] * B[2], i = 0;
        uint64_t *out = malloc(n * sizeof *out);
        memset(out, 0xff, n * sizeof *out);
        simt_set_order(order);
        assert_int_equal(probe_coordinates(out, G, B), 0);
        for (uint64_t gz = 0; gz < G[2]; gz++)
          for (uint64_t gy = 0; gy < G[1]; gy++)
            for (uint64_t gx = 0; gx < G[0]; gx++)
              for (uint64_t z = 0; z < B[2]; z++)
                for (uint64_t y = 0; y < B[1]; y++)
                  for (uint64_t x = 0; x < B[0]; x++)
                    assert_int_equal(out[i++], gx | gy << 8 | gz << 16 | x << 32 | y << 44 | z << 54);
        free(out);
      }
  simt_set_order(0);
}

CASE(test_launch_limits) {
  uint64_t out[1];
  const unsigned one[3] = {1, 1, 1}, empty[3] = {4, 0, 1}, many[3] = {32, 33, 1}, deep[3] = {1, 1, 65},
                 tall[3] = {1, 65536, 1};
  assert_int_equal(probe_coordinates(NULL, empty, one), 0);
  assert_int_equal(probe_coordinates(out, one, many), INVALID_CONFIGURATION);
  assert_int_equal(probe_coordinates(out, one, deep), INVALID_CONFIGURATION);
  assert_int_equal(probe_coordinates(out, tall, one), INVALID_CONFIGURATION);
  assert_int_equal(probe_coordinates(out, one, empty), INVALID_CONFIGURATION);
}

static int wrong_transposed(int (*transpose)(const float *, float *, int), int n) {
  float *in = malloc((size_t)(n * n) * sizeof *in), *out = malloc((size_t)(n * n) * sizeof *out);
  for (int i = 0; i < n * n; i++) {
    in[i] = (float)(i + 1);
    out[i] = 0;
  }
  assert_int_equal(transpose(in, out, n), 0);
  int wrong = 0;
  for (int y = 0; y < n; y++)
    for (int x = 0; x < n; x++)
      wrong += out[y * n + x] != in[x * n + y];
  free(in);
  free(out);
  return wrong;
}

CASE(test_shared_and_barrier) {
  for (uint64_t order = 0; order < 5; order++) {
    simt_set_order(order);
    assert_int_equal(wrong_transposed(probe_transpose, 101), 0);
    assert_int_equal(wrong_transposed(probe_transpose, 32), 0);
#ifndef __SANITIZE_THREAD__ /* which stops here, as it should (test_races) */
    assert_int_not_equal(wrong_transposed(probe_transpose_unordered, 101), 0);
#endif
  }
  simt_set_order(0);
}

CASE(barriers_and_shared_memory_sum_a_block) {
  enum { BLOCKS = 3 };
  const unsigned sizes[] = {1, 31, 32, 33, 96, 100, 1024};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    if (sizes[s] % 32 != 0)
      continue; /* a full mask in a warp that is not full is undefined for those lanes' values */
    uint32_t in[BLOCKS * 1024], out[BLOCKS], want[BLOCKS] = {0};
    for (unsigned b = 0; b < BLOCKS; b++) {
      uint32_t sum = 0, odd = 0, any = 0, all = 1;
      for (unsigned i = 0; i < sizes[s]; i++) {
        uint32_t x = in[b * sizes[s] + i] = (i * 7 + b * 13) % (b == 1 ? 1100 : 900);
        sum += x;
        odd += x & 1;
        any |= x == 77;
        all &= x < 1000;
      }
      want[b] = sum + odd * 1000000 + any * 100000000 + all * 200000000;
    }
    for (uint64_t order = 0; order < 3; order++) {
      simt_set_order(order);
      assert_int_equal(probe_sum(in, out, BLOCKS, sizes[s]), 0);
      assert_memory_equal(out, want, sizeof want);
    }
  }
  simt_set_order(0);
}

CASE(shuffles_and_votes_of_a_warp_hold) {
  uint32_t out[224];
  assert_int_equal(probe_warp(out), 0);
  for (uint32_t i = 0; i < 32; i++) {
    assert_int_equal(out[i], 105);
    assert_int_equal(out[32 + i], i < 3 ? 100 + i : 100 + i - 3);
    assert_int_equal(out[64 + i], i % 8 + 3 > 7 ? 100 + i : 100 + i + 3);
    assert_int_equal(out[96 + i], 100 + (i ^ 1));
    assert_int_equal(out[128 + i], 0x49249249u);
    assert_int_equal(out[160 + i], 2);
    assert_int_equal(out[192 + i], i < 16 ? 102 : 130);
  }
}

CASE(test_dynamic_shared) {
  unsigned char out = 0;
  assert_int_equal(probe_dynamic(100, 99, &out, 0), 0);
  assert_int_equal(out, POISON);
  assert_int_equal(probe_dynamic(60 << 10, 0, &out, 0), INVALID_VALUE);
  assert_int_equal(probe_dynamic(228 << 10, 0, &out, 1), INVALID_VALUE);
  assert_int_equal(probe_dynamic(227 << 10, 5, &out, 1), 0);
}

CASE(mistakes_of_kernels_are_found_and_named) {
  static const char *said[] = {
      [PROBE_RETURN] = "3 threads (first: 0) have returned",
      [PROBE_OTHER_BARRIER] = "others are at that of",
      [PROBE_WARP_MASK] = "in which its lane",
      [PROBE_WARP_MISSING] = "a warp operation",
      [PROBE_WARP_OVERLAP] = "other lanes of it are at",
      [PROBE_MISALIGNED] = "16 bytes at",
      [PROBE_MISALIGNED_PLAIN] = "8 bytes at",
      [PROBE_SHARED_SIZE] = "2 arrays of 65536 bytes",
      [PROBE_MBARRIER] = "32 threads (first: 0) wait at an mbarrier",
      [PROBE_UNFENCED] = "no fence between an mbarrier",
      [PROBE_BULK_STORE] = "ends before its bulk stores",
  };
  for (size_t m = 0; m < sizeof said / sizeof *said; m++) {
    _Alignas(16) uint32_t memory[64] = {0};
    bool misaligned = m == PROBE_MISALIGNED || m == PROBE_MISALIGNED_PLAIN;
    assert_int_equal(probe_wrong((enum probe_mistake)m, memory), misaligned ? MISALIGNED : FAILED);
    if (strstr(simt_error_text(), said[m]) == NULL)
      fail_msg("'%s' does not say '%s'", simt_error_text(), said[m]);
    assert_int_equal(wrong_transposed(probe_transpose, 40), 0); /* goes on as if nothing had been */
  }
}

CASE(unawaited_copies_are_found) {
  enum { BLOCKS = 3, BYTES = BLOCKS * 256 };
  _Alignas(16) unsigned char in[BYTES], out[BYTES];
  for (int i = 0; i < BYTES; i++)
    in[i] = (unsigned char)(i * 7 + i / 256);
  for (int wait = 1; wait >= 0; wait--) {
    assert_int_equal(probe_async(in, out, BLOCKS, wait), 0);
    for (int i = 0; i < BYTES; i++)
      assert_int_equal(out[i], wait ? in[i ^ 16] : POISON);
    assert_int_equal(probe_bulk(in, out, BLOCKS, wait), 0);
    for (int i = 0; i < BYTES; i++)
      assert_int_equal(out[i], wait ? in[i] : POISON);
  }
}

CASE(atomics_of_all_blocks_are_whole) {
  uint64_t in[500], least = UINT64_MAX;
  uint32_t count = 0, even = 0;
  for (unsigned i = 0; i < 500; i++) {
    in[i] = 1000 + (i * 37 + 11) % 500;
    even += in[i] % 2 == 0;
  }
  assert_int_equal(probe_atomics(in, 500, &least, &count), 0);
  assert_int_equal(least, 1000);
  assert_int_equal(count, even);
}

/* --- Launches that somebody else executes ------------------------------------------------------------------------*/

typedef struct later {
  simt_launch *launch[4];
  int n, refuse;
} later;
static int enqueue(void *user, simt_launch *launch) {
  later *l = user;
  if (l->refuse)
    return l->refuse;
  l->launch[l->n++] = launch;
  return 0;
}

CASE(enqueued_kernels_run_later) {
  later l = {0};
  uint64_t in[10] = {5, 4, 3, 9, 8, 7, 6, 1, 2, 10}, least = UINT64_MAX;
  uint32_t count = 0;
  simt_set_enqueue(enqueue, &l);
  assert_int_equal(probe_atomics(in, 10, &least, &count), 0);
  assert_int_equal(probe_atomics(in, 3, &least, &count), 0);
  l.refuse = 77;
  assert_int_equal(probe_atomics(in, 10, &least, &count), 77);
  simt_set_enqueue(NULL, NULL);
  assert_int_equal(l.n, 2);
  assert_int_equal(count, 0);
  simt_launch *second = l.launch[1];
  assert_ptr_equal(second->kernel, l.launch[0]->kernel);
  assert_int_equal(second->grid[0], 1);
  assert_int_equal(second->block[0], 64);
  assert_int_equal(second->nargs, 4);
  assert_int_equal(second->arg_bytes[1], sizeof(unsigned));
  assert_ptr_equal(*(const uint64_t *const *)second->args[0], in);
  assert_int_equal(*(const unsigned *)second->args[1], 3);
  assert_int_equal(simt_run(second), 0);
  assert_int_equal(least, 3);
  simt_free(second);
  assert_int_equal(simt_run(l.launch[0]), 0);
  assert_int_equal(least, 1);
  assert_int_equal(count, 6);
  simt_free(l.launch[0]);
}

static void transpose_in_thread(void *wrong, int64_t thread) {
  float in[40 * 40], out[40 * 40];
  for (int i = 0; i < 40 * 40; i++)
    in[i] = (float)i;
  int *count = (int *)wrong + thread;
  for (int k = 0; k < 3; k++) {
    *count += probe_transpose(in, out, 40) != 0;
    for (int i = 0; i < 40 * 40; i++)
      *count += out[i] != in[i % 40 * 40 + i / 40];
  }
}

CASE(test_several_threads) {
  int wrong[4] = {0};
  rank_threads_run(4, transpose_in_thread, wrong);
  for (int i = 0; i < 4; i++)
    assert_int_equal(wrong[i], 0);
}

CASE(reads_and_writes_are_counted) {
  simt_counts before = simt_get_counts();
  uint64_t out[5 * 33];
  assert_int_equal(probe_coordinates(out, (const unsigned[3]){5, 1, 1}, (const unsigned[3]){33, 1, 1}), 0);
  simt_counts after = simt_get_counts();
  assert_int_equal(after.launches - before.launches, 1);
  assert_int_equal(after.blocks - before.blocks, 5);
  assert_int_equal(after.threads - before.threads, 5 * 33);
}

RUN_CASES
