/* Tiles of copies that convert numbers: equal boxes of rows and columns over two loops (kernels/box_copy.h).
 *
 * A block that gets a scale is a box, as is a part of one on the way back. Of a cast the innermost loop gives the rows,
 * and long runs are cut as if there were blocks. Other loops are sorted by the destination, as for all copies. Parts of
 * blocks at the ends of rows are boxes of their own. Where columns leap in the source and rows follow its lines, boxes
 * of both are transposed. */
#include "device/cuda/tiles.h"

#include <stdlib.h>
#include <string.h>

enum {
  LOOPS = 2 * RESHARD_MAX_DIMS + 2,
  LANES = 32,
  LINES = 32,      /* rows along source lines of what is too narrow to be transposed */
  TURNED_LEAST = 8 /* rows and columns worth it */
};

typedef struct convert_side {
  int64_t width;
  int64_t row, column; /* bytes from one to the next in a box */
} convert_side;

typedef struct convert_loop {
  int64_t n, src, dst, scales;
} convert_loop;

/* Equal boxes over loops, outermost first. */
typedef struct convert_copy {
  const char *src;
  char *dst, *scales;
  int64_t rows, columns;
  convert_side from, to;
  int nloops;
  convert_loop loop[LOOPS];
  uint8_t formats[3]; /* from, to, scale */
  bool turned;        /* a box of it is transposed: what is a row of the source is a column here */
} convert_copy;

/* Rows, columns and what they are parts of, before boxes are made of them. */
typedef struct convert_area {
  convert_copy copy;
  int64_t head, block; /* columns before the first block, and of one */
  int64_t unit;        /* of what is no whole block as many columns as there are units are one part */
  int64_t scale_step;  /* of the next block */
} convert_area;

/* So many rows or columns, so many times. */
typedef struct convert_part {
  int64_t n, times;
} convert_part;

/* log2 of the least power of two that is not below n */
static uint32_t log2_above(int64_t n) {
  uint32_t bits = 0;
  while ((int64_t)1 << bits < n)
    bits++;
  return bits;
}

/* True where everything that places units of `numbers` on a side is a multiple of them, or of 16 bytes. */
static bool is_aligned(const convert_copy *c, bool source, int64_t numbers) {
  const convert_side *side = source ? &c->from : &c->to;
  uint64_t bits = source ? (uint64_t)(uintptr_t)c->src : (uint64_t)(uintptr_t)c->dst;
  bits |= c->rows > 1 ? (uint64_t)side->row : 0;
  bits |= numbers == 1 ? (uint64_t)side->column : 0;
  for (int i = 0; i < c->nloops; i++)
    bits |= (uint64_t)(source ? c->loop[i].src : c->loop[i].dst);
  return (bits & (uint64_t)(rs_min(numbers * side->width, 16) - 1)) == 0;
}

/* Units of 4 numbers, of at most 4 bytes: they are whole, dense on both sides, aligned on the wider one; or both ways,
 * on both, where they are transposed. */
static bool is_whole(const convert_copy *c) {
  bool dense = c->from.column == c->from.width && c->to.column == c->to.width && c->columns % 4 == 0;
  const int64_t widest = rs_max(c->from.width, c->to.width);
  if (!dense || widest > 4 || (c->turned && c->rows % 4 != 0))
    return false;
  return (is_aligned(c, true, 4) || (!c->turned && c->from.width < widest)) &&
         (is_aligned(c, false, 4) || (!c->turned && c->to.width < widest));
}

/* Numbers in 16 bytes of the wider side, or four. */
static int64_t vector_numbers(const convert_side *from, const convert_side *to) {
  return rs_max(16 / rs_max(from->width, to->width), 4);
}

