/* The virtual NCCL itself: each mistake which hangs or corrupts on the real one is reported, and never waited for. */
#include "support/fixtures/rank_threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

#include "nccl_world.h"

/* --- Mistakes ----------------------------------------------------------------------------------------------------- */

/* Rank `from` sends n of a type, and rank `to` receives m of another. */
static void pair(world *w, int from, int to, size_t n, ncclDataType_t type, size_t m, ncclDataType_t other) {
  through(w, ncclSend(w->send[from], n, type, to, w->comm[from], w->stream[from]));
  through(w, ncclRecv(w->receive[to], m, other, from, w->comm[to], w->stream[to]));
}

static void sizes(world *w) { pair(w, 0, 1, 8, ncclInt8, 12, ncclInt8); }
static void types(world *w) { pair(w, 0, 1, 8, ncclInt8, 2, ncclInt32); }
static void nothing(world *w) { pair(w, 0, 1, 0, ncclInt8, 0, ncclInt8); }
static void nobody(world *w) { through(w, ncclSend(w->send[0], 8, ncclInt8, 1, w->comm[0], w->stream[0])); }

static void several(world *w) {
  OK(ncclGroupStart());
  for (int i = 0; i < 2; i++) {
    OK(ncclSend(w->send[0] + 8 * i, 8, ncclInt8, 1, w->comm[0], w->stream[0]));
    OK(ncclRecv(w->receive[1] + 8 * i, 8, ncclInt8, 0, w->comm[1], w->stream[1]));
  }
  through(w, ncclGroupEnd());
}

static void too_many(world *w) {
  OK(ncclGroupStart());
  for (int i = 0; i < 8001; i++)
    OK(ncclSend(w->send[0], 8, ncclInt8, 1, w->comm[0], w->stream[0]));
  through(w, ncclGroupEnd());
}

/* Each rank sends before it receives, and not in one group: neither send ends. */
static void orders(world *w) {
  for (int r = 0; r < 2; r++)
    through(w, ncclSend(w->send[r], 8, ncclInt8, 1 - r, w->comm[r], w->stream[r]));
  for (int r = 0; r < 2; r++)
    through(w, ncclRecv(w->receive[r], 8, ncclInt8, 1 - r, w->comm[r], w->stream[r]));
  assert_int_not_equal(cudaStreamSynchronize(w->stream[0]), cudaSuccess);
}

/* The same on streams that do not wait for each other: but the communicator does. */
static void orders_of_streams(world *w) {
  for (int r = 0; r < 2; r++)
    through(w, ncclSend(w->send[r], 8, ncclInt8, 1 - r, w->comm[r], w->stream[r]));
  for (int r = 0; r < 2; r++)
    through(w, ncclRecv(w->receive[r], 8, ncclInt8, 1 - r, w->comm[r], w->other[r]));
  assert_int_not_equal(cudaStreamSynchronize(w->stream[0]), cudaSuccess);
}

static void different(world *w) {
  through(w, ncclAllGather(w->send[0], w->receive[0], 8, ncclInt8, w->comm[0], w->stream[0]));
  through(w, ncclBroadcast(w->send[1], w->receive[1], 8, ncclInt8, 0, w->comm[1], w->stream[1]));
  through(w, ncclAllGather(w->send[2], w->receive[2], 8, ncclInt8, w->comm[2], w->stream[2]));
}

static void incomplete(world *w) {
  for (int r = 0; r < 2; r++)
    through(w, ncclAllGather(w->send[r], w->receive[r], 8, ncclInt8, w->comm[r], w->stream[r]));
}

static void count_rank(void *user, int64_t rank) {
  int n;
  OK(ncclCommCount(*(ncclComm_t *)user, &n));
}
static void threads(world *w) { rank_threads_run(2, count_rank, &w->comm[0]); }

static void overwritten(world *w) {
  pair(w, 0, 1, 8, ncclInt8, 8, ncclInt8);
  CUDA(cudaSetDevice(0));
  CUDA(cudaMemsetAsync(w->send[0], 1, 8, w->other[0])); /* while it is sent, maybe */
}

static void read_early(world *w) {
  pair(w, 0, 1, 8, ncclInt8, 8, ncclInt8);
  CUDA(cudaSetDevice(1));
  CUDA(cudaMemcpyAsync(w->send[1], w->receive[1], 8, cudaMemcpyDeviceToDevice, w->other[1]));
}

