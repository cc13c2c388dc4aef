/* The virtual NCCL itself: what its calls move, and that each mistake which hangs or corrupts on the real one is
 * reported, and never waited for. One thread drives all ranks, as communicators that do not block allow. */
#include "support/crew.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CUDA(call) assert_int_equal(call, cudaSuccess)
#define OK(call)   assert_int_equal(call, ncclSuccess)

enum { RANKS = 3, BYTES = 64, PART = 8 };

typedef struct world {
  ncclComm_t comm[RANKS];
  cudaStream_t stream[RANKS], other[RANKS];
  unsigned char *send[RANKS], *receive[RANKS];
} world;

/* What a call of communicators that do not block gave, which is through when this returns. */
static void through(const world *w, ncclResult_t result) {
  assert_true(result == ncclSuccess || result == ncclInProgress);
  for (int r = 0; r < RANKS; r++)
    for (ncclResult_t state = ncclInProgress; w->comm[r] != NULL && state == ncclInProgress;)
      OK(ncclCommGetAsyncError(w->comm[r], &state));
}

static void open_world(world *w, uint64_t seed) {
  ncclUniqueId id;
  vg_begin(&(vg_options){.devices = RANKS, .seed = seed, .patience_ms = 50});
  OK(ncclGetUniqueId(&id));
  for (int r = 0; r < RANKS; r++) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CUDA(cudaSetDevice(r));
    ncclResult_t result = ncclCommInitRankConfig(&w->comm[r], RANKS, id, r, &config);
    assert_true(result == ncclInProgress || result == ncclSuccess);
    CUDA(cudaStreamCreateWithFlags(&w->stream[r], cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&w->other[r], cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&w->send[r], BYTES));
    CUDA(cudaMalloc((void **)&w->receive[r], BYTES));
    unsigned char numbers[BYTES];
    for (int i = 0; i < BYTES; i++)
      numbers[i] = (unsigned char)(100 * r + i);
    vg_poke(w->send[r], numbers, BYTES);
    memset(numbers, 255, BYTES);
    vg_poke(w->receive[r], numbers, BYTES);
  }
  for (int r = 0; r < RANKS; r++) {
    ncclResult_t state;
    OK(ncclCommGetAsyncError(w->comm[r], &state));
    assert_int_equal(state, ncclSuccess);
  }
}

/* Returns the number of reports. */
static int close_world(world *w) {
  for (int r = 0; r < RANKS; r++) {
    CUDA(cudaSetDevice(r));
    if (w->comm[r] != NULL)
      (void)ncclCommAbort(w->comm[r]); /* whatever is under way */
  }
  for (int r = 0; r < RANKS; r++) {
    CUDA(cudaSetDevice(r));
    (void)cudaDeviceSynchronize();
    CUDA(cudaFree(w->send[r]));
    CUDA(cudaFree(w->receive[r]));
    CUDA(cudaStreamDestroy(w->stream[r]));
    CUDA(cudaStreamDestroy(w->other[r]));
  }
  return vg_end();
}

static void end_comms(world *w) {
  for (int r = 0; r < RANKS; r++) {
    ncclResult_t result = ncclCommFinalize(w->comm[r]);
    assert_true(result == ncclSuccess || result == ncclInProgress);
  }
  through(w, ncclSuccess);
  for (int r = 0; r < RANKS; r++) {
    OK(ncclCommDestroy(w->comm[r]));
    w->comm[r] = NULL;
  }
}

static void synchronise(world *w) {
  for (int r = 0; r < RANKS; r++)
    CUDA(cudaStreamSynchronize(w->stream[r]));
}

/* What rank r has received at `at` is what rank `from` has at `there`. */
static void assert_came(const world *w, int r, int at, int from, int there) {
  unsigned char seen[PART];
  vg_peek(seen, w->receive[r] + at, PART);
  for (int i = 0; i < PART; i++)
    assert_int_equal(seen[i], (unsigned char)(100 * from + there + i));
}

