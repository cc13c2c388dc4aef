/* Casts, selection and memset of a CUDA device: a launch each, whose tables are parameters of the kernel. So nothing is
 * uploaded, nothing has to live until the launch has run, and a captured launch has its table in the graph. */
#include "device/cuda.h"
#include "kernels/cast.h"
#include "kernels/index_select.h"

/* A kernel reads and writes whole numbers, which must be where the hardware can. */
static reshard_status check_aligned(const char *call, const char *what, const void *at, int64_t bytes) {
  if ((uintptr_t)at % (uintptr_t)bytes == 0)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "%s on a GPU: %s is at %p, which is not a multiple of its %lld bytes", call,
                  what, at, (long long)bytes);
}

reshard_status rs_cuda_cast(rs_device *device, const rs_casts *casts, void *stream) {
  for (int64_t i = 0; i < casts->cast.n; i++) {
    const rs_cast *cast = &casts->cast.at[i];
    RS_TRY(check_aligned("a cast", "the source", cast->src, (int64_t)reshard_dtype_size((reshard_dtype)cast->from)));
    RS_TRY(check_aligned("a cast", "the destination", cast->dst, (int64_t)reshard_dtype_size((reshard_dtype)cast->to)));
  }
  RS_ON_DEVICE(device, rs_cast_launch(casts->cast.n, casts->cast.at, casts->axis.at, stream));
}

reshard_status rs_cuda_select(rs_device *device, const rs_select *select, rs_select_fault *fault, void *stream) {
  RS_TRY(check_aligned("a selection", "the index", select->index, select->index_bytes));
  RS_ON_DEVICE(device, rs_index_select_launch(select, fault, stream));
}

reshard_status rs_cuda_memset(rs_device *device, void *dst, int byte, size_t bytes, void *stream) {
  if (bytes == 0)
    return RESHARD_SUCCESS;
  RS_ON_DEVICE(device, cudaMemsetAsync(dst, byte, bytes, (cudaStream_t)stream));
}
