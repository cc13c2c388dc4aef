/* bench/micro/cub_copy.cu for machines without a GPU: what it does, as a launch of one thread. */
#include "bench/micro/cub_copy.h"
#include "kernels/launch.h"

#include <string.h>

static __global__ void copy_runs(int64_t n, const void *const *srcs, void *const *dsts, const uint64_t *sizes) {
  for (int64_t i = 0; i < n; i++)
    memcpy(dsts[i], srcs[i], sizes[i]);
}

extern "C" int rs_cub_copy_workspace(int64_t n, size_t *bytes) {
  if (n < 0 || n > static_cast<int64_t>(UINT32_MAX))
    return cudaErrorInvalidValue;
  *bytes = 1;
  return cudaSuccess;
}

extern "C" int rs_cub_copy_launch(int64_t n, const void *const *srcs, void *const *dsts, const uint64_t *sizes,
                                  void *workspace, size_t workspace_bytes, void *stream) {
  if (n < 0 || n > static_cast<int64_t>(UINT32_MAX) || workspace == nullptr || workspace_bytes == 0)
    return cudaErrorInvalidValue;
  return rs_launch(copy_runs, dim3(1), dim3(1), 0, stream, n, srcs, dsts, sizes);
}
