/* Tiles: boxes of a tensor small enough that what is read, reordered and written stays in a core's cache.
 *
 * A file is read and written best in long rows. A tile therefore keeps the innermost dims of both sides whole where it
 * can: it is halved along the outermost dim of the source or of the target that has more than one index, the longer of
 * the two. Where both sides have the dims in one order that makes bands of rows, which lie in one piece in every file.
 * Where they are transposed, it makes nearly square blocks. A tensor that many ranks hold gets larger tiles, so that
 * the row of each rank is still worth a system call. */
#include "base/dtype.h"
#include "file/move/batch.h"

#include <string.h>

enum {
  TILE = 512 << 10, /* bytes, read and made of them: half a core's second cache */
  ROW = 64 << 10,   /* bytes that each rank's part of a tile should have, likewise */
  BANDS = 4,        /* tiles of blocks that a batch has room for: long rows of a file are worth more than the cache; 128
                     * rows are whole up to 8192 columns of f32 with 6 threads, and are cut where memory is short */
};

static int64_t width_of(const rs_store *store, int64_t tensor) {
  return (int64_t)reshard_dtype_size(store->model->tensors.at[tensor].dtype);
}

/* Bytes of an element of the region on both sides. */
static int64_t both_widths(const rs_store_move *m, const rs_copy_region *r) {
  return width_of(m->src, r->src) + width_of(m->dst, r->dst);
}

static int64_t count_elements(int ndim, const int64_t *extent) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++)
    n *= extent[d];
  return n;
}

/* Dim d of the source model in its stored layout. */
static int stored_dim(const rs_store_move *m, const rs_copy_region *r, int d) {
  int ndim = m->src->model->tensors.at[r->src].ndim;
  return m->src->tensors.at[r->src].reversed ? ndim - 1 - d : d;
}

reshard_status rs_tiling_start(rs_tiling *t, const rs_store_move *move, int64_t most, int64_t *bytes) {
  *t = (rs_tiling){.move = move, .most = rs_max(2 * most, TILE)};
  int64_t all = 0;
  for (int64_t i = 0; i < move->nregions; i++) {
    const rs_copy_region *r = &move->regions[i];
    const rs_model_tensor *src = &move->src->model->tensors.at[r->src], *dst = &move->dst->model->tensors.at[r->dst];
    bool fits = (src->dtype == dst->dtype || rs_cast_supported(src->dtype, dst->dtype)) &&
                !move->dst->tensors.at[r->dst].reversed;
    for (int d = 0; d < src->ndim; d++)
      fits = fits && r->src_offset[d] >= 0 && r->src_extent[d] >= 0 &&
             r->src_offset[d] + r->src_extent[d] <= src->shape[d];
    for (int d = 0; d < dst->ndim; d++)
      fits = fits && r->dst_offset[d] >= 0 && r->dst_extent[d] >= 0 &&
             r->dst_offset[d] + r->dst_extent[d] <= dst->shape[d] && r->permutation[d] < src->ndim &&
             (r->permutation[d] < 0 ? r->dst_extent[d] == 1 : r->dst_extent[d] == r->src_extent[r->permutation[d]]);
    if (!fits || !rs_add(all, count_elements(dst->ndim, r->dst_extent) * width_of(move->dst, r->dst), &all))
      return rs_error(RESHARD_ERROR_INTERNAL, "region %lld does not fit its tensors", (long long)i);
  }
  *bytes = all;
  return RESHARD_SUCCESS;
}

/* Tiles end with blocks of the target. */
static int64_t unit_of(const rs_store_move *m, const rs_copy_region *r, int d) {
  const rs_model_tensor *t = &m->dst->model->tensors.at[r->dst];
  return rs_region_scaled(r, t->dtype) ? rs_blocks_extent(&r->blocks, t->ndim, d) : 1;
}

static int64_t round_to(int64_t extent, int64_t unit) { return rs_ceil_div(extent, unit) * unit; }

