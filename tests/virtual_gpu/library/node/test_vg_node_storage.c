/* Shared storage of GPUs: segments that processes of a node pass on to each other by descriptors, and map. Sharders
 * over node communicators of GPUs, whose tensors lie in such storage; they read it on an explicit path. */
#include "comm/node/node.h"
#include "explicit_path.h"
#include "support/contracts/dtensor.h"
#include "support/contracts/ends.h"
#include "support/contracts/fsdp.h"
#include "support/contracts/sharded.h"
#include "support/contracts/steady.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/processes/children.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

typedef struct world {
  node_gather gather;
  int gpus;
  int64_t timeout_ms;
  void (*body)(struct world *w, contract_rank *me, int64_t rank);
  explicit_scene *scene;
  int64_t failing; /* call of rank 0 that fails; 0: none */
  size_t limit;    /* of rank 1's pool; 0: none */
  reshard_path path;
  uint64_t seed;
  rank_result result[NODE_RANKS];
  int64_t wrong[NODE_RANKS];
} world;

static reshard_status open_rank(world *w, int64_t rank, contract_rank *me) {
  char name[32];
  node_gatherer gatherer = {&w->gather, rank};
  reshard_node_options options = {.size = RESHARD_NODE_OPTIONS_INIT, .timeout_ms = w->timeout_ms};
  const reshard_device_options shared = {
      .size = RESHARD_DEVICE_OPTIONS_INIT, .shared = 1, .limit_bytes = rank == 1 ? w->limit : 0};
  snprintf(name, sizeof name, "cuda:%d", (int)(rank % w->gpus));
  reshard_status status = reshard_device_create(name, &shared, &me->device);
  options.device = me->device;
  if (status != RESHARD_SUCCESS) /* the others hear of it */
    options.timeout_ms = -1;
  reshard_status made = reshard_comm_create_node(NODE_RANKS, rank, node_gather_all, &gatherer, &options, &me->comm);
  status = status != RESHARD_SUCCESS ? status : made;
  const reshard_sharder_options sharder = {.size = RESHARD_SHARDER_OPTIONS_INIT, .device = me->device, .path = w->path};
  if (status == RESHARD_SUCCESS)
    status = reshard_sharder_create(me->comm, &sharder, &me->sharder);
  return status;
}

static void run_rank(void *user, int64_t rank) {
  world *w = user;
  contract_rank me = {.copy = vg_copy};
  vg_process((int)rank);
  cudaSetDevice((int)(rank % w->gpus));
  cudaStreamCreateWithFlags((cudaStream_t *)&me.stream, cudaStreamNonBlocking);
  if (rank == 0 && w->failing > 0)
    vg_fail_here(NULL, w->failing, false, 0);
  reshard_status status = open_rank(w, rank, &me);
  if (status == RESHARD_SUCCESS)
    w->body(w, &me, rank);
  rank_result_set(&w->result[rank], status);
  w->wrong[rank] = me.wrong;
  reshard_sharder_destroy(me.sharder);
  reshard_comm_destroy(me.comm);
  reshard_device_release(me.device);
  vg_own_calls(true);
  cudaStreamDestroy(me.stream);
  vg_own_calls(false);
}

/* Reports. */
static int run_world(world *w, const vg_options *options) { return node_ranks_run(&w->gather, options, run_rank, w); }

static void run_right(world w) {
  int reports = run_world(&w, &(vg_options){.devices = w.gpus, .seed = w.seed});
  rank_results_assert(NODE_RANKS, w.result, RESHARD_SUCCESS, NULL, "opening");
  for (int r = 0; r < NODE_RANKS; r++)
    assert_int_equal(w.wrong[r], 0);
  assert_int_equal(reports, 0);
  assert_true(w.limit > 0 || vg_calls("cuMemImportFromShareableHandle") > 0);
}

/* --- Sharders ----------------------------------------------------------------------------------------------------- */

