/* Execute: who may call what when; ranks that abort, come too late, or never; transfers side by side. */
#include "base/base.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scale.h"
#include "support/reshards/rows_to_columns.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE = 60000 };

static const reshard_path paths[2] = {RESHARD_PATH_DIRECT, RESHARD_PATH_PACKED};

static void only_rank_0(void *user, int64_t r) {
  rows_to_columns *s = user;
  rank_result_set(&s->results[r], reshard_execute(s->transfers[r], NULL));
}

/* While rank 0 waits in execute, its transfer is busy for everybody else, and what waits is not disturbed. */
CASE(transfer_that_executes_is_busy_for_others) {
  for (int p = 0; p < 2; p++) {
    rows_to_columns s;
    rows_to_columns_open(&s, 2, PATIENCE, paths[p], NULL);
    rows_to_columns_must_create(&s);
    rows_to_columns_fill(&s, 5);
    rank_thread *waiting = rank_thread_start(only_rank_0, &s);
    rank_comms_await(s.comms[0], 1);
    for (int again = 0; again < 2; again++) {
      assert_int_equal(reshard_execute(s.transfers[0], NULL), RESHARD_ERROR_BUSY);
      assert_text_has(reshard_last_error(), "executing");
      assert_int_equal(reshard_transfer_rebind(s.transfers[0], &s.arrays[0]), RESHARD_ERROR_BUSY);
      assert_int_equal(reshard_execute_all(2, s.transfers, NULL), RESHARD_ERROR_BUSY);
      assert_text_has(reshard_last_error(), "transfer 0 is executing");
      assert_int_equal(reshard_execute_all(2, (reshard_transfer[]){s.transfers[1], s.transfers[0]}, NULL),
                       RESHARD_ERROR_BUSY);
      assert_text_has(reshard_last_error(), "transfer 1 is executing");
      assert_int_equal(reshard_comm_barrier(s.comms[0]), RESHARD_ERROR_BUSY);
    }
    assert_true(rows_to_columns_untouched(&s));  /* rank 1 was not there */
    GOOD(reshard_execute(s.transfers[1], NULL)); /* and was not marked busy */
    rank_thread_join(waiting);
    assert_int_equal(s.results[0].status, RESHARD_SUCCESS);
    assert_true(rows_to_columns_right(&s, 5));
    rows_to_columns_must_execute(&s);
    rows_to_columns_close(&s);
  }
}

static void execute_refused(int64_t n, const reshard_transfer *transfers, reshard_status status, const char *part) {
  assert_int_equal(reshard_execute_all(n, transfers, NULL), status);
  assert_text_has(reshard_last_error(), part);
}

CASE(test_execute_all) {
  for (int p = 0; p < 2; p++) {
    rows_to_columns s, other;
    rows_to_columns_open(&s, 3, PATIENCE, paths[p], NULL);
    rows_to_columns_open(&other, 3, PATIENCE, paths[p], NULL);
    rows_to_columns_must_create(&s);
    rows_to_columns_must_create(&other);
    reshard_transfer *t = s.transfers, *o = other.transfers;
    rows_to_columns_fill(&s, 1);
    rows_to_columns_fill(&other, 1);
    execute_refused(2, t, RESHARD_ERROR_INVALID, "2 transfers, this process has 3 ranks");
    execute_refused(1, t, RESHARD_ERROR_INVALID, "1 transfers, this process has 3 ranks");
    execute_refused(4, (reshard_transfer[]){t[0], t[1], t[2], o[0]}, RESHARD_ERROR_INVALID,
                    "4 transfers, this process has 3 ranks");
    execute_refused(4, (reshard_transfer[]){t[0], t[1], t[2], t[1]}, RESHARD_ERROR_INVALID,
                    "transfers 1 and 3 are the same");
    execute_refused(3, (reshard_transfer[]){t[0], t[1], t[1]}, RESHARD_ERROR_INVALID, "transfers 1 and 2 are the same");
    execute_refused(3, (reshard_transfer[]){t[0], t[1], NULL}, RESHARD_ERROR_INVALID, "transfer 2 is NULL");
    execute_refused(3, (reshard_transfer[]){NULL, t[1], t[2]}, RESHARD_ERROR_INVALID, "transfer 0 is NULL");
    execute_refused(3, (reshard_transfer[]){t[0], t[1], o[2]}, RESHARD_ERROR_INVALID,
                    "transfers 0 and 2 are on different communicators");
    execute_refused(3, (reshard_transfer[]){o[0], t[1], t[2]}, RESHARD_ERROR_INVALID,
                    "transfers 0 and 1 are on different communicators");
    execute_refused(-1, t, RESHARD_ERROR_INVALID, "-1 transfers");
    reshard_transfer first[3];
    memcpy(first, t, sizeof first);
    rows_to_columns_must_create(&s); /* another one on the same communicator */
    execute_refused(3, (reshard_transfer[]){first[0], t[1], first[2]}, RESHARD_ERROR_MISMATCH,
                    "ranks 0 and 1 execute different transfers");
    execute_refused(3, (reshard_transfer[]){t[0], t[1], first[1]}, RESHARD_ERROR_INVALID,
                    "of rank 1, as another one is");
    assert_true(rows_to_columns_untouched(&s) && rows_to_columns_untouched(&other));

    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (uint32_t i = 0; i < 6; i++) {
      reshard_transfer *list = i % 2 == 0 ? t : first;
      rows_to_columns_fill(&s, 10 + i);
      GOOD(reshard_execute_all(3, (reshard_transfer[]){list[orders[i][0]], list[orders[i][1]], list[orders[i][2]]},
                               NULL));
      assert_true(rows_to_columns_right(&s, 10 + i));
    }
    rows_to_columns_must_execute(&s);
    rows_to_columns_must_execute(&other);
    for (int r = 0; r < 3; r++)
      reshard_transfer_destroy(first[r]);
    rows_to_columns_close(&other);
    rows_to_columns_close(&s);
  }
}

