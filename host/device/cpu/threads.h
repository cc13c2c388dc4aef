/* Copy threads: the calling thread and helpers share the tasks of one job.
 *
 * A job is n tasks, numbered from 0, and a function that each taking part runs once: it draws task numbers until there
 * are none. Helpers that wake too late simply take no part, so a job never waits for a thread that has nothing. */
#ifndef RS_DEVICE_CPU_THREADS_H
#define RS_DEVICE_CPU_THREADS_H

#include "base/base.h"

#include <pthread.h>

/* From here until the function returns its thread is not cancelled: others wait for it, or use its memory. A function
 * that may come to no cancellation point tells so, and does not pay for it. */
#define RS_HOLD_CANCEL_WHERE(waits) \
  int rs_cancel_state_ __attribute__((cleanup(rs_cancel_restore))) = (waits) ? rs_cancel_hold() : RS_CANCEL_AS_IT_IS; \
  (void)rs_cancel_state_
#define RS_HOLD_CANCEL RS_HOLD_CANCEL_WHERE(true)
enum { RS_CANCEL_AS_IT_IS = -1 };
static inline int rs_cancel_hold(void) {
  int state = PTHREAD_CANCEL_ENABLE;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  return state;
}
static inline void rs_cancel_restore(const int *state) {
  if (*state != RS_CANCEL_AS_IT_IS)
    pthread_setcancelstate(*state, NULL);
}

typedef struct rs_threads rs_threads;

/* Part of an object with threads or locks of this process. A child process (fork) has none of these threads, and locks
 * as they were: `forked` makes both good, by its one thread, before fork returns there. `held` is taken for a fork, so
 * that the child has whole what it guards: a lock of the process, under which no object is added or removed. */
typedef struct rs_forkable {
  struct rs_forkable *next, **link;
  void (*forked)(struct rs_forkable *self); /* NULL: nothing is to be done */
  pthread_mutex_t *held;                    /* NULL: none */
} rs_forkable;
void rs_forkable_add(rs_forkable *object, void (*forked)(rs_forkable *self));
/* The same with a lock. Before the process has a second thread: by a constructor. */
void rs_forkable_hold(rs_forkable *object, void (*forked)(rs_forkable *self), pthread_mutex_t *held);
void rs_forkable_remove(rs_forkable *object); /* again is allowed, and never added but zero */
/* Forks that this process comes from, of those since the first forkable was added. */
uint64_t rs_forks(void);

/* A thread's access to the tasks of a job. */
typedef struct rs_claim {
  rs_threads *pool; /* NULL: all tasks are this thread's */
  uint32_t turn;    /* which job */
  int64_t n;        /* tasks of the job */
  int64_t next;     /* a task already drawn, or -1; without a pool the next task */
  int64_t taken;
  int thread; /* 0: the caller of rs_threads_run, 1, 2, ...: helpers */
} rs_claim;

typedef void (*rs_threads_work)(const void *job, rs_claim *claim);

/* threads: 1 or more, the caller of rs_threads_run included. On failure no thread is left. */
reshard_status rs_threads_create(int threads, rs_threads **pool);
void rs_threads_destroy(rs_threads *pool);
int rs_threads_count(const rs_threads *pool);

/* Runs a job of n tasks, 0 <= n < 2^32, and returns when all are done. Their writes are then visible to the
 * caller. From several threads at once: one job after the other. Allocates nothing. */
void rs_threads_run(rs_threads *pool, int64_t n, rs_threads_work work, const void *job);
/* The same by the calling thread alone, without a lock. */
void rs_threads_run_alone(int64_t n, rs_threads_work work, const void *job);

/* The next task, in ascending order for each thread, or -1. */
int64_t rs_threads_next(rs_claim *claim);

#endif
