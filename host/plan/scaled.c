/* Entries of f8_e4m3 with a scale for each block of values.
 *
 * Where values and scales travel, a block with its scale is what a class counts: its layouts are those of blocks. So
 * whatever shares, cuts and counts elements keeps blocks whole. All blocks of a class have one shape, so that they have
 * equally many bytes: an entry whose last blocks are shorter has parts, two for each dim of which that is so. */
#include "plan/scaled.h"
#include "base/dtype.h"
#include "base/text.h"
#include "layout/blocks.h"

#include <stdlib.h>
#include <string.h>

/* Of an axis: the dim of the side that has the scales, or of the other one. */
static int dim_of(const rs_scaling *s, int axis, bool scaled) {
  return s->source == scaled ? s->space.src_dim[axis] : s->space.dst_dim[axis];
}
static int64_t offset_of(const rs_scaling *s, int axis, bool scaled) {
  return s->source == scaled ? s->space.src_offset[axis] : s->space.dst_offset[axis];
}
static reshard_layout layout_of(const rs_scaling *s, bool scaled) { return s->source == scaled ? s->src : s->dst; }

/* Dtypes, extents and sizes of blocks. */
static reshard_status check_blocks(const char *label, const reshard_entry *e, rs_scaling *s) {
  reshard_dtype to = e->dst_dtype != RESHARD_DTYPE_NONE ? e->dst_dtype : e->dtype;
  bool source = e->dtype == RESHARD_F8_E4M3;
  if (source && to == RESHARD_F8_E4M3)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "%s: blocks of f8_e4m3 on both sides; values and scales are two plain entries then", label);
  if (!source && to != RESHARD_F8_E4M3)
    return rs_error(RESHARD_ERROR_INVALID, "%s: blocks of %s and %s, f8_e4m3 has blocks", label,
                    reshard_dtype_string(e->dtype), reshard_dtype_string(to));
  if (!rs_blocks_know(source ? to : e->dtype))
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: f8_e4m3 with scales is made of f32, f16 or bf16, not of %s", label,
                    reshard_dtype_string(source ? to : e->dtype));
  s->source = source;
  s->dtype = e->scale_dtype != RESHARD_DTYPE_NONE ? e->scale_dtype : RESHARD_F32;
  int wide = 0;
  reshard_blocks both = {1, 1, s->dtype};
  for (int d = 0; d < layout_of(s, true)->ndim; d++) {
    if (e->block[d] < 1)
      return rs_error(RESHARD_ERROR_INVALID, "%s: a block of %lld in dim %d", label, (long long)e->block[d], d);
    if (e->block[d] > 1 && ++wide > 2)
      return rs_error(RESHARD_ERROR_UNSUPPORTED,
                      "%s: blocks of more than 1 in more than two dims, as in dim %d of %lld", label, d,
                      (long long)e->block[d]);
    if (e->block[d] > 1)
      *(wide == 1 ? &both.rows : &both.columns) = e->block[d];
  }
  return rs_blocks_check(label, &both);
}

/* The region of the side with scales begins and ends on blocks, or at the end. */
static reshard_status check_region(const char *label, const rs_scaling *s) {
  for (int a = 0; a < s->space.naxes; a++) {
    int d = dim_of(s, a, true);
    int64_t begin = offset_of(s, a, true), end = begin + s->space.extent[a];
    if (d < 0 || s->space.extent[a] == 0)
      continue;
    int64_t cut = begin % s->block[a] != 0 ? begin : end;
    if (cut % s->block[a] != 0 && (cut == begin || end != layout_of(s, true)->shape[d]))
      return rs_error(RESHARD_ERROR_INVALID, "%s: dim %d of the f8_e4m3 region is cut at %lld, within a block of %lld",
                      label, d, (long long)cut, (long long)s->block[a]);
  }
  return RESHARD_SUCCESS;
}

/* Blocks per dim of one side. */
static void blocks_of_side(const rs_scaling *s, bool scaled, int64_t block[RESHARD_MAX_DIMS]) {
  for (int d = 0; d < RESHARD_MAX_DIMS; d++)
    block[d] = 1;
  for (int a = 0; a < s->space.naxes; a++)
    if (dim_of(s, a, scaled) >= 0)
      block[dim_of(s, a, scaled)] = s->block[a];
}

