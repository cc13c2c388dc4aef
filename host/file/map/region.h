/* Regions of tensors that become regions of others. */
#ifndef RS_FILE_REGION_H
#define RS_FILE_REGION_H

#include "file/model/model.h"

/* A region of a source tensor becomes a region of a target tensor, as in reshard_entry. Offsets and extents are in the
 * model's dims on both sides. */
typedef struct rs_copy_region {
  int64_t src, dst; /* tensors of the two stores; src -1: zeros, of the shape src_extent */
  int64_t src_offset[RESHARD_MAX_DIMS], src_extent[RESHARD_MAX_DIMS];
  int64_t dst_offset[RESHARD_MAX_DIMS], dst_extent[RESHARD_MAX_DIMS];
  int permutation[RESHARD_MAX_DIMS]; /* per dim of dst: the dim of src, or -1 for an inserted dim of extent 1 */
  /* One side is f8_e4m3 with scales, the other numbers that are wider. The region begins and ends with blocks of the
   * target, if it is that. */
  reshard_blocks blocks; /* rows 0: no */
  int64_t scales;        /* tensor of that side with the scales */
} rs_copy_region;
typedef RS_VEC(rs_copy_region) rs_copy_regions;

/* Extent of a block in a dim. */
static inline int64_t rs_blocks_extent(const reshard_blocks *blocks, int ndim, int dim) {
  return dim == ndim - 1 ? blocks->columns : dim == ndim - 2 ? blocks->rows : 1;
}
/* True for the side of a region that has scales. */
static inline bool rs_region_scaled(const rs_copy_region *r, reshard_dtype of_side) {
  return r->blocks.rows > 0 && of_side == RESHARD_F8_E4M3;
}

/* The region of a whole tensor as it is. */
static inline void rs_region_whole(const rs_model_tensor *t, int64_t src, int64_t dst, rs_copy_region *region) {
  *region = (rs_copy_region){.src = src, .dst = dst};
  for (int d = 0; d < t->ndim; d++) {
    region->src_extent[d] = region->dst_extent[d] = t->shape[d];
    region->permutation[d] = d;
  }
}

/* The target's side of a region gets the dims from[0..ndim) of what it was; -1: a new one. */
static inline void rs_region_arrange(rs_copy_region *region, int ndim, const int *from) {
  rs_copy_region old = *region;
  for (int d = 0; d < ndim; d++) {
    region->dst_offset[d] = from[d] < 0 ? 0 : old.dst_offset[from[d]];
    region->dst_extent[d] = from[d] < 0 ? 1 : old.dst_extent[from[d]];
    region->permutation[d] = from[d] < 0 ? -1 : old.permutation[from[d]];
  }
}

/* Indices [lo, hi) of a dim of the target's side, as far as a region has them; they begin at `at` then. False where it
 * has none. */
static inline bool rs_region_clip(const rs_copy_region *from, int dim, int64_t lo, int64_t hi, int64_t at,
                                  rs_copy_region *out) {
  int64_t begin = rs_max(lo, from->dst_offset[dim]), end = rs_min(hi, from->dst_offset[dim] + from->dst_extent[dim]);
  int src = from->permutation[dim];
  *out = *from;
  if (src >= 0 && from->src >= 0)
    out->src_offset[src] += begin - from->dst_offset[dim];
  if (src >= 0)
    out->src_extent[src] = end - begin;
  out->dst_offset[dim] = at + begin - lo;
  out->dst_extent[dim] = end - begin;
  return begin < end;
}

#endif
