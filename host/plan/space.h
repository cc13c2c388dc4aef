/* Region and permutation of an entry, as axes that both tensors are walked along. */
#ifndef RS_PLAN_SPACE_H
#define RS_PLAN_SPACE_H

#include "base/base.h"

#include <reshard/plan.h>

/* Axes of a region: the dims of the destination in their order, then source dims that the destination lacks. */
#define RS_MAX_AXES (2 * RESHARD_MAX_DIMS)
typedef struct rs_space {
  int naxes;
  int src_dim[RS_MAX_AXES], dst_dim[RS_MAX_AXES]; /* -1: this side lacks the axis; extent is 1 then */
  int64_t extent[RS_MAX_AXES];
  int64_t src_offset[RS_MAX_AXES], dst_offset[RS_MAX_AXES]; /* of the region, in the global tensors */
} rs_space;

/* Region and permutation of an entry, checked; what it says when it is wrong starts with `label`. */
reshard_status rs_space_create(const char *label, const reshard_entry *entry, rs_space *space);

#endif
