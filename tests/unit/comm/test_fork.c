/* A child process of fork uses and destroys what its parent has made: copy threads are started again, communicators
 * work, or have ended where the parent had threads in their calls. New ones are made in it. */
#include "comm/local/local.h"
#include "device/cpu/threads.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"
#include "support/processes/processes.h"
#include "support/reshards/rows_to_columns.h"

#include <reshard/sharded.h>
#include <reshard/tensor.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3 };

/* Threads are started after the fork, which ThreadSanitizer takes for a mistake. */
#ifdef __SANITIZE_THREAD__
enum { SKIPPED = 1 };
#else
enum { SKIPPED = 0 };
#endif

static pid_t start_child(void) {
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  return child;
}

/* --- Copy threads ------------------------------------------------------------------------------------------------- */

/* A task waits for the others: each has a thread of its own. */
typedef struct crowd {
  atomic_int there, numbers; /* a bit for each thread's number */
} crowd;

static void wait_for_all(const void *job, rs_claim *claim) {
  crowd *c = (crowd *)job;
  while (rs_threads_next(claim) >= 0) {
    atomic_fetch_or(&c->numbers, 1 << claim->thread);
    atomic_fetch_add(&c->there, 1);
    while (atomic_load(&c->there) < THREADS)
      sched_yield();
  }
}

static bool run_crowd(rs_threads *pool) {
  crowd c;
  atomic_init(&c.there, 0);
  atomic_init(&c.numbers, 0);
  rs_threads_run(pool, THREADS, wait_for_all, &c);
  return rs_threads_count(pool) == THREADS && atomic_load(&c.there) == THREADS &&
         atomic_load(&c.numbers) == (1 << THREADS) - 1;
}

static void count_tasks(const void *job, rs_claim *claim) {
  while (rs_threads_next(claim) >= 0)
    atomic_fetch_add((atomic_llong *)job, 1);
}

static bool run_tasks(rs_threads *pool) {
  atomic_llong done;
  atomic_init(&done, 0);
  rs_threads_run(pool, 1000, count_tasks, &done);
  return atomic_load(&done) == 1000;
}

CASE(child_starts_copy_threads_again) {
  rs_threads *pool = NULL;
  assert_int_equal(rs_threads_create(THREADS, &pool), RESHARD_SUCCESS);
  assert_true(run_crowd(pool));
  pid_t child = start_child();
  if (child == 0) {
    CHILD_CHECK(run_crowd(pool) && run_tasks(pool));
    pid_t grandchild = fork();
    if (grandchild == 0) {
      CHILD_CHECK(run_tasks(pool) && run_crowd(pool));
      rs_threads_destroy(pool);
      _exit(0);
    }
    int status;
    CHILD_CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0);
    rs_threads_destroy(pool);
    _exit(0);
  }
  assert_true(child_is_good(child));
  assert_true(run_crowd(pool));
  rs_threads_destroy(pool);
}

/* Another thread has a job when the process is forked. */
typedef struct worker {
  rs_threads *pool;
  atomic_bool works, stop;
  bool wrong;
} worker;

static void work_body(void *user, int64_t rank) {
  (void)rank;
  worker *w = user;
  while (!atomic_load(&w->stop)) {
    w->wrong |= !run_tasks(w->pool);
    atomic_store(&w->works, true);
  }
}

CASE(test_threads_at_work) {
  worker w = {.wrong = false};
  assert_int_equal(rs_threads_create(THREADS, &w.pool), RESHARD_SUCCESS);
  assert_true(run_crowd(w.pool)); /* a thread that begins has locks of sanitizers, which a child would keep */
  rank_thread *thread = rank_thread_start(work_body, &w);
  while (!atomic_load(&w.works))
    sched_yield();
  for (int64_t i = 0; i < test_scaled(20, 1); i++) {
    pid_t child = start_child();
    if (child == 0) {
      CHILD_CHECK(i % 2 == 0 || (run_crowd(w.pool) && run_tasks(w.pool)));
      rs_threads_destroy(w.pool);
      _exit(0);
    }
    assert_true(child_is_good(child));
  }
  atomic_store(&w.stop, true);
  rank_thread_join(thread);
  assert_false(w.wrong);
  rs_threads_destroy(w.pool);
}

