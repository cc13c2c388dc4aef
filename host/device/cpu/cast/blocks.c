/* Boxes of block-scaled FP8.
 *
 * Some blocks at a time are copied to a buffer that stays in the second-level cache, with the maxima on the way: rows
 * of large matrices are often a power of two apart, and would push one another out of the cache. Each row takes the
 * place of one of the blocks before, whose values are made just then, also from box to box: so memory is read and
 * written at the same time. */
#include "device/cpu/cast/blocks.h"

#include "base/dtype.h"
#include "device/cpu/cast/kernels.h"

#include <string.h>

enum {
  MOST = RS_MOST_OF_BLOCK,
  BUFFER = 8 * MOST, /* bytes: two of the largest blocks in f32 */
  MOST_BLOCKS = 512, /* beside one another in the buffer */
  STORED = 2048,     /* numbers of a row that is stored past the cache */
  STORE_LEAST = 256, /* bytes of one that is worth that */
  LINE = 64,
  ROW = 4096,   /* bytes of a row of a part, about: shorter ones take memory longer */
  AHEAD = 8192, /* bytes that are prefetched */
  ROWS_AHEAD = 8,
  TILE = 64 << 10,    /* values that are transposed together: a block at least */
  TILE_ROWS = 128,    /* of smaller blocks */
  TILE_COLUMNS = 512, /* likewise: the transpose fills whole lines of as many */
};

/* Blocks beside one another, in a row of blocks. */
typedef struct scaled_part {
  char *wide, *values, *scales; /* of the first number */
  int64_t rows, columns;        /* no rows: no part */
  bool finite;                  /* the largest of each block */
  int32_t most[MOST_BLOCKS];
  float by[MOST_BLOCKS];
} scaled_part;

static float float_of(uint32_t bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

/* Makes the scales of blocks from their maxima, and what their numbers are multiplied by. */
static void find_scales(uint32_t *scales, float *by, reshard_dtype dtype, const int32_t *most, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    float m = float_of((uint32_t)most[i]), scale = (m < 1e-4f ? 1e-4f : m) / 448;
    memcpy(&scales[i], &scale, sizeof scale);
    by[i] = 1 / scale;
  }
  for (int64_t i = 0; i < n && dtype == RESHARD_F8_E8M0; i++) {
    uint32_t bits = scales[i], exponent = (bits >> 23 & 0xff) + ((bits & 0x7fffff) != 0);
    scales[i] = exponent < 1 ? 1 : exponent > 254 ? 254 : exponent;
    by[i] = 1 / float_of(scales[i] << 23);
  }
}

static float read_scale(const char *scale, reshard_dtype dtype) {
  float number;
  if (dtype == RESHARD_F8_E8M0) {
    uint32_t exponent = (uint8_t)*scale; /* 255 is NaN, 0 a subnormal number in f32 */
    return float_of(exponent == 255 ? 0x7fffffff : exponent == 0 ? 0x400000 : exponent << 23);
  }
  memcpy(&number, scale, sizeof number);
  return number;
}

/* n elements from one stride to another. */
static void copy_row(char *dst, int64_t dst_stride, const char *src, int64_t src_stride, int64_t width, int64_t n) {
  if (dst_stride == width && src_stride == width) {
    memcpy(dst, src, (size_t)(n * width));
    return;
  }
  for (int64_t i = 0; i < n; i++, dst += dst_stride, src += src_stride)
    switch (width) {
    case 1: *dst = *src; break;
    case 2: memcpy(dst, src, 2); break;
    default: memcpy(dst, src, 4); break;
    }
}

/* Bytes from the values of the first column to those of a column that begins a block. */
static int64_t value_at(const rs_block_box *b, int64_t c) {
  return b->value_step == 0 ? c * b->value_stride[1] : c / b->block[1] * b->value_step;
}
static void scatter_values(const rs_block_box *b, char *to, const char *from, int64_t n) {
  for (int64_t c = 0, part; c < n; c += part) {
    part = b->value_step == 0 ? n : rs_min(b->block[1], n - c);
    copy_row(to + value_at(b, c), b->value_stride[1], from + c, 1, 1, part);
  }
}

/* Brings lines of a row that comes soon, so many bytes apart, to the second-level cache. */
static void fetch_row(const char *row, int64_t bytes, int64_t step) {
  for (int64_t at = step - LINE; at < bytes; at += step)
    __builtin_prefetch(row + at, 0, 2);
}

/* Stores that many bytes past the cache, ordered by a fence of the caller; NULL: rows are stored as they are made. */
typedef void (*rs_block_store)(char *dst, const char *src, int64_t bytes);

