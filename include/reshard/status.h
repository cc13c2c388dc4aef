/* Status codes. Every call of the library returns one; outputs are written only on RESHARD_SUCCESS. */
#ifndef RESHARD_STATUS_H
#define RESHARD_STATUS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define RESHARD_API __attribute__((visibility("default")))
#else
#define RESHARD_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Most dimensions that a tensor can have. It is the library's only compile-time cap. */
#define RESHARD_MAX_DIMS 8

#define RESHARD_VERSION_MAJOR 0
#define RESHARD_VERSION_MINOR 1
#define RESHARD_VERSION_PATCH 0
#define RESHARD_VERSION_STRING "0.1.0"

typedef enum reshard_status {
  RESHARD_SUCCESS = 0,
  RESHARD_ERROR_INVALID = 1,       /* an argument is wrong: text, shape, rank, NULL, size field, overlap */
  RESHARD_ERROR_UNSUPPORTED = 2,   /* well formed, but this version, build or machine lacks it */
  RESHARD_ERROR_OUT_OF_MEMORY = 3, /* an allocation failed; nothing was changed */
  RESHARD_ERROR_SYSTEM = 4,        /* the operating system refused: thread, file, input or output */
  RESHARD_ERROR_MISMATCH = 5,      /* the ranks of a collective call do not want the same thing */
  RESHARD_ERROR_PEER = 6,          /* another rank failed or the communicator was aborted */
  RESHARD_ERROR_BUSY = 7,          /* the object is in use by another call */
  RESHARD_ERROR_TIMEOUT = 8,       /* a peer did not come within the communicator's deadline */
  RESHARD_ERROR_INTERNAL = 9,      /* a defect: of the library, or of who calls reshard_assert */
  RESHARD_ERROR_CANCELLED = 10,    /* the caller's progress function asked for it */
  RESHARD_ERROR_CORRUPT = 11       /* data read back is not what was written */
} reshard_status;

/* Name of a status ("RESHARD_ERROR_INVALID"); never NULL, static lifetime. */
RESHARD_API const char *reshard_status_string(reshard_status status);

/* What happened in the last call of this thread that failed, with the numbers in it: one line without a newline,
 * "" when none has failed. Valid until the thread's next failing call. Successful calls leave it as it is. */
RESHARD_API const char *reshard_last_error(void);

/* RESHARD_SUCCESS where condition is not 0. Else RESHARD_ERROR_INTERNAL: the last error has the text (may be NULL), file
 * and line, and by whom it was called, innermost first, as far as that fits. For states that cannot be unless there is a
 * defect; nothing is printed and nothing ends: the status is the caller's to pass on.
 * Source: torch/distributed/utils.py, _p_assert. */
RESHARD_API reshard_status reshard_assert(int condition, const char *text, const char *file, int line);
#define RESHARD_ASSERT(condition, text) reshard_assert((condition) ? 1 : 0, (text), __FILE__, __LINE__)

/* "0.1.0"; static lifetime. */
RESHARD_API const char *reshard_version(void);

#ifdef __cplusplus
}
#endif
#endif
