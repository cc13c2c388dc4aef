/* Entries of f8_e4m3 with a scale for each block. Shapes and what layouts are made of are multiplied, so that cuts lie
 * on blocks of more than one element; the blocks are then drawn among those that the cuts allow. */
#include "bench/verify/case_make.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ELEMENTS = 16384, MOST_FACTOR = 12, MOST_BLOCK = 32768, MOST_BLOCKS = 8 };

static const reshard_dtype wide[] = {RESHARD_F32, RESHARD_BF16, RESHARD_F16};

void case_fix_scaled(const case_plan *c, int64_t i, const case_choices *fixed, case_entry *e) {
  rng own;
  rng_seed(&own, (c->seed ^ 0x626c6f636b73u) + (uint64_t)i);
  bool back = fixed->dtype == RESHARD_F8_E4M3;
  e->dtype = fixed->dtype != RESHARD_DTYPE_NONE ? fixed->dtype : wide[rng_below(&own, 3)];
  e->dst_dtype = back ? fixed->dst_dtype : RESHARD_F8_E4M3;
  e->scales = fixed->scaled.scales;
  e->wanted = fixed->scaled;
}

void case_draw_scaled(const case_plan *c, int64_t i, int64_t odds, case_entry *e) {
  rng own;
  rng_seed(&own, c->seed ^ 0x626c6f636b73u);
  if (!rng_one_in(&own, odds))
    return;
  rng_seed(&own, rng_next(&own) + (uint64_t)i);
  if (i > 0 && rng_one_in(&own, 4))
    return;
  bool back = rng_one_in(&own, 2);
  e->dtype = back ? RESHARD_F8_E4M3 : wide[rng_below(&own, 3)];
  e->dst_dtype = back ? wide[rng_below(&own, 3)] : RESHARD_F8_E4M3;
  e->scales = rng_one_in(&own, 3) ? RESHARD_F8_E8M0 : RESHARD_F32;
}

/* Multiplies dim d of the destination, and its source dim, where the tensors of n elements stay below `most`. */
static void multiply_dim(case_entry *e, int d, int64_t f, int64_t most, int64_t n[2]) {
  oracle_region *g = &e->region;
  int p = g->permutation[d];
  if (p < 0 || f * rs_max(n[0], n[1]) > most)
    return;
  n[0] *= f;
  n[1] *= f;
  e->src.factor[p] = e->dst.factor[d] = f;
  g->src_offset[p] *= f;
  g->src_extent[p] *= f;
  g->dst_offset[d] *= f;
  g->dst_extent[d] *= f;
}

/* The extent of a wanted block in a dim of so many; 1 for all but the last two. */
static int64_t wanted_block(const case_entry *e, int ndim, int d) {
  return d == ndim - 1 ? e->wanted.columns : d == ndim - 2 ? e->wanted.rows : 1;
}

void case_draw_factors(uint64_t seed, case_entry *e, int ndim, const int64_t *shape, int dst_ndim,
                       const int64_t *dst_shape) {
  bool back = e->dtype == RESHARD_F8_E4M3;
  rng own;
  rng_seed(&own, seed ^ 0x626c6f636b73u);
  int64_t n[2] = {1, 1};
  for (int d = 0; d < RESHARD_MAX_DIMS; d++) {
    e->src.factor[d] = e->dst.factor[d] = 1;
    n[0] *= d < ndim ? shape[d] : 1;
    n[1] *= d < dst_ndim ? dst_shape[d] : 1;
  }
  for (int d = 0; d < dst_ndim && e->wanted.rows > 0; d++) {
    int64_t f = wanted_block(e, back ? ndim : dst_ndim, back ? e->region.permutation[d] : d);
    multiply_dim(e, d, f, rs_max(MOST_ELEMENTS, MOST_BLOCKS * e->wanted.rows * e->wanted.columns), n);
  }
  for (int tries = 0, d = dst_ndim > 0 ? (int)rng_below(&own, dst_ndim) : 0;
       tries < rs_min(dst_ndim, 2) && e->wanted.rows == 0; tries++) {
    int64_t f = rng_in(&own, 1, MOST_FACTOR);
    d = (d + 1) % dst_ndim;
    multiply_dim(e, d, f, MOST_ELEMENTS, n);
  }
}

