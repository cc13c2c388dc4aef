/* Space for the files that are written, reserved before the first byte of a tensor. */
#ifndef RS_FILE_RESERVE_H
#define RS_FILE_RESERVE_H

#include "base/base.h"

#include <stdatomic.h>
#include <sys/resource.h>

/* Bytes that are free on the file system of an open file, for every user, or with those kept for root; the largest
 * number when it does not say. */
int64_t rs_free_bytes(int fd, bool kept);
/* True for a size beyond the limit of this process: a call would not only fail, a signal would end the process. */
bool rs_over_file_limit(struct rlimit *limit, int64_t size);
/* Reserves bytes of a file of `size`. In pieces, so that a timer's signals, each of which ends a call, cannot keep it
 * from its end. unbacked: bytes that the file system of `output` could not reserve so far. 0 or an error number. */
int rs_reserve(int output, int fd, int64_t bytes, int64_t size, _Atomic int64_t *unbacked);

#endif
