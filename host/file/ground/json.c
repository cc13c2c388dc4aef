#include "file/ground/json.h"

#ifdef RS_HAVE_JANSSON

#include "base/text.h"

#include <string.h>

/* Without memory the parser may say nothing, or take a string that it could not keep for a syntax error: an error that
 * is not the same a second time is none of the text's. */
reshard_status rs_json_parse(const char *where, const char *text, int64_t size, json_t **root) {
  json_error_t error, again;
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

#endif
