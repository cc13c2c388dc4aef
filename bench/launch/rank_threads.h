/* Rank threads: n threads that run one body, each as its rank, with barriers. They are kept between runs, so that a run
 * wakes threads and starts none. */
#ifndef BENCH_RANKS_H
#define BENCH_RANKS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* One thread of a rank; it stays where it is until the join. */
typedef struct rank_thread {
  pthread_t thread;
  void (*body)(void *user, int64_t rank);
  void *user;
  int64_t rank;
} rank_thread;
/* Starts a thread that runs body(user, rank); where there can be none, the program ends. */
void rank_thread_create(rank_thread *t, void (*body)(void *user, int64_t rank), void *user, int64_t rank);
/* Waits for its end. False: it was cancelled. */
bool rank_thread_end(rank_thread *t);

typedef struct rank_pool rank_pool;

rank_pool *rank_pool_create(void);
void rank_pool_destroy(rank_pool *pool);

/* Runs body(user, r) for r in [0, n), rank 0 on the calling thread; returns when all have returned. */
void rank_pool_run(rank_pool *pool, int64_t n, void (*body)(void *user, int64_t rank), void *user);

/* Barrier of the ranks of a run. True when all came with ok. */
bool rank_pool_barrier(rank_pool *pool, bool ok);
/* Time at which the last barrier opened, by rs_seconds. */
double rank_pool_opened(const rank_pool *pool);

#endif
