/* A matrix that goes from rows to columns over NCCL: ranks are processes on several nodes, with a GPU each. */
#ifndef TESTS_VG_NODE_NCCL_H
#define TESTS_VG_NODE_NCCL_H

#include "columns.h"
#include "library/nccl/nccl_case.h"
#include "node_gather.h"
#include "support/fixtures/case.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <string.h>

enum { RANKS = 4, NODES = 2, LIMIT_MS = 60000 };
enum { SIDE = 24, ROWS = SIDE / RANKS, BYTES = SIDE * ROWS };

static inline bool on_one_node(int64_t nodes, int64_t a, int64_t b) { return a % nodes == b % nodes; }

typedef struct moving moving;

/* One rank. */
typedef struct moving_rank {
  moving *m;
  int64_t rank;
  reshard_comm comm;
  reshard_device device; /* NULL: NCCL's communicator has one itself */
  ncclComm_t nccl;       /* NULL: it is not the caller's */
  reshard_plan plan;
  reshard_transfer transfer;
  cudaStream_t stream;
  char *src, *dst;
  const char *wrong; /* what is; NULL: nothing */
} moving_rank;

struct moving {
  int64_t nodes, timeout_ms;
  reshard_path path;
  bool threads;  /* of one process */
  bool apart;    /* from NCCL: a node communicator */
  bool pooled;   /* rank 1's source: memory of a pool */
  bool borrowed; /* the communicator is the caller's, who aborts it in the end */
  void (*body)(moving_rank *me);
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  node_gather gather;
  rank_result result[RANKS];
  const char *wrong[RANKS];
};

static inline reshard_status make_plan(moving_rank *me) { return columns_plan(SIDE, RANKS, me->rank, &me->plan); }

static inline reshard_status make_transfer(moving_rank *me, char *src, char *dst, reshard_path path) {
  const reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = (void *[]){src}, .dst = (void *[]){dst}};
  const reshard_transfer_options options = {.size = RESHARD_TRANSFER_OPTIONS_INIT, .path = path};
  return reshard_transfer_create(me->plan, me->comm, &arrays, &options, &me->transfer);
}

static inline void open_memory(moving_rank *me) {
  if (!me->m->threads)
    vg_process((int)me->rank);
  nccl_node_enter(me->rank % me->m->nodes);
  cudaSetDevice((int)me->rank);
  cudaStreamCreateWithFlags(&me->stream, cudaStreamNonBlocking);
  if (me->m->pooled && me->rank == 1)
    cudaMallocAsync((void **)&me->src, BYTES, me->stream);
  else
    cudaMalloc((void **)&me->src, BYTES);
  cudaMalloc((void **)&me->dst, BYTES);
  cudaMemsetAsync(me->dst, 0xEE, BYTES, me->stream);
  cudaStreamSynchronize(me->stream);
}

static inline reshard_status open_comm(moving_rank *me) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  moving *m = me->m;
  if (m->apart) {
    node_gatherer gatherer = {&m->gather, me->rank};
    reshard_node_options options = {.size = RESHARD_NODE_OPTIONS_INIT, .timeout_ms = m->timeout_ms};
    reshard_status status = reshard_device_create("cuda", NULL, &me->device);
    options.device = me->device;
    RS_THEN(status, reshard_comm_create_node(RANKS, me->rank, node_gather_all, &gatherer, &options, &me->comm));
    return status;
  }
  if (!m->borrowed)
    return nccl_rank_open(m->id, RANKS, me->rank, m->timeout_ms, &me->comm);
  config.blocking = 0;
  memcpy(&id, m->id, sizeof id);
  ncclResult_t state = ncclCommInitRankConfig(&me->nccl, RANKS, id, (int)me->rank, &config);
  while (state == ncclInProgress)
    ncclCommGetAsyncError(me->nccl, &state);
  return reshard_comm_from_nccl(me->nccl, NULL, m->timeout_ms, &me->comm);
}

