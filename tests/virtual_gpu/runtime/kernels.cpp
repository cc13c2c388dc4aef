/* Launches of kernels: closures of the SIMT executor, given to a stream like any other work. */
#include "machine.hpp"

#include "simt/simt.h"

namespace vg {

/* "name<4, true>" of "name<4, true>, grid, ...". */
static std::string kernel_name(const char *text) {
  size_t depth = 0, n = 0;
  for (; text[n] && (depth || text[n] != ','); n++)
    depth += (text[n] == '<' || text[n] == '(') - (size_t)(depth && (text[n] == '>' || text[n] == ')'));
  return "kernel " + std::string(text, n);
}

struct Launch { /* shared by the nodes of graphs that it is in */
  simt_launch *launch = nullptr;
  ~Launch() {
    if (launch)
      simt_free(launch);
  }
};

static int enqueue(void *, simt_launch *launch) {
  VG_CALL(cudaLaunchKernel, CALL_LAUNCH);
  Stream *stream = stream_of((cudaStream_t)launch->stream, "a kernel launch");
  if (!stream)
    return api.end(cudaErrorInvalidResourceHandle);
  if (stream->device != api.thread->device) {
    report("launch device", "misuse: a kernel is launched on %s while GPU %d is the current one", stream->name.c_str(),
           api.thread->device);
    return api.end(cudaErrorInvalidResourceHandle);
  }
  const int64_t blocks = (int64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
  M.counts.most_blocks = std::max(M.counts.most_blocks, blocks);
  auto owned = std::make_shared<Launch>();
  owned->launch = launch;
  Work work;
  work.what = keep(kernel_name(launch->name));
  work.watch = true;
  int device = stream->device;
  work.run = [owned, device] {
    if (M.break_at > 0 && --M.break_at == 0) {
      break_device(device, cudaErrorIllegalAddress);
      return;
    }
    kernel_begins(owned->launch, owned->launch->object_bytes);
    int error = simt_run(owned->launch);
    if (error == SIMT_POLLS)
      kernel_pauses();
    if (error == 0 || error == SIMT_POLLS)
      return;
    report(simt_error_text(), "kernel: %s", simt_error_text());
    break_device(device, (cudaError_t)error);
  };
  cudaError_t error = submit(*stream, std::move(work));
  if (error != cudaSuccess)
    owned->launch = nullptr; /* the launcher keeps it */
  return api.end(error);
}

void kernels_begin() {
  simt_set_enqueue(enqueue, nullptr);
  simt_set_watch(kernel_seen);
  simt_set_polls(true);
}

} // namespace vg
