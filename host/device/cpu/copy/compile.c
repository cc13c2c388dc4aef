/* Box copies in the order of their destination.
 *
 * Memory is written best line after line. So the loops of a copy are sorted by destination stride, whatever order they
 * came in, and descending loops are turned round. Where the innermost loop then leaps in the source and another loop
 * does not, each source line would be fetched once an element. Such a copy is a transpose and is done in blocks that
 * are narrow in both directions. A long run becomes a loop over parts of it, so that threads can share it.
 */
#include "device/cpu/cast/blocks.h"
#include "device/cpu/copy/program.h"

#include <stdlib.h>
#include <string.h>

enum {
  LEAP = 128,         /* a source stride that leaves the line and its neighbour */
  BLOCK_LEAST = 8,    /* steps worth a block */
  BLOCK_SRC = 256,    /* bytes of a block that are contiguous in the source */
  BLOCK_DST = 512,    /* and in the destination */
  TILE_SRC = 512,     /* the same where the transpose has a kernel, which asks for what comes next row by row */
  TILE_COLUMNS = 128, /* least */
  TILE_DST = 1024,
  TILE_ROWS = 512,   /* most: several threads share a transpose */
  PART = 64 << 10,   /* of a long run */
  BLOCKS_ROW = 8192, /* bytes of a row of blocks that is worth being read together */
};

static int by_destination(const void *a, const void *b) {
  const rs_loop *x = a, *y = b;
  if (x->dst != y->dst)
    return x->dst < y->dst ? 1 : -1;
  return x->src < y->src ? 1 : x->src > y->src ? -1 : 0;
}

static void sort_loops(rs_loop *loops, int n) {
  for (int i = 1; i < n; i++)
    for (int j = i; j > 0 && by_destination(&loops[j - 1], &loops[j]) > 0; j--) {
      rs_loop swap = loops[j];
      loops[j] = loops[j - 1];
      loops[j - 1] = swap;
    }
}

/* Merges loops and the run of a copy as rs_copies_add does, in the new order. */
static int merge_loops(rs_loop *loops, int n, rs_ordered_copy *copy) {
  while (n > 0 && loops[n - 1].src == copy->run && loops[n - 1].dst == rs_copy_dst_run(copy))
    copy->run *= loops[--n].n;
  int kept = 0;
  for (int i = 0; i < n; i++) {
    rs_loop *outer = kept > 0 ? &loops[kept - 1] : NULL;
    if (outer != NULL && outer->src == loops[i].src * loops[i].n && outer->dst == loops[i].dst * loops[i].n)
      *outer = (rs_loop){outer->n * loops[i].n, loops[i].src, loops[i].dst, 0};
    else
      loops[kept++] = loops[i];
  }
  return kept;
}

/* Index of the loop that makes a transpose with the last one, or -1. */
static int transposed_with_last(const rs_loop *loops, int n, int64_t run) {
  if (n < 2 || run >= RS_LINE || llabs(loops[n - 1].src) < LEAP || loops[n - 1].n < BLOCK_LEAST)
    return -1;
  int best = -1;
  for (int i = 0; i < n - 1; i++)
    if (loops[i].n >= BLOCK_LEAST && llabs(loops[i].src) < RS_LINE && loops[i].src != 0 &&
        (best < 0 || llabs(loops[i].src) < llabs(loops[best].src)))
      best = i;
  return best;
}

static void move_before_last(rs_loop *loops, int n, int i) {
  rs_loop moved = loops[i];
  memmove(&loops[i], &loops[i + 1], (size_t)(n - 2 - i) * sizeof *loops);
  loops[n - 2] = moved;
}

/* Indices from the last line boundary to the address. */
static int64_t skew_in_line(uintptr_t address, int64_t run) {
  int64_t bytes = (int64_t)(address % RS_LINE);
  return bytes % run == 0 ? bytes / run : 0;
}

rs_blocks rs_copy_blocks(const rs_ordered_copy *copy, const rs_loop *loops) {
  const rs_loop *i = &loops[copy->nloops - 2], *j = &loops[copy->nloops - 1];
  rs_blocks blocks = {.ni = rs_max(BLOCK_SRC / copy->run, 4), .nj = rs_max(BLOCK_DST / copy->run, 4)};
  int64_t to = rs_copy_dst_run(copy);
  if (to < copy->run) { /* converted, and then transposed as below */
    int64_t line = RS_LINE / to;
    blocks.ni = TILE_SRC / copy->run;
    blocks.nj = RS_TILE / (blocks.ni * to + RS_LINE) / line * line;
  } else if (rs_copy_converts(copy)) { /* through a buffer in the cache */
    blocks.nj = rs_max(RS_TILE_ROW / to, RS_LINE);
    int64_t line = rs_max(RS_LINE / copy->run, 1), most = RS_TILE / (blocks.nj * copy->run + RS_LINE);
    blocks.ni = rs_min(rs_max(2 * RS_TILE_ROW / copy->run, RS_LINE), most / line * line);
  } else if (copy->width >= 0) {
    blocks.ni = rs_max(TILE_SRC / copy->run, TILE_COLUMNS);
    blocks.nj = rs_min(TILE_DST / copy->run, TILE_ROWS);
  }
  if (copy->width >= 0) {
    blocks.skew_i = skew_in_line((uintptr_t)copy->src, copy->run);
    blocks.skew_j = skew_in_line((uintptr_t)copy->dst, rs_copy_dst_run(copy));
  }
  blocks.down = rs_ceil_div(i->n + blocks.skew_i, blocks.ni);
  blocks.across = rs_ceil_div(j->n + blocks.skew_j, blocks.nj);
  return blocks;
}

