/* The cast kernel: all numbers of the small dtypes; of the others those around every step of the destination, random
 * ones and the special ones. They are compared with exact integer arithmetic and the CUDA toolkit's own conversions.
 * Then come lists of casts of any shape and alignment. */
#include "kernels/cast.h"

#include "bench/cli/naive_cast.h"
#include "executor/probes.h"
#include "executor/toolkit_numbers.h"
#include "simt.h"
#include "support/fixtures/case.h"
#include "support/fixtures/draw.h"

#include "device/device.h"
#include "support/fixtures/scale.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const reshard_dtype dtypes[] = {RESHARD_F8_E4M3, RESHARD_F8_E5M2, RESHARD_F16,
                                       RESHARD_BF16,    RESHARD_F32,     RESHARD_F64};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static uint64_t get(const char *at, size_t width) {
  uint64_t bits = 0;
  memcpy(&bits, at, width);
  return bits;
}

/* --- Numbers -----------------------------------------------------------------------------------------------------*/

typedef struct numbers {
  uint64_t *at;
  int64_t n, cap;
} numbers;
static void push(numbers *v, uint64_t bits) {
  if (v->n == v->cap) {
    v->cap = 2 * v->cap + 1024;
    v->at = realloc(v->at, (size_t)v->cap * sizeof *v->at);
    assert_non_null(v->at);
  }
  v->at[v->n++] = bits;
}

/* Of a wide dtype: for each code of a narrow one, the number, the middle between it and the next, and the neighbours of
 * both. What lies in the middle of two numbers' codes is in the middle of the numbers. At the change of exponent it is
 * between them, where the neighbours are as good. */
static void push_steps(reshard_dtype from, reshard_dtype to, numbers *v) {
  int64_t step = reshard_dtype_size(to) == 4 ? (1 << 20) - 3 : 1;
  uint64_t codes = UINT64_C(1) << (8 * reshard_dtype_size(to) - 1), sign = UINT64_C(1)
                                                                           << (8 * reshard_dtype_size(from) - 1);
  for (uint64_t code = 0; code < codes; code += (uint64_t)step) {
    uint64_t exact = naive_cast(to, from, code);
    uint64_t next = naive_cast(to, from, code + 1 < codes ? code + 1 : code);
    uint64_t middle = exact + (next - exact) / 2;
    for (int k = -1; k <= 1; k++) {
      push(v, exact + (uint64_t)(int64_t)k);
      push(v, middle + (uint64_t)(int64_t)k);
      push(v, sign | (middle + (uint64_t)(int64_t)k));
    }
    push(v, sign | exact);
  }
}

static numbers numbers_of(reshard_dtype from, reshard_dtype to) {
  numbers v = {0};
  size_t width = reshard_dtype_size(from);
  if (width <= 2) {
    for (uint64_t bits = 0; bits < UINT64_C(1) << 8 * width; bits++)
      push(&v, bits);
    return v;
  }
  if (reshard_dtype_size(to) < width)
    push_steps(from, to, &v);
  int64_t random = test_scaled(200000, 10000);
  uint64_t mask = width == 4 ? UINT32_MAX : UINT64_MAX, infinity = width == 4 ? 0x7f800000u : UINT64_C(0x7ff) << 52;
  for (uint64_t k = 0; k < 64; k++) {
    push(&v, k);
    push(&v, (infinity - 32 + k) & mask);
    push(&v, (mask - k) & mask);
    push(&v, (mask >> 1) - k);
    push(&v, UINT64_C(1) << k % (8 * width));
  }
  for (int64_t i = 0; i < random; i++) {
    uint64_t bits = draw() & mask;
    if (i % 2 == 1) { /* of an exponent that the destination has */
      int exponent = (int)between(-30, 20), bias = width == 4 ? 127 : 1023, mantissa = width == 4 ? 23 : 52;
      bits &= ((UINT64_C(1) << mantissa) - 1) | (UINT64_C(1) << (8 * width - 1));
      bits |= (uint64_t)(exponent + bias) << mantissa;
    }
    push(&v, bits);
  }
  return v;
}

