/* Copies that convert, casts and blocks with scales, whose sides lie in memory in any order of their dims, against the
 * definition: sizes around tiles and blocks, addresses off lines and off elements, boxes that begin and end within
 * blocks, by every instruction set, with and without stores past the cache. Nothing else is written. */
#include "bench/cli/naive_cast.h"
#include "bench/cli/naive_scaled.h"
#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "device/cpu/cpu.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIMS = 3, UNTOUCHED = 0xa5, LINE = 64 };

/* Matrices of rows and columns. */
typedef struct blocks_case {
  int64_t n[DIMS], block[2], skip[2];
  reshard_dtype wide, scale;
  bool back, streaming, lines; /* rows begin at lines */
  int64_t special;             /* one of so many numbers is infinite or none; 0: none is */
} blocks_case;

/* Dims in one order, outermost first, with gaps. */
typedef struct blocks_side {
  int64_t width, stride[DIMS], bytes;
  char *all, *at;
} blocks_side;

static void allocate_side(blocks_side *s, int64_t begin) {
  s->bytes += begin + LINE;
  assert_int_equal(posix_memalign((void **)&s->all, LINE, (size_t)s->bytes), 0);
  memset(s->all, UNTOUCHED, (size_t)s->bytes);
  s->at = s->all + begin;
}

static void make_side(rng *r, blocks_side *s, int64_t width, const int64_t *n) {
  int order[DIMS] = {0, 1, 2};
  for (int i = DIMS - 1; i > 0; i--) {
    int j = (int)rng_below(r, i + 1), swap = order[i];
    order[i] = order[j];
    order[j] = swap;
  }
  s->width = s->bytes = width;
  for (int i = DIMS - 1; i >= 0; i--) {
    s->stride[order[i]] = s->bytes;
    s->bytes *= n[order[i]];
    if (i > 0 && rng_one_in(r, 3)) /* lines, or any elements */
      s->bytes = rng_one_in(r, 2) ? rs_ceil_div(s->bytes, LINE) * LINE : s->bytes + rng_below(r, 50) * width;
  }
  allocate_side(s, LINE + rng_below(r, LINE));
}

/* Rows so many bytes apart. */
static void make_rows(blocks_side *s, int64_t width, const int64_t *n, int64_t step, int64_t begin) {
  *s = (blocks_side){width, {n[1] * step, step, width}, n[0] * n[1] * step, NULL, NULL};
  allocate_side(s, begin);
}

static char *find_number(const blocks_side *s, int64_t m, int64_t r, int64_t k) {
  return s->at + m * s->stride[0] + r * s->stride[1] + k * s->stride[2];
}

static void draw_wide(rng *r, const blocks_case *c, char *to) {
  int kind = (int)rng_below(r, 200);
  uint32_t bits = (uint32_t)rng_below(r, INT64_C(1) << 32);
  float number = ldexpf((float)(int32_t)bits, kind % 40 - 50);
  if (kind > 1 || !rng_one_in(r, 50)) /* else any bits, infinity and NaN among them */
    memcpy(&bits, &number, sizeof bits);
  if (c->special > 0 && rng_one_in(r, c->special))
    bits = 0x7f800000 + (uint32_t)rng_below(r, 2);
  bits = c->wide == RESHARD_F32 ? bits : (uint32_t)naive_cast(RESHARD_F32, c->wide, bits);
  memcpy(to, &bits, reshard_dtype_size(c->wide));
}

static void draw_scale(rng *r, const blocks_case *c, char *to) {
  float scale = ldexpf(1 + (float)rng_below(r, 8) / 8, (int)rng_below(r, 40) - 20);
  uint32_t bits = naive_scale_bits(scale, c->scale);
  if (rng_one_in(r, 100))
    bits = (uint32_t)rng_below(r, INT64_C(1) << 32);
  memcpy(to, &bits, reshard_dtype_size(c->scale));
}

/* NaN as casts have it. */
static uint32_t one_nan(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fffffff : bits; }

static float stored_scale(const blocks_case *c, const char *scale) {
  return c->scale == RESHARD_F8_E8M0 && (uint8_t)*scale == 255 ? NAN : naive_stored_scale(scale, c->scale, 0);
}

