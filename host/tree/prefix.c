/* Renaming keys of a dict by their prefix: all names are made and checked in a new form, which then takes the place of
 * the one before. */
#include "base/text.h"
#include "tree/tree.h"

#include <string.h>

static const char call[] = "reshard_tree_replace_by_prefix";

static reshard_status rename_all(reshard_tree dict, const char *old_prefix, const char *new_prefix,
                                 rs_tree_form *form) {
  char before[RS_QUOTE], after[RS_QUOTE];
  size_t had = strlen(old_prefix);
  RS_TRY(rs_names_reserve(&form->keys, dict->children.n));
  for (int64_t i = 0; i < dict->children.n; i++) {
    const char *key = rs_node_key(dict, i);
    const rs_name *name = &dict->form->keys.all.at[i];
    bool renamed = !rs_key_is_int(name) && strncmp(key, old_prefix, had) == 0;
    int64_t number;
    RS_TRY(renamed ? rs_form_add(form, new_prefix, key + had, &number) : rs_form_add_name(form, name, &number));
    if (number != i) /* names that stay are distinct: one of two equal ones is renamed */
      return rs_error(RESHARD_ERROR_INVALID, "%s: '%s' would become '%s', which the dict has already", call,
                      rs_quote(before, sizeof before, renamed ? key : rs_node_key(dict, number)),
                      rs_quote(after, sizeof after, form->keys.all.at[number].at));
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_tree_replace_by_prefix(reshard_tree dict, const char *old_prefix, const char *new_prefix) {
  char quoted[RS_QUOTE], text[RS_NODE_TEXT];
  rs_tree_form *form;
  RS_TRY(RS_GIVEN(call, dict, old_prefix, new_prefix));
  if (dict->kind != RESHARD_TREE_DICT)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the tree is %s, not a dict", call, rs_node_text(text, dict));
  if (strcmp(old_prefix, new_prefix) == 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: both prefixes are '%s'", call,
                    rs_quote(quoted, sizeof quoted, old_prefix));
  RS_TRY(rs_form_new(NULL, &form));
  reshard_status status = rename_all(dict, old_prefix, new_prefix, form);
  if (status == RESHARD_SUCCESS) {
    rs_tree_form *before = dict->form;
    dict->form = form;
    form = before;
  }
  rs_form_release(form);
  return status;
}
