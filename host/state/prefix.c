/* Renaming keys of a dict by their prefix: new names are made and checked first, and then put in place. */
#include "file/file.h"
#include "state/state.h"

#include <stdlib.h>
#include <string.h>

static bool begins(const char *key, const char *prefix, size_t length) { return strncmp(key, prefix, length) == 0; }

/* The key that a child has afterwards: a new text, or the one that it has. */
static reshard_status rename_key(const char *key, const char *old_prefix, const char *new_prefix, char **out) {
  size_t had = strlen(old_prefix), gets = strlen(new_prefix), rest = strlen(key) - had;
  RS_TRY(rs_alloc(out, (int64_t)(gets + rest) + 1, 1));
  memcpy(*out, new_prefix, gets);
  memcpy(*out + gets, key + had, rest + 1);
  return RESHARD_SUCCESS;
}

/* Keys of all children afterwards, and their numbers; those that are not renamed are the ones that they have. */
static reshard_status name_all(reshard_state dict, const char *old_prefix, const char *new_prefix, char **keys,
                               rs_names *names, size_t *longest) {
  char before[RS_QUOTE], after[RS_QUOTE];
  for (int64_t i = 0; i < dict->children.n; i++) {
    char *key = dict->children.at[i].key;
    int64_t number;
    keys[i] = key;
    if (begins(key, old_prefix, strlen(old_prefix)))
      RS_TRY(rename_key(key, old_prefix, new_prefix, &keys[i]));
    size_t length = strlen(keys[i]);
    RS_TRY(rs_names_put(names, keys[i], length, &number));
    if (number != i) { /* of two that are the same one is renamed: those that are stay distinct */
      const char *renamed = keys[i] != key ? key : dict->children.at[number].key;
      return rs_error(RESHARD_ERROR_INVALID,
                      "reshard_state_replace_by_prefix: '%s' would become '%s', which the dict has already",
                      rs_quote(before, sizeof before, renamed), rs_quote(after, sizeof after, keys[i]));
    }
    *longest = length > *longest ? length : *longest;
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_replace_by_prefix(reshard_state dict, const char *old_prefix, const char *new_prefix) {
  static const char call[] = "reshard_state_replace_by_prefix";
  char quoted[RS_QUOTE];
  if (dict == NULL || old_prefix == NULL || new_prefix == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s is NULL", call,
                    dict == NULL         ? "dict"
                    : old_prefix == NULL ? "old_prefix"
                                         : "new_prefix");
  if (dict->kind != RESHARD_STATE_DICT)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the state is %s, not a dict", call, rs_state_kind_text(dict->kind));
  if (strcmp(old_prefix, new_prefix) == 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: both prefixes are '%s'", call,
                    rs_quote(quoted, sizeof quoted, old_prefix));
  rs_names names = {0};
  size_t longest = 0;
  char **keys = NULL;
  RS_TRY(rs_alloc_zero(&keys, dict->children.n, sizeof *keys));
  reshard_status status = name_all(dict, old_prefix, new_prefix, keys, &names, &longest);
  if (status == RESHARD_SUCCESS) {
    rs_names had = dict->keys;
    dict->keys = names;
    dict->longest = longest;
    names = had;
  }
  for (int64_t i = 0; i < dict->children.n; i++) { /* of the two that a child has, one goes */
    rs_child *child = &dict->children.at[i];
    if (keys[i] == NULL || keys[i] == child->key)
      continue;
    char *goes = status == RESHARD_SUCCESS ? child->key : keys[i];
    if (status == RESHARD_SUCCESS)
      child->key = keys[i];
    free(goes);
  }
  free(keys);
  rs_names_free(&names);
  return status;
}