void case_describe_multiplied(const int64_t *factor, oracle_layout *what) {
  for (int m = 0; m < what->mesh_ndim; m++)
    for (int p = 0; p < what->placement[m].nparts; p++)
      what->part[m][p].size *= factor[what->placement[m].dim];
  for (int d = 0; d < what->ndim; d++) {
    what->shape[d] *= factor[d];
    what->block[d] *= factor[d];
    for (int64_t b = 0; b < what->nboxes; b++) {
      what->box[b].offset[d] *= factor[d];
      what->box[b].extent[d] *= factor[d];
    }
  }
}

static int64_t common_divisor(int64_t a, int64_t b) { return b == 0 ? a : common_divisor(b, a % b); }

static void find_place(const oracle_layout *l, int64_t index, int64_t *at) {
  for (int d = l->ndim - 1; d >= 0; d--) {
    at[d] = index % l->shape[d];
    index /= l->shape[d];
  }
}

/* Takes the places where an element of the box has a neighbour that the buffer lacks into the divisors, counted from
 * the begin of the box; its end is none. A flat piece has several arrays, so that its cuts count beside the box, too.
 */
static void divide_by_cuts(const oracle_layout *l, const oracle_buffer *b, const int64_t *begin, const int64_t *extent,
                           unsigned char *has, int64_t *divisor) {
  for (int64_t k = 0; k < b->n; k++)
    has[b->index[k]] = 1;
  for (int64_t k = 0; k < b->n; k++) {
    int64_t at[RESHARD_MAX_DIMS], stride = 1, outside = 0;
    find_place(l, b->index[k], at);
    for (int d = 0; d < l->ndim; d++)
      outside += at[d] < begin[d] || at[d] >= begin[d] + extent[d];
    for (int d = l->ndim - 1; d >= 0; stride *= l->shape[d--]) {
      int64_t i = at[d] - begin[d];
      if (i < 0 || i >= extent[d] || (outside > 0 && l->kind != RESHARD_LAYOUT_FLAT))
        continue;
      if (i > 0 && !has[b->index[k] - stride])
        divisor[d] = common_divisor(divisor[d], i);
      if (i + 1 < extent[d] && !has[b->index[k] + stride])
        divisor[d] = common_divisor(divisor[d], i + 1);
    }
  }
  for (int64_t k = 0; k < b->n; k++)
    has[b->index[k]] = 0;
}

/* Per dim the largest number of which every cut of a side is a multiple; 0: there is no cut. */
static void divide_side(const case_side *side, const int64_t *begin, const int64_t *extent, int64_t *divisor) {
  const oracle_layout *l = &side->described;
  int64_t n = 1;
  for (int d = 0; d < l->ndim; d++)
    n *= l->shape[d];
  unsigned char *has = cli_alloc(n, 1);
  for (int64_t b = 0; b < side->buffers.first[l->world]; b++)
    divide_by_cuts(l, &side->buffers.buffer[b], begin, extent, has, divisor);
  free(has);
}

/* Parts end where there are cuts, whichever ranks have what is on both sides. */
static void divide_parts(const oracle_layout *l, int64_t *divisor) {
  for (int m = 0; m < l->mesh_ndim; m++) {
    int d = l->placement[m].dim;
    for (int64_t p = 0, at = 0; p < l->placement[m].nparts; p++)
      if ((at += l->part[m][p].size) != l->shape[d])
        divisor[d] = common_divisor(divisor[d], at);
  }
}

/* The number of the array that index `at` of the dim is in: parts of as many pieces each are one. */
static int64_t array_at(const oracle_layout *l, int dim, int64_t at) {
  int64_t array = 0, pieces = 0, end = 0;
  for (int m = 0; m < l->mesh_ndim && l->kind == RESHARD_LAYOUT_MESH; m++)
    for (int p = 0; p < l->placement[m].nparts && l->placement[m].dim == dim; p++) {
      const reshard_part *part = &l->part[m][p];
      int64_t n = part->pieces > 0 ? rs_min(part->pieces, l->mesh[m]) : l->mesh[m];
      array += part->size > 0 && end > 0 && end <= at && n != pieces;
      pieces = part->size > 0 ? n : pieces;
      end += part->size;
    }
  return array;
}