/* Per dim the extent of a tile of at most `limit` bytes on both sides (or of one element or block). */
static void choose_step(const rs_store_move *m, const rs_copy_region *r, int64_t limit, int64_t *step) {
  int ndim = m->dst->model->tensors.at[r->dst].ndim;
  int64_t width = both_widths(m, r);
  memcpy(step, r->dst_extent, (size_t)ndim * sizeof *step);
  for (int64_t bytes; (bytes = count_elements(ndim, step) * width) > limit;) {
    int first = -1, outer = -1; /* the target's outermost dim, and the source's */
    for (int d = 0; d < ndim; d++) {
      if (step[d] <= unit_of(m, r, d))
        continue;
      if (first < 0)
        first = d;
      if (r->permutation[d] >= 0 &&
          (outer < 0 || stored_dim(m, r, r->permutation[d]) < stored_dim(m, r, r->permutation[outer])))
        outer = d;
    }
    if (first < 0)
      return;
    int64_t unit = unit_of(m, r, first);
    if (outer < 0 || outer == first)
      step[first] = rs_max(1, rs_min(step[first] - 1, limit / (bytes / step[first])) / unit) * unit;
    else if (step[outer] > step[first])
      step[outer] = round_to(rs_ceil_div(step[outer], 2), unit_of(m, r, outer));
    else
      step[first] = round_to(rs_ceil_div(step[first], 2), unit);
  }
}

static int64_t limit_of(const rs_tiling *t, const rs_copy_region *r) {
  int64_t ranks = rs_max(t->move->src->tensors.at[r->src].count, t->move->dst->tensors.at[r->dst].count);
  int64_t least = r->blocks.rows > 1 && t->move->dst->model->tensors.at[r->dst].dtype == RESHARD_F8_E4M3
                      ? rs_max(t->most / BANDS, TILE)
                      : TILE;
  return rs_min(rs_max(least, ranks * ROW), t->most);
}

static reshard_status append_tile(const rs_tiling *t, const int64_t *at, const int64_t *extent, rs_tiles *batch) {
  const rs_store_move *m = t->move;
  const rs_copy_region *r = &m->regions[t->region];
  int nsrc = m->src->model->tensors.at[r->src].ndim, ndst = m->dst->model->tensors.at[r->dst].ndim;
  RS_TRY(rs_vec_reserve(batch, batch->n + 1));
  rs_tile *tile = &batch->at[batch->n++];
  *tile = (rs_tile){.region = t->region, .bytes = count_elements(ndst, extent) * width_of(m->dst, r->dst)};
  for (int d = 0; d < nsrc; d++) {
    tile->src_offset[stored_dim(m, r, d)] = r->src_offset[d];
    tile->src_extent[stored_dim(m, r, d)] = 1; /* unless a dim of the target walks it */
  }
  for (int d = 0; d < ndst; d++) {
    tile->dst_offset[d] = r->dst_offset[d] + at[d];
    tile->dst_extent[d] = extent[d];
    tile->permutation[d] = r->permutation[d];
    if (r->permutation[d] < 0)
      continue;
    int s = stored_dim(m, r, r->permutation[d]);
    tile->permutation[d] = s;
    tile->src_offset[s] += at[d];
    tile->src_extent[s] = extent[d];
  }
  return RESHARD_SUCCESS;
}

/* The tile at t->at; steps on, and ends the region with its last one. */
static reshard_status next_tile(rs_tiling *t, rs_tiles *batch) {
  const rs_copy_region *r = &t->move->regions[t->region];
  int ndim = t->move->dst->model->tensors.at[r->dst].ndim;
  int64_t extent[RESHARD_MAX_DIMS] = {0};
  for (int d = 0; d < ndim; d++)
    extent[d] = rs_min(t->step[d], r->dst_extent[d] - t->at[d]);
  RS_TRY(append_tile(t, t->at, extent, batch));
  for (int d = ndim - 1; d >= 0; d--) {
    t->at[d] += t->step[d];
    if (t->at[d] < r->dst_extent[d])
      return RESHARD_SUCCESS;
    t->at[d] = 0;
  }
  t->inside = false;
  t->region++;
  return RESHARD_SUCCESS;
}

reshard_status rs_tiling_next(rs_tiling *t, rs_tiles *batch) {
  static const int64_t zero[RESHARD_MAX_DIMS];
  batch->n = 0;
  if (t->inside)
    return next_tile(t, batch);
  for (int64_t total = 0; t->region < t->move->nregions; t->region++) {
    const rs_copy_region *r = &t->move->regions[t->region];
    int64_t elements = count_elements(t->move->dst->model->tensors.at[r->dst].ndim, r->dst_extent);
    int64_t bytes = elements * both_widths(t->move, r);
    int64_t limit = limit_of(t, r);
    if (bytes == 0)
      continue;
    if (batch->n > 0 && total + bytes > limit)
      break;
    if (bytes > limit) {
      choose_step(t->move, r, limit, t->step);
      memset(t->at, 0, sizeof t->at);
      t->inside = true;
      return next_tile(t, batch);
    }
    RS_TRY(append_tile(t, zero, r->dst_extent, batch));
    total += bytes;
  }
  return RESHARD_SUCCESS;
}