static void stale(world *w) {
  int n;
  ncclComm_t comm = w->comm[2];
  OK(ncclCommAbort(comm));
  w->comm[2] = NULL;
  assert_int_equal(ncclCommCount(comm, &n), ncclInvalidArgument);
}

/* A call on a communicator before its last one is through. */
static void early(world *w) {
  ncclResult_t result;
  do {
    int n;
    result = ncclSend(w->send[0], 8, ncclInt8, 1, w->comm[0], w->stream[0]);
    if (result == ncclInProgress)
      assert_int_equal(ncclCommCount(w->comm[0], &n), ncclInvalidArgument);
    through(w, ncclRecv(w->receive[1], 8, ncclInt8, 0, w->comm[1], w->stream[1]));
  } while (result == ncclSuccess); /* it was through at once */
}

static void never_seen(world *w) {
  while (ncclRecv(w->receive[0], 8, ncclInt8, 1, w->comm[0], w->stream[0]) == ncclSuccess)
    through(w, ncclSend(w->send[1], 8, ncclInt8, 0, w->comm[1], w->stream[1]));
}

static void half_in_place(world *w) {
  through(w, ncclAllGather(w->receive[0] + 4, w->receive[0], 8, ncclInt8, w->comm[0], w->stream[0]));
  for (int r = 1; r < RANKS; r++)
    through(w, ncclAllGather(w->send[r], w->receive[r], 8, ncclInt8, w->comm[r], w->stream[r]));
}

/* From the default pool of its GPU, which nobody has opened to the other one. */
static void closed_pool(world *w) {
  void *memory;
  CUDA(cudaSetDevice(0));
  CUDA(cudaMallocAsync(&memory, 8, w->stream[0]));
  CUDA(cudaMemsetAsync(memory, 1, 8, w->stream[0]));
  through(w, ncclSend(memory, 8, ncclInt8, 1, w->comm[0], w->stream[0]));
  CUDA(cudaFreeAsync(memory, w->stream[0]));
  through(w, ncclRecv(w->receive[1], 8, ncclInt8, 0, w->comm[1], w->stream[1]));
}

/* It meets the others of the node. */
static void finalised_alone(world *w) {
  ncclResult_t state = ncclCommFinalize(w->comm[0]);
  while (state == ncclInProgress)
    OK(ncclCommGetAsyncError(w->comm[0], &state));
  assert_int_equal(state, ncclInternalError);
}

static void finalised_before_graph(world *w) {
  cudaGraph_t graph;
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamBeginCapture(w->stream[0], cudaStreamCaptureModeThreadLocal));
  through(w, ncclSend(w->send[0], 8, ncclInt8, 1, w->comm[0], w->stream[0]));
  CUDA(cudaStreamEndCapture(w->stream[0], &graph));
  for (int r = 0; r < RANKS; r++)
    (void)ncclCommFinalize(w->comm[r]);
  ncclResult_t state;
  for (int i = 0; i < 10; i++)
    OK(ncclCommGetAsyncError(w->comm[0], &state));
  assert_int_equal(state, ncclInProgress);
  CUDA(cudaGraphDestroy(graph));
  through(w, ncclSuccess);
}

/* --- Two communicators of the same GPUs -------------------------------------------------------------------------- */

/* A child of all ranks, in rank order. */
static void world_split(world *w, ncclComm_t child[RANKS]) {
  for (int r = 0; r < RANKS; r++) {
    ncclResult_t result = ncclCommSplit(w->comm[r], 0, 0, &child[r], NULL);
    assert_true(result == ncclSuccess || result == ncclInProgress);
  }
  through(w, ncclSuccess);
}

static void end_children(ncclComm_t child[RANKS]) {
  for (int r = 0; r < RANKS; r++)
    OK(ncclCommAbort(child[r]));
}

static void gather(world *w, ncclComm_t comm, int r, cudaStream_t stream) {
  ncclResult_t result = ncclAllGather(w->send[r], w->receive[r], 8, ncclInt8, comm, stream);
  while (result == ncclInProgress)
    OK(ncclCommGetAsyncError(comm, &result));
  OK(result);
}

/* Rank 0 launches the parent first, the others the child, on streams that do not wait for each other. It happens to
 * come out here. */
static void opposite_orders(world *w) {
  ncclComm_t child[RANKS];
  world_split(w, child);
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < 2; i++)
      if ((i == 0) == (r == 0))
        gather(w, w->comm[r], r, w->stream[r]);
      else
        gather(w, child[r], r, w->other[r]);
  end_children(child);
}

