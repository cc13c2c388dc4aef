/* Queries on the values of a pickle, for its readers. */
#include "base/text.h"
#include "file/format/pickle.h"

#include <string.h>

/* Of a dict that is searched; objects have a handful, and many may share one. */
#define MOST_KEYS 128 /* keys and values */

const rs_pickle_value *rs_pickle_get(const rs_pickle *p, int64_t value) {
  return value >= 0 ? &p->values.at[value] : NULL;
}

bool rs_pickle_is(const rs_pickle *p, int64_t value, rs_pickle_kind kind) {
  return value >= 0 && p->values.at[value].kind == kind;
}

bool rs_pickle_is_object(const rs_pickle *p, int64_t value, rs_pickle_role role) {
  return rs_pickle_is(p, value, RS_PICKLE_OBJECT) && p->values.at[value].name->role == role;
}

bool rs_pickle_is_text(const rs_pickle *p, int64_t value, const char *text) {
  const rs_pickle_value *v = rs_pickle_get(p, value);
  return v != NULL && v->kind == RS_PICKLE_TEXT && (size_t)v->count == strlen(text) &&
         memcmp(p->bytes + v->number, text, (size_t)v->count) == 0;
}

int64_t rs_pickle_item(const rs_pickle *p, int64_t value, int64_t i) {
  if (!rs_pickle_is(p, value, RS_PICKLE_TUPLE) && !rs_pickle_is(p, value, RS_PICKLE_LIST))
    return -1;
  int64_t cell = p->values.at[value].first;
  for (; i > 0 && cell >= 0; i--)
    cell = p->cells.at[cell].next;
  return cell >= 0 ? p->cells.at[cell].value : -1;
}

int64_t rs_pickle_under(const rs_pickle *p, int64_t value, const char *key) {
  if (rs_pickle_is(p, value, RS_PICKLE_OBJECT))
    value = p->values.at[value].last;
  if (!rs_pickle_is(p, value, RS_PICKLE_DICT))
    return -1;
  if (p->values.at[value].count > MOST_KEYS)
    return -1;
  int64_t found = -1; /* the last counts, as in Python */
  for (int64_t cell = p->values.at[value].first; cell >= 0; cell = p->cells.at[p->cells.at[cell].next].next)
    if (rs_pickle_is_text(p, p->cells.at[cell].value, key))
      found = p->cells.at[p->cells.at[cell].next].value;
  return found;
}

bool rs_pickle_count(const rs_pickle *p, int64_t value, int64_t *count) {
  if (!rs_pickle_is(p, value, RS_PICKLE_INT) || p->values.at[value].number < 0)
    return false;
  *count = p->values.at[value].number;
  return true;
}

bool rs_pickle_extents(const rs_pickle *p, int64_t value, int most, int *n, int64_t *extents) {
  if (rs_pickle_is_object(p, value, RS_ROLE_SIZE)) {
    int64_t arguments = p->values.at[value].first;
    if (p->values.at[arguments].count > 1)
      return false;
    value = p->values.at[arguments].count == 1 ? rs_pickle_item(p, arguments, 0) : arguments;
  }
  if (!rs_pickle_is(p, value, RS_PICKLE_TUPLE) && !rs_pickle_is(p, value, RS_PICKLE_LIST))
    return false;
  if (p->values.at[value].count > most)
    return false;
  int made = 0;
  for (int64_t cell = p->values.at[value].first; cell >= 0; cell = p->cells.at[cell].next)
    if (!rs_pickle_count(p, p->cells.at[cell].value, &extents[made++]))
      return false;
  *n = made;
  return true;
}

reshard_status rs_pickle_add_text(const rs_pickle *p, int64_t value, rs_pickle_text *to, bool *added) {
  const rs_pickle_value *v = rs_pickle_get(p, value);
  char digits[24] = "";
  const char *from = digits;
  int64_t n = 0;
  *added = false;
  if (v != NULL && v->kind == RS_PICKLE_INT) {
    rs_text text = {.at = digits, .size = sizeof digits};
    rs_text_add(&text, "%lld", (long long)v->number);
    n = (int64_t)text.length;
  } else if (v != NULL && v->kind == RS_PICKLE_TEXT) {
    from = p->bytes + v->number;
    n = v->count;
  } else {
    return RESHARD_SUCCESS;
  }
  RS_TRY(rs_vec_reserve(to, to->n + n + 1));
  memcpy(to->at + to->n, from, (size_t)n);
  to->at[to->n + n] = '\0';
  *added = memchr(from, '\0', (size_t)n) == NULL && rs_utf8_valid(to->at + to->n);
  to->n += *added ? n : 0;
  to->at[to->n] = '\0';
  return RESHARD_SUCCESS;
}

const char *rs_pickle_describe(char text[RS_QUOTE], const rs_pickle *p, int64_t value) {
  static const char *const names[] = {[RS_PICKLE_NONE] = "None",           [RS_PICKLE_BOOL] = "a bool",
                                      [RS_PICKLE_INT] = "an integer",      [RS_PICKLE_OTHER] = "a number or bytes",
                                      [RS_PICKLE_TEXT] = "a text",         [RS_PICKLE_TUPLE] = "a tuple",
                                      [RS_PICKLE_LIST] = "a list",         [RS_PICKLE_DICT] = "a dict",
                                      [RS_PICKLE_GLOBAL] = "a class",      [RS_PICKLE_OBJECT] = "an object",
                                      [RS_PICKLE_PERSISTENT] = "a storage"};
  const rs_pickle_value *v = rs_pickle_get(p, value);
  rs_text made = {.at = text, .size = RS_QUOTE};
  if (v != NULL && v->name != NULL)
    rs_text_add(&made, "%s.%s", v->name->module, v->name->name);
  else
    rs_text_add(&made, "%s", v == NULL ? "nothing" : names[v->kind]);
  return text;
}
