/* Processes of a node with GPUs that do not make the same calls: none of them waits for its deadline, and all hear the
 * same. Hosts do not meet in an execute, so it is the later one that finds it. */
#include "columns.h"
#include "comm/node/node.h"
#include "node_gather.h"
#include "support/fixtures/case.h"

#include <stdio.h>

enum { SIDE = 24, MOST_BYTES = SIDE * SIDE / 2 };

typedef struct world world;

/* One rank, with two transfers of one plan, to an array each. */
typedef struct node_rank {
  world *w;
  int64_t rank;
  size_t bytes; /* of an array */
  reshard_device device;
  reshard_comm comm;
  reshard_plan plan;
  reshard_transfer one, other;
  cudaStream_t stream;
  char *src, *dst[2];
  const char *wrong; /* what is; NULL: nothing */
} node_rank;

struct world {
  int ranks, gpus;
  int64_t odd; /* rank that makes another call */
  int64_t timeout_ms;
  reshard_path paths[2]; /* of the two transfers */
  void (*body)(node_rank *me);
  const char *told; /* in the error of all; NULL: there is none */
  node_gather gather;
  rank_result opened[NODE_MOST_RANKS], heard[NODE_MOST_RANKS];
  const char *wrong[NODE_MOST_RANKS];
};

static reshard_status make_transfer(node_rank *me, int i, reshard_transfer *transfer) {
  const reshard_arrays arrays = {
      .size = RESHARD_ARRAYS_INIT, .src = (void *[]){me->src}, .dst = (void *[]){me->dst[i]}, .nsrc = 1, .ndst = 1};
  const reshard_transfer_options options = {.size = RESHARD_TRANSFER_OPTIONS_INIT, .path = me->w->paths[i]};
  return reshard_transfer_create(me->plan, me->comm, &arrays, &options, transfer);
}

static reshard_status open_rank(node_rank *me) {
  const world *w = me->w;
  char name[32];
  node_gatherer gatherer = {&me->w->gather, me->rank};
  reshard_node_options options = {.size = RESHARD_NODE_OPTIONS_INIT, .timeout_ms = w->timeout_ms};
  snprintf(name, sizeof name, "cuda:%d", (int)(me->rank % w->gpus));
  reshard_status status = columns_plan(SIDE, w->ranks, me->rank, &me->plan);
  RS_THEN(status, reshard_device_create(name, NULL, &me->device));
  options.device = me->device;
  RS_THEN(status, reshard_comm_create_node(w->ranks, me->rank, node_gather_all, &gatherer, &options, &me->comm));
  RS_THEN(status, make_transfer(me, 0, &me->one));
  RS_THEN(status, make_transfer(me, 1, &me->other));
  return status;
}

static void run_rank(void *user, int64_t rank) {
  world *w = user;
  node_rank me = {.w = w, .rank = rank, .bytes = (size_t)(SIDE * SIDE / w->ranks)};
  vg_process((int)rank);
  cudaSetDevice((int)(rank % w->gpus));
  cudaStreamCreateWithFlags(&me.stream, cudaStreamNonBlocking);
  cudaMalloc((void **)&me.src, me.bytes);
  for (int i = 0; i < 2; i++) {
    cudaMalloc((void **)&me.dst[i], me.bytes);
    cudaMemsetAsync(me.dst[i], 0xEE, me.bytes, me.stream);
  }
  cudaMemsetAsync(me.src, byte_of(0, rank), me.bytes, me.stream);
  cudaStreamSynchronize(me.stream);
  reshard_status status = open_rank(&me);
  rank_result_set(&w->opened[rank], status);
  if (status == RESHARD_SUCCESS)
    w->body(&me);
  w->wrong[rank] = me.wrong;
  reshard_transfer_destroy(me.one);
  reshard_transfer_destroy(me.other);
  cudaStreamSynchronize(me.stream);
  reshard_comm_destroy(me.comm);
  reshard_device_release(me.device);
  reshard_plan_destroy(me.plan);
  cudaFree(me.src);
  cudaFree(me.dst[0]);
  cudaFree(me.dst[1]);
  cudaStreamDestroy(me.stream);
}

static void run_world(world w, uint64_t seed) {
  node_gather_begin(&w.gather);
  w.gather.ranks = w.ranks;
  vg_begin(&(vg_options){.devices = w.gpus, .seed = seed});
  rank_threads_run(w.ranks, run_rank, &w);
  int reports = vg_end();
  node_gather_end(&w.gather);
  rank_results_assert(w.ranks, w.opened, RESHARD_SUCCESS, NULL, "opening");
  for (int r = 0; r < w.ranks; r++)
    if (w.wrong[r] != NULL)
      fail_msg("seed %d, rank %d of %d: %s", (int)seed, r, w.ranks, w.wrong[r]);
  if (w.told != NULL)
    rank_results_assert(w.ranks, w.heard, RESHARD_ERROR_MISMATCH, w.told, "different calls");
  if (reports != 0)
    fail_msg("seed %d: %s", (int)seed, vg_report(0));
}