/* Steps, or blocks, within one step of each loop. */
static void count_inner(const rs_ordered_copy *copy, rs_loop *loops) {
  int n = copy->nloops;
  int64_t inner = 1;
  if (copy->transpose) {
    rs_blocks blocks = rs_copy_blocks(copy, loops);
    inner = blocks.down * blocks.across;
    n -= 2;
  }
  for (int i = n - 1; i >= 0; i--) {
    loops[i].inner = inner;
    inner *= loops[i].n;
  }
}

/* Sorts and merges the loops of a copy into `loops`; the result lacks only the index of its loops. */
static rs_ordered_copy order_copy(const rs_copies *copies, const rs_copy *copy, rs_loop *loops) {
  rs_ordered_copy ordered = {.src = copy->src,
                             .dst = copy->dst,
                             .run = copy->run,
                             .width = -1,
                             .from = (int8_t)copy->from,
                             .to = (int8_t)copy->to};
  for (int i = 0; i < copy->naxes; i++) {
    const rs_axis *axis = &copies->axis.at[copy->axes + i];
    loops[i] = (rs_loop){axis->n, axis->src, axis->dst, 0};
    if (axis->dst < 0) {
      ordered.src += (axis->n - 1) * axis->src;
      ordered.dst += (axis->n - 1) * axis->dst;
      loops[i] = (rs_loop){axis->n, -axis->src, -axis->dst, 0};
    }
  }
  sort_loops(loops, copy->naxes);
  ordered.nloops = merge_loops(loops, copy->naxes, &ordered);
  int with = transposed_with_last(loops, ordered.nloops, ordered.run);
  if (with < 0)
    return ordered;
  bool adjacent = loops[with].src == ordered.run && loops[ordered.nloops - 1].dst == rs_copy_dst_run(&ordered);
  if (adjacent)
    ordered.width = (int8_t)rs_width_index(ordered.run);
  if (rs_copy_converts(&ordered) &&
      (!adjacent || ordered.run != (int64_t)reshard_dtype_size((reshard_dtype)ordered.from)))
    return ordered;
  ordered.transpose = true;
  move_before_last(loops, ordered.nloops, with);
  return ordered;
}

/* Appends a copy to the program; its loops are there already. */
static void append_copy(rs_program *program, rs_ordered_copy copy) {
  copy.loops = program->loop.n;
  if (copy.nloops > 0)
    count_inner(&copy, program->loop.at + copy.loops);
  program->copy.at[program->copy.n++] = copy;
  program->loop.n += copy.nloops;
}

/* Makes steps of the loop over neighbouring blocks a part of the box where their values go one block behind the other,
 * as in a message: memory is read in longer rows. Returns how many. On the way back a message is in the cache. */
static int64_t take_columns(rs_block_box *box, const rs_axis *axis, int64_t scales) {
  int64_t row = box->n[1] * (int64_t)reshard_dtype_size(box->wide_dtype);
  int64_t n = rs_max(1, rs_min(axis->n, BLOCKS_ROW / row));
  while (axis->n % n != 0)
    n--;
  if (n == 1 || box->n[1] != box->block[1] || box->value_stride[1] != 1 || axis->src != box->n[1] * box->wide_stride[1])
    return 1;
  box->n[1] *= n;
  box->value_step = axis->dst;
  box->scale_stride[1] = scales;
  return n;
}

/* A box of blocks with its loops. */
static reshard_status add_scaled(rs_program *program, const rs_copies *copies, const rs_copy *copy) {
  rs_loop *loops = program->loop.at + program->loop.n;
  RS_TRY(rs_vec_reserve(&program->scaled, program->scaled.n + 1));
  rs_scaled *scaled = &program->scaled.at[program->scaled.n++];
  *scaled = copies->scaled.at[copy->scaled - 1];
  rs_ordered_copy ordered = {.src = copy->src,
                             .dst = copy->dst,
                             .run = copy->run,
                             .width = -1,
                             .from = (int8_t)copy->from,
                             .to = (int8_t)copy->to,
                             .scaled = (int32_t)program->scaled.n};
  for (int i = 0; i < copy->naxes; i++) {
    const rs_axis *axis = &copies->axis.at[copy->axes + i];
    int64_t n = copy->from == RESHARD_F8_E4M3 ? 1 : take_columns(&scaled->box, axis, scaled->step[i]);
    ordered.run *= n;
    if (n == axis->n)
      continue;
    scaled->step[ordered.nloops] = n * scaled->step[i];
    loops[ordered.nloops++] = (rs_loop){axis->n / n, n * axis->src, n * axis->dst, 0};
  }
  append_copy(program, ordered);
  return RESHARD_SUCCESS;
}

