#include "bench/launch/rank_threads.h"
#include "bench/cli/util.h"

#include <stdlib.h>
#include <string.h>

static void *run_body(void *argument) {
  rank_thread *t = argument;
  t->body(t->user, t->rank);
  return NULL;
}

void rank_thread_create(rank_thread *t, void (*body)(void *user, int64_t rank), void *user, int64_t rank) {
  *t = (rank_thread){.body = body, .user = user, .rank = rank};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 2 << 20); /* a block of f32 is 128 KiB of it; ThreadSanitizer takes more */
  int failed = pthread_create(&t->thread, &attributes, run_body, t);
  if (failed != 0)
    cli_exit(EXIT_FAILED, "thread of rank %lld: %s", (long long)rank, strerror(failed));
  pthread_attr_destroy(&attributes);
}

bool rank_thread_end(rank_thread *t) {
  void *result = NULL;
  pthread_join(t->thread, &result);
  return result != PTHREAD_CANCELED;
}

typedef struct pool_thread {
  rank_pool *pool;
  rank_thread thread;
  pthread_cond_t work; /* one each, so that a run of few ranks wakes few threads */
} pool_thread;

struct rank_pool {
  pthread_mutex_t lock;
  pthread_cond_t met, done;
  pool_thread **rank_threads; /* threads of ranks 1, 2, ... */
  int64_t threads;
  int64_t n, running; /* of the run */
  uint64_t run;       /* number of the run; threads wait for the next one */
  bool quit;
  void (*body)(void *user, int64_t rank);
  void *user;
  int64_t waiting; /* at the barrier */
  uint64_t barrier;
  bool ok, result;
  double opened;
};

rank_pool *rank_pool_create(void) {
  rank_pool *pool = cli_alloc(1, sizeof *pool);
  pthread_mutex_init(&pool->lock, NULL);
  pthread_cond_init(&pool->met, NULL);
  pthread_cond_init(&pool->done, NULL);
  pool->ok = true;
  return pool;
}

static void run_thread(void *user, int64_t rank) {
  pool_thread *me = user;
  rank_pool *pool = me->pool;
  uint64_t seen = 0;
  pthread_mutex_lock(&pool->lock);
  for (;;) {
    while (!pool->quit && (pool->run == seen || rank >= pool->n))
      pthread_cond_wait(&me->work, &pool->lock);
    if (pool->quit)
      break;
    seen = pool->run;
    pthread_mutex_unlock(&pool->lock);
    pool->body(pool->user, rank);
    pthread_mutex_lock(&pool->lock);
    if (--pool->running == 0)
      pthread_cond_signal(&pool->done);
  }
  pthread_mutex_unlock(&pool->lock);
}

static void start_threads(rank_pool *pool, int64_t n) {
  if (n <= pool->threads)
    return;
  pool->rank_threads = cli_realloc(pool->rank_threads, n, sizeof *pool->rank_threads);
  for (; pool->threads < n; pool->threads++) {
    pool_thread *m = cli_alloc(1, sizeof *m);
    m->pool = pool;
    pthread_cond_init(&m->work, NULL);
    rank_thread_create(&m->thread, run_thread, m, pool->threads + 1);
    pool->rank_threads[pool->threads] = m;
  }
}

void rank_pool_run(rank_pool *pool, int64_t n, void (*body)(void *user, int64_t rank), void *user) {
  pthread_mutex_lock(&pool->lock);
  start_threads(pool, n - 1);
  pool->n = n;
  pool->running = n - 1;
  pool->body = body;
  pool->user = user;
  pool->run++;
  for (int64_t i = 0; i < n - 1; i++)
    pthread_cond_signal(&pool->rank_threads[i]->work);
  pthread_mutex_unlock(&pool->lock);
  body(user, 0);
  pthread_mutex_lock(&pool->lock);
  while (pool->running > 0)
    pthread_cond_wait(&pool->done, &pool->lock);
  pthread_mutex_unlock(&pool->lock);
}

bool rank_pool_barrier(rank_pool *pool, bool ok) {
  pthread_mutex_lock(&pool->lock);
  pool->ok = pool->ok && ok;
  if (++pool->waiting == pool->n) {
    pool->waiting = 0;
    pool->barrier++;
    pool->result = pool->ok;
    pool->ok = true;
    pool->opened = rs_seconds();
    pthread_cond_broadcast(&pool->met);
  } else
    for (uint64_t mine = pool->barrier; pool->barrier == mine;)
      pthread_cond_wait(&pool->met, &pool->lock);
  bool result = pool->result; /* the next barrier cannot open before this rank comes to it */
  pthread_mutex_unlock(&pool->lock);
  return result;
}

double rank_pool_opened(const rank_pool *pool) { return pool->opened; }

void rank_pool_destroy(rank_pool *pool) {
  if (pool == NULL)
    return;
  pthread_mutex_lock(&pool->lock);
  pool->quit = true;
  for (int64_t i = 0; i < pool->threads; i++)
    pthread_cond_signal(&pool->rank_threads[i]->work);
  pthread_mutex_unlock(&pool->lock);
  for (int64_t i = 0; i < pool->threads; i++) {
    rank_thread_end(&pool->rank_threads[i]->thread);
    pthread_cond_destroy(&pool->rank_threads[i]->work);
    free(pool->rank_threads[i]);
  }
  free(pool->rank_threads);
  pthread_cond_destroy(&pool->met);
  pthread_cond_destroy(&pool->done);
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}