/* A task forks: what is left of its job is the parent's. */
typedef struct fork_job {
  rs_threads *pool;
  atomic_bool in_child;
  atomic_int stale;
  pid_t child;
} fork_job;

static void fork_in_task(const void *job, rs_claim *claim) {
  fork_job *f = (fork_job *)job;
  for (int64_t task; (task = rs_threads_next(claim)) >= 0;) {
    atomic_fetch_add(&f->stale, atomic_load(&f->in_child));
    if (claim->thread != 0 || f->child != 0)
      continue;
    f->child = start_child();
    if (f->child != 0)
      continue;
    atomic_store(&f->in_child, true);
    CHILD_CHECK(run_crowd(f->pool));
    test_sleep_ms(20);
    CHILD_CHECK(atomic_load(&f->stale) == 0);
    rs_threads_destroy(f->pool);
    _exit(0);
  }
}

CASE(test_fork_in_job) {
  fork_job f = {.child = 0};
  assert_int_equal(rs_threads_create(THREADS, &f.pool), RESHARD_SUCCESS);
  for (int i = 0; f.child == 0 && i < 1000; i++) /* the caller may come too late for a task */
    rs_threads_run(f.pool, 100000, fork_in_task, &f);
  assert_true(f.child != 0);
  assert_true(child_is_good(f.child));
  rs_threads_destroy(f.pool);
}

/* --- Communicators ------------------------------------------------------------------------------------------------ */

static void execute_in_child(rows_to_columns *s, uint32_t generation) {
  rows_to_columns_fill(s, generation);
  rows_to_columns_execute(s);
  for (int64_t r = 0; r < s->n; r++)
    CHILD_CHECK(s->results[r].status == RESHARD_SUCCESS);
  CHILD_CHECK(rows_to_columns_right(s, generation));
}

static void wait_body(void *user, int64_t rank) {
  (void)rank;
  rows_to_columns *s = user;
  rank_result_set(&s->results[1], reshard_comm_barrier(s->comms[1]));
}

static bool is_waited_in(rs_team *team) {
  pthread_mutex_lock(&team->mutex);
  bool waited = team->arrived > 0;
  pthread_mutex_unlock(&team->mutex);
  return waited;
}

CASE(child_uses_local_communicators_or_finds_them_ended) {
  for (reshard_path path = RESHARD_PATH_DIRECT; path <= RESHARD_PATH_PACKED; path++) {
    rows_to_columns idle, waiting, made;
    rows_to_columns_open(&idle, 4, 0, path, NULL);
    rows_to_columns_open(&waiting, 3, 0, path, NULL);
    rows_to_columns_must_create(&idle);
    rows_to_columns_must_create(&waiting);
    rows_to_columns_must_execute(&idle);
    rank_thread *thread = rank_thread_start(wait_body, &waiting);
    while (!is_waited_in(rs_team_of(waiting.comms[0])))
      test_sleep_ms(1);
    assert_int_equal(waiting.comms[2]->ops->threads->enter(waiting.comms[2]), RESHARD_SUCCESS);
    pid_t child = start_child();
    if (child == 0) {
      execute_in_child(&idle, 77);
      reshard_comm sub = NULL;
      CHILD_CHECK(reshard_comm_barrier(waiting.comms[0]) == RESHARD_ERROR_PEER);
      CHILD_CHECK(strstr(reshard_last_error(), "forked") != NULL);
      CHILD_CHECK(reshard_comm_split(waiting.comms[1], 0, 0, &sub) == RESHARD_ERROR_PEER);
      rows_to_columns_close(&waiting);
      rows_to_columns_close(&idle);
      rows_to_columns_open(&made, 4, 0, path, NULL);
      rows_to_columns_create(&made);
      execute_in_child(&made, 78);
      rows_to_columns_close(&made);
      _exit(0);
    }
    assert_true(child_is_good(child));
    waiting.comms[2]->ops->threads->leave(waiting.comms[2]);
    rows_to_columns_must_execute(&idle);
    assert_int_equal(reshard_comm_abort(waiting.comms[0]), RESHARD_SUCCESS);
    rank_thread_join(thread);
    assert_int_equal(waiting.results[1].status, RESHARD_ERROR_PEER);
    rows_to_columns_close(&waiting);
    rows_to_columns_close(&idle);
  }
}

