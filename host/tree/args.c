/* Arguments of a call: as one tuple of values, and back; and moved together. */
#include "base/text.h"
#include "tree/tree.h"

#include <reshard/move.h>

#include <stdlib.h>
#include <string.h>

static bool is_sequence(reshard_tree tree) {
  return tree == NULL || tree->kind == RESHARD_TREE_LIST || tree->kind == RESHARD_TREE_TUPLE;
}

static reshard_status wrong_kind(const char *call, const char *name, reshard_tree tree, const char *wanted) {
  char text[RS_NODE_TEXT];
  return rs_error(RESHARD_ERROR_INVALID, "%s: %s is %s, %s is needed", call, name, rs_node_text(text, tree), wanted);
}

/* Checks that args is a tuple, a list or NULL, and kwargs a dict or NULL. */
static reshard_status check_arguments(const char *call, reshard_tree args, reshard_tree kwargs) {
  if (!is_sequence(args))
    return wrong_kind(call, "args", args, "a tuple or a list");
  if (kwargs != NULL && kwargs->kind != RESHARD_TREE_DICT)
    return wrong_kind(call, "kwargs", kwargs, "a dict");
  return RESHARD_SUCCESS;
}

/* Returns both trees, or none after an error. */
static reshard_status return_trees(reshard_status status, reshard_tree first, reshard_tree second,
                                   reshard_tree *to_first, reshard_tree *to_second) {
  if (status == RESHARD_SUCCESS) {
    *to_first = first;
    *to_second = second;
  } else {
    reshard_tree_release(first);
    reshard_tree_release(second);
  }
  return status;
}

static reshard_status add_first(reshard_tree from, int64_t n, reshard_tree to) {
  for (int64_t i = 0; i < n; i++)
    RS_TRY(rs_node_add(to, NULL, from->children.at[i]));
  return RESHARD_SUCCESS;
}

static reshard_status add_name(reshard_tree names, const char *name) {
  reshard_tree leaf;
  RS_TRY(reshard_tree_bytes(name, strlen(name), &leaf));
  reshard_status status = rs_node_add(names, NULL, leaf);
  reshard_tree_release(leaf);
  return status;
}

static reshard_status pack_values(reshard_tree args, reshard_tree kwargs, reshard_tree values, reshard_tree names) {
  int64_t n = reshard_tree_count(kwargs);
  RS_TRY(add_first(args, reshard_tree_count(args), values));
  RS_TRY(add_first(kwargs, n, values));
  for (int64_t i = 0; i < n; i++)
    RS_TRY(add_name(names, rs_node_key(kwargs, i)));
  return RESHARD_SUCCESS;
}

