/* The local communicator: meetings, all-gathers, barriers, exchange and its counts; what happens when ranks do not make
 * the same calls, give up, or never come. */
#include "comm/comm.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <reshard/reshard.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, PATIENCE = 60000 /* a call that hangs fails after this many ms */, SHORT = 1000 };

static reshard_comm comms[MOST];
static rank_result results[MOST];

static void assert_all(int64_t n, reshard_status status, const char *part) {
  rank_results_assert(n, results, status, part, NULL);
}

CASE(wrong_options_are_refused) {
  const struct {
    int64_t n;
    reshard_local_options options;
    reshard_status status;
    const char *part;
  } wrong[] = {
      {0, {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, 0, NULL, 0}, RESHARD_ERROR_INVALID, "0 ranks"},
      {-3, {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, 0, NULL, 0}, RESHARD_ERROR_INVALID, "-3 ranks"},
      {INT64_MAX,
       {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, 0, NULL, 0},
       RESHARD_ERROR_OUT_OF_MEMORY,
       "out of memory"},
      {INT64_MAX / 512 + 1,
       {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, 0, NULL, 0},
       RESHARD_ERROR_OUT_OF_MEMORY,
       "out of memory"},
      {2, {0, 1, RESHARD_ISA_AUTO, 0, NULL, 0}, RESHARD_ERROR_INVALID, "size field 0"},
      {2, {RESHARD_LOCAL_OPTIONS_INIT + 8, 1, RESHARD_ISA_AUTO, 0, NULL, 0}, RESHARD_ERROR_INVALID, "size field"},
      {2, {RESHARD_LOCAL_OPTIONS_INIT, -1, RESHARD_ISA_AUTO, 0, NULL, 0}, RESHARD_ERROR_INVALID, "-1 threads"},
      {2, {RESHARD_LOCAL_OPTIONS_INIT, 5000, RESHARD_ISA_AUTO, 0, NULL, 0}, RESHARD_ERROR_INVALID, "5000 copy threads"},
      {2, {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, -7, NULL, 0}, RESHARD_ERROR_INVALID, "-7 ms"},
      {2, {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_COUNT, 0, NULL, 0}, RESHARD_ERROR_UNSUPPORTED, "unknown"},
      {2, {RESHARD_LOCAL_OPTIONS_INIT, 1, (reshard_isa)-1, 0, NULL, 0}, RESHARD_ERROR_UNSUPPORTED, "unknown"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    reshard_comm untouched[2] = {(reshard_comm)&i, (reshard_comm)&i};
    FAILS_WITH(reshard_comm_create_local(wrong[i].n, &wrong[i].options, untouched), wrong[i].status, wrong[i].part);
    assert_ptr_equal(untouched[0], (void *)&i);
    assert_ptr_equal(untouched[1], (void *)&i);
  }
  assert_int_equal(reshard_comm_create_local(2, NULL, NULL), RESHARD_ERROR_INVALID);
  for (int isa = 0; isa < RESHARD_ISA_COUNT; isa++) {
    reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 1, (reshard_isa)isa, 0, NULL, 0};
    bool can = reshard_isa_available((reshard_isa)isa);
    assert_int_equal(reshard_comm_create_local(1, &options, comms), can ? RESHARD_SUCCESS : RESHARD_ERROR_UNSUPPORTED);
    if (can)
      rank_comms_close(1, comms);
    else
      assert_non_null(strstr(reshard_last_error(), reshard_isa_string((reshard_isa)isa)));
  }
  assert_true(reshard_isa_available(RESHARD_ISA_AUTO) && reshard_isa_available(RESHARD_ISA_SCALAR));
  assert_false(reshard_isa_available(RESHARD_ISA_COUNT));
  assert_string_equal(reshard_isa_string(RESHARD_ISA_COUNT), "unknown");
  assert_string_equal(reshard_isa_string((reshard_isa)-1), "unknown");
}

