/* Cutting copies in tiles.
 *
 * The loops of a copy are sorted by destination stride, descending ones turned round, so that tiles store along lines.
 * Then one of these:
 * - A row of more than half a tile is cut in contiguous pieces that begin with lines of the destination.
 * - Where the innermost loop leaps in the source while another one follows its lines, tiles are blocks of these two
 *   loops: so each source line is read by one block of threads. If the rows are single elements that are contiguous on
 *   one side each, this is a transpose, and goes through shared memory. Else the rest of a line waits in the
 *   first-level cache. Rows of 4 to 64 bytes that leap within a line are cut so for the sake of its sectors.
 * - Else a tile has whole inner loops as far as they fit, and a range of the next one.
 *
 * A tile is of the same size everywhere, but small programs have smaller ones, so that all SMs have work.
 *
 * Copies may take turns within lines: rows to columns of narrow shards, cyclic blocks. They must be at the same lines
 * at the same time. Else each of them would read the line from memory, or write a part of it there. So tiles of
 * programs with narrow lines, or with rows that end within lines, are sorted, by source or by destination address,
 * whichever has more of them. Copies of short rows that lie evenly between each other's are cut as one, with a loop
 * more. */
#include "device/cuda/tiles.h"

#include "base/order.h"

#include <stdlib.h>
#include <string.h>

enum {
  LEAP = 128,        /* a source stride that leaves the line */
  TINY_LEAST = 4,    /* rows whose sectors are worth being read once: shorter ones are bound by their instructions */
  TINY = 64,         /* the longest of these */
  SECTOR = 64,       /* bytes that memory gives at once */
  BLOCK_LEAST = 8,   /* steps worth a block */
  BLOCK_LINE = 256,  /* bytes of a block along lines of either side, at least */
  SHORT = 128,       /* from one row to the next in a line of the source, below which they are worth being blocked */
  SLOT_LEAST = 128,  /* rows worth 16-byte slots whatever their alignment: fewer items than by units, ends included */
  BULK_LEAST = 2048, /* rows worth the bulk kernel */
  NARROW = 512,      /* contiguous bytes below which neighbours matter */
  RAGGED = 2048,     /* likewise, bytes of rows that are not aligned to 16 */
};

/* A copy while it is cut. */
typedef struct tiled_copy {
  const char *src;
  char *dst;
  int64_t run;
  int n;
  rs_box_loop *loop; /* outermost first */
  int grain;         /* log2 of what everything is aligned to, at most 4 */
  /* The tiles. */
  rs_box_class class;
  int64_t piece;  /* contiguous: bytes; else 0 */
  int kind;       /* rs_box_kind */
  int nfold;      /* loops of a tile */
  int inner, out; /* index of the innermost and of the outermost of these; the rest is between */
} tiled_copy;

int64_t rs_box_tile_bytes(int64_t bytes, int sms) {
  int64_t size = bytes / ((int64_t)sms * RS_BOX_TILES_PER_SM) / RS_BOX_TILE_LEAST * RS_BOX_TILE_LEAST;
  return rs_max(rs_min(size, RS_BOX_TILE), RS_BOX_TILE_LEAST);
}

/* --- Loops in the order of the destination --- */

static bool comes_before(const rs_axis *a, const rs_axis *b) {
  return a->dst != b->dst ? a->dst > b->dst : a->src > b->src;
}

static void sort_loops(rs_axis *loops, int n) {
  for (int i = 1; i < n; i++)
    for (int j = i; j > 0 && comes_before(&loops[j], &loops[j - 1]); j--) {
      rs_axis swap = loops[j];
      loops[j] = loops[j - 1];
      loops[j - 1] = swap;
    }
}

static int find_grain(const tiled_copy *c) {
  uint64_t bits = (uint64_t)(uintptr_t)c->src | (uint64_t)(uintptr_t)c->dst | (uint64_t)c->run | 16;
  for (int i = 0; i < c->n; i++)
    bits |= (uint64_t)c->loop[i].src | (uint64_t)c->loop[i].dst;
  return __builtin_ctzll(bits);
}

