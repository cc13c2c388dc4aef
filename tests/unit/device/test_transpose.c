/* Transposes of every width by every instruction set that the machine has, against a loop over elements: extents that
 * are no multiple of anything, addresses off lines and off elements, pitches and strides of any size. They go with and
 * without stores past the cache. Nothing else is written. */
#include "bench/verify/random.h"
#include "device/cpu/copy/kernels.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"

#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, UNTOUCHED = 0xa5 };

typedef struct transpose_case {
  int64_t width, ni, nj;
  int64_t pitch, stride;    /* bytes; of rows of the destination and of the source */
  int64_t dst_off, src_off; /* from a line */
  bool streaming;
} transpose_case;

/* Fills a source, transposes it by the kernel, and compares every byte of the destination. */
static void transpose_check(reshard_isa isa, const transpose_case *c, rng *r) {
  const rs_kernels *kernels = rs_kernels_of(isa);
  size_t dst_bytes = (size_t)(2 * GUARD + c->dst_off + c->ni * c->pitch + c->nj * c->width);
  size_t src_bytes = (size_t)(c->src_off + c->nj * c->stride + c->ni * c->width);
  unsigned char *dst_all = NULL, *src_all = NULL, *want = malloc(dst_bytes);
  assert_int_equal(posix_memalign((void **)&dst_all, 64, dst_bytes), 0);
  assert_int_equal(posix_memalign((void **)&src_all, 64, src_bytes), 0);
  for (size_t i = 0; i < src_bytes; i++)
    src_all[i] = (unsigned char)rng_below(r, 256);
  memset(dst_all, UNTOUCHED, dst_bytes);
  memset(want, UNTOUCHED, dst_bytes);
  int64_t at = GUARD + c->dst_off;
  for (int64_t i = 0; i < c->ni; i++)
    for (int64_t j = 0; j < c->nj; j++)
      memcpy(want + at + i * c->pitch + j * c->width, src_all + c->src_off + i * c->width + j * c->stride,
             (size_t)c->width);
  kernels->transpose[rs_width_index(c->width)]((char *)dst_all + at, (const char *)src_all + c->src_off, c->ni, c->nj,
                                               c->pitch, c->stride, c->streaming);
  kernels->fence();
  for (size_t b = 0; b < dst_bytes; b++)
    if (dst_all[b] != want[b])
      fail_msg("%s, width %lld, %lld x %lld, pitch %lld, stride %lld, offsets %lld and %lld%s: byte %zu is %d, not %d",
               reshard_isa_string(isa), (long long)c->width, (long long)c->ni, (long long)c->nj, (long long)c->pitch,
               (long long)c->stride, (long long)c->dst_off, (long long)c->src_off, c->streaming ? ", streaming" : "",
               b - GUARD, dst_all[b], want[b]);
  free(dst_all);
  free(src_all);
  free(want);
}

static void check_all(const transpose_case *c, uint64_t seed) {
  for (int isa = RESHARD_ISA_AUTO + 1; isa < RESHARD_ISA_COUNT; isa++) {
    rng r;
    rng_seed(&r, seed);
    if (reshard_isa_available((reshard_isa)isa))
      transpose_check((reshard_isa)isa, c, &r);
  }
}

/* Extents around the sides of squares, cells and strips. */
CASE(extents_around_the_cells_are_right) {
  static const int64_t extents[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 96, 127, 128, 129};
  enum { N = sizeof extents / sizeof *extents };
  for (int64_t width = 1; width <= 16; width *= 2)
    for (int a = 0; a < N; a += (int)test_one_in(3))
      for (int b = 0; b < N; b++) {
        int64_t ni = extents[a], nj = extents[b], row = rs_ceil_div(nj * width, 64) * 64;
        transpose_case c = {width, ni, nj, row, ni * width, 0, 0, (a + b) % 2 == 0};
        check_all(&c, (uint64_t)(a * N + b));
      }
}

CASE(random_transposes_match_a_loop) {
  for (int64_t i = 0, n = test_scaled(600, 40); i < n; i++) {
    rng r;
    rng_seed(&r, 5000 + (uint64_t)i);
    int64_t width = (int64_t)1 << rng_below(&r, 5), ni = rng_in(&r, 1, 300), nj = rng_in(&r, 1, 300);
    transpose_case c = {.width = width, .ni = ni, .nj = nj, .streaming = rng_one_in(&r, 2)};
    c.pitch = nj * width + rng_below(&r, 200);
    c.stride = ni * width + rng_below(&r, 200);
    if (rng_one_in(&r, 2)) /* lines of the destination */
      c.pitch = rs_ceil_div(c.pitch, 64) * 64;
    if (rng_one_in(&r, 4)) /* all rows at one place of the cache */
      c.pitch = c.stride = 8192;
    c.dst_off = rng_one_in(&r, 2) ? rng_below(&r, 64 / width) * width : rng_below(&r, 64);
    c.src_off = rng_below(&r, 64);
    check_all(&c, (uint64_t)i);
  }
}

RUN_CASES