/* The same by messages of pairs, and the launch of one is that of a graph. */
static void opposite_order_of_graph(world *w) {
  ncclComm_t child[RANKS];
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  world_split(w, child);
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamBeginCapture(w->stream[0], cudaStreamCaptureModeThreadLocal));
  through(w, ncclSend(w->send[0], 8, ncclInt8, 1, w->comm[0], w->stream[0]));
  CUDA(cudaStreamEndCapture(w->stream[0], &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 2; i++) { /* captured first, launched last */
    ncclComm_t comm = i == 0 ? w->comm[1] : child[1];
    ncclResult_t result = ncclRecv(w->receive[1] + 8 * i, 8, ncclInt8, 0, comm, i == 0 ? w->stream[1] : w->other[1]);
    while (result == ncclInProgress)
      OK(ncclCommGetAsyncError(comm, &result));
  }
  ncclResult_t result = ncclSend(w->send[0] + 8, 8, ncclInt8, 1, child[0], w->other[0]);
  while (result == ncclInProgress)
    OK(ncclCommGetAsyncError(child[0], &result));
  CUDA(cudaGraphLaunch(exec, w->stream[0]));
  CUDA(cudaStreamSynchronize(w->stream[0]));
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
  end_children(child);
}

/* Three communicators of two ranks each, in a circle over three GPUs. */
static void circle(world *w) {
  ncclComm_t pair[RANKS][RANKS]; /* [i][r]: of ranks i and i + 1 */
  for (int i = 0; i < RANKS; i++) {
    for (int r = 0; r < RANKS; r++) {
      int color = r == i || r == (i + 1) % RANKS ? 0 : NCCL_SPLIT_NOCOLOR;
      ncclResult_t result = ncclCommSplit(w->comm[r], color, 0, &pair[i][r], NULL);
      assert_true(result == ncclSuccess || result == ncclInProgress);
    }
    through(w, ncclSuccess);
  }
  for (int r = 0; r < RANKS; r++) { /* each first with the next rank, then with the one before */
    gather(w, pair[r][r], r, w->stream[r]);
    gather(w, pair[(r + 2) % RANKS][r], r, w->other[r]);
  }
  for (int i = 0; i < RANKS; i++)
    for (int r = 0; r < RANKS; r++)
      if (pair[i][r] != NULL)
        OK(ncclCommAbort(pair[i][r]));
}

typedef struct half {
  world *w;
  ncclComm_t *comm;
} half;

static void gather_half(void *user, int64_t i) {
  half *h = &((half *)user)[i];
  for (int r = 0; r < RANKS; r++) {
    CUDA(cudaSetDevice(r));
    gather(h->w, h->comm[r], r, i == 0 ? h->w->stream[r] : h->w->other[r]);
  }
}

/* A thread for each communicator. */
static void threads_of_a_gpu(world *w) {
  ncclComm_t child[RANKS];
  world_split(w, child);
  rank_threads_run(2, gather_half, (half[]){{w, w->comm}, {w, child}});
  end_children(child);
}

/* --- All of them ------------------------------------------------------------------------------------------------- */

static const struct {
  const char *name, *words; /* that one report has, at least */
  void (*make)(world *w);
  bool left; /* it is seen when the test ends with it */
} mistakes[] = {{"sizes", "sends 8 receives 12", sizes, false},
                {"types", "sends type receives type", types, false},
                {"no bytes", "zero bytes", nothing, false},
                {"a send that nobody receives", "rank 0 waits rank 1 nobody receives", nobody, true},
                {"two messages to a peer in a group", "two sends one peer", several, false},
                {"a group beyond a kernel plan", "8001 operations plan", too_many, true},
                {"sends before receives", "stuck: waits never comes", orders, false},
                {"sends before receives, on two streams", "stuck: waits never comes", orders_of_streams, false},
                {"collectives that differ", "ncclAllGather ncclBroadcast", different, false},
                {"a collective without a rank", "ncclAllGather do not come", incomplete, true},
                {"two threads at once", "used by no order", threads, false},
                {"a buffer that is written while it is sent", "race: group cudaMemsetAsync", overwritten, false},
                {"a buffer that is read before it has come", "race: group cudaMemcpyAsync", read_early, false},
                {"a call before the last one is through", "ncclCommCount before its last call", early, false},
                {"a launch that is not asked about", "never asked", never_seen, true},
                {"an all-gather half in place", "in place in a way", half_in_place, false},
                {"a buffer that other GPUs do not reach", "on GPU 1 cannot reach into pool", closed_pool, false},
                {"a rank that ends alone", "waits in ncclCommFinalize", finalised_alone, false},
                {"a graph that outlives its communicator", "launches are in graphs", finalised_before_graph, false},
                {"two communicators in opposite orders", "one order opposite one", opposite_orders, false},
                {"a graph in the opposite order", "one order opposite one", opposite_order_of_graph, false},
                {"three communicators in a circle", "one order opposite one", circle, false},
                {"two threads of a GPU", "launched on GPU no order between", threads_of_a_gpu, false},
                {"a communicator that has ended", "communicator that is no more", stale, false}};

