/* JSON texts, read by jansson: what the readers of models and of checkpoints share. Empty in a build without it. */
#ifndef RS_FILE_JSON_H
#define RS_FILE_JSON_H

#include "base/base.h"

#ifdef RS_HAVE_JANSSON

#include <jansson.h>

/* Parses a text; the caller releases *root. A name that is twice in an object is an error.
 * Errors: RESHARD_ERROR_INVALID with line and column. */
reshard_status rs_json_parse(const char *where, const char *text, int64_t size, json_t **root);

#endif
#endif
