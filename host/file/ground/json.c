#include "file/ground/json.h"

#ifdef RS_HAVE_JANSSON

#include "base/text.h"
#include "file/ground/file.h"

#include <stdlib.h>
#include <string.h>

/* Of jansson 2.13 and later, with what malloc adds. */
enum { OBJECT = 232, ARRAY = 136, KEY = 104, STRING = 80, NUMBER = 32, ITEM = 16 };

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_of_number(char c) { return is_digit(c) || c == '+' || c == '-' || c == '.' || (c | 32) == 'e'; }

int64_t rs_json_memory(const char *text, int64_t size) {
  int64_t bytes = 0;
  for (const char *at = text, *end = text + size; at < end; at++) {
    if (*at == '"') {
      const char *begin = ++at;
      while (at < end && *at != '"')
        at += *at == '\\' && at + 1 < end ? 2 : 1;
      const char *next = at + 1;
      while (next < end && is_blank(*next))
        next++;
      bytes += at - begin + (next < end && *next == ':' ? KEY : STRING);
    } else if (*at == '-' || is_digit(*at)) {
      bytes += NUMBER;
      while (at + 1 < end && is_of_number(at[1]))
        at++;
    } else {
      bytes += *at == '{' ? OBJECT : *at == '[' ? ARRAY : *at == ',' ? ITEM : 0;
    }
  }
  return bytes;
}

/* Without memory the parser may say nothing, or take a string that it could not keep for a syntax error: an error that
 * is not the same a second time is none of the text's. */
reshard_status rs_json_parse(const char *where, const char *text, int64_t size, int64_t file_bytes, json_t **root) {
  json_error_t error, again;
  RS_TRY(rs_budget_check(where, file_bytes, size + rs_json_memory(text, size)));
  json_t *made = json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, &error);
  if (made != NULL) {
    *root = made;
    return RESHARD_SUCCESS;
  }
  json_t *second = json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, &again);
  bool same = second == NULL && error.position == again.position && strcmp(error.text, again.text) == 0;
  json_decref(second);
  if (!same || json_error_code(&error) == json_error_out_of_memory || error.text[0] == '\0')
    return rs_error_memory((size_t)size);
  char quoted[JSON_ERROR_TEXT_LENGTH];
  return rs_error(RESHARD_ERROR_INVALID, "%s: line %d column %d: %s", where, error.line, error.column,
                  rs_quote(quoted, sizeof quoted, error.text));
}

/* --- Members of a long object, some at a time --------------------------------------------------------------------- */

enum { LONG = 1 << 20, BATCH = 256 << 10 };

typedef struct member_scan {
  const char *text;
  int64_t size, at; /* behind '{' or ',' */
} member_scan;

/* *end: where the next member ends, at a ',' or the last '}'. *named: a string stands in it. False where there is no
 * such end. */
static bool find_end(const member_scan *s, int64_t *end, bool *named) {
  int64_t depth = 0;
  *named = false;
  for (int64_t i = s->at; i < s->size; i++) {
    char c = s->text[i];
    if (c == '"') {
      *named = true;
      for (i++; i < s->size && s->text[i] != '"'; i++)
        i += s->text[i] == '\\';
    } else if (c == '{' || c == '[') {
      depth++;
    } else if (depth == 0 && (c == ',' || c == '}')) {
      *end = i;
      return true;
    } else if (c == '}' || c == ']') {
      depth--;
    }
  }
  return false;
}

/* Members, and nothing behind them. What is in a member the parser looks at. */
static bool is_plain_object(const char *text, int64_t size, int64_t *first) {
  member_scan s = {text, size, 0};
  while (s.at < size && is_blank(text[s.at]))
    s.at++;
  if (s.at == size || text[s.at] != '{')
    return false;
  *first = ++s.at;
  for (int64_t end;; s.at = end + 1) {
    bool named;
    if (!find_end(&s, &end, &named) || !named)
      return false;
    if (text[end] == '}') {
      for (end++; end < size && is_blank(text[end]); end++)
        ;
      return end == size;
    }
  }
}

static reshard_status visit_members(json_t *root, reshard_status (*visit)(void *, const char *, json_t *), void *user) {
  const char *name;
  json_t *value;
  json_object_foreach(root, name, value) RS_TRY(visit(user, name, value));
  return RESHARD_SUCCESS;
}

/* The members of text[first, end); *parsed: false where the parser refuses them. */
static reshard_status visit_batch(const char *where, const char *text, int64_t size, int64_t file_bytes, rs_text *copy,
                                  reshard_status (*visit)(void *, const char *, json_t *), void *user, bool *parsed) {
  RS_TRY(rs_budget_check(where, file_bytes, size + rs_json_memory(text, size)));
  copy->length = 0;
  rs_text_bytes(copy, "{", 1);
  rs_text_bytes(copy, text, (size_t)size);
  rs_text_bytes(copy, "}", 1);
  RS_TRY(copy->status);
  json_t *root = json_loadb(copy->at, copy->length, JSON_REJECT_DUPLICATES, NULL);
  *parsed = root != NULL;
  reshard_status status = *parsed ? visit_members(root, visit, user) : RESHARD_SUCCESS;
  json_decref(root);
  return status;
}

reshard_status rs_json_members(const char *where, const char *text, int64_t size, int64_t file_bytes,
                               reshard_status (*visit)(void *user, const char *name, json_t *value), void *user,
                               bool *object) {
  member_scan s = {text, size, 0};
  rs_text copy = {.grows = true};
  bool parsed = size >= LONG && is_plain_object(text, size, &s.at), last = !parsed, whole = !parsed;
  reshard_status status = RESHARD_SUCCESS;
  *object = true;
  for (int64_t first = s.at, end = 0; !last && parsed && status == RESHARD_SUCCESS; s.at = end + 1) {
    bool named;
    last = !find_end(&s, &end, &named) || text[end] == '}';
    if (!last && end - first < BATCH)
      continue;
    status = visit_batch(where, text + first, end - first, file_bytes, &copy, visit, user, &parsed);
    first = end + 1;
  }
  free(copy.at);
  RS_TRY(status);
  if (parsed && !whole)
    return RESHARD_SUCCESS;
  json_t *root = NULL; /* a short text; or one with an error, whose place is told */
  RS_TRY(rs_json_parse(where, text, size, file_bytes, &root));
  *object = json_is_object(root);
  if (whole && *object)
    status = visit_members(root, visit, user);
  else if (!whole)
    status = rs_error_memory((size_t)size); /* a part of it could not be parsed for that */
  json_decref(root);
  return status;
}

#endif