CASE(mistakes_with_nccl_are_reported_not_waited_for) {
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
  vg_quiet(true);
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
    world w;
    open_world(&w, i);
    mistakes[i].make(&w);
    int reports = mistakes[i].left ? vg_end() : close_world(&w);
    if (vg_reports_with(mistakes[i].words) == 0)
      fail_msg("%s: %d reports, %s", mistakes[i].name, reports, reports > 0 ? vg_report(0) : "none");
  }
  vg_quiet(false);
}

/* --- Refusals ----------------------------------------------------------------------------------------------------- */

/* Result of a call of rank 0. */
static ncclResult_t outcome(const world *w, ncclResult_t result) {
  while (result == ncclInProgress)
    OK(ncclCommGetAsyncError(w->comm[0], &result));
  return result;
}

static ncclResult_t alone_to_itself(world *w) {
  return outcome(w, ncclSend(w->send[0], 8, ncclInt8, 0, w->comm[0], w->stream[0]));
}

/* A call that fails takes its group with it. */
static ncclResult_t wrong_peer(world *w) {
  OK(ncclGroupStart());
  OK(ncclSend(w->send[0], 8, ncclInt8, 1, w->comm[0], w->stream[0]));
  assert_int_equal(ncclSend(w->send[0], 8, ncclInt8, RANKS, w->comm[0], w->stream[0]), ncclInvalidArgument);
  return ncclGroupEnd();
}

static ncclResult_t half_captured(world *w) {
  cudaGraph_t graph;
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamBeginCapture(w->stream[0], cudaStreamCaptureModeThreadLocal));
  OK(ncclGroupStart());
  OK(ncclSend(w->send[0], 8, ncclInt8, 1, w->comm[0], w->stream[0]));
  OK(ncclSend(w->send[0], 8, ncclInt8, 2, w->comm[0], w->other[0]));
  ncclResult_t result = outcome(w, ncclGroupEnd());
  CUDA(cudaStreamEndCapture(w->stream[0], &graph));
  CUDA(cudaGraphDestroy(graph));
  return result;
}

static ncclResult_t no_color(world *w) {
  ncclComm_t sub;
  return ncclCommSplit(w->comm[0], -3, 0, &sub, NULL);
}

static ncclResult_t not_begun(world *w) {
  ncclComm_t sub;
  ncclConfig_t config;
  memset(&config, 0, sizeof config);
  return ncclCommSplit(w->comm[0], 0, 0, &sub, &config);
}

static ncclResult_t same_gpu(world *w) {
  ncclUniqueId id;
  ncclComm_t comm[2];
  ncclResult_t state;
  OK(ncclGetUniqueId(&id));
  for (int r = 0; r < 2; r++) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    (void)ncclCommInitRankConfig(&comm[r], 2, id, r, &config);
  }
  OK(ncclCommGetAsyncError(comm[0], &state));
  for (int r = 0; r < 2; r++)
    OK(ncclCommAbort(comm[r]));
  return state;
}

CASE(calls_that_nccl_refuses_are_refused) {
  static const struct {
    ncclResult_t (*call)(world *w);
    ncclResult_t result;
    const char *why;
  } calls[] = {
      {alone_to_itself, ncclInvalidUsage, "sends to itself"},      {wrong_peer, ncclInvalidArgument, "rank 3 of 3"},
      {half_captured, ncclInvalidUsage, "by one graph"},           {no_color, ncclInvalidArgument, "color -3"},
      {not_begun, ncclInvalidArgument, "NCCL_CONFIG_INITIALIZER"}, {same_gpu, ncclInvalidUsage, "Duplicate GPU"}};
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    world w;
    open_world(&w, i);
    assert_int_equal(calls[i].call(&w), calls[i].result);
    assert_non_null(strstr(ncclGetLastError(NULL), calls[i].why));
    assert_int_equal(close_world(&w), 0); /* nothing of it was launched */
  }
}

RUN_CASES
