/* A rank's leaves by name, and their memory. */
#include "state/checkpoint.h"

#include "device/cpu/cpu.h"
#include "metadata/metadata.h"

#include <stdlib.h>
#include <string.h>

int rs_rank_threads(reshard_comm comm, int threads) {
  return threads > 0 ? threads : (int)rs_max(1, rs_device_cpu_cores() / comm->locals);
}

void rs_items_free(rs_items *items) {
  for (int64_t i = 0; i < items->all.n; i++)
    reshard_sharded_tensor_release(items->all.at[i].sharded);
  rs_names_free(&items->names);
  free(items->all.at);
  free(items->text.at);
  free(items->told);
  *items = (rs_items){0};
}

const rs_item *rs_items_find(const rs_items *items, const char *path) {
  int64_t i = rs_names_find(&items->names, path, strlen(path));
  return i < 0 ? NULL : &items->all.at[i];
}

reshard_status rs_state_turns_check(const char *does, const char *way, int64_t n, rs_state_turn *const *t) {
  char first[RS_QUOTE], second[RS_QUOTE];
  for (int64_t r = 0; r < n; r++)
    if (t[r]->status != RESHARD_SUCCESS)
      return rs_error(t[r]->status, "rank %lld: %s", (long long)r, t[r]->text);
  for (int64_t r = 1; r < n; r++)
    if (strcmp(t[0]->directory, t[r]->directory) != 0)
      return rs_error(RESHARD_ERROR_MISMATCH, "rank 0 %s %s '%s', rank %lld %s '%s'", does, way,
                      rs_quote(first, sizeof first, t[0]->directory), (long long)r, way,
                      rs_quote(second, sizeof second, t[r]->directory));
  return RESHARD_SUCCESS;
}

typedef struct lister {
  reshard_comm comm;
  rs_items *items;
} lister;

static reshard_status add_item(void *user, const char *path, reshard_tree parent, int64_t index, reshard_tree leaf) {
  const lister *l = user;
  rs_items *items = l->items;
  int64_t length = (int64_t)strlen(path) + 1;
  char text[RS_NODE_TEXT];
  RS_TRY(rs_vec_reserve(&items->all, items->all.n + 1));
  RS_TRY(rs_vec_reserve(&items->text, items->text.n + length));
  rs_item item = {.leaf = leaf, .parent = parent, .index = index, .group = -1};
  reshard_dtensor dtensor = rs_leaf_dtensor(leaf);
  if (rs_leaf_nested(leaf) != NULL && l->comm == NULL)
    RS_TRY(rs_nested_flatten(rs_leaf_nested(leaf), path, &item.sharded));
  else if (rs_leaf_nested(leaf) != NULL)
    item.nested = rs_leaf_nested(leaf);
  else
    item.sharded =
        reshard_sharded_tensor_retain(dtensor != NULL ? reshard_dtensor_sharded(dtensor) : rs_leaf_sharded(leaf));
  item.boxes = item.nested != NULL || (item.sharded != NULL && item.sharded->sharder->comm != l->comm);
  if (dtensor != NULL && item.sharded == NULL)
    return RESHARD_ERROR_OUT_OF_MEMORY; /* the text says of what */
  items->all.at[items->all.n++] = item;
  memcpy(items->text.at + items->text.n, path, (size_t)length);
  items->text.n += length;
  if (leaf->kind == RESHARD_TREE_OPAQUE && !rs_item_is_sharded(&item))
    return rs_path_error(
        path, rs_error(RESHARD_ERROR_INVALID, "%s, which a checkpoint cannot have", rs_node_text(text, leaf)));
  if (*path == '\0' || !rs_utf8_valid(path))
    return rs_path_error(path, rs_error(RESHARD_ERROR_INVALID, "%s",
                                        parent == NULL  ? "a state that is saved or loaded is a dict or a list"
                                        : *path == '\0' ? "a leaf without a name"
                                                        : "no valid UTF-8"));
  return RESHARD_SUCCESS;
}

reshard_status rs_items_list(reshard_comm comm, reshard_tree state, rs_items *items) {
  RS_TRY(rs_tree_walk(state, add_item, &(lister){comm, items}));
  const char *path = items->text.at;
  for (int64_t i = 0; i < items->all.n; i++) {
    int64_t number;
    items->all.at[i].path = path;
    RS_TRY(rs_names_put(&items->names, path, strlen(path), &number));
    if (number != i)
      return rs_path_error(path, rs_error(RESHARD_ERROR_INVALID, "two leaves have it"));
    path += strlen(path) + 1;
  }
  return RESHARD_SUCCESS;
}