static bool is_tiny(int64_t run) { return run >= TINY_LEAST && run <= TINY; }

/* Is b as a is, beside it in the same source lines? */
static bool lies_beside(const rs_copies *copies, const rs_copy *a, const rs_copy *b) {
  int64_t apart = llabs(b->src - a->src);
  return a->run == b->run && a->naxes == b->naxes && apart > 0 && apart < SHORT &&
         memcmp(copies->axis.at + a->axes, copies->axis.at + b->axes, (size_t)a->naxes * sizeof(rs_axis)) == 0;
}

/* Copies from this one on, of tiny rows, that are the steps of one loop. */
static int64_t count_interleaved(const rs_copies *copies, int64_t first) {
  const rs_copy *a = &copies->copy.at[first];
  int64_t n = 1, left = a->from == a->to && is_tiny(a->run) && a->naxes > 0 ? copies->copy.n - first : 1;
  while (n < left && a[n].from == a[n].to && lies_beside(copies, a + n - 1, a + n) &&
         a[n].src - a[n - 1].src == a[1].src - a[0].src && a[n].dst - a[n - 1].dst == a[1].dst - a[0].dst)
    n++;
  return n;
}

/* Opens a copy, with those that are `steps` of one loop from it on. */
static reshard_status open_copy(rs_box_tables *tables, const rs_copies *copies, const rs_copy *copy, int64_t steps,
                                tiled_copy *c) {
  int n = copy->naxes + (steps > 1);
  RS_TRY(rs_vec_reserve(&tables->loops, 2 * (int64_t)n));
  RS_TRY(rs_vec_reserve(&tables->loop, n + 1));
  *c = (tiled_copy){.src = copy->src, .dst = copy->dst, .loop = tables->loop.at};
  rs_axis *loops = tables->loops.at, *kept = loops + n;
  for (int i = 0; i < n; i++) {
    loops[i] = i < copy->naxes ? copies->axis.at[copy->axes + i]
                               : (rs_axis){steps, copy[1].src - copy->src, copy[1].dst - copy->dst};
    if (loops[i].dst < 0) {
      c->src += (loops[i].n - 1) * loops[i].src;
      c->dst += (loops[i].n - 1) * loops[i].dst;
      loops[i].src = -loops[i].src;
      loops[i].dst = -loops[i].dst;
    }
  }
  sort_loops(loops, n);
  const int64_t to = rs_converted_bytes((reshard_dtype)copy->from, (reshard_dtype)copy->to, copy->run);
  c->n = rs_axes_merge(n, loops, copy->run, to, kept, &c->run);
  c->run *= copy->run;
  for (int i = 0; i < c->n; i++)
    c->loop[i] = (rs_box_loop){kept[i].n, kept[i].src, kept[i].dst, 1, 0, 0, 0};
  c->grain = find_grain(c);
  return RESHARD_SUCCESS;
}

/* --- Which tiles --- */

/* Does the innermost loop leap within source lines, while others need the rest of their sectors? */
static bool leaps_in_line(const tiled_copy *c) { return is_tiny(c->run) && llabs(c->loop[c->n - 1].src) < LEAP; }

/* Index of the loop that follows the source's lines where the innermost one leaps, or -1. */
static int follows_source(const tiled_copy *c, const rs_box_policy *policy) {
  if (c->n < 2 || c->run > TINY || c->loop[c->n - 1].n < BLOCK_LEAST)
    return -1;
  const bool in_line = leaps_in_line(c);
  const int64_t leap = llabs(c->loop[c->n - 1].src), below = in_line ? rs_min(leap, SECTOR) : SHORT;
  if (leap < (!in_line ? LEAP : policy->leap > 0 ? policy->leap : RS_BOX_LEAP))
    return -1;
  int best = -1;
  for (int i = 0; i < c->n - 1; i++) {
    int64_t stride = llabs(c->loop[i].src);
    if (stride < below && stride != 0 && (best < 0 || stride < llabs(c->loop[best].src)))
      best = i;
  }
  return best;
}

