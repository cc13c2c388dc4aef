/* Parts of tensors of FP8 with scales, on either side of a move.
 *
 * Copies see the wide dtype on both sides. A part of the source is multiplied by its scales once it is read. A part of
 * the target becomes values and scales before it is written. So a block may come from several arrays and tensors of the
 * source. Scales of the source are read a tile at a time, as a move of their own into memory: whatever their layout. */
#include "device/cpu/cast/blocks.h"
#include "device/cpu/cpu.h"
#include "file/move/batch.h"
#include "layout/layout.h"

#include <stdlib.h>
#include <string.h>

static const rs_kernels *kernels_of(const rs_batch *b) { return rs_kernels_of(rs_device_cpu_isa(b->device)); }

/* Dims before rows and columns: 0, or 1 that is a loop over matrices. */
static int matrices(const rs_model_tensor *t) { return t->ndim - 2; }

typedef struct scales_box {
  int ndim;
  int64_t lo[RESHARD_MAX_DIMS], extent[RESHARD_MAX_DIMS], strides[RESHARD_MAX_DIMS]; /* in blocks; in bytes */
  int64_t bytes;
} scales_box;

/* The blocks that a box of values meets. */
static scales_box blocks_of(const rs_copy_region *r, int ndim, const int64_t *lo, const int64_t *extent) {
  scales_box box = {.ndim = ndim, .bytes = (int64_t)reshard_dtype_size(r->blocks.scales)};
  for (int d = ndim - 1; d >= 0; d--) {
    int64_t block = rs_blocks_extent(&r->blocks, ndim, d);
    box.lo[d] = lo[d] / block;
    box.extent[d] = extent[d] > 0 ? rs_ceil_div(lo[d] + extent[d], block) - box.lo[d] : 0;
    box.strides[d] = box.bytes;
    box.bytes *= box.extent[d];
  }
  return box;
}

/* Matrices of so many columns, dense on both sides, still without memory. */
static rs_block_box dense_box(const rs_copy_region *r, const scales_box *scales, reshard_dtype wide, int64_t columns) {
  int64_t width = (int64_t)reshard_dtype_size(wide);
  rs_block_box box = {.wide_dtype = wide,
                      .scale_dtype = r->blocks.scales,
                      .block = {r->blocks.rows, r->blocks.columns},
                      .wide_stride = {columns * width, width},
                      .value_stride = {columns, 1}};
  memcpy(box.scale_stride, scales->strides + scales->ndim - 2, sizeof box.scale_stride);
  return box;
}

/* --- Source ------------------------------------------------------------------------------------------------------ */

/* A batch of one tile, whose target is memory. */
static reshard_status move_scales(rs_batch *b, const rs_copy_region *r, const scales_box *box, rs_store *to) {
  rs_tile tile = {0};
  rs_copy_region region = {.src = r->scales};
  const rs_store_move move = {.src = b->move->src, .dst = to, .nregions = 1, .regions = &region, .only_rank = -1};
  for (int d = 0; d < box->ndim; d++) {
    tile.src_offset[d] = tile.dst_offset[d] = box->lo[d];
    tile.src_extent[d] = tile.dst_extent[d] = box->extent[d];
    tile.permutation[d] = d;
  }
  tile.bytes = box->bytes;
  rs_batch inner = {.move = &move, .world = b->world, .all_bytes = box->bytes, .device = b->device};
  reshard_status status = rs_vec_reserve(&inner.tiles, 1);
  if (status == RESHARD_SUCCESS) {
    inner.tiles.at[inner.tiles.n++] = tile;
    status = rs_batch_move(&inner);
  }
  b->read_bytes += inner.read_bytes;
  inner.device = NULL;
  rs_batch_free(&inner);
  return status;
}

static reshard_status read_scales(rs_batch *b, const rs_copy_region *r, const scales_box *box) {
  const rs_model_tensor *t = &b->move->src->model->tensors.at[r->scales];
  rs_store to = {0};
  reshard_layout whole = NULL;
  RS_TRY(rs_vec_reserve(&b->scales, box->bytes));
  RS_TRY(reshard_layout_create_single(t->ndim, t->shape, 1, 0, &whole));
  rs_view view = {.at = b->scales.at};
  for (int d = 0; d < t->ndim; d++) {
    view.strides[d] = box->strides[d];
    view.at = (char *)((uintptr_t)view.at - (uintptr_t)(box->lo[d] * box->strides[d]));
  }
  reshard_status status = rs_memory_add_tensor(&to, t->dtype, whole);
  RS_THEN(status, rs_memory_add_arrays(&to, 0, &view));
  RS_THEN(status, move_scales(b, r, box, &to));
  rs_store_free(&to);
  reshard_layout_release(whole);
  return status;
}

/* Neighbouring rows and columns of one matrix of a part. */
static void multiply_piece(rs_batch *b, rs_block_box *box, const rs_piece *rows, const rs_piece *columns) {
  rs_block_box piece = *box;
  const rs_piece *both[2] = {rows, columns};
  for (int i = 0; i < 2; i++) {
    int64_t block = both[i]->begin / box->block[i];
    piece.n[i] = both[i]->n;
    piece.skip[i] = both[i]->begin % box->block[i];
    piece.wide += both[i]->local * box->wide_stride[i];
    piece.values += both[i]->local * box->value_stride[i];
    piece.scales += block * box->scale_stride[i];
  }
  rs_blocks_unscale(kernels_of(b), &piece, false);
}

