/* JSON texts, read by jansson: what the readers of models and of checkpoints share. Empty in a build without it. */
#ifndef RS_FILE_JSON_H
#define RS_FILE_JSON_H

#include "base/base.h"

#ifdef RS_HAVE_JANSSON

#include <jansson.h>

/* Parses a text of a file of so many bytes; the caller releases *root. A name that is twice in an object is an error.
 * Errors: RESHARD_ERROR_INVALID with line and column. RESHARD_ERROR_CORRUPT: it would take more memory than
 * rs_budget_limit, by rs_json_memory. */
reshard_status rs_json_parse(const char *where, const char *text, int64_t size, int64_t file_bytes, json_t **root);
/* Parses a text that is an object, and visits its members one by one; of a long one so many at a time as take little
 * memory. A name that is twice may come twice then. *object: false where the text is something else.
 * Errors: those of rs_json_parse and of visit. */
reshard_status rs_json_members(const char *where, const char *text, int64_t size, int64_t file_bytes,
                               reshard_status (*visit)(void *user, const char *name, json_t *value), void *user,
                               bool *object);
/* Bytes that jansson takes of a text, and no more than a third above them. The allocators of jansson are the process's,
 * and stay as they are; so the text is looked at instead. */
int64_t rs_json_memory(const char *text, int64_t size);

#endif
#endif
