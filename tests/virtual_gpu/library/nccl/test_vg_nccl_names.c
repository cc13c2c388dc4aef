/* Errors over NCCL, which does not say for whom it waits, name the ranks that have not come: one text on all ranks. */
#include "comm/presence.h"
#include "nccl_rank.h"
#include "reshard/reshard.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/processes/children.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 4, LIMIT_MS = 1000 };

/* The ways in which ranks are lost, before the last call of the others. */
typedef enum how { ABSENT, BEHIND, ABORTS, DESTROYS, FAILS, LATE, HOWS } how;
static const char *const how_names[] = {"absent", "a call behind", "aborts", "destroys", "fails", "late"};

typedef struct world {
  int64_t timeout_ms, calls; /* barriers of the others */
  how how;
  unsigned lost; /* a bit for each */
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  ncclComm_t nccl[RANKS]; /* borrowed ones */
  reshard_comm comm[RANKS], sub[RANKS];
  rank_result result[RANKS];
  atomic_int done, come; /* come: ranks below it may, in a creation */
} world;

static bool is_lost(const world *w, int64_t rank) { return (w->lost >> rank & 1) != 0; }

static void open_rank(void *user, int64_t rank) {
  world *w = user;
  rank_result_set(&w->result[rank], nccl_rank_open(w->id, RANKS, rank, w->timeout_ms, &w->comm[rank]));
}

static void borrow_rank(void *user, int64_t rank) {
  world *w = user;
  ncclUniqueId id;
  memcpy(&id, w->id, sizeof id);
  cudaSetDevice((int)rank);
  ncclResult_t state = ncclCommInitRank(&w->nccl[rank], RANKS, id, (int)rank);
  rank_result_set(&w->result[rank], state == ncclSuccess
                                        ? reshard_comm_from_nccl(w->nccl[rank], NULL, w->timeout_ms, &w->comm[rank])
                                        : RESHARD_ERROR_INTERNAL);
}

static void close_rank(void *user, int64_t rank) { reshard_comm_destroy(((world *)user)->comm[rank]); }
static void close_sub_rank(void *user, int64_t rank) { reshard_comm_destroy(((world *)user)->sub[rank]); }

static void world_open(world *w, void (*open)(void *, int64_t)) {
  vg_begin(&(vg_options){.devices = RANKS, .seed = 11});
  vg_quiet(true); /* of what nobody took */
  assert_int_equal(reshard_nccl_unique_id(w->id), RESHARD_SUCCESS);
  rank_threads_run(RANKS, open, w);
  rank_results_assert(RANKS, w->result, RESHARD_SUCCESS, NULL, "a communicator");
}

static void world_close(world *w) {
  rank_threads_run(RANKS, close_rank, w);
  vg_end();
  vg_quiet(false);
  assert_int_equal(vg_reports_with("race"), 0);
}

/* --- Every way to be lost ----------------------------------------------------------------------------------------- */

static reshard_status lose_rank(world *w, int64_t rank) {
  switch (w->how) {
  case ABORTS: return reshard_comm_abort(w->comm[rank]);
  case DESTROYS:
    reshard_comm_destroy(w->comm[rank]);
    w->comm[rank] = NULL;
    return RESHARD_SUCCESS;
  case FAILS: vg_fail_here("cudaMemcpyAsync", 1, false, 0); return reshard_comm_barrier(w->comm[rank]);
  case LATE:
    while (w->done < RANKS - __builtin_popcount(w->lost))
      test_sleep_ms(1);
    return reshard_comm_barrier(w->comm[rank]);
  default: return RESHARD_SUCCESS;
  }
}

static void call_rank(void *user, int64_t rank) {
  world *w = user;
  reshard_status status = RESHARD_SUCCESS;
  int64_t calls = w->calls - is_lost(w, rank);
  for (int64_t i = 0; i < calls && status == RESHARD_SUCCESS; i++)
    status = reshard_comm_barrier(w->comm[rank]);
  if (is_lost(w, rank) && status == RESHARD_SUCCESS)
    status = lose_rank(w, rank);
  rank_result_set(&w->result[rank], status);
  w->done++;
}

static void assert_missing(const world *w, const char *expected, int64_t rank) {
  int64_t ranks[RANKS], n = -1;
  assert_int_equal(reshard_comm_missing(w->comm[rank], ranks, &n), RESHARD_SUCCESS);
  unsigned bits = 0;
  for (int64_t i = 0; i < n; i++)
    bits |= 1U << ranks[i];
  assert_int_equal(bits, w->lost);
  assert_int_equal(w->result[rank].status, RESHARD_ERROR_TIMEOUT);
  if (strcmp(w->result[rank].text, expected) != 0)
    fail_msg("%s, rank %d: %s", how_names[w->how], (int)rank, w->result[rank].text);
  assert_int_equal(reshard_comm_barrier(w->comm[rank]), RESHARD_ERROR_PEER); /* which says why */
  assert_non_null(strstr(reshard_last_error(), expected));
}

CASE(lost_ranks_are_named_with_one_text) {
  static const unsigned lost[] = {1 << 1, 1 << 0 | 1 << 2};
  static const char *const names[] = {"1", "0,2"};
  for (int k = 0; k < 2 * HOWS; k++) {
    world w = {.timeout_ms = LIMIT_MS, .how = (how)(k / 2), .lost = lost[k % 2], .calls = 1 + (k / 2 == BEHIND)};
    char expected[200];
    snprintf(expected, sizeof expected,
             "reshard_comm_barrier, call %d: all-gather of records: not done within %d ms; missing: %s", (int)w.calls,
             LIMIT_MS, names[k % 2]);
    world_open(&w, open_rank);
    rank_threads_run(RANKS, call_rank, &w);
    for (int64_t r = 0; r < RANKS; r++)
      if (!is_lost(&w, r) || w.how == LATE)
        assert_missing(&w, expected, r);
    world_close(&w);
  }
}

