/* A program that hangs is asked: which rank is where, and which one is behind. */
#include "comm/comm.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/processes/processes.h"
#include "support/reshards/rows_to_columns.h"

#include <reshard/reshard.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, DEADLINE = 60000 };

static reshard_comm comms[RANKS];
static char text[1 << 20];

static const char *report(reshard_comm comm, int64_t last) {
  size_t needed = 0;
  assert_int_equal(reshard_comm_report(comm, last, text, sizeof text, &needed), RESHARD_SUCCESS);
  assert_int_equal(needed, strlen(text) + 1);
  return text;
}

static void assert_part(const char *part) {
  if (strstr(text, part) == NULL)
    fail_msg("'%s' is not in\n%s", part, text);
}

static void wait_for_part(reshard_comm comm, const char *part) {
  for (int i = 0; strstr(report(comm, 0), part) == NULL && i < 60000; i++)
    test_sleep_ms(1);
  assert_part(part);
}

/* All make the same calls, but one of them makes one call less. */
typedef struct behind_case {
  int64_t slow, before;
  atomic_bool go;
} behind_case;

static void behind_body(void *user, int64_t rank) {
  behind_case *c = user;
  for (int64_t i = 0; i < c->before; i++)
    reshard_comm_barrier(comms[rank]);
  while (rank == c->slow && !atomic_load(&c->go))
    test_sleep_ms(1);
  reshard_comm_barrier(comms[rank]);
}

static void run_behind(void *user, int64_t rank) { rank_threads_run(RANKS, behind_body, user); }

CASE(rank_that_is_behind_is_named) {
  for (int64_t slow = 0; slow < RANKS; slow++) {
    behind_case c = {slow, 3 + 40 * slow, false};
    char part[128];
    rank_comms_open(RANKS, 1, DEADLINE, comms);
    rank_thread *thread = rank_thread_start(run_behind, &c);
    for (int r = 0; r < RANKS; r++) {
      if (r == slow)
        snprintf(part, sizeof part, "rank %d: out of reshard_comm_barrier, call %d: done ", r, (int)c.before);
      else
        snprintf(part, sizeof part, "rank %d: in reshard_comm_barrier, call %d: all-gather, step 1, 0 bytes, since ", r,
                 (int)c.before + 1);
      wait_for_part(comms[(r + 1) % RANKS], part);
    }
    snprintf(part, sizeof part, "waits for rank %d\n", (int)slow);
    assert_part(part);
    snprintf(part, sizeof part, "behind: rank %d, at call %d of %d\n", (int)slow, (int)c.before, (int)c.before + 1);
    assert_part(part);
    assert_int_equal(strncmp(text, "local, 4 ranks\nrank 0: ", 23), 0);
    atomic_store(&c.go, true);
    rank_thread_join(thread);
    assert_null(strstr(report(comms[0], 0), "behind"));
    rank_comms_close(RANKS, comms);
  }
}

/* --- Calls that are kept ------------------------------------------------------------------------------------------ */

/* A call that has ended is not open, however often it is told so. */
CASE(test_ended_twice) {
  static rs_calls calls;
  rs_call *call = rs_call_begin(&calls, "reshard_execute", 0, 0);
  assert_true(rs_calls_open(&calls));
  for (int i = 0; i < 2; i++) {
    rs_call_end(&calls, call, RESHARD_SUCCESS, 1);
    assert_false(rs_calls_open(&calls));
    assert_int_equal(rs_calls_made(&calls), 1);
  }
}

static int count_parts(const char *part) {
  int n = 0;
  for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part))
    n++;
  return n;
}

static void loop_body(void *user, int64_t rank) {
  for (int64_t i = 0; i < *(int64_t *)user; i++)
    reshard_comm_barrier(comms[rank]);
}

