/* Inside of the FSDP extension. */
#ifndef RS_SHARDED_FSDP_H
#define RS_SHARDED_FSDP_H

#include "dtensor/dtensor.h"
#include "state/state.h"

#include <reshard/fsdp.h>

/* A leaf for a tensor of which the caller gives a reference away, in any case. */
reshard_status rs_fsdp_take_sharded(reshard_sharded_tensor tensor, reshard_tree *leaf);
reshard_status rs_fsdp_take_dtensor(reshard_dtensor tensor, reshard_tree *leaf);
/* A leaf with this rank's local tensor of a DTensor, retained; outside of the mesh with one of shape 0 and its dtype.
 */
reshard_status rs_fsdp_local(reshard_dtensor tensor, reshard_tree *leaf);
/* "reshard_fsdp_...: the leaf is an integer, a DTensor is needed" */
reshard_status rs_fsdp_wrong_leaf(const char *call, reshard_tree leaf, const char *wanted);

#endif