/* True where numbers, or scales, of a tile of so many steps of the two inner loops are 2^31 bytes apart. */
static bool reaches_far(const convert_copy *c, bool source, const int64_t steps[2]) {
  const convert_side *side = source ? &c->from : &c->to;
  const bool turned = c->turned && source;
  int64_t most = (turned ? c->rows : c->columns) * side->width, bytes;
  if (!rs_mul(turned ? c->columns : c->rows, llabs(side->row), &bytes) || !rs_add(most, bytes, &most))
    return true;
  for (int i = 0; i < 2 && i < c->nloops; i++) {
    const convert_loop *loop = &c->loop[c->nloops - 1 - i];
    if (!rs_mul(steps[i], llabs(source ? loop->src : loop->dst), &bytes) || !rs_add(most, bytes, &most))
      return true;
    if (!rs_mul(steps[i], llabs(loop->scales), &bytes) || bytes > INT32_MAX / 2)
      return true;
  }
  return most > INT32_MAX;
}

/* True where a side's units are aligned, or the narrower one's of 8 bytes to 4. */
static bool is_loadable(const convert_copy *c, bool source, int64_t unit) {
  const int64_t width = source ? c->from.width : c->to.width;
  const bool narrow = width < rs_max(c->from.width, c->to.width) && !c->turned;
  return is_aligned(c, source, narrow ? rs_max(4 / width, 1) : unit);
}

/* Units of 16 bytes of the wider side: they are whole, dense and aligned on both sides, and a block of threads holds
 * those of a box. Transposed boxes have units of 4 numbers. */
static bool is_vector(const convert_copy *c, const int64_t steps[2]) {
  const int64_t widest = rs_max(c->from.width, c->to.width);
  const int64_t unit = c->turned ? 4 : vector_numbers(&c->from, &c->to);
  const int64_t units = c->rows * c->columns / unit;
  if (c->turned && c->rows % unit != 0)
    return false;
  return (widest == 2 || widest == 4) && c->from.column == c->from.width && c->to.column == c->to.width &&
         c->columns % unit == 0 && is_loadable(c, true, unit) && is_loadable(c, false, unit) &&
         units <= RS_BOX_CONVERT_VECTORS * RS_BOX_CONVERT_THREADS && !reaches_far(c, true, steps) &&
         !reaches_far(c, false, steps);
}