/* Steps of a loop from the last line boundary to the address. */
static int64_t steps_into_line(const void *at, int64_t step) {
  int64_t bytes = (int64_t)((uintptr_t)at % RS_BOX_LINE);
  return bytes % step == 0 ? bytes / step : 0;
}

/* Tiles of the last loop and of the one that follows the source, which becomes the last: neighbours in the list are
 * neighbours in the source. */
static void cut_blocks(tiled_copy *c, int follows, int64_t tile) {
  rs_box_loop *j = &c->loop[c->n - 2], *i = &c->loop[c->n - 1], moved = c->loop[follows], last = *i;
  bool few = leaps_in_line(c) || moved.n < BLOCK_LEAST, fills = !few || 2 * moved.n >= RS_BOX_TRANSPOSE_I(c->run);
  memmove(&c->loop[follows], &c->loop[follows + 1], (size_t)(c->n - 2 - follows) * sizeof moved);
  *j = last;
  *i = moved;
  c->nfold = 2;
  c->inner = c->n - 2;
  c->out = c->n - 1;
  bool element = c->run <= 16 && (c->run & (c->run - 1)) == 0 && c->run <= 1 << c->grain;
  if (element && fills && j->dst == c->run && llabs(i->src) == c->run) {
    if (i->src < 0) {
      c->src += (i->n - 1) * i->src;
      c->dst += (i->n - 1) * i->dst;
      i->src = -i->src;
      i->dst = -i->dst;
    }
    c->class = RS_BOX_TRANSPOSES;
    c->kind = RS_BOX_TRANSPOSE;
    i->block = rs_max(RS_BOX_TRANSPOSE_I(c->run) * rs_min(tile, RS_BOX_TRANSPOSE_TILE) / RS_BOX_TRANSPOSE_TILE, 32);
    j->block = RS_BOX_TRANSPOSE_J(c->run);
    i->skew = steps_into_line(c->src, c->run) % i->block;
    j->skew = steps_into_line(c->dst, c->run) % j->block;
    return;
  }
  int64_t least = rs_max(BLOCK_LINE / c->run, BLOCK_LEAST);
  i->block = rs_min(rs_min(least, i->n), rs_max(tile / c->run / BLOCK_LEAST, 1));
  int64_t step = rs_max(c->run * i->block, rs_min(llabs(j->src), LEAP)); /* a line waits with its gaps */
  j->block = rs_min(j->n, rs_max(tile / step, 1));
  i->block = rs_min(i->n, rs_max(tile / c->run / j->block, 1));
}

static void cut_pieces(tiled_copy *c, int64_t tile) {
  int64_t lead = (int64_t)((uintptr_t)c->dst % RS_BOX_LINE), pieces = rs_ceil_div(c->run + lead, tile);
  c->piece = rs_ceil_div(rs_ceil_div(c->run + lead, pieces), RS_BOX_LINE) * RS_BOX_LINE;
}

/* Whole inner loops, at most `most` of them, and an equal part of the next one. */
static void cut_loops(tiled_copy *c, int64_t tile, int most) {
  int64_t rows = tile / c->run;
  c->inner = c->out = c->n - 1;
  for (int k = c->n - 1; k >= 0 && rows > 1 && c->nfold < most; k--) {
    rs_box_loop *loop = &c->loop[k];
    loop->block = rs_ceil_div(loop->n, rs_ceil_div(loop->n, rows));
    c->out = k;
    c->nfold++;
    rows /= loop->block;
    if (loop->block < loop->n)
      break;
  }
}

static void choose_tiles(tiled_copy *c, const rs_box_policy *policy, int64_t tile) {
  c->class = RS_BOX_ROWS;
  c->kind = c->run >= SLOT_LEAST && c->grain < 4 ? RS_BOX_SLOTS : c->grain;
  bool bulk = c->run >= BULK_LEAST && c->grain == 4;
  int follows = follows_source(c, policy);
  if (bulk)
    c->class = RS_BOX_BULK;
  if (follows >= 0)
    cut_blocks(c, follows, tile);
  else if (c->run > tile / 2 || c->n == 0)
    cut_pieces(c, bulk ? tile : rs_min(tile, RS_BOX_PIECE));
  else
    cut_loops(c, tile, bulk ? 1 : RS_BOX_LOOPS);
}

