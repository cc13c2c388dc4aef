/* Order of calls of NCCL. Transfers on a communicator and its child, of the same GPUs, may run at the same time, and
 * come in one order on all ranks. A group begins with the peer after its rank. */
#include "base/base.h"
#include "comm/nccl/nccl.h"
#include "nccl_rank.h"
#include "reshard/reshard.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <string.h>

enum { RANKS = 4, ROWS = 12, COLUMNS = 15, BYTES = ROWS * COLUMNS * 4 };

typedef struct world {
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  int64_t odd; /* the rank that takes the child first; -1: none */
  bool graph;  /* the parent's execute is launched as one */
  int rounds;
  rank_result result[RANKS];
} world;

static const char opposite[] = "launched in one order opposite one";

/* From the first bytes of the memory to those behind them. */
static reshard_status transfer_make(nccl_rank *own, char *memory) {
  const int64_t shape[2] = {ROWS, COLUMNS};
  reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .dtype = RESHARD_F32};
  reshard_arrays arrays = {
      .size = RESHARD_ARRAYS_INIT, .src = (void *[]){memory}, .dst = (void *[]){memory + BYTES}, .nsrc = 1, .ndst = 1};
  reshard_status status = reshard_layout_parse("chunk(0)", 2, shape, RANKS, &entry.src);
  RS_THEN(status, reshard_layout_parse("chunk(1)", 2, shape, RANKS, &entry.dst));
  RS_THEN(status, reshard_plan_create(1, &entry, reshard_comm_rank(own->comm), NULL, &own->plan));
  RS_THEN(status, reshard_transfer_create(own->plan, own->comm, &arrays, NULL, &own->transfer));
  reshard_layout_release(entry.src);
  reshard_layout_release(entry.dst);
  return status;
}

static reshard_status transfer_launch(const nccl_rank *own, cudaGraphExec_t exec) {
  if (exec == NULL)
    return reshard_execute(own->transfer, own->stream);
  return cudaGraphLaunch(exec, own->stream) == cudaSuccess ? RESHARD_SUCCESS : RESHARD_ERROR_SYSTEM;
}

static cudaGraphExec_t transfer_capture(reshard_transfer transfer, cudaStream_t stream) {
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  (void)reshard_execute(transfer, stream);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  return exec;
}

/* The parent is own; the child has what is of its own. */
static void order_rank(void *user, int64_t r) {
  world *w = user;
  nccl_rank own, child = {.memory = NULL};
  cudaGraphExec_t exec = NULL;
  reshard_status status = nccl_rank_begin(w->id, RANKS, r, 4 * BYTES, (int)r, &own);
  cudaStreamCreateWithFlags(&child.stream, cudaStreamNonBlocking);
  RS_THEN(status, reshard_comm_split(own.comm, 0, -r, &child.comm));
  RS_THEN(status, transfer_make(&own, own.memory));
  RS_THEN(status, transfer_make(&child, own.memory + 2 * BYTES));
  if (status == RESHARD_SUCCESS && w->graph)
    exec = transfer_capture(own.transfer, own.stream);
  for (int i = 0; i < 2 * w->rounds && status == RESHARD_SUCCESS; i++) {
    bool parent = (i + (w->odd == r)) % 2 == 0;
    status = parent ? transfer_launch(&own, exec) : transfer_launch(&child, NULL);
  }
  cudaStreamSynchronize(own.stream);
  nccl_rank_end(&child);
  if (exec != NULL)
    cudaGraphExecDestroy(exec);
  nccl_rank_end(&own);
  rank_result_set(&w->result[r], status);
}

/* Returns the number of reports. */
static int order_run(uint64_t seed, int64_t odd, bool graph, int rounds) {
  world w = {.odd = odd, .graph = graph, .rounds = rounds};
  vg_begin(&(vg_options){.devices = RANKS, .seed = seed, .patience_ms = odd < 0 ? 0 : 50});
  GOOD(reshard_nccl_unique_id(w.id));
  rank_threads_run(RANKS, order_rank, &w);
  int reports = vg_end();
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "executes of two communicators");
  return reports;
}

CASE(test_one_order) {
  for (uint64_t seed = 0; seed < (uint64_t)vg_scaled(4, 100); seed++)
    assert_int_equal(order_run(seed, -1, seed % 2 != 0, 3), 0);
}