/* All numbers of one block. */
static void convert_block(const blocks_case *c, const blocks_side *wide, const blocks_side *values, char *scale,
                          int64_t m, const int64_t *lo, const int64_t *hi) {
  float most = 0;
  for (int64_t r = lo[0]; r < hi[0]; r++)
    for (int64_t k = lo[1]; k < hi[1]; k++)
      most = c->back ? most : naive_most(most, naive_wide(find_number(wide, m, r, k), c->wide, 0));
  if (!c->back) {
    uint32_t bits = one_nan(naive_scale_bits(naive_scale(most, c->scale), c->scale));
    memcpy(scale, &bits, reshard_dtype_size(c->scale));
  }
  for (int64_t r = lo[0]; r < hi[0]; r++)
    for (int64_t k = lo[1]; k < hi[1]; k++) {
      char *number = find_number(wide, m, r, k), *value = find_number(values, m, r, k);
      if (!c->back) {
        *value = (char)naive_scaled(naive_wide(number, c->wide, 0), naive_scale(most, c->scale));
        continue;
      }
      uint32_t bits = naive_unscaled((unsigned char)*value, stored_scale(c, scale), c->wide);
      bits = c->wide == RESHARD_F32 ? one_nan(bits) : bits;
      memcpy(number, &bits, reshard_dtype_size(c->wide));
    }
}

static void convert_by_definition(const blocks_case *c, const blocks_side *wide, const blocks_side *values,
                                  char *scales, const int64_t *scale_stride) {
  for (int64_t m = 0; m < c->n[0]; m++)
    for (int64_t r = 0, r1; r < c->n[1]; r = r1) {
      r1 = rs_min(r + c->block[0] - (r + c->skip[0]) % c->block[0], c->n[1]);
      for (int64_t k = 0, k1; k < c->n[2]; k = k1) {
        k1 = rs_min(k + c->block[1] - (k + c->skip[1]) % c->block[1], c->n[2]);
        convert_block(c, wide, values,
                      scales + m * scale_stride[0] + (r + c->skip[0]) / c->block[0] * scale_stride[1] +
                          (k + c->skip[1]) / c->block[1] * scale_stride[2],
                      m, (int64_t[]){r, k}, (int64_t[]){r1, k1});
      }
    }
}

static void run_copies(reshard_isa isa, const rs_copies *copies, bool streaming) {
  rs_device *device;
  rs_program *program;
  assert_int_equal(rs_device_cpu_create(1, isa, &device), RESHARD_SUCCESS);
  assert_int_equal(device->work->compile(device, copies, streaming ? INT64_MAX : 1, &program), RESHARD_SUCCESS);
  assert_int_equal(device->work->run(device, 1, &program, NULL), RESHARD_SUCCESS);
  device->work->release(device, program);
  device->destroy(device);
}

static void convert_by_copies(reshard_isa isa, const blocks_case *c, const blocks_side *wide, const blocks_side *values,
                              char *scales, const int64_t *scale_stride) {
  rs_copies copies = {0};
  rs_block_box box = {.wide = wide->at, .values = values->at, .scales = scales};
  const rs_block_axis axis = {c->n[0], wide->stride[0], values->stride[0], scale_stride[0]};
  box.wide_dtype = c->wide;
  box.scale_dtype = c->scale;
  for (int i = 0; i < 2; i++) {
    box.n[i] = c->n[i + 1];
    box.block[i] = c->block[i];
    box.skip[i] = c->skip[i];
    box.wide_stride[i] = wide->stride[i + 1];
    box.value_stride[i] = values->stride[i + 1];
    box.scale_stride[i] = scale_stride[i + 1];
  }
  assert_int_equal(rs_copies_scale(&copies, &box, c->back, 1, &axis), RESHARD_SUCCESS);
  run_copies(isa, &copies, c->streaming);
  rs_copies_free(&copies);
}

static char *copy_bytes(const char *from, int64_t bytes) {
  char *copy = cli_alloc(bytes, 1);
  memcpy(copy, from, (size_t)bytes);
  return copy;
}