/* The number of the array of its buffer that a place is in; *in: the place is in the region. */
static int64_t array_of(const oracle_layout *l, const int64_t *at, const int64_t *begin, const int64_t *extent,
                        bool *in) {
  int64_t array = 0;
  *in = true;
  for (int d = 0; d < l->ndim; d++) {
    array += array_at(l, d, at[d]);
    *in = *in && at[d] >= begin[d] && at[d] < begin[d] + extent[d];
  }
  return array;
}

/* True where what an array has of the region is a box: it has as many elements as what lies around it. *last: the
 * buffer has no array behind it. */
static bool is_box(const oracle_layout *l, const oracle_buffer *b, int64_t array, const int64_t *begin,
                   const int64_t *extent, bool *last) {
  int64_t at[RESHARD_MAX_DIMS], lo[RESHARD_MAX_DIMS], hi[RESHARD_MAX_DIMS] = {0}, n = 0, around = 1;
  *last = true;
  for (int64_t k = 0; k < b->n; k++) {
    bool in;
    find_place(l, b->index[k], at);
    int64_t number = array_of(l, at, begin, extent, &in);
    *last = *last && number <= array;
    if (!in || number != array)
      continue;
    for (int d = 0; d < l->ndim; d++) {
      lo[d] = n > 0 ? rs_min(lo[d], at[d]) : at[d];
      hi[d] = rs_max(hi[d], at[d] + 1);
    }
    n++;
  }
  for (int d = 0; d < l->ndim && n > 0; d++)
    around *= hi[d] - lo[d];
  return n == 0 || n == around;
}

static bool has_boxes(const case_side *side, const int64_t *begin, const int64_t *extent) {
  const oracle_layout *l = &side->described;
  bool boxes = true, last;
  for (int64_t i = 0; l->kind != RESHARD_LAYOUT_FLAT && i < side->buffers.first[l->world] && boxes; i++) {
    last = false;
    for (int64_t array = 0; !last && boxes; array++)
      boxes = is_box(l, &side->buffers.buffer[i], array, begin, extent, &last);
  }
  return boxes;
}

/* Cuts of the side without scales. Where arrays are boxes in the region, those there count from its begin on; else all
 * of them do, and the begin of the region, too. */
static void divide_other(const case_side *side, const int64_t *begin, const int64_t *extent, int64_t *divisor) {
  const int64_t zero[RESHARD_MAX_DIMS] = {0};
  bool boxes = has_boxes(side, begin, extent);
  divide_side(side, boxes ? begin : zero, boxes ? extent : side->described.shape, divisor);
  if (!boxes)
    divide_parts(&side->described, divisor);
  for (int d = 0; d < side->described.ndim && !boxes; d++)
    divisor[d] = common_divisor(divisor[d], begin[d]);
}

/* A divisor of n, often n itself; of 0 any number up to `most`. */
static int64_t draw_divisor(rng *r, int64_t n, int64_t most) {
  int64_t by = n == 0 || rng_one_in(r, 2) ? 1 : rng_log(r, n);
  if (n == 0)
    return rng_in(r, 1, rs_max(1, most));
  while (n % by != 0)
    by--;
  return n / by;
}

/* The dim of the other side that goes with dim d of the side with scales; -1: none does. */
static int other_dim(const case_entry *e, int d) {
  if (e->dst_dtype == RESHARD_F8_E4M3)
    return e->region.permutation[d];
  for (int k = 0; k < e->dst.described.ndim; k++)
    if (e->region.permutation[k] == d)
      return k;
  return -1;
}