/* All of them in one cast, contiguous and aligned, and once more one number off. */
static void check_numbers(reshard_dtype from, reshard_dtype to, const numbers *v) {
  size_t in = reshard_dtype_size(from), out = reshard_dtype_size(to);
  char *src = malloc((size_t)(v->n + 1) * in), *dst = malloc((size_t)(v->n + 1) * out);
  for (int64_t i = 0; i < v->n; i++)
    memcpy(src + (size_t)i * in, &v->at[i], in);
  for (int off = 0; off < 2; off++) {
    memset(dst, 0xa5, (size_t)(v->n + 1) * out);
    rs_cast cast = {
        .src = src, .dst = dst + (size_t)off * out, .elements = v->n, .from = (int32_t)from, .to = (int32_t)to};
    assert_int_equal(rs_cast_launch(1, &cast, NULL, 0, NULL), 0);
    for (int64_t i = 0; i < v->n; i++) {
      uint64_t bits = get(src + (size_t)i * in, in), got = get(cast.dst + (size_t)i * out, out);
      uint64_t want = naive_cast(from, to, bits), toolkit;
      if (got != want)
        fail_msg("%s %llx to %s: %llx, and not %llx", reshard_dtype_string(from), (unsigned long long)bits,
                 reshard_dtype_string(to), (unsigned long long)got, (unsigned long long)want);
      bool nan = want == (UINT64_C(1) << (8 * out - 1)) - 1;
      if (off == 0 && !nan && toolkit_convert((int32_t)from, (int32_t)to, bits, &toolkit) && got != toolkit)
        fail_msg("%s %llx to %s: %llx, the toolkit says %llx", reshard_dtype_string(from), (unsigned long long)bits,
                 reshard_dtype_string(to), (unsigned long long)got, (unsigned long long)toolkit);
    }
  }
  free(src);
  free(dst);
}

CASE(numbers_of_each_pair_of_dtypes_are_rounded_once) {
  int pairs = 0;
  int64_t count = 0;
  for (int f = 0; f < DTYPES; f++)
    for (int t = 0; t < DTYPES; t++) {
      if (!rs_cast_supported(dtypes[f], dtypes[t])) {
        rs_cast cast = {.elements = 1, .from = (int32_t)dtypes[f], .to = (int32_t)dtypes[t]};
        assert_int_equal(rs_cast_launch(1, &cast, NULL, 0, NULL), 1);
        continue;
      }
      numbers v = numbers_of(dtypes[f], dtypes[t]);
      check_numbers(dtypes[f], dtypes[t], &v);
      pairs++;
      count += v.n;
      free(v.at);
    }
  assert_int_equal(pairs, 30);
  uint64_t out;
  printf("           %lld numbers of %d pairs; the toolkit's conversions: %s\n", (long long)count, pairs,
         toolkit_convert(RESHARD_F32, RESHARD_F16, 0, &out) ? "compared" : "not here");
  rs_cast other = {.elements = 1, .from = RESHARD_F32, .to = RESHARD_I32};
  assert_int_equal(rs_cast_launch(1, &other, NULL, 0, NULL), 1);
}

/* --- Lists -------------------------------------------------------------------------------------------------------*/

typedef struct shape {
  int naxes;
  int64_t n[4], elements;
} shape;

/* Strides of one side: an order of the loops, with gaps of some numbers; now and then backwards. Returns bytes of the
 * whole; *first is where the first number is. */
static int64_t lay_out(const shape *s, int64_t width, int64_t unit, bool backwards, int64_t *strides, int64_t *first) {
  int order[4] = {0, 1, 2, 3};
  for (int i = s->naxes - 1; i > 0; i--) {
    int k = (int)between(0, i), swap = order[i];
    order[i] = order[k];
    order[k] = swap;
  }
  int64_t extent = s->elements;
  *first = 0;
  for (int i = 0; i < s->naxes; i++) {
    extent = (extent + between(0, 2) + unit - 1) / unit * unit;
    int64_t n = s->n[order[i]];
    strides[order[i]] = extent * width;
    if (backwards && chance(4)) {
      strides[order[i]] = -extent * width;
      *first += (n - 1) * extent * width;
    }
    extent *= n;
  }
  return extent * width;
}

typedef struct one_cast {
  char *src_memory, *dst_memory, *want;
  int64_t dst_bytes;
} one_cast;

