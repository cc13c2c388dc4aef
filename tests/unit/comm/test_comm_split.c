/* Splitting communicators: who is in which and where; lives of parts and wholes; ranks that fail, never come, or abort.
 */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"

#include <reshard/reshard.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8, PATIENCE = 60000 };

static reshard_comm comms[MOST], subs[MOST];
static rank_result results[MOST];

static void open_comms(int64_t n, int64_t timeout_ms) {
  rank_comms_open(n, 2, timeout_ms, comms);
  memset(subs, 0, sizeof subs);
}

static void assert_all(int64_t n, reshard_status status, const char *part) {
  rank_results_assert(n, results, status, part, NULL);
}

typedef struct split_case {
  int64_t n;
  int64_t color[MOST], key[MOST];
} split_case;

static const reshard_comm *whole = comms; /* what is split */

static void split_body(void *user, int64_t rank) {
  const split_case *c = user;
  rank_result_set(&results[rank], reshard_comm_split(whole[rank], c->color[rank], c->key[rank], &subs[rank]));
}

/* Rank and size of each, from the definition, and the ranks that it says are in it. */
static void assert_split(const split_case *c, const int64_t *global) {
  for (int64_t r = 0; r < c->n; r++) {
    if (c->color[r] < 0) {
      assert_null(subs[r]);
      continue;
    }
    int64_t size = 0, before = 0;
    for (int64_t s = 0; s < c->n; s++) {
      bool with = c->color[s] == c->color[r];
      size += with;
      before += with && (c->key[s] < c->key[r] || (c->key[s] == c->key[r] && s < r));
    }
    assert_int_equal(reshard_comm_size(subs[r]), size);
    assert_int_equal(reshard_comm_rank(subs[r]), before);
    assert_int_equal(reshard_comm_global_ranks(subs[r])[before], global != NULL ? global[r] : r);
    reshard_comm_stats stats = {.received_bytes = 5, .received_messages = 5};
    assert_int_equal(reshard_comm_get_stats(subs[r], &stats), RESHARD_SUCCESS);
    assert_true(stats.received_bytes == 0 && stats.received_messages == 0);
  }
}

/* Barriers on n handles; those that are NULL have nothing to do. */
static void barrier_body(void *user, int64_t rank) {
  reshard_comm comm = ((reshard_comm *)user)[rank];
  rank_result_set(&results[rank], comm != NULL ? reshard_comm_barrier(comm) : RESHARD_SUCCESS);
}

static void assert_barrier(int64_t n, reshard_comm *list) {
  rank_threads_run(n, barrier_body, list);
  assert_all(n, RESHARD_SUCCESS, "");
}

