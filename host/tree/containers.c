/* Containers of a tree: made, and filled. */
#include "tensor/tensor.h"
#include "tree/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Forms ---------------------------------------------------------------------------------------------------- */

void rs_form_release(rs_tree_form *form) {
  if (!RS_DROP(form))
    return;
  rs_names_free_all(&form->keys);
  free(form->name);
  free(form->sizes);
  free(form);
}

/* Adds a name of bytes, which are taken over in any case. */
static reshard_status put_name(rs_tree_form *form, char *bytes, size_t size, int64_t *number) {
  int64_t before = form->keys.all.n;
  const rs_name name = {bytes, size};
  reshard_status status = rs_names_put(&form->keys, bytes, size, number);
  if (status != RESHARD_SUCCESS || *number < before)
    free(bytes);
  else if (rs_key_length(&name) > form->longest)
    form->longest = rs_key_length(&name);
  return status;
}

reshard_status rs_form_add(rs_tree_form *form, const char *prefix, const char *key, int64_t *number) {
  size_t begins = strlen(prefix), length = begins + strlen(key);
  char *name;
  RS_TRY(rs_alloc(&name, (int64_t)length + 1, 1));
  memcpy(name, prefix, begins);
  memcpy(name + begins, key, length - begins + 1);
  return put_name(form, name, length, number);
}

reshard_status rs_form_add_name(rs_tree_form *form, const rs_name *name, int64_t *number) {
  char *bytes;
  RS_TRY(rs_alloc(&bytes, (int64_t)name->size + 1, 1));
  if (name->size > 0)
    memcpy(bytes, name->at, name->size);
  bytes[name->size] = '\0';
  return put_name(form, bytes, name->size, number);
}

rs_name rs_int_name(char buffer[RS_INT_KEY], int64_t key) {
  int length = snprintf(buffer, RS_INT_KEY, "%lld", (long long)key);
  return (rs_name){buffer, (size_t)length + 1};
}

static reshard_status copy_names(const rs_tree_form *from, rs_tree_form *to) {
  if (from->name != NULL)
    RS_TRY(rs_alloc_copy(&to->name, from->name, (int64_t)strlen(from->name) + 1, 1));
  RS_TRY(rs_names_reserve(&to->keys, from->keys.all.n));
  for (int64_t i = 0, number; i < from->keys.all.n; i++)
    RS_TRY(rs_form_add_name(to, &from->keys.all.at[i], &number));
  return RESHARD_SUCCESS;
}

reshard_status rs_form_new(const rs_tree_form *like, rs_tree_form **output) {
  rs_tree_form *form;
  RS_TRY(rs_alloc_zero(&form, 1, sizeof *form));
  atomic_init(&form->references, 1);
  RS_TRY_OR(like != NULL ? copy_names(like, form) : RESHARD_SUCCESS, rs_form_release(form));
  *output = form;
  return RESHARD_SUCCESS;
}

/* Gives a container a form that it alone has; other containers keep the shared one. */
static reshard_status own_form(reshard_tree container) {
  rs_tree_form *before = container->form;
  if (before != NULL && atomic_load_explicit(&before->references, memory_order_acquire) == 1)
    return RESHARD_SUCCESS;
  RS_TRY(rs_form_new(before, &container->form));
  rs_form_release(before);
  return RESHARD_SUCCESS;
}

/* --- Making --------------------------------------------------------------------------------------------------- */

reshard_status reshard_tree_dict(reshard_tree *tree) {
  return rs_node_new("reshard_tree_dict", RESHARD_TREE_DICT, tree);
}

reshard_status reshard_tree_list(reshard_tree *tree) {
  return rs_node_new("reshard_tree_list", RESHARD_TREE_LIST, tree);
}

reshard_status reshard_tree_tuple(reshard_tree *tree) {
  return rs_node_new("reshard_tree_tuple", RESHARD_TREE_TUPLE, tree);
}

reshard_status reshard_tree_create_set(reshard_tree *tree) {
  return rs_node_new("reshard_tree_create_set", RESHARD_TREE_SET, tree);
}

