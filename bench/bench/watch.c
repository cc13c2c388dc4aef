/* Ends a benchmark early: at a row's deadline, and on a signal. What has been measured is written first. */
#define _GNU_SOURCE
#include "bench/bench/state.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

typedef struct bench_watch {
  bench_report *report;
  int64_t timeout; /* seconds; 0: none */
  pthread_t thread;
  bool runs;
  atomic_bool over;
  pthread_mutex_t lock; /* of the row: */
  double began;         /* by rs_seconds; 0: none is measured */
  char shape[RS_SHAPE_TEXT];
} bench_watch;

static bench_watch the_watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

static sigset_t watched_signals(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

static void check_deadline(bench_watch *w) {
  char shape[RS_SHAPE_TEXT];
  pthread_mutex_lock(&w->lock);
  bool late = w->began > 0 && rs_seconds() - w->began > (double)w->timeout;
  memcpy(shape, w->shape, sizeof shape);
  pthread_mutex_unlock(&w->lock);
  if (late)
    cli_exit(EXIT_FAILED, "-T %lld: %s has not been measured after as many seconds", (long long)w->timeout, shape);
}

static void die_of(bench_watch *w, int number) {
  char why[48];
  snprintf(why, sizeof why, "by signal %d", number);
  bench_report_close(w->report, why);
  sigset_t set = watched_signals();
  signal(number, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  raise(number);
}

static void *watch_run(void *user) {
  bench_watch *w = user;
  sigset_t set = watched_signals();
  const struct timespec tenth = {0, 100000000};
  for (;;) {
    int number = w->timeout > 0 ? sigtimedwait(&set, NULL, &tenth) : sigwaitinfo(&set, NULL);
    if (w->over)
      return NULL;
    if (number > 0)
      die_of(w, number);
    if (w->timeout > 0)
      check_deadline(w);
  }
}

void bench_watch_begin(bench_report *r, const cli_options *o) {
  sigset_t set = watched_signals(), all, before;
  bench_watch *w = &the_watch;
  w->report = r;
  w->timeout = o->timeout;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals of others are not this thread's */
  w->runs = pthread_create(&w->thread, NULL, watch_run, w) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (w->runs)
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* here, and in threads that are started later */
  if (!w->runs && w->timeout > 0)
    cli_exit(EXIT_FAILED, "-T %lld: %s", (long long)o->timeout, strerror(EAGAIN));
}

void bench_watch_row(const char *shape) {
  bench_watch *w = &the_watch;
  pthread_mutex_lock(&w->lock);
  w->began = shape != NULL ? rs_seconds() : 0;
  snprintf(w->shape, sizeof w->shape, "%s", shape != NULL ? shape : "");
  pthread_mutex_unlock(&w->lock);
}

void bench_watch_end(void) {
  bench_watch *w = &the_watch;
  if (!w->runs)
    return;
  w->over = true;
  pthread_kill(w->thread, SIGTERM);
  pthread_join(w->thread, NULL);
  w->runs = false;
}