static void test_moves(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 20; seed++) {
    world w;
    open_world(&w, seed);
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++)
      for (int p = 0; p < RANKS; p++)
        if (p != r) {
          OK(ncclSend(w.send[r] + p * PART, PART, ncclInt8, p, w.comm[r], w.stream[r]));
          OK(ncclRecv(w.receive[r] + p * PART, PART, ncclInt8, p, w.comm[r], w.stream[r]));
        }
    through(&w, ncclGroupEnd());
    synchronise(&w);
    for (int r = 0; r < RANKS; r++)
      for (int p = 0; p < RANKS; p++)
        if (p != r)
          assert_came(&w, r, p * PART, p, r * PART);
    for (int r = 0; r < RANKS; r++)
      through(&w, ncclAllGather(w.send[r], w.receive[r], PART / 4, ncclInt32, w.comm[r], w.stream[r]));
    synchronise(&w);
    for (int r = 0; r < RANKS; r++)
      for (int p = 0; p < RANKS; p++)
        assert_came(&w, r, p * PART, p, 0);
    for (int r = 0; r < RANKS; r++)
      through(&w, ncclAlltoAll(w.send[r], w.receive[r], PART, ncclInt8, w.comm[r], w.stream[r]));
    synchronise(&w);
    for (int r = 0; r < RANKS; r++)
      for (int p = 0; p < RANKS; p++)
        assert_came(&w, r, p * PART, p, r * PART);
    for (int r = 0; r < RANKS; r++) /* the root gets it, too: it is not in place */
      through(&w, ncclBroadcast(w.send[r], w.receive[r], PART, ncclInt8, 1, w.comm[r], w.stream[r]));
    synchronise(&w);
    for (int r = 0; r < RANKS; r++)
      assert_came(&w, r, 0, 1, 0);
    OK(ncclGroupStart()); /* two collectives of each, one in place */
    for (int r = 0; r < RANKS; r++) {
      unsigned char *mine = w.receive[r] + r * PART;
      OK(ncclBroadcast(w.send[r], w.receive[r] + 3 * PART, PART, ncclInt8, 2, w.comm[r], w.stream[r]));
      OK(ncclAllGather(mine, w.receive[r], PART, ncclInt8, w.comm[r], w.stream[r]));
      OK(ncclAllGather(w.send[r], w.receive[r], 0, ncclInt8, w.comm[r], w.other[r])); /* nothing */
    }
    through(&w, ncclGroupEnd());
    synchronise(&w);
    for (int r = 0; r < RANKS; r++) {
      assert_came(&w, r, 3 * PART, 2, 0);
      for (int p = 1; p < RANKS; p++)
        assert_came(&w, r, p * PART, p == 1 ? 1 : 2, p * PART);
    }
    end_comms(&w);
    assert_int_equal(close_world(&w), 0);
  }
}

/* --- Groups on several streams -------------------------------------------------------------------------------------
 */

/* Rank 0 sends from `send`, which its second stream has filled, on its first stream; and, where they are mixed, sends
 * something else on the second. Then its second stream fills `send` again. Captured: the second stream is joined to the
 * first by an event, and the group is all that is between them. */
static void send_on_two(world *w, bool mix, cudaStream_t stream) {
  OK(ncclGroupStart());
  OK(ncclSend(w->send[0], PART, ncclInt8, 1, w->comm[0], stream));
  if (mix)
    OK(ncclSend(w->receive[0], PART, ncclInt8, 2, w->comm[0], w->other[0]));
  through(w, ncclGroupEnd());
}

static void receive_on_two(world *w, bool mix) {
  through(w, ncclRecv(w->receive[1], PART, ncclInt8, 0, w->comm[1], w->stream[1]));
  if (mix)
    through(w, ncclRecv(w->receive[2], PART, ncclInt8, 0, w->comm[2], w->stream[2]));
}

