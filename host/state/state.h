/* Leaves of state dicts that are sharded tensors, DTensors and nested tensors. */
#ifndef RS_STATE_STATE_H
#define RS_STATE_STATE_H

#include "state/nested.h"

extern const reshard_tree_type rs_sharded_type, rs_dtensor_type, rs_nested_type;
/* Value of a leaf; NULL where it is of another kind, and for NULL. */
static inline reshard_sharded_tensor rs_leaf_sharded(reshard_tree leaf) {
  return rs_node_value(leaf, &rs_sharded_type);
}
static inline reshard_dtensor rs_leaf_dtensor(reshard_tree leaf) { return rs_node_value(leaf, &rs_dtensor_type); }
static inline const rs_nested *rs_leaf_nested(reshard_tree leaf) { return rs_node_value(leaf, &rs_nested_type); }
/* Makes a leaf of a tensor, and takes over the caller's reference, in any case. */
reshard_status rs_sharded_leaf(reshard_sharded_tensor tensor, reshard_tree *leaf);
/* Checks that a leaf is of that type, and that the output is there. */
reshard_status rs_leaf_check(const char *call, const reshard_tree_type *type, reshard_tree leaf, const void *output);

#endif