/* --- A creation --------------------------------------------------------------------------------------------------- */

/* Returns when so many ranks are in NCCL's part of their creation. */
static void await_calls(int64_t n) {
  while (vg_calls("ncclCommInitRankConfig") < n)
    test_sleep_ms(1);
}

/* Rank 1 is the first to come, and goes when rank 0 is there, too; the others come later. Then NCCL tells them. */
static void go_first(world *w) {
  rs_presence *presence = NULL;
  int before = count_descriptors();
  (void)rs_presence_make(RANKS, 1, &presence);
  rs_presence_find(presence, w->id, sizeof w->id);
  w->come = 1;
  await_calls(1);
  rs_presence_leave(presence);
  rs_presence_destroy(presence);
  while (count_descriptors() < before + 2 && w->done == 0) /* rank 0 has a page, and listens for the others */
    test_sleep_ms(1);
  w->come = RANKS;
  await_calls(RANKS - 1);
  vg_fail("ncclCommGetAsyncError", 1, true, ncclRemoteError);
}

static void create_rank(void *user, int64_t rank) {
  world *w = user;
  if (is_lost(w, rank)) {
    go_first(w);
    return;
  }
  while (w->come <= rank)
    test_sleep_ms(1);
  open_rank(user, rank);
  w->done++;
}

/* An error of NCCL, with the rank that is gone. */
CASE(rank_gone_in_a_creation_is_named) {
  world w = {.timeout_ms = 60 * LIMIT_MS, .lost = 1 << 1};
  vg_begin(&(vg_options){.devices = RANKS, .seed = 12});
  vg_quiet(true);
  assert_int_equal(reshard_nccl_unique_id(w.id), RESHARD_SUCCESS);
  rank_threads_run(RANKS, create_rank, &w);
  vg_fail(NULL, 0, false, 0);
  for (int64_t r = 0; r < RANKS; r++) {
    const char *text = strstr(w.result[r].text, "ncclCommInitRankConfig: ");
    if (is_lost(&w, r))
      continue;
    assert_int_equal(w.result[r].status, RESHARD_ERROR_PEER);
    if (text == NULL || strstr(text, "; missing: 1") == NULL)
      fail_msg("rank %d: %s", (int)r, w.result[r].text);
    assert_string_equal(text, strstr(w.result[0].text, "ncclCommInitRankConfig: "));
  }
  vg_end();
  vg_quiet(false);
  assert_int_equal(vg_reports_with("race") + vg_reports_with("misuse"), 0);
}

/* --- Other communicators ------------------------------------------------------------------------------------------ */

static void split_rank(void *user, int64_t rank) {
  world *w = user;
  reshard_status status = reshard_comm_split(w->comm[rank], 0, -rank, &w->sub[rank]);
  if (status == RESHARD_SUCCESS && !is_lost(w, rank))
    status = reshard_comm_barrier(w->sub[rank]);
  rank_result_set(&w->result[rank], status);
}

/* A part has ranks of its own: rank 1 is its rank 2. Of the caller's communicator nothing is known before the ranks
 * have met over it. */
CASE(test_other_comms) {
  world w = {.timeout_ms = LIMIT_MS, .lost = 1 << 1};
  world_open(&w, open_rank);
  rank_threads_run(RANKS, split_rank, &w);
  w.result[1] = w.result[0];
  rank_results_assert(RANKS, w.result, RESHARD_ERROR_TIMEOUT,
                      "reshard_comm_barrier, call 1: all-gather of records: not done within 1000 ms; missing: 2",
                      "a barrier of a part");
  rank_threads_run(RANKS, close_sub_rank, &w);
  world_close(&w);

  for (int calls = 1; calls <= 2; calls++) {
    w = (world){.timeout_ms = LIMIT_MS, .lost = 1 << 3, .calls = calls};
    world_open(&w, borrow_rank);
    rank_threads_run(RANKS, call_rank, &w);
    assert_int_equal(w.result[3].status, RESHARD_SUCCESS);
    w.result[3] = w.result[0];
    rank_results_assert(RANKS, w.result, RESHARD_ERROR_TIMEOUT, calls == 1 ? "within 1000 ms" : "; missing: 3", NULL);
    assert_int_equal(strstr(w.result[0].text, "missing") != NULL, calls == 2);
    for (int64_t r = 0; r < RANKS; r++)
      ncclCommAbort(w.nccl[r]);
    world_close(&w);
  }
}

/* A rank that waits without a deadline, and is asked. */
static void ask_rank(void *user, int64_t rank) {
  world *w = user;
  if (is_lost(w, rank)) { /* until the report of a rank that waits says so */
    char text[4096] = "";
    while (strstr(text, "waits for ranks 0,2\n") == NULL) {
      test_sleep_ms(1);
      reshard_comm_report(w->comm[1], 0, text, sizeof text, NULL);
    }
  }
  rank_result_set(&w->result[rank], reshard_comm_barrier(w->comm[rank]));
}

CASE(report_names_who_is_waited_for) {
  world w = {.lost = 1 << 0 | 1 << 2};
  world_open(&w, open_rank);
  rank_threads_run(RANKS, ask_rank, &w);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a barrier");
  world_close(&w);
}

RUN_CASES
