/* Status codes. Every call of the library returns one. Outputs are written only on RESHARD_SUCCESS. */
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

/* Most dimensions that a tensor can have. No other cap is set at compile time. */
#define RESHARD_MAX_DIMS 8

#define RESHARD_VERSION_MAJOR  0
#define RESHARD_VERSION_MINOR  2
#define RESHARD_VERSION_PATCH  0
#define RESHARD_VERSION_STRING "0.2.0"

typedef enum reshard_status {
  RESHARD_SUCCESS = 0,
  RESHARD_ERROR_INVALID = 1,       /* an argument is wrong: text, shape, rank, NULL, size field, overlap */
  RESHARD_ERROR_UNSUPPORTED = 2,   /* well formed, but this version, build or machine lacks it */
  RESHARD_ERROR_OUT_OF_MEMORY = 3, /* an allocation failed; nothing was changed */
  RESHARD_ERROR_SYSTEM = 4,        /* the operating system refused: thread, file, input or output */
  RESHARD_ERROR_MISMATCH = 5,      /* the ranks of a collective call asked for different things */
  RESHARD_ERROR_PEER = 6,          /* another rank failed or the communicator was aborted */
  RESHARD_ERROR_BUSY = 7,          /* the object is in use by another call */
  RESHARD_ERROR_TIMEOUT = 8,       /* a peer did not come within the communicator's deadline */
  RESHARD_ERROR_INTERNAL = 9,      /* a defect of the library, or a failed reshard_assert */
  RESHARD_ERROR_CANCELLED = 10,    /* the caller's progress or poll function asked for it */
  RESHARD_ERROR_CORRUPT = 11       /* data read back is not what was written */
} reshard_status;

/* Name of a status ("RESHARD_ERROR_INVALID"). Never NULL; static lifetime. */
RESHARD_API const char *reshard_status_string(reshard_status status);

/* Text of the last call of this thread that failed, with its numbers: one line without a newline. "" when none has
 * failed. Valid until the thread's next failing call. Successful calls leave it as it is. */
RESHARD_API const char *reshard_last_error(void);

/* Sets the text of this thread's last error, and returns the status. For a callback that fails in a call of the
 * library: its text is then that of the call, on all ranks that hear of the error.
 *
 * - text: one line; a newline becomes a space. What is longer than 1023 bytes is cut.
 *
 * Errors: RESHARD_ERROR_INVALID: text is NULL, or status is RESHARD_SUCCESS or no status. Source: PyErr_SetString. */
RESHARD_API reshard_status reshard_error_set(reshard_status status, const char *text);

/* Checks for a state that only a defect can bring about. Returns RESHARD_SUCCESS where condition is not 0, else
 * RESHARD_ERROR_INTERNAL. Nothing is printed and the process goes on: the caller passes the status on.
 *
 * The last error then has text (may be NULL), file and line. The names of the callers follow, innermost first, as far
 * as they fit. Source: torch/distributed/utils.py, _p_assert. */
RESHARD_API reshard_status reshard_assert(int condition, const char *text, const char *file, int line);
#define RESHARD_ASSERT(condition, text) reshard_assert((condition) ? 1 : 0, (text), __FILE__, __LINE__)

/* "0.2.0"; static lifetime. */
RESHARD_API const char *reshard_version(void);

#ifdef __cplusplus
}
#endif
#endif
