/* In place of cuda.c in a build without CUDA. */
#include "bench/launch/gpu.h"

static reshard_status refuse_cuda(void) { return rs_error(RESHARD_ERROR_UNSUPPORTED, "this build has no CUDA"); }

void gpu_machine_read(gpu_machine *m) { *m = (gpu_machine){0}; }
const char *gpu_why_none(void) { return "this build has no CUDA"; }

reshard_status gpu_info_read(int index, gpu_info *info) {
  (void)index, (void)info;
  return refuse_cuda();
}
reshard_status gpu_available(rs_device *device, int64_t *bytes) {
  (void)device, (void)bytes;
  return refuse_cuda();
}
reshard_status gpu_nccl_create(reshard_comm own, void **nccl, reshard_comm *wrapper) {
  (void)own, (void)nccl, (void)wrapper;
  return refuse_cuda();
}
void gpu_nccl_destroy(void *nccl, reshard_comm wrapper) { (void)nccl, (void)wrapper; }
bool gpu_peer_access(int from, int to) {
  (void)from, (void)to;
  return false;
}

void gpu_set_policy(rs_device *device, gpu_policy policy) { (void)device, (void)policy; }

reshard_status gpu_time_create(rs_device *device, rs_event **event) {
  (void)device, (void)event;
  return refuse_cuda();
}
reshard_status gpu_elapsed(rs_event *from, rs_event *to, double *seconds) {
  (void)from, (void)to, (void)seconds;
  return refuse_cuda();
}

reshard_status gpu_capture(rs_device *device, void *stream, reshard_status (*launch)(void *user, void *stream),
                           void *user, gpu_graph *graph) {
  (void)device, (void)stream, (void)launch, (void)user, (void)graph;
  return refuse_cuda();
}
reshard_status gpu_launch(void *graph, void *stream) {
  (void)graph, (void)stream;
  return refuse_cuda();
}
void gpu_graph_destroy(gpu_graph *graph) { (void)graph; }

reshard_status gpu_memcpy_batch(rs_device *device, int64_t n, const rs_span *spans, void *stream) {
  (void)device, (void)n, (void)spans, (void)stream;
  return refuse_cuda();
}
