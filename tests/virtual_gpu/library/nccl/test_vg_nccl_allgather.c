/* The all-gather over a communicator of NCCL's, by which ranks of other communicators find each other. */
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "reshard/reshard.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <string.h>

#include "support/fixtures/case.h"

enum { RANKS = 3, BYTES = 517 };

typedef struct world {
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  int blocking, wrong[RANKS];
  rank_result result[RANKS];
} world;

static void gather_rank(void *user, int64_t rank) {
  world *w = user;
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  unsigned char mine[BYTES], all[RANKS * BYTES];
  memcpy(&id, w->id, sizeof id);
  config.blocking = w->blocking;
  cudaSetDevice((int)rank);
  ncclResult_t state = ncclCommInitRankConfig(&comm, RANKS, id, (int)rank, &config);
  while (state == ncclInProgress)
    ncclCommGetAsyncError(comm, &state);
  for (int i = 0; i < BYTES; i++)
    mine[i] = (unsigned char)(i * 3 + (int)rank * 50);
  memset(all, 0, sizeof all);
  rank_result_set(&w->result[rank], reshard_nccl_allgather(&comm, mine, sizeof mine, all));
  for (int i = 0; i < RANKS * BYTES; i++)
    w->wrong[rank] += all[i] != (unsigned char)(i % BYTES * 3 + i / BYTES * 50);
  ncclCommDestroy(comm);
}

CASE(allgather_over_nccl_brings_all_bytes) {
  for (int blocking = 0; blocking < 2; blocking++) {
    world w = {.blocking = blocking};
    vg_begin(&(vg_options){.devices = RANKS, .seed = 7});
    assert_int_equal(reshard_nccl_unique_id(w.id), RESHARD_SUCCESS);
    rank_threads_run(RANKS, gather_rank, &w);
    rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "the all-gather");
    for (int r = 0; r < RANKS; r++)
      assert_int_equal(w.wrong[r], 0);
    assert_int_equal(vg_end(), 0);
  }
}

RUN_CASES