static void fill_random(char *at, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i++)
    at[i] = (char)draw();
}

static void cast_expect(const rs_cast *cast, const rs_axis *axes, char *want) {
  size_t in = reshard_dtype_size((reshard_dtype)cast->from), out = reshard_dtype_size((reshard_dtype)cast->to);
  int64_t rows = 1;
  for (int i = 0; i < cast->naxes; i++)
    rows *= axes[i].n;
  for (int64_t row = 0; row < rows; row++) {
    int64_t rest = row, src = 0, dst = 0;
    for (int i = 0; i < cast->naxes; i++) {
      src += rest % axes[i].n * axes[i].src;
      dst += rest % axes[i].n * axes[i].dst;
      rest /= axes[i].n;
    }
    for (int64_t e = 0; e < cast->elements; e++) {
      uint64_t bits = get(cast->src + src + e * (int64_t)in, in);
      bits = naive_cast((reshard_dtype)cast->from, (reshard_dtype)cast->to, bits);
      memcpy(want + dst + e * (int64_t)out, &bits, out);
    }
  }
}

static void make_cast(int64_t budget, rs_cast *cast, rs_axis *axes, one_cast *memory) {
  reshard_dtype from, to;
  do {
    from = dtypes[between(0, DTYPES - 1)];
    to = dtypes[between(0, DTYPES - 1)];
  } while (!rs_cast_supported(from, to));
  int64_t in = (int64_t)reshard_dtype_size(from), out = (int64_t)reshard_dtype_size(to);
  shape s = {.naxes = (int)between(0, 4), .elements = chance(4) ? 1 : between(1, 70)};
  if (s.naxes == 0 && chance(2))
    s.elements = between(1, budget);
  for (int i = 0; i < s.naxes; i++)
    s.n[i] = s.elements < budget ? between(1, chance(3) ? 2 : 7) : 1;
  /* Half of them such that rows are aligned as the first one is. */
  int64_t unit = chance(2) ? 1 : 16 / (in > out ? in : out), strides[2][4], first[2];
  bool backwards = chance(4);
  int64_t src_bytes = lay_out(&s, in, unit, false, strides[0], &first[0]);
  int64_t dst_bytes = lay_out(&s, out, unit, backwards, strides[1], &first[1]);
  int64_t shift = chance(3) ? 0 : between(0, 17), other = chance(4) ? between(0, 17) : shift;
  memory->src_memory = malloc((size_t)(src_bytes + shift * in));
  memory->dst_memory = malloc((size_t)(dst_bytes + other * out));
  memory->want = malloc((size_t)(dst_bytes + other * out));
  memory->dst_bytes = dst_bytes + other * out;
  fill_random(memory->src_memory, src_bytes + shift * in);
  fill_random(memory->dst_memory, memory->dst_bytes);
  memcpy(memory->want, memory->dst_memory, (size_t)memory->dst_bytes);
  int64_t at = cast->axes;
  *cast = (rs_cast){.src = memory->src_memory + shift * in + first[0],
                    .dst = memory->dst_memory + other * out + first[1],
                    .elements = s.elements,
                    .axes = at,
                    .naxes = s.naxes,
                    .from = (int32_t)from,
                    .to = (int32_t)to};
  for (int i = 0; i < s.naxes; i++)
    axes[at + i] = (rs_axis){s.n[i], strides[0][i], strides[1][i]};
  cast_expect(cast, axes + at, memory->want + (cast->dst - memory->dst_memory));
}

/* The launchers, and those that cut what is large. */
typedef struct launcher {
  int (*launch)(int64_t n, const rs_cast *casts, const rs_axis *axes, uint32_t most, void *stream);
  size_t (*measure)(int64_t n, const rs_cast *casts, const rs_axis *axes, rs_cast_table *table);
  void (*write)(const rs_cast_table *table, int64_t n, const rs_cast *casts, const rs_axis *axes, void *host);
  int (*launch_table)(const rs_cast_table *table, const void *memory, uint32_t most, void *stream);
} launcher;
static const launcher launchers[2] = {
    {rs_cast_launch, rs_cast_table_measure, rs_cast_table_write, rs_cast_table_launch},
    {rs_cast_launch_small, rs_cast_table_measure_small, rs_cast_table_write_small, rs_cast_table_launch_small}};

