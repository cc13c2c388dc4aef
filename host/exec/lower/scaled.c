/* Copies of f8_e4m3 with a scale for each block.
 *
 * Where values and scales travel, an index of a class is a block. In a message its scale comes first, then its values,
 * row-major. Between two sides that both have scales these are plain copies: one of values, one of scales. Between one
 * that has them and one that has not, boxes of blocks are converted.
 *
 * Where the other dtype travels, or is read directly, an index is an element, and parts of blocks are multiplied. */
#include "exec/lower/lower.h"

enum { SRC, DST, SIDES };

/* One side of the copies. */
typedef struct block_side {
  bool scaled;
  char *at, *scales; /* of index 0: of elements or values, and of scales where there are any */
  int64_t inner[2];  /* bytes from row to row, and from column to column, of a block */
} block_side;

typedef struct block_loop {
  int64_t n, stride[SIDES], scales[SIDES];
} block_loop;

/* The axes of the space that rows and columns of blocks are of; -1: of none. */
typedef struct block_axes {
  int axis[2];
  int64_t extent[2];
} block_axes;

typedef struct block_copy {
  const rs_lowered *w;
  block_axes blocks;
  block_side side[SIDES];
  int nloops;
  block_loop loop[2 * RESHARD_MAX_DIMS + 2];
} block_copy;

static int scaled_dim(const rs_class *c, int axis) {
  return c->scaling->source ? c->space.src_dim[axis] : c->space.dst_dim[axis];
}

/* The axes along which blocks are longer than 1, in the order of their dims. */
static block_axes find_block_axes(const rs_class *c) {
  block_axes found = {{-1, -1}, {1, 1}};
  for (int a = 0; a < c->space.naxes; a++) {
    if (c->scaling->block[a] == 1)
      continue;
    bool last = found.axis[1] < 0 || scaled_dim(c, a) > scaled_dim(c, found.axis[1]);
    if (last)
      found.axis[0] = found.axis[1];
    found.axis[last] = a;
  }
  for (int i = 0; i < 2; i++)
    found.extent[i] = found.axis[i] < 0 ? 1 : c->scaling->extent[found.axis[i]];
  return found;
}

static block_side side_of(const block_copy *b, bool source, char *at) {
  const rs_class *c = b->w->of->class_;
  const rs_view *view = source ? b->w->of->src : b->w->of->dst;
  const int *dims = source ? c->space.src_dim : c->space.dst_dim;
  if (view == NULL)
    return (block_side){true, at + reshard_dtype_size(c->scaling->dtype), at, {b->blocks.extent[1], 1}};
  block_side side = {.scaled = rs_class_scaled(c, source), .at = at, .scales = b->w->scales};
  for (int i = 0; i < 2; i++) {
    int axis = b->blocks.axis[i];
    side.inner[i] = axis >= 0 && dims[axis] >= 0 ? view->strides[dims[axis]] : 0;
  }
  return side;
}

/* The loops of an axis, both of which are there whatever their lengths: steps, and indices. */
static void add_loops(block_copy *b, const rs_lowered_axis *axis, const rs_progression *p) {
  block_loop *loop = &b->loop[b->nloops];
  int64_t first[SIDES] = {p->src, p->dst}, step[SIDES] = {p->src_step, p->dst_step};
  loop[0].n = p->steps;
  loop[1].n = p->n;
  for (int i = 0; i < SIDES; i++) {
    bool linear = i == SRC ? axis->src_linear : axis->dst_linear;
    int64_t stride = i == SRC ? axis->src_stride : axis->dst_stride;
    int64_t scales = !b->side[i].scaled ? 0 : linear ? stride : rs_scale_stride(b->w->of, axis->number);
    b->side[i].at += first[i] * stride;
    if (b->side[i].scaled)
      b->side[i].scales += first[i] * scales;
    loop[0].stride[i] = step[i] * stride;
    loop[0].scales[i] = step[i] * scales;
    loop[1].stride[i] = stride;
    loop[1].scales[i] = scales;
  }
  b->nloops += 2;
}