CASE(handles_tell_rank_and_size) {
  for (int64_t n = 1; n <= MOST; n *= 4) {
    GOOD(reshard_comm_create_local(n, NULL, comms));
    for (int64_t r = 0; r < n; r++) {
      assert_int_equal(reshard_comm_rank(comms[r]), r);
      assert_int_equal(reshard_comm_size(comms[r]), n);
      reshard_comm_stats stats = {.received_bytes = 5, .leaving_bytes = 5};
      GOOD(reshard_comm_get_stats(comms[r], &stats));
      assert_true(stats.received_bytes == 0 && stats.received_messages == 0 && stats.leaving_bytes == 0);
    }
    for (int64_t r = 0; r < n; r++) /* any order */
      reshard_comm_destroy(comms[(r * 5 + 3) % n]);
  }
  reshard_comm_stats stats;
  reshard_comm_destroy(NULL);
  assert_int_equal(reshard_comm_rank(NULL), -1);
  assert_int_equal(reshard_comm_size(NULL), 0);
  assert_int_equal(reshard_comm_abort(NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_comm_barrier(NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_comm_get_stats(NULL, &stats), RESHARD_ERROR_INVALID);
  rank_comms_open(1, 1, 0, comms);
  assert_int_equal(reshard_comm_get_stats(comms[0], NULL), RESHARD_ERROR_INVALID);
  rank_comms_close(1, comms);
}

/* Memory of a communicator's device: its own, or one that was given, whose pool it counts with. */
CASE(memory_counts_with_the_pool_of_the_device) {
  static const size_t sizes[] = {0, 1, 255, 4096, 3 << 20};
  reshard_device device;
  reshard_memory_stats stats;
  const reshard_device_options limited = {.size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .limit_bytes = 4 << 20};
  GOOD(reshard_device_create("cpu", &limited, &device));
  for (int given = 0; given < 2; given++) {
    reshard_local_options options = RESHARD_LOCAL_OPTIONS_DEFAULTS;
    options.devices = &device, options.ndevices = given;
    GOOD(reshard_comm_create_local(2, &options, comms));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      void *memory = &stats;
      GOOD(reshard_comm_alloc(comms[i % 2], sizes[i], &memory));
      assert_true((memory == NULL) == (sizes[i] == 0) && (uintptr_t)memory % 256 == 0);
      if (memory != NULL)
        memset(memory, 0x5a, sizes[i]);
      GOOD(reshard_device_get_memory_stats(device, &stats));
      assert_true(given ? stats.in_use_bytes >= sizes[i] : stats.in_use_bytes == 0);
      GOOD(reshard_comm_free(comms[i % 2], memory));
    }
    void *untouched = &stats;
    assert_int_equal(reshard_comm_alloc(comms[0], SIZE_MAX / 2, &untouched), RESHARD_ERROR_OUT_OF_MEMORY);
    assert_int_equal(reshard_comm_alloc(comms[0], 64, NULL), RESHARD_ERROR_INVALID);
    if (given) {
      FAILS_WITH(reshard_comm_alloc(comms[0], 5 << 20, &untouched), RESHARD_ERROR_OUT_OF_MEMORY,
                 "the limit is 4194304");
    }
    assert_ptr_equal(untouched, &stats);
    rank_comms_close(2, comms);
    GOOD(reshard_device_get_memory_stats(device, &stats));
    assert_int_equal(stats.in_use_bytes, 0);
  }
  reshard_device_release(device);
}

/* The environment counts where the option is left open. */
CASE(environment_counts_where_the_option_is_open) {
  static const struct {
    const char *name, *value, *part; /* part NULL: good */
    reshard_local_options options;
    reshard_status status;
  } cases[] = {
    {"RESHARD_THREADS", "3", NULL, {0}, RESHARD_SUCCESS},
    {"RESHARD_THREADS", "0", NULL, {0}, RESHARD_SUCCESS},
    {"RESHARD_THREADS", "", NULL, {0}, RESHARD_SUCCESS},
    {"RESHARD_THREADS", "-1", "RESHARD_THREADS=-1", {0}, RESHARD_ERROR_INVALID},
    {"RESHARD_THREADS", "two", "RESHARD_THREADS=two", {0}, RESHARD_ERROR_INVALID},
    {"RESHARD_THREADS", "2x", "RESHARD_THREADS=2x", {0}, RESHARD_ERROR_INVALID},
    {"RESHARD_THREADS", "99999999999999999999", "RESHARD_THREADS=9999", {0}, RESHARD_ERROR_INVALID},
    {"RESHARD_THREADS", "4097", "4097 copy threads", {0}, RESHARD_ERROR_INVALID},
    {"RESHARD_THREADS", "two", NULL, {0, 1, RESHARD_ISA_AUTO, 0, NULL, 0}, RESHARD_SUCCESS}, /* not looked at */
    {"RESHARD_ISA", "scalar", NULL, {0}, RESHARD_SUCCESS},
    {"RESHARD_ISA", "auto", NULL, {0}, RESHARD_SUCCESS},
    {"RESHARD_ISA", "", NULL, {0}, RESHARD_SUCCESS},
    {"RESHARD_ISA", "SCALAR", "RESHARD_ISA=SCALAR", {0}, RESHARD_ERROR_INVALID},
    {"RESHARD_ISA", "avx", "RESHARD_ISA=avx", {0}, RESHARD_ERROR_INVALID},
    {"RESHARD_ISA", "avx", NULL, {0, 0, RESHARD_ISA_SCALAR, 0, NULL, 0}, RESHARD_SUCCESS},
#if defined(__x86_64__)
    {"RESHARD_ISA", "neon", "neon", {0}, RESHARD_ERROR_UNSUPPORTED},
#endif
    {"RESHARD_TIMEOUT_MS", "60000", NULL, {0}, RESHARD_SUCCESS},
    {"RESHARD_TIMEOUT_MS", "9223372036854775807", NULL, {0}, RESHARD_SUCCESS},
    {"RESHARD_TIMEOUT_MS", "9223372036854775808", "RESHARD_TIMEOUT_MS=9223", {0}, RESHARD_ERROR_INVALID},
    {"RESHARD_TIMEOUT_MS", "1s", "RESHARD_TIMEOUT_MS=1s", {0}, RESHARD_ERROR_INVALID},
    {"RESHARD_TIMEOUT_MS", "1s", NULL, {0, 0, RESHARD_ISA_AUTO, 500, NULL, 0}, RESHARD_SUCCESS},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *before = getenv(cases[i].name), *kept = before != NULL ? strcpy(malloc(strlen(before) + 1), before) : NULL;
    setenv(cases[i].name, cases[i].value, 1);
    reshard_local_options options = cases[i].options;
    options.size = RESHARD_LOCAL_OPTIONS_INIT;
    reshard_status status = reshard_comm_create_local(2, &options, comms);
    if (status != cases[i].status)
      fail_msg("%s=%s: %s: %s", cases[i].name, cases[i].value, reshard_status_string(status), reshard_last_error());
    if (status == RESHARD_SUCCESS)
      rank_comms_close(2, comms);
    else if (strstr(reshard_last_error(), cases[i].part) == NULL)
      fail_msg("'%s' lacks '%s'", reshard_last_error(), cases[i].part);
    if (kept != NULL)
      setenv(cases[i].name, kept, 1);
    else
      unsetenv(cases[i].name);
    free(kept);
  }
  setenv("RESHARD_TIMEOUT_MS", "30", 1);
  GOOD(reshard_comm_create_local(2, NULL, comms));
  unsetenv("RESHARD_TIMEOUT_MS"); /* it was read when the communicator was made */
  FAILS_WITH(reshard_comm_barrier(comms[1]), RESHARD_ERROR_TIMEOUT, "1 of 2 ranks came within 30 ms");
  rank_comms_close(2, comms);
}

/* Barriers and all-gathers by turns. */
typedef struct rounds {
  int64_t n, rounds;
  atomic_llong arrived;
  bool wrong[MOST];
} rounds;

static void gather_body(void *user, int64_t rank) {
  rounds *x = user;
  reshard_comm comm = comms[rank];
  unsigned char mine[RS_COMM_RECORD];
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < x->rounds && status == RESHARD_SUCCESS; i++) {
    atomic_fetch_add(&x->arrived, 1);
    status = reshard_comm_barrier(comm);
    long long arrived = atomic_load(&x->arrived); /* all of this round, and some of the next */
    x->wrong[rank] |= arrived < (i + 1) * x->n || arrived > (i + 2) * x->n;
    size_t bytes = i % 7 == 0 ? RS_COMM_RECORD : (size_t)(1 + i * 13 % RS_COMM_RECORD);
    for (size_t b = 0; b < bytes; b++)
      mine[b] = (unsigned char)(rank * 7 + i * 31 + (int64_t)b);
    const void *all = NULL;
    RS_THEN(status, rs_comm_allgather(comm, mine, bytes, &all));
    memset(mine, 0, sizeof mine); /* mine may go; what was gathered stays until my next call */
    for (int64_t r = 0; status == RESHARD_SUCCESS && r < x->n; r++)
      for (size_t b = 0; b < bytes; b++)
        x->wrong[rank] |=
            ((const unsigned char *)all)[(size_t)r * bytes + b] != (unsigned char)(r * 7 + i * 31 + (int64_t)b);
  }
  rank_result_set(&results[rank], status);
}