/* By a table, which is elsewhere when it is read, where there is to be one. */
static int launch_by_table(const launcher *l, int64_t n, const rs_cast *casts, const rs_axis *axes, uint32_t most,
                           int64_t *tables) {
  rs_cast_table table;
  size_t bytes = l->measure(n, casts, axes, &table);
  if (bytes == 0)
    return l->launch(n, casts, axes, most, NULL);
  ++*tables;
  char *host = malloc(bytes), *memory = malloc(bytes);
  l->write(&table, n, casts, axes, host);
  memcpy(memory, host, bytes);
  free(host);
  int error = l->launch_table(&table, memory, most, NULL);
  free(memory);
  return error;
}

/* The blocks that the casts take, at most so many a launch. */
static int64_t count_blocks(const launcher *l, bool by_table, int64_t n, const rs_cast *casts, const rs_axis *axes,
                            uint32_t most, int64_t *tables) {
  simt_counts before = simt_get_counts();
  int error = by_table ? launch_by_table(l, n, casts, axes, most, tables) : l->launch(n, casts, axes, most, NULL);
  simt_counts after = simt_get_counts();
  assert_int_equal(error, 0);
  if (most > 0)
    assert_in_range(after.blocks - before.blocks, 0, most * (after.launches - before.launches));
  return after.blocks - before.blocks;
}

static void check_list(uint64_t seed, int64_t *tables) {
  enum { MOST = 450 };
  static rs_cast casts[MOST];
  static rs_axis axes[4 * MOST];
  static one_cast memory[MOST];
  draw_state = seed;
  bool small = chance(2), many = chance(30);
  int64_t n = between(1, many ? MOST : 5), at = 0;
  for (int64_t i = 0; i < n; i++) {
    casts[i].axes = at;
    make_cast(many ? 100 : small ? 20000 : 6000, &casts[i], axes, &memory[i]);
    at += casts[i].naxes;
  }
  simt_set_order(chance(2) ? 0 : draw());
  const launcher *l = &launchers[small];
  uint32_t most = chance(2) ? 0 : (uint32_t)between(1, 5);
  bool by_table = !chance(4);
  int64_t blocks = count_blocks(l, by_table, n, casts, axes, most, tables);
  if (most > 0 && blocks != count_blocks(l, by_table, n, casts, axes, 0, tables))
    fail_msg("seed %llu: %lld blocks, at most %u a launch", (unsigned long long)seed, (long long)blocks, most);
  simt_set_order(0);
  for (int64_t i = 0; i < n; i++) {
    if (memcmp(memory[i].want, memory[i].dst_memory, (size_t)memory[i].dst_bytes) != 0)
      fail_msg("seed %llu: cast %lld of %lld from %s to %s, %d loops of %lld numbers", (unsigned long long)seed,
               (long long)i, (long long)n, reshard_dtype_string((reshard_dtype)casts[i].from),
               reshard_dtype_string((reshard_dtype)casts[i].to), casts[i].naxes, (long long)casts[i].elements);
    free(memory[i].src_memory);
    free(memory[i].dst_memory);
    free(memory[i].want);
  }
}

CASE(random_lists_of_casts_match_the_cpu) {
  int64_t tables = 0;
  for (uint64_t seed = 1; seed <= (uint64_t)test_scaled(1500, 150); seed++)
    check_list(seed, &tables);
  assert_true(tables > 0);
}

