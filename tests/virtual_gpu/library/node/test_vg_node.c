/* Node communicators over GPUs: each rank is a process of the virtual GPU, with a GPU of its own or all with one. Ranks
 * read each other's arrays by CUDA IPC, and their streams meet by words in memory of the GPUs. Where they cannot, they
 * send messages through mailboxes there. */
#include "columns.h"
#include "comm/comm.h"
#include "kernels/barrier.h"
#include "node_gather.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = NODE_RANKS, SIDE = 12, ROWS = SIDE / RANKS, BYTES = SIDE * ROWS, ROUNDS = 3 };

typedef struct world world;

/* One rank. */
typedef struct node_rank {
  world *w;
  int64_t rank;
  reshard_device device;
  reshard_comm comm;
  reshard_plan plan;
  reshard_transfer transfer;
  cudaStream_t stream;
  char *src, *dst;
  const char *wrong; /* what is; NULL: nothing */
} node_rank;

struct world {
  int gpus;
  int64_t timeout_ms;
  reshard_path path; /* AUTO: direct, of memory of cudaMalloc */
  bool automatic;    /* AUTO */
  void (*body)(node_rank *me);
  node_gather gather;
  enum { PLAIN, POOLED, PINNED, MAPPED } kind; /* of memory, rank 1's source: which cudaMalloc has not given */
  rank_result result[RANKS];
  const char *wrong[RANKS];
};

static reshard_status make_plan(node_rank *me) { return columns_plan(SIDE, RANKS, me->rank, &me->plan); }

static void alloc_source(node_rank *me, int gpu) {
  if (me->rank != 1 || me->w->kind == PLAIN)
    cudaMalloc((void **)&me->src, BYTES);
  else if (me->w->kind == POOLED)
    cudaMallocAsync((void **)&me->src, BYTES, me->stream);
  else if (me->w->kind == PINNED)
    cudaMallocHost((void **)&me->src, BYTES);
  else
    me->src = vg_map(gpu, BYTES);
}

static void free_source(node_rank *me) {
  if (me->rank != 1 || me->w->kind == PLAIN)
    cudaFree(me->src);
  else if (me->w->kind == POOLED)
    cudaFreeAsync(me->src, me->stream);
  else if (me->w->kind == PINNED)
    cudaFreeHost(me->src);
  else
    vg_unmap(me->src);
}

static reshard_status open_rank(node_rank *me) {
  char name[32];
  int gpu = (int)(me->rank % me->w->gpus);
  node_gatherer gatherer = {&me->w->gather, me->rank};
  reshard_node_options options = {.size = RESHARD_NODE_OPTIONS_INIT, .timeout_ms = me->w->timeout_ms};
  vg_process((int)me->rank);
  cudaSetDevice(gpu);
  cudaStreamCreateWithFlags(&me->stream, cudaStreamNonBlocking);
  alloc_source(me, gpu);
  cudaMalloc((void **)&me->dst, BYTES);
  cudaMemsetAsync(me->dst, 0xEE, BYTES, me->stream);
  cudaStreamSynchronize(me->stream);
  snprintf(name, sizeof name, "cuda:%d", gpu);
  reshard_status status = make_plan(me);
  RS_THEN(status, reshard_device_create(name, NULL, &me->device));
  options.device = me->device;
  vg_own_calls(false); /* a rank that fails from here on tells the others */
  RS_THEN(status, reshard_comm_create_node(RANKS, me->rank, node_gather_all, &gatherer, &options, &me->comm));
  return status;
}

static reshard_status make_transfer(node_rank *me, char *src, char *dst) {
  reshard_arrays arrays = {
      .size = RESHARD_ARRAYS_INIT, .src = (void *[]){src}, .dst = (void *[]){dst}, .nsrc = 1, .ndst = 1};
  reshard_transfer_options options = {.size = RESHARD_TRANSFER_OPTIONS_INIT, .path = me->w->path};
  if (options.path == RESHARD_PATH_AUTO && !me->w->automatic)
    options.path = RESHARD_PATH_DIRECT;
  return reshard_transfer_create(me->plan, me->comm, &arrays, &options, &me->transfer);
}