/* The shape of tiles with so many steps of the inner loop and of the outer one. */
static reshard_status find_convert_shape(rs_box_tables *tables, const convert_copy *c, const int64_t steps[2],
                                         uint32_t *index) {
  static const convert_loop one = {1, 0, 0, 0};
  const convert_loop *inner = c->nloops > 0 ? &c->loop[c->nloops - 1] : &one;
  const convert_loop *outer = c->nloops > 1 ? &c->loop[c->nloops - 2] : &one;
  const bool vector = is_vector(c, steps), whole = vector || is_whole(c);
  const int64_t unit = vector && !c->turned ? vector_numbers(&c->from, &c->to)
                       : whole              ? 4
                                            : 1,
                items = c->columns / unit, from_items = (c->turned ? c->rows : c->columns) / unit;
  const int64_t units = rs_ceil_div(c->rows * c->columns, rs_max(unit, 4));
  const int64_t held = vector && !c->turned ? RS_BOX_CONVERT_VECTORS : RS_BOX_CONVERT_UNITS;
  const int64_t wanted = rs_max(rs_ceil_div(units, held), rs_max(rs_min(units, LANES), held));
  const uint32_t lanes = log2_above(rs_min(wanted, RS_BOX_CONVERT_THREADS));
  const uint32_t turns = log2_above(rs_ceil_div(units, (int64_t)1 << lanes));
  const bool waits =
      !vector && 1 << turns > RS_BOX_CONVERT_UNITS && c->formats[2] != 0 && c->formats[1] == RESHARD_F8_E4M3;
  rs_box_shape shape = {.run = (uint32_t)c->columns,
                        .items = (uint32_t)items,
                        .magic = rs_box_magic((uint32_t)items),
                        .kind = vector  ? RS_BOX_CONVERT_V
                                : whole ? RS_BOX_CONVERT_4
                                        : RS_BOX_CONVERT_1,
                        .inside = 4,
                        .grain = (uint8_t)(is_aligned(c, true, unit) | is_aligned(c, false, unit) << 1),
                        .outer_src = outer->src,
                        .outer_dst = outer->dst,
                        .from = c->formats[0],
                        .to = c->formats[1],
                        .scale = c->formats[2],
                        .turned = c->turned};
  shape.inner = (rs_box_axis){inner->src, inner->dst, (uint32_t)steps[0], rs_box_magic((uint32_t)steps[0])};
  rs_box_axis more[3] = {{c->from.row, c->to.row, (uint32_t)(c->rows * items), 0},
                         {c->from.column, c->to.column, lanes, turns},
                         {inner->scales, outer->scales, (uint32_t)from_items, rs_box_magic((uint32_t)from_items)}};
  rs_box_vectors packed = {.line_src = (int32_t)c->from.row,
                           .line_dst = (int32_t)c->to.row,
                           .inner_src = (int32_t)inner->src,
                           .inner_dst = (int32_t)inner->dst,
                           .outer_src = (int32_t)outer->src,
                           .outer_dst = (int32_t)outer->dst,
                           .inner_scales = (int32_t)inner->scales,
                           .outer_scales = (int32_t)outer->scales,
                           .inner_n = shape.inner.n,
                           .inner_magic = shape.inner.magic,
                           .items = shape.items,
                           .magic = shape.magic,
                           .from_items = more[2].n,
                           .from_magic = more[2].magic,
                           .units = more[0].n,
                           .lanes = (uint8_t)lanes,
                           .turns = (uint8_t)turns,
                           .from = c->formats[0],
                           .to = c->formats[1],
                           .scale = c->formats[2],
                           .turned = c->turned,
                           .split = shape.grain != 3};
  _Static_assert(sizeof packed == sizeof more, "takes the place of three entries");
  if (vector)
    memcpy(more, &packed, sizeof more);
  uint32_t *threads = vector ? &tables->vector_threads : &tables->threads;
  *threads = (uint32_t)rs_max(*threads, 1 << lanes);
  tables->kept = rs_max(tables->kept, waits       ? (uint32_t)RS_BOX_CONVERT_KEPT
                                      : c->turned ? (uint32_t)RS_BOX_CONVERT_TURNED_KEPT
                                                  : 0);
  return rs_box_shape_index(tables, &shape, more, index);
}

static reshard_status add_tile(rs_box_tables *tables, const convert_copy *c, const int64_t *at, uint32_t shape,
                               int64_t outer_steps) {
  const char *src = c->src, *scales = c->scales;
  char *dst = c->dst;
  for (int i = 0; i < c->nloops; i++) {
    src += at[i] * c->loop[i].src;
    dst += at[i] * c->loop[i].dst;
    scales += at[i] * c->loop[i].scales;
  }
  RS_TRY(rs_vec_reserve(&tables->axis, tables->axis.n + 1));
  const bool vector = tables->shape.at[shape].kind == RS_BOX_CONVERT_V;
  const int class = vector ? RS_BOX_VECTORS : RS_BOX_CONVERTS;
  RS_TRY(rs_vec_reserve(&tables->tile[class], tables->tile[class].n + 1));
  tables->tile[class].at[tables->tile[class].n++] =
      (rs_box_tile){src, dst, vector ? tables->shape.at[shape].more : shape, (uint32_t)tables->axis.n};
  tables->axis.at[tables->axis.n++] = (rs_box_axis){(int64_t)(uintptr_t)scales, 0, (uint32_t)outer_steps, 0};
  return RESHARD_SUCCESS;
}

/* The box with rows that follow the source's lines, if it is large enough, as it is transposed. */
static convert_copy turn_box(const convert_copy *c) {
  convert_copy box = *c;
  box.turned = c->formats[2] == 0 && c->from.row == c->from.width && c->from.column != c->from.width &&
               c->to.column == c->to.width && rs_min(c->rows, c->columns) >= TURNED_LEAST &&
               rs_max(c->rows, c->columns) <= RS_BOX_CONVERT_TURNED;
  if (box.turned)
    box.from = (convert_side){c->from.width, c->from.column, c->from.row};
  return box;
}

