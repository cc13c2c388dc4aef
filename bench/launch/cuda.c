/* gpu.h by the CUDA runtime. */
#include "bench/launch/gpu.h"

#include "device/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>
#ifdef RS_HAVE_NCCL
#include "comm/comm.h"
#include "comm/nccl/load.h"
#endif

void gpu_machine_read(gpu_machine *m) {
  *m = (gpu_machine){.cuda = true};
  rs_cuda_ignore(cudaDriverGetVersion(&m->driver));
  rs_cuda_ignore(cudaRuntimeGetVersion(&m->runtime));
  if (m->driver == 0 || cudaGetDeviceCount(&m->gpus) != cudaSuccess)
    m->gpus = 0;
  (void)cudaGetLastError();
#ifdef RS_HAVE_NCCL
  m->nccl = true;
  rs_nccl_api nccl;
  if (rs_nccl_load(NULL, &nccl) == RESHARD_SUCCESS)
    m->nccl_version = nccl.version;
#endif
}

const char *gpu_why_none(void) {
  rs_device *device = NULL;
  if (rs_device_cuda_create(0, &device) != RESHARD_SUCCESS)
    return reshard_last_error();
  device->destroy(device);
  return NULL;
}

reshard_status gpu_info_read(int index, gpu_info *info) {
  struct cudaDeviceProp p;
  RS_CUDA_TRY(cudaGetDeviceProperties(&p, index));
  *info = (gpu_info){.major = p.major,
                     .minor = p.minor,
                     .multiprocessors = p.multiProcessorCount,
                     .memory = (int64_t)p.totalGlobalMem,
                     .l2 = p.l2CacheSize};
  memcpy(info->name, p.name, sizeof info->name < sizeof p.name ? sizeof info->name : sizeof p.name);
  info->name[sizeof info->name - 1] = '\0';
  RS_CUDA_TRY(cudaDeviceGetPCIBusId(info->bus, sizeof info->bus, index));
  return RESHARD_SUCCESS;
}

static reshard_status read_memory(rs_device *device, size_t *available, size_t *all) {
  RS_ON_DEVICE(device, cudaMemGetInfo(available, all));
}

reshard_status gpu_available(rs_device *device, int64_t *bytes) {
  size_t available = 0, all = 0;
  RS_TRY(read_memory(device, &available, &all));
  *bytes = (int64_t)available;
  return RESHARD_SUCCESS;
}

bool gpu_peer_access(int from, int to) {
  int can = 0;
  rs_cuda_ignore(cudaDeviceCanAccessPeer(&can, from, to));
  return can != 0;
}

/* --- NCCL -------------------------------------------------------------------------------------------------------- */

#ifdef RS_HAVE_NCCL
static reshard_status init_nccl(const rs_nccl_api *api, reshard_comm own, const ncclUniqueId *id, ncclComm_t *nccl) {
  rs_cuda_before before;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  RS_TRY(rs_cuda_enter(own->device, &before));
  ncclResult_t result = api->ncclCommInitRankConfig(nccl, (int)own->size, *id, (int)own->rank, &config);
  rs_cuda_leave(before);
  return result == ncclSuccess ? RESHARD_SUCCESS
                               : rs_error(RESHARD_ERROR_SYSTEM, "ncclCommInitRankConfig: NCCL error %d", (int)result);
}

reshard_status gpu_nccl_create(reshard_comm own, void **nccl, reshard_comm *wrapper) {
  rs_nccl_api api;
  ncclUniqueId mine = {{0}};
  ncclComm_t made = NULL;
  const void *all;
  RS_TRY(rs_nccl_load(NULL, &api));
  if (own->rank == 0 && api.ncclGetUniqueId(&mine) != ncclSuccess)
    return rs_error(RESHARD_ERROR_SYSTEM, "ncclGetUniqueId has failed");
  RS_TRY(rs_comm_allgather(own, &mine, sizeof mine, &all));
  memcpy(&mine, all, sizeof mine);
  RS_TRY(init_nccl(&api, own, &mine, &made));
  *nccl = made;
  return reshard_comm_from_nccl(made, NULL, 0, wrapper);
}