static reshard_status check_cuts(const char *label, const rs_scaling *s) {
  int64_t block[RESHARD_MAX_DIMS];
  rs_block_cut cut;
  blocks_of_side(s, true, block);
  RS_TRY(rs_layout_find_cut(layout_of(s, true), block, &cut));
  if (cut.dim < 0)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID,
                  "%s: dim %d of the f8_e4m3 side is cut at %lld by rank %lld, within a block of %lld", label, cut.dim,
                  (long long)cut.at, (long long)cut.rank, (long long)block[cut.dim]);
}

/* --- The other side ----------------------------------------------------------------------------------------------- */

/* The run of an array's dim that is in the region, counted from its begin. Several are no box. */
static reshard_status find_run(const rs_scaling *s, int64_t rank, int64_t array, int axis, reshard_interval *run,
                               bool *box) {
  reshard_layout l = layout_of(s, false);
  int d = dim_of(s, axis, false);
  int64_t offset = offset_of(s, axis, false);
  rs_pieces pieces = {0};
  *run = (reshard_interval){0, d < 0};
  if (d < 0)
    return RESHARD_SUCCESS;
  reshard_status status =
      rs_layout_pieces(l, rs_layout_cell(l, rank, array), d, offset, offset + s->space.extent[axis], &pieces);
  if (pieces.n > 0)
    *run = (reshard_interval){pieces.at->begin - offset, pieces.at->begin - offset + pieces.at->n};
  *box = *box && pieces.n <= 1;
  free(pieces.at);
  return status;
}

/* One array as a box of blocks of the region. A run that begins or ends within a block is noted in *cut. */
static reshard_status find_box(const rs_scaling *s, int64_t rank, int64_t array, reshard_box *out, bool *box,
                               rs_block_cut *cut) {
  reshard_interval run[RS_MAX_AXES];
  bool empty = false, one = true;
  for (int a = 0; a < s->space.naxes; a++) {
    RS_TRY(find_run(s, rank, array, a, &run[a], &one));
    empty = empty || run[a].begin == run[a].end;
  }
  *box = *box && (one || empty);
  for (int a = 0; a < s->space.naxes; a++) {
    int d = dim_of(s, a, false);
    int64_t block = s->block[a];
    if (d < 0)
      continue;
    bool begun = run[a].begin % block != 0, ended = run[a].end % block != 0 && run[a].end != s->space.extent[a];
    if (!empty && (begun || ended) && cut->dim < 0)
      *cut = (rs_block_cut){rank, d, (begun ? run[a].begin : run[a].end) + offset_of(s, a, false)};
    out->offset[d] = empty ? 0 : run[a].begin / block;
    out->extent[d] = empty ? 0 : rs_ceil_div(run[a].end, block) - out->offset[d];
  }
  return RESHARD_SUCCESS;
}

static reshard_status list_boxes(const rs_scaling *s, int64_t n, int64_t *ranks, reshard_box *boxes, bool *box,
                                 rs_block_cut *cut) {
  const struct reshard_layout_s *l = layout_of(s, false);
  int64_t at = 0;
  for (int64_t rank = 0; rank < l->world; rank++)
    for (int64_t a = 0, arrays = rs_layout_arrays(l, rank); a < arrays && at < n; a++, at++) {
      ranks[at] = rank;
      RS_TRY(find_box(s, rank, a, &boxes[at], box, cut));
    }
  return RESHARD_SUCCESS;
}

/* The region's blocks, where arrays are boxes whose cuts lie on blocks. */
static reshard_status make_region(const rs_scaling *s, reshard_layout *out, bool *box, rs_block_cut *cut) {
  const struct reshard_layout_s *l = layout_of(s, false);
  int64_t n = 0, *ranks = NULL, shape[RESHARD_MAX_DIMS] = {0};
  reshard_box *boxes = NULL;
  reshard_status status;
  for (int64_t rank = 0; rank < l->world; rank++)
    n += rs_layout_arrays(l, rank);
  for (int a = 0; a < s->space.naxes; a++)
    if (dim_of(s, a, false) >= 0)
      shape[dim_of(s, a, false)] = rs_ceil_div(s->space.extent[a], s->block[a]);
  RS_TRY_GOTO(status, rs_alloc(&ranks, n, sizeof *ranks), done);
  RS_TRY_GOTO(status, rs_alloc_zero(&boxes, n, sizeof *boxes), done);
  RS_TRY_GOTO(status, list_boxes(s, n, ranks, boxes, box, cut), done);
  if (cut->dim < 0 && *box)
    status = reshard_layout_create_boxes(l->ndim, shape, l->world, n, ranks, boxes, 1, out);
done:
  free(ranks);
  free(boxes);
  return status;
}

