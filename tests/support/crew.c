#include "support/crew.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "util.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct crew_thread {
  pthread_t thread;
  void (*body)(void *user, int64_t rank);
  void *user;
  int64_t rank;
};

static void *thread_main(void *argument) {
  crew_thread *t = argument;
  t->body(t->user, t->rank);
  return NULL;
}

static void start(crew_thread *t) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 1 << 20);
  int failed = pthread_create(&t->thread, &attributes, thread_main, t);
  if (failed != 0)
    cli_exit(EXIT_FAILED, "thread of rank %lld: %s", (long long)t->rank, strerror(failed));
  pthread_attr_destroy(&attributes);
}

void crew_run(int64_t n, void (*body)(void *user, int64_t rank), void *user) {
  crew_thread *threads = cli_alloc(n, sizeof *threads);
  for (int64_t r = 0; r < n; r++) {
    threads[r] = (crew_thread){.body = body, .user = user, .rank = r};
    start(&threads[r]);
  }
  for (int64_t r = 0; r < n; r++)
    pthread_join(threads[r].thread, NULL);
  free(threads);
}

crew_thread *crew_start(void (*body)(void *user, int64_t rank), void *user) {
  crew_thread *t = cli_alloc(1, sizeof *t);
  *t = (crew_thread){.body = body, .user = user};
  start(t);
  return t;
}

void crew_join(crew_thread *t) {
  pthread_join(t->thread, NULL);
  free(t);
}

void crew_note(crew_result *result, reshard_status status) {
  result->status = status;
  const char *text = reshard_last_error();
  size_t n = strlen(text);
  n = n < sizeof result->text ? n : sizeof result->text - 1;
  memcpy(result->text, text, n);
  result->text[n] = '\0';
}

void crew_assert(int64_t n, const crew_result *results, reshard_status status, const char *part, const char *what) {
  for (int64_t r = 0; r < n; r++) {
    const char *text = results[r].text;
    if (results[r].status != status)
      fail_msg("%s: rank %lld has %s (%s), %s is expected", what != NULL ? what : "", (long long)r,
               reshard_status_string(results[r].status), text, reshard_status_string(status));
    if (status == RESHARD_SUCCESS)
      continue;
    assert_string_equal(text, results[0].text);
    if (part != NULL && strstr(text, part) == NULL)
      fail_msg("'%s' is not in '%s'", part, text);
  }
}

void crew_sleep_ms(int ms) {
  struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
  while (nanosleep(&t, &t) != 0)
    continue;
}

int64_t crew_scaled(int64_t n) {
  double scaled = (double)n * cli_test_scale();
  return scaled < 1 ? 1 : (int64_t)scaled;
}

/* Sizes that no machine has are asked for on purpose; a sanitizer's allocator is to refuse them like any other. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1:detect_stack_use_after_return=1"; }
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "allocator_may_return_null=1"; }