/* Makes a container of a form, which is taken over in any case. */
static reshard_status new_container(const char *call, reshard_tree_kind kind, rs_tree_form *form, reshard_tree *tree) {
  RS_TRY_OR(rs_node_new(call, kind, tree), rs_form_release(form));
  (*tree)->form = form;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_struct(const char *name, reshard_tree *tree) {
  static const char call[] = "reshard_tree_struct";
  rs_tree_form *form;
  RS_TRY(RS_GIVEN(call, name));
  RS_TRY(rs_form_new(NULL, &form));
  RS_TRY_OR(rs_alloc_copy(&form->name, name, (int64_t)strlen(name) + 1, 1), rs_form_release(form));
  return new_container(call, RESHARD_TREE_STRUCT, form, tree);
}

reshard_status rs_node_like(reshard_tree container, reshard_tree *output) {
  reshard_tree made;
  RS_TRY(rs_node_new("", container->kind, &made));
  RS_TRY_OR(rs_vec_reserve(&made->children, container->children.n), reshard_tree_release(made));
  made->form = rs_node_keyed(container) ? RS_RETAIN(container->form) : NULL;
  *output = made;
  return RESHARD_SUCCESS;
}

/* --- Packed sequences ----------------------------------------------------------------------------------------- */

static const char packed[] = "reshard_tree_packed";

static reshard_status check_steps(reshard_tensor data, int64_t steps, const int64_t *sizes) {
  int64_t rows = 0;
  if (data->info.ndim == 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the data is a scalar, it has no rows", packed);
  if (steps < 1)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld steps, 1 is the least", packed, (long long)steps);
  for (int64_t t = 0; t < steps; t++) {
    if (sizes[t] < 1)
      return rs_error(RESHARD_ERROR_INVALID, "%s: batch size %lld of step %lld, 1 is the least", packed,
                      (long long)sizes[t], (long long)t);
    if (t > 0 && sizes[t] > sizes[t - 1])
      return rs_error(RESHARD_ERROR_INVALID,
                      "%s: batch size %lld of step %lld is more than the %lld of the step before", packed,
                      (long long)sizes[t], (long long)t, (long long)sizes[t - 1]);
    if (!rs_add(rows, sizes[t], &rows))
      return rs_error(RESHARD_ERROR_INVALID, "%s: the sum of the batch sizes overflows at step %lld", packed,
                      (long long)t);
  }
  if (rows != data->info.shape[0])
    return rs_error(RESHARD_ERROR_INVALID, "%s: the batch sizes have %lld rows, the data has %lld", packed,
                    (long long)rows, (long long)data->info.shape[0]);
  return RESHARD_SUCCESS;
}

/* Checks that an order has every number once, and is the inverse of the other one, if there is one. back: the inverse
 * is written there, or is there already. */
static reshard_status check_order(const char *name, int64_t batch, const int64_t *order, const int64_t *given,
                                  int64_t *back) {
  for (int64_t i = 0; i < batch; i++)
    back[i] = -1;
  for (int64_t i = 0; i < batch; i++) {
    if (order[i] < 0 || order[i] >= batch)
      return rs_error(RESHARD_ERROR_INVALID, "%s: %s[%lld] is %lld, the batch has %lld", packed, name, (long long)i,
                      (long long)order[i], (long long)batch);
    if (back[order[i]] >= 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: %s[%lld] and %s[%lld] are both %lld", packed, name,
                      (long long)back[order[i]], name, (long long)i, (long long)order[i]);
    back[order[i]] = i;
  }
  for (int64_t i = 0; i < batch && given != NULL; i++)
    if (given[i] != back[i])
      return rs_error(RESHARD_ERROR_INVALID, "%s: unsorted[%lld] is %lld, sorted has %lld at %lld", packed,
                      (long long)i, (long long)given[i], (long long)i, (long long)back[i]);
  return RESHARD_SUCCESS;
}

static reshard_status copy_sizes(rs_tree_form *form, int64_t steps, const int64_t *sizes, const int64_t *sorted,
                                 const int64_t *unsorted) {
  int64_t batch = sizes[0], number;
  RS_TRY(rs_alloc(&form->sizes, steps + (sorted != NULL || unsorted != NULL ? 2 * batch : 0), sizeof *sizes));
  int64_t *order = form->sizes + steps, *back = order + batch;
  memcpy(form->sizes, sizes, (size_t)steps * sizeof *sizes);
  form->steps = steps;
  if (sorted != NULL) {
    RS_TRY(check_order("sorted", batch, sorted, unsorted, back));
    form->order = memcpy(order, sorted, (size_t)batch * sizeof *sorted);
  } else if (unsorted != NULL) {
    RS_TRY(check_order("unsorted", batch, unsorted, NULL, order));
  }
  if (unsorted != NULL)
    form->back = memcpy(back, unsorted, (size_t)batch * sizeof *unsorted);
  return rs_form_add(form, "", "data", &number);
}

static reshard_status set_data(reshard_tensor data, reshard_tree node) {
  RS_TRY(rs_vec_reserve(&node->children, 1));
  RS_TRY(reshard_tree_tensor(data, &node->children.at[0]));
  rs_node_mark_contained(node->children.at[0]);
  node->children.n = 1;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_packed(reshard_tensor data, int64_t steps, const int64_t *batch_sizes,
                                   const int64_t *sorted, const int64_t *unsorted, reshard_tree *tree) {
  rs_tree_form *form;
  reshard_tree made;
  if (data == NULL || batch_sizes == NULL || tree == NULL)
    return rs_error_null(packed, data == NULL ? "data" : batch_sizes == NULL ? "batch_sizes" : "the output");
  RS_TRY(check_steps(data, steps, batch_sizes));
  RS_TRY(rs_form_new(NULL, &form));
  RS_TRY_OR(copy_sizes(form, steps, batch_sizes, sorted, unsorted), rs_form_release(form));
  RS_TRY(new_container(packed, RESHARD_TREE_PACKED, form, &made));
  RS_TRY_OR(set_data(data, made), reshard_tree_release(made));
  *tree = made;
  return RESHARD_SUCCESS;
}

/* --- Filling -------------------------------------------------------------------------------------------------- */

/* Finds out that a container is inside a child. Mostly plain: a container that was never put anywhere is in nothing,
 * and nothing is in an empty one. So trees that are built from the leaves or from the root cost no search. Else every
 * container in the child is looked at once. */
static reshard_status find_cycle(reshard_tree container, reshard_tree child, bool *cycle) {
  rs_names seen = {0}; /* addresses of containers, in the order in which they are looked at */
  int64_t number;
  *cycle = child == container;
  if (*cycle || reshard_tree_count(child) == 0 || !atomic_load_explicit(&container->contained, memory_order_relaxed))
    return RESHARD_SUCCESS;
  reshard_status status = rs_names_put(&seen, &child, sizeof child, &number);
  for (int64_t i = 0; i < seen.all.n && !*cycle; i++) {
    reshard_tree node;
    memcpy(&node, seen.all.at[i].at, sizeof node);
    for (int64_t j = 0; j < node->children.n && status == RESHARD_SUCCESS && !*cycle; j++) {
      const reshard_tree *slot = &node->children.at[j];
      *cycle = *slot == container;
      if (reshard_tree_count(*slot) > 0)
        status = rs_names_put(&seen, slot, sizeof *slot, &number);
    }
  }
  rs_names_free(&seen);
  return status;
}

/* Checks that the container is of one of two kinds, and can have the child. */
static reshard_status check_child(const char *call, reshard_tree_kind kind, reshard_tree_kind or,
                                  reshard_tree container, reshard_tree child) {
  char text[RS_NODE_TEXT];
  bool cycle;
  if (container == NULL || child == NULL)
    return rs_error_null(call, container == NULL ? "the container" : "the child");
  if (container->kind != kind && kind == or)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the container is %s, not %s", call, rs_node_text(text, container),
                    rs_kind_text(kind));
  if (container->kind != kind && container->kind != or)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the container is %s, not %s or %s", call, rs_node_text(text, container),
                    rs_kind_text(kind), rs_kind_text(or));
  RS_TRY(find_cycle(container, child, &cycle));
  return cycle ? rs_error(RESHARD_ERROR_INVALID, "%s: the child has the container inside it", call) : RESHARD_SUCCESS;
}

/* Puts a child in a container; key NULL: in a list or a tuple. */
static reshard_status add_child(reshard_tree container, const rs_name *key, reshard_tree child) {
  int64_t number;
  RS_TRY(rs_vec_reserve(&container->children, container->children.n + 1));
  if (key != NULL) {
    RS_TRY(own_form(container));
    RS_TRY(rs_form_add_name(container->form, key, &number));
  }
  rs_node_mark_contained(child);
  container->children.at[container->children.n++] = reshard_tree_retain(child);
  return RESHARD_SUCCESS;
}

reshard_status rs_node_add(reshard_tree container, const char *key, reshard_tree child) {
  const rs_name name = {key, key != NULL ? strlen(key) : 0};
  return add_child(container, key != NULL ? &name : NULL, child);
}

void rs_node_replace(reshard_tree parent, int64_t i, reshard_tree child) {
  reshard_tree before = parent->children.at[i];
  rs_node_mark_contained(child);
  parent->children.at[i] = reshard_tree_retain(child);
  reshard_tree_release(before);
  if (parent->kind == RESHARD_TREE_SET) {
    rs_form_release(parent->form);
    parent->form = NULL;
  }
}

static reshard_status put_child(reshard_tree container, const rs_name *key, reshard_tree child) {
  int64_t number = container->form != NULL ? rs_names_find(&container->form->keys, key->at, key->size) : -1;
  if (number < 0)
    return add_child(container, key, child);
  rs_node_replace(container, number, child);
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_set(reshard_tree container, const char *key, reshard_tree child) {
  static const char call[] = "reshard_tree_set";
  if (key == NULL)
    return rs_error_null(call, "the key");
  RS_TRY(check_child(call, RESHARD_TREE_DICT, RESHARD_TREE_STRUCT, container, child));
  return put_child(container, &(rs_name){key, strlen(key)}, child);
}

reshard_status reshard_tree_set_int(reshard_tree dict, int64_t key, reshard_tree child) {
  char text[RS_INT_KEY];
  const rs_name name = rs_int_name(text, key);
  RS_TRY(check_child("reshard_tree_set_int", RESHARD_TREE_DICT, RESHARD_TREE_DICT, dict, child));
  return put_child(dict, &name, child);
}

reshard_status reshard_tree_append(reshard_tree container, reshard_tree child) {
  if (container != NULL && child != NULL && container->kind == RESHARD_TREE_SET)
    return rs_set_append(container, child);
  RS_TRY(check_child("reshard_tree_append", RESHARD_TREE_LIST, RESHARD_TREE_TUPLE, container, child));
  return rs_node_add(container, NULL, child);
}
