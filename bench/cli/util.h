/* Helpers of every command: exit, memory, threads, time, text, files. */
#ifndef BENCH_UTIL_H
#define BENCH_UTIL_H

#include "base/json.h"
#include "base/text.h"

#include <reshard/reshard.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Exit statuses of the program. */
enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_LACKING = 3 };

/* Both functions print one line "reshard: error: ..." on standard error and exit, with an exit status or with that of a
 * library status (INVALID: 2, UNSUPPORTED: 3, others: 1). They remove the temporary file that cli_write_file has open.
 * */
_Noreturn void cli_exit(int exit_status, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void cli_fail(reshard_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Before that line calls end(user, the line's text), by the thread that ends the program; once. NULL: nothing more. */
void cli_at_exit(void (*end)(void *user, const char *why), void *user);
/* From here on an error ends the process without what exit() calls: threads of a library still use what that frees. */
void cli_leave_threads(void);
/* From here on the line is printed by the first of all processes alone that share this word, 0 before. */
void cli_tell_once(atomic_int *told);
/* Prints that line and returns. */
void cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints one line "reshard: note: TEXT" on standard error, of what is no error and should be known. */
void cli_note(const char *text);
/* Ends the error lines from here on with "; done before: TEXT". Called by the main thread while no other runs. */
void cli_done(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Calls cli_fail with `what` and the library's last error where the call has failed. */
#define CLI_TRY(what, call) \
  do { \
    reshard_status cli_try_status_ = (call); \
    if (cli_try_status_ != RESHARD_SUCCESS) \
      cli_fail(cli_try_status_, "%s%s", (what), reshard_last_error()); \
  } while (0)

/* The same with the name of an option before it. */
void cli_try_option(const char *option, reshard_status status);

/* Zeroed memory for n elements, never NULL: the program ends with status 1 when there is none. */
void *cli_alloc(int64_t n, size_t element);
void *cli_realloc(void *memory, int64_t n, size_t element);
char *cli_strdup(const char *text);

/* Runs body(user) on n threads, the calling one among them; on fewer where the system has no more. */
void cli_run_threads(int64_t n, void *(*body)(void *user), void *user);

int cli_cores(void); /* that this process may use */

/* Additions to a text that grows; the program ends where memory does. */
void cli_add(rs_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cli_add_bytes(rs_text *text, const char *bytes, size_t n);
/* Ends the text of JSON with a newline, writes it as cli_write_file, and frees it. */
void cli_write_json(const char *path, rs_json *json);

/* Writes a file so that it appears complete or not at all (a temporary beside it, then rename); "-" is standard output.
 */
void cli_write_file(const char *path, const char *bytes, size_t n);
/* Ends the program as cli_write_file would where the directory of path is missing, or path is a directory. Called
 * before long work. */
void cli_check_file(const char *path);

/* "12.5 MiB", for people. */
#define CLI_BYTES_TEXT 32
const char *cli_bytes_text(char buffer[CLI_BYTES_TEXT], double bytes);
/* The same of a workspace limit, as in reshard_plan_options: "default", "none" or its bytes. */
const char *cli_limit_text(char buffer[CLI_BYTES_TEXT], int64_t limit);

/* Prints a line on standard error that replaces itself, only to a terminal and at most ten times a second. */
void cli_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_progress_clear(void);

/* A stage of long work on files, as reshard_convert_options.progress has it: its progress, with rate and time left. */
typedef struct cli_stage {
  const char *name; /* NULL: none yet */
  double begin;
} cli_stage;
void cli_show_stage(cli_stage *shown, const char *stage, int64_t done, int64_t all);

/* Calls the handler on SIGINT, SIGTERM and SIGHUP, but for those that are ignored, as by nohup. */
void cli_on_signals(void (*handler)(int number), int flags);
/* Allows as many open files as the system does: a directory of shards can have thousands. */
void cli_raise_file_limit(void);

/* "s", but for 1. */
const char *cli_plural(int64_t n);
/* Tells whether this build has digests of files. */
bool cli_has_digests(void);
/* Words for where files that were checked came from. */
const char *cli_from_device(int from_device);

/* Median of n values; sorts them. 0 for n == 0. */
double cli_median(double *values, int64_t n);

#endif
