#include "file/ground/temporary.h"

#include "base/text.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_digits(const char *text) {
  const char *at = text;
  while (*at >= '0' && *at <= '9')
    at++;
  return at > text ? at : "!";
}

size_t rs_temporary_name(const char *entry) {
  const char *mark = NULL;
  if (entry[0] != '.')
    return 0;
  for (const char *at = entry + 2; at[-1] != '\0' && (at = strstr(at, RS_TEMPORARY_MARK)) != NULL; at++)
    mark = at;
  if (mark == NULL)
    return 0;
  const char *end = skip_digits(mark + sizeof RS_TEMPORARY_MARK - 1);
  end = *end == '-' ? skip_digits(end + 1) : "!";
  bool is = *end == '\0' || strcmp(end, ".npy") == 0 || strcmp(end, ".safetensors") == 0;
  return is ? (size_t)(mark - entry) - 1 : 0;
}

reshard_status rs_temporary_refuse(const char *where, const char *path) {
  char real[PATH_MAX], *rest = NULL, quoted[RS_QUOTE];
  if (realpath(path, real) == NULL) /* who opens it says why */
    return RESHARD_SUCCESS;
  for (char *entry = strtok_r(real, "/", &rest); entry != NULL; entry = strtok_r(NULL, "/", &rest))
    if (rs_temporary_name(entry) > 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: is not complete: a writer has '%s' in work, or was killed at it",
                      where, rs_quote(quoted, sizeof quoted, entry));
  return RESHARD_SUCCESS;
}
