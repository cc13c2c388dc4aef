/* Types of leaves that are sharded tensors, DTensors and nested tensors. */
#include "state/state.h"

#include "dtensor/dtensor.h"

static void retain_sharded(void *value) { reshard_sharded_tensor_retain(value); }
static void release_sharded(void *value) { reshard_sharded_tensor_release(value); }
static void retain_dtensor(void *value) { reshard_dtensor_retain(value); }
static void release_dtensor(void *value) { reshard_dtensor_release(value); }

/* Maps the local tensors of a leaf: a cast, a move to a device. */
static reshard_status map_sharded(void *value, const char *path, reshard_tree_tensor_map map, void *user,
                                  void **mapped) {
  reshard_sharded_tensor made;
  RS_TRY(rs_sharded_map(value, &(rs_tensor_mapper){path, map, user}, &made));
  *mapped = made;
  return RESHARD_SUCCESS;
}
static reshard_status map_dtensor(void *value, const char *path, reshard_tree_tensor_map map, void *user,
                                  void **mapped) {
  reshard_dtensor made;
  RS_TRY(rs_dtensor_map(value, &(rs_tensor_mapper){path, map, user}, &made));
  *mapped = made;
  return RESHARD_SUCCESS;
}
static reshard_status map_nested(void *value, const char *path, reshard_tree_tensor_map map, void *user,
                                 void **mapped) {
  rs_nested *made;
  RS_TRY(rs_nested_map(value, &(rs_tensor_mapper){path, map, user}, &made));
  *mapped = made;
  return RESHARD_SUCCESS;
}

const reshard_tree_type rs_sharded_type = {"sharded tensor", retain_sharded, release_sharded, map_sharded,
                                           rs_sharded_print};
const reshard_tree_type rs_dtensor_type = {"DTensor", retain_dtensor, release_dtensor, map_dtensor, rs_dtensor_print};
const reshard_tree_type rs_nested_type = {"nested sharded tensor", NULL, rs_nested_release, map_nested,
                                          rs_nested_print};

/* Makes a tensor a leaf. */
static reshard_status make_leaf(const char *call, const reshard_tree_type *type, void *tensor, reshard_tree *leaf) {
  if (tensor == NULL || leaf == NULL)
    return rs_error_null(call, tensor == NULL ? "tensor" : "the output");
  return reshard_tree_opaque(type, tensor, leaf);
}

reshard_status reshard_state_sharded(reshard_sharded_tensor tensor, reshard_tree *leaf) {
  return make_leaf("reshard_state_sharded", &rs_sharded_type, tensor, leaf);
}

reshard_status rs_sharded_leaf(reshard_sharded_tensor tensor, reshard_tree *leaf) {
  reshard_status status = reshard_state_sharded(tensor, leaf);
  reshard_sharded_tensor_release(tensor);
  return status;
}

reshard_status reshard_state_dtensor(reshard_dtensor tensor, reshard_tree *leaf) {
  return make_leaf("reshard_state_dtensor", &rs_dtensor_type, tensor, leaf);
}

reshard_status rs_leaf_check(const char *call, const reshard_tree_type *type, reshard_tree leaf, const void *output) {
  char text[RS_NODE_TEXT];
  if (leaf == NULL || output == NULL)
    return rs_error_null(call, leaf == NULL ? "leaf" : "the output");
  if (rs_node_value(leaf, type) == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the leaf is %s, not a %s", call, rs_node_text(text, leaf), type->name);
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_get_sharded(reshard_tree leaf, reshard_sharded_tensor *tensor) {
  RS_TRY(rs_leaf_check("reshard_state_get_sharded", &rs_sharded_type, leaf, tensor));
  *tensor = leaf->value;
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_get_dtensor(reshard_tree leaf, reshard_dtensor *tensor) {
  RS_TRY(rs_leaf_check("reshard_state_get_dtensor", &rs_dtensor_type, leaf, tensor));
  *tensor = leaf->value;
  return RESHARD_SUCCESS;
}
