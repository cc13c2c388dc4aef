/* Sets: containers of distinct leaves. Each leaf has a name of bytes, which equal leaves share: its kind, and its
 * address or value. A set keeps the names of its leaves while it is filled; they are made again after one of its
 * children was replaced. */
#include "tree/tree.h"

#include <stdlib.h>
#include <string.h>

/* One of the numbers that are equal, with its bytes. */
static double canonical_number(double value) {
  if (value != value)
    return 0.0 / 0.0;
  return value == 0 ? 0.0 : value;
}

/* Makes the name of a leaf, in new memory. */
static reshard_status name_leaf(reshard_tree leaf, char **name, size_t *size) {
  const void *parts[2] = {NULL, NULL};
  size_t sizes[2] = {0, 0};
  double real = 0;
  switch (leaf->kind) {
  case RESHARD_TREE_TENSOR:
    parts[0] = &leaf->tensor;
    sizes[0] = sizeof leaf->tensor;
    break;
  case RESHARD_TREE_OPAQUE:
    parts[0] = &leaf->type;
    sizes[0] = sizeof leaf->type;
    parts[1] = &leaf->value;
    sizes[1] = sizeof leaf->value;
    break;
  case RESHARD_TREE_BYTES:
    parts[0] = leaf->bytes;
    sizes[0] = leaf->size;
    break;
  case RESHARD_TREE_FLOAT:
    real = canonical_number(leaf->real);
    parts[0] = &real;
    sizes[0] = sizeof real;
    break;
  case RESHARD_TREE_NULL: break;
  default: parts[0] = &leaf->integer; sizes[0] = sizeof leaf->integer;
  }
  char *at;
  RS_TRY(rs_alloc(&at, (int64_t)(1 + sizes[0] + sizes[1]), 1));
  at[0] = (char)leaf->kind;
  *name = at++;
  *size = 1 + sizes[0] + sizes[1];
  for (int i = 0; i < 2; at += sizes[i++])
    if (sizes[i] > 0)
      memcpy(at, parts[i], sizes[i]);
  return RESHARD_SUCCESS;
}

/* Adds a leaf's name; *is_new: there was no equal one before. */
static reshard_status add_leaf_name(rs_tree_form *form, reshard_tree leaf, bool *is_new) {
  char *name;
  size_t size;
  int64_t number, before = form->keys.all.n;
  RS_TRY(name_leaf(leaf, &name, &size));
  reshard_status status = rs_names_put(&form->keys, name, size, &number);
  *is_new = status == RESHARD_SUCCESS && number == before;
  if (!*is_new)
    free(name);
  return status;
}

static reshard_status make_form(reshard_tree set, rs_tree_form **form) {
  rs_tree_form *made;
  bool is_new;
  RS_TRY(rs_form_new(NULL, &made));
  for (int64_t i = 0; i < set->children.n; i++)
    RS_TRY_OR(add_leaf_name(made, set->children.at[i], &is_new), rs_form_release(made));
  *form = made;
  return RESHARD_SUCCESS;
}

reshard_status rs_set_append(reshard_tree set, reshard_tree leaf) {
  char text[RS_NODE_TEXT];
  bool is_new;
  if (rs_node_is_container(leaf))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_tree_append: the child is %s, a set has leaves",
                    rs_node_text(text, leaf));
  RS_TRY(rs_vec_reserve(&set->children, set->children.n + 1));
  if (set->form == NULL)
    RS_TRY(make_form(set, &set->form));
  RS_TRY(add_leaf_name(set->form, leaf, &is_new));
  if (!is_new)
    return RESHARD_SUCCESS;
  rs_node_mark_contained(leaf);
  set->children.at[set->children.n++] = reshard_tree_retain(leaf);
  return RESHARD_SUCCESS;
}

reshard_status rs_set_merge(reshard_tree set) {
  rs_tree_form *form;
  int64_t kept = 0, n = set->children.n;
  reshard_status status = RESHARD_SUCCESS;
  RS_TRY(rs_form_new(NULL, &form));
  for (int64_t i = 0; i < n; i++) {
    reshard_tree leaf = set->children.at[i];
    bool is_new = true;
    RS_THEN(status, add_leaf_name(form, leaf, &is_new));
    if (is_new || status != RESHARD_SUCCESS)
      set->children.at[kept++] = leaf;
    else
      reshard_tree_release(leaf);
  }
  set->children.n = kept;
  RS_TRY_OR(status, rs_form_release(form));
  rs_form_release(set->form);
  set->form = form;
  return RESHARD_SUCCESS;
}

reshard_status rs_sets_equal(reshard_tree a, reshard_tree b, bool *equal) {
  rs_tree_form *of_a, *of_b;
  RS_TRY(make_form(a, &of_a));
  reshard_status status = make_form(b, &of_b);
  if (status == RESHARD_SUCCESS) {
    *equal = of_a->keys.all.n == of_b->keys.all.n;
    for (int64_t i = 0; i < of_b->keys.all.n && *equal; i++)
      *equal = rs_names_find(&of_a->keys, of_b->keys.all.at[i].at, of_b->keys.all.at[i].size) >= 0;
    rs_form_release(of_b);
  }
  rs_form_release(of_a);
  return status;
}