/* Boxes of a tile of so many bytes of the source. One that is transposed fills all lanes. */
static int64_t count_boxes(const convert_copy *c, int64_t tile) {
  static const int64_t steps[2] = {RS_BOX_CONVERT_TURNED_BOXES, RS_BOX_CONVERT_TURNED_BOXES};
  if (c->turned)
    return is_vector(c, steps) ? RS_BOX_CONVERT_TURNED_BOXES : 1;
  return rs_max(1, tile / (c->rows * c->columns * c->from.width));
}

/* Cuts boxes in tiles of so many bytes of the source. */
static reshard_status cut_boxes(rs_box_tables *tables, const convert_copy *copy, int64_t tile) {
  const convert_copy turned = turn_box(copy), *c = &turned;
  const int64_t boxes = count_boxes(c, tile);
  const int inner = c->nloops - 1, outer = c->nloops - 2;
  int64_t at[LOOPS] = {0}, step[LOOPS], tiles = 1;
  for (int i = 0; i < c->nloops; i++)
    step[i] = 1;
  if (inner >= 0)
    step[inner] = rs_min(c->loop[inner].n, boxes);
  if (outer >= 0)
    step[outer] = rs_min(c->loop[outer].n, rs_max(1, boxes / step[inner]));
  for (int i = 0; i < c->nloops; i++)
    if (!rs_mul(tiles, rs_ceil_div(c->loop[i].n, step[i]), &tiles) || tiles > INT32_MAX)
      return rs_box_too_many_tiles();
  if (rs_max(tables->tile[RS_BOX_CONVERTS].n, tables->tile[RS_BOX_VECTORS].n) + tiles > INT32_MAX)
    return rs_box_too_many_tiles();
  for (int k = 0; k >= 0;) {
    uint32_t shape;
    const int64_t steps[2] = {inner < 0 ? 1 : rs_min(step[inner], c->loop[inner].n - at[inner]),
                              outer < 0 ? 1 : rs_min(step[outer], c->loop[outer].n - at[outer])};
    RS_TRY(find_convert_shape(tables, c, steps, &shape));
    RS_TRY(add_tile(tables, c, at, shape, steps[1]));
    for (k = inner; k >= 0; k--) {
      at[k] += step[k];
      if (at[k] < c->loop[k].n)
        break;
      at[k] = 0;
    }
  }
  return RESHARD_SUCCESS;
}

enum { PARTS = 4 };

/* Cuts rows or columns: those before the first block, whole blocks, whole units behind them, and the rest. */
static void cut_extent(int64_t n, int64_t head, int64_t unit, int64_t block, convert_part part[PARTS]) {
  head = rs_min(head, n);
  const int64_t rest = (n - head) % block;
  part[0] = (convert_part){head, head > 0};
  part[1] = (convert_part){block, (n - head) / block};
  part[2] = (convert_part){rest - rest % unit, rest >= unit};
  part[3] = (convert_part){rest % unit, rest % unit > 0};
}

static reshard_status cut_columns(rs_box_tables *tables, const convert_area *area, int64_t tile) {
  convert_part parts[PARTS];
  convert_copy part = area->copy;
  cut_extent(area->copy.columns, area->head, area->unit, area->block, parts);
  for (int i = 0; i < PARTS; i++) {
    if (parts[i].times == 0)
      continue;
    const int64_t n = parts[i].n;
    const convert_loop loop = {parts[i].times, n * part.from.column, n * part.to.column, area->scale_step};
    part.columns = n;
    part.nloops = area->copy.nloops;
    if (loop.n > 1)
      part.loop[part.nloops++] = loop;
    RS_TRY(cut_boxes(tables, &part, tile));
    part.src += loop.n * loop.src;
    part.dst += loop.n * loop.dst;
    part.scales += loop.n * loop.scales;
  }
  return RESHARD_SUCCESS;
}

