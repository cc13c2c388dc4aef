/* Box copies that convert numbers, run without a GPU, against conversions of one number after the other: casts of any
 * shape, blocks with scales, and parts of blocks back, at any address. */
#include "device/cuda/tiles.h"

#include "bench/cli/naive_cast.h"
#include "bench/cli/naive_scaled.h"
#include "kernels/box_convert.h"
#include "simt.h"
#include "support/fixtures/draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fixtures/case.h"

#if defined(__SANITIZE_ADDRESS__)
enum { CASES = 150 };
#else
enum { CASES = 200 };
#endif
enum { ROOM = 1 << 19, SMS = 4, AXES = 6 };

static uint64_t seed;
/* Tiles by unit (1, 4), of which the source, the destination, both or none are aligned; transposed ones, and blocks of
 * which half waits in shared memory, by unit; boxes of more than a warp, held several at a time; parts of blocks. */
static int64_t hits[2][4], turned[2], waiting[2], large, several, parts;

static char *from, *to, *scales, *wanted, *wanted_scales, *unused_scales; /* ROOM bytes, aligned to 256 */

static uint64_t bits_at(const char *at, reshard_dtype dtype) {
  uint64_t bits = 0;
  memcpy(&bits, at, reshard_dtype_size(dtype));
  return bits;
}

/* Random bits, or numbers of usual sizes with zeros, of which few are infinite or NaN. */
static void fill_numbers(char *memory, reshard_dtype dtype, int64_t bytes) {
  const int64_t width = (int64_t)reshard_dtype_size(dtype);
  const bool any = dtype == RESHARD_F8_E8M0 || below(3) == 0;
  const int64_t drawn = rs_min(4093, bytes / width) * width; /* and again */
  for (int64_t i = 0; i < drawn; i += width) {
    uint64_t bits = draw();
    if (!any) {
      double number = ldexp((double)(int32_t)bits, (int)(bits >> 40) % 24 - 40) * (bits >> 60 != 0);
      memcpy(&bits, &number, sizeof bits);
      bits = dtype == RESHARD_F64 ? bits : naive_cast(RESHARD_F64, dtype, bits);
    }
    if (dtype == RESHARD_F8_E8M0) /* the last code is NaN, of which single numbers know nothing */
      bits = bits % 255;
    memcpy(memory + i, &bits, (size_t)width);
  }
  for (int64_t i = drawn; i < bytes; i += drawn)
    memcpy(memory + i, memory, (size_t)rs_min(drawn, bytes - i));
}

/* Tiles of units of 16 bytes of the wider side: of which a thread has units of some boxes, or of one; without scales,
 * with such that are made, or used, and transposed; those that are split; and tiles of more boxes than threads hold at
 * one time, by the units that each has of one. */
static int64_t vectors[2][4], split, rounds[3];

static void note_vectors(const rs_box_tables *tables) {
  for (int64_t i = 0; i < tables->tile[RS_BOX_VECTORS].n; i++) {
    rs_box_vectors v;
    memcpy(&v, tables->axis.at + tables->tile[RS_BOX_VECTORS].at[i].shape, sizeof v);
    const int scale = v.turned ? 3 : v.scale == 0 ? 0 : v.to == RESHARD_F8_E4M3 ? 1 : 2;
    vectors[1 << v.turns >= RS_BOX_CONVERT_VECTORS][scale]++;
    split += v.split;
    const uint32_t boxes = v.inner_n * tables->axis.at[tables->tile[RS_BOX_VECTORS].at[i].count].n;
    const int64_t threads = rs_max(RS_BOX_THREADS, tables->vector_threads);
    if (!v.turned && v.turns < 3 && boxes > (threads >> v.lanes) * (RS_BOX_CONVERT_VECTORS / 2 >> v.turns))
      rounds[v.turns]++;
  }
}

