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
    OK(ncclGroupEnd());
    synchronise(&w);
    for (int r = 0; r < RANKS; r++)
      for (int p = 0; p < RANKS; p++)
        if (p != r)
          assert_came(&w, r, p * PART, p, r * PART);
    for (int r = 0; r < RANKS; r++)
      OK(ncclAllGather(w.send[r], w.receive[r], PART / 4, ncclInt32, w.comm[r], w.stream[r]));
    synchronise(&w);
    for (int r = 0; r < RANKS; r++)
      for (int p = 0; p < RANKS; p++)
        assert_came(&w, r, p * PART, p, 0);
    for (int r = 0; r < RANKS; r++)
      OK(ncclAlltoAll(w.send[r], w.receive[r], PART, ncclInt8, w.comm[r], w.stream[r]));
    synchronise(&w);
    for (int r = 0; r < RANKS; r++)
      for (int p = 0; p < RANKS; p++)
        assert_came(&w, r, p * PART, p, r * PART);
    for (int r = 0; r < RANKS; r++)
      OK(ncclBroadcast(w.send[r], w.receive[r], PART, ncclInt8, 1, w.comm[r], w.stream[r]));
    synchronise(&w);
    for (int r = 0; r < RANKS; r += 2)
      assert_came(&w, r, 0, 1, 0);
    for (int r = 0; r < RANKS; r++) {
      OK(ncclCommFinalize(w.comm[r]));
      OK(ncclCommDestroy(w.comm[r]));
      w.comm[r] = NULL;
    }
    assert_int_equal(close_world(&w), 0);
  }
}

/* --- Mistakes ----------------------------------------------------------------------------------------------------- */

/* Rank `from` sends n of a type, and rank `to` receives m of another. */
static void pair(world *w, int from, int to, size_t n, ncclDataType_t type, size_t m, ncclDataType_t other) {
  OK(ncclSend(w->send[from], n, type, to, w->comm[from], w->stream[from]));
  OK(ncclRecv(w->receive[to], m, other, from, w->comm[to], w->stream[to]));
}

static void sizes(world *w) { pair(w, 0, 1, 8, ncclInt8, 12, ncclInt8); }
static void types(world *w) { pair(w, 0, 1, 8, ncclInt8, 2, ncclInt32); }
static void nothing(world *w) { pair(w, 0, 1, 0, ncclInt8, 0, ncclInt8); }
static void nobody(world *w) { OK(ncclSend(w->send[0], 8, ncclInt8, 1, w->comm[0], w->stream[0])); }

static void several(world *w) {
  OK(ncclGroupStart());
  pair(w, 0, 1, 8, ncclInt8, 8, ncclInt8);
  pair(w, 0, 1, 8, ncclInt8, 8, ncclInt8);
  OK(ncclGroupEnd());
}

static void streams(world *w) {
  OK(ncclGroupStart());
  OK(ncclSend(w->send[0], 8, ncclInt8, 1, w->comm[0], w->stream[0]));
  OK(ncclSend(w->send[0], 8, ncclInt8, 2, w->comm[0], w->other[0]));
  OK(ncclRecv(w->receive[1], 8, ncclInt8, 0, w->comm[1], w->stream[1]));
  OK(ncclRecv(w->receive[2], 8, ncclInt8, 0, w->comm[2], w->stream[2]));
  OK(ncclGroupEnd());
}

static void too_many(world *w) {
  OK(ncclGroupStart());
  for (int i = 0; i < 8001; i++)
    OK(ncclSend(w->send[0], 8, ncclInt8, 1, w->comm[0], w->stream[0]));
  OK(ncclGroupEnd());
}

/* Each rank sends before it receives, and not in one group: neither send ends. */
static void orders(world *w) {
  for (int r = 0; r < 2; r++)
    OK(ncclSend(w->send[r], 8, ncclInt8, 1 - r, w->comm[r], w->stream[r]));
  for (int r = 0; r < 2; r++)
    OK(ncclRecv(w->receive[r], 8, ncclInt8, 1 - r, w->comm[r], w->stream[r]));
  assert_int_not_equal(cudaStreamSynchronize(w->stream[0]), cudaSuccess);
}

/* The same on streams that do not wait for each other: but the communicator does. */
static void orders_of_streams(world *w) {
  for (int r = 0; r < 2; r++)
    OK(ncclSend(w->send[r], 8, ncclInt8, 1 - r, w->comm[r], w->stream[r]));
  for (int r = 0; r < 2; r++)
    OK(ncclRecv(w->receive[r], 8, ncclInt8, 1 - r, w->comm[r], w->other[r]));
  assert_int_not_equal(cudaStreamSynchronize(w->stream[0]), cudaSuccess);
}

static void different(world *w) {
  OK(ncclAllGather(w->send[0], w->receive[0], 8, ncclInt8, w->comm[0], w->stream[0]));
  OK(ncclBroadcast(w->send[1], w->receive[1], 8, ncclInt8, 0, w->comm[1], w->stream[1]));
  OK(ncclAllGather(w->send[2], w->receive[2], 8, ncclInt8, w->comm[2], w->stream[2]));
}

static void incomplete(world *w) {
  for (int r = 0; r < 2; r++)
    OK(ncclAllGather(w->send[r], w->receive[r], 8, ncclInt8, w->comm[r], w->stream[r]));
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

static const struct {
  const char *name, *words; /* that one report has, at least */
  void (*make)(world *w);
  bool left; /* it is seen when the test ends with it */
} mistakes[] = {{"sizes", "sends 8 receives 12", sizes, false},
                {"types", "sends type receives type", types, false},
                {"no bytes", "zero bytes", nothing, false},
                {"a send that nobody receives", "rank 0 waits rank 1 nobody receives", nobody, true},
                {"two messages to a peer in a group", "two sends one peer", several, false},
                {"a group on two streams", "mixes", streams, false},
                {"a group beyond a kernel plan", "8001 operations plan", too_many, true},
                {"sends before receives", "stuck: waits never comes", orders, false},
                {"sends before receives, on two streams", "stuck: waits never comes", orders_of_streams, false},
                {"collectives that differ", "ncclAllGather ncclBroadcast", different, false},
                {"a collective without a rank", "ncclAllGather do not come", incomplete, true},
                {"two threads at once", "used by no order", threads, false},
                {"a buffer that is written while it is sent", "race: group cudaMemsetAsync", overwritten, false},
                {"a buffer that is read before it has come", "race: group cudaMemcpyAsync", read_early, false},
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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_moves), cmocka_unit_test(test_mistakes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