/* With a GPU each, and all with one; by messages, and with storage that ranks read. */
static void run_sharders(uint64_t seeds, void (*body)(world *w, contract_rank *me, int64_t rank)) {
  for (uint64_t seed = 0; seed < seeds; seed++)
    run_right((world){.gpus = seed % 3 == 1 ? 1 : NODE_RANKS,
                      .timeout_ms = 60000,
                      .body = body,
                      .path = seed % 2 == 0 ? RESHARD_PATH_AUTO : RESHARD_PATH_DIRECT,
                      .seed = seed});
}

static void check_dtensors(world *w, contract_rank *me, int64_t rank) {
  for (uint64_t i = 0; i < 3; i++)
    contract_check_dtensor(me, 3 * w->seed + i);
}

CASE(contracts_of_dtensors_hold_between_processes) { run_sharders(12, check_dtensors); }

static void reshard_tensors(world *w, contract_rank *me, int64_t rank) {
  contract_check_sharded(me, w->seed);
  contract_check_refusals(me);
  if (w->seed < 2) /* by each path */
    contract_check_steady(me);
  if (w->seed < 2)
    contract_check_ends(me);
  if (w->seed < 1)
    contract_check_poll(me, true);
  if (w->seed < 2)
    contract_check_losses(me, true);
}

CASE(sharded_tensors_move_between_processes) { run_sharders(8, reshard_tensors); }

static void gather_layers(world *w, contract_rank *me, int64_t rank) { contract_check_fsdp(me, w->seed); }

CASE(layers_are_gathered_between_processes) { run_sharders(2, gather_layers); }

/* --- Descriptors and memory --------------------------------------------------------------------------------------- */

/* The pool counts the mailboxes, which its limit is for, too: two slots of 2 MiB for each peer, and the words. Ranks
 * that read each other have words alone. */
static void count_mailboxes(world *w, contract_rank *me, int64_t rank) {
  const size_t slots = w->path == RESHARD_PATH_DIRECT ? 0 : 2 * (NODE_RANKS - 1) * (2 << 20);
  const char *part = "rank 1: mailboxes and words of meetings: ";
  moving m = {.mesh = NULL};
  reshard_memory_stats before, after;
  CONTRACT_SUCCEEDS(me, begin_moving(me, 3 << 10, &m));
  CONTRACT_SUCCEEDS(me, reshard_device_get_memory_stats(me->device, &before));
  CONTRACT_CHECK(me, before.meeting_bytes == 0);
  for (int i = 0; i < 2; i++)
    CONTRACT_ALL(me, move_once(me, 1 - i, &m), w->limit > 0 ? RESHARD_ERROR_OUT_OF_MEMORY : RESHARD_SUCCESS, part);
  CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
  CONTRACT_SUCCEEDS(me, reshard_device_get_memory_stats(me->device, &after));
  if (w->limit > 0) {
    CONTRACT_CHECK(me, after.meeting_bytes == 0 || (rank != 1 && slots == 0)); /* words stay for the next transfer */
    CONTRACT_CHECK(me, rank != 1 || after.peak_held_bytes <= w->limit);
  } else {
    CONTRACT_CHECK(me, after.meeting_bytes > slots && after.meeting_bytes <= slots + (2 << 20));
    CONTRACT_CHECK(me, after.in_use_bytes >= before.in_use_bytes + after.meeting_bytes);
    CONTRACT_CHECK(me, after.peak_held_bytes >= after.in_use_bytes);
  }
  end_moving(&m);
  reshard_sharder_destroy(me->sharder);
  me->sharder = NULL;
  reshard_comm_destroy(me->comm);
  me->comm = NULL;
  CONTRACT_SUCCEEDS(me, reshard_device_get_memory_stats(me->device, &after));
  CONTRACT_CHECK(me, after.meeting_bytes == 0 && after.in_use_bytes == 0);
}

CASE(mailboxes_count_with_the_pool) {
  static const size_t limits[4] = {0, 6 << 20, 0, 3 << 20};
  for (int i = 0; i < 4; i++)
    run_right((world){.gpus = NODE_RANKS,
                      .timeout_ms = 60000,
                      .body = count_mailboxes,
                      .limit = limits[i],
                      .path = i < 2 ? RESHARD_PATH_AUTO : RESHARD_PATH_DIRECT});
}

