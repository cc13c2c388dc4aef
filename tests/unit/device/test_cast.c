/* Casts of the CPU against an exact conversion in integers: every pair of dtypes and every instruction set, all codes
 * of the narrow dtypes, edges and random bits of the wide ones; then lists of casts over strided memory. */
#include "bench/cli/naive_cast.h"
#include "bench/verify/random.h"
#include "device/cpu/cpu.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Under ThreadSanitizer what one thread does is left to the other builds. */
#if defined(__SANITIZE_THREAD__)
enum { THREADS_ONLY = 1 };
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
enum { THREADS_ONLY = 1 };
#else
enum { THREADS_ONLY = 0 };
#endif
#else
enum { THREADS_ONLY = 0 };
#endif

static const reshard_dtype dtypes[] = {RESHARD_F64,  RESHARD_F32,     RESHARD_F16,
                                       RESHARD_BF16, RESHARD_F8_E4M3, RESHARD_F8_E5M2};
enum { DTYPES = sizeof dtypes / sizeof *dtypes, BATCH = 1 << 16 };

static uint64_t bits_load(const char *at, size_t width) {
  uint8_t narrow;
  uint16_t half;
  uint32_t word;
  uint64_t wide;
  switch (width) {
  case 1: return memcpy(&narrow, at, 1), narrow;
  case 2: return memcpy(&half, at, 2), half;
  case 4: return memcpy(&word, at, 4), word;
  default: return memcpy(&wide, at, 8), wide;
  }
}

static void store(char *at, size_t width, uint64_t bits) {
  uint8_t narrow = (uint8_t)bits;
  uint16_t half = (uint16_t)bits;
  uint32_t word = (uint32_t)bits;
  memcpy(at,
         width == 1   ? (void *)&narrow
         : width == 2 ? (void *)&half
         : width == 4 ? (void *)&word
                      : (void *)&bits,
         width);
}

/* --- Every number ---------------------------------------------------------------------------------------- */

typedef struct bench {
  rs_device *device;
  reshard_dtype from, to;
  char *src, *dst;
  int64_t n; /* numbers in src */
} bench;

/* Casts what is in src, compares, and empties it. */
static void flush(bench *b) {
  size_t wide = reshard_dtype_size(b->from), narrow = reshard_dtype_size(b->to);
  rs_casts casts = {0};
  const rs_axis axis = {b->n, (int64_t)wide, (int64_t)narrow};
  GOOD(rs_casts_add(&casts, b->src, b->dst, b->from, b->to, 1, &axis));
  GOOD(b->device->work->cast(b->device, &casts, NULL));
  rs_casts_free(&casts);
  for (int64_t i = 0; i < b->n; i++) {
    uint64_t bits = bits_load(b->src + (size_t)i * wide, wide), is = bits_load(b->dst + (size_t)i * narrow, narrow);
    uint64_t wanted = naive_cast(b->from, b->to, bits);
    if (is != wanted)
      fail_msg("%s: %s %#llx to %s: %#llx instead of %#llx", reshard_isa_string(rs_device_cpu_isa(b->device)),
               reshard_dtype_string(b->from), (unsigned long long)bits, reshard_dtype_string(b->to),
               (unsigned long long)is, (unsigned long long)wanted);
  }
  b->n = 0;
}

static void bench_put(bench *b, uint64_t bits) {
  size_t wide = reshard_dtype_size(b->from);
  store(b->src + (size_t)b->n * wide, wide, bits);
  if (++b->n == BATCH)
    flush(b);
}

/* Around a positive number, on both sides of zero: it, its neighbours, and those that differ in one far bit. */
static void put_around(bench *b, uint64_t bits) {
  int width = 8 * (int)reshard_dtype_size(b->from);
  for (int sign = 0; sign <= 1; sign++) {
    uint64_t with = bits | (uint64_t)sign << (width - 1);
    bench_put(b, with);
    bench_put(b, with - 1);
    bench_put(b, with + 1);
    bench_put(b, with ^ (uint64_t)1 << (width == 64 ? 28 : 11));
  }
}

