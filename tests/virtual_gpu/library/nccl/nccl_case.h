/* Ranks over NCCL on virtual GPUs, a thread and a GPU each, and a case that they run. They are of one process, or each
 * of its own, on nodes. */
#ifndef VG_NCCL_CASE_H
#define VG_NCCL_CASE_H

#include "bench/verify/case_binding.h"
#include "comm/comm.h"
#include "nccl_rank.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum { NCCL_MOST = 16 };

typedef struct nccl_world {
  int64_t n, timeout_ms;
  int64_t nodes;     /* 0: one process has all ranks; else each has its own, on these nodes in turn */
  reshard_path path; /* wished */
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  reshard_comm comm[NCCL_MOST];
  rank_result result[NCCL_MOST];
  const case_plan *c;
  bool check; /* the data */
  bool graph; /* captured once, by each rank, and launched for each execute */
  int executes;
  int64_t rounds[NCCL_MOST];
  reshard_transfer_info info[NCCL_MOST];
  char why[NCCL_MOST][600];
} nccl_world;

/* The calling thread is one of the node. */
static inline void nccl_node_enter(int64_t number) {
  char node[8];
  snprintf(node, sizeof node, "%d", (int)number);
  vg_setenv("RESHARD_NODE", node);
}

/* The calling thread is one of the rank. */
static inline void nccl_world_enter(const nccl_world *w, int64_t rank) {
  if (w->nodes == 0)
    return;
  vg_process((int)rank);
  nccl_node_enter(rank % w->nodes);
}

static inline void nccl_world_open_rank(void *user, int64_t rank) {
  nccl_world *w = user;
  nccl_world_enter(w, rank);
  rank_result_set(&w->result[rank], nccl_rank_open(w->id, w->n, rank, w->timeout_ms, &w->comm[rank]));
}

/* Sets the communicator of the world. */
static inline void nccl_world_begin(nccl_world *w) {
  GOOD(reshard_nccl_unique_id(w->id));
  rank_threads_run(w->n, nccl_world_open_rank, w);
  rank_results_assert(w->n, w->result, RESHARD_SUCCESS, NULL, "creating the communicator");
}

static inline void nccl_world_open(nccl_world *w, int64_t n, int64_t timeout_ms) {
  *w = (nccl_world){.n = n, .timeout_ms = timeout_ms};
  nccl_world_begin(w);
}

static inline void nccl_world_close_rank(void *user, int64_t rank) {
  nccl_world *w = user;
  nccl_world_enter(w, rank);
  reshard_comm_destroy(w->comm[rank]);
}

static inline void nccl_world_close(nccl_world *w) { rank_threads_run(w->n, nccl_world_close_rank, w); }

/* A binding's arena on the GPU, and pointers into it. */
typedef struct nccl_mirror {
  case_binding host;
  char *device;
  void **pointer;
} nccl_mirror;

static inline bool nccl_mirror_make(const case_plan *c, int64_t rank, bool source, nccl_mirror *m) {
  case_binding_make(c, rank, source, 0, &m->host);
  m->device = NULL;
  if (cudaMalloc((void **)&m->device, (size_t)m->host.bytes + 1) != cudaSuccess)
    return false;
  m->pointer = calloc((size_t)m->host.n + 1, sizeof *m->pointer);
  for (int64_t i = 0; i < m->host.n; i++)
    if (m->host.pointer[i] != NULL)
      m->pointer[i] = m->device + ((unsigned char *)m->host.pointer[i] - m->host.arena);
  return true;
}

static inline void nccl_mirror_free(nccl_mirror *m) {
  cudaFree(m->device);
  case_binding_free(&m->host);
  free(m->pointer);
}

static inline reshard_status cuda_status(cudaError_t error) {
  return error == cudaSuccess ? RESHARD_SUCCESS : rs_error(RESHARD_ERROR_SYSTEM, "%s", cudaGetErrorString(error));
}

static inline reshard_status nccl_case_capture(reshard_transfer transfer, cudaStream_t stream, cudaGraphExec_t *exec) {
  cudaGraph_t graph = NULL;
  RS_TRY(cuda_status(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)));
  reshard_status status = reshard_execute(transfer, stream), ended = cuda_status(cudaStreamEndCapture(stream, &graph));
  RS_THEN(status, ended);
  RS_THEN(status, cuda_status(cudaGraphInstantiate(exec, graph, 0)));
  if (graph != NULL)
    cudaGraphDestroy(graph);
  return status;
}