/* The communicator counts the bytes that the plan announced, each time. */
CASE(communicator_counts_the_bytes_of_the_plan) {
  for (int p = 0; p < 2; p++)
    for (int limited = 0; limited < 2; limited++) {
      reshard_plan_options options = {
          .size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = limited ? 12288 : 0, .on_cpu = 1};
      rows_to_columns s;
      rows_to_columns_open(&s, 3, PATIENCE, paths[p], &options);
      rows_to_columns_must_create(&s);
      for (int64_t times = 1; times <= 6; times++) {
        if (times % 2 == 1)
          rows_to_columns_must_execute(&s);
        else
          GOOD(reshard_execute_all(3, s.transfers, NULL));
        for (int64_t r = 0; r < 3; r++) {
          reshard_comm_stats stats;
          reshard_plan_info info;
          GOOD(reshard_comm_get_stats(s.comms[r], &stats));
          GOOD(reshard_plan_get_info(s.plans[r], &info));
          assert_true(info.received_bytes > 0 && info.received_bytes == info.lower_bound_bytes);
          assert_int_equal(stats.received_bytes, times * info.received_bytes);
          assert_int_equal(stats.received_messages,
                           paths[p] == RESHARD_PATH_PACKED ? times * info.messages_received : 0);
        }
      }
      rows_to_columns_close(&s);
    }
}

/* Two transfers on two communicators with the same plans and sources, from threads of their own, again and again. */
typedef struct loop {
  rows_to_columns *s;
  int64_t times;
  bool all; /* by execute_all, on a thread where nothing can be asserted */
  bool wrong;
} loop;

static void loop_body(void *user, int64_t rank) {
  loop *l = user;
  for (int64_t i = 0; i < l->times; i++) {
    if (!l->all)
      rows_to_columns_must_execute(l->s);
    else {
      rows_to_columns_fill(l->s, (uint32_t)i);
      l->wrong |= reshard_execute_all(l->s->n, l->s->transfers, NULL) != RESHARD_SUCCESS ||
                  !rows_to_columns_right(l->s, (uint32_t)i);
    }
  }
}

CASE(test_side_by_side) {
  for (int p = 0; p < 4; p++) {
    rows_to_columns s[2];
    rows_to_columns_open(&s[0], 3, PATIENCE, paths[p / 2], NULL);
    rows_to_columns_open(&s[1], 3, PATIENCE, paths[p % 2], NULL);
    for (int64_t r = 0; r < 3; r++) { /* plans may be shared */
      reshard_plan_destroy(s[1].plans[r]);
      s[1].plans[r] = s[0].plans[r];
    }
    rows_to_columns_must_create(&s[0]);
    rows_to_columns_must_create(&s[1]);
    loop loops[2] = {{&s[0], test_scaled(60, 1), false, false}, {&s[1], test_scaled(200, 1), true, false}};
    rank_thread *other = rank_thread_start(loop_body, &loops[1]);
    loop_body(&loops[0], 0);
    rank_thread_join(other);
    assert_false(loops[1].wrong);
    rows_to_columns_destroy(&s[1]);
    for (int64_t r = 0; r < 3; r++)
      s[1].plans[r] = NULL;
    rows_to_columns_close(&s[1]);
    rows_to_columns_close(&s[0]);
  }
}

/* Many executes in a row without a barrier between: a source is filled again as soon as execute returns. */
typedef struct stream {
  rows_to_columns *s;
  int64_t times;
  atomic_bool wrong;
} stream;

