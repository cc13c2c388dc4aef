/* Ends a benchmark early: at a row's deadline, and on a signal. What has been measured is written first. A handler
 * writes the signal's number down, and a thread looks for it ten times a second. */
#define _GNU_SOURCE
#include "bench/bench/report.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct bench_watch {
  bench_report *report;
  int64_t timeout; /* seconds; 0: none */
  pthread_t thread;
  bool runs;
  pthread_mutex_t lock; /* of what follows */
  pthread_cond_t ended;
  bool over;
  double began; /* the row, by rs_seconds; 0: none is measured */
  char shape[RS_SHAPE_TEXT];
} bench_watch;

static bench_watch the_watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
static atomic_int caught; /* a signal's number; 0: none */

static void catch_signal(int number) { caught = number; }

static void die_of(const bench_watch *w, int number) {
  char why[48];
  snprintf(why, sizeof why, "by signal %d", number);
  bench_report_close(w->report, why);
  cli_on_signals(SIG_DFL, SA_RESTART);
  kill(getpid(), number); /* this thread takes none */
}

static void *watch_run(void *user) {
  bench_watch *w = user;
  pthread_mutex_lock(&w->lock);
  while (!w->over && caught == 0) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&w->ended, &w->lock, &until);
    if (w->timeout > 0 && w->began > 0 && rs_seconds() - w->began > (double)w->timeout)
      cli_exit(EXIT_FAILED, "-T %lld: %s has not been measured after as many seconds", (long long)w->timeout, w->shape);
  }
  pthread_mutex_unlock(&w->lock);
  if (caught != 0)
    die_of(w, caught);
  return NULL;
}

void bench_watch_begin(bench_report *r, const cli_options *o) {
  bench_watch *w = &the_watch;
  sigset_t all, before;
  w->report = r;
  w->timeout = o->timeout;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals that others wait for are not this thread's */
  w->runs = pthread_create(&w->thread, NULL, watch_run, w) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (w->runs)
    cli_on_signals(catch_signal, SA_RESTART);
  else if (w->timeout > 0)
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
  pthread_mutex_lock(&w->lock);
  w->over = true;
  pthread_cond_signal(&w->ended);
  pthread_mutex_unlock(&w->lock);
  pthread_join(w->thread, NULL);
  cli_on_signals(SIG_DFL, SA_RESTART);
  w->runs = false;
}