CASE(test_last_calls) {
  rank_comms_open(RANKS, 1, DEADLINE, comms);
  report(comms[2], 10);
  assert_string_equal(text, "local, 4 ranks\nrank 0: no call yet\nrank 1: no call yet\nrank 2: no call yet\n"
                            "rank 3: no call yet\n");
  int64_t calls = 3;
  rank_threads_run(RANKS, loop_body, &calls);
  report(comms[0], 2);
  assert_int_equal(count_parts("  call 3, reshard_comm_barrier: 0 bytes, 1 step, took "), RANKS);
  assert_int_equal(count_parts("  call "), 2 * RANKS);
  calls = 200;
  rank_threads_run(RANKS, loop_body, &calls);
  report(comms[0], 1000);
  assert_int_equal(count_parts("  call "), 64 * RANKS); /* the last ones */
  assert_int_equal(count_parts("  call 203,"), RANKS);
  assert_int_equal(count_parts("  call 140,"), RANKS);
  size_t needed, whole = strlen(text) + 1;
  assert_int_equal(reshard_comm_report(comms[0], 1000, NULL, 0, &needed), RESHARD_ERROR_INVALID);
  assert_true(needed > whole / 2 && needed < 2 * whole); /* times have other numbers of digits */
  assert_int_equal(reshard_comm_report(comms[0], -1, text, sizeof text, &needed), RESHARD_ERROR_INVALID);
  rank_comms_close(RANKS, comms);
}

/* Transfers and their rounds, and the communicators of a split. */
static void split_body(void *user, int64_t rank) {
  reshard_comm *subs = user;
  if (reshard_comm_split(comms[rank], rank % 2, 0, &subs[rank]) == RESHARD_SUCCESS)
    reshard_comm_barrier(subs[rank]);
}

CASE(any_part_tells_of_all) {
  reshard_comm subs[RANKS] = {NULL};
  rank_comms_open(RANKS, 1, DEADLINE, comms);
  rank_threads_run(RANKS, split_body, subs);
  report(subs[3], 0); /* any of them tells of all */
  assert_part("local, 4 ranks\n");
  assert_part("local, 2 ranks, global ranks [0,2]\n");
  assert_part("local, 2 ranks, global ranks [1,3]\n");
  assert_int_equal(count_parts(": out of reshard_comm_split, call 1: done "), RANKS);
  assert_int_equal(count_parts(": out of reshard_comm_barrier, call 1: done "), RANKS);
  rank_comms_close(RANKS, comms); /* those that are left tell of themselves */
  report(subs[1], 0);
  assert_null(strstr(text, "4 ranks"));
  assert_int_equal(count_parts("rank "), RANKS);
  rank_comms_close(RANKS, subs);
}

CASE(steps_of_transfers_are_told) {
  static const char *const calls[] = {"reshard_transfer_create", "reshard_execute"};
  rows_to_columns s;
  rows_to_columns_open(&s, RANKS, DEADLINE, RESHARD_PATH_PACKED, NULL);
  rows_to_columns_create(&s);
  rows_to_columns_assert_all(&s, RESHARD_SUCCESS, NULL);
  rows_to_columns_execute(&s);
  report(s.comms[0], 64);
  for (int i = 0; i < 2; i++) {
    char part[96];
    snprintf(part, sizeof part, "  call %d, %s: %lld bytes, ", i + 1, calls[i],
             (long long)MATRIX_ROWS * MATRIX_COLUMNS * 4);
    if (count_parts(part) != RANKS)
      fail_msg("'%s' is not there for each rank:\n%s", part, text);
  }
  char call[RS_CALL_TEXT];
  assert_string_equal(rs_call_text(s.comms[1], call), "reshard_execute, call 2, round 0");
  rows_to_columns_close(&s);
}

/* Ranks that are processes have nobody beside them who is in the exchange for them: it is a step of their own. */
static void exchange_body(processes *all, int64_t rank, void *user) {
  const int64_t n = 64;
  char src[64] = {0}, dst[64];
  reshard_comm comm;
  reshard_entry entry = {RESHARD_ENTRY_INIT, .dtype = RESHARD_U8};
  reshard_plan plan;
  reshard_transfer transfer;
  const reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){src}, (void *[]){dst}, NULL, NULL,
                                 rank == 0,           rank == 1};
  const reshard_transfer_options options = {.size = RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_PACKED};
  CHILD_CHECK(processes_comm(all, rank, NULL, DEADLINE, &comm) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_layout_parse("rank(0)", 1, &n, 2, &entry.src) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_layout_parse("rank(1)", 1, &n, 2, &entry.dst) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_plan_create(1, &entry, rank, NULL, &plan) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_transfer_create(plan, comm, &arrays, &options, &transfer) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_execute(transfer, NULL) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_comm_report(comm, 1, text, sizeof text, NULL) == RESHARD_SUCCESS);
  CHILD_CHECK(strstr(text, ", reshard_execute: 64 bytes, 1 step, ") != NULL);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(entry.src);
  reshard_layout_release(entry.dst);
  reshard_comm_destroy(comm);
}