static void note_hits(const rs_box_tables *tables) {
  note_vectors(tables);
  for (int64_t i = 0; i < tables->tile[RS_BOX_CONVERTS].n; i++) {
    const rs_box_tile *tile = &tables->tile[RS_BOX_CONVERTS].at[i];
    const rs_box_shape *shape = &tables->shape.at[tile->shape];
    const rs_box_axis *more = tables->axis.at + shape->more;
    const int unit = shape->kind == RS_BOX_CONVERT_4;
    hits[unit][shape->grain]++;
    turned[unit] += shape->turned;
    waiting[unit] += tables->kept == RS_BOX_CONVERT_KEPT && 1 << more[1].magic > RS_BOX_CONVERT_UNITS;
    large += more[1].n > 5;
    several += shape->inner.n * tables->axis.at[tile->count].n > 1 && more[1].magic == 0;
  }
}

/* A batch that copies nothing is full: the same part is in it as often as there is room. */
static void launch(const rs_box_tables *tables, const rs_box_part *part, const uint32_t *closed) {
  for (int c = 0; c < RS_BOX_CONVERTS; c++)
    assert_int_equal(tables->tile[c].n, 0);
  for (int c = RS_BOX_CONVERTS; c < RS_BOX_CLASSES; c++) {
    rs_box_batch batch = {0};
    if (part[c].count == 0)
      continue;
    *(below(2) == 0 ? &batch.closed : &batch.closed_late) = closed;
    for (int k = closed != NULL && *closed != 0 ? RS_BOX_PARTS : 1; k > 0; k--)
      assert_true(rs_box_batch_add(&batch, &part[c]));
    rs_box_batch_close(&batch);
    const uint32_t most = below(2) == 0 ? 0 : 1 + (uint32_t)below(5);
    assert_int_equal(
        c == RS_BOX_VECTORS ? rs_box_vectors_launch(&batch, most, NULL) : rs_box_convert_launch(&batch, most, NULL), 0);
  }
}

static bool closes; /* every copy is closed first, not few of them */

static void run(rs_copies *copies) {
  static const uint32_t words[] = {0, 1};
  static const int64_t tiles[] = {0, 4096, 8192, RS_BOX_TILE, RS_BOX_TILE_MOST};
  rs_box_tables tables = {0};
  rs_box_part part[RS_BOX_CLASSES];
  assert_int_equal(rs_box_tables_make(&tables, copies, &(rs_box_policy){SMS, tiles[below(5)], 1, 0}), 0);
  char *memory = malloc((size_t)rs_box_tables_bytes(&tables) + 1);
  rs_box_tables_write(&tables, memory, memory, part);
  note_hits(&tables);
  simt_set_order(seed % 3 == 0 ? 0 : seed);
  if (closes || below(8) == 0) {
    launch(&tables, part, &words[1]);
    for (int64_t i = 0; i < ROOM; i++)
      assert_true(to[i] == 0x5a && scales[i] == unused_scales[i]);
  }
  launch(&tables, part, below(2) == 0 ? NULL : &words[0]);
  free(memory);
  rs_box_tables_free(&tables);
  rs_copies_free(copies);
}

static void compare(const char *what) {
  for (int64_t i = 0; i < ROOM; i++)
    if (to[i] != wanted[i])
      fail_msg("seed %llu, %s: byte %lld is %02x, not %02x", (unsigned long long)seed, what, (long long)i, to[i] & 255,
               wanted[i] & 255);
}

/* --- Casts --- */

