/* Fields of the nodes of a tree. */
#include "tree/tree.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

reshard_tree_kind reshard_tree_get_kind(reshard_tree tree) { return tree != NULL ? tree->kind : (reshard_tree_kind)0; }

int64_t reshard_tree_count(reshard_tree tree) {
  return tree != NULL && rs_node_is_container(tree) ? tree->children.n : 0;
}

const reshard_tree_type *reshard_tree_get_type(reshard_tree tree) {
  return reshard_tree_get_kind(tree) == RESHARD_TREE_OPAQUE ? tree->type : NULL;
}

reshard_status reshard_tree_child(reshard_tree tree, int64_t i, const char **key, reshard_tree *child) {
  char text[RS_NODE_TEXT];
  if (i < 0 || i >= reshard_tree_count(tree))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_tree_child: child %lld of %s with %lld", (long long)i,
                    rs_node_text(text, tree), (long long)reshard_tree_count(tree));
  if (key != NULL)
    *key = rs_node_key(tree, i);
  if (child != NULL)
    *child = tree->children.at[i];
  return RESHARD_SUCCESS;
}

/* Checks that tree and output are there. */
static reshard_status check_output(const char *call, reshard_tree tree, const void *output) {
  if (tree == NULL || output == NULL)
    return rs_error_null(call, tree == NULL ? "tree" : "the output");
  return RESHARD_SUCCESS;
}

static reshard_status check_kind(const char *call, reshard_tree tree, reshard_tree_kind kind, const void *output) {
  char text[RS_NODE_TEXT];
  RS_TRY(check_output(call, tree, output));
  if (tree->kind != kind)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the tree is %s, not %s", call, rs_node_text(text, tree),
                    rs_kind_text(kind));
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_find(reshard_tree container, const char *key, reshard_tree *child) {
  static const char call[] = "reshard_tree_find";
  char text[RS_NODE_TEXT], quoted[RS_QUOTE];
  RS_TRY(check_output(call, container, child));
  if (key == NULL)
    return rs_error_null(call, "the key");
  if (container->kind != RESHARD_TREE_DICT && container->kind != RESHARD_TREE_STRUCT &&
      container->kind != RESHARD_TREE_PACKED)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the tree is %s, not a dict", call, rs_node_text(text, container));
  int64_t number = container->form != NULL ? rs_names_find(&container->form->keys, key, strlen(key)) : -1;
  if (number < 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s has no key '%s'", call, rs_node_text(text, container),
                    rs_quote(quoted, sizeof quoted, key));
  *child = container->children.at[number];
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_find_int(reshard_tree dict, int64_t key, reshard_tree *child) {
  static const char call[] = "reshard_tree_find_int";
  char text[RS_INT_KEY];
  const rs_name name = rs_int_name(text, key);
  RS_TRY(check_kind(call, dict, RESHARD_TREE_DICT, child));
  int64_t number = dict->form != NULL ? rs_names_find(&dict->form->keys, name.at, name.size) : -1;
  if (number < 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a dict has no integer key %s", call, text);
  *child = dict->children.at[number];
  return RESHARD_SUCCESS;
}

int reshard_tree_int_key(reshard_tree dict, int64_t i, int64_t *key) {
  if (key == NULL || reshard_tree_get_kind(dict) != RESHARD_TREE_DICT || i < 0 || i >= dict->children.n ||
      !rs_key_is_int(&dict->form->keys.all.at[i]))
    return 0;
  *key = strtoll(dict->form->keys.all.at[i].at, NULL, 10);
  return 1;
}

reshard_status reshard_tree_get_struct(reshard_tree tree, const char **name) {
  RS_TRY(check_kind("reshard_tree_get_struct", tree, RESHARD_TREE_STRUCT, name));
  *name = tree->form->name;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_get_packed(reshard_tree tree, reshard_tensor *data, int64_t *steps,
                                       const int64_t **batch_sizes, const int64_t **sorted, const int64_t **unsorted) {
  RS_TRY(check_kind("reshard_tree_get_packed", tree, RESHARD_TREE_PACKED, tree));
  if (data != NULL)
    *data = tree->children.at[0]->tensor;
  if (steps != NULL)
    *steps = tree->form->steps;
  if (batch_sizes != NULL)
    *batch_sizes = tree->form->sizes;
  if (sorted != NULL)
    *sorted = tree->form->order;
  if (unsorted != NULL)
    *unsorted = tree->form->back;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_get_tensor(reshard_tree tree, reshard_tensor *tensor) {
  RS_TRY(check_kind("reshard_tree_get_tensor", tree, RESHARD_TREE_TENSOR, tensor));
  *tensor = tree->tensor;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_get_opaque(reshard_tree tree, const reshard_tree_type *type, void **value) {
  static const char call[] = "reshard_tree_get_opaque";
  char text[RS_NODE_TEXT], wanted[RS_QUOTE];
  RS_TRY(check_output(call, tree, value));
  RS_TRY(RS_GIVEN(call, type));
  if (tree->kind != RESHARD_TREE_OPAQUE || tree->type != type)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the tree is %s, not a %s", call, rs_node_text(text, tree),
                    rs_quote(wanted, sizeof wanted, type->name));
  *value = tree->value;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_get_bytes(reshard_tree tree, const void **bytes, size_t *size) {
  RS_TRY(check_kind("reshard_tree_get_bytes", tree, RESHARD_TREE_BYTES, bytes != NULL ? (void *)size : NULL));
  *bytes = tree->bytes;
  *size = tree->size;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_get_int(reshard_tree tree, int64_t *value) {
  RS_TRY(check_kind("reshard_tree_get_int", tree, RESHARD_TREE_INT, value));
  *value = tree->integer;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_get_float(reshard_tree tree, double *value) {
  RS_TRY(check_kind("reshard_tree_get_float", tree, RESHARD_TREE_FLOAT, value));
  *value = tree->real;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_get_bool(reshard_tree tree, int *value) {
  RS_TRY(check_kind("reshard_tree_get_bool", tree, RESHARD_TREE_BOOL, value));
  *value = (int)tree->integer;
  return RESHARD_SUCCESS;
}