CASE(allgathers_give_all_ranks_all_records) {
  static const int64_t sizes[] = {1, 2, 5, 64};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    int64_t n = sizes[s];
    rounds x = {.n = n, .rounds = test_scaled(n > 10 ? 60 : 3000, 1)};
    rank_comms_open(n, 1, PATIENCE, comms);
    rank_threads_run(n, gather_body, &x);
    assert_all(n, RESHARD_SUCCESS, "");
    for (int64_t r = 0; r < n; r++)
      assert_false(x.wrong[r]);
    rank_comms_close(n, comms);
  }
}

/* Meetings: run is called once, by one thread, with what all brought; its status and text go to all. */
static atomic_llong meetings;

static reshard_status sum_up(int64_t n, void **all) {
  int64_t *const *values = (int64_t *const *)all;
  int64_t sum = 0;
  for (int64_t r = 0; r < n; r++)
    sum += *values[r];
  for (int64_t r = 0; r < n; r++)
    *values[r] = sum;
  atomic_fetch_add(&meetings, 1);
  return sum % 10 == 0 ? rs_error(RESHARD_ERROR_SYSTEM, "a sum of %lld", (long long)sum) : RESHARD_SUCCESS;
}

static void meet_body(void *user, int64_t rank) {
  rounds *x = user;
  bool wrong = false;
  for (int64_t i = 0; i < x->rounds; i++) {
    int64_t value = rank + i, sum = x->n * i + x->n * (x->n - 1) / 2;
    rs_error(RESHARD_ERROR_INVALID, "another error");
    reshard_status status = rs_comm_combine(comms[rank], sum_up, &value);
    char text[64];
    snprintf(text, sizeof text, "a sum of %lld", (long long)sum);
    wrong |= value != sum || status != (sum % 10 == 0 ? RESHARD_ERROR_SYSTEM : RESHARD_SUCCESS) ||
             strcmp(reshard_last_error(), sum % 10 == 0 ? text : "another error") != 0;
  }
  x->wrong[rank] = wrong;
}