/* A hang, too, where the transfers share streams of the library. */
CASE(test_opposite_orders) {
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
  vg_quiet(true);
  for (uint64_t seed = 0; seed < (uint64_t)vg_scaled(4, 100); seed++) {
    (void)order_run(seed, (int64_t)(seed % RANKS), seed % 2 != 0, 1);
    if (vg_reports_with(opposite) == 0)
      fail_msg("seed %d: the opposite order is not found", (int)seed);
  }
  vg_quiet(false);
}

/* --- Peers ------------------------------------------------------------------------------------------------------- */

static const rs_nccl_api *original;
static __thread int nsent, nreceived, sent[RANKS], received[RANKS];

static ncclResult_t peer_send(const void *at, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                              cudaStream_t stream) {
  sent[nsent++ % RANKS] = peer;
  return original->ncclSend(at, n, type, peer, comm, stream);
}

static ncclResult_t peer_receive(void *at, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                                 cudaStream_t stream) {
  received[nreceived++ % RANKS] = peer;
  return original->ncclRecv(at, n, type, peer, comm, stream);
}

static void peers_rank(void *user, int64_t r) {
  world *w = user;
  nccl_rank own;
  bool urgent = false; /* the stream on which ranks meet */
  reshard_status status = nccl_rank_begin(w->id, RANKS, r, 2 * BYTES, 0, &own);
  RS_THEN(status, transfer_make(&own, own.memory));
  if (status == RESHARD_SUCCESS) {
    int least = 0, greatest = 0, priority = 0;
    rs_nccl *c = rs_nccl_of(own.comm);
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    cudaStreamGetPriority(c->stream, &priority);
    urgent = priority == greatest;
    const rs_nccl_api api = c->api;
    c->api.ncclSend = peer_send;
    c->api.ncclRecv = peer_receive;
    nsent = nreceived = 0;
    status = reshard_execute(own.transfer, own.stream);
    c->api = api;
  }
  bool right = urgent && nsent == RANKS - 1 && nreceived == RANKS - 1;
  for (int i = 0; i < RANKS - 1; i++)
    right &= sent[i] == (r + 1 + i) % RANKS && received[i] == (r + 1 + i) % RANKS;
  nccl_rank_end(&own);
  rank_result_set(&w->result[r], status == RESHARD_SUCCESS && !right ? RESHARD_ERROR_INTERNAL : status);
}

CASE(messages_go_to_the_next_rank_first) {
  world w = {.odd = -1};
  rs_nccl_api api;
  vg_begin(&(vg_options){.devices = RANKS, .seed = 1});
  GOOD(rs_nccl_load(NULL, &api));
  original = &api;
  GOOD(reshard_nccl_unique_id(w.id));
  rank_threads_run(RANKS, peers_rank, &w);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "peers from the next rank on");
  assert_int_equal(vg_end(), 0);
}

/* --- Waiting ------------------------------------------------------------------------------------------------------ */

enum { ROUNDS = 20 };

static int64_t slept[RANKS][2]; /* in the first execute, and in the last ones */

static void sleep_rank(void *user, int64_t r) {
  world *w = user;
  nccl_rank own;
  reshard_status status = nccl_rank_begin(w->id, RANKS, r, 2 * BYTES, 0, &own);
  RS_THEN(status, transfer_make(&own, own.memory));
  for (int i = 0; i < ROUNDS && status == RESHARD_SUCCESS; i++) {
    status = reshard_execute(own.transfer, own.stream);
    slept[r][i > 0] = vg_calls("nanosleep"); /* of all ranks so far */
  }
  nccl_rank_end(&own);
  rank_result_set(&w->result[r], status);
}

/* NCCL takes a while for each group; after the first ones the library waits for it without sleeping. */
CASE(test_no_sleep) {
  world w = {.odd = -1};
  int64_t first = 0, last = 0;
  vg_begin(&(vg_options){.devices = RANKS, .seed = 2, .nccl_us = 150});
  GOOD(reshard_nccl_unique_id(w.id));
  rank_threads_run(RANKS, sleep_rank, &w);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "executes");
  assert_int_equal(vg_end(), 0);
  for (int r = 0; r < RANKS; r++) {
    first = slept[r][0] > first ? slept[r][0] : first;
    last = slept[r][1] > last ? slept[r][1] : last;
  }
  assert_true(first > 0); /* while the communicator and the transfer were made */
  assert_int_equal(last, first);
}

RUN_CASES
