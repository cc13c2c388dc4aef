#define _GNU_SOURCE
#include "bench/cli/util.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* The temporary file that a failing write removes. A thread writes one file at a time. */
static _Thread_local char *temporary;
static char done[160]; /* "": nothing */

static int exit_status_of(reshard_status status) {
  switch (status) {
  case RESHARD_SUCCESS: return EXIT_DONE;
  case RESHARD_ERROR_INVALID: return EXIT_USAGE;
  case RESHARD_ERROR_UNSUPPORTED: return EXIT_LACKING;
  default: return EXIT_FAILED;
  }
}

static atomic_int *told_by_any; /* NULL: this process is alone */

void cli_tell_once(atomic_int *told) { told_by_any = told; }

static void (*at_exit)(void *user, const char *why);
static void *at_exit_user;

void cli_at_exit(void (*end)(void *user, const char *why), void *user) {
  at_exit_user = user;
  at_exit = end;
}

static bool threads_stay;

void cli_leave_threads(void) { threads_stay = true; }

static void print_line(const char *kind, char *text, const char *between, const char *behind) {
  for (char *at = text; *at != '\0'; at++)
    if (*at == '\n' || *at == '\r')
      *at = ' ';
    else if (((unsigned char)*at < 0x20 && *at != '\t') || *at == 0x7f)
      *at = '?';
  cli_progress_clear();
  fflush(stdout);
  fprintf(stderr, "reshard: %s: %s%s%s\n", kind, text, between, behind);
}

static void print_error(char *text) { print_line("error", text, done[0] != '\0' ? "; done before: " : "", done); }

void cli_note(const char *text) {
  char line[2048];
  snprintf(line, sizeof line, "%s", text);
  print_line("note", line, "", "");
}

void cli_done(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(done, sizeof done, format, arguments);
  va_end(arguments);
}

/* Processes that were started together mostly end for one reason, and the first of them that knows it tells it: the
 * others come later, and its end is theirs, by mpirun (in one second) and torchrun. */
static void wait_for_turn(void) {
  static const char *const numbers[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"};
  const char *number = NULL;
  for (int i = 0; i < 3 && number == NULL; i++)
    number = getenv(numbers[i]);
  int64_t before = number != NULL ? strtoll(number, NULL, 10) : 0, ms = 1500 * (before < 4 ? before : 4);
  struct timespec left = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) /* a signal of which another thread ends the program */
    ;
}

/* So do the ranks of a process: one thread tells, the others end with it. Where what is called at the exit fails, that
 * is told instead. */
static _Noreturn void exit_with(int exit_status, const char *format, va_list arguments) {
  static pthread_mutex_t leaving = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
  char text[2048];
  vsnprintf(text, sizeof text, format, arguments);
  pthread_mutex_lock(&leaving);
  wait_for_turn();
  void (*end)(void *user, const char *why) = at_exit;
  at_exit = NULL;
  if (end != NULL)
    end(at_exit_user, text);
  if (told_by_any == NULL || atomic_exchange(told_by_any, 1) == 0)
    print_error(text);
  if (temporary != NULL)
    unlink(temporary);
  if (threads_stay) {
    fflush(NULL);
    _exit(exit_status);
  }
  exit(exit_status);
}

void cli_error(const char *format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  print_error(text);
}

void cli_exit(int exit_status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  exit_with(exit_status, format, arguments);
}

void cli_fail(reshard_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  exit_with(exit_status_of(status), format, arguments);
}

void cli_try_option(const char *option, reshard_status status) {
  if (status != RESHARD_SUCCESS)
    cli_fail(status, "%s: %s", option, reshard_last_error());
}

void *cli_alloc(int64_t n, size_t element) {
  void *memory = n < 0 ? NULL : calloc(n > 0 ? (size_t)n : 1, element > 0 ? element : 1);
  if (memory == NULL)
    cli_exit(EXIT_FAILED, "out of memory: %lld elements of %zu bytes refused", (long long)n, element);
  return memory;
}

void *cli_realloc(void *memory, int64_t n, size_t element) {
  size_t bytes;
  if (n < 0 || __builtin_mul_overflow((size_t)n, element, &bytes))
    bytes = SIZE_MAX;
  void *grown = realloc(memory, bytes > 0 ? bytes : 1);
  if (grown == NULL)
    cli_exit(EXIT_FAILED, "out of memory: %lld elements of %zu bytes refused", (long long)n, element);
  return grown;
}

char *cli_strdup(const char *text) {
  size_t n = strlen(text) + 1;
  return memcpy(cli_alloc((int64_t)n, 1), text, n);
}

void cli_run_threads(int64_t n, void *(*body)(void *user), void *user) {
  pthread_t *threads = cli_alloc(n, sizeof *threads);
  int64_t started = 0;
  while (started < n - 1 && pthread_create(&threads[started], NULL, body, user) == 0)
    started++;
  body(user);
  for (int64_t i = 0; i < started; i++)
    pthread_join(threads[i], NULL);
  free(threads);
}

int cli_cores(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    return CPU_COUNT(&set);
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int)n : 1;
}

void cli_add(rs_text *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  text->grows = true;
  rs_text_vadd(text, format, arguments);
  va_end(arguments);
  CLI_TRY("", text->status);
}

void cli_add_bytes(rs_text *text, const char *bytes, size_t n) {
  text->grows = true;
  rs_text_bytes(text, bytes, n);
  CLI_TRY("", text->status);
}

static void write_all(FILE *file, const char *path, const char *bytes, size_t n) {
  if (fwrite(bytes, 1, n, file) != n || fflush(file) != 0)
    cli_exit(EXIT_FAILED, "%s: %s", path, strerror(errno));
}