static void all_numbers(bench *b, uint64_t seed) {
  rng r;
  int width = 8 * (int)reshard_dtype_size(b->from), to_width = 8 * (int)reshard_dtype_size(b->to);
  if (width <= 16) {
    for (uint64_t bits = 0; bits >> width == 0; bits++)
      bench_put(b, bits);
    flush(b);
    return;
  }
  /* Each number of the other dtype, or some of them, and what lies half way to the next. */
  uint64_t step = to_width <= 16 ? 1 : to_width == 32 ? 0x10001 : UINT64_C(0x10000000000001);
  for (uint64_t code = 0; code >> (to_width - 1) == 0; code += step) {
    uint64_t here = to_width < width ? naive_cast(b->to, b->from, code) : code >> (to_width - width);
    uint64_t next = to_width < width ? naive_cast(b->to, b->from, code + 1) : here;
    put_around(b, here);
    put_around(b, here / 2 + next / 2 + (here & next & 1));
  }
  /* Numbers below the smallest, and above the largest one. */
  for (uint64_t exponent = 0; exponent >> (width == 64 ? 11 : 8) == 0; exponent++)
    put_around(b, exponent << (width == 64 ? 52 : 23));
  rng_seed(&r, seed);
  for (int64_t i = 0; i < test_scaled(1 << 18, 1); i++)
    bench_put(b, rng_next(&r));
  flush(b);
}

CASE(every_pair_of_dtypes_rounds_exactly) {
  if (THREADS_ONLY)
    skip();
  bench b = {.src = malloc(BATCH * 8), .dst = malloc(BATCH * 8)};
  for (int isa = RESHARD_ISA_AUTO; isa < RESHARD_ISA_COUNT; isa++) {
    if (!reshard_isa_available((reshard_isa)isa))
      continue;
    GOOD(rs_device_cpu_create(1, (reshard_isa)isa, &b.device));
    for (int from = 0; from < DTYPES; from++)
      for (int to = 0; to < DTYPES; to++) {
        b.from = dtypes[from];
        b.to = dtypes[to];
        if (rs_cast_supported(b.from, b.to))
          all_numbers(&b, (uint64_t)(isa * 64 + from * 8 + to));
      }
    b.device->destroy(b.device);
  }
  free(b.src);
  free(b.dst);
}

/* --- Every place ----------------------------------------------------------------------------------------- */

enum { SRC_BYTES = 24 << 20, DST_BYTES = 24 << 20, DIMS = 4, POISON = 0xa5 };

typedef struct places {
  char *src, *dst, *wanted;
  int64_t src_at, dst_at; /* bytes that are taken */
  rs_casts casts;
} places;

/* Byte strides of a shape in a random order of the dims, with gaps; the first element's offset where some run
 * backwards. Returns the bytes that are spanned. */
static int64_t strides_draw(rng *r, int ndim, const int64_t *shape, int64_t width, bool source, int64_t *strides,
                            int64_t *first) {
  int order[DIMS] = {0, 1, 2, 3};
  int64_t step = width * (rng_one_in(r, 4) ? rng_in(r, 1, 3) : 1), reach = width;
  *first = 0;
  for (int i = ndim - 1; i > 0 && rng_one_in(r, 2); i--) {
    int j = (int)rng_below(r, i + 1), swap = order[i];
    order[i] = order[j];
    order[j] = swap;
  }
  for (int i = ndim - 1; i >= 0; i--) {
    int d = order[i];
    strides[d] = source && rng_one_in(r, 12) ? 0 : step;
    step *= strides[d] == 0 ? 1 : shape[d] + (rng_one_in(r, 3) ? rng_in(r, 0, 2) : 0);
    reach += strides[d] * (shape[d] - 1);
    if (source && rng_one_in(r, 12)) {
      *first += strides[d] * (shape[d] - 1);
      strides[d] = -strides[d];
    }
  }
  return reach;
}

/* Adds a cast, and does it number by number into `wanted`. False where there is no room. */
static bool add_cast(places *p, rng *r, int64_t most) {
  static const rng_shapes shapes = {DIMS + 1, {0, 1, 2, 3, 4}, .large = 8, .log = 1, .empty = INT64_MAX};
  reshard_dtype from, to;
  do {
    from = dtypes[rng_below(r, DTYPES)];
    to = dtypes[rng_below(r, DTYPES)];
  } while (!rs_cast_supported(from, to));
  int64_t shape[DIMS], src_strides[DIMS], dst_strides[DIMS], src_first, dst_first, numbers = 1;
  int64_t wide = (int64_t)reshard_dtype_size(from), narrow = (int64_t)reshard_dtype_size(to);
  int ndim = rng_shape(r, &shapes, most, shape);
  int64_t src_bytes = strides_draw(r, ndim, shape, wide, true, src_strides, &src_first);
  int64_t dst_bytes = strides_draw(r, ndim, shape, narrow, false, dst_strides, &dst_first);
  p->src_at += rng_below(r, 70);
  p->dst_at += rng_below(r, 70);
  if (p->src_at + src_bytes > SRC_BYTES || p->dst_at + dst_bytes > DST_BYTES)
    return false;
  const char *src = p->src + p->src_at + src_first;
  rs_axis axes[DIMS];
  for (int d = 0; d < ndim; d++) {
    axes[d] = (rs_axis){shape[d], src_strides[d], dst_strides[d]};
    numbers *= shape[d];
  }
  GOOD(rs_casts_add(&p->casts, src, p->dst + p->dst_at, from, to, ndim, axes));
  for (int64_t i = 0; i < numbers; i++) {
    int64_t rest = i, src_offset = 0, dst_offset = 0;
    for (int d = ndim - 1; d >= 0; d--) {
      src_offset += rest % shape[d] * src_strides[d];
      dst_offset += rest % shape[d] * dst_strides[d];
      rest /= shape[d];
    }
    store(p->wanted + p->dst_at + dst_offset, (size_t)narrow,
          naive_cast(from, to, bits_load(src + src_offset, (size_t)wide)));
  }
  p->src_at += src_bytes;
  p->dst_at += dst_bytes;
  return true;
}

