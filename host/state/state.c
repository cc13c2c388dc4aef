/* Types of leaves that are sharded tensors, DTensors and nested tensors. */
#include "state/state.h"

#include "dtensor/dtensor.h"
#include "metadata/metadata.h"

#include <string.h>

/* Text behind the type of a leaf in a printed tree: "f32 8x6 chunk(0;0-3)". */
enum { LAYOUT_TEXT = 192 }; /* a longer one is cut off */

/* layout NULL: none is printed. */
static void print_tensor(rs_text *out, const reshard_properties *properties, int ndim, const int64_t *shape,
                         reshard_layout layout) {
  char text[RS_SHAPE_TEXT + LAYOUT_TEXT];
  rs_text_add(out, "%s %s", reshard_dtype_string(properties->dtype), rs_shape_text(text, ndim, shape));
  if (layout != NULL && reshard_layout_print(layout, text, LAYOUT_TEXT, NULL) != RESHARD_SUCCESS)
    memcpy(text + LAYOUT_TEXT - 4, "...", 4);
  if (layout != NULL)
    rs_text_add(out, " %s", text);
  if (properties->requires_grad)
    rs_text_add(out, " requires_grad");
}

static void print_sharded(rs_text *out, reshard_sharded_tensor tensor) {
  reshard_metadata m = tensor->metadata;
  print_tensor(out, &m->properties, m->ndim, m->shape, tensor->local.layout);
}

static void sharded_text(const void *value, char *text, size_t size) {
  print_sharded(&(rs_text){.at = text, .size = size}, (reshard_sharded_tensor)value);
}

static void dtensor_text(const void *value, char *text, size_t size) {
  const struct reshard_dtensor_s *tensor = value;
  reshard_layout layout = tensor->local.layout;
  print_tensor(&(rs_text){.at = text, .size = size}, &tensor->properties, layout->ndim, layout->shape, layout);
}

/* Prints the outer tensor, then this rank's inner ones, as deep as they go. */
static void print_nested(rs_text *out, const rs_nested *nested) {
  reshard_metadata m = nested->outer;
  print_tensor(out, &m->properties, m->ndim, m->shape, NULL);
  rs_text_add(out, ", %lld of %lld shards here", (long long)nested->n, (long long)m->n);
  for (int64_t i = 0; i < nested->n; i++) {
    char box[RS_BOX_TEXT];
    const reshard_box *at = &m->shards[nested->entries[i]].box;
    rs_text_add(out, "%s %s of ", i == 0 ? ":" : ",", rs_box_text(box, m->ndim, at->offset, at->extent));
    if (rs_leaf_sharded(nested->inner[i]) != NULL) {
      print_sharded(out, rs_leaf_sharded(nested->inner[i]));
    } else if (rs_leaf_nested(nested->inner[i]) != NULL && out->length < out->size) {
      rs_text_add(out, "(");
      print_nested(out, rs_leaf_nested(nested->inner[i]));
      rs_text_add(out, ")");
    }
  }
}

static void nested_text(const void *value, char *text, size_t size) {
  print_nested(&(rs_text){.at = text, .size = size}, value);
}

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
                                           sharded_text};
const reshard_tree_type rs_dtensor_type = {"DTensor", retain_dtensor, release_dtensor, map_dtensor, dtensor_text};
const reshard_tree_type rs_nested_type = {"nested sharded tensor", NULL, rs_nested_release, map_nested, nested_text};

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