/* A row of a part, or of the one behind it, that is read soon after row r. `next`: the first row of that. */
static const char *row_ahead(const rs_block_box *b, const scaled_part *part, int64_t r, const char *next) {
  int64_t row = r + rs_max(1, AHEAD / (part->columns * (int64_t)reshard_dtype_size(b->wide_dtype)));
  return row < part->rows ? part->wide + row * b->wide_stride[0]
                          : next + rs_min(row - part->rows, part->rows - 1) * b->wide_stride[0];
}

/* Copies a row of a part to its place in the buffer, with the maxima. */
static void take_row(const rs_cast_kernels *k, const rs_block_box *b, scaled_part *part, int64_t r, const char *ahead,
                     char *place) {
  int64_t width = (int64_t)reshard_dtype_size(b->wide_dtype);
  const char *from = part->wide + r * b->wide_stride[0];
  if (b->wide_stride[1] != width) {
    copy_row(place, width, from, b->wide_stride[1], width, part->columns);
    ahead = from = place;
  }
  k->most[rs_cast_index(b->wide_dtype)](part->most, place, from, part->columns, b->block[1], ahead);
}

/* Makes the values of a row of a part from its place in the buffer. */
static void give_row(const rs_cast_kernels *k, const rs_block_box *b, const scaled_part *part, int64_t r,
                     const char *ahead, const char *place, rs_block_store store) {
  _Alignas(LINE) char scattered[MOST]; /* values that lie apart in memory, or go past the cache in parts of lines */
  char *to = part->values + r * b->value_stride[0];
  bool near = b->value_stride[1] == 1 && b->value_step == 0;
  bool past = near && store != NULL && part->columns >= STORE_LEAST;
  bool lines = past && b->block[1] % LINE == 0 && (uintptr_t)to % LINE == 0, made = lines || (near && !past);
  k->scale[rs_cast_index(b->wide_dtype)](
      made ? to : scattered, place, part->columns, b->block[1], part->by,
      b->wide_stride[1] == (int64_t)reshard_dtype_size(b->wide_dtype) ? ahead : place, lines);
  if (past && !lines)
    store(to, scattered, part->columns);
  else if (!near)
    scatter_values(b, to, scattered, part->columns);
}

/* Both for the same row at once; false where they cannot be. */
static bool exchange_row(const rs_cast_kernels *k, const rs_block_box *b, const scaled_part *before, scaled_part *part,
                         int64_t r, const char *ahead, char *place, rs_block_store store) {
  rs_exchange_kernel exchange = k->exchange[rs_cast_index(b->wide_dtype)];
  if (exchange == NULL || r >= before->rows || r >= part->rows || before->columns != part->columns ||
      b->wide_stride[1] != (int64_t)reshard_dtype_size(b->wide_dtype) || b->value_stride[1] != 1 ||
      b->block[1] % LINE != 0 || part->columns % b->block[1] != 0 || !before->finite)
    return false;
  char *to = before->values + r * b->value_stride[0];
  int64_t step = b->value_step == 0 ? b->block[1] : b->value_step;
  bool past = store != NULL && part->columns >= STORE_LEAST;
  if (past && ((uintptr_t)to % LINE != 0 || step % LINE != 0))
    return false;
  exchange(to, step, place, part->wide + r * b->wide_stride[0], part->columns, b->block[1], before->by, part->most,
           ahead, past);
  return true;
}

static void make_scales(const rs_block_box *b, scaled_part *part) {
  uint32_t scales[MOST_BLOCKS];
  int64_t n = rs_ceil_div(part->columns, b->block[1]);
  bool exponents = b->scale_dtype == RESHARD_F8_E8M0;
  find_scales(scales, part->by, b->scale_dtype, part->most, n);
  part->finite = true;
  for (int64_t i = 0; i < n; i++)
    part->finite = part->finite && part->most[i] < 0x7f800000;
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits = exponents || part->most[i] <= 0x7f800000 ? scales[i] : 0x7fffffff; /* NaN as casts have it */
    char *to = part->scales + i * b->scale_stride[1];
    if (exponents)
      *to = (char)bits;
    else
      memcpy(to, &bits, sizeof bits);
  }
}

/* Columns that are done together: whole blocks. */
static int64_t columns_together(const rs_block_box *b) {
  int64_t width = (int64_t)reshard_dtype_size(b->wide_dtype), n = rs_min(b->block[1], b->n[1]);
  int64_t fit = rs_min(BUFFER / rs_min(b->block[0], b->n[0]), ROW) / (n * width);
  return n * rs_max(1, rs_min(MOST_BLOCKS, fit));
}