CASE(meetings_begin_when_all_have_come) {
  static const int64_t sizes[] = {1, 2, 3, 64};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    rounds x = {.n = sizes[s], .rounds = test_scaled(sizes[s] > 10 ? 50 : 1000, 1)};
    atomic_store(&meetings, 0);
    rank_comms_open(x.n, 1, PATIENCE, comms);
    rank_threads_run(x.n, meet_body, &x);
    assert_int_equal(atomic_load(&meetings), x.rounds);
    for (int64_t r = 0; r < x.n; r++)
      assert_false(x.wrong[r]);
    rank_comms_close(x.n, comms);
  }
}

/* Ranks that make different calls at once: all get the same error, nothing runs, and the communicator lives on. */
static reshard_status must_not_run(int64_t n, void **all) {
  (void)n, (void)all;
  atomic_fetch_add(&meetings, 1000);
  return RESHARD_SUCCESS;
}

static void differ_body(void *user, int64_t rank) {
  int odd = *(int *)user;
  const void *all;
  int64_t value = 0;
  char record[RS_COMM_RECORD] = {0};
  reshard_status status;
  if (rank != odd)
    status = reshard_comm_barrier(comms[rank]);
  else if (rank % 2 == 0)
    status = rs_comm_allgather(comms[rank], record, sizeof record, &all); /* another size */
  else
    status = rs_comm_combine(comms[rank], must_not_run, &value);
  rank_result_set(&results[rank], status);
  status = reshard_comm_barrier(comms[rank]);
  if (status != RESHARD_SUCCESS)
    rank_result_set(&results[rank], status);
}

CASE(test_different_calls) {
  atomic_store(&meetings, 0);
  for (int64_t n = 2; n <= 5; n++) {
    rank_comms_open(n, 1, PATIENCE, comms);
    for (int odd = 0; odd < n; odd++) {
      rank_threads_run(n, differ_body, &odd);
      assert_all(n, RESHARD_ERROR_MISMATCH, "different collective calls");
    }
    rank_comms_close(n, comms);
  }
  assert_int_equal(atomic_load(&meetings), 0);
}