void case_draw_blocks(uint64_t seed, case_entry *e) {
  bool back = e->dtype == RESHARD_F8_E4M3;
  const case_side *scaled = back ? &e->src : &e->dst, *other = back ? &e->dst : &e->src;
  const oracle_region *g = &e->region;
  const int64_t *offset = back ? g->src_offset : g->dst_offset, *extent = back ? g->src_extent : g->dst_extent;
  const int64_t *shape = scaled->described.shape, zero[RESHARD_MAX_DIMS] = {0};
  int64_t mine[RESHARD_MAX_DIMS] = {0}, theirs[RESHARD_MAX_DIMS] = {0}, n = 1;
  int ndim = scaled->described.ndim, large = 0;
  rng own;
  rng_seed(&own, seed ^ 0x64697669736f72u);
  divide_side(scaled, zero, shape, mine);
  divide_parts(&scaled->described, mine);
  divide_other(other, back ? g->dst_offset : g->src_offset, back ? g->dst_extent : g->src_extent, theirs);
  bool free_cuts = back && other->described.kind != RESHARD_LAYOUT_FLAT && rng_one_in(&own, 2);
  for (int d = 0; d < ndim; d++)
    e->block[d] = 1;
  e->whole = true;
  for (int tries = 0, d = ndim > 0 ? (int)rng_below(&own, ndim) : 0; tries < ndim; tries++, d = (d + 1) % ndim) {
    int o = other_dim(e, d);
    int64_t cuts = common_divisor(mine[d], offset[d]), end = offset[d] + extent[d];
    cuts = end == shape[d] ? cuts : common_divisor(cuts, end);
    if (!free_cuts && o >= 0)
      cuts = common_divisor(cuts, theirs[o]);
    int64_t wanted = e->wanted.rows > 0 ? wanted_block(e, ndim, d) : 0;
    int64_t block = large == 2 || rng_one_in(&own, 6) ? 1 : draw_divisor(&own, cuts, shape[d] + 1);
    block = wanted > 0 && cuts % wanted == 0 ? wanted : block;
    if (n * block > MOST_BLOCK)
      continue;
    large += block > 1;
    n *= e->block[d] = block;
    e->whole = e->whole && (o < 0 || theirs[o] % block == 0);
  }
}

int64_t case_block_of(const case_entry *e, const case_side *side, int64_t index) {
  int64_t at[RESHARD_MAX_DIMS], block = 0;
  find_place(&side->described, index, at);
  for (int d = 0; d < side->described.ndim; d++)
    block = block * rs_ceil_div(side->described.shape[d], e->block[d]) + at[d] / e->block[d];
  return block;
}

/* The first element of its block. */
static bool is_first(const case_entry *e, const case_side *side, int64_t index) {
  int64_t at[RESHARD_MAX_DIMS];
  bool first = true;
  find_place(&side->described, index, at);
  for (int d = 0; d < side->described.ndim; d++)
    first = first && at[d] % e->block[d] == 0;
  return first;
}

/* The scales of a buffer: one where a block begins, in the order of its elements. */
static void list_scales(const case_entry *e, const case_side *side, const oracle_buffer *values,
                        oracle_buffer *scales) {
  *scales = (oracle_buffer){.ndim = values->ndim, .index = cli_alloc(values->n, sizeof *scales->index)};
  for (int64_t k = 0; k < values->n; k++)
    if (is_first(e, side, values->index[k]))
      scales->index[scales->n++] = case_block_of(e, side, values->index[k]);
  for (int64_t d = values->ndim - 1, stride = 1; d >= 0; stride *= values->shape[d--]) {
    int64_t last = -1;
    if (side->described.kind == RESHARD_LAYOUT_FLAT)
      scales->shape[d] = scales->n;
    else if (values->n == 0) /* runs of the block, as nothing tells where they begin */
      scales->shape[d] = rs_ceil_div(values->shape[d], e->block[d]);
    else
      for (int64_t i = 0; i < values->shape[d]; i++) {
        int64_t at[RESHARD_MAX_DIMS];
        find_place(&side->described, values->index[i * stride], at);
        scales->shape[d] += at[d] / e->block[d] != last;
        last = at[d] / e->block[d];
      }
  }
}

