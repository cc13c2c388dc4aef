/* Checks that the leaves of a rank's state are stored, and that every stored name is in some rank's state. */
#include "state/checkpoint.h"
#include "base/dtype.h"
#include "base/text.h"
#include "file/map/dtypes.h"
#include "file/read/checkpoint.h"

#include <string.h>

static reshard_status make_leaf(const rs_leaves *from, const rs_leaf *leaf, reshard_tree *made) {
  switch (leaf->kind) {
  case RS_LEAF_BOOL: return reshard_tree_bool(leaf->integer != 0, made);
  case RS_LEAF_INT: return reshard_tree_int(leaf->integer, made);
  case RS_LEAF_FLOAT: return reshard_tree_float(leaf->real, made);
  case RS_LEAF_BYTES: return reshard_tree_bytes(from->text.at + leaf->integer, (size_t)leaf->size, made);
  default: return reshard_tree_null(made);
  }
}

reshard_status rs_stored_leaves_add(rs_stored_leaves *leaves, reshard_checkpoint checkpoint) {
  const rs_leaves *from = &checkpoint->leaves;
  for (int64_t i = 0; i < from->all.n; i++) {
    const char *path = from->text.at + from->all.at[i].name;
    int64_t number;
    if (rs_names_find(&leaves->names, path, strlen(path)) >= 0) /* state.json has it too */
      continue;
    RS_TRY(rs_vec_reserve(&leaves->all, leaves->all.n + 1));
    RS_TRY(rs_vec_reserve(&leaves->paths, leaves->paths.n + 1));
    RS_TRY(rs_alloc_copy(&leaves->paths.at[leaves->paths.n], path, (int64_t)strlen(path) + 1, 1));
    leaves->paths.n++;
    RS_TRY(make_leaf(from, &from->all.at[i], &leaves->all.at[leaves->all.n]));
    leaves->all.n++;
    RS_TRY(rs_names_put(&leaves->names, leaves->paths.at[leaves->paths.n - 1], strlen(path), &number));
  }
  return RESHARD_SUCCESS;
}

int64_t rs_state_checkpoint_tensor(const rs_state_checkpoint *s, const char *path) {
  return rs_names_find(&s->checkpoint->names, path, strlen(path));
}

int64_t rs_state_checkpoint_leaf(const rs_state_checkpoint *s, const char *path) {
  return rs_names_find(&s->leaves.names, path, strlen(path));
}

/* Tensors of another dtype are converted, but FP8 and its scales, which mean nothing without one another. */
static reshard_status match_dtype(const rs_state_checkpoint *s, const rs_state_leaf *leaf, int64_t tensor) {
  const struct reshard_model_s *model = s->checkpoint->store.model;
  const rs_model_tensor *stored = &model->tensors.at[tensor];
  reshard_dtype here = rs_state_leaf_dtype(leaf);
  char quoted[RS_QUOTE], beside[RS_QUOTE];
  int64_t other = -1;
  if (here == stored->dtype)
    return RESHARD_SUCCESS;
  rs_quote(quoted, sizeof quoted, leaf->path);
  if (stored->packed != 0 || !rs_cast_supported(stored->dtype, here))
    return rs_error(RESHARD_ERROR_INVALID, "path '%s' is %s here, in the checkpoint it is %s", quoted,
                    reshard_dtype_string(here), rs_type_text(stored->dtype, stored->packed));
  RS_TRY(rs_dtypes_partner(&s->checkpoint->names, model, tensor, &other));
  return other < 0
             ? RESHARD_SUCCESS
             : rs_error(RESHARD_ERROR_INVALID,
                        "path '%s' is %s here, in the checkpoint it is %s beside '%s': neither is converted alone",
                        quoted, reshard_dtype_string(here), reshard_dtype_string(stored->dtype),
                        rs_quote(beside, sizeof beside, rs_model_name(model, other)));
}

