/* Copy threads.
 *
 * One 64-bit ticket holds the number of the job and how many of its tasks are left. A thread draws a task by compare-
 * and-swap on it. So a helper that was delayed across jobs can never draw from a job that it does not see: the job's
 * fields are read only after a successful draw, and they stay until every task drawn is counted as done.
 *
 * Helpers spin for some microseconds after a job, because execute is often called in a loop, and then sleep. A helper
 * that goes to sleep counts itself first and reads the ticket again under the lock. The caller that publishes a ticket
 * reads the count afterwards: with sequentially consistent order one of the two sees the other. */
#include "device/cpu/threads.h"

#include "base/range.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { SPINS = 1000, LINE = 64 };

struct rs_threads {
  _Alignas(LINE) _Atomic uint64_t ticket; /* job number << 32 | tasks left */
  _Alignas(LINE) _Atomic int64_t done;    /* tasks of this job that are finished */
  _Alignas(LINE) _Atomic int sleepers;    /* helpers */
  _Atomic int named;                      /* helpers that have a number */
  _Atomic bool caller_sleeps;
  _Atomic bool stop;
  int64_t n; /* of this job, with work and job */
  rs_threads_work work;
  const void *job;
  pthread_mutex_t turn; /* held for a whole job */
  pthread_mutex_t lock; /* of the two conditions */
  pthread_cond_t wake, finished;
  rs_forkable forkable;
  int nhelpers, wanted; /* fewer only in a child process, until its first job */
  pthread_t helpers[];
};

/* --- Fork --------------------------------------------------------------------------------------------------------- */

/* The one list of the process: fork has handlers, and no argument for them. */
static pthread_mutex_t forkables_lock = PTHREAD_MUTEX_INITIALIZER;
static rs_forkable *forkables;
static uint64_t forks; /* written by the one thread of a child */

static void before_fork(void) {
  pthread_mutex_lock(&forkables_lock);
  for (rs_forkable *o = forkables; o != NULL; o = o->next)
    if (o->held != NULL)
      pthread_mutex_lock(o->held);
}

static void after_fork(void) {
  for (rs_forkable *o = forkables; o != NULL; o = o->next)
    if (o->held != NULL)
      pthread_mutex_unlock(o->held);
  pthread_mutex_unlock(&forkables_lock);
}

static void after_fork_in_child(void) {
  forks++;
  for (rs_forkable *o = forkables; o != NULL; o = o->next)
    if (o->forked != NULL)
      o->forked(o);
  after_fork();
}

uint64_t rs_forks(void) { return forks; }

static void watch_forks(void) { (void)pthread_atfork(before_fork, after_fork, after_fork_in_child); }

void rs_forkable_add(rs_forkable *object, void (*forked)(rs_forkable *self)) { rs_forkable_hold(object, forked, NULL); }

void rs_forkable_hold(rs_forkable *object, void (*forked)(rs_forkable *self), pthread_mutex_t *held) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  pthread_mutex_lock(&forkables_lock);
  *object = (rs_forkable){forkables, &forkables, forked, held};
  if (forkables != NULL)
    forkables->link = &object->next;
  forkables = object;
  pthread_mutex_unlock(&forkables_lock);
}

void rs_forkable_remove(rs_forkable *object) {
  pthread_mutex_lock(&forkables_lock);
  if (object->link != NULL)
    *object->link = object->next;
  if (object->next != NULL)
    object->next->link = object->link;
  *object = (rs_forkable){0};
  pthread_mutex_unlock(&forkables_lock);
}

/* --- Tasks -------------------------------------------------------------------------------------------------------- */

static inline void relax_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Draws a task of any job that has some left (any_job) or of the claim's own job. */
static bool draw_task(rs_threads *pool, rs_claim *claim, bool any_job) {
  uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
  do {
    if ((uint32_t)ticket == 0 || (!any_job && (uint32_t)(ticket >> 32) != claim->turn))
      return false;
  } while (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                                                  memory_order_acquire));
  claim->turn = (uint32_t)(ticket >> 32);
  claim->n = pool->n;
  claim->next = pool->n - (int64_t)(uint32_t)ticket;
  return true;
}

int64_t rs_threads_next(rs_claim *claim) {
  if (claim->pool == NULL)
    return claim->next < claim->n ? claim->next++ : -1;
  if (claim->next < 0 && !draw_task(claim->pool, claim, false))
    return -1;
  int64_t task = claim->next;
  claim->next = -1;
  claim->taken++;
  return task;
}

/* Counts the tasks of a claim as done; the last one wakes a sleeping caller. */
static void finish_tasks(rs_threads *pool, const rs_claim *claim) {
  if (claim->taken == 0)
    return;
  int64_t done = atomic_fetch_add(&pool->done, claim->taken) + claim->taken;
  if (done == claim->n && atomic_load(&pool->caller_sleeps)) {
    pthread_mutex_lock(&pool->lock);
    pthread_cond_signal(&pool->finished);
    pthread_mutex_unlock(&pool->lock);
  }
}

static bool has_work(rs_threads *pool) { return (uint32_t)atomic_load(&pool->ticket) != 0 || atomic_load(&pool->stop); }

static void sleep_until_work(rs_threads *pool) {
  pthread_mutex_lock(&pool->lock);
  atomic_fetch_add(&pool->sleepers, 1);
  while (!has_work(pool))
    pthread_cond_wait(&pool->wake, &pool->lock);
  atomic_fetch_sub(&pool->sleepers, 1);
  pthread_mutex_unlock(&pool->lock);
}

