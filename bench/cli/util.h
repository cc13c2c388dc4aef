/* What every command of the program needs: ends with a status, memory, time, text. */
#ifndef BENCH_UTIL_H
#define BENCH_UTIL_H

#include <reshard/reshard.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Exit statuses of the program. */
enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_LACKING = 3 };

/* One line "reshard: error: ..." on standard error, then exit. cli_exit takes an exit status, cli_fail a status of the
 * library (INVALID: 2, UNSUPPORTED: 3, others: 1). Temporary files that cli_write_file has open are removed. */
_Noreturn void cli_exit(int exit_status, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void cli_fail(reshard_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
int cli_exit_status(reshard_status status);
/* That line alone. */
void cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What has been done: from here on error lines end with it, "; done before: TEXT". By the main thread, while no other
 * runs. */
void cli_done(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* cli_fail with `what` and the library's last error when the call did not succeed. */
#define CLI_TRY(what, call) \
  do { \
    reshard_status cli_try_status_ = (call); \
    if (cli_try_status_ != RESHARD_SUCCESS) \
      cli_fail(cli_try_status_, "%s%s", (what), reshard_last_error()); \
  } while (0)

/* Zeroed memory for n elements, never NULL: the program ends with status 1 when there is none. */
void *cli_alloc(int64_t n, size_t element);
void *cli_realloc(void *memory, int64_t n, size_t element);
char *cli_strdup(const char *text);
bool cli_ends_in(const char *text, const char *end);

/* Runs body(user) on n threads, the calling one among them; on fewer where the system has no more. */
void cli_run_threads(int64_t n, void *(*body)(void *user), void *user);

double cli_seconds(void); /* monotonic clock */
int cli_cores(void);      /* that this process may use */

/* A growing text. at is NUL-terminated once something was added. */
typedef struct cli_text {
  char *at;
  size_t length, size;
} cli_text;
void cli_add(cli_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cli_add_bytes(cli_text *text, const char *bytes, size_t n);

/* Writes a file so that it appears complete or not at all (a temporary beside it, then rename); "-" is standard output.
 */
void cli_write_file(const char *path, const char *bytes, size_t n);
/* Ends the program as cli_write_file would where the directory of path is missing or path is a directory: for work that
 * must not be done in vain. */
void cli_check_file(const char *path);
/* All of a text file, NUL-terminated; status 2 when it cannot be read. what ("rules") names it in the error. */
char *cli_read_file(const char *what, const char *path);

/* "12.5 MiB", for people. */
#define CLI_BYTES_TEXT 32
const char *cli_bytes_text(char buffer[CLI_BYTES_TEXT], double bytes);

/* A line on standard error that replaces itself, only where that is a terminal; text NULL clears it. Not more than ten
 * a second. */
void cli_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_progress_clear(void);

/* Median of n values; sorts them. 0 for n == 0. */
double cli_median(double *values, int64_t n);

/* Number of random cases and tests is multiplied by this: RESHARD_TEST_SCALE, 1 by default. */
double cli_test_scale(void);

#endif
