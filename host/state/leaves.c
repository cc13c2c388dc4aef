/* A rank's leaves by name, and their memory. */
#include "state/leaves.h"

#include "base/order.h"
#include "base/text.h"
#include "file/move/move.h"
#include "metadata/metadata.h"
#include "state/state.h"
#include "tree/walk.h"

#include <stdlib.h>
#include <string.h>

void rs_state_leaves_free(rs_state_leaves *leaves) {
  for (int64_t i = 0; i < leaves->all.n; i++)
    reshard_sharded_tensor_release(leaves->all.at[i].sharded);
  rs_names_free(&leaves->names);
  free(leaves->all.at);
  free(leaves->text.at);
  free(leaves->remote);
  *leaves = (rs_state_leaves){0};
}

const rs_state_leaf *rs_state_leaves_find(const rs_state_leaves *leaves, const char *path) {
  int64_t i = rs_names_find(&leaves->names, path, strlen(path));
  return i < 0 ? NULL : &leaves->all.at[i];
}

typedef struct leaf_lister {
  reshard_comm comm;
  rs_state_leaves *leaves;
} leaf_lister;

static reshard_status add_leaf(void *user, const char *path, reshard_tree parent, int64_t index, reshard_tree node) {
  const leaf_lister *l = user;
  rs_state_leaves *leaves = l->leaves;
  char text[RS_NODE_TEXT];
  RS_TRY(rs_vec_reserve(&leaves->all, leaves->all.n + 1));
  RS_TRY(rs_vec_append(&leaves->text, path, strlen(path) + 1));
  rs_state_leaf leaf = {.node = node, .parent = parent, .index = index, .batch = -1};
  reshard_dtensor dtensor = rs_leaf_dtensor(node);
  if (rs_leaf_nested(node) != NULL && l->comm == NULL)
    RS_TRY(rs_nested_flatten(rs_leaf_nested(node), path, &leaf.sharded));
  else if (rs_leaf_nested(node) != NULL)
    leaf.nested = rs_leaf_nested(node);
  else
    leaf.sharded =
        reshard_sharded_tensor_retain(dtensor != NULL ? reshard_dtensor_sharded(dtensor) : rs_leaf_sharded(node));
  leaf.exchanged = leaf.nested != NULL || (leaf.sharded != NULL && leaf.sharded->sharder->comm != l->comm);
  if (dtensor != NULL && leaf.sharded == NULL)
    return RESHARD_ERROR_OUT_OF_MEMORY; /* the text says of what */
  leaves->all.at[leaves->all.n++] = leaf;
  if (node->kind == RESHARD_TREE_OPAQUE && !rs_state_leaf_is_sharded(&leaf))
    return rs_path_error(
        path, rs_error(RESHARD_ERROR_INVALID, "%s, which a checkpoint cannot have", rs_node_text(text, node)));
  if (*path == '\0' || !rs_utf8_valid(path))
    return rs_path_error(path, rs_error(RESHARD_ERROR_INVALID, "%s",
                                        parent == NULL  ? "a state that is saved or loaded is a dict or a list"
                                        : *path == '\0' ? "a leaf without a name"
                                                        : "no valid UTF-8"));
  return RESHARD_SUCCESS;
}

reshard_status rs_state_leaves_list(reshard_comm comm, reshard_tree state, rs_state_leaves *leaves) {
  RS_TRY(rs_tree_walk(state, add_leaf, &(leaf_lister){comm, leaves}));
  const char *path = leaves->text.at;
  for (int64_t i = 0; i < leaves->all.n; i++) {
    int64_t number;
    leaves->all.at[i].path = path;
    RS_TRY(rs_names_put(&leaves->names, path, strlen(path), &number));
    if (number != i)
      return rs_path_error(path, rs_error(RESHARD_ERROR_INVALID, "two leaves have it"));
    path += strlen(path) + 1;
  }
  return RESHARD_SUCCESS;
}

reshard_dtype rs_state_leaf_dtype(const rs_state_leaf *leaf) {
  if (leaf->remote != NULL)
    return leaf->remote->dtype;
  if (leaf->nested != NULL)
    return leaf->nested->outer->properties.dtype;
  return leaf->sharded != NULL ? reshard_metadata_properties(leaf->sharded->metadata).dtype
                               : leaf->node->tensor->info.dtype;
}