/* pieces: of each dim, from first[d] to first[d + 1]. Indices of pieces are made those of the part, and blocks those
 * of the scales that were read, by the first addresses. */
static void multiply_part(rs_batch *b, const rs_block_box *box, int ndim, const rs_pieces *pieces, const int64_t *first,
                          const int64_t *outer) {
  int dims = ndim - 2;
  static const rs_piece one = {0, 1, 0};
  for (int64_t m = dims > 0 ? first[0] : -1; m < (dims > 0 ? first[1] : 0); m++) {
    const rs_piece *matrix = dims > 0 ? &pieces->at[m] : &one;
    for (int64_t i = 0; i < matrix->n; i++) {
      rs_block_box plane = *box;
      plane.wide += (matrix->local + i) * outer[0];
      plane.values += (matrix->local + i) * outer[1];
      plane.scales += (matrix->begin + i) * outer[2];
      for (int64_t r = first[dims]; r < first[dims + 1]; r++)
        for (int64_t c = first[dims + 1]; c < first[dims + 2]; c++)
          multiply_piece(b, &plane, &pieces->at[r], &pieces->at[c]);
    }
  }
}

reshard_status rs_scaled_read(rs_batch *b, const rs_tile_part *p, char *to) {
  const rs_tile *tile = &b->tiles.at[p->tile];
  const rs_copy_region *r = &b->move->regions[tile->region];
  const rs_model_tensor *t = &b->move->src->model->tensors.at[r->src];
  reshard_layout layout = b->move->src->tensors.at[r->src].layout;
  scales_box scales = blocks_of(r, t->ndim, tile->src_offset, tile->src_extent);
  int64_t elements = 1, first[RESHARD_MAX_DIMS + 1], outer[3] = {0};
  for (int d = 0; d < t->ndim; d++)
    elements *= p->extent[d];
  if (elements == 0)
    return RESHARD_SUCCESS;
  if (b->scaled_tile != p->tile)
    RS_TRY(read_scales(b, r, &scales));
  b->scaled_tile = p->tile;
  RS_TRY(rs_vec_reserve(&b->values, elements));
  RS_TRY(rs_store_read(b->move->src, r->src, p->stored, p->lo, p->extent, b->values.at, &b->scratch));
  rs_pieces pieces = {0};
  reshard_status status = RESHARD_SUCCESS;
  for (int d = 0; d < t->ndim && status == RESHARD_SUCCESS; d++) {
    first[d] = pieces.n;
    status =
        rs_layout_pieces(layout, p->cell, d, tile->src_offset[d], tile->src_offset[d] + tile->src_extent[d], &pieces);
    for (int64_t i = first[d]; i < pieces.n && status == RESHARD_SUCCESS; i++) {
      pieces.at[i].local -= p->lo[d];
      pieces.at[i].begin -= scales.lo[d] * rs_blocks_extent(&r->blocks, t->ndim, d);
    }
  }
  first[t->ndim] = pieces.n;
  reshard_dtype wide = b->move->dst->model->tensors.at[r->dst].dtype;
  int64_t columns = p->extent[t->ndim - 1];
  rs_block_box box = dense_box(r, &scales, wide, columns);
  box.wide = to;
  box.values = b->values.at;
  box.scales = b->scales.at;
  if (matrices(t) > 0) {
    outer[1] = columns * p->extent[1];
    outer[0] = outer[1] * (int64_t)reshard_dtype_size(wide);
    outer[2] = scales.strides[0];
  }
  if (status == RESHARD_SUCCESS)
    multiply_part(b, &box, t->ndim, &pieces, first, outer);
  free(pieces.at);
  return status;
}

/* --- Target ------------------------------------------------------------------------------------------------------ */

reshard_status rs_scaled_make(rs_batch *b, const rs_tile_part *p, rs_tile_part *values, rs_tile_part *scales) {
  const rs_copy_region *r = &b->move->regions[b->tiles.at[p->tile].region];
  const rs_model_tensor *t = &b->move->dst->model->tensors.at[r->dst];
  reshard_dtype wide = b->move->src->model->tensors.at[r->src].dtype;
  int64_t width = (int64_t)reshard_dtype_size(wide), elements = p->bytes / width;
  int64_t rows = p->extent[t->ndim - 2], columns = p->extent[t->ndim - 1];
  scales_box made = blocks_of(r, t->ndim, p->lo, p->extent);
  RS_TRY(rs_vec_reserve(&b->values, elements));
  RS_TRY(rs_vec_reserve(&b->scales, made.bytes));
  rs_block_box box = dense_box(r, &made, wide, columns);
  box.n[0] = rows;
  box.n[1] = columns;
  for (int64_t m = 0; m < (matrices(t) > 0 ? p->extent[0] : 1); m++) {
    box.wide = (char *)p->data + m * rows * columns * width;
    box.values = b->values.at + m * rows * columns;
    box.scales = b->scales.at + m * made.extent[t->ndim - 2] * made.strides[t->ndim - 2];
    rs_blocks_scale(kernels_of(b), &box, false);
  }
  *values = *scales = *p;
  values->data = b->values.at;
  values->bytes = elements;
  scales->data = b->scales.at;
  scales->bytes = made.bytes;
  memcpy(scales->lo, made.lo, sizeof made.lo);
  memcpy(scales->extent, made.extent, sizeof made.extent);
  return RESHARD_SUCCESS;
}
