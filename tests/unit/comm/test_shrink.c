/* Going on without ranks that were lost: the local communicator shrinks to those that are there. */
#include "comm/comm.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"

#include <reshard/reshard.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 6, PATIENCE = 60000, DEADLINE = 4000 /* within which threads start */ };

static reshard_comm comms[MOST], subs[MOST];
static rank_result results[MOST];

static void open_comms(int64_t n, int64_t timeout_ms) {
  rank_comms_open(n, 1, timeout_ms, comms);
  memset(subs, 0, sizeof subs);
  memset(results, 0, sizeof results);
}

/* Arguments that the ranks shrink by. */
typedef struct shrink_case {
  int64_t n;          /* ranks of comms */
  unsigned leave;     /* set of those that do not call */
  int64_t nlost;      /* 0: those that are missing */
  int64_t lost[MOST]; /* for all but `odd` */
  int64_t odd, nodd;  /* a rank with another list; -1: none */
  int64_t odd_lost[MOST];
  bool waits; /* meets the others first, until the deadline */
} shrink_case;

static void shrink_body(void *user, int64_t rank) {
  const shrink_case *c = user;
  if (c->leave >> rank & 1)
    return;
  if (c->waits)
    (void)reshard_comm_barrier(comms[rank]);
  const int64_t *lost = rank == c->odd ? c->odd_lost : c->lost;
  rank_result_set(&results[rank],
                  reshard_comm_shrink(comms[rank], rank == c->odd ? c->nodd : c->nlost, lost, &subs[rank]));
}

static void barrier_body(void *user, int64_t rank) {
  reshard_comm comm = ((reshard_comm *)user)[rank];
  if (comm != NULL)
    rank_result_set(&results[rank], reshard_comm_barrier(comm));
}

/* The new communicator has the survivors, in their order, and works. */
static void check_shrunk(const shrink_case *c, const int64_t *old_global) {
  int64_t next = 0;
  for (int64_t r = 0; r < c->n; r++) {
    if (c->leave >> r & 1)
      continue;
    if (results[r].status != RESHARD_SUCCESS)
      fail_msg("rank %d: %s", (int)r, results[r].text);
    assert_int_equal(reshard_comm_rank(subs[r]), next);
    assert_int_equal(reshard_comm_global_ranks(subs[r])[next], old_global != NULL ? old_global[r] : r);
    next++;
  }
  for (int64_t r = 0; r < c->n; r++)
    assert_true((c->leave >> r & 1) != 0 || reshard_comm_size(subs[r]) == next);
  rank_threads_run(c->n, barrier_body, subs);
  for (int64_t r = 0; r < c->n; r++)
    assert_true((c->leave >> r & 1) != 0 || results[r].status == RESHARD_SUCCESS);
}

CASE(any_survivors_make_a_communicator) {
  for (int64_t n = 2; n <= 5; n++)
    for (unsigned leave = 1; leave < (1u << n) - 1; leave++) { /* not none, not all */
      shrink_case c = {.n = n, .leave = leave, .odd = -1};
      for (int64_t r = 0; r < n; r++)
        if (leave >> r & 1)
          c.lost[c.nlost++] = r;
      open_comms(n, PATIENCE);
      rank_threads_run(n, shrink_body, &c);
      check_shrunk(&c, NULL);
      for (int64_t r = 0; r < n; r++) { /* the old one has ended, which the new one has not heard of */
        assert_int_equal(reshard_comm_barrier(comms[r]), RESHARD_ERROR_PEER);
        assert_int_equal(reshard_comm_abort(comms[r]), RESHARD_SUCCESS);
      }
      rank_comms_close(n, comms);
      rank_threads_run(n, barrier_body, subs);
      for (int64_t r = 0; r < n; r++)
        assert_true((leave >> r & 1) != 0 || results[r].status == RESHARD_SUCCESS);
      rank_comms_close(n, subs);
    }
}

/* A deadline has found who is missing, and no list is given. */
CASE(shrink_takes_the_ranks_that_a_deadline_missed) {
  shrink_case c = {.n = 4, .leave = 1u << 1, .odd = -1, .waits = true};
  open_comms(4, DEADLINE);
  rank_threads_run(4, shrink_body, &c);
  check_shrunk(&c, NULL);
  assert_int_equal(reshard_comm_shrink(comms[1], 0, NULL, &subs[1]), RESHARD_ERROR_INVALID); /* it is a lost one */
  assert_string_equal(reshard_last_error(), "reshard_comm_shrink: lost[0] is 1; this is rank 1 of 4");
  rank_comms_close(4, comms);
  rank_comms_close(4, subs);
}

