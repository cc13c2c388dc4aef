/* The k-th call of the CUDA runtime fails while ranks that share a virtual GPU make tensors, save and load them: all
 * have the same status and text, nothing is left behind, and right after the same call succeeds. */
#include "support/contracts/contract.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scratch.h"
#include "virtual_gpu.h"

#include <reshard/state_dict.h>

#include <cuda_runtime_api.h>
#include <stdlib.h>

enum { RANKS = 2, ROWS = 6, COLUMNS = 7, KEY = 3 };

typedef enum act { MAKE, SAVE, LOAD, ACTS } act;

typedef struct world {
  act act;
  reshard_device device;
  reshard_comm comms[RANKS];
  contract_rank contracts[RANKS];
  reshard_layout layout;
  reshard_tree states[RANKS];
  reshard_tensor plain[RANKS];
  rank_result results[RANKS];
  const char *path;
} world;

static void open_rank(void *user, int64_t r) {
  world *w = user;
  contract_rank *s = &w->contracts[r];
  static const int64_t shape[2] = {ROWS, COLUMNS};
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .device = w->device};
  reshard_tree leaf;
  *s = (contract_rank){.comm = w->comms[r], .device = w->device, .copy = vg_copy};
  cudaStreamCreateWithFlags((cudaStream_t *)&s->stream, cudaStreamNonBlocking);
  CONTRACT_SUCCEEDS(s, reshard_sharder_create(s->comm, &options, &s->sharder));
  CONTRACT_SUCCEEDS(s, reshard_tree_dict(&w->states[r]));
  w->plain[r] = contract_tensor(s, RESHARD_F32, 2, shape, true);
  contract_fill_whole(s, w->plain[r], KEY);
  CONTRACT_SUCCEEDS(s, reshard_tree_tensor(w->plain[r], &leaf));
  CONTRACT_SUCCEEDS(s, reshard_tree_set(w->states[r], "plain", leaf));
  reshard_tree_release(leaf);
}

static void close_rank(void *user, int64_t r) {
  world *w = user;
  reshard_tree_release(w->states[r]);
  reshard_tensor_release(w->plain[r]);
  reshard_sharder_destroy(w->contracts[r].sharder);
  reshard_stream_destroy(w->device, w->contracts[r].stream);
  reshard_comm_destroy(w->comms[r]);
}

/* Each rank's own, which the others are not told of. */
static reshard_status make_plain(contract_rank *s, reshard_layout layout) {
  static const reshard_properties f64 = {.dtype = RESHARD_F64};
  const double element = 1.5;
  reshard_sharded_tensor t = NULL;
  reshard_status status = reshard_sharded_tensor_full(s->sharder, layout, &f64, &element, s->stream, &t);
  reshard_sharded_tensor_release(t);
  return status;
}

static void act_rank(void *user, int64_t r) {
  world *w = user;
  contract_rank *s = &w->contracts[r];
  const reshard_state_save_options save = {
      .size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1, .threads = 1, .stream = s->stream, .staging_bytes = 1};
  const reshard_state_load_options load = {
      .size = RESHARD_STATE_LOAD_OPTIONS_INIT, .threads = 1, .stream = s->stream, .staging_bytes = 1};
  reshard_status status = w->act == MAKE   ? make_plain(s, w->layout)
                          : w->act == SAVE ? reshard_state_save(s->sharder, w->states[r], w->path, &save, NULL)
                                           : reshard_state_load(s->sharder, w->states[r], w->path, &load, NULL);
  rank_result_set(&w->results[r], status);
}

static void all_good(world *w) {
  rank_threads_run(RANKS, act_rank, w);
  rank_results_assert(RANKS, w->results, RESHARD_SUCCESS, NULL, "after a fault");
}

/* Each call in turn. Returns how many made the act fail. */
static int64_t fail_each(world *w) {
  int64_t found = 0;
  all_good(w); /* what is made once is there */
  for (int64_t k = 1;; k++) {
    vg_fail(NULL, k, false, 0);
    rank_threads_run(RANKS, act_rank, w);
    int64_t failed = vg_failed();
    vg_fail(NULL, 0, false, 0);
    if (failed == 0)
      return found;
    found += w->results[0].status != RESHARD_SUCCESS || w->results[1].status != RESHARD_SUCCESS;
    if (w->act != MAKE)
      rank_results_assert(RANKS, w->results, w->results[0].status, NULL, "a fault");
    all_good(w);
  }
}

CASE(every_failing_call_of_a_state_is_told_to_all) {
  static const int64_t shape[1] = {11};
  world w = {.path = scratch_path("state")};
  vg_options options = {.seed = 7};
#ifdef __SANITIZE_ADDRESS__
  options.no_check = true; /* what the library's own copies write to pinned memory is not seen */
#endif
  vg_begin(&options);
  GOOD(reshard_device_create("cuda:0", NULL, &w.device));
  GOOD(reshard_layout_parse("chunk(0)", 1, shape, RANKS, &w.layout));
  const reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = &w.device, .ndevices = 1};
  GOOD(reshard_comm_create_local(RANKS, &local, w.comms));
  rank_threads_run(RANKS, open_rank, &w);
  for (w.act = MAKE; w.act < ACTS; w.act++)
    assert_true(fail_each(&w) > 2);
  for (int r = 0; r < RANKS; r++) {
    CONTRACT_CHECK(&w.contracts[r], contract_count_wrong_whole(&w.contracts[r], w.plain[r], KEY) == 0);
    assert_int_equal(w.contracts[r].wrong, 0);
  }
  rank_threads_run(RANKS, close_rank, &w);
  reshard_layout_release(w.layout);
  reshard_device_release(w.device);
  if (vg_end() != 0)
    fail_msg("the checker reports %s", vg_report(0));
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