static void *run_helper(void *user) {
  rs_threads *pool = user;
  int thread = 1 + atomic_fetch_add(&pool->named, 1);
  for (int spins = 0; !atomic_load_explicit(&pool->stop, memory_order_relaxed);) {
    rs_claim claim = {.pool = pool, .next = -1, .thread = thread};
    if (draw_task(pool, &claim, true)) {
      pool->work(pool->job, &claim);
      finish_tasks(pool, &claim);
      spins = 0;
    } else if (++spins < SPINS) {
      relax_cpu();
    } else {
      sleep_until_work(pool);
      spins = 0;
    }
  }
  return NULL;
}

static void stop_helpers(rs_threads *pool) {
  RS_HOLD_CANCEL;
  pthread_mutex_lock(&pool->lock);
  atomic_store(&pool->stop, true);
  pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->lock);
  for (int i = 0; i < pool->nhelpers; i++)
    pthread_join(pool->helpers[i], NULL);
}

/* Helpers take no signals: those are the program's. */
static int start_helpers(rs_threads *pool, int n) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  while (error == 0 && pool->nhelpers < n) {
    error = pthread_create(&pool->helpers[pool->nhelpers], NULL, run_helper, pool);
    pool->nhelpers += error == 0;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

static void init_locks(rs_threads *pool) {
  pthread_mutex_init(&pool->turn, NULL);
  pthread_mutex_init(&pool->lock, NULL);
  pthread_cond_init(&pool->wake, NULL);
  pthread_cond_init(&pool->finished, NULL);
}

/* The helpers, and the job that one of the parent's threads may have had, are no more. */
static void forget_helpers(rs_forkable *self) {
  rs_threads *pool = (rs_threads *)((char *)self - offsetof(rs_threads, forkable));
  init_locks(pool);
  atomic_fetch_and(&pool->ticket, ~(uint64_t)UINT32_MAX);
  atomic_store(&pool->sleepers, 0);
  atomic_store(&pool->named, 0);
  atomic_store(&pool->caller_sleeps, false);
  pool->nhelpers = 0;
}

reshard_status rs_threads_create(int threads, rs_threads **out) {
  size_t bytes = sizeof(rs_threads) + (size_t)(threads - 1) * sizeof(pthread_t);
  bytes = (bytes + LINE - 1) / LINE * LINE;
  rs_threads *pool = aligned_alloc(LINE, bytes);
  if (pool == NULL)
    return rs_error_memory(bytes);
  memset(pool, 0, bytes);
  init_locks(pool);
  pool->wanted = threads - 1;
  int error = start_helpers(pool, pool->wanted);
  if (error != 0) {
    int started = pool->nhelpers;
    rs_threads_destroy(pool);
    return rs_error(RESHARD_ERROR_SYSTEM, "cannot start copy thread %d of %d: %s", started + 2, threads,
                    strerror(error));
  }
  rs_forkable_add(&pool->forkable, forget_helpers);
  *out = pool;
  return RESHARD_SUCCESS;
}

void rs_threads_destroy(rs_threads *pool) {
  if (pool == NULL)
    return;
  rs_forkable_remove(&pool->forkable);
  stop_helpers(pool);
  pthread_cond_destroy(&pool->finished);
  pthread_cond_destroy(&pool->wake);
  pthread_mutex_destroy(&pool->lock);
  pthread_mutex_destroy(&pool->turn);
  free(pool);
}

int rs_threads_count(const rs_threads *pool) { return pool->wanted + 1; }

static void publish_job(rs_threads *pool, int64_t n, rs_threads_work work, const void *job) {
  pool->n = n;
  pool->work = work;
  pool->job = job;
  atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
  uint64_t turn = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> 32) + 1;
  atomic_store(&pool->ticket, turn << 32 | (uint64_t)n);
  if (atomic_load(&pool->sleepers) > 0) {
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
  }
}

static void wait_for_helpers(rs_threads *pool, int64_t n) {
  RS_RANGE("wait", -1, -1, -1, -1);
  for (int spins = 0; spins < SPINS; spins++) {
    if (atomic_load_explicit(&pool->done, memory_order_acquire) == n)
      return;
    relax_cpu();
  }
  pthread_mutex_lock(&pool->lock);
  atomic_store(&pool->caller_sleeps, true);
  while (atomic_load(&pool->done) != n)
    pthread_cond_wait(&pool->finished, &pool->lock);
  atomic_store(&pool->caller_sleeps, false);
  pthread_mutex_unlock(&pool->lock);
}

void rs_threads_run(rs_threads *pool, int64_t n, rs_threads_work work, const void *job) {
  if (n <= 1 || pool->wanted == 0) {
    rs_threads_run_alone(n, work, job);
    return;
  }
  RS_HOLD_CANCEL;
  pthread_mutex_lock(&pool->turn);
  if (pool->nhelpers < pool->wanted)
    (void)start_helpers(pool, pool->wanted); /* fewer do it, too */
  publish_job(pool, n, work, job);
  rs_claim claim = {.pool = pool, .next = -1};
  claim.turn = (uint32_t)(atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> 32);
  claim.n = n;
  work(job, &claim);
  finish_tasks(pool, &claim);
  wait_for_helpers(pool, n);
  pthread_mutex_unlock(&pool->turn);
}

void rs_threads_run_alone(int64_t n, rs_threads_work work, const void *job) {
  if (n <= 0)
    return;
  rs_claim claim = {.n = n};
  work(job, &claim);
}