/* 200 tensors are one launch; more are more, or one by a table; none is none. */
CASE(many_tensors_are_one_launch) {
  enum { N = 203 };
  static float src[N][5];
  static uint16_t dst[N][5];
  rs_cast casts[N];
  for (int i = 0; i < N; i++) {
    for (int k = 0; k < 5; k++)
      src[i][k] = (float)(i + k);
    casts[i] =
        (rs_cast){.src = (char *)src[i], .dst = (char *)dst[i], .elements = 5, .from = RESHARD_F32, .to = RESHARD_BF16};
  }
  const int64_t launches[][2] = {{0, 0}, {1, 1}, {200, 1}, {201, 2}};
  for (int i = 0; i < 4; i++) {
    int64_t before = simt_get_counts().launches;
    assert_int_equal(rs_cast_launch(launches[i][0], casts, NULL, 0, NULL), 0);
    assert_int_equal(simt_get_counts().launches - before, launches[i][1]);
    int64_t tables = 0;
    before = simt_get_counts().launches;
    assert_int_equal(launch_by_table(&launchers[0], launches[i][0], casts, NULL, 0, &tables), 0);
    assert_int_equal(simt_get_counts().launches - before, launches[i][0] > 0);
    assert_int_equal(tables, launches[i][0] > 200);
  }
  assert_int_equal(dst[200][4], naive_cast(RESHARD_F32, RESHARD_BF16, 0x434c0000)); /* 204 */
  rs_cast_table table;
  casts[202].to = RESHARD_I32; /* what is wrong with a list is said by its launch */
  assert_int_equal(rs_cast_table_measure(N, casts, NULL, &table), 0);
  assert_int_equal(rs_cast_launch(N, casts, NULL, 0, NULL), 1);
}

/* Casts of one loop each: 96 loops are one launch without a table, and what has no numbers or no loop does not count.
 */
CASE(test_table_is_for_more) {
  enum { N = 201, LOOPS = 96 };
  static float src[N][4];
  static uint16_t dst[N][4];
  rs_cast casts[N];
  rs_axis axes[N];
  for (int i = 0; i < N; i++) {
    axes[i] = (rs_axis){2, 8, 4};
    casts[i] = (rs_cast){.src = (char *)src[i], .dst = (char *)dst[i], .elements = 2, .from = RESHARD_F32, .axes = i};
    casts[i].to = RESHARD_BF16;
    casts[i].naxes = i <= LOOPS;
  }
  rs_cast_table table;
  for (int more = 0; more < 2; more++) {
    int64_t before = simt_get_counts().launches;
    assert_int_equal(rs_cast_launch(LOOPS + more, casts, axes, 0, NULL), 0);
    assert_int_equal(simt_get_counts().launches - before, 1 + more);
    assert_int_equal(rs_cast_table_measure(LOOPS + more, casts, axes, &table) > 0, more);
  }
  axes[7].n = 1;
  assert_int_equal(rs_cast_table_measure(LOOPS + 1, casts, axes, &table), 0);
  casts[8].elements = 0;
  assert_int_equal(rs_cast_table_measure(N, casts, axes, &table), 0);
  assert_int_equal(rs_cast_launch(N, casts, axes, 0, NULL), 0);
  casts[8].elements = 1;
  size_t bytes = rs_cast_table_measure(N, casts, axes, &table);
  axes[7].n = 2;
  assert_true(bytes > 0 && rs_cast_table_measure(N, casts, axes, &table) - bytes <= 64);
  casts[8].elements = INT64_C(1) << 44; /* more tiles than a launch may have */
  assert_int_equal(rs_cast_table_measure(N, casts, axes, &table), 0);
}

static int refused;
static int refuse_once(void *user, simt_launch *launch) {
  if (refused++ == 0)
    return 2;
  simt_free(launch);
  return 0;
}

/* Of two launches the first one fails: there is no second one. */
CASE(test_launch_fails) {
  static float src;
  static uint16_t dst;
  rs_cast casts[201];
  for (int i = 0; i < 201; i++)
    casts[i] =
        (rs_cast){.src = (char *)&src, .dst = (char *)&dst, .elements = 1, .from = RESHARD_F32, .to = RESHARD_F16};
  simt_set_enqueue(refuse_once, NULL);
  assert_int_equal(rs_cast_launch(201, casts, NULL, 0, NULL), 2);
  assert_int_equal(refused, 1);
  simt_set_enqueue(NULL, NULL);
}