void gpu_nccl_destroy(void *nccl, reshard_comm wrapper) {
  rs_nccl_api api;
  reshard_comm_destroy(wrapper);
  if (nccl != NULL && rs_nccl_load(NULL, &api) == RESHARD_SUCCESS)
    (void)api.ncclCommDestroy(nccl);
}
#else
reshard_status gpu_nccl_create(reshard_comm own, void **nccl, reshard_comm *wrapper) {
  (void)own, (void)nccl, (void)wrapper;
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "this build has no NCCL");
}
void gpu_nccl_destroy(void *nccl, reshard_comm wrapper) { (void)nccl, (void)wrapper; }
#endif

/* --- Time -------------------------------------------------------------------------------------------------------- */

void gpu_set_policy(rs_device *device, gpu_policy policy) {
  rs_cuda_of(device)->tile = policy.tile;
  rs_cuda_of(device)->bulk_from = policy.bulk_from;
  rs_cuda_of(device)->leap = policy.leap;
  rs_cuda_of(device)->loads = policy.loads;
}

reshard_status gpu_time_create(rs_device *device, rs_event **event) {
  RS_ON_DEVICE(device, cudaEventCreate((cudaEvent_t *)event));
}

reshard_status gpu_elapsed(rs_event *from, rs_event *to, double *seconds) {
  float ms = 0;
  RS_CUDA_TRY(cudaEventElapsedTime(&ms, (cudaEvent_t)from, (cudaEvent_t)to));
  *seconds = 1e-3 * (double)ms;
  return RESHARD_SUCCESS;
}

/* --- Graphs ------------------------------------------------------------------------------------------------------ */

static reshard_status capture_stream(void *stream, reshard_status (*launch)(void *user, void *stream), void *user,
                                     cudaGraphExec_t *exec) {
  cudaGraph_t graph = NULL;
  RS_CUDA_TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  reshard_status launched = launch(user, stream);
  reshard_status status = rs_cuda_check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  status = launched != RESHARD_SUCCESS ? launched : status;
  RS_THEN(status, rs_cuda_check(cudaGraphInstantiate(exec, graph, 0), "cudaGraphInstantiate"));
  if (graph != NULL)
    rs_cuda_ignore(cudaGraphDestroy(graph));
  return status;
}

reshard_status gpu_capture(rs_device *device, void *stream, reshard_status (*launch)(void *user, void *stream),
                           void *user, gpu_graph *graph) {
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(device, &before));
  reshard_status status = capture_stream(stream, launch, user, (cudaGraphExec_t *)&graph->exec);
  graph->device = device;
  rs_cuda_leave(before);
  return status;
}

reshard_status gpu_launch(void *graph, void *stream) {
  const gpu_graph *g = graph;
  RS_ON_DEVICE(g->device, cudaGraphLaunch((cudaGraphExec_t)g->exec, stream));
}

void gpu_graph_destroy(gpu_graph *graph) {
  if (graph->exec != NULL)
    rs_cuda_ignore(cudaGraphExecDestroy((cudaGraphExec_t)graph->exec));
  graph->exec = NULL;
}

/* --- The runtime's own batch of copies --------------------------------------------------------------------------- */

reshard_status gpu_memcpy_batch(rs_device *device, int64_t n, const rs_span *spans, void *stream) {
#if CUDART_VERSION >= 13000
  const void **src = NULL;
  void **dst = NULL;
  size_t *bytes = NULL, first = 0;
  struct cudaMemcpyAttributes how = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&src, n, sizeof *src), done);
  RS_TRY_GOTO(status, rs_alloc(&dst, n, sizeof *dst), done);
  RS_TRY_GOTO(status, rs_alloc(&bytes, n, sizeof *bytes), done);
  for (int64_t i = 0; i < n; i++) {
    src[i] = spans[i].src;
    dst[i] = spans[i].dst;
    bytes[i] = (size_t)spans[i].bytes;
  }
  rs_cuda_before before;
  RS_TRY_GOTO(status, rs_cuda_enter(device, &before), done);
  status =
      rs_cuda_check(cudaMemcpyBatchAsync(dst, src, bytes, (size_t)n, &how, &first, 1, stream), "cudaMemcpyBatchAsync");
  rs_cuda_leave(before);
done:
  free(src);
  free(dst);
  free(bytes);
  return status;
#else
  (void)device, (void)n, (void)spans, (void)stream;
  return rs_error(RESHARD_ERROR_UNSUPPORTED,
                  "cudaMemcpyBatchAsync came with CUDA 13 in this form; this build has %d.%d", CUDART_VERSION / 1000,
                  CUDART_VERSION % 1000 / 10);
#endif
}