static void expect_bytes(const blocks_case *c, reshard_isa isa, const char *what, const char *found, const char *wanted,
                         int64_t bytes) {
  for (int64_t i = 0; i < bytes; i++)
    if (found[i] != wanted[i])
      fail_msg("%s: %s%s, %lld x %lld x %lld in blocks of %lld x %lld: byte %lld of %s is %02x, not %02x",
               reshard_isa_string(isa), reshard_dtype_string(c->wide), c->back ? " back" : "", (long long)c->n[0],
               (long long)c->n[1], (long long)c->n[2], (long long)c->block[0], (long long)c->block[1], (long long)i,
               what, (unsigned char)found[i], (unsigned char)wanted[i]);
}

/* The same case by the definition, and by each instruction set. */
static void check_blocks(rng *r, const blocks_case *c) {
  const int64_t scale = (int64_t)reshard_dtype_size(c->scale), down = rs_ceil_div(c->n[1] + c->skip[0], c->block[0]);
  const int64_t across = rs_ceil_div(c->n[2] + c->skip[1], c->block[1]);
  const int64_t scale_stride[] = {down * across * scale, across * scale, scale}, bytes = c->n[0] * scale_stride[0];
  blocks_side wide, values, made;
  const int64_t width = (int64_t)reshard_dtype_size(c->wide), line = rs_ceil_div(c->n[2], LINE) * LINE;
  if (c->lines) {
    make_rows(&wide, width, c->n, line * width, LINE + rng_below(r, LINE));
    const int64_t apart = rng_one_in(r, 4) ? 2 : 1;
    make_rows(&values, apart, c->n, line * apart, LINE);
  } else {
    make_side(r, &wide, width, c->n);
    make_side(r, &values, 1, c->n);
  }
  char *scales = cli_alloc(bytes, 1);
  for (int64_t m = 0; m < c->n[0]; m++)
    for (int64_t i = 0; i < c->n[1]; i++)
      for (int64_t k = 0; k < c->n[2]; k++)
        if (c->back)
          *find_number(&values, m, i, k) = (char)rng_below(r, 256);
        else
          draw_wide(r, c, find_number(&wide, m, i, k));
  for (int64_t i = 0; i < bytes && c->back; i += scale)
    draw_scale(r, c, scales + i);
  made = c->back ? wide : values;
  char *before = copy_bytes(made.all, made.bytes), *made_scales = copy_bytes(scales, bytes);
  convert_by_definition(c, &wide, &values, scales, scale_stride);
  char *wanted = copy_bytes(made.all, made.bytes);
  for (int isa = RESHARD_ISA_AUTO + 1; isa < RESHARD_ISA_COUNT; isa++) {
    if (!reshard_isa_available((reshard_isa)isa))
      continue;
    memcpy(made.all, before, (size_t)made.bytes);
    convert_by_copies((reshard_isa)isa, c, &wide, &values, made_scales, scale_stride);
    expect_bytes(c, (reshard_isa)isa, "the numbers", made.all, wanted, made.bytes);
    expect_bytes(c, (reshard_isa)isa, "the scales", made_scales, scales, bytes);
  }
  free(before);
  free(wanted);
  free(made_scales);
  free(scales);
  free(wide.all);
  free(values.all);
}

static const reshard_dtype wides[] = {RESHARD_F32, RESHARD_F16, RESHARD_BF16};

CASE(blocks_in_any_order_of_memory_are_those_of_the_definition) {
  static const int64_t blocks[][2] = {{128, 128}, {1, 128}, {1, 32}, {128, 1}, {32, 1}, {8, 8}, {1, 1}, {5, 7}};
  for (int64_t i = 0, n = test_scaled(120, 24); i < n; i++) {
    rng r;
    rng_seed(&r, 7000 + (uint64_t)i);
    const int64_t *block = blocks[i % (int64_t)(sizeof blocks / sizeof *blocks)];
    blocks_case c = {.n = {rng_in(&r, 1, 3), rng_in(&r, 1, 70), rng_in(&r, 1, 70)},
                     .block = {block[0], block[1]},
                     .wide = wides[rng_below(&r, 3)],
                     .scale = rng_one_in(&r, 2) ? RESHARD_F32 : RESHARD_F8_E8M0,
                     .back = rng_one_in(&r, 2),
                     .streaming = rng_one_in(&r, 2)};
    c.n[rng_below(&r, DIMS)] = rng_in(&r, 60, 300); /* more than a block, and than a tile's rows */
    for (int d = 0; d < 2 && c.back; d++)
      c.skip[d] = rng_below(&r, block[d]);
    if (i % 3 == 0)
      c.n[2] = block[1]; /* as many as a block has; back, of two */
    check_blocks(&r, &c);
  }
}