/* Of two ranks one waits, or one is in the middle of an execute, or has been, on a communicator that was aborted. */
enum { WAITS, READS, ABORTED, BUSY_WAYS };

CASE(test_busy_ranks) {
  for (int way = 0; way < BUSY_WAYS; way++) {
    rows_to_columns s;
    rank_thread *thread = NULL;
    rows_to_columns_open(&s, 3, 0, RESHARD_PATH_DIRECT, NULL);
    if (way == WAITS) {
      thread = rank_thread_start(wait_body, &s);
      while (!is_waited_in(rs_team_of(s.comms[0])))
        test_sleep_ms(1);
    } else {
      assert_int_equal(s.comms[2]->ops->threads->enter(s.comms[2]), RESHARD_SUCCESS);
    }
    if (way == ABORTED)
      assert_int_equal(reshard_comm_abort(s.comms[0]), RESHARD_SUCCESS);
    pid_t child = start_child();
    if (child == 0) {
      CHILD_CHECK(reshard_comm_barrier(s.comms[0]) == RESHARD_ERROR_PEER);
      CHILD_CHECK(strstr(reshard_last_error(), way == ABORTED ? "rank 0 aborted" : "forked") != NULL);
      rows_to_columns_close(&s);
      _exit(0);
    }
    assert_true(child_is_good(child));
    if (way != WAITS)
      s.comms[2]->ops->threads->leave(s.comms[2]);
    reshard_comm_abort(s.comms[0]);
    if (thread != NULL)
      rank_thread_join(thread);
    rows_to_columns_close(&s);
  }
}

/* A rank of the parent waits in a shrink, to which it does not come in the child. */
static void shrink_body(void *user, int64_t rank) {
  reshard_comm *comms = user;
  (void)reshard_comm_shrink(comms[rank], 1, (int64_t[]){2}, &comms[3]);
}

static int64_t ranks_in_shrink(rs_team *team) {
  pthread_mutex_lock(&team->mutex);
  int64_t came = team->shrink.came;
  pthread_mutex_unlock(&team->mutex);
  return came;
}

CASE(child_has_shrunk_communicators_too) {
  reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, 0, NULL, 0};
  reshard_comm comms[4] = {NULL}, sub = NULL; /* the last is rank 0's new one */
  assert_int_equal(reshard_comm_create_local(3, &options, comms), RESHARD_SUCCESS);
  rank_thread *thread = rank_thread_start(shrink_body, comms);
  while (ranks_in_shrink(rs_team_of(comms[0])) == 0)
    test_sleep_ms(1);
  pid_t child = start_child();
  if (child == 0) {
    CHILD_CHECK(reshard_comm_shrink(comms[1], 2, (int64_t[]){0, 2}, &sub) == RESHARD_SUCCESS);
    CHILD_CHECK(reshard_comm_barrier(sub) == RESHARD_SUCCESS);
    reshard_comm_destroy(sub);
    rank_comms_close(3, comms);
    _exit(0);
  }
  assert_true(child_is_good(child));
  assert_int_equal(reshard_comm_shrink(comms[1], 1, (int64_t[]){2}, &sub), RESHARD_SUCCESS);
  rank_thread_join(thread);
  assert_non_null(comms[3]);
  reshard_comm_destroy(sub);
  rank_comms_close(4, comms);
}

/* --- Sharders of processes ---------------------------------------------------------------------------------------- */