static inline void close_rank(moving_rank *me) {
  reshard_transfer_destroy(me->transfer);
  if (me->nccl != NULL) {
    reshard_comm_destroy(me->comm);
    me->comm = NULL;
    ncclCommAbort(me->nccl);
  }
  cudaStreamSynchronize(me->stream);
  reshard_comm_destroy(me->comm);
  reshard_device_release(me->device);
  reshard_plan_destroy(me->plan);
  if (me->m->pooled && me->rank == 1)
    cudaFreeAsync(me->src, me->stream);
  else
    cudaFree(me->src);
  cudaFree(me->dst);
  cudaStreamDestroy(me->stream);
}

static inline void run_rank(void *user, int64_t rank) {
  moving *m = user;
  moving_rank me = {.m = m, .rank = rank};
  open_memory(&me);
  reshard_status status = make_plan(&me);
  RS_THEN(status, open_comm(&me));
  RS_THEN(status, make_transfer(&me, me.src, me.dst, m->path));
  rank_result_set(&m->result[rank], status);
  if (status == RESHARD_SUCCESS || me.comm != NULL)
    m->body(&me);
  close_rank(&me);
  m->wrong[rank] = me.wrong;
}

/* Returns the reports. */
static inline int moving_run(moving *m, uint64_t seed, void (*body)(void *user, int64_t rank)) {
  node_gather_begin(&m->gather);
  m->gather.ranks = RANKS;
  vg_begin(&(vg_options){.devices = RANKS, .seed = seed});
  assert_int_equal(reshard_nccl_unique_id(m->id), RESHARD_SUCCESS);
  rank_threads_run(RANKS, body, m);
  int reports = vg_end();
  node_gather_end(&m->gather);
  return reports;
}

static inline void assert_moved(moving *m, uint64_t seed) {
  int reports = moving_run(m, seed, run_rank);
  rank_results_assert(RANKS, m->result, RESHARD_SUCCESS, NULL, "a transfer");
  for (int r = 0; r < RANKS; r++)
    if (m->wrong[r] != NULL)
      fail_msg("seed %d, rank %d: %s", (int)seed, r, m->wrong[r]);
  if (reports != 0)
    fail_msg("seed %d: %s", (int)seed, vg_report(0));
}

/* Runs a body in which a rank is lost. Races and uses of freed memory are faults, and leaks where they count. Reports
 * of messages that nobody took are none. */
static inline void assert_lost_once(moving *m, uint64_t seed, bool leaks_count) {
  vg_quiet(true);
  (void)moving_run(m, seed, run_rank);
  vg_quiet(false);
  rank_results_assert(RANKS, m->result, RESHARD_SUCCESS, NULL, "a transfer");
  for (int r = 0; r < RANKS; r++)
    if (m->wrong[r] != NULL)
      fail_msg("seed %d, rank %d: %s; %s", (int)seed, r, m->wrong[r], vg_reports() > 0 ? vg_report(0) : "");
  if (vg_reports_with("race") + vg_reports_with("freed") + (leaks_count ? vg_reports_with("leak") : 0) > 0)
    fail_msg("seed %d: %s", (int)seed, vg_report(vg_reports() - 1));
}

static inline bool is_moved(const char *dst, int round) {
  char here[BYTES];
  vg_peek(here, dst, BYTES);
  for (int row = 0; row < SIDE; row++)
    for (int column = 0; column < ROWS; column++)
      if (here[row * ROWS + column] != byte_of(round, row / ROWS))
        return false;
  return true;
}

static inline void move_once(moving_rank *me, int round) {
  cudaMemsetAsync(me->src, byte_of(round, me->rank), BYTES, me->stream);
  NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
  NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
  NEED(me, is_moved(me->dst, round));
}

static inline void run_without(void *user, int64_t rank) {
  moving *m = user;
  moving_rank me = {.m = m, .rank = rank};
  open_memory(&me);
  reshard_status status = make_plan(&me);
  RS_THEN(status, open_comm(&me));
  if (status == RESHARD_SUCCESS)
    m->body(&me);
  close_rank(&me);
  m->wrong[rank] = me.wrong;
  rank_result_set(&m->result[rank], status);
}

#endif