static void close_rank(node_rank *me) {
  reshard_transfer_destroy(me->transfer);
  cudaStreamSynchronize(me->stream);
  reshard_comm_destroy(me->comm);
  reshard_device_release(me->device);
  reshard_plan_destroy(me->plan);
  free_source(me);
  cudaFree(me->dst);
  cudaStreamDestroy(me->stream);
}

static void run_rank(void *user, int64_t rank) {
  world *w = user;
  node_rank me = {.w = w, .rank = rank};
  reshard_status status = open_rank(&me);
  RS_THEN(status, make_transfer(&me, me.src, me.dst));
  rank_result_set(&w->result[rank], status);
  if (status == RESHARD_SUCCESS)
    w->body(&me);
  close_rank(&me);
  w->wrong[rank] = me.wrong;
}

/* Reports. */
static int run_world(world *w, const vg_options *options) { return node_ranks_run(&w->gather, options, run_rank, w); }

static void assert_right(const world *w) {
  for (int r = 0; r < RANKS; r++)
    if (w->wrong[r] != NULL)
      fail_msg("rank %d: %s", r, w->wrong[r]);
}

static bool is_moved(const char *dst, int round) {
  char here[BYTES];
  vg_peek(here, dst, BYTES);
  for (int row = 0; row < SIDE; row++)
    for (int column = 0; column < ROWS; column++)
      if (here[row * ROWS + column] != byte_of(round, row / ROWS))
        return false;
  return true;
}

static bool is_untouched(const char *dst) {
  char here[BYTES];
  vg_peek(here, dst, BYTES);
  for (int i = 0; i < BYTES; i++)
    if ((unsigned char)here[i] != 0xEE)
      return false;
  return true;
}

/* --- Promises kept ------------------------------------------------------------------------------------------------ */

static void move_again_and_again(node_rank *me) {
  for (int round = 0; round < ROUNDS; round++) {
    cudaMemsetAsync(me->src, byte_of(round, me->rank), BYTES, me->stream);
    NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
    if (round == 1)
      continue; /* the host does not wait between this one and the next */
    NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
    NEED(me, is_moved(me->dst, round));
  }
  cudaMemsetAsync(me->src, 0, BYTES, me->stream);
}

CASE(ranks_read_each_others_arrays) {
  for (uint64_t seed = 0; seed < 12; seed++) {
    world w = {.gpus = seed % 2 == 0 ? RANKS : 1, .body = move_again_and_again, .timeout_ms = 60000};
    int reports = run_world(&w, &(vg_options){.devices = w.gpus, .seed = seed});
    rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a transfer");
    assert_right(&w);
    assert_int_equal(reports, 0);
  }
}

/* A call that has been made before waits for nothing, and asks the driver for nothing. */
static void count_calls(node_rank *me) {
  enum { CALLS = 3 };
  static vg_counts before;
  cudaMemsetAsync(me->src, byte_of(0, me->rank), BYTES, me->stream);
  NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
  cudaStreamSynchronize(me->stream);
  node_gather_meet(&me->w->gather);
  if (me->rank == 0)
    before = vg_count();
  node_gather_meet(&me->w->gather);
  for (int i = 0; i < CALLS; i++)
    NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
  node_gather_meet(&me->w->gather);
  if (me->rank == 0) {
    vg_counts now = vg_count();
    NEED(me, now.allocs == before.allocs && now.frees == before.frees);
    NEED(me, now.creates == before.creates && now.host_syncs == before.host_syncs);
    NEED(me, now.launches - before.launches == CALLS * RANKS * 3); /* two meetings and a copy */
  }
  node_gather_meet(&me->w->gather);
  cudaStreamSynchronize(me->stream);
}

CASE(test_later_calls_wait_for_nothing) {
  world w = {.gpus = RANKS, .body = count_calls, .timeout_ms = 60000};
  assert_int_equal(run_world(&w, &(vg_options){.devices = RANKS, .seed = 5}), 0);
  assert_right(&w);
}

