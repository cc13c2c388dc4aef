/* Layouts of scales: one number for each block of a tensor, held where the block is. */
#include "layout/blocks.h"

#include <stdlib.h>

/* Runs of one dim of an array that a look takes. */
enum { RUNS = 64 };

static bool is_cut(int64_t at, int64_t block, int64_t extent) { return at % block != 0 && at != extent; }

/* A run of an array that begins or ends within a block. */
static reshard_status find_cut(reshard_layout l, int64_t rank, int64_t array, const int64_t *block,
                               rs_block_cut *found) {
  reshard_interval runs[RUNS];
  for (int d = 0; d < l->ndim; d++)
    for (int64_t first = 0, n = block[d] > 1; first < n; first += RUNS) {
      RS_TRY(reshard_layout_array_intervals(l, rank, array, d, first, RUNS, runs, &n));
      for (int64_t i = 0; i < rs_min(n - first, RUNS); i++) {
        bool begin = is_cut(runs[i].begin, block[d], l->shape[d]);
        if (begin || is_cut(runs[i].end, block[d], l->shape[d])) {
          *found = (rs_block_cut){rank, d, begin ? runs[i].begin : runs[i].end};
          return RESHARD_SUCCESS;
        }
      }
    }
  return RESHARD_SUCCESS;
}

/* A part that ends within a block: also where one rank has what is on both sides. */
static void find_part(reshard_layout l, const int64_t *block, rs_block_cut *found) {
  for (int m = 0; m < l->mesh_ndim && l->kind == RESHARD_LAYOUT_MESH; m++) {
    const reshard_placement *p = &l->placements[m];
    int64_t at = 0;
    for (int k = 0; k < p->nparts && found->dim < 0; k++)
      if (is_cut(at += p->parts[k].size, block[p->dim], l->shape[p->dim]))
        *found = (rs_block_cut){rs_ranks_at(&l->ranks, 0), p->dim, at};
  }
}

reshard_status rs_layout_find_cut(reshard_layout l, const int64_t *block, rs_block_cut *found) {
  *found = (rs_block_cut){.dim = -1};
  find_part(l, block, found);
  for (int64_t rank = 0; rank < l->world; rank++)
    for (int64_t a = 0, n = rs_layout_arrays(l, rank); a < n && found->dim < 0; a++) {
      reshard_array_info info;
      RS_TRY(reshard_layout_array(l, rank, a, &info));
      if (info.elements > 0)
        RS_TRY(find_cut(l, rank, a, block, found));
    }
  return RESHARD_SUCCESS;
}

static reshard_status make_mesh(reshard_layout l, const int64_t *block, const int64_t *shape, const int64_t *ranks,
                                reshard_layout *out) {
  int nparts = 0;
  for (int m = 0; m < l->mesh_ndim; m++)
    nparts += l->placements[m].nparts;
  reshard_placement *placements;
  reshard_part *parts = NULL;
  RS_TRY(rs_alloc_copy(&placements, l->placements, l->mesh_ndim, sizeof *placements));
  reshard_status status = rs_alloc(&parts, nparts, sizeof *parts);
  reshard_part *next = parts;
  for (int m = 0; m < l->mesh_ndim && status == RESHARD_SUCCESS; m++) {
    reshard_placement *p = &placements[m];
    for (int k = 0; k < p->nparts; k++)
      next[k] = (reshard_part){.size = rs_ceil_div(p->parts[k].size, block[p->dim]), .pieces = p->parts[k].pieces};
    p->parts = next;
    next += p->nparts;
  }
  RS_THEN(status, reshard_layout_create_mesh(l->ndim, shape, l->world, l->mesh_ndim, l->mesh_shape,
                                             (const char *const *)l->names, placements, l->order, ranks, out));
  free(parts);
  free(placements);
  return status;
}

static reshard_status make_boxes(reshard_layout l, const int64_t *block, const int64_t *shape, reshard_layout *out) {
  const rs_boxes *b = l->boxes;
  reshard_box *boxes;
  RS_TRY(rs_alloc(&boxes, b->n, sizeof *boxes));
  for (int64_t i = 0; i < b->n; i++)
    for (int d = 0; d < l->ndim; d++) {
      int64_t lo = rs_boxes_lo(b, i)[d], hi = rs_boxes_hi(b, i)[d];
      boxes[i].offset[d] = lo / block[d];
      boxes[i].extent[d] = lo < hi ? rs_ceil_div(hi, block[d]) - lo / block[d] : 0;
    }
  reshard_status status =
      reshard_layout_create_boxes(l->ndim, shape, l->world, b->n, b->ranks, boxes, b->replicated, out);
  free(boxes);
  return status;
}

/* Layouts cut a dim, or all elements, in pieces of ceil(n / ranks): where these are whole blocks, or there is one
 * piece, blocks are cut alike. */
reshard_status rs_layout_blocks(reshard_layout l, const int64_t *block, reshard_layout *out) {
  int64_t shape[RESHARD_MAX_DIMS], dealt[RESHARD_MAX_DIMS], *ranks = NULL;
  for (int d = 0; d < l->ndim; d++) {
    shape[d] = rs_ceil_div(l->shape[d], block[d]);
    dealt[d] = l->kind == RESHARD_LAYOUT_CYCLIC ? rs_ceil_div(l->block[d], block[d]) : 0;
  }
  if (l->kind == RESHARD_LAYOUT_BOXES)
    return make_boxes(l, block, shape, out);
  RS_TRY(rs_alloc(&ranks, l->ranks.n, sizeof *ranks));
  for (int64_t i = 0; i < l->ranks.n; i++)
    ranks[i] = rs_ranks_at(&l->ranks, i);
  reshard_status status = RESHARD_SUCCESS;
  switch (l->kind) {
  case RESHARD_LAYOUT_CHUNK:
    status = reshard_layout_create_chunk(l->ndim, shape, l->world, l->chunk_dim, l->ranks.n, ranks, out);
    break;
  case RESHARD_LAYOUT_MESH: status = make_mesh(l, block, shape, ranks, out); break;
  case RESHARD_LAYOUT_CYCLIC:
    status = reshard_layout_create_cyclic(l->ndim, shape, l->world, l->mesh_shape, dealt, ranks, out);
    break;
  case RESHARD_LAYOUT_SINGLE: status = reshard_layout_create_single(l->ndim, shape, l->world, ranks[0], out); break;
  default: status = reshard_layout_create_flat(l->ndim, shape, l->world, l->ranks.n, ranks, out); break;
  }
  free(ranks);
  return status;
}