/* Checks that there are no integer keys: they name no argument. */
static reshard_status check_names(const char *call, reshard_tree kwargs) {
  int64_t key;
  for (int64_t i = 0; i < reshard_tree_count(kwargs); i++)
    if (reshard_tree_int_key(kwargs, i, &key))
      return rs_error(RESHARD_ERROR_INVALID, "%s: kwargs has the integer key %lld, a name is a string", call,
                      (long long)key);
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_pack_kwargs(reshard_tree args, reshard_tree kwargs, reshard_tree *values,
                                        reshard_tree *names) {
  static const char call[] = "reshard_tree_pack_kwargs";
  reshard_tree all = NULL, keys = NULL;
  RS_TRY(check_arguments(call, args, kwargs));
  if (values == NULL || names == NULL)
    return rs_error_null(call, "an output");
  RS_TRY(check_names(call, kwargs));
  reshard_status status = reshard_tree_tuple(&all);
  RS_THEN(status, reshard_tree_tuple(&keys));
  RS_THEN(status, pack_values(args, kwargs, all, keys));
  return return_trees(status, all, keys, values, names);
}

static const char unpack_call[] = "reshard_tree_unpack_kwargs";

/* Adds a value by the i-th name. */
static reshard_status add_named(reshard_tree names, int64_t i, reshard_tree value, reshard_tree kwargs) {
  reshard_tree name = names->children.at[i];
  char quoted[RS_QUOTE], text[RS_NODE_TEXT], *key;
  if (name->kind != RESHARD_TREE_BYTES)
    return rs_error(RESHARD_ERROR_INVALID, "%s: name %lld is %s, bytes are needed", unpack_call, (long long)i,
                    rs_node_text(text, name));
  RS_TRY(rs_alloc_zero(&key, (int64_t)name->size + 1, 1));
  if (name->size > 0)
    memcpy(key, name->bytes, name->size);
  reshard_status status = RESHARD_SUCCESS;
  if (strlen(key) != name->size)
    status = rs_error(RESHARD_ERROR_INVALID, "%s: name %lld of %zu bytes has a NUL at %zu", unpack_call, (long long)i,
                      name->size, strlen(key));
  else if (kwargs->form != NULL && rs_names_find(&kwargs->form->keys, key, name->size) >= 0)
    status = rs_error(RESHARD_ERROR_INVALID, "%s: names %lld and %lld are both '%s'", unpack_call,
                      (long long)rs_names_find(&kwargs->form->keys, key, name->size), (long long)i,
                      rs_quote(quoted, sizeof quoted, key));
  else
    status = rs_node_add(kwargs, key, value);
  free(key);
  return status;
}

static reshard_status unpack_values(reshard_tree values, reshard_tree names, reshard_tree args, reshard_tree kwargs) {
  int64_t n = reshard_tree_count(names), first = reshard_tree_count(values) - n;
  RS_TRY(add_first(values, first, args));
  for (int64_t i = 0; i < n; i++)
    RS_TRY(add_named(names, i, values->children.at[first + i], kwargs));
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_unpack_kwargs(reshard_tree values, reshard_tree names, reshard_tree *args,
                                          reshard_tree *kwargs) {
  reshard_tree positional = NULL, named = NULL;
  if (!is_sequence(values) || !is_sequence(names))
    return wrong_kind(unpack_call, !is_sequence(values) ? "values" : "names", !is_sequence(values) ? values : names,
                      "a tuple or a list");
  if (args == NULL || kwargs == NULL)
    return rs_error_null(unpack_call, "an output");
  if (reshard_tree_count(names) > reshard_tree_count(values))
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld names for %lld values", unpack_call,
                    (long long)reshard_tree_count(names), (long long)reshard_tree_count(values));
  reshard_status status = reshard_tree_tuple(&positional);
  RS_THEN(status, reshard_tree_dict(&named));
  RS_THEN(status, unpack_values(values, names, positional, named));
  return return_trees(status, positional, named, args, kwargs);
}

/* Retains the tree, or makes an empty container. */
static reshard_status or_empty(reshard_tree tree, reshard_status (*make)(reshard_tree *tree), reshard_tree *out) {
  if (tree == NULL)
    return make(out);
  *out = reshard_tree_retain(tree);
  return RESHARD_SUCCESS;
}

/* Makes a list of a child of a container. */
static reshard_status wrap_list(reshard_tree container, int64_t child, reshard_tree *list) {
  RS_TRY(reshard_tree_list(list));
  return container == NULL ? RESHARD_SUCCESS : reshard_tree_append(*list, container->children.at[child]);
}

/* A tensor that is in both is moved once. */
reshard_status reshard_tree_to_kwargs(reshard_tree args, reshard_tree kwargs, reshard_device device, void *stream,
                                      const reshard_move_options *options, reshard_tree *args_list,
                                      reshard_tree *kwargs_list) {
  reshard_tree positional = NULL, named = NULL, both = NULL, moved = NULL, lists[2] = {NULL, NULL};
  reshard_status status;
  RS_TRY(RS_GIVEN("reshard_tree_to_kwargs", args_list, kwargs_list));
  RS_TRY(check_arguments("reshard_tree_to_kwargs", args, kwargs));
  bool some = reshard_tree_count(args) > 0 || reshard_tree_count(kwargs) > 0;
  RS_TRY_GOTO(status, or_empty(args, reshard_tree_tuple, &positional), done);
  RS_TRY_GOTO(status, or_empty(kwargs, reshard_tree_dict, &named), done);
  RS_TRY_GOTO(status, reshard_tree_tuple(&both), done);
  RS_TRY_GOTO(status, reshard_tree_append(both, positional), done);
  RS_TRY_GOTO(status, reshard_tree_append(both, named), done);
  RS_TRY_GOTO(status, reshard_tree_to(both, device, stream, options, &moved), done);
  for (int i = 0; i < 2; i++)
    RS_TRY_GOTO(status, wrap_list(some ? moved : NULL, i, &lists[i]), done);
  *args_list = reshard_tree_retain(lists[0]);
  *kwargs_list = reshard_tree_retain(lists[1]);
done:
  reshard_tree_release(lists[0]);
  reshard_tree_release(lists[1]);
  reshard_tree_release(moved);
  reshard_tree_release(both);
  reshard_tree_release(named);
  reshard_tree_release(positional);
  return status;
}