/* --- Tiles --- */

static int64_t begin_of(const rs_box_loop *loop) { return rs_max(loop->at * loop->block - loop->skew, 0); }
static int64_t steps_of(const rs_box_loop *loop) {
  return rs_min((loop->at + 1) * loop->block - loop->skew, loop->n) - begin_of(loop);
}

/* Of the tile at which the loops are. */
static reshard_status find_shape(rs_box_tables *tables, const tiled_copy *c, uint32_t *index) {
  const rs_box_loop *out = &c->loop[c->out], *inner = &c->loop[c->inner];
  rs_box_shape shape = {.run = (uint32_t)c->run,
                        .kind = (uint8_t)c->kind,
                        .inside = (uint8_t)(c->nfold - 1),
                        .grain = (uint8_t)c->grain,
                        .outer_src = out->src,
                        .outer_dst = out->dst};
  shape.items = c->kind == RS_BOX_SLOTS ? shape.run / 16 : c->kind < RS_BOX_SLOTS ? shape.run >> c->kind : 1;
  shape.magic = rs_box_magic(shape.items);
  rs_box_axis axes[RS_BOX_LOOPS];
  int64_t differ = out->src - out->dst;
  for (int k = 0; k < c->nfold - 1; k++) {
    const rs_box_loop *loop = inner - k;
    uint32_t n = (uint32_t)steps_of(loop);
    axes[k] = (rs_box_axis){loop->src, loop->dst, n, rs_box_magic(n)};
    differ |= loop->src - loop->dst;
  }
  shape.agree = differ % 16 == 0;
  if (shape.inside > 0)
    shape.inner = axes[0];
  return rs_box_shape_index(tables, &shape, axes + 1, index);
}

reshard_status rs_box_too_many_tiles(void) {
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "copies of more than %d tiles of up to %d bytes in one program", INT32_MAX,
                  RS_BOX_TILE_MOST);
}

/* Counts blocks of loops, once: a division each. */
static reshard_status count_tiles(tiled_copy *c, int64_t *n) {
  *n = c->piece > 0 ? rs_ceil_div(c->run, c->piece) + 1 : 1;
  for (int k = 0; k < c->n; k++) {
    rs_box_loop *loop = &c->loop[k];
    loop->blocks = rs_ceil_div(loop->n + loop->skew, loop->block);
    if (!rs_mul(*n, loop->blocks, n) || *n > INT32_MAX)
      return rs_box_too_many_tiles();
  }
  return *n > INT32_MAX ? rs_box_too_many_tiles() : RESHARD_SUCCESS;
}

/* To the next block; false behind the last one. */
static bool next_block(tiled_copy *c) {
  for (int k = c->n - 1; k >= 0; k--) {
    if (++c->loop[k].at < c->loop[k].blocks)
      return true;
    c->loop[k].at = 0;
  }
  return false;
}

/* Adds a tile for each block of the outermost loop of a tile, the first one that next_block goes to. */
static rs_box_tile *add_row(tiled_copy *c, const char *src, char *dst, uint32_t shape, int64_t inner,
                            rs_box_tile *next) {
  rs_box_loop *out = &c->loop[c->out];
  for (int64_t steps; out->at < out->blocks; out->at++) {
    steps = steps_of(out);
    *next++ = (rs_box_tile){src, dst, shape, (uint32_t)(steps | inner)};
    src += steps * out->src;
    dst += steps * out->dst;
  }
  out->at--;
  return next;
}

