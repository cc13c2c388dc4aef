/* Threads with a cancellation that is pending: calls return as ever, and the thread ends at a place of its own. */
#include "device/cpu/threads.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scratch.h"
#include "support/fixtures/sharded_ranks.h"
#include "support/reshards/rows_to_columns.h"

#include <reshard/state_dict.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { N = 3, SEED = 5, SHORT = 100 };

typedef struct cancelled_rank {
  rank_thread thread;
  reshard_comm comm;
  reshard_sharder sharder;
  const char *path;
  rows_to_columns *scene;
  reshard_status status;
  int64_t wrong;
  bool returned; /* from its calls */
} cancelled_rank;

static void save_and_load(cancelled_rank *r, int64_t rank) {
#ifdef RS_HAVE_JANSSON
  static const reshard_properties i64 = {.dtype = RESHARD_I64};
  const int64_t shape[2] = {30, 7};
  reshard_layout rows = layout_from_text("chunk(0)", 2, shape, N), columns = layout_from_text("chunk(1)", 2, shape, N);
  reshard_sharded_tensor tensor = NULL;
  reshard_tree leaf = NULL, state = NULL;
  r->wrong += reshard_sharded_tensor_empty(r->sharder, rows, &i64, NULL, &tensor) != RESHARD_SUCCESS ||
              reshard_tree_dict(&state) != RESHARD_SUCCESS || reshard_state_sharded(tensor, &leaf) != RESHARD_SUCCESS ||
              reshard_tree_set(state, "t", leaf) != RESHARD_SUCCESS;
  sharded_fill(tensor, rank, SEED);
  r->wrong += reshard_sharded_tensor_reshard(1, &tensor, &columns, NULL) != RESHARD_SUCCESS ||
              reshard_state_save(r->sharder, state, r->path, NULL, NULL) != RESHARD_SUCCESS;
  sharded_fill(tensor, rank, SEED + 1);
  r->wrong += reshard_state_load(r->sharder, state, r->path, NULL, NULL) != RESHARD_SUCCESS;
  r->wrong += sharded_check(tensor, rank, SEED);
  reshard_tree_release(state);
  reshard_tree_release(leaf);
  reshard_sharded_tensor_release(tensor);
  reshard_layout_release(rows);
  reshard_layout_release(columns);
#else
  (void)r, (void)rank;
#endif
}

static void all_calls_body(void *user, int64_t rank) {
  cancelled_rank *r = user;
  reshard_comm sub = NULL, rest = NULL;
  int64_t last = N - 1;
  pthread_cancel(pthread_self());
  r->wrong += reshard_comm_barrier(r->comm) != RESHARD_SUCCESS;
  r->wrong += reshard_sharder_create(r->comm, NULL, &r->sharder) != RESHARD_SUCCESS;
  save_and_load(r, rank);
  r->wrong += reshard_comm_split(r->comm, rank % 2, 0, &sub) != RESHARD_SUCCESS;
  reshard_comm_destroy(sub);
  if (rank != last)
    r->wrong += reshard_comm_shrink(r->comm, 1, &last, &rest) != RESHARD_SUCCESS;
  reshard_comm_destroy(rest);
  reshard_sharder_destroy(r->sharder);
  reshard_comm_destroy(r->comm);
  r->returned = true;
  pthread_testcancel();
  r->wrong++;
}

CASE(calls_of_cancelled_threads_return_as_ever) {
  cancelled_rank ranks[N];
  reshard_comm comms[N];
  memset(ranks, 0, sizeof ranks);
  rank_comms_open(N, 2, 60000, comms);
  for (int64_t r = 0; r < N; r++) {
    ranks[r].comm = comms[r];
    ranks[r].path = scratch_path("checkpoint");
    rank_thread_create(&ranks[r].thread, all_calls_body, &ranks[r], r);
  }
  for (int64_t r = 0; r < N; r++) {
    assert_false(rank_thread_end(&ranks[r].thread)); /* it was cancelled, after its calls */
    assert_true(ranks[r].returned);
    assert_int_equal(ranks[r].wrong, 0);
  }
}