static cudaGraphExec_t capture_execute(node_rank *me) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  NEED(me, cudaStreamBeginCapture(me->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
  NEED(me, cudaStreamEndCapture(me->stream, &graph) == cudaSuccess);
  NEED(me, cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
  cudaGraphDestroy(graph);
  return exec;
}

/* A graph holds the meetings: their numbers go on with each launch. */
static void launch_graph(node_rank *me) {
  cudaGraphExec_t exec = capture_execute(me);
  for (int round = 0; round < ROUNDS; round++) {
    cudaMemsetAsync(me->src, byte_of(round, me->rank), BYTES, me->stream);
    NEED(me, cudaGraphLaunch(exec, me->stream) == cudaSuccess);
    if (round == ROUNDS - 1)
      cudaStreamSynchronize(me->stream);
    NEED(me, round < ROUNDS - 1 || is_moved(me->dst, round));
  }
  cudaGraphExecDestroy(exec);
}

CASE(graphs_move_without_the_host) {
  for (uint64_t seed = 0; seed < 6; seed++) {
    world w = {.gpus = RANKS, .body = launch_graph, .timeout_ms = 60000};
    assert_int_equal(run_world(&w, &(vg_options){.devices = RANKS, .seed = seed}), 0);
    assert_right(&w);
  }
}

/* After a rebind the old arrays are the owner's alone: nobody has them open. */
static void rebind_arrays(node_rank *me) {
  char *src, *dst;
  cudaMemsetAsync(me->src, byte_of(0, me->rank), BYTES, me->stream);
  NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
  cudaMalloc((void **)&src, BYTES + 100);
  cudaMalloc((void **)&dst, BYTES);
  reshard_arrays arrays = {
      .size = RESHARD_ARRAYS_INIT, .src = (void *[]){src + 100}, .dst = (void *[]){dst}, .nsrc = 1, .ndst = 1};
  NEED(me, reshard_transfer_rebind(me->transfer, &arrays) == RESHARD_SUCCESS);
  NEED(me, is_moved(me->dst, 0));
  cudaFree(me->src);
  cudaFree(me->dst);
  me->src = src;
  me->dst = dst;
  cudaMemsetAsync(src + 100, byte_of(1, me->rank), BYTES, me->stream);
  NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
  cudaStreamSynchronize(me->stream);
  NEED(me, is_moved(dst, 1));
}

CASE(rebinds_read_the_new_arrays) {
  for (uint64_t seed = 0; seed < 6; seed++) {
    world w = {.gpus = RANKS, .body = rebind_arrays, .timeout_ms = 60000};
    assert_int_equal(run_world(&w, &(vg_options){.devices = RANKS, .seed = seed}), 0);
    assert_right(&w);
  }
}

/* Rank 1 replays its part of each execute, the others give it to their streams. */
static void launch_beside(node_rank *me) {
  if (me->rank != 1) {
    move_again_and_again(me);
    return;
  }
  cudaGraphExec_t exec = capture_execute(me);
  for (int round = 0; round < ROUNDS; round++) {
    cudaMemsetAsync(me->src, byte_of(round, me->rank), BYTES, me->stream);
    NEED(me, cudaGraphLaunch(exec, me->stream) == cudaSuccess);
    if (round == 1)
      continue;
    NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
    NEED(me, is_moved(me->dst, round));
  }
  cudaGraphExecDestroy(exec);
}

CASE(test_graph_of_one_rank) {
  for (uint64_t seed = 0; seed < 6; seed++) {
    world w = {.gpus = seed % 2 == 0 ? RANKS : 1, .body = launch_beside, .timeout_ms = 60000};
    w.path = seed < 4 ? RESHARD_PATH_PACKED : RESHARD_PATH_DIRECT;
    assert_int_equal(run_world(&w, &(vg_options){.devices = w.gpus, .seed = seed}), 0);
    rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a transfer");
    assert_right(&w);
  }
}

CASE(memory_that_cannot_be_opened_is_refused_on_an_explicit_path) {
  for (int kind = POOLED; kind <= MAPPED; kind++) {
    world w = {.gpus = RANKS, .timeout_ms = 60000, .kind = kind, .path = RESHARD_PATH_DIRECT};
    assert_int_equal(run_world(&w, &(vg_options){.devices = RANKS}), 0);
    rank_results_assert(RANKS, w.result, RESHARD_ERROR_UNSUPPORTED, "rank 1 has a source of entry 0 'weights'",
                        "memory that no other process opens");
  }
}

static void move_packed(node_rank *me) {
  reshard_transfer_info info = {.path = RESHARD_PATH_AUTO};
  NEED(me, reshard_transfer_get_info(me->transfer, &info) == RESHARD_SUCCESS && info.path == RESHARD_PATH_PACKED);
  move_again_and_again(me);
}

static void launch_packed(node_rank *me) {
  move_packed(me);
  launch_graph(me);
}

/* Where one rank has memory that is no storage of `shared` devices all take the packed path, unless the path is
 * explicit. */
CASE(memory_that_is_not_shared_is_packed) {
  for (int kind = PLAIN; kind <= MAPPED; kind++) {
    world w = {.gpus = RANKS, .timeout_ms = 60000, .kind = kind, .body = kind == PINNED ? move_packed : launch_packed};
    w.automatic = true;
    assert_int_equal(run_world(&w, &(vg_options){.devices = RANKS, .seed = (uint64_t)kind}), 0);
    rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a packed transfer");
    assert_right(&w);
  }
}

/* Two transfers on two branches of one graph, of which only the communicator has the order. */
static void launch_forked(node_rank *me) {
  char *dst;
  cudaStream_t side;
  cudaEvent_t fork, join;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  reshard_transfer one = me->transfer, other;
  cudaMalloc((void **)&dst, BYTES);
  cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
  NEED(me, make_transfer(me, me->src, dst) == RESHARD_SUCCESS);
  other = me->transfer;
  me->transfer = one;
  cudaMemsetAsync(me->src, byte_of(0, me->rank), BYTES, me->stream);
  NEED(me, reshard_execute(one, me->stream) == RESHARD_SUCCESS); /* in no graph */
  for (int again = 0; again < 2; again++) {
    NEED(me, cudaStreamBeginCapture(me->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    NEED(me, cudaEventRecord(fork, me->stream) == cudaSuccess && cudaStreamWaitEvent(side, fork, 0) == cudaSuccess);
    NEED(me, reshard_execute(one, me->stream) == RESHARD_SUCCESS);
    NEED(me, reshard_execute(other, side) == RESHARD_SUCCESS);
    NEED(me, cudaEventRecord(join, side) == cudaSuccess && cudaStreamWaitEvent(me->stream, join, 0) == cudaSuccess);
    NEED(me, cudaStreamEndCapture(me->stream, &graph) == cudaSuccess);
    NEED(me, cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    for (int round = 0; round < ROUNDS; round++) {
      cudaMemsetAsync(me->src, byte_of(round, me->rank), BYTES, me->stream);
      NEED(me, cudaGraphLaunch(exec, me->stream) == cudaSuccess);
    }
    cudaStreamSynchronize(me->stream);
    NEED(me, is_moved(me->dst, ROUNDS - 1) && is_moved(dst, ROUNDS - 1));
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }
  reshard_transfer_destroy(other);
  cudaEventDestroy(fork);
  cudaEventDestroy(join);
  cudaStreamDestroy(side);
  cudaFree(dst);
}

CASE(test_forked_graph) {
  for (uint64_t seed = 0; seed < 6; seed++) {
    world w = {.gpus = RANKS, .body = launch_forked, .timeout_ms = 60000, .path = RESHARD_PATH_PACKED};
    assert_int_equal(run_world(&w, &(vg_options){.devices = RANKS, .seed = seed}), 0);
    rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a packed transfer");
    assert_right(&w);
  }
}

/* --- Ranks that execute different transfers ----------------------------------------------------------------------- */

/* Rows of other ranks are as they were. */
static bool is_unreceived(const char *dst, int64_t rank) {
  char here[BYTES];
  vg_peek(here, dst, BYTES);
  for (int i = 0; i < BYTES; i++)
    if (i / ROWS / ROWS != rank && (unsigned char)here[i] != 0xEE)
      return false;
  return true;
}

/* Two transfers of one plan. Rank 1 executes the other one: nothing is received, and all hear of it. */
static void execute_different(node_rank *me) {
  char *dst;
  reshard_transfer one = me->transfer, other;
  cudaMalloc((void **)&dst, BYTES);
  cudaMemsetAsync(dst, 0xEE, BYTES, me->stream);
  NEED(me, make_transfer(me, me->src, dst) == RESHARD_SUCCESS);
  other = me->transfer;
  me->transfer = one;
  cudaMemsetAsync(me->src, byte_of(0, me->rank), BYTES, me->stream);
  NEED(me, reshard_execute(me->rank == 1 ? other : one, me->stream) == RESHARD_SUCCESS);
  NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
  NEED(me, is_unreceived(me->dst, me->rank) && is_unreceived(dst, me->rank));
  node_gather_meet(&me->w->gather); /* one that has found it does not wait for who has not executed yet */
  NEED(me, reshard_comm_barrier(me->comm) == RESHARD_ERROR_MISMATCH);
  NEED(me, strstr(reshard_last_error(), "execute different transfers") != NULL);
  NEED(me, reshard_execute(one, me->stream) == RESHARD_ERROR_MISMATCH);
  reshard_transfer_destroy(other);
  cudaFree(dst);
}

CASE(test_different_transfers) {
  for (uint64_t seed = 0; seed < 6; seed++) {
    world w = {.gpus = seed % 2 == 0 ? RANKS : 1, .body = execute_different, .path = RESHARD_PATH_PACKED};
    assert_int_equal(run_world(&w, &(vg_options){.devices = w.gpus, .seed = seed}), 0);
    rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a packed transfer");
    assert_right(&w);
  }
}

/* --- The order of peers ------------------------------------------------------------------------------------------- */

static const rs_device_processes *original;
static const char *sent_to[RANKS][RANKS], *received_from[RANKS][RANKS]; /* slots, by rank, in the order of copies */

/* Notes in which slots a rank's messages lie: it sends to its own room, and receives from those of its peers. */
static reshard_status record_copy(rs_device *device, const rs_stream_barrier *meeting, int64_t n, const rs_span *spans,
                                  void *stream) {
  const char *room = original->room(meeting, -1);
  for (int64_t i = 0; i < n && n == RANKS - 1; i++)
    if (spans[i].dst >= room && spans[i].dst < room + (64 << 20))
      sent_to[device->index][i] = spans[i].dst;
    else
      received_from[device->index][i] = spans[i].src;
  return original->copy(device, meeting, n, spans, stream);
}

/* Peers are numbered by rank, and slots and rooms are in the order of peers. */
static void move_in_order(node_rank *me) {
  static rs_device_processes recording[RANKS];
  rs_device *device = me->comm->device;
  rs_stream_barrier *meeting = me->comm->waits.barrier;
  node_gather_meet(&me->w->gather);
  if (me->rank == 0) {
    original = device->processes;
    memset(sent_to, 0, sizeof sent_to);
    memset(received_from, 0, sizeof received_from);
  }
  node_gather_meet(&me->w->gather);
  recording[me->rank] = *original;
  recording[me->rank].copy = record_copy;
  device->processes = &recording[me->rank];
  move_packed(me);
  device->processes = original;
  const char *const *sent = sent_to[me->rank], *const *received = received_from[me->rank];
  bool up = me->rank != 1; /* the peers after rank 1 are 2 and 0 */
  NEED(me, sent[0] != NULL && sent[1] != NULL && (sent[0] < sent[1]) == up);
  for (int i = 0; i < RANKS - 1; i++) {
    const char *room = original->room(meeting, up ? i : 1 - i), *other = original->room(meeting, up ? 1 - i : i);
    NEED(me, received[i] >= room && !(room < other && other <= received[i]));
  }
}

CASE(packed_executes_follow_one_another) {
  world w = {.gpus = RANKS, .timeout_ms = 60000, .body = move_in_order, .path = RESHARD_PATH_PACKED};
  assert_int_equal(run_world(&w, &(vg_options){.devices = RANKS, .seed = 1}), 0);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a packed transfer");
  assert_right(&w);
}

static const rs_device_work *original_work;
static int dealt_peers[RANKS]; /* of a rank's copies; -1: their tiles are not dealt */

static reshard_status record_compile(rs_device *device, const rs_copies *copies, int64_t total_bytes,
                                     rs_program **program) {
  int *peers = &dealt_peers[device->index];
  *peers = copies->deal ? 1 : -1;
  for (int64_t i = 1; i < copies->copy.n && copies->deal; i++)
    *peers += copies->copy.at[i].peer != copies->copy.at[i - 1].peer;
  return original_work->compile(device, copies, total_bytes, program);
}

/* Sources on several GPUs are read in turn, tile by tile. */
static void bind_dealt(node_rank *me) {
  static rs_device_work recording;
  rs_device *device = me->comm->device;
  reshard_arrays same = {
      .size = RESHARD_ARRAYS_INIT, .src = (void *[]){me->src}, .dst = (void *[]){me->dst}, .nsrc = 1, .ndst = 1};
  if (me->rank == 0) {
    original_work = device->work;
    recording = *original_work;
    recording.compile = record_compile;
  }
  node_gather_meet(&me->w->gather);
  device->work = &recording;
  NEED(me, reshard_transfer_rebind(me->transfer, &same) == RESHARD_SUCCESS);
  device->work = original_work;
  NEED(me, dealt_peers[me->rank] == RANKS);
  move_again_and_again(me);
}

CASE(direct_transfers_deal_the_tiles_of_peers) {
  world w = {.gpus = RANKS, .timeout_ms = 60000, .body = bind_dealt};
  assert_int_equal(run_world(&w, &(vg_options){.devices = RANKS, .seed = 1}), 0);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a direct transfer");
  assert_right(&w);
}

/* --- Ranks that are late, and aborts ------------------------------------------------------------------------------ */

/* Rank 2 does not execute. The others' streams end by the deadline, nothing is written, and the next call tells. */
static void come_without_one(node_rank *me) {
  int64_t missing[RANKS], n = 0;
  if (me->rank < 2) {
    NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
    NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
    NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
    NEED(me, is_untouched(me->dst));
    reshard_status status = reshard_execute(me->transfer, me->stream);
    NEED(me, status == RESHARD_ERROR_PEER && strstr(reshard_last_error(), "missing: 2") != NULL);
    NEED(me, reshard_comm_missing(me->comm, missing, &n) == RESHARD_SUCCESS && n == 1 && missing[0] == 2);
  }
  node_gather_meet(&me->w->gather);
  NEED(me, reshard_comm_barrier(me->comm) == RESHARD_ERROR_PEER);
}

CASE(late_rank_ends_the_streams_at_the_deadline) {
  for (uint64_t seed = 0; seed < 6; seed++) {
    world w = {.gpus = RANKS, .body = come_without_one, .timeout_ms = 100};
    assert_int_equal(run_world(&w, &(vg_options){.devices = RANKS, .seed = seed}), 0);
    /* Of each rank's three barriers that find it closed; nothing of peers' memory, which may be gone. */
    assert_int_equal(vg_count().closed_bytes, 2 * 3 * (sizeof(rs_barrier_state) + 2 * sizeof(rs_barrier_peer)));
    assert_right(&w);
  }
}

static void abort_instead(node_rank *me) {
  if (me->rank == 1)
    NEED(me, reshard_comm_abort(me->comm) == RESHARD_SUCCESS);
  else if (reshard_execute(me->transfer, me->stream) != RESHARD_SUCCESS)
    NEED(me, strstr(reshard_last_error(), "rank 1 aborted") != NULL);
  NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
  NEED(me, is_untouched(me->dst));
  NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_ERROR_PEER);
}

CASE(abort_ends_the_streams_without_a_deadline) {
  for (uint64_t seed = 0; seed < 12; seed++) {
    world w = {.gpus = RANKS, .body = abort_instead}; /* no deadline */
    assert_int_equal(run_world(&w, &(vg_options){.devices = RANKS, .seed = seed}), 0);
    assert_right(&w);
  }
}

/* Rank 2 is stuck while the others destroy their transfers: it has their words open still, so that these stay. */
static void destroy_without_one(node_rank *me) {
  if (me->rank < 2) {
    reshard_transfer_destroy(me->transfer);
    me->transfer = NULL;
  }
  node_gather_meet(&me->w->gather);
  reshard_transfer_destroy(me->transfer);
  me->transfer = NULL;
  node_gather_meet(&me->w->gather);
}

CASE(destroy_without_a_rank_ends_at_the_deadline) {
  for (uint64_t seed = 0; seed < 6; seed++) {
    world w = {.gpus = RANKS, .body = destroy_without_one, .timeout_ms = 100};
    assert_int_equal(run_world(&w, &(vg_options){.devices = RANKS, .seed = seed}), 0);
  }
}

/* Rank 0 aborts, and destroys its handle before the others do: it waits for nobody. */
static void destroy_first(node_rank *me) {
  cudaMemsetAsync(me->src, byte_of(0, me->rank), BYTES, me->stream);
  NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
  cudaStreamSynchronize(me->stream);
  node_gather_meet(&me->w->gather);
  if (me->rank == 0) {
    NEED(me, reshard_comm_abort(me->comm) == RESHARD_SUCCESS);
    int64_t begin = rs_now_ns();
    reshard_transfer_destroy(me->transfer);
    reshard_comm_destroy(me->comm);
    NEED(me, rs_now_ns() - begin < 5 * (int64_t)1000000000);
    me->transfer = NULL;
    me->comm = NULL;
  }
  node_gather_meet(&me->w->gather);
  NEED(me, me->rank == 0 || reshard_execute(me->transfer, me->stream) == RESHARD_ERROR_PEER);
}

CASE(test_destroys_first) {
  world w = {.gpus = RANKS, .body = destroy_first, .path = RESHARD_PATH_PACKED}; /* no deadline */
  assert_int_equal(run_world(&w, &(vg_options){.devices = RANKS}), 0);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a packed transfer");
  assert_right(&w);
}

/* --- Those that are left ------------------------------------------------------------------------------------------ */

static void move_both_ways(node_rank *me, reshard_comm comm) {
  NEED(me, columns_move(SIDE, comm, RESHARD_PATH_DIRECT, me->stream) == RESHARD_SUCCESS);
  NEED(me, columns_move(SIDE, comm, RESHARD_PATH_PACKED, me->stream) == RESHARD_SUCCESS);
}

/* The others go on without rank 2: in what is left, and in that split again with its ranks the other way round. */
static void go_on_without_one(node_rank *me) {
  const int64_t lost[1] = {2};
  reshard_comm rest = NULL, turned = NULL;
  NEED(me, reshard_comm_shrink(me->comm, 1, lost, &rest) == RESHARD_SUCCESS);
  if (rest == NULL)
    return;
  NEED(me, reshard_comm_size(rest) == RANKS - 1 && reshard_comm_rank(rest) == me->rank);
  move_both_ways(me, rest);
  NEED(me, reshard_comm_split(rest, 0, -me->rank, &turned) == RESHARD_SUCCESS);
  if (turned != NULL) {
    NEED(me, reshard_comm_rank(turned) == RANKS - 2 - me->rank);
    move_both_ways(me, turned);
  }
  reshard_comm_destroy(turned);
  reshard_comm_destroy(rest);
}

/* Rank 2 does not execute, on either path. The others' streams wait for it until the deadline. */
static void lose_one_late(node_rank *me) {
  cudaMemsetAsync(me->src, byte_of(0, me->rank), BYTES, me->stream);
  if (me->rank < 2) {
    NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
    NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
    NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_ERROR_PEER);
    go_on_without_one(me);
  }
  node_gather_meet(&me->w->gather); /* it is there all the time */
}

/* Rank 2 aborts after an execute. */
static void lose_one_aborting(node_rank *me) {
  cudaMemsetAsync(me->src, byte_of(0, me->rank), BYTES, me->stream);
  NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
  NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
  node_gather_meet(&me->w->gather);
  if (me->rank == 2)
    NEED(me, reshard_comm_abort(me->comm) == RESHARD_SUCCESS);
  node_gather_meet(&me->w->gather);
  NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_ERROR_PEER);
  if (me->rank < 2)
    go_on_without_one(me);
}

/* A rank aborts, and destroys its transfer while the others keep theirs: without a deadline, too, it gets that done. */
static void destroy_after_end(node_rank *me) {
  cudaMemsetAsync(me->src, byte_of(0, me->rank), BYTES, me->stream);
  NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
  NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
  node_gather_meet(&me->w->gather);
  if (me->rank == 0) {
    NEED(me, reshard_comm_abort(me->comm) == RESHARD_SUCCESS);
    reshard_transfer_destroy(me->transfer);
    me->transfer = NULL;
  }
  node_gather_meet(&me->w->gather);
  reshard_transfer_destroy(me->transfer);
  me->transfer = NULL;
  node_gather_meet(&me->w->gather); /* nobody has its memory open any more */
}

CASE(test_destroy_after_end) {
  world w = {.gpus = RANKS, .body = destroy_after_end};
  int reports = run_world(&w, &(vg_options){.devices = RANKS, .seed = 1});
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a transfer");
  for (int r = 0; r < RANKS; r++)
    assert_null(w.wrong[r]);
  assert_int_equal(reports, 0);
}

/* Two of three ranks split off, and none is lost. */
static void split_off(node_rank *me) {
  reshard_comm part = NULL;
  NEED(me, reshard_comm_split(me->comm, me->rank == 1 ? -1 : 0, 0, &part) == RESHARD_SUCCESS);
  if (part != NULL)
    move_both_ways(me, part);
  reshard_comm_destroy(part);
  node_gather_meet(&me->w->gather);
  move_again_and_again(me);
}

CASE(survivors_go_on_in_new_communicators) {
  static void (*const bodies[3])(node_rank * me) = {lose_one_late, lose_one_aborting, split_off};
  for (uint64_t seed = 0; seed < 12; seed++) {
    world w = {.gpus = seed % 4 == 3 ? 1 : RANKS,
               .body = bodies[seed % 3],
               .timeout_ms = seed % 3 == 2 ? 60000 : 300,
               .path = seed % 2 == 0 ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED};
    int reports = run_world(&w, &(vg_options){.devices = w.gpus, .seed = seed});
    rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a transfer");
    for (int r = 0; r < RANKS; r++)
      if (w.wrong[r] != NULL)
        fail_msg("seed %d, rank %d: %s", (int)seed, r, w.wrong[r]);
    if (reports != 0)
      fail_msg("seed %d: %s", (int)seed, vg_report(0));
  }
}

/* --- Edges and faults --------------------------------------------------------------------------------------------- */

CASE(every_edge_between_processes_is_needed) {
  world w = {.gpus = RANKS, .body = move_again_and_again, .timeout_ms = 60000};
  vg_edge_result r = vg_for_each_edge(&(vg_edge_search){.path = "processes of a node",
                                                        .run = node_scenario_run,
                                                        .user = &(node_scenario){&w.gather, run_rank, &w},
                                                        .options = {.devices = RANKS, .seed = 1},
                                                        .seeds = 6,
                                                        .covered = "the transfer waits for its peers before it ends",
                                                        .covered_edges = "execute before host"});
  assert_int_equal(r.false_alarms, 0);
  assert_int_equal(r.found + r.covered, r.uses);
  assert_true(r.found >= 2 * RANKS * ROUNDS);
}

/* One call of rank 0 fails, whichever: nobody hangs, and nothing is left. */
static void fail_and_move(node_rank *me) {
  vg_own_calls(true);
  cudaMemsetAsync(me->src, byte_of(0, me->rank), BYTES, me->stream);
  vg_own_calls(false);
  (void)reshard_execute(me->transfer, me->stream);
  vg_own_calls(true);
  (void)cudaStreamSynchronize(me->stream);
  vg_own_calls(false);
}

static int64_t failing; /* call of rank 0 */

static void run_failing(void *user, int64_t rank) {
  world *w = user;
  node_rank me = {.w = w, .rank = rank};
  vg_own_calls(true);
  vg_process((int)rank);
  if (rank == 0)
    vg_fail_here(NULL, failing, false, 0);
  reshard_status status = open_rank(&me);
  vg_own_calls(false);
  RS_THEN(status, make_transfer(&me, me.src, me.dst));
  if (status == RESHARD_SUCCESS)
    w->body(&me);
  reshard_transfer_destroy(me.transfer);
  me.transfer = NULL;
  vg_own_calls(true);
  close_rank(&me);
  rank_result_set(&w->result[rank], status);
}

CASE(every_failing_call_between_processes_is_told) {
  int64_t fired = 1;
  for (failing = 1; fired > 0; failing++) {
    world w = {.gpus = RANKS, .body = fail_and_move, .timeout_ms = 1000};
    const vg_options options = {.devices = RANKS, .seed = (uint64_t)failing};
    if (node_ranks_run(&w.gather, &options, run_failing, &w) != 0)
      fail_msg("call %lld of rank 0 fails", (long long)failing);
    fired = vg_failed();
  }
  assert_true(failing > 20);
}

RUN_CASES_IF(vg_sees_kernels(), "this build sees no accesses")