CASE(exchanges_of_processes_are_steps) { assert_int_equal(processes_run(2, 0, exchange_body, NULL), 0); }

/* One rank that is alone: an execute of `columns` bytes, some times. */
static void execute_alone(reshard_comm comm, int64_t columns, int times) {
  char *src = calloc(1, (size_t)columns), *dst = calloc(1, (size_t)columns);
  reshard_layout layout = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  assert_int_equal(reshard_layout_parse("chunk(0)", 1, &columns, 1, &layout), RESHARD_SUCCESS);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = layout, .dst = layout, .dtype = RESHARD_U8};
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){src}, (void *[]){dst}, NULL, NULL, 0, 0};
  assert_int_equal(reshard_plan_create(1, &entry, 0, NULL, &plan), RESHARD_SUCCESS);
  assert_int_equal(reshard_transfer_create(plan, comm, &arrays, NULL, &transfer), RESHARD_SUCCESS);
  for (int i = 0; i < times; i++)
    assert_int_equal(reshard_execute(transfer, NULL), RESHARD_SUCCESS);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(layout);
  free(src);
  free(dst);
}

/* The clock is not read for a call that takes no longer than that; the others have their times, also in its place. */
CASE(calls_that_are_short_read_no_clock) {
  reshard_comm comm;
  assert_int_equal(reshard_comm_create_local(1, NULL, &comm), RESHARD_SUCCESS);
  execute_alone(comm, 65536, 1);
  execute_alone(comm, 65535, 1);
  report(comm, 64);
  assert_part("rank 0: out of reshard_execute, call 4: done\n");
  assert_part("  call 4, reshard_execute: 65535 bytes, 0 steps, done\n");
  assert_part("  call 3, reshard_transfer_create: 65535 bytes, ");
  assert_part("  call 2, reshard_execute: 65536 bytes, 0 steps, took ");
  assert_int_equal(count_parts("took "), 3);
  assert_int_equal(count_parts(" ms ago"), 3);
  execute_alone(comm, 65536, 64);
  report(comm, 64);
  assert_int_equal(count_parts("  call "), 64);
  assert_int_equal(count_parts("  call 69, reshard_execute: 65536 bytes, 0 steps, took "), 1);
  assert_int_equal(count_parts(" ms ago"), 65); /* the first line too */
  execute_alone(comm, 10, 70);
  assert_int_equal(count_parts(" ms ago"), 65);
  report(comm, 64);
  assert_int_equal(count_parts("  call "), 64);
  assert_null(strstr(text, " ms ago"));
  reshard_comm_destroy(comm);
}

/* The call that a rank is in takes the place of the oldest one. */
CASE(test_open_call) {
  behind_case c = {0, 100, false};
  rank_comms_open(RANKS, 1, DEADLINE, comms);
  rank_thread *thread = rank_thread_start(run_behind, &c);
  wait_for_part(comms[0], "waits for rank 0\nbehind: rank 0, at call 100 of 101\n");
  report(comms[0], 64);
  assert_int_equal(count_parts("  call 38,"), RANKS);
  assert_int_equal(count_parts("  call 37,"), 1); /* of the one that is out */
  atomic_store(&c.go, true);
  rank_thread_join(thread);
  rank_comms_close(RANKS, comms);
}

/* A report at any moment, while others call, fail and destroy. */
static void asking_body(void *user, int64_t rank) {
  static char mine[1 << 16];
  size_t needed;
  while (!atomic_load((atomic_bool *)user))
    if (reshard_comm_report(comms[0], 64, mine, sizeof mine, &needed) != RESHARD_SUCCESS)
      abort();
}

static void churn_body(void *user, int64_t rank) {
  for (int64_t i = 0; i < *(int64_t *)user; i++) {
    reshard_comm sub = NULL;
    if (reshard_comm_split(comms[rank], rank < 2 ? 0 : -1, 0, &sub) == RESHARD_SUCCESS && sub != NULL)
      reshard_comm_barrier(sub);
    reshard_comm_destroy(sub);
  }
}

CASE(test_any_time) {
  atomic_bool over = false;
  int64_t times = test_scaled(50, 1);
  rank_comms_open(RANKS, 1, DEADLINE, comms);
  rank_thread *thread = rank_thread_start(asking_body, &over);
  rank_threads_run(RANKS, churn_body, &times);
  atomic_store(&over, true);
  rank_thread_join(thread);
  rank_comms_close(RANKS, comms);
}

RUN_CASES