/* The layout of blocks of the side without scales; NULL and the cut where one lies within a block. */
static reshard_status make_other(rs_scaling *s, rs_block_cut *cut) {
  int64_t block[RESHARD_MAX_DIMS];
  bool box = true;
  blocks_of_side(s, false, block);
  RS_TRY(rs_layout_find_cut(layout_of(s, false), block, cut));
  for (int a = 0; a < s->space.naxes; a++)
    if (offset_of(s, a, false) % s->block[a] != 0)
      *cut = (rs_block_cut){0, dim_of(s, a, false), offset_of(s, a, false)};
  if (cut->dim < 0)
    return rs_layout_blocks(layout_of(s, false), block, &s->other);
  rs_block_cut of_region = {.dim = -1};
  RS_TRY(make_region(s, &s->other, &box, &of_region));
  s->relative = s->other != NULL;
  if (of_region.dim >= 0)
    *cut = of_region;
  return RESHARD_SUCCESS;
}

/* --- Making ------------------------------------------------------------------------------------------------------- */

static reshard_status refuse_cut(const char *label, const rs_scaling *s, const rs_block_cut *cut) {
  int64_t block[RESHARD_MAX_DIMS];
  blocks_of_side(s, false, block);
  return rs_error(
      RESHARD_ERROR_UNSUPPORTED,
      "%s: dim %d of the source is cut at %lld by rank %lld, within a block of %lld of the destination: take "
      "another layout, or two steps, the first one to the layout of the destination",
      label, cut->dim, (long long)cut->at, (long long)cut->rank, (long long)block[cut->dim]);
}

/* Layouts of blocks of both sides: of the other one where values and scales travel. */
static reshard_status make_layouts(const char *label, rs_scaling *s) {
  int64_t block[RESHARD_MAX_DIMS];
  rs_block_cut cut = {.dim = -1};
  blocks_of_side(s, true, block);
  RS_TRY(rs_layout_blocks(layout_of(s, true), block, &s->scales));
  RS_TRY(make_other(s, &cut));
  s->whole = s->other != NULL;
  return s->whole || s->source ? RESHARD_SUCCESS : refuse_cut(label, s, &cut);
}

static void retain_layouts(const rs_scaling *s) {
  reshard_layout_retain(s->src);
  reshard_layout_retain(s->dst);
}

reshard_status rs_scaling_create(const char *label, const reshard_entry *e, const rs_space *space, rs_scaling **out) {
  *out = NULL;
  if (e->block == NULL)
    return e->scale_dtype == RESHARD_DTYPE_NONE ? RESHARD_SUCCESS
                                                : rs_error(RESHARD_ERROR_INVALID, "%s: scales of %s without blocks",
                                                           label, reshard_dtype_string(e->scale_dtype));
  rs_scaling *s;
  RS_TRY(rs_alloc_zero(&s, 1, sizeof *s));
  s->src = e->src;
  s->dst = e->dst;
  s->space = *space;
  retain_layouts(s);
  reshard_status status = check_blocks(label, e, s);
  for (int a = 0; a < space->naxes; a++)
    s->block[a] = status == RESHARD_SUCCESS && dim_of(s, a, true) >= 0 ? e->block[dim_of(s, a, true)] : 1;
  RS_THEN(status, check_region(label, s));
  RS_THEN(status, check_cuts(label, s));
  RS_THEN(status, make_layouts(label, s));
  if (status == RESHARD_SUCCESS)
    *out = s;
  else
    rs_scaling_free(s);
  return status;
}

reshard_status rs_scaling_copy(const rs_scaling *s, rs_scaling **out) {
  *out = NULL;
  if (s == NULL)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_copy(out, s, 1, sizeof *s));
  retain_layouts(s);
  reshard_layout_retain(s->scales);
  if (s->other != NULL)
    reshard_layout_retain(s->other);
  return RESHARD_SUCCESS;
}