static void run_places(places *p, rs_device *device, uint64_t seed, int64_t casts, int64_t most) {
  rng r;
  rng_seed(&r, seed);
  p->src_at = p->dst_at = 0;
  for (int64_t i = 0; i < casts && add_cast(p, &r, most); i++)
    ;
  int64_t end = rs_min(p->dst_at + 256, DST_BYTES);
  GOOD(device->work->cast(device, &p->casts, NULL));
  if (memcmp(p->dst, p->wanted, (size_t)end) != 0)
    fail_msg("seed %llu: %lld casts of up to %lld numbers, %s", (unsigned long long)seed, (long long)casts,
             (long long)most, reshard_isa_string(rs_device_cpu_isa(device)));
  memset(p->dst, POISON, (size_t)end);
  memset(p->wanted, POISON, (size_t)end);
  p->casts.cast.n = p->casts.axis.n = 0;
}

CASE(casts_write_their_places_alone) {
  places p = {.src = malloc(SRC_BYTES), .dst = malloc(DST_BYTES), .wanted = malloc(DST_BYTES)};
  rng r;
  rng_seed(&r, 1);
  for (int64_t i = 0; i < SRC_BYTES; i += 8)
    store(p.src + i, 8, rng_next(&r));
  memset(p.dst, POISON, DST_BYTES);
  memset(p.wanted, POISON, DST_BYTES);
  for (int isa = RESHARD_ISA_SCALAR; isa < RESHARD_ISA_COUNT; isa++) {
    rs_device *device;
    if (!reshard_isa_available((reshard_isa)isa))
      continue;
    GOOD(rs_device_cpu_create(3, (reshard_isa)isa, &device));
    for (int64_t i = 0; i < test_scaled(THREADS_ONLY ? 50 : 400, 1); i++)
      run_places(&p, device, (uint64_t)(isa * 1000000 + i), 1 + i % 8, 3000);
    for (int64_t i = 0; i < test_scaled(THREADS_ONLY ? 1 : 4, 1); i++) /* by several threads, past the cache */
      run_places(&p, device, (uint64_t)(isa * 2000000 + i), 50, 200000);
    device->destroy(device);
  }
  rs_casts_free(&p.casts);
  free(p.src);
  free(p.dst);
  free(p.wanted);
}

/* f16 and bf16 are equally long: one can become the other where it is. */
CASE(test_in_place) {
  enum { N = 3 << 19 };
  uint16_t *memory = malloc(N * sizeof *memory);
  for (int isa = RESHARD_ISA_SCALAR; isa < RESHARD_ISA_COUNT; isa++) {
    rs_device *device;
    if (!reshard_isa_available((reshard_isa)isa))
      continue;
    GOOD(rs_device_cpu_create(2, (reshard_isa)isa, &device));
    for (int64_t n = 1000; n <= N; n = n == 1000 ? N : N + 1) {
      for (int64_t i = 0; i < n; i++)
        memory[i] = (uint16_t)(i * 7);
      rs_casts casts = {0};
      GOOD(rs_casts_add(&casts, (char *)memory, (char *)memory, RESHARD_F16, RESHARD_BF16, 1, &(rs_axis){n, 2, 2}));
      GOOD(device->work->cast(device, &casts, NULL));
      rs_casts_free(&casts);
      for (int64_t i = 0; i < n; i++)
        if (memory[i] != naive_cast(RESHARD_F16, RESHARD_BF16, (uint16_t)(i * 7)))
          fail_msg("%s: number %lld of %lld", reshard_isa_string((reshard_isa)isa), (long long)i, (long long)n);
    }
    device->destroy(device);
  }
  free(memory);
}