static void stream_body(void *user, int64_t r) {
  stream *x = user;
  rows_to_columns *s = x->s;
  int64_t rows = MATRIX_ROWS / s->n, columns = MATRIX_COLUMNS / s->n; /* n divides both */
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t k = 0; k < x->times && status == RESHARD_SUCCESS; k++) {
    for (int64_t i = 0; i < rows * MATRIX_COLUMNS; i++)
      s->rows[r][i] = (uint32_t)(k * 1000 + r * rows * MATRIX_COLUMNS + i);
    status = reshard_execute(s->transfers[r], NULL);
    for (int64_t i = 0; i < MATRIX_ROWS; i++)
      for (int64_t j = 0; j < columns; j++)
        if (s->columns[r][i * columns + j] != (uint32_t)(k * 1000 + i * MATRIX_COLUMNS + r * columns + j))
          atomic_store(&x->wrong, true);
  }
  rank_result_set(&s->results[r], status);
}

CASE(test_in_a_row) {
  for (int p = 0; p < 2; p++)
    for (int64_t n = 1; n <= 4; n *= 2) {
      rows_to_columns s;
      rows_to_columns_open(&s, n, PATIENCE, paths[p], NULL);
      rows_to_columns_must_create(&s);
      stream x = {&s, test_scaled(1000, 1), false};
      rank_threads_run(n, stream_body, &x);
      rows_to_columns_assert_all(&s, RESHARD_SUCCESS, NULL);
      assert_false(atomic_load(&x.wrong));
      rows_to_columns_close(&s);
    }
}

/* Result of every rank's call once the communicator has ended. */
static void assert_ended(rows_to_columns *s) {
  reshard_transfer made = (reshard_transfer)s;
  for (int64_t r = 0; r < s->n; r++) {
    if (s->transfers[r] != NULL) {
      assert_int_equal(reshard_execute(s->transfers[r], NULL), RESHARD_ERROR_PEER);
      if (s->options[r].path == RESHARD_PATH_DIRECT)
        assert_int_equal(reshard_transfer_rebind(s->transfers[r], &s->arrays[r]), RESHARD_ERROR_PEER);
    }
    assert_int_equal(reshard_transfer_create(s->plans[r], s->comms[r], &s->arrays[r], &s->options[r], &made),
                     RESHARD_ERROR_PEER);
    assert_ptr_equal(made, (reshard_transfer)s);
    assert_int_equal(reshard_comm_barrier(s->comms[r]), RESHARD_ERROR_PEER);
  }
  if (s->transfers[0] != NULL)
    assert_int_equal(reshard_execute_all(s->n, s->transfers, NULL), RESHARD_ERROR_PEER);
}

/* Ranks 0 and 1 of three wait in a call when rank 2 aborts. */
typedef struct waiting {
  rows_to_columns *s;
  int call; /* 0 execute, 1 create, 2 rebind (direct path) */
} waiting;

static void waiting_body(void *user, int64_t r) {
  waiting *w = user;
  rows_to_columns *s = w->s;
  reshard_transfer made = NULL;
  reshard_status status;
  if (r == 2) {
    test_sleep_ms(20);
    status = reshard_comm_abort(s->comms[2]);
  } else if (w->call == 0)
    status = reshard_execute(s->transfers[r], NULL);
  else if (w->call == 1)
    status = reshard_transfer_create(s->plans[r], s->comms[r], &s->arrays[r], &s->options[r], &made);
  else
    status = reshard_transfer_rebind(s->transfers[r], &s->arrays[r]);
  rank_result_set(&s->results[r], status);
}

CASE(abort_in_an_execute_wakes_all) {
  for (int p = 0; p < 2; p++)
    for (int call = 0; call < (paths[p] == RESHARD_PATH_DIRECT ? 3 : 2); call++) {
      rows_to_columns s;
      rows_to_columns_open(&s, 3, PATIENCE, paths[p], NULL);
      rows_to_columns_must_create(&s);
      rows_to_columns_fill(&s, 2);
      waiting w = {&s, call};
      rank_threads_run(3, waiting_body, &w);
      for (int r = 0; r < 2; r++) {
        assert_int_equal(s.results[r].status, RESHARD_ERROR_PEER);
        assert_text_has(s.results[r].text, "aborted");
      }
      assert_int_equal(s.results[2].status, RESHARD_SUCCESS);
      assert_true(rows_to_columns_untouched(&s));
      assert_ended(&s);
      assert_true(rows_to_columns_untouched(&s));
      rows_to_columns_close(&s);
    }
}