static reshard_status add_tiles(rs_box_tables *tables, tiled_copy *c) {
  int64_t most, inner_steps = -1;
  RS_TRY(count_tiles(c, &most));
  if (tables->tile[c->class].n + most > INT32_MAX)
    return rs_box_too_many_tiles();
  RS_TRY(rs_vec_reserve(&tables->tile[c->class], tables->tile[c->class].n + most));
  rs_box_tile *next = tables->tile[c->class].at + tables->tile[c->class].n;
  uint32_t shape = RS_BOX_CONTIGUOUS;
  do {
    const char *src = c->src;
    char *dst = c->dst;
    for (int k = 0; k < c->n; k++) {
      int64_t begin = begin_of(&c->loop[k]);
      src += begin * c->loop[k].src;
      dst += begin * c->loop[k].dst;
    }
    if (c->piece > 0) {
      int64_t pieces = rs_box_pieces(dst, c->run, c->piece);
      for (int64_t i = 0; i < pieces; i++) {
        int64_t at = rs_box_piece_begin(dst, c->piece, i), end = rs_box_piece_begin(dst, c->piece, i + 1);
        *next++ = (rs_box_tile){src + at, dst + at, RS_BOX_CONTIGUOUS, (uint32_t)(rs_min(end, c->run) - at)};
      }
    } else if (c->nfold == 0) {
      *next++ = (rs_box_tile){src, dst, RS_BOX_CONTIGUOUS, (uint32_t)c->run};
    } else {
      int64_t inner = c->nfold > 1 ? steps_of(&c->loop[c->inner]) : 0;
      if (inner != inner_steps)
        RS_TRY(find_shape(tables, c, &shape));
      inner_steps = inner;
      next = add_row(c, src, dst, shape, c->class == RS_BOX_TRANSPOSES ? inner << 16 : 0, next);
    }
  } while (next_block(c));
  tables->tile[c->class].n = next - tables->tile[c->class].at;
  return RESHARD_SUCCESS;
}

/* --- Narrow lines --- */

/* Contiguous bytes of a side, as far as its loops follow one another. */
static int64_t contiguous_bytes(const tiled_copy *c, bool of_source) {
  int64_t width = c->run;
  for (int k = c->n - 1; k >= 0 && width < NARROW; k--) {
    int at = -1;
    for (int i = 0; i < c->n && at < 0; i++)
      if (llabs(of_source ? c->loop[i].src : c->loop[i].dst) == width)
        at = i;
    if (at < 0)
      break;
    width *= c->loop[at].n;
  }
  return width;
}

/* Are lines of a side of several tiles? */
static bool shares_lines(const tiled_copy *c, bool of_source) {
  bool leaps = true;
  for (int k = c->n - c->nfold; k < c->n; k++)
    leaps &= llabs(of_source ? c->loop[k].src : c->loop[k].dst) != c->run;
  return contiguous_bytes(c, of_source) < NARROW || (leaps && c->grain < 4 && c->run < RAGGED);
}

static void note_lines(rs_box_tables *tables, const tiled_copy *c) {
  int64_t bytes = c->run;
  for (int k = 0; k < c->n; k++)
    bytes *= c->loop[k].n;
  if (c->class == RS_BOX_BULK) {
    int64_t tile = c->piece > 0 ? c->piece : c->run * c->loop[c->out].block;
    tables->largest = (uint32_t)rs_max(tables->largest, tile);
    tables->bulk_bytes += bytes;
  }
  tables->slots |= c->kind == RS_BOX_SLOTS && c->piece == 0;
  if (c->n > 0 && shares_lines(c, true))
    tables->narrow_src += bytes;
  if (c->n > 0 && shares_lines(c, false))
    tables->narrow_dst += bytes;
}

RS_ORDER_BY(by_source, rs_box_tile, src)
RS_ORDER_BY(by_destination, rs_box_tile, dst)

/* --- Programs --- */

static void clear_tables(rs_box_tables *tables) {
  for (int c = 0; c < RS_BOX_CLASSES; c++)
    tables->tile[c].n = 0;
  tables->shape.n = tables->axis.n = tables->hand.n = 0;
  tables->last = tables->largest = tables->slots = 0;
  tables->threads = tables->kept = tables->vector_threads = 0;
  tables->bulk_bytes = tables->narrow_src = tables->narrow_dst = 0;
  if (tables->slot.at != NULL)
    memset(tables->slot.at, 0, (size_t)tables->slot.n * sizeof *tables->slot.at);
}