/* Loops of both sides, from the inside out with gaps; those of the source in the same or in another order. */
static int draw_loops(int64_t in, int64_t out, rs_axis *axes) {
  const int n = (int)between(1, AXES);
  int64_t numbers = 1, extent[2] = {in, out};
  int order[AXES];
  for (int i = n - 1; i >= 0; i--) {
    const int64_t most = below(6) == 0 ? 9000 : below(2) == 0 ? 70 : 8;
    axes[i].n = between(1, rs_max(1, rs_min(most, (below(4) == 0 ? 12000 : 2000) / numbers)));
    numbers *= axes[i].n;
    axes[i].dst = extent[1] + (below(3) == 0 ? below(5) * out : 0);
    extent[1] = axes[i].dst * axes[i].n;
    order[i] = i;
  }
  for (int i = n - 1; i > 0 && below(2) == 0; i--) {
    int j = (int)below(i + 1), swap = order[i];
    order[i] = order[j];
    order[j] = swap;
  }
  for (int k = n - 1; k >= 0; k--) {
    rs_axis *axis = &axes[order[k]];
    axis->src = extent[0] + (below(3) == 0 ? below(5) * in : 0);
    extent[0] = axis->src * axis->n;
  }
  return extent[0] < ROOM - 64 && extent[1] < ROOM - 64 ? n : draw_loops(in, out, axes);
}

static void cast_by_definition(const char *src, char *dst, reshard_dtype in, reshard_dtype out, int n,
                               const rs_axis *axes) {
  if (n == 0) {
    uint64_t bits = naive_cast(in, out, bits_at(src, in));
    memcpy(dst, &bits, reshard_dtype_size(out));
    return;
  }
  for (int64_t i = 0; i < axes->n; i++)
    cast_by_definition(src + i * axes->src, dst + i * axes->dst, in, out, n - 1, axes + 1);
}

static const reshard_dtype dtypes[] = {RESHARD_F64,  RESHARD_F32,     RESHARD_F16,
                                       RESHARD_BF16, RESHARD_F8_E4M3, RESHARD_F8_E5M2};

/* Addresses are `src` and `dst` behind those that are aligned, or where axes begin that go back. */
static void check_cast(reshard_dtype in, reshard_dtype out, int n, const rs_axis *axes, int64_t src, int64_t dst) {
  rs_copies copies = {0};
  fill_numbers(from + src % 16, in, ROOM - 64);
  memset(to, 0x5a, ROOM);
  memset(wanted, 0x5a, ROOM);
  memset(scales, 0x5a, ROOM);
  memset(unused_scales, 0x5a, ROOM);
  cast_by_definition(from + src, wanted + dst, in, out, n, axes);
  assert_int_equal(rs_copies_convert(&copies, from + src, to + dst, in, out, n, axes), 0);
  run(&copies);
  compare("a cast");
}

CASE(casts_of_any_shape_have_the_bits_of_single_numbers) {
  for (int k = 0; k < CASES; k++) {
    draw_state = seed = 4300 + (uint64_t)k;
    const reshard_dtype in = dtypes[k % 6], out = dtypes[(k % 6 + 1 + k / 6 % 5) % 6];
    rs_axis axes[AXES];
    const int n = draw_loops((int64_t)reshard_dtype_size(in), (int64_t)reshard_dtype_size(out), axes);
    const int64_t src = below(3) == 0 ? below(16) : below(4) * 16, dst = below(3) == 0 ? below(16) : below(4) * 16;
    check_cast(in, out, n, axes, src, dst);
  }
}

CASE(casts_take_the_narrower_side_at_every_address) {
  static const reshard_dtype pairs[][2] = {
      {RESHARD_F32, RESHARD_BF16}, {RESHARD_F32, RESHARD_F8_E4M3}, {RESHARD_F16, RESHARD_F8_E5M2}};
  for (int k = 0; k < 3 * 2 * 16; k++) {
    draw_state = seed = 9900 + (uint64_t)k;
    const int back = k / 16 % 2, at = k % 16;
    const reshard_dtype in = pairs[k / 32][back], out = pairs[k / 32][!back];
    const rs_axis axis = {203, (int64_t)reshard_dtype_size(in), (int64_t)reshard_dtype_size(out)};
    check_cast(in, out, 1, &axis, back ? at : 0, back ? 0 : at);
  }
}