/* One cast with memory of its own, aligned to 16 bytes but for so many numbers; returns the blocks that it took. */
static int64_t blocks_of(bool small, reshard_dtype from, reshard_dtype to, int64_t elements, int naxes,
                         const rs_axis *axes, int64_t src_off, int64_t dst_off) {
  int64_t in = (int64_t)reshard_dtype_size(from), out = (int64_t)reshard_dtype_size(to);
  int64_t src_bytes = (elements + src_off) * in, dst_bytes = (elements + dst_off) * out;
  for (int i = 0; i < naxes; i++) {
    src_bytes += (axes[i].n - 1) * axes[i].src;
    dst_bytes += (axes[i].n - 1) * axes[i].dst;
  }
  char *src = malloc((size_t)src_bytes), *dst = malloc((size_t)dst_bytes), *want = malloc((size_t)dst_bytes);
  fill_random(src, src_bytes);
  memset(dst, 0x5a, (size_t)dst_bytes);
  memset(want, 0x5a, (size_t)dst_bytes);
  rs_cast cast = {.src = src + src_off * in,
                  .dst = want + dst_off * out,
                  .elements = elements,
                  .from = (int32_t)from,
                  .to = (int32_t)to,
                  .naxes = naxes};
  cast_expect(&cast, axes, cast.dst);
  cast.dst = dst + dst_off * out;
  int64_t before = simt_get_counts().blocks;
  assert_int_equal(launchers[small].launch(1, &cast, axes, 0, NULL), 0);
  assert_memory_equal(dst, want, (size_t)dst_bytes);
  free(src);
  free(dst);
  free(want);
  return simt_get_counts().blocks - before;
}

/* Data aligned on both sides goes 16 bytes at a time: as many blocks as that. A single row whose last tile is full
 * but for its last numbers has ends. */
CASE(aligned_data_goes_16_bytes_at_a_time) {
  const rs_axis aligned = {16, 4112, 2056}, shifted = {16, 4112, 2054};
  assert_int_equal(blocks_of(false, RESHARD_F32, RESHARD_BF16, 16384, 0, NULL, 0, 0), 2);
  assert_int_equal(blocks_of(false, RESHARD_F32, RESHARD_BF16, 16384, 0, NULL, 1, 1), 3);
  assert_int_equal(blocks_of(false, RESHARD_F32, RESHARD_BF16, 16384, 0, NULL, 0, 1), 8);
  assert_int_equal(blocks_of(false, RESHARD_F32, RESHARD_BF16, 1024, 1, &aligned, 0, 0), 2);
  assert_int_equal(blocks_of(false, RESHARD_F32, RESHARD_BF16, 1024, 1, &shifted, 0, 0), 8);
  assert_int_equal(blocks_of(false, RESHARD_F32, RESHARD_BF16, 16383, 0, NULL, 0, 0), 2);
  assert_int_equal(blocks_of(false, RESHARD_F16, RESHARD_F32, 32767, 0, NULL, 0, 0), 4);
  assert_int_equal(blocks_of(false, RESHARD_F8_E4M3, RESHARD_F32, 16383, 0, NULL, 0, 0), 2);
}

/* As many loops as there is room for, and one more; as many numbers as a part may have. */
CASE(casts_with_many_loops_are_cut_in_launches) {
  enum { MOST = 12 };
  rs_axis axes[MOST + 1];
  for (int i = 0; i <= MOST; i++)
    axes[i] = (rs_axis){2, INT64_C(16) << i, INT64_C(8) << (MOST - 1 - i % MOST)};
  assert_int_equal(blocks_of(false, RESHARD_F32, RESHARD_F16, 4, MOST, axes, 0, 0), 2);
  const rs_axis rows = {30, 404, 202};
  assert_int_equal(blocks_of(true, RESHARD_F32, RESHARD_F16, 100, 1, &rows, 0, 0), 2);
  rs_cast cast = {.elements = 1, .from = RESHARD_F32, .to = RESHARD_F16, .naxes = MOST + 1};
  assert_int_equal(rs_cast_launch(1, &cast, axes, 0, NULL), 1);
}

/* Source and destination are the same memory. */
CASE(test_in_place) {
  uint16_t memory[1000], want[1000];
  for (int i = 0; i < 1000; i++) {
    memory[i] = (uint16_t)draw();
    want[i] = (uint16_t)(i < 3 ? memory[i] : naive_cast(RESHARD_F16, RESHARD_BF16, memory[i]));
  }
  rs_cast cast = {.src = (char *)(memory + 3),
                  .dst = (char *)(memory + 3),
                  .elements = 997,
                  .from = RESHARD_F16,
                  .to = RESHARD_BF16};
  assert_int_equal(rs_cast_launch(1, &cast, NULL, 0, NULL), 0);
  assert_memory_equal(memory, want, sizeof want);
}

RUN_CASES