/* Between two sides with scales: values, and scales. */
static reshard_status add_plain(const block_copy *b, rs_copies *copies) {
  rs_axis axes[2 * RESHARD_MAX_DIMS + 2];
  const block_side *from = &b->side[SRC], *to = &b->side[DST];
  for (int i = 0; i < b->nloops; i++)
    axes[i] = (rs_axis){b->loop[i].n, b->loop[i].scales[SRC], b->loop[i].scales[DST]};
  int64_t bytes = (int64_t)reshard_dtype_size(b->w->of->class_->scaling->dtype);
  RS_TRY(rs_copies_add(copies, from->scales, to->scales, (int32_t)bytes, b->nloops, axes));
  for (int i = 0; i < b->nloops; i++)
    axes[i] = (rs_axis){b->loop[i].n, b->loop[i].stride[SRC], b->loop[i].stride[DST]};
  for (int i = 0; i < 2; i++)
    axes[b->nloops + i] = (rs_axis){b->blocks.extent[i], from->inner[i], to->inner[i]};
  return rs_copies_add(copies, from->at, to->at, 1, b->nloops + 2, axes);
}

static rs_block_box box_of(const block_copy *b, bool back) {
  const rs_class *c = b->w->of->class_;
  const block_side *scaled = &b->side[back ? SRC : DST], *wide = &b->side[back ? DST : SRC];
  rs_block_box box = {.wide = wide->at,
                      .values = scaled->at,
                      .scales = scaled->scales,
                      .wide_dtype = back ? c->to.dtype : c->from.dtype,
                      .scale_dtype = c->scaling->dtype};
  for (int i = 0; i < 2; i++) {
    box.n[i] = box.block[i] = b->blocks.extent[i];
    box.wide_stride[i] = wide->inner[i];
    box.value_stride[i] = scaled->inner[i];
  }
  return box;
}

static rs_block_axis axis_of(const block_loop *loop, bool back) {
  return (rs_block_axis){loop->n, loop->stride[back ? DST : SRC], loop->stride[back ? SRC : DST],
                         loop->scales[back ? SRC : DST]};
}

/* Makes the loop over neighbouring blocks a part of the box, where both sides go on as within a block. Rows that blocks
 * have none of are those of another axis. */
static void take_loop(const block_copy *b, int i, int k, rs_block_box *box, rs_block_axis *axes) {
  rs_block_axis *loop = &axes[2 * k + 1];
  if (b->blocks.axis[i] < 0) {
    box->wide_stride[i] = loop->wide;
    box->value_stride[i] = loop->values;
  }
  if (loop->wide != box->block[i] * box->wide_stride[i] || loop->values != box->block[i] * box->value_stride[i])
    return;
  box->n[i] *= loop->n;
  box->scale_stride[i] = loop->scales;
  loop->n = 1;
}

/* The lowered axis with the number; -1: it has one index, and is none. Of -1 the last one that blocks do not have. */
static int find_lowered(const block_copy *b, int number) {
  const rs_lowered *w = b->w;
  int found = -1;
  for (int k = 0; k < w->naxes; k++) {
    int a = w->axis[k].number;
    bool other = a != b->blocks.axis[0] && a != b->blocks.axis[1];
    if (number >= 0
            ? a == number
            : other && (found < 0 || scaled_dim(w->of->class_, a) > scaled_dim(w->of->class_, w->axis[found].number)))
      found = k;
  }
  return found;
}