/* Of a matrix of which rows may have a gap, lie one before the other, and begin anywhere. */
CASE(transposed_casts_have_the_bits_of_single_numbers) {
  for (int k = 0; k < CASES / 8; k++) {
    draw_state = seed = 9500 + (uint64_t)k;
    const reshard_dtype in = dtypes[k % 6], out = dtypes[(k % 6 + 1 + k / 6 % 5) % 6];
    const int64_t from_width = (int64_t)reshard_dtype_size(in), to_width = (int64_t)reshard_dtype_size(out);
    const int64_t unit = below(4) == 0 ? 1 : 4, rows = between(2, 40) * unit, columns = between(2, 40) * unit;
    const int64_t from_line = (rows + below(3) * unit) * from_width, to_line = (columns + below(3) * unit) * to_width;
    rs_axis axes[2] = {{rows, from_width, to_line}, {columns, from_line, to_width}};
    int64_t src = below(3) == 0 ? below(16) : below(4) * from_width,
            dst = below(3) == 0 ? below(16) : below(4) * to_width;
    if (below(4) == 0) {
      src += (rows - 1) * from_width;
      axes[0].src = -from_width;
    }
    check_cast(in, out, 2, axes, src, dst);
  }
}

/* By units of four numbers, one or two boxes a tile; closed before the kernel begins, or once it has loaded. */
CASE(transposed_casts_that_are_closed_store_nothing) {
  closes = true;
  for (int k = 0; k < 16; k++) {
    draw_state = seed = 9700 + (uint64_t)k;
    const rs_axis axes[3] = {{1 + k % 3, 64 * 64 * 4, 64 * 64 * 2}, {64, 4, 64 * 2}, {64, 64 * 4, 2}};
    check_cast(RESHARD_F32, RESHARD_BF16, 3, axes, 0, 0);
  }
  closes = false;
}

/* --- Blocks --- */

/* A box of blocks over two loops. */
typedef struct block_case {
  rs_block_box box;
  rs_block_axis loops[2];
  bool back, aligned; /* both sides to units */
} block_case;

static int64_t draw_extent(void) { return below(3) == 0 ? 1 : below(2) == 0 ? between(1, 40) : 32 << below(3); }

static block_case draw_blocks(void) {
  static const reshard_dtype wide[] = {RESHARD_F32, RESHARD_F16, RESHARD_BF16};
  block_case c = {.back = below(2) == 0};
  rs_block_box *b = &c.box;
  b->wide_dtype = wide[below(3)];
  b->scale_dtype = below(2) == 0 ? RESHARD_F32 : RESHARD_F8_E8M0;
  const int64_t width = (int64_t)reshard_dtype_size(b->wide_dtype);
  const int64_t scale = (int64_t)reshard_dtype_size(b->scale_dtype);
  for (int i = 0; i < 2; i++)
    b->block[i] = draw_extent();
  if (below(12) == 0)
    b->block[0] = 32768 / b->block[1];
  for (int i = 0; i < 2; i++) {
    b->n[i] = between(1, 3 * b->block[i] + 2);
    b->n[i] = rs_max(1, rs_min(b->n[i], 40000 / b->block[!i]));
  }
  b->n[1] = rs_min(b->n[1], 40000 / b->n[0] + 1);
  for (int i = 0; i < 2; i++)
    b->skip[i] = c.back && below(2) == 0 ? below(b->block[i]) : 0;
  const bool wide_turned = below(6) == 0, values_turned = below(6) == 0;
  const int64_t gap = below(3) == 0 ? below(20) : 0;
  b->wide_stride[!wide_turned] = width;
  b->wide_stride[wide_turned] = (b->n[!wide_turned] + gap) * width;
  b->value_stride[!values_turned] = 1;
  b->value_stride[values_turned] = b->n[!values_turned] + below(2) * below(9);
  b->scale_stride[1] = scale;
  b->scale_stride[0] = rs_ceil_div(b->n[1] + b->skip[1], b->block[1]) * scale;
  int64_t extent[3] = {(b->n[wide_turned]) * b->wide_stride[wide_turned],
                       b->n[values_turned] * b->value_stride[values_turned],
                       rs_ceil_div(b->n[0] + b->skip[0], b->block[0]) * b->scale_stride[0]};
  for (int i = 1; i >= 0; i--) {
    int64_t n = extent[0] < ROOM / 10 ? between(1, 3) : 1;
    c.loops[i] = (rs_block_axis){n, extent[0], extent[1] + below(2) * below(7), extent[2]};
    extent[0] *= n;
    extent[1] = n * c.loops[i].values;
    extent[2] *= n;
  }
  if (extent[0] > ROOM - 64 || extent[1] > ROOM - 64 || extent[2] > ROOM - 64)
    return draw_blocks();
  return c;
}