int rs_state_leaf_ndim(const rs_state_leaf *leaf) {
  if (leaf->remote != NULL)
    return leaf->remote->ndim;
  if (leaf->nested != NULL)
    return leaf->nested->outer->ndim;
  return leaf->sharded != NULL ? leaf->sharded->local.layout->ndim : leaf->node->tensor->info.ndim;
}

const int64_t *rs_state_leaf_shape(const rs_state_leaf *leaf) {
  if (leaf->remote != NULL)
    return leaf->remote->shape;
  if (leaf->nested != NULL)
    return leaf->nested->outer->shape;
  return leaf->sharded != NULL ? leaf->sharded->local.layout->shape : leaf->node->tensor->info.shape;
}

/* Address and strides of an array for the host: its own, or dense in pinned memory. */
static rs_view array_view(const rs_state_leaf *leaf, int64_t a) {
  reshard_tensor tensor = rs_state_leaf_array(leaf, a);
  rs_view view = {0};
  if (tensor == NULL) /* an array without elements */
    return view;
  int64_t width = (int64_t)reshard_dtype_size(tensor->info.dtype), step = width;
  bool pinned = tensor->info.device_type != RESHARD_DEVICE_CPU;
  view.at = pinned ? rs_pinned_buffers_at(leaf, a) : rs_tensor_data(tensor);
  for (int d = tensor->info.ndim - 1; d >= 0; d--) {
    view.strides[d] = pinned ? step : tensor->info.strides[d] * width;
    step *= rs_max(1, tensor->info.shape[d]);
  }
  return view;
}

reshard_status rs_state_leaf_add_rank(const rs_state_leaf *leaf, reshard_layout layout, int64_t rank, rs_store *store) {
  int64_t arrays = rs_layout_arrays(layout, rank);
  rs_view *views;
  RS_TRY(rs_alloc(&views, arrays, sizeof *views));
  for (int64_t a = 0; a < arrays; a++)
    views[a] = array_view(leaf, a);
  reshard_status status = rs_memory_add_arrays(store, rank, views);
  free(views);
  return status;
}

reshard_status rs_state_leaf_add(const rs_state_leaf *leaf, reshard_layout layout, int64_t rank, rs_store *store) {
  RS_TRY(rs_memory_add_tensor(store, rs_state_leaf_dtype(leaf), layout));
  return rs_state_leaf_add_rank(leaf, layout, rank, store);
}

/* Byte range of an array. */
typedef struct span {
  uintptr_t begin, end;
  int64_t leaf;
} span;

RS_ORDER_BY(compare_spans, span, begin)

static span array_span(reshard_tensor tensor, int64_t leaf) {
  span s = {(uintptr_t)rs_tensor_data(tensor), (uintptr_t)rs_tensor_data(tensor), leaf};
  size_t element = reshard_dtype_size(tensor->info.dtype), last = 0;
  for (int d = 0; d < tensor->info.ndim; d++) {
    if (tensor->info.shape[d] == 0)
      return s;
    last += (size_t)(tensor->info.strides[d] * (tensor->info.shape[d] - 1));
  }
  s.end += (last + 1) * element;
  return s;
}

/* Compares each span, by their begins, with the one so far that reaches furthest. */
reshard_status rs_state_leaves_find_shared(const rs_state_leaves *leaves, bool *shared) {
  RS_VEC(span) spans = {0};
  for (int64_t i = 0; i < leaves->all.n; i++) {
    const rs_state_leaf *leaf = &leaves->all.at[i];
    int64_t arrays = rs_state_leaf_arrays(leaf);
    RS_TRY_OR(rs_vec_reserve(&spans, spans.n + arrays), free(spans.at));
    for (int64_t a = 0; a < arrays; a++)
      if (rs_state_leaf_array(leaf, a) != NULL)
        spans.at[spans.n++] = array_span(rs_state_leaf_array(leaf, a), i);
  }
  if (spans.n > 1)
    qsort(spans.at, (size_t)spans.n, sizeof *spans.at, compare_spans);
  const span *furthest = spans.at;
  for (int64_t i = 1; i < spans.n; i++) {
    const span *s = &spans.at[i];
    if (s->begin < furthest->end && s->begin < s->end && s->leaf != furthest->leaf)
      shared[s->leaf] = shared[furthest->leaf] = true;
    if (s->end > furthest->end)
      furthest = s;
  }
  free(spans.at);
  return RESHARD_SUCCESS;
}