/* Tiles have 128 rows and 512 columns, parts of what is scaled 512 or 1,024 columns. */
CASE(blocks_of_several_tiles_are_those_of_the_definition) {
  static const int64_t blocks[][2] = {{128, 128}, {1, 128}, {128, 1}, {2, 16384}, {32768, 1}, {3, 2}};
  enum { N = sizeof blocks / sizeof *blocks };
  for (int64_t i = 0; i < 4 * N; i++) { /* each of both ways, with and without stores past the cache */
    rng r;
    rng_seed(&r, 9000 + (uint64_t)i);
    blocks_case c = {.n = {1, rng_in(&r, 120, 280), rng_in(&r, 500, 1100)},
                     .block = {blocks[i % N][0], blocks[i % N][1]},
                     .wide = wides[i % 3],
                     .scale = i % 2 == 0 ? RESHARD_F32 : RESHARD_F8_E8M0,
                     .back = i / N % 2 == 0,
                     .streaming = i / N < 2};
    if (rng_one_in(&r, 2)) {
      int64_t swap = c.n[1];
      c.n[1] = c.n[2];
      c.n[2] = swap;
    }
    check_blocks(&r, &c);
  }
}

/* Rows that are longer and shorter than what is scaled together, in one box or several, which are one task. */
CASE(blocks_whose_rows_begin_at_lines_are_those_of_the_definition) {
  static const int64_t blocks[][2] = {{128, 128}, {1, 32}, {5, 64}, {16, 192}, {128, 96}, {1, 128}};
  for (int64_t i = 0; i < 30; i++) {
    rng r;
    rng_seed(&r, 9500 + (uint64_t)i);
    const int64_t *block = blocks[i % (int64_t)(sizeof blocks / sizeof *blocks)];
    blocks_case c = {.n = {rng_in(&r, 1, 4), rng_in(&r, 1, 300), rng_in(&r, 1, rng_one_in(&r, 3) ? 300 : 2100)},
                     .block = {block[0], block[1]},
                     .wide = wides[rng_below(&r, 3)],
                     .scale = rng_one_in(&r, 2) ? RESHARD_F32 : RESHARD_F8_E8M0,
                     .streaming = i % 5 > 0,
                     .lines = true,
                     .special = rng_one_in(&r, 3) ? 3000 : 0};
    if (rng_one_in(&r, 2))
      c.n[2] = rs_ceil_div(c.n[2], block[1]) * block[1];
    check_blocks(&r, &c);
  }
}

/* Blocks of a matrix, each with its scale before its values, as a message has them. */
typedef struct block_message {
  int64_t down, across, bytes; /* bytes of a block */
  blocks_side wide;
  char *all, *at;
} block_message;

static void convert_message(const blocks_case *c, const block_message *m) {
  const int64_t scale = (int64_t)reshard_dtype_size(c->scale);
  for (int64_t i = 0; i < m->down * m->across; i++) {
    blocks_side wide = m->wide, values = {1, {0, c->block[1], 1}, 0, NULL, m->at + i * m->bytes + scale};
    wide.at = find_number(&m->wide, 0, i / m->across * c->block[0], i % m->across * c->block[1]);
    convert_block(c, &wide, &values, m->at + i * m->bytes, 0, (int64_t[]){0, 0}, c->block);
  }
}