static void two_streams(world *w, bool mix) {
  CUDA(cudaSetDevice(0));
  CUDA(cudaMemsetAsync(w->send[0], 7, PART, w->other[0]));
  send_on_two(w, mix, w->stream[0]);
  CUDA(cudaMemsetAsync(w->send[0], 9, PART, w->other[0]));
  receive_on_two(w, mix);
}

static void two_streams_captured(world *w, bool mix) {
  cudaEvent_t event;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA(cudaSetDevice(0));
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CUDA(cudaStreamBeginCapture(w->stream[0], cudaStreamCaptureModeThreadLocal));
  CUDA(cudaEventRecord(event, w->stream[0]));
  CUDA(cudaStreamWaitEvent(w->other[0], event, 0));
  CUDA(cudaMemsetAsync(w->send[0], 7, PART, w->other[0]));
  send_on_two(w, mix, w->stream[0]);
  CUDA(cudaMemsetAsync(w->send[0], 9, PART, w->other[0]));
  CUDA(cudaEventRecord(event, w->other[0]));
  CUDA(cudaStreamWaitEvent(w->stream[0], event, 0));
  CUDA(cudaStreamEndCapture(w->stream[0], &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  for (int i = 0; i < 2; i++) {
    CUDA(cudaGraphLaunch(exec, w->stream[0]));
    receive_on_two(w, mix);
  }
  synchronise(w);
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaEventDestroy(event));
}

static void test_mixed_streams(void **state) {
  (void)state;
  static void (*const ways[])(world * w, bool mix) = {two_streams, two_streams_captured};
  vg_quiet(true);
  for (uint64_t seed = 0; seed < 100; seed++)
    for (int way = 0; way < 2; way++)
      for (int mix = 0; mix < 2; mix++) {
        world w;
        open_world(&w, seed);
        ways[way](&w, mix);
        synchronise(&w);
        unsigned char seen[PART];
        vg_peek(seen, w.receive[1], PART);
        for (int i = 0; mix && i < PART; i++)
          assert_int_equal(seen[i], 7);
        assert_int_equal(vg_count().mixed_groups, mix);
        end_comms(&w);
        int reports = close_world(&w);
        if (mix && reports > 0)
          fail_msg("seed %llu: %s", (unsigned long long)seed, vg_report(0));
        if (!mix && vg_sees_kernels())
          assert_true(vg_reports_with("race: group cudaMemsetAsync") > 0);
      }
  vg_quiet(false);
}

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
  (void)rank;
  OK(ncclCommCount(*(ncclComm_t *)user, &n));
}
static void threads(world *w) { crew_run(2, count_rank, &w->comm[0]); }

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
                {"a communicator that has ended", "communicator that is no more", stale, false}};

static void test_mistakes(void **state) {
  (void)state;
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

/* --- What is refused ---------------------------------------------------------------------------------------------- */

/* What a call of rank 0 comes to. */
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
  (void)w;
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

static void test_refused(void **state) {
  (void)state;
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

/* The new communicators are there when all have asked, and not before. */
static void test_split(void **state) {
  (void)state;
  world w;
  ncclComm_t sub[RANKS];
  open_world(&w, 3);
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(ncclCommSplit(w.comm[r], r == 1 ? NCCL_SPLIT_NOCOLOR : 5, -r, &sub[r], NULL),
                     r < RANKS - 1 ? ncclInProgress : ncclSuccess);
    for (int s = 0; s <= r && r < RANKS - 1; s++)
      assert_null(sub[s]);
  }
  through(&w, ncclSuccess);
  assert_null(sub[1]);
  for (int r = 0; r < RANKS; r += 2) {
    int n, rank;
    OK(ncclCommCount(sub[r], &n));
    OK(ncclCommUserRank(sub[r], &rank));
    assert_int_equal(n, 2);
    assert_int_equal(rank, r == 0 ? 1 : 0);
    OK(ncclCommAbort(sub[r]));
  }
  assert_int_equal(close_world(&w), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_moves), cmocka_unit_test(test_mixed_streams),
                                     cmocka_unit_test(test_mistakes), cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_split)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
