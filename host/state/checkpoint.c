/* Does what a rank wants to load fit what is stored, and is what is stored in some rank's state? */
#include "state/checkpoint.h"

#include <string.h>

int64_t rs_opened_tensor(const rs_opened *s, const char *path) {
  return rs_names_find(&s->checkpoint->names, path, strlen(path));
}

int64_t rs_opened_leaf(const rs_opened *s, const char *path) {
  return rs_names_find(&s->leaves.names, path, strlen(path));
}

static reshard_status check_tensor(const rs_opened *s, const rs_item *item) {
  char text[RS_NODE_TEXT], quoted[RS_QUOTE], wanted[RS_SHAPE_TEXT], has[RS_SHAPE_TEXT];
  rs_quote(quoted, sizeof quoted, item->path);
  int64_t tensor = rs_opened_tensor(s, item->path), leaf = rs_opened_leaf(s, item->path);
  if (tensor < 0)
    return leaf < 0 ? rs_error(RESHARD_ERROR_INVALID, "path '%s': the checkpoint has no such tensor", quoted)
                    : rs_error(RESHARD_ERROR_INVALID, "path '%s' is %s here, in the checkpoint it is %s", quoted,
                               rs_node_text(text, item->leaf), rs_kind_text(s->leaves.all.at[leaf]->kind));
  const rs_model_tensor *stored = &s->checkpoint->store.model->tensors.at[tensor];
  if (rs_item_dtype(item) != stored->dtype)
    return rs_error(RESHARD_ERROR_INVALID, "path '%s' is %s here, in the checkpoint it is %s", quoted,
                    reshard_dtype_string(rs_item_dtype(item)), reshard_dtype_string(stored->dtype));
  int ndim = rs_item_ndim(item);
  const int64_t *shape = rs_item_shape(item);
  if (ndim != stored->ndim || memcmp(shape, stored->shape, (size_t)ndim * sizeof *shape) != 0)
    return rs_error(RESHARD_ERROR_INVALID, "path '%s' is of shape %s here, in the checkpoint it is of %s", quoted,
                    rs_shape_text(wanted, ndim, shape), rs_shape_text(has, stored->ndim, stored->shape));
  int64_t arrays = item->sharded != NULL ? item->sharded->local.n : 1;
  for (int64_t a = 0; a < arrays; a++) {
    reshard_tensor array = item->sharded != NULL ? item->sharded->local.arrays[a] : item->leaf->tensor;
    if (array != NULL && array->info.overlapping)
      return rs_error(RESHARD_ERROR_INVALID,
                      "path '%s': array %lld has elements that share memory, it cannot be filled", quoted,
                      (long long)a);
  }
  return RESHARD_SUCCESS;
}

static reshard_status check_leaf(const rs_opened *s, const rs_item *item) {
  char quoted[RS_QUOTE];
  if (rs_opened_leaf(s, item->path) >= 0)
    return RESHARD_SUCCESS;
  bool tensor = rs_opened_tensor(s, item->path) >= 0;
  if (tensor && item->leaf->kind == RESHARD_TREE_NULL)
    return RESHARD_SUCCESS;
  rs_quote(quoted, sizeof quoted, item->path);
  return tensor ? rs_error(RESHARD_ERROR_INVALID, "path '%s' is %s here, in the checkpoint it is a tensor", quoted,
                           rs_kind_text(item->leaf->kind))
                : rs_error(RESHARD_ERROR_INVALID, "path '%s': the checkpoint has no such leaf", quoted);
}

reshard_status rs_opened_fits(const rs_opened *s, const rs_items *items) {
  for (int64_t i = 0; i < items->all.n; i++) {
    const rs_item *item = &items->all.at[i];
    RS_TRY(rs_item_is_tensor(item) ? check_tensor(s, item) : check_leaf(s, item));
  }
  return RESHARD_SUCCESS;
}

/* --- Is all that is stored wanted? ------------------------------------------------------------------------------- */

static const char *name_of(const rs_opened *s, int64_t i) {
  const struct reshard_model_s *model = s->checkpoint->store.model;
  int64_t tensors = s->checkpoint->info.tensors;
  return i < tensors ? model->names.at + model->tensors.at[i].name : s->leaves.paths.at[i - tensors];
}

int64_t rs_opened_names(const rs_opened *s) { return s->checkpoint->info.tensors + s->leaves.all.n; }

reshard_status rs_opened_list_lacking(const rs_opened *s, const rs_items *items, char **lacks, bool *some) {
  int64_t names = rs_opened_names(s);
  *some = false;
  RS_TRY(rs_alloc(lacks, names, 1));
  for (int64_t i = 0; i < names; i++) {
    (*lacks)[i] = rs_items_find(items, name_of(s, i)) == NULL;
    *some |= (*lacks)[i] != 0;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_opened_check_lacking(const rs_opened *s, int64_t n, const char *const *lacks) {
  char quoted[RS_QUOTE];
  for (int64_t i = 0; i < rs_opened_names(s); i++) {
    bool all = true;
    for (int64_t r = 0; r < n && all; r++)
      all = lacks[r][i] != 0;
    if (all)
      return rs_error(RESHARD_ERROR_INVALID, "the checkpoint's %s '%s' is in no rank's state",
                      i < s->checkpoint->info.tensors ? "tensor" : "leaf",
                      rs_quote(quoted, sizeof quoted, name_of(s, i)));
  }
  return RESHARD_SUCCESS;
}
