/* Small files that are read whole: rules, maps, boxes, JSON. */
#ifndef RS_BASE_READ_H
#define RS_BASE_READ_H

#include "base/base.h"

/* Bytes of the longest such file, and how long a pipe that does not end is waited for. */
#define RS_TEXT_LIMIT   ((int64_t)64 << 20)
#define RS_TEXT_WAIT_MS 30000

/* Records the error of errno for a file: RESHARD_ERROR_INVALID where its path leads to none, else
 * RESHARD_ERROR_SYSTEM. */
reshard_status rs_file_error(const char *where, int number);

/* Reads the whole of a file, device or pipe, with a NUL behind it; the caller frees *text.
 *
 * Errors, which begin with `where`: as rs_file_error; RESHARD_ERROR_INVALID when it is longer than limit;
 * RESHARD_ERROR_SYSTEM when its end does not come within wait_ms. */
reshard_status rs_read_all(const char *where, const char *path, int64_t limit, int64_t wait_ms, char **text,
                           int64_t *size);

#endif
