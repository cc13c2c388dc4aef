/* Threads of ranks that are cancelled in a collective call: where they may end, and what waits for them or for which
 * they wait. test_after_error.c has whole calls, at any moment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "comm/local/local.h"
#include "support/fixtures/rank_threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { N = 3, PATIENCE = 60000 };

static reshard_comm comms[N];
static atomic_int stage;

/* A rank's thread, which may be cancelled: `at_end` is its value when it ends, in whatever way. */
typedef struct rank_call {
  int64_t rank, value, at_end;
  rank_thread thread;
  bool returned;
  rank_result result;
} rank_call;
static rank_call calls[N];

static void open_comms(int64_t n, int64_t timeout_ms) {
  rank_comms_open(n, 1, timeout_ms, comms);
  memset(calls, 0, sizeof calls);
  atomic_store(&stage, 0);
}

static void note_end(void *user) { ((rank_call *)user)->at_end = ((rank_call *)user)->value; }

static void start(int64_t rank, void (*main)(void *user, int64_t rank)) {
  calls[rank].rank = rank;
  rank_thread_create(&calls[rank].thread, main, &calls[rank], rank);
}

#define THREAD(name, body) \
  static void name(void *user, int64_t rank) { \
    rank_call *c = user; \
    (void)rank; \
    pthread_cleanup_push(note_end, c); \
    rank_result_set(&c->result, body(c)); \
    c->returned = true; \
    pthread_cleanup_pop(1); \
  }

static bool join(int64_t rank) { return !rank_thread_end(&calls[rank].thread); }

static void await_stage(int wanted) {
  while (atomic_load(&stage) < wanted)
    test_sleep_ms(1);
}

static reshard_status barrier(rank_call *c) { return reshard_comm_barrier(comms[c->rank]); }
THREAD(barrier_main, barrier)

/* In its wait, without a deadline and with one: the others hear who it was, at once. */
static void test_waiting(void **state) {
  (void)state;
  for (int64_t timeout_ms = 0; timeout_ms <= PATIENCE; timeout_ms += PATIENCE)
    for (int64_t victim = 0; victim < 2; victim++) {
      open_comms(N, timeout_ms);
      for (int64_t r = 0; r < 2; r++)
        start(r, barrier_main);
      rank_comms_await(comms[0], 2);
      pthread_cancel(calls[victim].thread.thread);
      assert_true(join(victim));
      assert_false(join(1 - victim));
      assert_int_equal(calls[1 - victim].result.status, RESHARD_ERROR_PEER);
      char text[64];
      snprintf(text, sizeof text, "the thread of rank %d was cancelled", (int)victim);
      assert_non_null(strstr(calls[1 - victim].result.text, text));
      assert_int_equal(reshard_comm_abort(comms[2]),
                       RESHARD_SUCCESS); /* it has ended already: the first reason counts */
      assert_int_equal(reshard_comm_barrier(comms[2]), RESHARD_ERROR_PEER);
      assert_non_null(strstr(reshard_last_error(), text));
      for (int64_t r = 0; r < N; r++)
        reshard_comm_destroy(comms[r]);
    }
}

/* Before it waits: a thread that is cancelled already does not come to the meeting. */
static reshard_status cancelled_before(rank_call *c) {
  await_stage(1);
  return reshard_comm_barrier(comms[c->rank]);
}
static reshard_status not_cancellable(rank_call *c) {
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  atomic_store(&stage, 2);
  return cancelled_before(c);
}
static reshard_status disabled_until_called(rank_call *c) {
  int before;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  await_stage(1);
  pthread_setcancelstate(before, NULL);
  return reshard_comm_barrier(comms[c->rank]);
}
THREAD(not_cancellable_main, not_cancellable)
THREAD(disabled_main, disabled_until_called)

static void test_before(void **state) {
  (void)state;
  open_comms(2, 0);
  start(0, disabled_main);
  pthread_cancel(calls[0].thread.thread);
  atomic_store(&stage, 1);
  assert_int_equal(reshard_comm_barrier(comms[1]), RESHARD_ERROR_PEER);
  assert_true(join(0));
  reshard_comm_destroy(comms[0]);
  reshard_comm_destroy(comms[1]);

  open_comms(2, 0); /* a thread that cannot be cancelled is not */
  start(0, not_cancellable_main);
  await_stage(2);
  pthread_cancel(calls[0].thread.thread);
  assert_int_equal(reshard_comm_barrier(comms[1]), RESHARD_SUCCESS);
  (void)join(0);
  assert_true(calls[0].returned);
  assert_int_equal(calls[0].result.status, RESHARD_SUCCESS);
  reshard_comm_destroy(comms[0]);
  reshard_comm_destroy(comms[1]);
}

/* While one acts for all: the memory of the one that is cancelled is used until the meeting is over. */
static reshard_status slow(int64_t n, void **all) {
  atomic_store(&stage, 1);
  await_stage(2);
  test_sleep_ms(100);
  for (int64_t r = 0; r < n; r++)
    *(int64_t *)all[r] = 77;
  return RESHARD_SUCCESS;
}
static reshard_status meet_slowly(rank_call *c) {
  return comms[c->rank]->ops->together(comms[c->rank], slow, &c->value);
}
THREAD(slow_main, meet_slowly)