static convert_area scaled_area(const rs_copies *copies, const rs_copy *copy) {
  const rs_scaled *scaled = &copies->scaled.at[copy->scaled - 1];
  const rs_block_box *b = &scaled->box;
  const bool back = copy->from == RESHARD_F8_E4M3;
  const convert_side wide = {(int64_t)reshard_dtype_size(b->wide_dtype), b->wide_stride[0], b->wide_stride[1]};
  const convert_side values = {1, b->value_stride[0], b->value_stride[1]};
  convert_area area = {.copy = {.src = copy->src,
                                .dst = copy->dst,
                                .scales = b->scales,
                                .rows = b->n[0],
                                .columns = b->n[1],
                                .from = back ? values : wide,
                                .to = back ? wide : values,
                                .nloops = copy->naxes,
                                .formats = {(uint8_t)copy->from, (uint8_t)copy->to, (uint8_t)b->scale_dtype}},
                       .head = b->skip[1] > 0 ? b->block[1] - b->skip[1] : 0,
                       .block = b->block[1],
                       .unit = 1,
                       .scale_step = b->scale_stride[1]};
  for (int i = 0; i < copy->naxes; i++) {
    const rs_axis *axis = &copies->axis.at[copy->axes + i];
    area.copy.loop[i] = (convert_loop){axis->n, axis->src, axis->dst, scaled->step[i]};
  }
  return area;
}

reshard_status rs_box_scale(rs_box_tables *tables, const rs_copies *copies, const rs_copy *copy, int64_t tile) {
  const convert_area area = scaled_area(copies, copy);
  return cut_columns(tables, &area, tile);
}

/* --- Casts --- */

/* Takes a loop out of those of a copy. */
static convert_loop take_loop(convert_copy *c, int at) {
  convert_loop taken = c->loop[at];
  c->nloops--;
  memmove(&c->loop[at], &c->loop[at + 1], (size_t)(c->nloops - at) * sizeof taken);
  return taken;
}

/* The loop that gives the rows: the one along source lines where columns leap there. */
static int find_rows(const convert_copy *c) {
  int best = c->nloops - 1;
  if (c->from.column != c->from.width)
    for (int i = 0; i < c->nloops; i++)
      if (c->loop[i].src != 0 && llabs(c->loop[i].src) < llabs(c->loop[best].src))
        best = i;
  return best;
}

/* Numbers from an address to the first unit of so many, where they are aligned to their width. */
static int64_t find_head(const void *at, int64_t width, int64_t unit) {
  const int64_t place = (int64_t)((uintptr_t)at % (uintptr_t)(unit * width));
  return place % width == 0 ? (unit - place / width) % unit : 0;
}

static reshard_status cut_cast(rs_box_tables *tables, const convert_copy *c, int64_t numbers) {
  const bool dense = c->from.column == c->from.width && c->to.column == c->to.width;
  const int64_t unit = vector_numbers(&c->from, &c->to);
  const int64_t head =
      c->from.width > c->to.width ? find_head(c->src, c->from.width, unit) : find_head(c->dst, c->to.width, unit);
  const convert_area area = {.copy = *c,
                             .head = dense ? head : 0,
                             .unit = dense ? unit : 1,
                             .block = rs_max(unit, numbers / c->rows / unit * unit)};
  return cut_columns(tables, &area, numbers * c->from.width);
}

