/* Sharders over NCCL that take the mixed path by a wish: processes on two nodes, each with a GPU and shared storage.
 * Those of a node read each other, and send messages to the others. */
#include "comm/nccl/nccl.h"
#include "comm/node/node.h"
#include "explicit_path.h"
#include "library/nccl/nccl_case.h"
#include "support/fixtures/case.h"

#include <nccl.h>

typedef struct world {
  node_gather gather;
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  void (*body)(struct world *w, contract_rank *me, int64_t rank);
  explicit_scene *scene;
  int64_t timeout_ms, failing; /* call of rank 0 that fails; 0: none */
  rank_result result[NODE_RANKS];
  int64_t wrong[NODE_RANKS];
  bool moved[NODE_RANKS], met[NODE_RANKS]; /* where a call fails: its rank's calls, the barrier behind them */
} world;

static _Thread_local uint64_t gathers;

static ncclResult_t all_gather(const void *send, void *receive, size_t n, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream) {
  gathers++;
  return ncclAllGather(send, receive, n, type, comm, stream);
}

static uint64_t meetings_of(reshard_comm comm) { return gathers; }

static explicit_comm explicit_of(world *w) {
  return (explicit_comm){&w->gather, meetings_of, true, NODE_RANKS, 2, RESHARD_PATH_MIXED};
}

static reshard_status open_rank(world *w, int64_t rank, contract_rank *me) {
  char name[32];
  const reshard_device_options shared = {.size = RESHARD_DEVICE_OPTIONS_INIT, .shared = 1};
  snprintf(name, sizeof name, "cuda:%d", (int)rank);
  RS_TRY(reshard_device_create(name, &shared, &me->device));
  RS_TRY(reshard_comm_create_nccl(w->id, NODE_RANKS, rank, me->device, w->timeout_ms, &me->comm));
  rs_nccl_of(me->comm)->api.ncclAllGather = all_gather;
  const reshard_sharder_options options = {
      .size = RESHARD_SHARDER_OPTIONS_INIT, .device = me->device, .path = RESHARD_PATH_MIXED};
  return reshard_sharder_create(me->comm, &options, &me->sharder);
}

static void run_rank(void *user, int64_t rank) {
  world *w = user;
  contract_rank me = {.copy = vg_copy};
  gathers = 0;
  vg_process((int)rank);
  nccl_node_enter(rank % 2);
  cudaSetDevice((int)rank);
  cudaStreamCreateWithFlags((cudaStream_t *)&me.stream, cudaStreamNonBlocking);
  vg_own_calls(true);
  reshard_status status = open_rank(w, rank, &me);
  vg_own_calls(false);
  if (rank == 0 && w->failing > 0)
    vg_fail_here(NULL, w->failing, false, 0);
  if (status == RESHARD_SUCCESS)
    w->body(w, &me, rank);
  rank_result_set(&w->result[rank], status);
  w->wrong[rank] = me.wrong;
  vg_own_calls(w->failing > 0);
  reshard_sharder_destroy(me.sharder);
  reshard_comm_destroy(me.comm);
  reshard_device_release(me.device);
  cudaStreamDestroy(me.stream);
  vg_own_calls(false);
}

/* Returns the reports. */
static int run_world(world *w, uint64_t seed) {
  node_gather_begin(&w->gather);
  vg_begin(&(vg_options){.devices = NODE_RANKS, .seed = seed});
  assert_int_equal(reshard_nccl_unique_id(w->id), RESHARD_SUCCESS);
  rank_threads_run(NODE_RANKS, run_rank, w);
  int reports = vg_end();
  node_gather_end(&w->gather);
  rank_results_assert(NODE_RANKS, w->result, RESHARD_SUCCESS, NULL, "opening");
  return reports;
}

static void run_right(void (*body)(world *w, contract_rank *me, int64_t rank), explicit_scene *scene) {
  for (uint64_t seed = 0; seed < 2; seed++) {
    world w = {.body = body, .scene = scene, .timeout_ms = 60000};
    assert_int_equal(run_world(&w, seed), 0);
    for (int r = 0; r < NODE_RANKS; r++)
      assert_int_equal(w.wrong[r], 0);
  }
}

static void follow_explicit(world *w, contract_rank *me, int64_t rank) {
  const explicit_comm c = explicit_of(w);
  w->scene(&c, me, rank);
}