static reshard_status match_tensor(const rs_state_checkpoint *s, const rs_state_leaf *leaf) {
  char text[RS_NODE_TEXT], quoted[RS_QUOTE], wanted[RS_SHAPE_TEXT], has[RS_SHAPE_TEXT];
  rs_quote(quoted, sizeof quoted, leaf->path);
  int64_t tensor = rs_state_checkpoint_tensor(s, leaf->path), stored_leaf = rs_state_checkpoint_leaf(s, leaf->path);
  if (tensor < 0)
    return stored_leaf < 0
               ? rs_error(RESHARD_ERROR_INVALID, "path '%s': the checkpoint has no such tensor", quoted)
               : rs_error(RESHARD_ERROR_INVALID, "path '%s' is %s here, in the checkpoint it is %s", quoted,
                          rs_node_text(text, leaf->node), rs_kind_text(s->leaves.all.at[stored_leaf]->kind));
  RS_TRY(rs_model_check_dtype(s->checkpoint->store.model, tensor));
  const rs_model_tensor *stored = &s->checkpoint->store.model->tensors.at[tensor];
  RS_TRY(match_dtype(s, leaf, tensor));
  int ndim = rs_state_leaf_ndim(leaf);
  const int64_t *shape = rs_state_leaf_shape(leaf);
  if (!rs_shape_equal(ndim, shape, stored->ndim, stored->shape))
    return rs_error(RESHARD_ERROR_INVALID, "path '%s' is of shape %s here, in the checkpoint it is of %s", quoted,
                    rs_shape_text(wanted, ndim, shape), rs_shape_text(has, stored->ndim, stored->shape));
  for (int64_t a = 0; a < rs_state_leaf_arrays(leaf); a++) {
    reshard_tensor array = rs_state_leaf_array(leaf, a);
    if (array != NULL && array->info.overlapping)
      return rs_error(RESHARD_ERROR_INVALID,
                      "path '%s': array %lld has elements that share memory, it cannot be filled", quoted,
                      (long long)a);
  }
  return RESHARD_SUCCESS;
}

static reshard_status match_leaf(const rs_state_checkpoint *s, const rs_state_leaf *leaf) {
  char quoted[RS_QUOTE];
  if (rs_state_checkpoint_leaf(s, leaf->path) >= 0)
    return RESHARD_SUCCESS;
  bool tensor = rs_state_checkpoint_tensor(s, leaf->path) >= 0;
  if (tensor && leaf->node->kind == RESHARD_TREE_NULL)
    return RESHARD_SUCCESS;
  rs_quote(quoted, sizeof quoted, leaf->path);
  return tensor ? rs_error(RESHARD_ERROR_INVALID, "path '%s' is %s here, in the checkpoint it is a tensor", quoted,
                           rs_kind_text(leaf->node->kind))
                : rs_error(RESHARD_ERROR_INVALID, "path '%s': the checkpoint has no such leaf", quoted);
}

reshard_status rs_state_checkpoint_match(const rs_state_checkpoint *s, const rs_state_leaves *leaves) {
  for (int64_t i = 0; i < leaves->all.n; i++) {
    const rs_state_leaf *leaf = &leaves->all.at[i];
    RS_TRY(rs_state_leaf_is_tensor(leaf) ? match_tensor(s, leaf) : match_leaf(s, leaf));
  }
  return RESHARD_SUCCESS;
}

/* --- Unexpected names -------------------------------------------------------------------------------------------- */

static const char *stored_name(const rs_state_checkpoint *s, int64_t i) {
  const struct reshard_model_s *model = s->checkpoint->store.model;
  int64_t tensors = s->checkpoint->info.tensors;
  return i < tensors ? rs_model_name(model, i) : s->leaves.paths.at[i - tensors];
}

int64_t rs_state_checkpoint_names(const rs_state_checkpoint *s) {
  return s->checkpoint->info.tensors + s->leaves.all.n;
}

reshard_status rs_state_checkpoint_list_unexpected(const rs_state_checkpoint *s, const rs_state_leaves *leaves,
                                                   char **unexpected, bool *some) {
  int64_t names = rs_state_checkpoint_names(s);
  *some = false;
  RS_TRY(rs_alloc(unexpected, names, 1));
  for (int64_t i = 0; i < names; i++) {
    (*unexpected)[i] = rs_state_leaves_find(leaves, stored_name(s, i)) == NULL;
    *some |= (*unexpected)[i] != 0;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_state_checkpoint_check_unexpected(const rs_state_checkpoint *s, int64_t n,
                                                    const char *const *unexpected) {
  char quoted[RS_QUOTE];
  for (int64_t i = 0; i < rs_state_checkpoint_names(s); i++) {
    bool all = true;
    for (int64_t r = 0; r < n && all; r++)
      all = unexpected[r][i] != 0;
    if (all)
      return rs_error(RESHARD_ERROR_INVALID, "the checkpoint's %s '%s' is in no rank's state",
                      i < s->checkpoint->info.tensors ? "tensor" : "leaf",
                      rs_quote(quoted, sizeof quoted, stored_name(s, i)));
  }
  return RESHARD_SUCCESS;
}

uint64_t rs_state_checkpoint_version(const rs_state_checkpoint *checkpoint) {
  const rs_store *s = &checkpoint->checkpoint->store;
  uint64_t h = rs_hash((uint64_t)s->model->tensors.n, s->model->names.at, (size_t)s->model->names.n);
  for (int64_t f = 0; f < s->files.n; f++) {
    int64_t words[2] = {s->files.at[f].size, s->files.at[f].changed_ns};
    h = rs_hash(h, words, sizeof words);
  }
  for (int64_t i = 0; i < checkpoint->leaves.all.n; i++)
    h = rs_hash(h, checkpoint->leaves.paths.at[i], strlen(checkpoint->leaves.paths.at[i]));
  return h;
}