reshard_dtype rs_item_dtype(const rs_item *item) {
  if (item->told != NULL)
    return item->told->dtype;
  if (item->nested != NULL)
    return item->nested->outer->properties.dtype;
  return item->sharded != NULL ? reshard_metadata_properties(item->sharded->metadata).dtype
                               : item->leaf->tensor->info.dtype;
}

int rs_item_ndim(const rs_item *item) {
  if (item->told != NULL)
    return item->told->ndim;
  if (item->nested != NULL)
    return item->nested->outer->ndim;
  return item->sharded != NULL ? item->sharded->local.layout->ndim : item->leaf->tensor->info.ndim;
}

const int64_t *rs_item_shape(const rs_item *item) {
  if (item->told != NULL)
    return item->told->shape;
  if (item->nested != NULL)
    return item->nested->outer->shape;
  return item->sharded != NULL ? item->sharded->local.layout->shape : item->leaf->tensor->info.shape;
}

/* Where the host has an array: as it is, or dense on its way from or to a GPU. */
static rs_view view_of(const rs_item *item, int64_t a) {
  reshard_tensor tensor = item->sharded != NULL ? item->sharded->local.arrays[a] : item->leaf->tensor;
  rs_view view = {0};
  if (tensor == NULL) /* an array without elements */
    return view;
  int64_t width = (int64_t)reshard_dtype_size(tensor->info.dtype), step = width;
  bool staged = tensor->info.device_type != RESHARD_DEVICE_CPU;
  view.at = staged ? rs_stage_at(item, a) : tensor->info.data;
  for (int d = tensor->info.ndim - 1; d >= 0; d--) {
    view.strides[d] = staged ? step : tensor->info.strides[d] * width;
    step *= rs_max(1, tensor->info.shape[d]);
  }
  return view;
}

reshard_status rs_item_hold(const rs_item *item, reshard_layout layout, int64_t rank, rs_store *store) {
  int64_t arrays = rs_layout_arrays(layout, rank);
  rs_view *views;
  RS_TRY(rs_alloc(&views, arrays, sizeof *views));
  for (int64_t a = 0; a < arrays; a++)
    views[a] = view_of(item, a);
  reshard_status status = rs_memory_hold(store, rank, views);
  free(views);
  return status;
}

reshard_status rs_item_add(const rs_item *item, reshard_layout layout, int64_t rank, rs_store *store) {
  RS_TRY(rs_memory_add(store, rs_item_dtype(item), layout));
  return rs_item_hold(item, layout, rank, store);
}

/* From the first to the last byte of an array. */
typedef struct span {
  uintptr_t begin, end;
  int64_t item;
} span;

static int by_begin(const void *a, const void *b) {
  const span *x = a, *y = b;
  return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static span span_of(reshard_tensor tensor, int64_t item) {
  span s = {(uintptr_t)tensor->info.data, (uintptr_t)tensor->info.data, item};
  size_t element = reshard_dtype_size(tensor->info.dtype), last = 0;
  for (int d = 0; d < tensor->info.ndim; d++) {
    if (tensor->info.shape[d] == 0)
      return s;
    last += (size_t)(tensor->info.strides[d] * (tensor->info.shape[d] - 1));
  }
  s.end += (last + 1) * element;
  return s;
}

/* By their begins, each is compared with the one so far that reaches furthest. */
reshard_status rs_items_sharing(const rs_items *items, bool *sharing) {
  RS_VEC(span) spans = {0};
  for (int64_t i = 0; i < items->all.n; i++) {
    const rs_item *item = &items->all.at[i];
    int64_t arrays = item->sharded != NULL ? item->sharded->local.n : rs_item_is_tensor(item);
    reshard_tensor const *list = item->sharded != NULL ? item->sharded->local.arrays : &item->leaf->tensor;
    reshard_status status = rs_vec_reserve(&spans, spans.n + arrays);
    if (status != RESHARD_SUCCESS) {
      free(spans.at);
      return status;
    }
    for (int64_t a = 0; a < arrays; a++)
      if (list[a] != NULL)
        spans.at[spans.n++] = span_of(list[a], i);
  }
  if (spans.n > 1)
    qsort(spans.at, (size_t)spans.n, sizeof *spans.at, by_begin);
  const span *furthest = spans.at;
  for (int64_t i = 1; i < spans.n; i++) {
    const span *s = &spans.at[i];
    if (s->begin < furthest->end && s->begin < s->end && s->item != furthest->item)
      sharing[s->item] = sharing[furthest->item] = true;
    if (s->end > furthest->end)
      furthest = s;
  }
  free(spans.at);
  return RESHARD_SUCCESS;
}
