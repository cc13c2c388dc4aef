/* CUB's batched memcpy behind our launcher: runs are sorted by size into those for a thread, a warp or a block each,
 * and those that several blocks share. It is the only file that the tests' compiler cannot take (tests/simt has a twin
 * of it), so nothing else is here. */
#include "bench/micro/cub_copy.h"

#include "kernels/launch.h"

#include <cub/device/device_memcpy.cuh>

namespace {
int batched(int64_t n, const void *const *srcs, void *const *dsts, const uint64_t *sizes, void *workspace,
            size_t *workspace_bytes, void *stream) {
  if (n < 0 || n > static_cast<int64_t>(UINT32_MAX))
    return cudaErrorInvalidValue;
  return cub::DeviceMemcpy::Batched(workspace, *workspace_bytes, srcs, dsts, sizes, static_cast<uint32_t>(n),
                                    static_cast<cudaStream_t>(stream));
}
} // namespace

extern "C" int rs_cub_copy_workspace(int64_t n, size_t *bytes) {
  *bytes = 0;
  return batched(n, nullptr, nullptr, nullptr, nullptr, bytes, nullptr);
}

extern "C" int rs_cub_copy_launch(int64_t n, const void *const *srcs, void *const *dsts, const uint64_t *sizes,
                                  void *workspace, size_t workspace_bytes, void *stream) {
  return batched(n, srcs, dsts, sizes, workspace, &workspace_bytes, stream);
}