/* From 2 to 4 ranks, on a GPU each or on one, with a deadline or none. */
static void run_worlds(world w) {
  for (uint64_t seed = 0; seed < 12; seed++) {
    w.ranks = 2 + (int)(seed % 3);
    w.gpus = seed % 2 == 0 ? w.ranks : 1;
    w.odd = (int64_t)(seed / 3) % w.ranks;
    w.timeout_ms = seed % 4 < 2 ? 0 : 60000;
    run_world(w, seed);
  }
}

/* Rows of other ranks are as they were. */
static bool is_unreceived(const node_rank *me, const char *dst) {
  char here[MOST_BYTES];
  const int64_t rows = SIDE / me->w->ranks;
  vg_peek(here, dst, me->bytes);
  for (int64_t i = 0; i < SIDE * rows; i++)
    if (i / rows / rows != me->rank && (unsigned char)here[i] != 0xEE)
      return false;
  return true;
}

/* Nothing has come, and the next calls of all say why. */
static void hear_of_it(node_rank *me) {
  NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
  NEED(me, is_unreceived(me, me->dst[0]) && is_unreceived(me, me->dst[1]));
  node_gather_meet(&me->w->gather);
  rank_result_set(&me->w->heard[me->rank], reshard_comm_barrier(me->comm));
  NEED(me, reshard_execute(me->one, me->stream) == RESHARD_ERROR_MISMATCH);
}

/* One rank executes another transfer than the others do. */
static void execute_different(node_rank *me) {
  reshard_status status = reshard_execute(me->rank == me->w->odd ? me->other : me->one, me->stream);
  NEED(me, status == RESHARD_SUCCESS || status == RESHARD_ERROR_MISMATCH);
  hear_of_it(me);
}

CASE(test_different_transfers) {
  world w = {.body = execute_different, .told = "execute different transfers"};
  w.paths[0] = w.paths[1] = RESHARD_PATH_DIRECT;
  run_worlds(w);
  w.paths[1] = RESHARD_PATH_PACKED;
  run_worlds(w);
}

/* The same after more executes than ranks keep in sight. None of these was wrong, though rank 1 begins when all of
 * rank 0 are given. */
static void execute_often_first(node_rank *me) {
  if (me->rank == 1)
    node_gather_meet(&me->w->gather);
  for (int i = 0; i < RS_NODE_EXECUTES + 10; i++)
    NEED(me, reshard_execute(i % 3 == 0 ? me->other : me->one, me->stream) == RESHARD_SUCCESS);
  if (me->rank == 0)
    node_gather_meet(&me->w->gather);
  NEED(me, reshard_comm_barrier(me->comm) == RESHARD_SUCCESS);
  NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
  for (int i = 0; i < 2; i++)
    cudaMemsetAsync(me->dst[i], 0xEE, me->bytes, me->stream);
  NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
  node_gather_meet(&me->w->gather);
  execute_different(me);
}

CASE(test_after_many) {
  world w = {.ranks = 2, .gpus = 2, .odd = 1, .body = execute_often_first, .told = "execute different transfers"};
  w.paths[0] = w.paths[1] = RESHARD_PATH_DIRECT;
  run_world(w, 3);
}

/* One rank meets the others' hosts, which execute instead. */
static void meet_instead(node_rank *me) {
  bool odd = me->rank == me->w->odd;
  reshard_status status = odd ? reshard_comm_barrier(me->comm) : reshard_execute(me->one, me->stream);
  NEED(me, status == RESHARD_ERROR_MISMATCH || (!odd && status == RESHARD_SUCCESS));
  hear_of_it(me);
}

CASE(test_meets_instead) {
  static const reshard_path paths[2] = {RESHARD_PATH_DIRECT, RESHARD_PATH_PACKED};
  for (int i = 0; i < 2; i++) {
    world w = {.body = meet_instead, .told = " is in reshard_comm_barrier, call "};
    w.paths[0] = w.paths[1] = paths[i];
    run_worlds(w);
  }
}

/* One rank launches a graph again and again, where the others call: nobody counts the launches. */
static void launch_instead(node_rank *me) {
  cudaGraph_t graph;
  cudaGraphExec_t exec = NULL;
  bool odd = me->rank == me->w->odd;
  if (odd) {
    NEED(me, cudaStreamBeginCapture(me->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    NEED(me, reshard_execute(me->one, me->stream) == RESHARD_SUCCESS);
    NEED(me, cudaStreamEndCapture(me->stream, &graph) == cudaSuccess);
    NEED(me, cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    cudaGraphDestroy(graph);
  }
  for (int i = 0; i < 3; i++)
    if (odd)
      NEED(me, cudaGraphLaunch(exec, me->stream) == cudaSuccess);
    else
      NEED(me, reshard_execute(me->one, me->stream) == RESHARD_SUCCESS);
  NEED(me, reshard_comm_barrier(me->comm) == RESHARD_SUCCESS);
  NEED(me, reshard_execute(me->other, me->stream) == RESHARD_SUCCESS);
  NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
  if (odd)
    cudaGraphExecDestroy(exec);
}

CASE(launch_in_place_of_an_execute_is_told) {
  static const reshard_path paths[2] = {RESHARD_PATH_DIRECT, RESHARD_PATH_PACKED};
  for (int i = 0; i < 2; i++)
    run_worlds((world){.body = launch_instead, .paths = {paths[i], paths[i]}});
}

RUN_CASES_IF(vg_sees_kernels(), "this build sees no accesses")