/* Calls of one number, or of a block's first: places are those of both sides. */
static void place_numbers(const block_case *c, const char *wide, char *values, char *at_scales, bool makes_scales) {
  const rs_block_box *b = &c->box;
  const int64_t width = (int64_t)reshard_dtype_size(b->wide_dtype);
  for (int64_t r = 0; r < b->n[0]; r++)
    for (int64_t k = 0; k < b->n[1]; k++) {
      const int64_t row = (r + b->skip[0]) / b->block[0], column = (k + b->skip[1]) / b->block[1];
      const char *number = wide + r * b->wide_stride[0] + k * b->wide_stride[1];
      char *value = values + r * b->value_stride[0] + k * b->value_stride[1];
      char *scale = at_scales + row * b->scale_stride[0] + column * b->scale_stride[1];
      const float by = naive_stored_scale(scale, b->scale_dtype, 0);
      if (c->back) {
        uint32_t bits = naive_unscaled((uint8_t)*value, by, b->wide_dtype);
        if (b->wide_dtype == RESHARD_F32 && (bits & 0x7fffffff) > 0x7f800000) /* whichever the product is */
          bits = 0x7fffffff;
        memcpy((char *)(uintptr_t)number, &bits, (size_t)width);
      } else if (!makes_scales) {
        *value = (char)naive_scaled(naive_wide(number, b->wide_dtype, 0), by);
      } else if (r % b->block[0] == 0 && k % b->block[1] == 0) {
        float most = 0;
        for (int64_t i = 0; i < rs_min(b->block[0], b->n[0] - r); i++)
          for (int64_t j = 0; j < rs_min(b->block[1], b->n[1] - k); j++)
            most =
                naive_most(most, naive_wide(number + i * b->wide_stride[0] + j * b->wide_stride[1], b->wide_dtype, 0));
        const uint32_t bits = naive_scale_bits(naive_scale(most, b->scale_dtype), b->scale_dtype);
        memcpy(scale, &bits, reshard_dtype_size(b->scale_dtype));
      }
    }
}

static void convert_by_definition(const block_case *c, char *wide, char *values, char *at_scales) {
  for (int pass = 0; pass < 2 - c->back; pass++)
    for (int64_t i = 0; i < c->loops[0].n; i++)
      for (int64_t k = 0; k < c->loops[1].n; k++)
        place_numbers(c, wide + i * c->loops[0].wide + k * c->loops[1].wide,
                      values + i * c->loops[0].values + k * c->loops[1].values,
                      at_scales + i * c->loops[0].scales + k * c->loops[1].scales, pass == 0);
}

/* Scales are compared as numbers: which NaN one is, is not said. */
static void compare_scales(reshard_dtype dtype, int64_t shift) {
  const int64_t width = (int64_t)reshard_dtype_size(dtype);
  for (int64_t i = shift; i + width <= ROOM; i += width) {
    const float have = naive_stored_scale(scales + i, dtype, 0), want = naive_stored_scale(wanted_scales + i, dtype, 0);
    if (memcmp(scales + i, wanted_scales + i, (size_t)width) != 0 && !(isnan(have) && isnan(want)))
      fail_msg("seed %llu: the scale at %lld is %g, not %g", (unsigned long long)seed, (long long)i, (double)have,
               (double)want);
  }
}