static void wait_body(void *user, int64_t rank) {
  cancelled_rank *r = user;
  r->status = reshard_comm_barrier(r->comm);
  r->returned = true;
  pthread_testcancel();
}

/* With a deadline that passes, and where the others come. */
CASE(wait_goes_on_until_the_deadline_or_the_others) {
  for (int comes = 0; comes < 2; comes++) {
    reshard_comm comms[2];
    rank_comms_open(2, 1, comes ? 60000 : SHORT, comms);
    cancelled_rank rank;
    memset(&rank, 0, sizeof rank);
    rank.comm = comms[0];
    rank_thread_create(&rank.thread, wait_body, &rank, 0);
    if (comes)
      rank_comms_await(comms[0], 1);
    pthread_cancel(rank.thread.thread);
    if (comes)
      assert_int_equal(reshard_comm_barrier(comms[1]), RESHARD_SUCCESS);
    (void)rank_thread_end(&rank.thread);
    if (comes || rank.returned) /* else it was cancelled before its call */
      assert_int_equal(rank.status, comes ? RESHARD_SUCCESS : RESHARD_ERROR_TIMEOUT);
    assert_true(!comes || rank.returned);
    rank_comms_close(2, comms);
  }
}

/* A job of a thread that is cancelled. */
typedef struct copy_job {
  rs_threads *pool;
  atomic_llong done;
} copy_job;

static void count_task(const void *job, rs_claim *claim) {
  while (rs_threads_next(claim) >= 0)
    atomic_fetch_add(*(atomic_llong *const *)job, 1);
}

static void copy_body(void *user, int64_t rank) {
  copy_job *job = user;
  atomic_llong *counter = &job->done;
  pthread_cancel(pthread_self());
  for (int i = 0; i < 1000; i++)
    rs_threads_run(job->pool, 8, count_task, &counter);
  pthread_testcancel();
}

CASE(copy_threads_outlive_a_cancelled_caller) {
  copy_job job = {NULL};
  assert_int_equal(rs_threads_create(2, &job.pool), RESHARD_SUCCESS);
  for (int i = 1; i <= 2; i++) {
    rank_thread thread;
    rank_thread_create(&thread, copy_body, &job, 0);
    assert_false(rank_thread_end(&thread));
    assert_int_equal(atomic_load(&job.done), i * 8000);
  }
  rs_threads_destroy(job.pool);
}

/* Executes of one rank meet nobody: they hold a cancellation off only where they wait for copy threads, or log. */
static void executes_body(void *user, int64_t rank) {
  cancelled_rank *r = user;
  rows_to_columns *s = r->scene;
  pthread_cancel(pthread_self());
  for (int i = 0; i < 3; i++)
    r->wrong += reshard_execute(s->transfers[0], NULL) != RESHARD_SUCCESS;
  r->returned = true;
  pthread_testcancel();
}

CASE(lone_rank_gives_its_transfer_back_before_it_is_cancelled) {
  setenv("RESHARD_LOG_FILE", scratch_path("log"), 1);
  for (int traced = 0; traced < 2; traced++) {
    rows_to_columns s;
    cancelled_rank rank;
    memset(&rank, 0, sizeof rank);
    rank.scene = &s;
    setenv("RESHARD_LOG", traced ? "trace" : "", 1);
    rows_to_columns_open(&s, 1, 60000, RESHARD_PATH_AUTO, NULL);
    rows_to_columns_must_create(&s);
    rank_thread_create(&rank.thread, executes_body, &rank, 0);
    assert_false(rank_thread_end(&rank.thread));
    assert_true(rank.returned);
    assert_int_equal(rank.wrong, 0);
    rows_to_columns_must_execute(&s); /* it is not busy */
    rows_to_columns_close(&s);
  }
  unsetenv("RESHARD_LOG");
  unsetenv("RESHARD_LOG_FILE");
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
