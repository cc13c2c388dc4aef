#include "file/map/region.h"

void rs_map_whole(const rs_model_tensor *t, int64_t src, int64_t dst, rs_route *route) {
  *route = (rs_route){.src = src, .dst = dst};
  for (int d = 0; d < t->ndim; d++) {
    route->src_extent[d] = route->dst_extent[d] = t->shape[d];
    route->permutation[d] = d;
  }
}
