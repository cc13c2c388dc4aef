/* The checks of support/contracts/contract.h on virtual GPUs: by rank threads over NCCL with a GPU each, and by rank
 * threads that share one GPU. Host bytes get to device memory by copies alone. No graph is captured; the checker is
 * on, with several schedules. */
#include "support/contracts/dtensor.h"
#include "support/contracts/ends.h"
#include "support/contracts/fsdp.h"
#include "support/contracts/groups.h"
#include "support/contracts/mesh.h"
#include "support/contracts/sharded.h"
#include "support/contracts/state.h"
#include "support/contracts/steady.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/scratch.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 8 };

typedef struct world {
  int64_t n;
  int gpus; /* 0: one a rank, over NCCL; else shared, by threads */
  int rounds;
  void (*body)(struct world *w, contract_rank *s, uint64_t seed);
  uint64_t seed;
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  reshard_device devices[MOST];
  reshard_comm comms[MOST];
  rank_result result[MOST];
  int64_t wrong[MOST], seen[MOST];
} world;

static void rank_body(void *user, int64_t rank) {
  world *w = user;
  reshard_device device = w->gpus > 0 ? w->devices[rank] : NULL;
  contract_rank s = {.comm = w->comms[rank], .copy = vg_copy};
  char name[32];
  reshard_status status = RESHARD_SUCCESS;
  snprintf(name, sizeof name, "cuda:%d", (int)(w->gpus > 0 ? rank % w->gpus : rank));
  cudaSetDevice((int)(w->gpus > 0 ? rank % w->gpus : rank));
  if (device == NULL)
    status = reshard_device_create(name, NULL, &device);
  if (s.comm == NULL && status == RESHARD_SUCCESS)
    status = reshard_comm_create_nccl(w->id, w->n, rank, device, 60000, &s.comm);
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .device = device};
  cudaStreamCreateWithFlags((cudaStream_t *)&s.stream, cudaStreamNonBlocking);
  s.device = device;
  if (status == RESHARD_SUCCESS)
    status = reshard_sharder_create(s.comm, &options, &s.sharder);
  if (status == RESHARD_SUCCESS)
    w->body(w, &s, w->seed);
  rank_result_set(&w->result[rank], status);
  w->wrong[rank] = s.wrong;
  reshard_sharder_destroy(s.sharder);
  reshard_device_forget_stream(device, s.stream);
  cudaStreamDestroy(s.stream);
  reshard_comm_destroy(s.comm);
  reshard_device_release(device);
}

static void open_world(world *w) {
  if (w->gpus == 0) {
    assert_int_equal(reshard_nccl_unique_id(w->id), RESHARD_SUCCESS);
    return;
  }
  for (int64_t r = 0; r < w->n; r++) {
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", (int)(r % w->gpus));
    assert_int_equal(reshard_device_create(name, NULL, &w->devices[r]), RESHARD_SUCCESS);
  }
  reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 0, RESHARD_ISA_AUTO, 60000, w->devices, w->n};
  assert_int_equal(reshard_comm_create_local(w->n, &options, w->comms), RESHARD_SUCCESS);
}

static void states(world *w, contract_rank *s, uint64_t seed);

static void run_world(world w) {
  if (w.gpus == 0 && reshard_nccl_unique_id(w.id) == RESHARD_ERROR_UNSUPPORTED)
    return; /* a build without NCCL */
  vg_options options = {.devices = w.gpus > 0 ? w.gpus : (int)w.n, .seed = w.seed};
#ifdef __SANITIZE_ADDRESS__
  options.no_check = w.body == states; /* what the library's own copies write to pinned memory is not seen */
#endif
  vg_begin(&options);
  open_world(&w);
  rank_threads_run(w.n, rank_body, &w);
  rank_results_assert(w.n, w.result, RESHARD_SUCCESS, NULL, "opening");
  for (int64_t r = 0; r < w.n; r++)
    assert_int_equal(w.wrong[r], 0);
  if (vg_end() != 0)
    fail_msg("seed %llu: the checker reports %s", (unsigned long long)w.seed, vg_report(0));
}

/* Over NCCL with as many ranks as are given, and by threads on one GPU and on two. */
static void run_all(int64_t cases, void (*body)(world *w, contract_rank *s, uint64_t seed)) {
  for (int64_t i = 0; i < test_scaled(cases, 1); i++) {
    run_world((world){.n = 4 + i % 3, .body = body, .seed = 500 + (uint64_t)i});
    run_world((world){.n = 4, .gpus = 1 + (int)(i % 2), .body = body, .seed = 700 + (uint64_t)i});
  }
}

static void meshes(world *w, contract_rank *s, uint64_t seed) { contract_check_meshes(s, seed); }

static void dtensors(world *w, contract_rank *s, uint64_t seed) {
  for (uint64_t i = 0; i < 3; i++)
    contract_check_dtensor(s, 3 * seed + i);
}

static void sharded(world *w, contract_rank *s, uint64_t seed) {
  for (uint64_t i = 0; i < 2; i++)
    contract_check_sharded(s, 2 * seed + i);
  contract_check_refusals(s);
  contract_check_steady(s);
  contract_check_ends(s);
  contract_check_poll(s, w->gpus > 0);
  contract_check_losses(s, w->gpus > 0);
}

static void fsdp(world *w, contract_rank *s, uint64_t seed) { contract_check_fsdp(s, seed); }

static void states(world *w, contract_rank *s, uint64_t seed) { contract_check_state(s, seed, scratch_path("state")); }

CASE(contracts_of_state_dicts_hold_on_gpus) { run_all(6, states); }

static void groups(world *w, contract_rank *s, uint64_t seed) { contract_check_groups(s, scratch_path("groups")); }

CASE(contracts_of_groups_hold_on_gpus) { run_all(3, groups); }

CASE(contracts_of_meshes_hold_on_gpus) { run_all(4, meshes); }

CASE(contracts_of_dtensors_hold_on_gpus) { run_all(5, dtensors); }

CASE(contracts_of_sharded_tensors_hold_on_gpus) { run_all(5, sharded); }

CASE(contracts_of_fsdp_hold_on_gpus) { run_all(1, fsdp); }

RUN_CASES_WITH(scratch_setup, scratch_teardown)