/* Pools give all back in each turn: peers close it in the next one, so memory does not grow. */
static void move_and_trim(world *w, contract_rank *me, int64_t rank) {
  moving m = {.mesh = NULL};
  size_t used[CALLS] = {0};
  CONTRACT_SUCCEEDS(me, begin_moving(me, 3 << 19, &m));
  for (int i = 0; i < 2 * CALLS; i++) {
    CONTRACT_SUCCEEDS(me, move_once(me, (i + 1) % 2, &m));
    CONTRACT_SUCCEEDS(me, reshard_device_trim(me->device, 0));
    CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
    CONTRACT_CHECK(me, i % 2 == 1 || is_moved(&m));
    node_gather_meet(&w->gather);
    used[i / 2] = vg_memory_used((int)rank);
    node_gather_meet(&w->gather);
  }
  CONTRACT_CHECK(me, used[1] == used[2] && used[2] == used[3]);
  end_moving(&m);
}

CASE(test_freed_memory) {
  for (uint64_t seed = 0; seed < 2; seed++)
    run_right((world){
        .gpus = NODE_RANKS, .timeout_ms = 60000, .body = move_and_trim, .path = RESHARD_PATH_DIRECT, .seed = seed});
}

/* A segment is passed on to each rank once, whatever is made of it: one of storage, one of all flags of barriers. */
static void move_again(world *w, contract_rank *me, int64_t rank) {
  moving m = {.mesh = NULL};
  static int64_t imports, exports;
  CONTRACT_SUCCEEDS(me, begin_moving(me, 12, &m));
  for (int i = 0; i < CALLS; i++) {
    CONTRACT_SUCCEEDS(me, move_once(me, (i + 1) % 2, &m));
    node_gather_meet(&w->gather);
    if (rank == 0 && i == 0)
      imports = vg_calls("cuMemImportFromShareableHandle"), exports = vg_calls("cuMemExportToShareableHandle");
  }
  if (rank == 0) {
    CONTRACT_CHECK(me, exports == imports && vg_calls("cuMemExportToShareableHandle") == exports);
    CONTRACT_CHECK(me, imports == 2 * NODE_RANKS * (NODE_RANKS - 1));
    CONTRACT_CHECK(me, vg_calls("cuMemImportFromShareableHandle") == imports);
  }
  end_moving(&m);
}

CASE(test_passed_once) {
  world w = {.gpus = NODE_RANKS, .timeout_ms = 60000, .body = move_again, .path = RESHARD_PATH_DIRECT};
  run_right(w);
  int64_t descriptors = count_descriptors();
  w.seed = 1;
  run_right(w);
  assert_int_equal(count_descriptors(), descriptors);
}

/* --- Calls on an explicit path ---------------------------------------------------------------------------------- */

static uint64_t meetings_of(reshard_comm comm) { return rs_node_of(comm)->meetings; }

static explicit_comm explicit_of(world *w) {
  return (explicit_comm){&w->gather, meetings_of, false, w->gpus, 1, w->path};
}

static void follow_explicit(world *w, contract_rank *me, int64_t rank) {
  const explicit_comm c = explicit_of(w);
  w->scene(&c, me, rank);
}

CASE(explicit_paths_read_memory_of_other_processes) {
  static explicit_scene *const bodies[] = {
      explicit_in_place,        explicit_elsewhere,        explicit_from_outside,    explicit_with_others,
      explicit_trimmed,         explicit_on_two_streams,   explicit_captured_by_one, explicit_unpinned,
      explicit_freed_elsewhere, explicit_freed_and_failed, explicit_beside_transfers};
  for (uint64_t i = 0; i < 2 * sizeof bodies / sizeof *bodies; i++)
    run_right((world){.gpus = i % 2 == 0 ? NODE_RANKS : 1,
                      .timeout_ms = 60000,
                      .body = follow_explicit,
                      .scene = bodies[i / 2],
                      .path = RESHARD_PATH_DIRECT,
                      .seed = i});
}

