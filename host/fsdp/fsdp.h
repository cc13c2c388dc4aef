/* Inside of the FSDP extension. */
#ifndef RS_FSDP_FSDP_H
#define RS_FSDP_FSDP_H

#include "dtensor/dtensor.h"
#include "state/state.h"

#include <reshard/fsdp.h>

/* Makes a leaf of a tensor, and takes over the caller's reference, in any case. */
reshard_status rs_fsdp_dtensor_leaf(reshard_dtensor tensor, reshard_tree *leaf);
/* Makes a leaf of this rank's local tensor of a DTensor, retained; outside of the mesh one of shape 0, and of dtype
 * (NONE: the DTensor's). */
reshard_status rs_fsdp_local_leaf(reshard_dtensor tensor, reshard_dtype dtype, reshard_tree *leaf);
/* "reshard_fsdp_...: the leaf is an integer, a DTensor is needed" */
reshard_status rs_fsdp_error_leaf(const char *call, reshard_tree leaf, const char *wanted);

#endif
