/* Casts, selection and memset of a CUDA device: one launch each, whose table is a parameter of the kernel. So nothing
 * is uploaded, nothing has to live until the launch has run, and a graph holds the table of a captured launch. Only a
 * list of casts that parameters cannot hold has its table uploaded (upload.c); a captured one is several launches. A
 * kernel's code may come to the GPU with its first launch, which a capture of a stricter mode would refuse. */

#include "device/cuda/memory.h"
#include "kernels/cast.h"
#include "kernels/index_select.h"

/* Refuses an address that is not a multiple of the number there: kernels read and write whole numbers. */
static reshard_status check_aligned(const char *call, const char *name, const void *at, int64_t bytes) {
  if ((uintptr_t)at % (uintptr_t)bytes == 0)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "%s on a GPU: %s is at %p, which is not a multiple of its %lld bytes", call,
                  name, at, (long long)bytes);
}

/* Casts by a table in an upload buffer. *done is false where the list needs none, and where none may be used: a graph
 * would read the buffer when it holds another table, and for a buffer in use the host would have to wait. */
static reshard_status cast_by_table(rs_device *device, const rs_casts *casts, void *stream, bool *done) {
  rs_cuda *cuda = rs_cuda_of(device);
  rs_cast_table table;
  rs_upload_buffer *buffer;
  bool captured;
  *done = false;
  size_t bytes = rs_cast_table_measure(casts->cast.n, casts->cast.at, casts->axis.at, &table);
  if (bytes == 0)
    return RESHARD_SUCCESS;
  RS_TRY(device->streams->capturing(device, stream, &captured));
  if (captured)
    return RESHARD_SUCCESS;
  pthread_mutex_lock(&cuda->casting);
  reshard_status status = rs_upload_buffers_take(device, &cuda->cast_buffers, bytes, false, &buffer);
  if (status == RESHARD_SUCCESS && buffer != NULL) {
    rs_cast_table_write(&table, casts->cast.n, casts->cast.at, casts->axis.at, buffer->host);
    status = rs_cuda_memcpy(device, buffer->memory, buffer->host, bytes, stream);
    RS_THEN(status, rs_cuda_check(
                        (cudaError_t)rs_cast_table_launch(&table, buffer->memory, (uint32_t)device->max_blocks, stream),
                        "rs_cast_table_launch"));
    reshard_status used = rs_upload_buffer_used(device, buffer, stream);
    status = status == RESHARD_SUCCESS ? used : status;
    *done = true;
  }
  pthread_mutex_unlock(&cuda->casting);
  return status;
}

static reshard_status launch_casts(rs_device *device, const rs_casts *casts, void *stream) {
  bool done;
  RS_TRY(cast_by_table(device, casts, stream, &done));
  if (done)
    return RESHARD_SUCCESS;
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  int error = rs_cast_launch(casts->cast.n, casts->cast.at, casts->axis.at, (uint32_t)device->max_blocks, stream);
  return rs_cuda_check(rs_cuda_restore(mode, (cudaError_t)error), "rs_cast_launch");
}

reshard_status rs_cuda_cast(rs_device *device, const rs_casts *casts, void *stream) {
  for (int64_t i = 0; i < casts->cast.n; i++) {
    const rs_cast *cast = &casts->cast.at[i];
    RS_TRY(check_aligned("a cast", "the source", cast->src, (int64_t)reshard_dtype_size((reshard_dtype)cast->from)));
    RS_TRY(check_aligned("a cast", "the destination", cast->dst, (int64_t)reshard_dtype_size((reshard_dtype)cast->to)));
  }
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(device, &before));
  reshard_status status = launch_casts(device, casts, stream);
  rs_cuda_leave(before);
  return status;
}

reshard_status rs_cuda_select(rs_device *device, const rs_select *select, rs_select_fault *fault, void *stream) {
  RS_TRY(check_aligned("a selection", "the index", select->index, select->index_bytes));
  RS_ON_DEVICE_RELAXED(device, rs_index_select_launch(select, fault, (uint32_t)device->max_blocks, stream));
}

reshard_status rs_cuda_memset(rs_device *device, void *dst, int byte, size_t bytes, void *stream) {
  if (bytes == 0)
    return RESHARD_SUCCESS;
  RS_ON_DEVICE(device, cudaMemsetAsync(dst, byte, bytes, (cudaStream_t)stream));
}
