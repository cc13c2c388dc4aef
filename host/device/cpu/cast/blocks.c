/* Boxes of block-scaled FP8.
 *
 * Some blocks at a time are copied to a buffer that stays in the second-level cache, with the maxima on the way: rows
 * of large matrices are often a power of two apart, and would push one another out of the cache. */
#include "device/cpu/cast/blocks.h"

#include "base/dtype.h"

#include <string.h>

enum {
  MOST = RS_MOST_OF_BLOCK,
  BUFFER = 4 * MOST, /* bytes: of the largest block in f32 */
  MOST_BLOCKS = 256, /* beside one another in the buffer */
  STORED = 2048,     /* numbers of a row that is stored past the cache */
  STORE_LEAST = 256, /* bytes of one that is worth that */
  LINE = 64,
  ROWS_AHEAD = 8,
};

typedef struct block_row {
  int32_t most[MOST_BLOCKS];
  float by[MOST_BLOCKS];
  _Alignas(LINE) char scattered[MOST]; /* values of a row that lie apart in memory, or go past the cache */
  _Alignas(64) char buffer[BUFFER];
} block_row;

static float float_of(uint32_t bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

/* Makes the scale of a block from its maximum; returns what its numbers are multiplied by. */
static float make_scale(char *out, reshard_dtype dtype, int32_t most) {
  float m = float_of((uint32_t)most), scale = (m < 1e-4f ? 1e-4f : m) / 448;
  uint32_t bits;
  memcpy(&bits, &scale, sizeof bits);
  if (dtype != RESHARD_F8_E8M0) {
    bits = most > 0x7f800000 ? 0x7fffffff : bits; /* NaN as casts have it */
    memcpy(out, &bits, sizeof bits);
    return 1 / scale;
  }
  uint32_t exponent = (bits >> 23 & 0xff) + ((bits & 0x7fffff) != 0);
  exponent = exponent < 1 ? 1 : exponent > 254 ? 254 : exponent;
  *out = (char)exponent;
  return 1 / float_of(exponent << 23);
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

/* Brings a row that comes soon to the second-level cache. */
static void fetch_row(const char *row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += LINE)
    __builtin_prefetch(row + at, 0, 2);
}

/* Rows [0, rows) of blocks beside one another, from the column and block that the pointers name. next: of as many
 * that follow, or NULL. */
static void scale_blocks(const rs_cast_kernels *k, const rs_block_box *b, const char *wide, char *values, char *scales,
                         int64_t rows, int64_t columns, const char *next, rs_block_store store, block_row *row) {
  int of = rs_cast_index(b->wide_dtype);
  int64_t width = (int64_t)reshard_dtype_size(b->wide_dtype), pitch = columns * width;
  bool in_place = rows == 1 && b->wide_stride[1] == width;
  memset(row->most, 0, sizeof row->most);
  for (int64_t r = 0; r < rows; r++) {
    const char *from = wide + r * b->wide_stride[0];
    if (!in_place)
      copy_row(row->buffer + r * pitch, width, from, b->wide_stride[1], width, columns);
    k->most[of](row->most, in_place ? from : row->buffer + r * pitch, columns, b->block[1]);
  }
  for (int64_t i = 0; i < rs_ceil_div(columns, b->block[1]); i++)
    row->by[i] = make_scale(scales + i * b->scale_stride[1], b->scale_dtype, row->most[i]);
  for (int64_t r = 0; r < rows; r++) {
    char *to = values + r * b->value_stride[0];
    const char *from = in_place ? wide : row->buffer + r * pitch;
    bool near = b->value_stride[1] == 1, past = near && store != NULL && columns >= STORE_LEAST;
    if (next != NULL)
      fetch_row(next + r * b->wide_stride[0], pitch);
    k->scale[of](near && !past ? to : row->scattered, from, columns, b->block[1], row->by);
    if (past)
      store(to, row->scattered, columns);
    else if (!near)
      copy_row(to, b->value_stride[1], row->scattered, 1, 1, columns);
  }
}

/* Columns that are done together: whole blocks, as many as fit. */
static int64_t columns_together(const rs_block_box *b, int64_t rows) {
  int64_t width = (int64_t)reshard_dtype_size(b->wide_dtype), n = rs_min(b->block[1], b->n[1]);
  return n * rs_max(1, rs_min(MOST_BLOCKS, BUFFER / (n * rows * width)));
}

void rs_blocks_scale(const rs_cast_kernels *k, const rs_block_box *b, rs_block_store store) {
  block_row row;
  bool fetches = b->wide_stride[1] == (int64_t)reshard_dtype_size(b->wide_dtype);
  for (int64_t r = 0, i = 0; r < b->n[0]; r += b->block[0], i++) {
    int64_t rows = rs_min(b->block[0], b->n[0] - r), step = columns_together(b, rows);
    for (int64_t c = 0; c < b->n[1]; c += step) {
      const char *wide = b->wide + r * b->wide_stride[0] + c * b->wide_stride[1];
      bool more = fetches && c + step < b->n[1];
      scale_blocks(k, b, wide, b->values + r * b->value_stride[0] + c * b->value_stride[1],
                   b->scales + i * b->scale_stride[0] + c / b->block[1] * b->scale_stride[1], rows,
                   rs_min(step, b->n[1] - c), more ? wide + step * b->wide_stride[1] : NULL, store, &row);
    }
  }
}

/* Columns of a row that begin with a block, or lie in one. */
static void unscale_columns(const rs_cast_kernels *k, const rs_block_box *b, char *wide, const char *values, int64_t n,
                            rs_block_store store, block_row *row) {
  rs_scale_kernel unscale = k->unscale[rs_cast_index(b->wide_dtype)];
  int64_t width = (int64_t)reshard_dtype_size(b->wide_dtype);
  bool near = b->value_stride[1] == 1, whole = b->wide_stride[1] == width;
  bool past = whole && store != NULL && n * width >= STORE_LEAST;
  if (!near)
    copy_row(row->scattered, 1, values, b->value_stride[1], 1, n);
  unscale(whole && !past ? wide : row->buffer, near ? values : row->scattered, n, b->block[1], row->by);
  if (past)
    store(wide, row->buffer, n * width);
  else if (!whole)
    copy_row(wide, b->wide_stride[1], row->buffer, width, width, n);
}

/* Rows of one row of blocks: the rest of a block, or whole blocks as many as there is room for. */
static void unscale_rows(const rs_cast_kernels *k, const rs_block_box *b, int64_t first, int64_t end,
                         const char *scales, rs_block_store store, block_row *row) {
  int64_t together = store != NULL ? STORED : MOST;
  int64_t most = rs_min(MOST_BLOCKS, rs_max(1, together / b->block[1])) * b->block[1];
  for (int64_t c = 0, n; c < b->n[1]; c += n) {
    int64_t block = (c + b->skip[1]) / b->block[1], before = (c + b->skip[1]) % b->block[1];
    n = rs_min(rs_min(before > 0 ? b->block[1] - before : most, MOST), b->n[1] - c);
    for (int64_t i = 0; i < rs_ceil_div(n, b->block[1]); i++)
      row->by[i] = read_scale(scales + (block + i) * b->scale_stride[1], b->scale_dtype);
    for (int64_t r = first; r < end; r++) {
      const char *values = b->values + r * b->value_stride[0] + c * b->value_stride[1];
      if (b->value_stride[1] == 1 && r + ROWS_AHEAD < end)
        fetch_row(values + ROWS_AHEAD * b->value_stride[0], n);
      unscale_columns(k, b, b->wide + r * b->wide_stride[0] + c * b->wide_stride[1], values, n, store, row);
    }
  }
}

void rs_blocks_unscale(const rs_cast_kernels *k, const rs_block_box *b, rs_block_store store) {
  block_row row;
  const char *scales = b->scales;
  for (int64_t r = 0, end; r < b->n[0]; r = end, scales += b->scale_stride[0]) {
    end = rs_min(r == 0 ? b->block[0] - b->skip[0] : r + b->block[0], b->n[0]);
    unscale_rows(k, b, r, end, scales, store, &row);
  }
}