/* A rank waits in one call and makes another from a second thread. */
static void wait_body(void *user, int64_t rank) {
  (void)rank;
  int64_t r = *(int64_t *)user;
  rank_result_set(&results[r], reshard_comm_barrier(comms[r]));
}

CASE(second_call_of_a_waiting_rank_is_busy) {
  rank_comms_open(2, 1, PATIENCE, comms);
  int64_t first = 0;
  rank_thread *thread = rank_thread_start(wait_body, &first);
  rank_comms_await(comms[0], 1);
  FAILS_WITH(reshard_comm_barrier(comms[0]), RESHARD_ERROR_BUSY, "rank 0 is in another collective call");
  assert_int_equal(reshard_comm_barrier(comms[0]), RESHARD_ERROR_BUSY);
  GOOD(reshard_comm_barrier(comms[1])); /* the one who waits was not lost */
  rank_thread_join(thread);
  assert_int_equal(results[0].status, RESHARD_SUCCESS);
  rank_comms_close(2, comms);
}

/* Deadline: those who wait get TIMEOUT, whoever comes later PEER, all with one text. */
CASE(deadline_is_told_to_all_with_one_text) {
  rank_comms_open(3, 1, PATIENCE, comms);
  int64_t who[2] = {0, 2};
  rank_thread *a = rank_thread_start(wait_body, &who[0]);
  rank_comms_await(comms[0], 1);
  rank_comms_limit(comms[0], SHORT);
  rank_thread *b = rank_thread_start(wait_body, &who[1]);
  rank_thread_join(a);
  rank_thread_join(b);
  results[1] = results[0];
  assert_all(3, RESHARD_ERROR_TIMEOUT, "2 of 3 ranks came within 1000 ms");
  for (int round = 0; round < 2; round++)
    for (int64_t r = 0; r < 3; r++)
      rank_result_set(&results[r], reshard_comm_barrier(comms[r]));
  assert_all(3, RESHARD_ERROR_PEER, "reshard_comm_barrier, call 1: ");
  rank_comms_close(3, comms);
}

/* A deadline of many years does not pass at once. */
CASE(deadline_of_years_does_not_pass) {
  int64_t years[] = {9300000000000, INT64_MAX}, first = 0;
  for (int i = 0; i < 2; i++) {
    rank_comms_open(2, 1, years[i], comms);
    rank_thread *thread = rank_thread_start(wait_body, &first);
    rank_comms_await(comms[0], 1);
    GOOD(reshard_comm_barrier(comms[1]));
    rank_thread_join(thread);
    assert_int_equal(results[0].status, RESHARD_SUCCESS);
    rank_comms_close(2, comms);
  }
}

/* A rank that destroys its handle is waited for by none, with or without a deadline. */
CASE(destroyed_rank_is_waited_for_by_none) {
  for (int64_t n = 2; n <= 4; n++) {
    rank_comms_open(n, 1, 0, comms);
    rank_thread *threads[4] = {NULL};
    int64_t who[4] = {0, 1, 2, 3};
    for (int64_t r = 0; r + 2 < n; r++)
      threads[r] = rank_thread_start(wait_body, &who[r]);
    test_sleep_ms(20);
    reshard_comm_destroy(comms[n - 1]);
    for (int64_t r = 0; r + 1 < n; r++) {
      if (threads[r] != NULL)
        rank_thread_join(threads[r]);
      else
        wait_body(&who[r], r); /* comes later */
      char text[96];           /* and, where they have come in time, those that waited */
      snprintf(text, sizeof text, "rank %d has destroyed its handle", (int)n - 1);
      assert_int_equal(results[r].status, RESHARD_ERROR_PEER);
      assert_int_equal(strncmp(results[r].text, text, strlen(text)), 0);
    }
    rank_comms_close(n - 1, comms);
  }
}