/* Tiles of class bulk are good for rows, too: few of them are not worth a launch of their own. */
static reshard_status move_bulk_to_rows(rs_box_tables *tables) {
  int64_t rows = tables->tile[RS_BOX_ROWS].n, bulk = tables->tile[RS_BOX_BULK].n;
  if (rows + bulk > INT32_MAX)
    return rs_box_too_many_tiles();
  RS_TRY(rs_vec_reserve(&tables->tile[RS_BOX_ROWS], rows + bulk));
  memcpy(tables->tile[RS_BOX_ROWS].at + rows, tables->tile[RS_BOX_BULK].at, (size_t)bulk * sizeof(rs_box_tile));
  tables->tile[RS_BOX_ROWS].n += bulk;
  tables->tile[RS_BOX_BULK].n = 0;
  return RESHARD_SUCCESS;
}

/* Adds the tiles of a copy, with those that are `steps` of one loop from it on. */
static reshard_status add_copy(rs_box_tables *tables, const rs_copies *copies, const rs_copy *copy, int64_t steps,
                               const rs_box_policy *policy, int64_t tile, rs_box_class *class) {
  tiled_copy c;
  *class = RS_BOX_CONVERTS;
  if (copy->scaled > 0)
    return rs_box_scale(tables, copies, copy, tile);
  RS_TRY(open_copy(tables, copies, copy, steps, &c));
  if (copy->from != copy->to) {
    const rs_copy sorted = {
        .src = c.src, .dst = c.dst, .run = c.run, .element = copy->element, .from = copy->from, .to = copy->to};
    return rs_box_cast(tables, &sorted, c.n, c.loop, tile);
  }
  choose_tiles(&c, policy, tile);
  note_lines(tables, &c);
  *class = c.class;
  return add_tiles(tables, &c);
}

reshard_status rs_box_tables_make(rs_box_tables *tables, const rs_copies *copies, const rs_box_policy *policy) {
  int64_t tile = policy->tile > 0 ? policy->tile : rs_box_tile_bytes(copies->bytes, policy->sms);
  clear_tables(tables);
  for (int64_t i = 0, steps; i < copies->copy.n; i += steps) {
    const rs_copy *copy = &copies->copy.at[i];
    rs_box_class class;
    steps = count_interleaved(copies, i);
    RS_TRY(add_copy(tables, copies, copy, steps, policy, tile, &class));
    if (copies->deal)
      RS_TRY(rs_box_deal_note(tables, class, copy->peer));
    if (copies->deal && class == RS_BOX_CONVERTS)
      RS_TRY(rs_box_deal_note(tables, RS_BOX_VECTORS, copy->peer));
  }
  RS_TRY(rs_box_deal(tables));
  int64_t from = policy->bulk_from > 0 ? policy->bulk_from : RS_BOX_BULK_FROM;
  if (tables->tile[RS_BOX_BULK].n > 0 && (tables->bulk_bytes < from || tables->bulk_bytes < copies->bytes / 2))
    RS_TRY(move_bulk_to_rows(tables));
  bool narrow = tables->narrow_src + tables->narrow_dst > 0;
  for (int c = 0; c < RS_BOX_CLASSES; c++)
    if (narrow && c != RS_BOX_BULK && tables->tile[c].n > 1)
      qsort(tables->tile[c].at, (size_t)tables->tile[c].n, sizeof(rs_box_tile),
            tables->narrow_dst > tables->narrow_src ? by_destination : by_source);
  return RESHARD_SUCCESS;
}

void rs_box_tables_free(rs_box_tables *tables) {
  for (int c = 0; c < RS_BOX_CLASSES; c++)
    free(tables->tile[c].at);
  free(tables->shape.at);
  free(tables->axis.at);
  free(tables->slot.at);
  free(tables->loops.at);
  free(tables->loop.at);
  free(tables->hand.at);
  free(tables->dealt.at);
  free(tables->count.at);
  *tables = (rs_box_tables){0};
}