static void check_blocks(block_case c) {
  rs_copies copies = {0};
  const int64_t src = !c.aligned && below(2) == 0 ? below(16) : below(4) * 16;
  const int64_t dst = !c.aligned && below(2) == 0 ? below(16) : below(4) * 16;
  /* Half of them end where their memory does. */
  const int64_t width = (int64_t)reshard_dtype_size(c.box.scale_dtype);
  int64_t end = width;
  for (int i = 0; i < 2; i++)
    end += (rs_ceil_div(c.box.n[i] + c.box.skip[i], c.box.block[i]) - 1) * c.box.scale_stride[i] +
           (c.loops[i].n - 1) * c.loops[i].scales;
  const int64_t shift = below(2) == 0 ? below(16) : ROOM - end;
  fill_numbers(from + src, c.back ? RESHARD_F8_E4M3 : c.box.wide_dtype, ROOM - 64);
  memset(to, 0x5a, ROOM);
  memset(wanted, 0x5a, ROOM);
  memset(scales, 0x5a, ROOM);
  if (c.back)
    fill_numbers(scales + shift, c.box.scale_dtype, rs_min(ROOM - shift, ROOM - 64));
  memcpy(wanted_scales, scales, ROOM);
  char *wide = c.back ? to + dst : from + src, *values = c.back ? from + src : to + dst;
  c.box.wide = wide;
  c.box.values = values;
  c.box.scales = scales + shift;
  convert_by_definition(&c, c.back ? wanted + dst : wide, c.back ? values : wanted + dst, wanted_scales + shift);
  assert_int_equal(rs_copies_scale(&copies, &c.box, c.back, 2, c.loops), 0);
  parts += c.box.skip[0] > 0 || c.box.skip[1] > 0;
  memcpy(unused_scales, scales, ROOM);
  run(&copies);
  compare(c.back ? "blocks back" : "blocks");
  compare_scales(c.box.scale_dtype, shift);
}

CASE(blocks_and_parts_of_them_are_those_of_the_definition) {
  for (int k = 0; k < CASES; k++) {
    draw_state = seed = 880000 + (uint64_t)k;
    check_blocks(draw_blocks());
  }
}

/* Those that go by units of 16 bytes, where addresses allow it: one or some boxes at a time, of less than a warp to all
 * lanes. */
CASE(blocks_aligned_to_units_are_those_of_the_definition) {
  static const reshard_dtype wide[] = {RESHARD_F32, RESHARD_F16, RESHARD_BF16};
  for (int k = 0; k < CASES; k++) {
    draw_state = seed = 72000 + (uint64_t)k;
    block_case c = {.back = k % 2 == 0};
    rs_block_box *b = &c.box;
    b->wide_dtype = wide[k / 2 % 3];
    b->scale_dtype = below(2) == 0 ? RESHARD_F32 : RESHARD_F8_E8M0;
    const int64_t width = (int64_t)reshard_dtype_size(b->wide_dtype);
    const int64_t scale = (int64_t)reshard_dtype_size(b->scale_dtype);
    b->block[0] = between(1, 3) == 1 ? 1 : between(1, 130);
    b->block[1] = 8 << below(5);
    b->n[0] = b->block[0] * between(1, 2);
    b->n[1] = b->block[1] * between(1, b->block[0] == 1 ? 9 : 2);
    const int64_t line = b->n[1] + 16 * below(2);
    b->wide_stride[0] = line * width;
    b->value_stride[0] = line;
    b->wide_stride[1] = width;
    b->value_stride[1] = 1;
    b->scale_stride[0] = b->n[1] / b->block[1] * scale;
    b->scale_stride[1] = scale;
    const int64_t scales_of_one = b->n[0] / b->block[0] * b->scale_stride[0];
    c.loops[0] = (rs_block_axis){2, 2 * b->n[0] * line * width, 2 * b->n[0] * line, 2 * scales_of_one};
    c.loops[1] = (rs_block_axis){2, b->n[0] * line * width, b->n[0] * line, scales_of_one};
    if (4 * b->n[0] * line * width < ROOM - 64)
      check_blocks(c);
  }
}