/* turned: blocks down before those across. */
static void copy_message(reshard_isa isa, const blocks_case *c, const block_message *m, bool turned) {
  rs_copies copies = {0};
  const int64_t *wide = m->wide.stride, scale = (int64_t)reshard_dtype_size(c->scale);
  const rs_block_axis down = {m->down, c->block[0] * wide[1], m->across * m->bytes, m->across * m->bytes};
  const rs_block_axis across = {m->across, c->block[1] * wide[2], m->bytes, m->bytes};
  const rs_block_axis axes[] = {turned ? across : down, turned ? down : across};
  const rs_block_box box = {.wide = m->wide.at,
                            .values = m->at + scale,
                            .scales = m->at,
                            .wide_dtype = c->wide,
                            .scale_dtype = c->scale,
                            .n = {c->block[0], c->block[1]},
                            .block = {c->block[0], c->block[1]},
                            .wide_stride = {wide[1], wide[2]},
                            .value_stride = {c->block[1], 1}};
  assert_int_equal(rs_copies_scale(&copies, &box, c->back, 2, axes), RESHARD_SUCCESS);
  run_copies(isa, &copies, c->streaming);
  rs_copies_free(&copies);
}

CASE(blocks_one_behind_the_other_are_those_of_the_definition) {
  static const int64_t blocks[][2] = {{128, 128}, {5, 64}, {1, 128}, {16, 96}, {128, 1}, {7, 3}};
  for (int64_t i = 0; i < 96; i++) {
    rng r;
    rng_seed(&r, 9700 + (uint64_t)i);
    const int64_t *block = blocks[i % (int64_t)(sizeof blocks / sizeof *blocks)];
    blocks_case c = {.block = {block[0], block[1]},
                     .wide = wides[rng_below(&r, 3)],
                     .scale = rng_one_in(&r, 2) ? RESHARD_F32 : RESHARD_F8_E8M0,
                     .back = i % 4 < 2,
                     .streaming = rng_one_in(&r, 2)};
    const int64_t scale = (int64_t)reshard_dtype_size(c.scale), width = (int64_t)reshard_dtype_size(c.wide);
    block_message m = {rng_in(&r, 1, block[0] < 32 ? 12 : 4),
                       rng_in(&r, 1, block[1] < 32 ? 70 : 20),
                       scale + block[0] * block[1],
                       {0},
                       NULL,
                       NULL};
    const int64_t n[DIMS] = {1, m.down * block[0], m.across * block[1]}, bytes = m.down * m.across * m.bytes;
    memcpy(c.n, n, sizeof n);
    if (rng_one_in(&r, 3))
      make_side(&r, &m.wide, width, n);
    else
      make_rows(&m.wide, width, n, (n[2] + rng_below(&r, 3)) * width, LINE + rng_below(&r, LINE));
    m.all = cli_alloc(bytes + LINE, 1);
    m.at = m.all + rng_below(&r, LINE);
    for (int64_t k = 0; k < m.down * m.across && c.back; k++) {
      draw_scale(&r, &c, m.at + k * m.bytes);
      for (int64_t b = scale; b < m.bytes; b++)
        m.at[k * m.bytes + b] = (char)rng_below(&r, 256);
    }
    for (int64_t k = 0; k < n[1] * n[2] && !c.back; k++)
      draw_wide(&r, &c, find_number(&m.wide, 0, k / n[2], k % n[2]));
    char *wide = copy_bytes(m.wide.all, m.wide.bytes), *message = copy_bytes(m.at, bytes);
    convert_message(&c, &m);
    char *wanted_wide = copy_bytes(m.wide.all, m.wide.bytes), *wanted = copy_bytes(m.at, bytes);
    for (int isa = RESHARD_ISA_AUTO + 1; isa < RESHARD_ISA_COUNT; isa++) {
      if (!reshard_isa_available((reshard_isa)isa))
        continue;
      memcpy(m.wide.all, wide, (size_t)m.wide.bytes);
      memcpy(m.at, message, (size_t)bytes);
      copy_message((reshard_isa)isa, &c, &m, i % 5 == 0);
      expect_bytes(&c, (reshard_isa)isa, "the numbers", m.wide.all, wanted_wide, m.wide.bytes);
      expect_bytes(&c, (reshard_isa)isa, "the message", m.at, wanted, bytes);
    }
    free(wide);
    free(message);
    free(wanted_wide);
    free(wanted);
    free(m.wide.all);
    free(m.all);
  }
}