/* Abort at any moment of a loop of creates, rebinds, executes and destroys. */
static void churn_body(void *user, int64_t r) {
  rows_to_columns *s = user;
  reshard_status status = RESHARD_SUCCESS;
  while (status == RESHARD_SUCCESS) {
    reshard_transfer t = NULL;
    status = reshard_transfer_create(s->plans[r], s->comms[r], &s->arrays[r], &s->options[r], &t);
    RS_THEN(status, reshard_transfer_rebind(t, &s->arrays[r]));
    RS_THEN(status, reshard_execute(t, NULL));
    reshard_transfer_destroy(t);
  }
  rank_result_set(&s->results[r], status);
}

static void abort_body(void *user, int64_t rank) {
  waiting *w = user;
  test_sleep_ms(w->call);
  reshard_comm_abort(w->s->comms[w->call % w->s->n]);
}

CASE(test_abort_any_time) {
  for (int64_t i = 0; i < test_scaled(60, 1); i++) {
    rows_to_columns s;
    rows_to_columns_open(&s, 1 + i % 4, PATIENCE, paths[i / 4 % 2], NULL);
    waiting w = {&s, (int)(i % 5)};
    rank_thread *aborter = rank_thread_start(abort_body, &w);
    rank_threads_run(s.n, churn_body, &s);
    rank_thread_join(aborter);
    rows_to_columns_assert_all(&s, RESHARD_ERROR_PEER, "aborted", NULL);
    rows_to_columns_close(&s);
  }
}

/* A rank that never comes: the one who waits gets TIMEOUT, after that there is nobody to talk to. */
CASE(rank_that_never_comes_is_a_timeout) {
  for (int p = 0; p < 2; p++)
    for (int call = 0; call < (paths[p] == RESHARD_PATH_DIRECT ? 3 : 2); call++) {
      rows_to_columns s;
      rows_to_columns_open(&s, 2, PATIENCE, paths[p], NULL);
      rows_to_columns_must_create(&s);
      rank_comms_limit(s.comms[0], 500);
      rows_to_columns_fill(&s, 2);
      reshard_transfer made = (reshard_transfer)&s;
      reshard_status status = call == 0 ? reshard_execute(s.transfers[1], NULL)
                              : call == 1
                                  ? reshard_transfer_create(s.plans[1], s.comms[1], &s.arrays[1], &s.options[1], &made)
                                  : reshard_transfer_rebind(s.transfers[1], &s.arrays[1]);
      assert_int_equal(status, RESHARD_ERROR_TIMEOUT);
      assert_text_has(reshard_last_error(), "1 of 2 ranks came within 500 ms");
      assert_ptr_equal(made, (reshard_transfer)&s);
      assert_ended(&s);
      assert_true(rows_to_columns_untouched(&s));
      rows_to_columns_close(&s);
    }
}

/* Deadlines so short that they pass anywhere, also while a peer reads what another rank showed. */
CASE(test_short_deadlines) {
  for (int64_t i = 0; i < test_scaled(60, 1); i++) {
    rows_to_columns s;
    rows_to_columns_open(&s, 2 + i % 3, 1, paths[i / 3 % 2], NULL);
    for (int64_t r = 0; r < s.n && i % 2 == 0; r++) /* some end by themselves only */
      s.options[r].path = RESHARD_PATH_DIRECT;
    waiting w = {&s, 30};
    rank_thread *aborter = rank_thread_start(abort_body, &w);
    rank_threads_run(s.n, churn_body, &s);
    rank_thread_join(aborter);
    for (int64_t r = 0; r < s.n; r++)
      assert_true(s.results[r].status == RESHARD_ERROR_PEER || s.results[r].status == RESHARD_ERROR_TIMEOUT);
    rows_to_columns_close(&s);
  }
}

/* Transfers and handles go rank by rank, in any order of the ranks. */
CASE(test_destroy_orders) {
  for (int p = 0; p < 2; p++)
    for (int order = 0; order < 6; order++)
      for (int handles_at_once = 0; handles_at_once < 2; handles_at_once++) {
        static const int64_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
        rows_to_columns s;
        rows_to_columns_open(&s, 3, PATIENCE, paths[p], NULL);
        rows_to_columns_must_create(&s);
        rows_to_columns_must_execute(&s);
        reshard_transfer second[3];
        memcpy(second, s.transfers, sizeof second);
        rows_to_columns_must_create(&s);
        rows_to_columns_must_execute(&s);
        for (int i = 0; i < 3; i++) {
          int64_t r = orders[order][i];
          reshard_transfer_destroy(i % 2 == 0 ? second[r] : s.transfers[r]);
          reshard_transfer_destroy(i % 2 == 0 ? s.transfers[r] : second[r]);
          s.transfers[r] = NULL;
          reshard_plan_destroy(s.plans[r]);
          s.plans[r] = NULL;
          if (handles_at_once) {
            reshard_comm_destroy(s.comms[r]);
            s.comms[r] = NULL;
          }
        }
        rows_to_columns_close(&s);
      }
}

RUN_CASES
