/* Ranks that are threads of one process. One of them comes late, destroys its handle or aborts in a step
 * (support/losses/losses.h). It is lost before its call: what a thread does within one is the process's. */
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/losses/losses.h"

#include <reshard/reshard.h>

#include <stdlib.h>

enum { N = 4, LATE_MS = 25 };

static int64_t trials = 8; /* of each step in each way */
static uint64_t first_seed;
static reshard_comm comms[LOSS_COMMS][N]; /* of a trial */

static reshard_status make_comm(loss_rank *me, loss_which which, int64_t timeout_ms, reshard_comm *comm) {
  *comm = comms[which][me->number];
  rank_comms_limit(*comm, timeout_ms);
  return RESHARD_SUCCESS;
}

static void run_rank(void *user, int64_t number) { loss_rank_run(user, (int)number); }

static void run_ranks(loss_trial *t) {
  for (int i = 0; i <= t->apart; i++) /* LOSS_ALL, LOSS_REHEARSAL */
    rank_comms_open(N, 1 + (int)(t->place % 2), 0, comms[i]);
  rank_threads_run(N, run_rank, t);
}

static void begin_rank(loss_rank *me) { (void)me; }

static void wait_some(const loss_rank *me) {
  (void)me;
  test_sleep_ms(1);
}

static int64_t deadline_of(const loss_trial *t) { return t->way == LOSS_LATE ? LATE_MS : 0; }

CASE(after_any_trouble_the_arrays_are_the_callers) {
  const loss_transport local = {.where = "local, 4 threads",
                                .aborts = "aborts",
                                .steps =
                                    1u << LOSS_FIRST | 1u << LOSS_TRANSPOSE | 1u << LOSS_REBIND | 1u << LOSS_DESTROY,
                                .ways = 1u << LOSS_LATE | 1u << LOSS_LEAVES | 1u << LOSS_ABORTS,
                                .rows = 128,
                                .columns = 512,
                                .limit = 16384,
                                .patience_ms = 60000,
                                .spare_ms = 30000,
                                .hears = true,
                                .told = true,
                                .deadline = deadline_of,
                                .run = run_ranks,
                                .begin = begin_rank,
                                .end = loss_rank_drop,
                                .wait = wait_some,
                                .make = make_comm};
  loss_board *board = loss_board_make();
  int failures = loss_run(&local, board, N, test_scaled(trials, 5), first_seed, NULL, NULL, 1);
  loss_report(&local, board);
  assert_int_equal(failures, 0);
}

/* usage: test_after_error [TRIALS [SEED]] of each step in each way */
int main(int argc, char **argv) {
  if (argc > 1)
    trials = strtoll(argv[1], NULL, 10);
  if (argc > 2)
    first_seed = strtoull(argv[2], NULL, 10);
  return case_list_run(__FILE__, NULL, NULL);
}