/* Of 1, 2 or 4 units a lane, more to a tile than all threads hold at one time. */
CASE(many_blocks_aligned_to_units_are_those_of_the_definition) {
  for (int k = 0; k < 24; k++) {
    draw_state = seed = 61000 + (uint64_t)k;
    const int64_t width = k % 4 < 2 ? 4 : 2, block = (512 << k / 4 % 3) / width, columns = 4 * block, rows = 16;
    block_case c = {.loops = {{1, 0, 0, 0}, {1, 0, 0, 0}}, .back = k % 2 == 0, .aligned = true};
    c.box = (rs_block_box){.wide_dtype = width == 4 ? RESHARD_F32 : RESHARD_BF16,
                           .scale_dtype = k % 3 == 0 ? RESHARD_F8_E8M0 : RESHARD_F32,
                           .n = {rows, columns},
                           .block = {1, block},
                           .wide_stride = {columns * width, width},
                           .value_stride = {columns, 1},
                           .scale_stride = {16, 4}};
    check_blocks(c);
  }
}

/* The largest magnitude is in either half of 32,768 numbers. */
CASE(blocks_of_the_most_numbers_are_those_of_the_definition) {
  for (int k = 0; k < 12; k++) {
    draw_state = seed = 51000 + (uint64_t)k;
    const int64_t columns = k % 3 == 0 ? 32768 : k % 3 == 1 ? 128 : 1, rows = 32768 / columns;
    const int64_t width = k % 6 < 3 ? 4 : 2;
    block_case c = {.loops = {{1, 0, 0, 0}, {2, 32768 * width, 32768, 4}}};
    c.box = (rs_block_box){.wide_dtype = k % 6 < 3 ? RESHARD_F32 : RESHARD_BF16,
                           .scale_dtype = k % 2 == 0 ? RESHARD_F32 : RESHARD_F8_E8M0,
                           .n = {rows, columns},
                           .block = {rows, columns},
                           .wide_stride = {columns * width, width},
                           .value_stride = {columns, 1},
                           .scale_stride = {4, 4}};
    check_blocks(c);
  }
}

CASE(each_way_to_convert_was_taken) {
  for (int unit = 0; unit < 2; unit++)
    for (int aligned = unit; aligned < 4; aligned++)
      if (hits[unit][aligned] == 0)
        fail_msg("no tile of unit %d with alignment %d", unit == 0 ? 1 : 4, aligned);
  for (int unit = 0; unit < 2; unit++)
    assert_true(turned[unit] > 0 && waiting[unit] > 0);
  for (int full = 0; full < 2; full++)
    for (int scale = 0; scale < 3; scale++)
      assert_true(vectors[full][scale] > 0);
  assert_true(vectors[0][3] > 0 && split > 0);
  for (int turns = 0; turns < 3; turns++)
    assert_true(rounds[turns] > 0);
  assert_true(large > 0 && several > 0 && parts > 0);
}

CASE(a_kernel_that_cannot_be_loaded_is_the_error_of_the_load) {
  enum { NO_KERNEL_IMAGE = 209 };
  simt_fail_load(1, NO_KERNEL_IMAGE);
  assert_int_equal(rs_box_convert_load(), NO_KERNEL_IMAGE);
  simt_fail_load(1, NO_KERNEL_IMAGE);
  assert_int_equal(rs_box_vectors_load(), NO_KERNEL_IMAGE);
  simt_fail_load(0, 0);
}

static int open_memory(void **state) {
  char **all[] = {&from, &to, &scales, &wanted, &wanted_scales, &unused_scales};
  (void)state;
  for (int i = 0; i < 6; i++)
    if (posix_memalign((void **)all[i], 256, ROOM) != 0)
      return 1;
  return rs_box_convert_load() + rs_box_vectors_load();
}
static int close_memory(void **state) {
  (void)state;
  free(from);
  free(to);
  free(scales);
  free(wanted);
  free(wanted_scales);
  free(unused_scales);
  return 0;
}

RUN_CASES_WITH(open_memory, close_memory)