void cli_write_file(const char *path, const char *bytes, size_t n) {
  if (strcmp(path, "-") == 0) {
    write_all(stdout, "standard output", bytes, n);
    return;
  }
  struct stat there;
  if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) { /* a device or a pipe cannot be replaced by a rename */
    FILE *file = S_ISDIR(there.st_mode) ? NULL : fopen(path, "w");
    if (file == NULL)
      cli_exit(S_ISDIR(there.st_mode) ? EXIT_USAGE : EXIT_FAILED, "%s: %s", path,
               S_ISDIR(there.st_mode) ? strerror(EISDIR) : strerror(errno));
    write_all(file, path, bytes, n);
    if (fclose(file) != 0)
      cli_exit(EXIT_FAILED, "%s: %s", path, strerror(errno));
    return;
  }
  rs_text name = {0};
  cli_add(&name, "%s.XXXXXX", path);
  int fd = mkstemp(name.at);
  if (fd < 0)
    cli_exit(errno == ENOENT || errno == ENOTDIR ? EXIT_USAGE : EXIT_FAILED, "%s: %s", path, strerror(errno));
  temporary = name.at;
  mode_t mask = umask(0);
  umask(mask);
  fchmod(fd, 0666 & ~mask);
  FILE *file = fdopen(fd, "w");
  if (file == NULL)
    cli_exit(EXIT_FAILED, "%s: %s", path, strerror(errno));
  write_all(file, path, bytes, n);
  if (fclose(file) != 0 || rename(temporary, path) != 0)
    cli_exit(EXIT_FAILED, "%s: %s", path, strerror(errno));
  temporary = NULL;
  free(name.at);
}

void cli_write_json(const char *path, rs_json *j) {
  rs_text_string(&j->text, "\n");
  CLI_TRY("", j->text.status);
  cli_write_file(path, j->text.at, j->text.length);
  free(j->text.at);
  *j = (rs_json){0};
}

void cli_check_file(const char *path) {
  struct stat there;
  if (strcmp(path, "-") == 0)
    return;
  const char *slash = strrchr(path, '/');
  char *directory = cli_strdup(slash == path ? "/" : slash == NULL ? "." : path);
  if (slash != NULL && slash != path)
    directory[slash - path] = '\0';
  int wrong = stat(directory, &there) != 0                        ? errno
              : !S_ISDIR(there.st_mode)                           ? ENOTDIR
              : stat(path, &there) == 0 && S_ISDIR(there.st_mode) ? EISDIR
                                                                  : 0;
  free(directory);
  if (wrong != 0)
    cli_exit(EXIT_USAGE, "%s: %s", path, strerror(wrong));
}

const char *cli_bytes_text(char buffer[CLI_BYTES_TEXT], double bytes) {
  static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int u = 0;
  for (; bytes >= 1024 && u < 5; u++)
    bytes /= 1024;
  snprintf(buffer, CLI_BYTES_TEXT,
           u == 0        ? "%.0f %s"
           : bytes < 10  ? "%.2f %s"
           : bytes < 100 ? "%.1f %s"
                         : "%.0f %s",
           bytes, unit[u]);
  return buffer;
}

const char *cli_limit_text(char buffer[CLI_BYTES_TEXT], int64_t limit) {
  return limit == RESHARD_DEFAULT_LIMIT ? "default"
         : limit == RESHARD_NO_LIMIT    ? "none"
                                        : cli_bytes_text(buffer, (double)limit);
}

static double last_progress;
static bool progress_shown;

void cli_progress(const char *format, ...) {
  double now = rs_seconds();
  if (now - last_progress < 0.1 || !isatty(STDERR_FILENO))
    return;
  last_progress = now;
  char text[160];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "\r\033[K%s", text);
  fflush(stderr);
  progress_shown = true;
}

void cli_progress_clear(void) {
  if (progress_shown)
    fputs("\r\033[K", stderr);
  progress_shown = false;
}

void cli_show_stage(cli_stage *shown, const char *stage, int64_t done, int64_t all) {
  double now = rs_seconds();
  if (shown->name == NULL || strcmp(shown->name, stage) != 0)
    *shown = (cli_stage){stage, now};
  char a[CLI_BYTES_TEXT], b[CLI_BYTES_TEXT];
  double rate = now > shown->begin ? (double)done / (now - shown->begin) : 0;
  if (all > 0 && rate > 0)
    cli_progress("%s: %.0f %%, %s of %s, %.2f GB/s, %.0f s left", stage, 100 * (double)done / (double)all,
                 cli_bytes_text(a, (double)done), cli_bytes_text(b, (double)all), 1e-9 * rate,
                 (double)(all - done) / rate);
  else
    cli_progress("%s", stage);
}

void cli_on_signals(void (*handler)(int number), int flags) {
  static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
  for (int i = 0; i < 3; i++) {
    struct sigaction before, action = {.sa_handler = handler, .sa_flags = flags};
    if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
      (void)sigaction(numbers[i], &action, NULL);
  }
}

void cli_raise_file_limit(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

const char *cli_plural(int64_t n) { return n == 1 ? "" : "s"; }

bool cli_has_digests(void) {
#ifdef RS_HAVE_XXHASH
  return true;
#else
  return false;
#endif
}

const char *cli_from_device(int from_device) {
  return from_device ? "read from the device" : "in part from the page cache, which the system keeps";
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double cli_median(double *values, int64_t n) {
  if (n <= 0)
    return 0;
  qsort(values, (size_t)n, sizeof *values, compare_doubles);
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}