/* The part that begins with a row and a column of the box; none behind its end. */
static void begin_part(const rs_block_box *b, scaled_part *part, int64_t r, int64_t c) {
  part->rows = rs_min(b->block[0], b->n[0] - r);
  part->columns = rs_min(columns_together(b), b->n[1] - c);
  part->wide = b->wide + r * b->wide_stride[0] + c * b->wide_stride[1];
  part->values = b->values + r * b->value_stride[0] + value_at(b, c);
  part->scales = b->scales + r / b->block[0] * b->scale_stride[0] + c / b->block[1] * b->scale_stride[1];
  memset(part->most, 0, sizeof *part->most * (size_t)rs_ceil_div(part->columns, b->block[1]));
}

static const rs_block_steps only = {.n = 1}; /* which asks for no other box */

/* The box of the first step, and those of the others. */
static void scale_rows(const rs_cast_kernels *k, const rs_block_box *first, const rs_block_steps *steps,
                       rs_block_store store) {
  _Alignas(LINE) char buffer[BUFFER];
  scaled_part parts[2], *part = &parts[0], *before = &parts[1];
  rs_block_box box = *first, *b = &box;
  int64_t width = (int64_t)reshard_dtype_size(b->wide_dtype), pitch = columns_together(b) * width;
  int64_t step = 1, r = 0, c = 0;
  before->rows = 0;
  do {
    begin_part(b, part, r, c);
    c += part->columns;
    if (c == b->n[1]) {
      c = 0;
      r += part->rows;
    }
    if (r == b->n[0] && step < steps->n) {
      r = 0;
      steps->place(steps->of, steps->first + step++, b);
    }
    const char *next = b->wide + r * b->wide_stride[0] + c * b->wide_stride[1];
    for (int64_t i = 0; i < rs_max(part->rows, before->rows); i++) {
      char *place = buffer + i * pitch;
      const char *ahead = i < part->rows ? row_ahead(b, part, i, next) : place;
      if (exchange_row(k, b, before, part, i, ahead, place, store))
        continue;
      if (i < before->rows)
        give_row(k, b, before, i, ahead, place, store);
      else if (b->wide_stride[1] == width)
        fetch_row(ahead, part->columns * width, 2 * LINE);
      if (i < part->rows)
        take_row(k, b, part, i, ahead, place);
    }
    if (part->rows > 0)
      make_scales(b, part);
    scaled_part *made = part;
    part = before;
    before = made;
  } while (before->rows > 0);
}

/* Columns of a row that begin with a block, or lie in one. */
static void unscale_columns(const rs_cast_kernels *k, const rs_block_box *b, char *wide, const char *values, int64_t n,
                            rs_block_store store, const float *by) {
  _Alignas(LINE) char near_values[MOST], buffer[4 * MOST]; /* what lies apart in memory, or goes past the cache */
  rs_unscale_kernel unscale = k->unscale[rs_cast_index(b->wide_dtype)];
  int64_t width = (int64_t)reshard_dtype_size(b->wide_dtype);
  bool near = b->value_stride[1] == 1, whole = b->wide_stride[1] == width;
  bool past = whole && store != NULL && n * width >= STORE_LEAST;
  if (!near)
    copy_row(near_values, 1, values, b->value_stride[1], 1, n);
  unscale(whole && !past ? wide : buffer, near ? values : near_values, n, b->block[1], by);
  if (past)
    store(wide, buffer, n * width);
  else if (!whole)
    copy_row(wide, b->wide_stride[1], buffer, width, width, n);
}

/* Rows of one row of blocks: the rest of a block, or whole blocks as many as there is room for. */
static void unscale_rows(const rs_cast_kernels *k, const rs_block_box *b, int64_t first, int64_t end,
                         const char *scales, rs_block_store store) {
  float by[MOST_BLOCKS];
  int64_t together = store != NULL ? STORED : MOST;
  int64_t most = rs_min(MOST_BLOCKS, rs_max(1, together / b->block[1])) * b->block[1];
  for (int64_t c = 0, n; c < b->n[1]; c += n) {
    int64_t block = (c + b->skip[1]) / b->block[1], before = (c + b->skip[1]) % b->block[1];
    n = rs_min(rs_min(before > 0 ? b->block[1] - before : most, MOST), b->n[1] - c);
    for (int64_t i = 0; i < rs_ceil_div(n, b->block[1]); i++)
      by[i] = read_scale(scales + (block + i) * b->scale_stride[1], b->scale_dtype);
    for (int64_t r = first; r < end; r++) {
      const char *values = b->values + r * b->value_stride[0] + c * b->value_stride[1];
      if (b->value_stride[1] == 1 && r + ROWS_AHEAD < end)
        fetch_row(values + ROWS_AHEAD * b->value_stride[0], n, LINE);
      unscale_columns(k, b, b->wide + r * b->wide_stride[0] + c * b->wide_stride[1], values, n, store, by);
    }
  }
}