CASE(arrays_that_stay_cost_one_meeting) { run_right(follow_explicit, explicit_in_place); }
CASE(arrays_that_move_elsewhere_are_followed) { run_right(follow_explicit, explicit_elsewhere); }
CASE(capture_of_one_rank_is_an_error_on_all) { run_right(follow_explicit, explicit_captured_by_one); }
CASE(memory_that_is_pinned_no_more_is_told) { run_right(follow_explicit, explicit_unpinned); }
CASE(source_of_cuda_malloc_is_an_error_on_all_ranks) { run_right(follow_explicit, explicit_from_outside); }
CASE(plans_that_are_dropped_come_again) { run_right(follow_explicit, explicit_trimmed); }
CASE(sharders_come_and_go_beside_others) { run_right(follow_explicit, explicit_with_others); }
CASE(memory_freed_elsewhere_is_closed_at_the_next_call) { run_right(follow_explicit, explicit_freed_elsewhere); }
CASE(memory_is_closed_also_where_the_call_fails) { run_right(follow_explicit, explicit_freed_and_failed); }
CASE(transfers_are_destroyed_in_any_order_beside_calls) { run_right(follow_explicit, explicit_beside_transfers); }

static const void *data_of(const moving *m) {
  reshard_tensor_info info;
  (void)reshard_tensor_get_info(reshard_dtensor_local(m->tensor), &info);
  return info.data;
}

/* One rank's staging is elsewhere in some of the calls, while its arrays stay: memory of that size is taken. */
static void stage_elsewhere(world *w, contract_rank *me, int64_t rank) {
  const int64_t staging = 8704;
  reshard_tensor taken = NULL;
  int64_t bound = 0;
  const void *was[2] = {NULL, NULL};
  moving m = {.mesh = NULL};
  CONTRACT_SUCCEEDS(me, begin_moving(me, 3 * 4100, &m));
  for (int i = 0; i < 6 * CALLS; i++) {
    bool same = i > CALLS && data_of(&m) == was[i % 2];
    was[i % 2] = data_of(&m);
    if (rank == 1 && i % 5 == 0 && taken == NULL)
      CONTRACT_SUCCEEDS(me, reshard_tensor_create_on(me->device, RESHARD_U8, 1, &staging, me->stream, &taken));
    uint64_t before = meetings_of(me->comm);
    CONTRACT_SUCCEEDS(me, move_once(me, (i + 1) % 2, &m));
    bound += same && data_of(&m) == was[(i + 1) % 2] && meetings_of(me->comm) > before + 1;
    CONTRACT_CHECK(me, i % 2 == 1 || (cudaStreamSynchronize(me->stream) == cudaSuccess && is_moved(&m)));
    if (i % 5 == 3) {
      reshard_tensor_release(taken);
      taken = NULL;
    }
  }
  CONTRACT_CHECK(me, rank != 1 || bound > 0);
  reshard_tensor_release(taken);
  end_moving(&m);
}

CASE(test_staged_elsewhere) { run_right(stage_elsewhere, NULL); }

/* One call of rank 0 fails, each seventh or whichever: all ranks have the same error, or the communicator has ended for
 * all. */
static void move_until_failed(world *w, contract_rank *me, int64_t rank) {
  moving m = {.mesh = NULL};
  reshard_status status = begin_moving(me, 12, &m);
  for (int i = 0; i < CALLS && status == RESHARD_SUCCESS; i++)
    status = move_once(me, (i + 1) % 2, &m);
  vg_own_calls(true);
  cudaStreamSynchronize(me->stream);
  end_moving(&m);
  node_gather_meet(&w->gather); /* nobody reads its memory any more */
  reshard_status met = reshard_comm_barrier(me->comm);
  w->moved[rank] = status == RESHARD_SUCCESS;
  w->met[rank] = met == RESHARD_SUCCESS;
}

CASE(every_failing_call_of_a_mixed_sharder_is_told) {
  int64_t fired = 1;
  world w = {.body = move_until_failed, .timeout_ms = 1000};
  for (w.failing = 1; fired > 0; w.failing += vg_proving() ? 1 : 7) {
    vg_quiet(true);
    (void)run_world(&w, (uint64_t)w.failing);
    vg_quiet(false);
    fired = vg_failed();
    for (int r = 0; r < NODE_RANKS; r++)
      if (w.met[r] != w.met[0] || (w.moved[r] != w.moved[0] && w.met[0]))
        fail_msg("call %d of rank 0 fails: rank %d does not hear of it", (int)w.failing, r);
    if (vg_reports_with("race") + vg_reports_with("freed") + vg_reports_with("ipc") + vg_reports_with("leak") > 0)
      fail_msg("call %d of rank 0 fails: %s", (int)w.failing, vg_report(0));
  }
  assert_true(w.failing > 100);
}

RUN_CASES_IF(vg_sees_kernels(), "this build sees no accesses")