void rs_scaling_free(rs_scaling *s) {
  if (s == NULL)
    return;
  reshard_layout_release(s->src);
  reshard_layout_release(s->dst);
  reshard_layout_release(s->scales);
  reshard_layout_release(s->other);
  free(s);
}

int rs_scaling_compare(const rs_scaling *a, const rs_scaling *b) {
  if (a == NULL || b == NULL)
    return (a != NULL) - (b != NULL);
  struct {
    int64_t words[4], block[RESHARD_MAX_DIMS];
  } of[2];
  for (int i = 0; i < 2; i++) {
    const rs_scaling *s = i == 0 ? a : b;
    const int64_t words[4] = {s->source, (int64_t)s->dtype, s->whole, layout_of(s, true)->ndim};
    memcpy(of[i].words, words, sizeof words);
    blocks_of_side(s, true, of[i].block);
  }
  return memcmp(&of[0], &of[1], sizeof of[0]);
}

bool rs_scaling_equal(const rs_scaling *a, const rs_scaling *b) {
  if (a == NULL || b == NULL)
    return a == b;
  return rs_scaling_compare(a, b) == 0 && memcmp(a->extent, b->extent, sizeof a->extent) == 0 &&
         memcmp(&a->space, &b->space, sizeof a->space) == 0 && reshard_layout_equal(a->src, b->src) &&
         reshard_layout_equal(a->dst, b->dst);
}

/* Blocks of the part in the region, from *first on: those of full extent, or the last one. Bit k of the part is that of
 * the k-th axis whose last block is shorter and not the only one. */
static void find_axis(rs_scaling *s, int a, int part, int *bit, int64_t *first, int64_t *count) {
  int64_t whole = s->space.extent[a] / s->block[a], rest = s->space.extent[a] % s->block[a];
  bool last = whole == 0 ? rest > 0 : rest > 0 && part >> (*bit)++ & 1;
  *first = last ? whole : 0;
  *count = last ? 1 : whole;
  s->extent[a] = last ? rest : s->block[a];
}

bool rs_scaling_part(rs_scaling *s, reshard_dtype from, reshard_dtype to, int part, rs_class *c) {
  int bit = 0;
  int64_t bytes = (int64_t)reshard_dtype_size(s->dtype);
  *c = (rs_class){.src = s->src, .dst = s->dst, .space = s->space, .scaling = s};
  c->from = (rs_format){(int64_t)reshard_dtype_size(from), from};
  c->to = c->wire = (rs_format){(int64_t)reshard_dtype_size(to), to};
  if (!s->whole)
    return part == 0;
  c->src = s->source ? s->scales : s->other;
  c->dst = s->source ? s->other : s->scales;
  int64_t values = 1;
  for (int a = 0; a < s->space.naxes; a++) {
    int64_t first, offset[2];
    find_axis(s, a, part, &bit, &first, &c->space.extent[a]);
    for (int scaled = 0; scaled < 2; scaled++)
      offset[scaled] = (scaled == 0 && s->relative ? 0 : offset_of(s, a, scaled) / s->block[a]) + first;
    c->space.src_offset[a] = offset[s->source];
    c->space.dst_offset[a] = offset[!s->source];
    values *= s->extent[a];
  }
  c->wire = (rs_format){values + bytes, RESHARD_F8_E4M3};
  return part < 1 << bit;
}

void rs_class_dtype_text(char *text, size_t size, const rs_class *c, bool source, reshard_dtype dtype) {
  rs_text out = {.at = text, .size = size};
  rs_text_add(&out, "%s", reshard_dtype_string(dtype));
  if (!rs_class_scaled(c, source))
    return;
  int64_t block[RESHARD_MAX_DIMS];
  blocks_of_side(c->scaling, true, block);
  for (int d = 0; d < layout_of(c->scaling, true)->ndim; d++)
    rs_text_add(&out, "%s%lld", d == 0 ? "/" : "x", (long long)block[d]);
  if (c->scaling->dtype == RESHARD_F8_E8M0)
    rs_text_add(&out, ":e8m0");
}