/* Cleans up as a user whose rank fails: the others do not wait for it, and nothing is left on its stream. False: with
 * an edge left out something may be, which writes to the host's memory yet. */
static inline bool nccl_case_give_up(nccl_world *w, cudaStream_t stream) {
  for (int64_t r = 0; r < w->n; r++)
    reshard_comm_abort(w->comm[r]);
  return cudaStreamSynchronize(stream) == cudaSuccess;
}

/* Fill, execute, compare, on a stream of the rank's own. */
static inline reshard_status nccl_case_turn(nccl_world *w, int64_t rank, reshard_transfer transfer,
                                            cudaGraphExec_t graph, nccl_mirror *src, nccl_mirror *dst,
                                            cudaStream_t stream, int generation) {
  rs_text why = {0};
  case_binding_fill(w->c, &src->host, FILL_SOURCE, generation);
  case_binding_fill(w->c, &dst->host, FILL_DESTINATION, generation);
  cudaMemcpyAsync(src->device, src->host.arena, (size_t)src->host.bytes, cudaMemcpyHostToDevice, stream);
  cudaMemcpyAsync(dst->device, dst->host.arena, (size_t)dst->host.bytes, cudaMemcpyHostToDevice, stream);
  reshard_status status =
      graph != NULL ? cuda_status(cudaGraphLaunch(graph, stream)) : reshard_execute(transfer, stream);
  cudaMemcpyAsync(dst->host.arena, dst->device, (size_t)dst->host.bytes, cudaMemcpyDeviceToHost, stream);
  cudaMemsetAsync(src->device, 0x77, (size_t)src->host.bytes, stream); /* it may be overwritten from here on */
  if (cudaStreamSynchronize(stream) != cudaSuccess)
    return rs_error(RESHARD_ERROR_SYSTEM, "the stream does not come to its end");
  if (w->check && status == RESHARD_SUCCESS &&
      !case_binding_check(w->c, &dst->host, FILL_DESTINATION, generation, rank, &why))
    snprintf(w->why[rank], sizeof w->why[rank], "%s", why.at);
  free(why.at);
  return status;
}

static inline void nccl_case_rank(void *user, int64_t rank) {
  nccl_world *w = user;
  const case_plan *c = w->c;
  nccl_mirror src = {0}, dst = {0};
  cudaStream_t stream = NULL;
  cudaGraphExec_t graph = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  reshard_entry *entries = case_entries(c);
  const reshard_transfer_options options = {.size = RESHARD_TRANSFER_OPTIONS_INIT, .path = w->path};
  nccl_world_enter(w, rank);
  cudaSetDevice((int)rank);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  nccl_mirror_make(c, rank, true, &src);
  nccl_mirror_make(c, rank, false, &dst);
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT,  src.pointer, dst.pointer, src.host.stride_list,
                           dst.host.stride_list, src.host.n,  dst.host.n};
  reshard_status status = reshard_plan_create(c->nentries, entries, rank, &c->options, &plan);
  RS_THEN(status, reshard_transfer_create(plan, w->comm[rank], &arrays, &options, &transfer));
  reshard_plan_info info;
  w->rounds[rank] = reshard_plan_get_info(plan, &info) == RESHARD_SUCCESS ? info.rounds : 0;
  RS_THEN(status, reshard_transfer_get_info(transfer, &w->info[rank]));
  if (status == RESHARD_SUCCESS && w->graph)
    status = nccl_case_capture(transfer, stream, &graph);
  for (int k = 0; k < w->executes && status == RESHARD_SUCCESS; k++)
    status = nccl_case_turn(w, rank, transfer, graph, &src, &dst, stream, k + 1);
  rank_result_set(&w->result[rank], status);
  bool idle = status == RESHARD_SUCCESS || nccl_case_give_up(w, stream);
  if (graph != NULL)
    cudaGraphExecDestroy(graph);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  if (idle) {
    nccl_mirror_free(&src);
    nccl_mirror_free(&dst);
  }
  cudaStreamDestroy(stream);
  free(entries);
}

#endif