/* --- Edges and faults --------------------------------------------------------------------------------------------- */

/* Not where a call is to fail: an end frees streams that wait for readers. */
static void overwrite(const world *w, const contract_rank *me, reshard_dtensor tensor, int byte) {
  reshard_tensor_info info;
  if (w->failing > 0)
    return;
  (void)reshard_tensor_get_info(reshard_dtensor_local(tensor), &info);
  vg_own_calls(true);
  cudaMemsetAsync(info.data, byte, 12, me->stream);
  vg_own_calls(false);
}

/* Each source is written before its call, and after it. */
static void move_on(world *w, contract_rank *me, int64_t rank) {
  moving m = {.mesh = NULL};
  reshard_status status = begin_moving(me, 12, &m);
  for (int i = 0; i < CALLS && status == RESHARD_SUCCESS; i++) {
    reshard_dtensor source = reshard_dtensor_retain(m.tensor);
    overwrite(w, me, source, 2 * i);
    status = move_once(me, (i + 1) % 2, &m);
    overwrite(w, me, source, 2 * i + 1);
    reshard_dtensor_release(source);
  }
  vg_own_calls(true);
  cudaStreamSynchronize(me->stream);
  vg_own_calls(false);
  end_moving(&m);
}

CASE(every_edge_of_shared_storage_is_needed) {
  world w = {.gpus = NODE_RANKS, .body = move_on, .path = RESHARD_PATH_DIRECT, .timeout_ms = 60000};
  vg_edge_result r = vg_for_each_edge(
      &(vg_edge_search){.path = "sharders of processes of a node",
                        .run = node_scenario_run,
                        .user = &(node_scenario){&w.gather, run_rank, &w},
                        .options = {.devices = NODE_RANKS, .seed = 1},
                        .seeds = 3,
                        .covered = "making a transfer waits for hosts, and so does its end; calls are on one stream",
                        .covered_edges = "execute before host|copy after peers|user after peers|"
                                         "execute after execute"});
  assert_int_equal(r.false_alarms, 0);
  assert_int_equal(r.found + r.covered, r.uses);
  assert_true(r.found >= 5 * NODE_RANKS);
}

/* Executes of one transfer on two streams: two kernels write their flags at once where nothing orders them. */
CASE(test_shared_transfer) {
  world w = {.gpus = NODE_RANKS,
             .body = follow_explicit,
             .scene = explicit_on_two_streams,
             .path = RESHARD_PATH_DIRECT,
             .timeout_ms = 60000};
  vg_edge_result r = vg_for_each_edge(&(vg_edge_search){
      .path = "sharders of processes of a node, two streams",
      .run = node_scenario_run,
      .user = &(node_scenario){&w.gather, run_rank, &w},
      .options = {.devices = NODE_RANKS, .seed = 1},
      .seeds = vg_proving() ? 12 : 6,
      .only = "execute after execute",
      .covered = "a rank meets its peers in each execute: few schedules have two of one rank under way"});
  assert_int_equal(r.false_alarms, 0);
  assert_int_equal(r.found + r.covered, r.uses);
  assert_true(r.found > 0);
}

/* One call of rank 0 fails, whichever, or each fourth: nobody hangs, and nothing is left. */
CASE(every_failing_call_of_shared_storage_is_told) {
  int64_t fired = 1, descriptors = 0;
  world w = {.gpus = NODE_RANKS, .body = move_on, .path = RESHARD_PATH_DIRECT, .timeout_ms = 1000};
  for (w.failing = 1; fired > 0; w.failing += vg_proving() ? 1 : 4) {
    int reports = run_world(&w, &(vg_options){.devices = NODE_RANKS, .seed = (uint64_t)w.failing});
    fired = vg_failed();
    if (reports != 0)
      fail_msg("call %lld of rank 0 fails", (long long)w.failing);
    if (w.failing == 1)
      descriptors = count_descriptors();
    assert_int_equal(count_descriptors(), descriptors);
  }
  assert_true(w.failing > 50);
}

RUN_CASES_IF(vg_sees_kernels(), "this build sees no accesses")