static reshard_status add_boxes(const block_copy *b, rs_copies *copies) {
  bool back = b->side[SRC].scaled;
  rs_block_box box = box_of(b, back);
  rs_block_axis axes[2 * RESHARD_MAX_DIMS + 1];
  const rs_class *c = b->w->of->class_;
  for (int i = 0; i < b->nloops; i++)
    axes[i] = axis_of(&b->loop[i], back);
  int row = find_lowered(b, b->blocks.axis[0]),
      column = b->blocks.axis[1] < 0 ? -1 : find_lowered(b, b->blocks.axis[1]);
  if (row >= 0)
    take_loop(b, 0, row, &box, axes);
  if (column >= 0)
    take_loop(b, 1, column, &box, axes);
  if (b->blocks.axis[0] < 0 && row >= 0 && b->blocks.axis[1] >= 0 &&
      scaled_dim(c, b->w->axis[row].number) > scaled_dim(c, b->blocks.axis[1]))
    rs_block_box_turn(&box);
  return rs_copies_scale(copies, &box, back, b->nloops, axes);
}

/* --- Parts of blocks ---------------------------------------------------------------------------------------------- */

/* One step of rows and columns: elements from `first` on, of arrays whose element 0 the box names. */
static void place_box(const block_copy *b, int i, int64_t step, const rs_progression *p, const rs_lowered_axis *axis,
                      rs_block_box *box) {
  int64_t first = p->src + step * p->src_step;
  box->n[i] = p->n;
  box->block[i] = b->w->of->class_->scaling->block[axis->number];
  box->skip[i] = first % box->block[i];
  box->wide_stride[i] = axis->dst_stride;
  box->value_stride[i] = axis->src_stride;
  box->scale_stride[i] = rs_scale_stride(b->w->of, axis->number);
  box->wide += (p->dst + step * p->dst_step) * axis->dst_stride;
  box->values += first * axis->src_stride;
  box->scales += first / box->block[i] * box->scale_stride[i];
}

/* An array with scales is the source. Axes of blocks are among the lowered ones, whatever their length. */
static reshard_status add_parts(const block_copy *b, const rs_progression *const *picked, rs_copies *copies) {
  static const rs_progression one = {0, 0, 1, 1, 0, 0};
  const rs_progression *p[2] = {&one, &one};
  const rs_lowered_axis *axis[2] = {NULL, NULL};
  rs_block_axis axes[2 * RESHARD_MAX_DIMS + 1];
  for (int i = 0; i < b->nloops; i++)
    axes[i] = axis_of(&b->loop[i], true);
  for (int i = 0; i < 2; i++) {
    int k = b->blocks.axis[i] < 0 ? -1 : find_lowered(b, b->blocks.axis[i]);
    axis[i] = k < 0 ? NULL : &b->w->axis[k];
    p[i] = k < 0 ? &one : picked[k];
  }
  for (int64_t row = 0; row < p[0]->steps; row++)
    for (int64_t column = 0; column < p[1]->steps; column++) {
      rs_block_box box = box_of(b, true);
      for (int i = 0; i < 2; i++)
        if (axis[i] != NULL)
          place_box(b, i, i == 0 ? row : column, p[i], axis[i], &box);
      RS_TRY(rs_copies_scale(copies, &box, true, b->nloops, axes));
    }
  return RESHARD_SUCCESS;
}

reshard_status rs_lower_scales(const rs_lowered *w, const char *src, char *dst, const rs_progression *const *picked,
                               rs_copies *copies) {
  const rs_class *c = w->of->class_;
  bool whole = c->scaling->whole;
  block_copy b = {.w = w, .blocks = find_block_axes(c)};
  if (whole) {
    b.side[SRC] = side_of(&b, true, (char *)src);
    b.side[DST] = side_of(&b, false, dst);
  } else {
    b.side[SRC] = (block_side){true, (char *)src, w->scales, {0, 0}};
    b.side[DST] = (block_side){false, dst, NULL, {0, 0}};
    b.blocks.extent[0] = b.blocks.extent[1] = 1;
  }
  for (int a = 0; a < w->naxes; a++)
    if (whole || c->scaling->block[w->axis[a].number] == 1)
      add_loops(&b, &w->axis[a], picked[a]);
  if (!whole)
    return add_parts(&b, picked, copies);
  return b.side[SRC].scaled && b.side[DST].scaled ? add_plain(&b, copies) : add_boxes(&b, copies);
}
