/* Copy threads: the calling thread and helpers share the tasks of one job.
 *
 * A job is n tasks, numbered from 0, and a function that each taking part runs once: it draws task numbers until there
 * are none. Helpers that wake too late simply take no part, so a job never waits for a thread that has nothing. */
#ifndef RS_DEVICE_POOL_H
#define RS_DEVICE_POOL_H

#include "base/base.h"

typedef struct rs_pool rs_pool;

/* A thread's access to the tasks of a job. */
typedef struct rs_claim {
  rs_pool *pool; /* NULL: all tasks are this thread's */
  uint32_t turn; /* which job */
  int64_t n;     /* tasks of the job */
  int64_t next;  /* a task already drawn, or -1; without a pool the next task */
  int64_t taken;
  int thread;    /* 0: the caller of rs_pool_run, 1, 2, ...: helpers */
} rs_claim;

typedef void (*rs_pool_work)(const void *job, rs_claim *claim);

/* threads: 1 or more, the caller of rs_pool_run included. On failure no thread is left. */
reshard_status rs_pool_create(int threads, rs_pool **pool);
void rs_pool_destroy(rs_pool *pool);
int rs_pool_threads(const rs_pool *pool);

/* Runs a job of n tasks, 0 <= n < 2^32, and returns when all are done. What the tasks wrote is then visible to the
 * caller. From several threads at once: one job after the other. Allocates nothing. */
void rs_pool_run(rs_pool *pool, int64_t n, rs_pool_work work, const void *job);
/* The same by the calling thread alone, without a lock. */
void rs_pool_run_alone(int64_t n, rs_pool_work work, const void *job);

/* The next task, in ascending order for each thread, or -1. */
int64_t rs_pool_next(rs_claim *claim);

#endif
