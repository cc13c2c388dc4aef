/* The checks of support/contracts/contract.h by rank threads on the CPU. tests/mpi runs them over MPI, and
 * tests/virtual_gpu/library/test_vg_contracts.c on virtual GPUs. */
#include "support/contracts/dtensor.h"
#include "support/contracts/ends.h"
#include "support/contracts/fsdp.h"
#include "support/contracts/groups.h"
#include "support/contracts/mesh.h"
#include "support/contracts/sharded.h"
#include "support/contracts/state.h"
#include "support/contracts/steady.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/scratch.h"
#include "support/fixtures/sharded_ranks.h"

#include <stdio.h>

typedef struct work {
  uint64_t seed;
  const char *directory;
} work;

static void contracts_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const work *w = p->user;
  contract_rank s = {.comm = p->comms[r], .sharder = p->sharders[r]};
  contract_check_meshes(&s, w->seed);
  contract_check_dtensor(&s, w->seed);
  contract_check_sharded(&s, w->seed);
  contract_check_refusals(&s);
  if (w->seed % 8 == 0)
    contract_check_steady(&s);
  if (w->seed % 8 == 0)
    contract_check_ends(&s);
  if (w->seed % 8 == 0)
    contract_check_poll(&s, true);
  if (w->seed % 8 == 0)
    contract_check_losses(&s, true);
  contract_check_state(&s, w->seed, w->directory);
  if (w->seed % 8 == 0 && p->n >= 4)
    contract_check_fsdp(&s, w->seed);
  p->wrong[r] = s.wrong;
}

static void groups_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  contract_rank s = {.comm = p->comms[r], .sharder = p->sharders[r]};
  contract_check_groups(&s, p->user);
  p->wrong[r] = s.wrong;
}

CASE(contracts_hold_among_groups_of_threads) {
  for (int64_t n = 4; n <= 8; n += 2) {
    char directory[512];
    snprintf(directory, sizeof directory, "%s", scratch_path("groups"));
    sharded_ranks_check(n, NULL, groups_body, directory, RESHARD_SUCCESS, NULL);
  }
}

CASE(contracts_hold_among_threads) {
  for (int64_t i = 0; i < test_scaled(40, 1); i++) {
    work w = {.seed = 2000 + (uint64_t)i, .directory = scratch_path("state")};
    sharded_ranks_check(2 + i % 7, NULL, contracts_body, &w, RESHARD_SUCCESS, NULL);
  }
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