CASE(abort_wakes_all_ranks) {
  for (int64_t n = 1; n <= 4; n++) {
    rank_comms_open(n, 1, PATIENCE, comms);
    rank_thread *threads[4] = {NULL};
    int64_t who[4] = {0, 1, 2, 3};
    for (int64_t r = 0; r + 1 < n; r++)
      threads[r] = rank_thread_start(wait_body, &who[r]);
    test_sleep_ms(20);
    GOOD(reshard_comm_abort(comms[n - 1]));
    for (int64_t r = 0; r + 1 < n; r++) {
      rank_thread_join(threads[r]);
      assert_int_equal(results[r].status, RESHARD_ERROR_PEER);
      assert_non_null(strstr(results[r].text, "aborted"));
    }
    for (int64_t r = 0; r < n; r++) {
      assert_int_equal(reshard_comm_barrier(comms[r]), RESHARD_ERROR_PEER);
      GOOD(reshard_comm_abort(comms[r])); /* again */
      assert_int_equal(rs_comm_alive(comms[r]), RESHARD_ERROR_PEER);
      assert_int_equal(comms[r]->ops->threads->enter(comms[r]), RESHARD_ERROR_PEER);
    }
    rank_comms_close(n, comms);
  }
}

/* Abort at any moment of a loop of calls: every rank ends with PEER, none hangs, none fails otherwise. */
static void loop_body(void *user, int64_t rank) {
  (void)user;
  reshard_status status = RESHARD_SUCCESS;
  while (status == RESHARD_SUCCESS)
    status = reshard_comm_barrier(comms[rank]);
  rank_result_set(&results[rank], status);
}

static void abort_body(void *user, int64_t rank) {
  (void)rank;
  test_sleep_ms((int)(*(int64_t *)user % 4));
  reshard_comm_abort(comms[0]);
}

CASE(test_abort_any_time) {
  for (int64_t i = 0; i < test_scaled(40, 1); i++) {
    int64_t n = 1 + i % 5;
    rank_comms_open(n, 1, PATIENCE, comms);
    rank_thread *aborter = rank_thread_start(abort_body, &i);
    rank_threads_run(n, loop_body, NULL);
    rank_thread_join(aborter);
    assert_all(n, RESHARD_ERROR_PEER, "aborted");
    rank_comms_close(n, comms);
  }
}

/* A meeting that runs is finished, whatever happens meanwhile: it uses the memory of all. */
static atomic_int stage;

static reshard_status slow(int64_t n, void **all) {
  atomic_store(&stage, 1);
  test_sleep_ms(SHORT + 200); /* longer than the deadline */
  for (int64_t r = 0; r < n; r++)
    *(int64_t *)all[r] = 77;
  return RESHARD_SUCCESS;
}

static void slow_body(void *user, int64_t rank) {
  int64_t value = 0;
  for (atomic_fetch_add((atomic_int *)user, 1); atomic_load((atomic_int *)user) < 3;) /* all threads have started */
    sched_yield();
  reshard_status status = rs_comm_combine(comms[rank], slow, &value);
  rank_result_set(&results[rank], value == 77 ? status : RESHARD_ERROR_INTERNAL);
}

static void abort_slow_body(void *user, int64_t rank) {
  (void)user, (void)rank;
  while (atomic_load(&stage) == 0)
    test_sleep_ms(1);
  reshard_comm_abort(comms[0]);
}

CASE(test_running_meeting) {
  for (int aborting = 0; aborting < 2; aborting++) {
    atomic_int started = 0;
    rank_comms_open(3, 1, SHORT, comms);
    atomic_store(&stage, 0);
    rank_thread *aborter = aborting ? rank_thread_start(abort_slow_body, NULL) : NULL;
    rank_threads_run(3, slow_body, &started);
    if (aborting)
      rank_thread_join(aborter);
    assert_all(3, RESHARD_SUCCESS, "");
    assert_int_equal(rs_comm_alive(comms[0]), aborting ? RESHARD_ERROR_PEER : RESHARD_SUCCESS);
    rank_comms_close(3, comms);
  }
}

/* While a rank reads what others showed, these do not return from a call that ends early. */
static int64_t shown[2];

static void reading_body(void *user, int64_t rank) {
  (void)user;
  int64_t mine = 5, value = 0;
  const void *all;
  int64_t *address = rank == 0 ? shown : &mine; /* rank 1 shows its stack */
  reshard_comm comm = comms[rank];
  reshard_status status = rs_comm_allgather(comm, &address, sizeof address, &all);
  if (rank == 0 && status == RESHARD_SUCCESS && comm->ops->threads->enter(comm) == RESHARD_SUCCESS) {
    const int64_t *other;
    memcpy(&other, (const char *)all + sizeof other, sizeof other);
    rank_comms_limit(comm, 100); /* from here on: rank 1 gives up long before this one has read */
    atomic_store(&stage, 1);
    for (int after = 0; after < 5; after += rs_comm_alive(comm) != RESHARD_SUCCESS) {
      test_sleep_ms(20);
      if (*other != 5)
        status = RESHARD_ERROR_INTERNAL;
    }
    comm->ops->threads->leave(comm);
  }
  while (rank == 1 && atomic_load(&stage) == 0)
    test_sleep_ms(1);
  RS_THEN(status, rs_comm_combine(comm, slow, &value));
  mine = 6; /* my memory is mine again */
  rank_result_set(&results[rank], status);
}

