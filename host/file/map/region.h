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
} rs_copy_region;
typedef RS_VEC(rs_copy_region) rs_copy_regions;

/* The region of a whole tensor as it is. */
static inline void rs_region_whole(const rs_model_tensor *t, int64_t src, int64_t dst, rs_copy_region *region) {
  *region = (rs_copy_region){.src = src, .dst = dst};
  for (int d = 0; d < t->ndim; d++) {
    region->src_extent[d] = region->dst_extent[d] = t->shape[d];
    region->permutation[d] = d;
  }
}

#endif