/* Makes a box and loops around it of a copy: the loop over rows of blocks is a part of the box again. */
static int take_scaled(const rs_copies *copies, const rs_copy *copy, bool back, rs_block_box *box,
                       rs_block_axis *axes) {
  const rs_scaled *scaled = &copies->scaled.at[copy->scaled - 1];
  int n = copy->naxes;
  *box = scaled->box;
  for (int i = 0; i < n; i++) {
    const rs_axis *axis = &copies->axis.at[copy->axes + i];
    axes[i] = (rs_block_axis){axis->n, back ? axis->dst : axis->src, back ? axis->src : axis->dst, scaled->step[i]};
  }
  const rs_block_axis *last = n > 0 ? &axes[n - 1] : NULL;
  if (last == NULL || box->n[0] != box->block[0] || last->wide != box->n[0] * box->wide_stride[0] ||
      last->values != box->n[0] * box->value_stride[0] || last->scales != box->scale_stride[0])
    return n;
  box->n[0] *= last->n;
  return n - 1;
}

/* Where blocks are one row, any loop may give the rows: the one along which the other side is contiguous. */
static void choose_rows(rs_block_box *box, int n, rs_block_axis *axes) {
  int64_t width = (int64_t)reshard_dtype_size(box->wide_dtype);
  for (int i = 0; i < n && box->block[0] == 1 && box->wide_stride[0] != width && box->wide_stride[1] != width; i++) {
    if (axes[i].wide != width)
      continue;
    rs_block_axis rows = {box->n[0], box->wide_stride[0], box->value_stride[0], box->scale_stride[0]};
    box->n[0] = axes[i].n;
    box->wide_stride[0] = axes[i].wide;
    box->value_stride[0] = axes[i].values;
    box->scale_stride[0] = axes[i].scales;
    axes[i] = rows;
  }
}

/* A box that is contiguous down its columns on a side: the other one than values gets rows, and values are transposed,
 * which are narrower. Steps have rows enough for that. */
static reshard_status add_turned(rs_program *program, const rs_copies *copies, const rs_copy *copy, bool *added) {
  bool back = copy->from == RESHARD_F8_E4M3;
  rs_block_box box;
  rs_block_axis axes[2 * RESHARD_MAX_DIMS + 1];
  rs_copies *turned = &program->turned;
  int n = take_scaled(copies, copy, back, &box, axes);
  for (int i = 0; i < 2; i++) {
    choose_rows(&box, n, axes);
    rs_block_box_turn(&box);
  }
  if (box.wide_stride[0] == (int64_t)reshard_dtype_size(box.wide_dtype) && box.wide_stride[0] != box.wide_stride[1])
    rs_block_box_turn(&box);
  *added = rs_blocks_rows(&box) > 0;
  if (!*added)
    return RESHARD_SUCCESS;
  rs_copies_clear(turned);
  RS_TRY(rs_copies_scale_rows(turned, &box, rs_blocks_rows(&box), back, n, axes));
  RS_TRY(rs_vec_reserve(&program->copy, program->copy.n + turned->copy.n));
  RS_TRY(rs_vec_reserve(&program->loop, program->loop.n + turned->axis.n));
  for (int64_t i = 0; i < turned->copy.n; i++)
    RS_TRY(add_scaled(program, turned, &turned->copy.at[i]));
  return RESHARD_SUCCESS;
}

reshard_status rs_program_add(rs_program *program, const rs_copies *copies, const rs_copy *copy) {
  RS_TRY(rs_vec_reserve(&program->copy, program->copy.n + 2));
  RS_TRY(rs_vec_reserve(&program->loop, program->loop.n + 2 * copy->naxes + 1));
  if (copy->scaled > 0) {
    bool added = false;
    RS_TRY(add_turned(program, copies, copy, &added));
    return added ? RESHARD_SUCCESS : add_scaled(program, copies, copy);
  }
  rs_loop *loops = program->loop.at + program->loop.n;
  rs_ordered_copy ordered = order_copy(copies, copy, loops);
  int64_t parts = ordered.run / PART, rest = ordered.run % PART;
  if (parts < 2) {
    append_copy(program, ordered);
    return RESHARD_SUCCESS;
  }
  rs_ordered_copy tail = ordered;
  ordered.run = PART;
  int64_t dst_part = rs_copy_dst_run(&ordered);
  tail.src += parts * PART;
  tail.dst += parts * dst_part;
  tail.run = rest;
  loops[ordered.nloops++] = (rs_loop){parts, PART, dst_part, 0};
  append_copy(program, ordered);
  if (rest > 0) {
    for (int i = 0; i < tail.nloops; i++)
      loops[ordered.nloops + i] = loops[i];
    append_copy(program, tail);
  }
  return RESHARD_SUCCESS;
}