/* Casts do not depend on how the program rounds, nor on whether it flushes or traps, and leave it so. */
CASE(casts_do_not_depend_on_rounding_modes) {
  if (THREADS_ONLY)
    skip();
  bench b = {.src = malloc(BATCH * 8), .dst = malloc(BATCH * 8)};
  for (int isa = RESHARD_ISA_SCALAR; isa < RESHARD_ISA_COUNT; isa++) {
    if (!reshard_isa_available((reshard_isa)isa))
      continue;
    GOOD(rs_device_cpu_create(1, (reshard_isa)isa, &b.device));
    for (int from = 0; from < DTYPES; from++)
      for (int to = 0; to < DTYPES; to++) {
        b.from = dtypes[from];
        b.to = dtypes[to];
        if (!rs_cast_supported(b.from, b.to))
          continue;
        rng r;
        rng_seed(&r, (uint64_t)(from * 8 + to));
        for (int i = 0; i < 20000; i++) /* small numbers among them */
          bench_put(&b, rng_next(&r) & (i % 2 == 0                        ? UINT64_MAX
                                        : reshard_dtype_size(b.from) == 8 ? UINT64_C(0x380fffffffffffff)
                                                                          : 0x007fffff));
        fesetround(FE_UPWARD);
        feclearexcept(FE_ALL_EXCEPT);
#if defined(__x86_64__)
        _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, subnormal numbers are zero */
#endif
        flush(&b);
        assert_int_equal(fegetround(), FE_UPWARD);
        assert_int_equal(fetestexcept(FE_ALL_EXCEPT), 0);
#if defined(__x86_64__)
        assert_int_equal(_mm_getcsr() & 0x8040, 0x8040);
#endif
        fesetenv(FE_DFL_ENV);
      }
    b.device->destroy(b.device);
  }
  free(b.src);
  free(b.dst);
}

CASE(lists_take_the_casts_there_are) {
  rs_casts casts = {0};
  char memory[64];
  int supported = 0;
  for (int from = 0; from <= RESHARD_DTYPE_COUNT; from++)
    for (int to = 0; to <= RESHARD_DTYPE_COUNT; to++)
      supported += rs_cast_supported((reshard_dtype)from, (reshard_dtype)to);
  assert_int_equal(supported, 30);
  assert_false(rs_cast_supported(RESHARD_F32, RESHARD_F32));
  FAILS(rs_casts_add(&casts, memory, memory, RESHARD_F32, RESHARD_F8_E8M0, 0, NULL), RESHARD_ERROR_UNSUPPORTED,
        "no cast from f32 to f8_e8m0");
  FAILS(rs_casts_add(&casts, memory, memory, RESHARD_I32, RESHARD_F32, 0, NULL), RESHARD_ERROR_UNSUPPORTED,
        "no cast from i32 to f32");
  BAD(rs_casts_add(&casts, memory, memory, RESHARD_F32, RESHARD_BF16, 1, &(rs_axis){INT64_MAX / 5, 4, 2}),
      "a cast has more than 9223372036854775807 bytes");
  assert_int_equal(casts.cast.n, 0);
  const rs_axis none[2] = {{INT64_MAX, 4, 2}, {0, 4, 2}};
  GOOD(rs_casts_add(&casts, memory, memory, RESHARD_F32, RESHARD_BF16, 2, none));
  assert_int_equal(casts.cast.n, 0);
  /* 2 x 3 x 1 x 4, of which the last two dims are contiguous on both sides, and the first two follow one another. */
  const rs_axis axes[4] = {{2, 96, 48}, {3, 32, 16}, {1, 5, 7}, {4, 4, 2}};
  GOOD(rs_casts_add(&casts, memory, memory + 32, RESHARD_F32, RESHARD_BF16, 4, axes));
  GOOD(rs_casts_add(&casts, memory, memory + 32, RESHARD_F32, RESHARD_F16, 0, NULL));
  assert_int_equal(casts.cast.n, 2);
  assert_int_equal(casts.cast.at[0].elements, 4);
  assert_int_equal(casts.cast.at[0].naxes, 1);
  const rs_axis merged = {6, 32, 16};
  assert_memory_equal(&casts.axis.at[0], &merged, sizeof merged);
  assert_int_equal(casts.cast.at[1].elements, 1);
  assert_int_equal(casts.cast.at[1].naxes, 0);
  rs_casts_free(&casts);
  /* Nothing to do. */
  rs_device *device;
  GOOD(rs_device_cpu_create(2, RESHARD_ISA_AUTO, &device));
  GOOD(device->work->cast(device, &casts, NULL));
  device->destroy(device);
}

RUN_CASES