CASE(memory_that_a_rank_reads_stays_past_the_deadline) {
  rank_comms_open(2, 1, PATIENCE, comms);
  atomic_store(&stage, 0);
  rank_threads_run(2, reading_body, NULL);
  assert_int_equal(results[1].status, RESHARD_ERROR_TIMEOUT);
  assert_int_equal(results[0].status, RESHARD_ERROR_PEER);
  rank_comms_close(2, comms);
}

/* Exchange around a ring, and what it counts. */
typedef struct ring {
  rs_exchange exchange;
  rs_part send, receive;
  char out[64], in[64];
} ring;

static reshard_status run_ring(int64_t n, void **all) {
  rs_exchange exchanges[MOST];
  ring *const *rings = (ring *const *)all;
  int64_t bytes = 0;
  for (int64_t r = 0; r < n; r++) {
    exchanges[r] = rings[r]->exchange;
    bytes += exchanges[r].nreceives > 0 ? rings[r]->receive.bytes : 0;
  }
  reshard_comm comm = exchanges[0].comm;
  RS_TRY(rs_comm_reserve(comm, n));
  return comm->ops->exchange(n, exchanges, bytes);
}

typedef struct ring_test {
  int64_t n, rounds, spoiled; /* this rank's message is a byte short */
  bool wrong[MOST];
} ring_test;

static void ring_body(void *user, int64_t rank) {
  ring_test *x = user;
  int64_t n = x->n, next = (rank + 1) % n, before = (rank + n - 1) % n;
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < x->rounds && status == RESHARD_SUCCESS; i++) {
    ring mine;
    memset(mine.out, (int)(rank + i), sizeof mine.out);
    memset(mine.in, -1, sizeof mine.in);
    mine.send = (rs_part){.peer = next, .at = mine.out, .bytes = 1 + (rank + i) % 60 - (rank == x->spoiled)};
    mine.receive = (rs_part){.peer = before, .at = mine.in, .bytes = 1 + (before + i) % 60};
    mine.exchange = (rs_exchange){comms[rank], n > 1, n > 1, &mine.send, &mine.receive, NULL, NULL, NULL, NULL};
    status = rs_comm_combine(comms[rank], run_ring, &mine);
    for (int64_t b = 0; n > 1 && status == RESHARD_SUCCESS && b < 64; b++)
      x->wrong[rank] |= (unsigned char)mine.in[b] != (b < mine.receive.bytes ? (unsigned char)(before + i) : 0xff);
  }
  rank_result_set(&results[rank], status);
}

CASE(exchanges_bring_and_count_every_message) {
  static const int64_t sizes[] = {1, 2, 3, 64};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    ring_test x = {.n = sizes[s], .rounds = 100, .spoiled = -1};
    rank_comms_open(x.n, 1, PATIENCE, comms);
    rank_threads_run(x.n, ring_body, &x);
    assert_all(x.n, RESHARD_SUCCESS, "");
    for (int64_t r = 0; r < x.n; r++) {
      assert_false(x.wrong[r]);
      int64_t bytes = 0;
      for (int64_t i = 0; i < x.rounds; i++)
        bytes += 1 + ((r + x.n - 1) % x.n + i) % 60;
      reshard_comm_stats stats;
      GOOD(reshard_comm_get_stats(comms[r], &stats));
      assert_int_equal(stats.received_bytes, x.n > 1 ? bytes : 0);
      assert_int_equal(stats.received_messages, x.n > 1 ? x.rounds : 0);
    }
    if (x.n > 1) {
      x.spoiled = 0;
      x.rounds = 1;
      rank_threads_run(x.n, ring_body, &x);
      assert_all(x.n, RESHARD_ERROR_INTERNAL, "bytes from rank 0");
    }
    rank_comms_close(x.n, comms);
  }
}

RUN_CASES
