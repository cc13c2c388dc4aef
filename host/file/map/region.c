#include "file/map/region.h"

void rs_region_whole(const rs_model_tensor *t, int64_t src, int64_t dst, rs_copy_region *region) {
  *region = (rs_copy_region){.src = src, .dst = dst};
  for (int d = 0; d < t->ndim; d++) {
    region->src_extent[d] = region->dst_extent[d] = t->shape[d];
    region->permutation[d] = d;
  }
}