static void test_running(void **state) {
  (void)state;
  for (int64_t victim = 0; victim < 2; victim++) { /* who waits, who acts */
    open_comms(2, 0);
    start(0, slow_main);
    rank_comms_await(comms[0], 1);
    start(1, slow_main);
    await_stage(1);
    pthread_cancel(calls[victim].thread.thread);
    atomic_store(&stage, 2);
    bool cancelled = join(victim);
    assert_int_equal(calls[victim].at_end, 77);
    assert_false(join(1 - victim));
    assert_int_equal(calls[1 - victim].result.status, RESHARD_SUCCESS); /* the meeting was held */
    assert_true(calls[1 - victim].value == 77);
    assert_true(victim == 1 || cancelled);
    assert_int_equal(reshard_comm_abort(comms[0]), RESHARD_SUCCESS);
    reshard_comm_destroy(comms[0]);
    reshard_comm_destroy(comms[1]);
  }
}

/* Rank 0 reads what rank 1 has shown, who waits for it in a meeting. Neither ends before it has read. */
static reshard_status read_other(rank_call *c) {
  reshard_comm comm = comms[c->rank];
  reshard_status status = comm->ops->enter(comm);
  if (status != RESHARD_SUCCESS)
    return status;
  atomic_store(&stage, 1);
  await_stage(2);
  test_sleep_ms(100); /* a place to be cancelled in, elsewhere */
  c->value = calls[1].value;
  comm->ops->leave(comm);
  return comm->ops->together(comm, slow, &c->value);
}
static void forget_mine(void *user) { ((rank_call *)user)->value = 6; }
static void show_main(void *user, int64_t rank) {
  (void)rank;
  pthread_cleanup_push(forget_mine, user);
  rank_call *c = user;
  c->value = 5;
  rank_result_set(&c->result, meet_slowly(c));
  pthread_cleanup_pop(1);
}
THREAD(read_main, read_other)

static void test_reading(void **state) {
  (void)state;
  for (int64_t victim = 0; victim < 2; victim++) {
    open_comms(2, 0);
    start(1, show_main);
    rank_comms_await(comms[0], 1);
    start(0, read_main);
    await_stage(1);
    pthread_cancel(calls[victim].thread.thread);
    atomic_store(&stage, 2);
    assert_true(join(victim));
    assert_false(join(1 - victim));
    assert_int_equal(calls[0].at_end, 5); /* it had read before the other's memory was gone */
    assert_int_equal(calls[1 - victim].result.status, RESHARD_ERROR_PEER);
    assert_int_equal(rs_team_of(comms[0])->readers, 0);
    reshard_comm_destroy(comms[0]);
    reshard_comm_destroy(comms[1]);
  }
}

/* The caller of copy threads waits for them: they use its job. */
static rs_threads *pool;

static void slow_tasks(const void *job, rs_claim *claim) {
  while (rs_threads_next(claim) >= 0) {
    atomic_fetch_add(&stage, 1);
    await_stage(2); /* each has a thread of its own */
    if (claim->thread != 0)
      test_sleep_ms(100);
    atomic_fetch_add((atomic_llong *)job, 1);
  }
}

static void job_main(void *user, int64_t rank) {
  (void)rank;
  rank_call *c = user;
  atomic_llong done;
  atomic_init(&done, 0);
  pthread_cleanup_push(note_end, c);
  rs_threads_run(pool, 2, slow_tasks, &done);
  c->value = atomic_load(&done);
  pthread_testcancel();
  pthread_cleanup_pop(1);
}

static void test_copy_threads(void **state) {
  (void)state;
  assert_int_equal(rs_threads_create(2, &pool), RESHARD_SUCCESS);
  for (int i = 0; i < 3; i++) { /* the pool is as good afterwards */
    atomic_store(&stage, 0);
    memset(calls, 0, sizeof calls);
    start(0, job_main);
    await_stage(2);
    test_sleep_ms(20); /* it waits for the helper now */
    pthread_cancel(calls[0].thread.thread);
    assert_true(join(0));
    assert_int_equal(calls[0].at_end, 2);
  }
  rs_threads_destroy(pool);
}

/* Communicators that were split from it end with it, as in an abort. */
static reshard_comm subs[2];

static reshard_status split_and_wait(rank_call *c) {
  reshard_status status = reshard_comm_split(comms[c->rank], 0, 0, &subs[c->rank]);
  atomic_fetch_add(&stage, 1);
  if (status == RESHARD_SUCCESS)
    status = c->rank == 0 ? reshard_comm_barrier(comms[0]) : reshard_comm_barrier(subs[1]);
  return status;
}
THREAD(split_main, split_and_wait)

static void test_children(void **state) {
  (void)state;
  open_comms(2, 0);
  start(0, split_main);
  start(1, split_main);
  await_stage(2);
  rank_comms_await(comms[0], 1);
  pthread_cancel(calls[0].thread.thread);
  assert_true(join(0));
  assert_false(join(1));
  assert_int_equal(calls[1].result.status, RESHARD_ERROR_PEER);
  for (int64_t r = 0; r < 2; r++) {
    reshard_comm_destroy(comms[r]);
    reshard_comm_destroy(subs[r]);
  }
}

/* A deadline that is further away than clocks count. */
static void test_far_deadline(void **state) {
  (void)state;
  static const int64_t far[] = {INT64_MAX, 9300000000000, INT64_MAX - 999};
  for (int i = 0; i < 3; i++) {
    open_comms(2, far[i]);
    start(0, barrier_main);
    rank_comms_await(comms[0], 1);
    test_sleep_ms(20);
    assert_int_equal(reshard_comm_barrier(comms[1]), RESHARD_SUCCESS);
    assert_false(join(0));
    assert_int_equal(calls[0].result.status, RESHARD_SUCCESS);
    reshard_comm_destroy(comms[0]);
    reshard_comm_destroy(comms[1]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_waiting),      cmocka_unit_test(test_before),       cmocka_unit_test(test_running),
      cmocka_unit_test(test_reading),      cmocka_unit_test(test_copy_threads), cmocka_unit_test(test_children),
      cmocka_unit_test(test_far_deadline),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