static void check_cast(rng *r, reshard_dtype from, reshard_dtype to, const int64_t *n, blocks_side src, blocks_side dst,
                       bool streaming) {
  const int64_t width = (int64_t)reshard_dtype_size(from), to_width = (int64_t)reshard_dtype_size(to);
  rs_axis axes[DIMS];
  rs_copies copies = {0};
  for (int64_t i = 0; i < src.bytes; i++)
    src.all[i] = (char)rng_below(r, 256);
  char *wanted = copy_bytes(dst.all, dst.bytes), *before = copy_bytes(dst.all, dst.bytes);
  for (int64_t i = 0; i < n[0] * n[1] * n[2]; i++) {
    const int64_t m = i / n[2] / n[1], row = i / n[2] % n[1], column = i % n[2];
    uint64_t bits = 0;
    memcpy(&bits, find_number(&src, m, row, column), (size_t)width);
    bits = naive_cast(from, to, bits);
    memcpy(wanted + (find_number(&dst, m, row, column) - dst.all), &bits, (size_t)to_width);
  }
  for (int d = 0; d < DIMS; d++)
    axes[d] = (rs_axis){n[d], src.stride[d], dst.stride[d]};
  assert_int_equal(rs_copies_convert(&copies, src.at, dst.at, from, to, DIMS, axes), RESHARD_SUCCESS);
  for (int isa = RESHARD_ISA_AUTO + 1; isa < RESHARD_ISA_COUNT; isa++) {
    if (!reshard_isa_available((reshard_isa)isa))
      continue;
    memcpy(dst.all, before, (size_t)dst.bytes);
    run_copies((reshard_isa)isa, &copies, streaming);
    if (memcmp(dst.all, wanted, (size_t)dst.bytes) != 0)
      fail_msg("%s: %s to %s, %lld x %lld x %lld", reshard_isa_string((reshard_isa)isa), reshard_dtype_string(from),
               reshard_dtype_string(to), (long long)n[0], (long long)n[1], (long long)n[2]);
  }
  rs_copies_free(&copies);
  free(wanted);
  free(before);
  free(src.all);
  free(dst.all);
}

static const reshard_dtype dtypes[] = {RESHARD_F8_E4M3, RESHARD_F8_E5M2, RESHARD_F16,
                                       RESHARD_BF16,    RESHARD_F32,     RESHARD_F64};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

CASE(casts_in_any_order_of_memory_are_those_of_the_definition) {
  for (int64_t i = 0, n = test_scaled(72, 36); i < n; i++) {
    rng r;
    rng_seed(&r, 11000 + (uint64_t)i);
    int64_t extent[DIMS] = {rng_in(&r, 1, 3), rng_in(&r, 1, 70), rng_in(&r, 1, 70)};
    extent[rng_below(&r, DIMS)] = rng_in(&r, 60, 400);
    reshard_dtype from = dtypes[i % DTYPES], to = dtypes[i / DTYPES % DTYPES];
    if (from == to)
      continue;
    blocks_side src, dst;
    make_side(&r, &src, (int64_t)reshard_dtype_size(from), extent);
    make_side(&r, &dst, (int64_t)reshard_dtype_size(to), extent);
    check_cast(&r, from, to, extent, src, dst, rng_one_in(&r, 2));
  }
}

/* Several rows take turns where their destinations begin alike in their lines. */
CASE(long_rows_far_apart_are_cast_past_the_cache) {
  for (int64_t i = 0, n = test_scaled(72, 36); i < n; i++) {
    rng r;
    rng_seed(&r, 13000 + (uint64_t)i);
    int64_t extent[DIMS] = {rng_in(&r, 1, 2), rng_in(&r, 1, 20), rng_in(&r, 256, 1500)};
    reshard_dtype from = dtypes[i % DTYPES], to = dtypes[i / DTYPES % DTYPES];
    if (from == to)
      continue;
    const int64_t width = (int64_t)reshard_dtype_size(from), to_width = (int64_t)reshard_dtype_size(to);
    const int64_t lines = rs_ceil_div(extent[2] * to_width, LINE) + rng_below(&r, 3);
    blocks_side src, dst;
    make_rows(&src, width, extent, extent[2] * width + 4096 + rng_below(&r, 100), LINE + rng_below(&r, LINE));
    make_rows(&dst, to_width, extent, rng_one_in(&r, 6) ? (extent[2] + 1) * to_width : lines * LINE,
              LINE + rng_below(&r, LINE));
    check_cast(&r, from, to, extent, src, dst, true);
  }
}

RUN_CASES