CASE(ranks_of_a_color_are_ordered_by_their_keys) {
  static const split_case cases[] = {
      {6, {0, 1, 0, 1, 0, 1}, {0}},
      {6, {7, 7, 7, 7, 7, 7}, {5, 4, 3, 2, 1, 0}},
      {6, {0, 1, 2, 3, 4, 5}, {0}},
      {6, {-1, 3, -1, 3, INT64_MAX, 3}, {0, INT64_MAX, 0, INT64_MIN, 0, -1}},
      {6, {-1, -1, -1, -1, -1, -9}, {0}},
      {1, {4}, {2}},
      {1, {-4}, {2}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int children_first = 0; children_first < 2; children_first++) {
      split_case c = cases[i];
      open_comms(c.n, PATIENCE);
      assert_null(reshard_comm_global_ranks(comms[0]));
      rank_threads_run(c.n, split_body, &c);
      assert_all(c.n, RESHARD_SUCCESS, "");
      assert_split(&c, NULL);
      assert_barrier(c.n, subs);
      if (children_first)
        rank_comms_close(c.n, subs);
      rank_comms_close(c.n, comms);
      if (!children_first) { /* they live on */
        assert_barrier(c.n, subs);
        rank_comms_close(c.n, subs);
      }
    }
}

CASE(test_split_of_split) {
  open_comms(8, PATIENCE);
  split_case halves = {8, {0, 1, 0, 1, 0, 1, 0, 1}, {8, 7, 6, 5, 4, 3, 2, 1}};
  rank_threads_run(8, split_body, &halves);
  assert_all(8, RESHARD_SUCCESS, "");
  /* Ranks 6, 4, 2, 0 are ranks 0..3 of the one; take that apart, from the inside. */
  reshard_comm one[4] = {subs[6], subs[4], subs[2], subs[0]}, other[4] = {subs[7], subs[5], subs[3], subs[1]};
  split_case pairs = {4, {0, 0, 1, 1}, {1, 0, 0, 0}};
  const int64_t global[4] = {6, 4, 2, 0};
  whole = one;
  rank_threads_run(4, split_body, &pairs);
  whole = comms;
  assert_all(4, RESHARD_SUCCESS, "");
  assert_split(&pairs, global);
  rank_comms_close(8, comms);
  rank_comms_close(4, one);
  rank_comms_close(4, other);
  assert_barrier(4, subs);
  rank_comms_close(4, subs);
}

typedef struct odd_one {
  int64_t rank;
  int what;
} odd_one;

static void odd_body(void *user, int64_t rank) {
  const odd_one *odd = user;
  reshard_comm sub = (reshard_comm)odd;
  reshard_status status;
  if (rank != odd->rank)
    status = reshard_comm_split(comms[rank], rank % 2, 0, &sub);
  else if (odd->what == 0)
    status = reshard_comm_split(comms[rank], 0, 0, NULL);
  else
    status = reshard_comm_barrier(comms[rank]);
  rank_result_set(&results[rank], status);
  if (sub != (reshard_comm)odd)
    results[rank].status = RESHARD_ERROR_INTERNAL; /* written to */
}

CASE(test_split_errors) {
  reshard_comm sub;
  FAILS_WITH(reshard_comm_split(NULL, 0, 0, &sub), RESHARD_ERROR_INVALID, "reshard_comm_split: comm is NULL");
  assert_null(reshard_comm_global_ranks(NULL));
  for (int64_t n = 1; n <= 4; n++) {
    open_comms(n, PATIENCE);
    for (int64_t r = 0; r < n; r++) {
      char part[64];
      snprintf(part, sizeof part, "rank %lld: reshard_comm_split: sub is NULL", (long long)r);
      rank_threads_run(n, odd_body, &(odd_one){r, 0});
      assert_all(n, RESHARD_ERROR_INVALID, part);
      if (n > 1) {
        rank_threads_run(n, odd_body, &(odd_one){r, 1});
        assert_all(n, RESHARD_ERROR_MISMATCH, "make different collective calls at once: reshard_comm_");
      }
    }
    rank_comms_close(n, comms);
  }
}

/* --- Deadlines --------------------------------------------------------------------------------------------------- */

static void late_body(void *user, int64_t number) {
  int64_t rank = *(int64_t *)user;
  rank_result_set(&results[rank], reshard_comm_split(comms[rank], 0, 0, &subs[rank]));
}

CASE(split_without_a_rank_ends_at_the_deadline) {
  open_comms(3, PATIENCE);
  rank_thread *first = rank_thread_start(late_body, &(int64_t){0});
  rank_comms_await(comms[0], 1);
  rank_comms_limit(comms[0], 300);
  late_body(&(int64_t){1}, 0); /* rank 2 never comes */
  rank_thread_join(first);
  rank_results_assert(2, results, RESHARD_ERROR_TIMEOUT,
                      "reshard_comm_split, call 1: 2 of 3 ranks came within 300 ms; missing: 2", NULL);
  assert_null(subs[0]);
  assert_int_equal(reshard_comm_split(comms[2], 0, 0, &subs[2]), RESHARD_ERROR_PEER);
  rank_comms_close(3, comms);

  split_case c = {4, {0, 0, 1, 1}, {0}};
  open_comms(4, PATIENCE);
  rank_threads_run(4, split_body, &c);
  assert_all(4, RESHARD_SUCCESS, "");
  rank_comms_limit(subs[0], 300);
  FAILS_WITH(reshard_comm_barrier(subs[0]), RESHARD_ERROR_TIMEOUT, "1 of 2 ranks came within 300 ms");
  assert_int_equal(reshard_comm_barrier(subs[1]), RESHARD_ERROR_PEER);
  assert_barrier(2, subs + 2); /* its sibling and its parent do not care */
  assert_barrier(4, comms);
  rank_comms_close(4, comms);
  rank_comms_close(4, subs);
}

RUN_CASES
