/* The rendezvous where rank 0's k-th allocation fails: it has an error, or a rank that came has to come again. The
 * others know nothing of it: they get the bytes of all when rank 0 calls again. */
#include "support/fault.h"
#include "support/fixtures/case.h"
#include "support/processes/children.h"
#include "support/processes/ports.h"

#include <reshard/comm.h>

#include <string.h>

enum { RANKS = 3, BYTES = 64 };

static reshard_status gather_words(int port, int64_t rank, char *all) {
  reshard_rendezvous at = RESHARD_RENDEZVOUS_DEFAULTS;
  char mine[BYTES];
  at.n = at.local_n = RANKS;
  at.rank = at.local_rank = rank;
  at.timeout_ms = 60000;
  at.port = port;
  strcpy(at.address, "127.0.0.1");
  memset(mine, 'A' + (int)rank, BYTES);
  return reshard_rendezvous_allgather(&at, mine, BYTES, all);
}

static bool has_all(const char *all) {
  for (int i = 0; i < RANKS * BYTES; i++)
    if (all[i] != 'A' + i / BYTES)
      return false;
  return true;
}

static pid_t start_rank(int port, int64_t rank) {
  pid_t child = fork();
  if (child == 0) {
    char all[RANKS * BYTES];
    CHILD_CHECK(gather_words(port, rank, all) == RESHARD_SUCCESS && has_all(all));
    _exit(0);
  }
  return child;
}

CASE(failed_allocation_of_rank_0_keeps_no_other_rank_out) {
  int64_t errors = 0, again = 0;
  int port = free_port(), descriptors = count_descriptors();
  for (bool fired = true; fired;) {
    char all[RANKS * BYTES] = "";
    pid_t children[RANKS - 1];
    for (int64_t r = 1; r < RANKS; r++)
      children[r - 1] = start_rank(port, r);
    int64_t live = fault_live();
    fault_mark(true);
    fault_arm(errors + again);
    reshard_status status = gather_words(port, 0, all);
    fault_disarm();
    fault_mark(false);
    fired = fault_fired() != FAULT_NONE;
    if (fault_live() != live || count_descriptors() != descriptors || (status != RESHARD_SUCCESS && !fired))
      fail_msg("k %lld: %s, %d descriptors", (long long)(errors + again), reshard_last_error(), count_descriptors());
    if (status != RESHARD_SUCCESS) {
      assert_true(fired && status == RESHARD_ERROR_OUT_OF_MEMORY);
      assert_int_equal(gather_words(port, 0, all), RESHARD_SUCCESS);
      errors++;
    } else {
      again += fired;
    }
    assert_true(has_all(all));
    for (int64_t r = 1; r < RANKS; r++)
      assert_true(child_is_good(children[r - 1]));
  }
  assert_true(errors >= 5 && again >= RANKS - 1);
}

RUN_CASES