enum { FORKED = 2, SIDE = 8 };

static reshard_status move_rows(reshard_sharder sharder, const reshard_layout layouts[2], reshard_sharded_tensor *t) {
  const reshard_properties properties = {.dtype = RESHARD_F32};
  reshard_status status =
      *t != NULL ? RESHARD_SUCCESS : reshard_sharded_tensor_zeros(sharder, layouts[0], &properties, NULL, t);
  for (int i = 1; i >= 0 && status == RESHARD_SUCCESS; i--)
    status = reshard_sharded_tensor_reshard(1, t, &layouts[i], NULL);
  return status;
}

#define FORKED_AWAY(call) \
  CHILD_CHECK((call) == RESHARD_ERROR_PEER && strstr(reshard_last_error(), "is the process that was forked") != NULL)
/* A call that begins for its rank has a number, which its error names. These begin nothing in the child. */
#define NOT_BEGUN(call) \
  do { \
    FORKED_AWAY(call); \
    CHILD_CHECK(strstr(reshard_last_error(), ", call ") == NULL); \
  } while (0)

/* A child has the rank's sharder, with a plan that is kept and one that was never asked for. */
static void fork_sharder(processes *all, int64_t rank, void *user) {
  const reshard_sharder_options *options = user;
  const int64_t shape[] = {SIDE, SIDE};
  reshard_comm comm;
  reshard_sharder sharder, made = NULL;
  reshard_layout layouts[2];
  reshard_sharded_tensor rows = NULL, more = NULL;
  reshard_tensor whole = NULL;
  CHILD_CHECK(processes_comm(all, rank, NULL, 60000, &comm) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_sharder_create(comm, options, &sharder) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_layout_parse("chunk(0)", 2, shape, FORKED, &layouts[0]) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_layout_parse("chunk(1)", 2, shape, FORKED, &layouts[1]) == RESHARD_SUCCESS);
  CHILD_CHECK(move_rows(sharder, layouts, &rows) == RESHARD_SUCCESS);
  pid_t child = fork();
  if (child == 0) {
    reshard_layout one;
    NOT_BEGUN(move_rows(sharder, layouts, &rows));
    NOT_BEGUN(move_rows(sharder, layouts, &more)); /* zeros are this process's */
    CHILD_CHECK(reshard_layout_parse("rank(1)", 2, shape, FORKED, &one) == RESHARD_SUCCESS);
    NOT_BEGUN(reshard_sharded_tensor_reshard(1, &rows, &one, NULL));
    CHILD_CHECK(reshard_tensor_create(RESHARD_F32, 2, shape, &whole) == RESHARD_SUCCESS);
    NOT_BEGUN(reshard_sharded_tensor_gather(rows, 0, rank == 0 ? whole : NULL, NULL));
    FORKED_AWAY(reshard_sharder_create(comm, options, &made));
    CHILD_CHECK(made == NULL);
    reshard_tensor_release(whole);
    reshard_layout_release(one);
    reshard_sharded_tensor_release(rows);
    reshard_sharded_tensor_release(more);
    reshard_sharder_destroy(sharder);
    reshard_comm_destroy(comm);
    _exit(0);
  }
  CHILD_CHECK(child_is_good(child));
  CHILD_CHECK(move_rows(sharder, layouts, &rows) == RESHARD_SUCCESS); /* which notices nothing */
  reshard_sharded_tensor_release(rows);
  reshard_layout_release(layouts[0]);
  reshard_layout_release(layouts[1]);
  reshard_sharder_destroy(sharder);
  reshard_comm_destroy(comm);
}

CASE(child_finds_sharders_of_processes_ended_and_destroys_them) {
  for (reshard_path path = RESHARD_PATH_AUTO; path <= RESHARD_PATH_PACKED; path++) {
    reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = path};
    assert_int_equal(processes_run(FORKED, 0, fork_sharder, &options), 0);
  }
}

RUN_CASES_IF(!SKIPPED, "ThreadSanitizer refuses threads of a child process")
