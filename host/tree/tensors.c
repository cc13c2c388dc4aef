/* Trees with other tensors: those of tensor leaves, and those of values of opaque types. Each is mapped once, and so is
 * a value of several leaves. */
#include "tensor/tensor.h"
#include "tree/walk.h"

#include <stdlib.h>

typedef struct tensor_mapping {
  reshard_tree_tensor_map map;
  void *user;
  rs_names seen;                          /* tensors that several leaves may have */
  RS_VEC(reshard_tensor) results;         /* owned; NULL: unchanged */
  RS_VEC(reshard_tensor *) value_tensors; /* owned: tensors of values, whose addresses are in `seen` */
  rs_names values;                        /* of opaque leaves, which several leaves may have */
  RS_VEC(reshard_tree) value_leaves;      /* results of the first leaf of each value, owned; NULL: unchanged */
  rs_node_maker leaves;
} tensor_mapping;

/* Maps a tensor; *became NULL where it stays. */
static inline reshard_status map_tensor(tensor_mapping *m, const char *path, const reshard_tensor *slot,
                                        reshard_tensor *became) {
  int64_t number = -1, before = m->results.n;
  bool shared = atomic_load_explicit(&(*slot)->references, memory_order_relaxed) > 1;
  *became = NULL;
  if (shared) {
    RS_TRY(rs_vec_reserve(&m->results, before + 1));
    RS_TRY(rs_names_put(&m->seen, slot, sizeof *slot, &number));
    if (number < before) {
      *became = reshard_tensor_retain(m->results.at[number]);
      return RESHARD_SUCCESS;
    }
    m->results.at[m->results.n++] = NULL;
  }
  RS_TRY(m->map(m->user, path, *slot, became));
  if (*became == *slot) {
    reshard_tensor_release(*slot);
    *became = NULL;
  }
  if (shared)
    m->results.at[number] = reshard_tensor_retain(*became);
  return RESHARD_SUCCESS;
}

/* Maps a tensor of a value, which lives as long as the value's type says. */
static reshard_status map_value_tensor(void *user, const char *path, reshard_tensor tensor, reshard_tensor *mapped) {
  tensor_mapping *m = user;
  reshard_tensor *slot;
  if (tensor == NULL)
    return rs_path_error(path, rs_error(RESHARD_ERROR_INVALID, "a tensor of an opaque value is NULL"));
  RS_TRY(rs_vec_reserve(&m->value_tensors, m->value_tensors.n + 1));
  RS_TRY(rs_alloc(&slot, 1, sizeof *slot));
  *slot = reshard_tensor_retain(tensor);
  m->value_tensors.at[m->value_tensors.n++] = slot;
  return map_tensor(m, path, slot, mapped);
}

static reshard_status map_value(tensor_mapping *m, const char *path, reshard_tree leaf, reshard_tree *mapped) {
  const reshard_tree_type *type = leaf->type;
  void *value = NULL;
  RS_TRY(type->map_tensors(leaf->value, path, map_value_tensor, m, &value));
  if (value == NULL)
    return RESHARD_SUCCESS;
  reshard_status status = rs_node_make(&m->leaves, RESHARD_TREE_OPAQUE, mapped);
  if (status != RESHARD_SUCCESS) {
    if (type->release != NULL)
      type->release(value);
    return status;
  }
  (*mapped)->type = type;
  (*mapped)->value = value;
  return RESHARD_SUCCESS;
}

/* Maps a value once: its leaves become one node. */
static reshard_status map_value_once(tensor_mapping *m, const char *path, reshard_tree leaf, reshard_tree *mapped) {
  int64_t number, before = m->value_leaves.n;
  if (leaf->type->retain == NULL) /* each leaf has its own */
    return map_value(m, path, leaf, mapped);
  RS_TRY(rs_vec_reserve(&m->value_leaves, before + 1));
  RS_TRY(rs_names_put(&m->values, &leaf->value, sizeof leaf->value, &number));
  if (number < before) {
    *mapped = reshard_tree_retain(m->value_leaves.at[number]);
    return RESHARD_SUCCESS;
  }
  m->value_leaves.at[m->value_leaves.n++] = NULL;
  RS_TRY(map_value(m, path, leaf, mapped));
  m->value_leaves.at[number] = reshard_tree_retain(*mapped);
  return RESHARD_SUCCESS;
}

static reshard_status map_tensor_leaf(void *user, const char *path, reshard_tree leaf, reshard_tree *mapped) {
  tensor_mapping *m = user;
  reshard_tensor became;
  if (leaf->kind == RESHARD_TREE_OPAQUE && leaf->type->map_tensors != NULL)
    return map_value_once(m, path, leaf, mapped);
  if (leaf->kind != RESHARD_TREE_TENSOR)
    return RESHARD_SUCCESS;
  RS_TRY(map_tensor(m, path, &leaf->tensor, &became));
  if (became == NULL)
    return RESHARD_SUCCESS;
  RS_TRY_OR(rs_node_make(&m->leaves, RESHARD_TREE_TENSOR, mapped), reshard_tensor_release(became));
  (*mapped)->tensor = became;
  return RESHARD_SUCCESS;
}

static void tensor_mapping_free(tensor_mapping *m) {
  for (int64_t i = 0; i < m->results.n; i++)
    reshard_tensor_release(m->results.at[i]);
  for (int64_t i = 0; i < m->value_leaves.n; i++)
    reshard_tree_release(m->value_leaves.at[i]);
  for (int64_t i = 0; i < m->value_tensors.n; i++) {
    reshard_tensor_release(*m->value_tensors.at[i]);
    free(m->value_tensors.at[i]);
  }
  rs_node_maker_end(&m->leaves);
  rs_names_free(&m->seen);
  rs_names_free(&m->values);
  free(m->results.at);
  free(m->value_leaves.at);
  free(m->value_tensors.at);
}

reshard_status rs_tree_map_tensors(reshard_tree tree, reshard_tree_tensor_map map, void *user, bool sets,
                                   reshard_tree *mapped) {
  tensor_mapping m = {.map = map, .user = user};
  reshard_status status = rs_tree_map(tree, map_tensor_leaf, &m, sets, mapped);
  tensor_mapping_free(&m);
  return status;
}

reshard_status reshard_tree_map_tensors(reshard_tree tree, reshard_tree_tensor_map map, void *user,
                                        reshard_tree *mapped) {
  if (tree == NULL || map == NULL || mapped == NULL)
    return rs_error_null("reshard_tree_map_tensors", tree == NULL ? "tree" : map == NULL ? "map" : "the output");
  return rs_tree_map_tensors(tree, map, user, true, mapped);
}