/* For each element of a buffer the place of its block's scale. */
static void list_places(const case_entry *e, const case_side *side, const oracle_buffer *values,
                        const oracle_buffer *scales, int64_t *at, oracle_buffer *places) {
  *places = (oracle_buffer){.n = values->n, .index = cli_alloc(values->n, sizeof *places->index)};
  for (int64_t k = 0; k < scales->n; k++)
    at[scales->index[k]] = k;
  for (int64_t k = 0; k < values->n; k++)
    places->index[k] = at[case_block_of(e, side, values->index[k])];
}

void case_list_scales(const case_entry *e, case_side *side) {
  const oracle_buffers *values = &side->buffers;
  int64_t world = side->described.world, n = values->first[world], blocks = 1;
  for (int d = 0; d < side->described.ndim; d++)
    blocks *= rs_ceil_div(side->described.shape[d], e->block[d]);
  int64_t *at = cli_alloc(blocks, sizeof *at);
  memcpy(side->scales.first, values->first, sizeof values->first);
  memcpy(side->places.first, values->first, sizeof values->first);
  side->scales.buffer = cli_alloc(n, sizeof *side->scales.buffer);
  side->places.buffer = cli_alloc(n, sizeof *side->places.buffer);
  for (int64_t b = 0; b < n; b++) {
    list_scales(e, side, &values->buffer[b], &side->scales.buffer[b]);
    list_places(e, side, &values->buffer[b], &side->scales.buffer[b], at, &side->places.buffer[b]);
  }
  free(at);
}

/* The first element of its block within the region, on whichever side the blocks are. */
static bool begins_block(const case_entry *e, int64_t index) {
  const oracle_region *g = &e->region;
  bool back = e->dtype == RESHARD_F8_E4M3, first = true;
  int64_t at[RESHARD_MAX_DIMS];
  find_place(&e->src.described, index, at);
  for (int d = 0; d < e->dst.described.ndim; d++) {
    int p = g->permutation[d];
    first = first && (p < 0 || (at[p] - g->src_offset[p]) % e->block[back ? p : d] == 0);
  }
  return first;
}

bool case_in_region(const case_entry *e, int64_t index) {
  int64_t at[RESHARD_MAX_DIMS];
  bool in = true;
  find_place(&e->src.described, index, at);
  for (int d = 0; d < e->src.described.ndim; d++)
    in = in && at[d] >= e->region.src_offset[d] && at[d] < e->region.src_offset[d] + e->region.src_extent[d];
  return in;
}

int64_t case_count_scaled(case_plan *c, const case_entry *e) {
  const oracle_layout *l = &e->src.described;
  bool back = e->dtype == RESHARD_F8_E4M3;
  int64_t wide = (int64_t)reshard_dtype_size(back ? e->dst_dtype : e->dtype), n = 1, sum = 0;
  int64_t scale = (int64_t)reshard_dtype_size(e->scales), *bytes[5];
  oracle_counts *counts[5] = {&c->counts, &c->least, &c->most, &c->mixed_least, &c->mixed_most};
  for (int d = 0; d < l->ndim; d++)
    n *= l->shape[d];
  for (int i = 0; i < 5; i++)
    bytes[i] = cli_alloc(n, sizeof *bytes[i]);
  for (int64_t s = 0; s < n; s++) {
    int64_t both = 1 + (begins_block(e, s) ? scale : 0);
    bytes[0][s] = e->whole ? both : wide;
    bytes[1][s] = !back ? wide : e->whole ? both : 1;
    bytes[2][s] = !back ? wide : e->whole ? both : 1 + scale;
    bytes[3][s] = rs_min(bytes[0][s], bytes[1][s]);
    bytes[4][s] = rs_max(bytes[0][s], bytes[2][s]);
    sum += case_in_region(e, s) ? bytes[0][s] : 0;
  }
  for (int i = 0; i < 5; i++) {
    oracle_count(l, &e->src.buffers, &e->dst.described, &e->dst.buffers, bytes[i], counts[i]);
    free(bytes[i]);
  }
  return sum;
}