static void unscale_box(const rs_cast_kernels *k, const rs_block_box *b, rs_block_store store) {
  const char *scales = b->scales;
  for (int64_t r = 0, end; r < b->n[0]; r = end, scales += b->scale_stride[0]) {
    end = rs_min(r == 0 ? b->block[0] - b->skip[0] : r + b->block[0], b->n[0]);
    unscale_rows(k, b, r, end, scales, store);
  }
}

/* --- Values down columns --- */

/* Blocks of a tile, down and across. */
static int64_t tile_rows(const rs_block_box *b) {
  int64_t most = rs_min(TILE_ROWS, TILE / b->block[1]);
  return b->block[0] * rs_max(1, most / b->block[0]);
}
static int64_t tile_columns(const rs_block_box *b) {
  int64_t most = rs_min(TILE_COLUMNS, TILE / rs_min(tile_rows(b), b->n[0]));
  return b->block[1] * rs_max(1, most / b->block[1]);
}

/* Rows and columns from `at` on, to the end of a tile that begins with a block. */
static rs_block_box tile_at(const rs_block_box *b, int64_t r, int64_t c) {
  const int64_t at[2] = {r, c}, most[2] = {tile_rows(b), tile_columns(b)};
  rs_block_box tile = *b;
  for (int i = 0; i < 2; i++) {
    int64_t first = at[i] + b->skip[i];
    tile.skip[i] = first % b->block[i];
    tile.n[i] = rs_min(most[i] - first % most[i], b->n[i] - at[i]);
    tile.wide += at[i] * b->wide_stride[i];
    tile.values += at[i] * b->value_stride[i];
    tile.scales += first / b->block[i] * b->scale_stride[i];
  }
  return tile;
}

/* Tile by tile, with their values in rows of a buffer, which is transposed. */
static void turn_values(const rs_cast_kernels *k, const rs_block_box *b, const rs_kernels *copy, rs_block_store store,
                        bool back) {
  _Alignas(LINE) char buffer[TILE + TILE / 2];
  void (*transpose)(char *, const char *, int64_t, int64_t, int64_t, int64_t, bool) = copy->transpose[0];
  rs_block_box tile;
  for (int64_t r = 0; r < b->n[0]; r += tile.n[0])
    for (int64_t c = 0; c < b->n[1]; c += tile.n[1]) {
      tile = tile_at(b, r, c);
      char *values = tile.values;
      int64_t pitch = tile.n[1] + (tile.n[1] >= 2 * LINE ? LINE : 0); /* rows of a power of two would share lines */
      tile.values = buffer;
      tile.value_stride[0] = pitch;
      tile.value_stride[1] = 1;
      if (back) {
        transpose(buffer, values, tile.n[0], tile.n[1], pitch, b->value_stride[1], false);
        unscale_box(k, &tile, store);
      } else {
        scale_rows(k, &tile, &only, NULL);
        transpose(values, buffer, tile.n[1], tile.n[0], b->value_stride[1], pitch, store != NULL);
      }
    }
}

int64_t rs_blocks_rows(const rs_block_box *b) {
  return b->value_stride[0] == 1 && b->value_stride[1] > 1 ? tile_rows(b) : 0;
}

void rs_blocks_scale_steps(const rs_kernels *kernels, const rs_block_steps *steps, bool past) {
  const rs_cast_kernels *casts = rs_cast_kernels_of(kernels->isa);
  rs_block_store store = past ? kernels->stream : NULL;
  rs_block_box box;
  steps->place(steps->of, steps->first, &box);
  if (rs_blocks_rows(&box) == 0) {
    scale_rows(casts, &box, steps, store);
    return;
  }
  for (int64_t i = 0; i < steps->n; i++) {
    if (i > 0)
      steps->place(steps->of, steps->first + i, &box);
    turn_values(casts, &box, kernels, store, false);
  }
}

static void place_same(const void *of, int64_t step, rs_block_box *box) {
  (void)step;
  *box = *(const rs_block_box *)of;
}
void rs_blocks_scale(const rs_kernels *kernels, const rs_block_box *box, bool past) {
  rs_blocks_scale_steps(kernels, &(rs_block_steps){place_same, box, 0, 1}, past);
}

void rs_blocks_unscale(const rs_kernels *kernels, const rs_block_box *box, bool past) {
  const rs_cast_kernels *casts = rs_cast_kernels_of(kernels->isa);
  rs_block_store store = past ? kernels->stream : NULL;
  if (rs_blocks_rows(box) > 0)
    turn_values(casts, box, kernels, store, true);
  else
    unscale_box(casts, box, store);
}