/* A shrunk communicator shrinks again, and so does a split one; the tree above goes on. */
static void split_body(void *user, int64_t rank) {
  rank_result_set(&results[rank], reshard_comm_split(comms[rank], rank < 2 ? -1 : 0, 0, (reshard_comm *)user + rank));
}

CASE(shrunk_communicators_shrink_again) {
  reshard_comm roots[MOST], parts[MOST] = {NULL};
  open_comms(6, PATIENCE);
  rank_threads_run(6, split_body, parts); /* global ranks 2 to 5 */
  memcpy(roots, comms, sizeof comms);
  memcpy(comms, parts + 2, 4 * sizeof *comms);
  shrink_case c = {.n = 4, .leave = 1u, .nlost = 1, .lost = {0}, .odd = -1};
  rank_threads_run(4, shrink_body, &c);
  check_shrunk(&c, (int64_t[]){2, 3, 4, 5});
  rank_comms_close(4, comms);
  memcpy(comms, subs + 1, 3 * sizeof *comms);
  memset(subs, 0, sizeof subs);
  shrink_case d = {.n = 3, .leave = 1u << 2, .nlost = 1, .lost = {2}, .odd = -1};
  rank_threads_run(3, shrink_body, &d);
  check_shrunk(&d, (int64_t[]){3, 4, 5});
  rank_threads_run(6, barrier_body, roots);
  rank_results_assert(6, results, RESHARD_SUCCESS, NULL, "the communicator above");
  rank_comms_close(3, comms);
  rank_comms_close(6, roots);
  rank_threads_run(2, barrier_body, subs); /* the last one of all */
  rank_results_assert(2, results, RESHARD_SUCCESS, NULL, "after its parents");
  rank_comms_close(3, subs);
}

/* Lists that differ; another one that is missing; a second try with a longer list. */
CASE(lists_that_differ_are_refused_and_may_grow) {
  open_comms(4, DEADLINE);
  shrink_case c = {.n = 4, .leave = 1u << 3, .nlost = 1, .lost = {3}, .odd = 1, .nodd = 2, .odd_lost = {2, 3}};
  rank_threads_run(4, shrink_body, &c);
  int64_t mismatched = 0;
  for (int r = 0; r < 3; r++)
    if (results[r].status == RESHARD_ERROR_MISMATCH) {
      mismatched++;
      assert_non_null(strstr(results[r].text, "lost ranks "));
      assert_non_null(strstr(results[r].text, "2-3 on rank 1"));
    } else { /* it came when the others had heard of it */
      assert_int_equal(results[r].status, RESHARD_ERROR_TIMEOUT);
    }
  assert_true(mismatched >= 2);
  rank_comms_close(4, comms);

  open_comms(4, DEADLINE);
  shrink_case d = {.n = 4, .leave = 1u << 3 | 1u << 1, .nlost = 1, .lost = {3}, .odd = -1};
  rank_threads_run(4, shrink_body, &d);
  results[1] = results[2];
  rank_results_assert(3, results, RESHARD_ERROR_TIMEOUT,
                      "reshard_comm_shrink, call 1: 2 of 3 ranks came within 4000 ms; missing: 1", NULL);
  shrink_case e = {.n = 4, .leave = 1u << 3 | 1u << 1, .nlost = 2, .lost = {1, 3}, .odd = -1};
  rank_threads_run(4, shrink_body, &e);
  check_shrunk(&e, NULL);
  rank_comms_close(4, comms);
  rank_comms_close(4, subs);

  open_comms(3, 0); /* no deadline: a rank that has destroyed its handle is not waited for */
  reshard_comm_destroy(comms[0]);
  comms[0] = NULL;
  shrink_case f = {.n = 3, .leave = 1u | 1u << 1, .nlost = 1, .lost = {1}, .odd = -1};
  rank_threads_run(3, shrink_body, &f);
  assert_int_equal(results[2].status, RESHARD_ERROR_PEER);
  assert_non_null(strstr(results[2].text, "ranks 0 are gone as well"));
  assert_int_equal(reshard_comm_shrink(comms[2], 2, (int64_t[]){1, 0}, &subs[2]), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_comm_shrink(comms[2], 1, (int64_t[]){3}, &subs[2]), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_comm_shrink(comms[2], 1, NULL, &subs[2]), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_comm_shrink(comms[2], 1, (int64_t[]){1}, NULL), RESHARD_ERROR_INVALID);
  assert_null(subs[2]);
  assert_int_equal(reshard_comm_shrink(comms[2], 2, (int64_t[]){0, 1}, &subs[2]), RESHARD_SUCCESS); /* alone */
  assert_int_equal(reshard_comm_barrier(subs[2]), RESHARD_SUCCESS);
  rank_comms_close(3, comms);
  rank_comms_close(3, subs);
}

RUN_CASES