/* Cuts rows: parts are over a loop more. */
static reshard_status cut_rows(rs_box_tables *tables, const convert_area *area, int64_t head, int64_t block,
                               int64_t numbers) {
  convert_part parts[PARTS];
  convert_area part = *area;
  convert_copy *c = &part.copy;
  cut_extent(area->copy.rows, head, area->unit, block, parts);
  for (int i = 0; i < PARTS; i++) {
    if (parts[i].times == 0)
      continue;
    const convert_loop loop = {parts[i].times, parts[i].n * c->from.row, parts[i].n * c->to.row, 0};
    c->rows = parts[i].n;
    c->nloops = area->copy.nloops;
    if (loop.n > 1)
      c->loop[c->nloops++] = loop;
    RS_TRY(part.block > 0 ? cut_columns(tables, &part, numbers * c->from.width) : cut_cast(tables, c, numbers));
    c->src += loop.n * loop.src;
    c->dst += loop.n * loop.dst;
  }
  return RESHARD_SUCCESS;
}

/* Cuts rows and columns in boxes that are transposed: units are aligned on both sides, where they can be. */
static reshard_status cut_turned(rs_box_tables *tables, convert_copy *c) {
  if (c->from.row < 0) {
    c->src += (c->rows - 1) * c->from.row;
    c->dst += (c->rows - 1) * c->to.row;
    c->from.row = -c->from.row;
    c->to.row = -c->to.row;
  }
  const int64_t rows = find_head(c->src, c->from.width, 4), columns = find_head(c->dst, c->to.width, 4);
  convert_copy box = *c;
  box.rows = box.columns = RS_BOX_CONVERT_TURNED;
  box.src += rows * c->from.row;
  box.dst += columns * c->to.width + rows * c->to.row;
  box.src += columns * c->from.column;
  box = turn_box(&box);
  const bool whole = is_whole(&box);
  const convert_area area = {
      .copy = *c, .head = whole ? columns : 0, .unit = whole ? 4 : 1, .block = RS_BOX_CONVERT_TURNED};
  return cut_rows(tables, &area, whole ? rows : 0, RS_BOX_CONVERT_TURNED, RS_BOX_CONVERT_TURNED);
}

reshard_status rs_box_cast(rs_box_tables *tables, const rs_copy *copy, int64_t nloops, const rs_box_loop *loops,
                           int64_t tile) {
  convert_copy c = {
      .src = copy->src, .dst = copy->dst, .rows = 1, .columns = copy->run / copy->element, .nloops = (int)nloops};
  c.from = (convert_side){copy->element, 0, copy->element};
  c.to.width = c.to.column = (int64_t)reshard_dtype_size((reshard_dtype)copy->to);
  c.formats[0] = (uint8_t)copy->from;
  c.formats[1] = (uint8_t)copy->to;
  if (nloops > LOOPS - 2) /* one of columns, one of rows */
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "a copy that converts has %lld loops, %d are the most on a GPU",
                    (long long)nloops, LOOPS - 2);
  for (int i = 0; i < c.nloops; i++)
    c.loop[i] = (convert_loop){loops[i].n, loops[i].src, loops[i].dst, 0};
  if (c.columns == 1 && c.nloops > 0) {
    const convert_loop columns = take_loop(&c, c.nloops - 1);
    c.columns = columns.n;
    c.from.column = columns.src;
    c.to.column = columns.dst;
  }
  const int64_t held = RS_BOX_CONVERT_VECTORS * RS_BOX_THREADS * vector_numbers(&c.from, &c.to);
  const int64_t numbers = rs_min(tile / c.from.width, held);
  if (c.nloops == 0)
    return cut_cast(tables, &c, numbers);
  const convert_loop rows = take_loop(&c, find_rows(&c));
  c.rows = rows.n;
  c.from.row = rows.src;
  c.to.row = rows.dst;
  const bool dense = c.from.column == c.from.width;
  if (!dense && c.to.column == c.to.width && llabs(rows.src) == c.from.width &&
      rs_min(c.rows, c.columns) >= TURNED_LEAST)
    return cut_turned(tables, &c);
  const int64_t most = rs_max(1, rs_min(rows.n, dense ? numbers / c.columns : LINES));
  return cut_rows(tables, &(convert_area){.copy = c, .unit = 1}, 0, most, numbers);
}
