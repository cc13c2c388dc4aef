/* Memory of a CUDA device, and of the host for it. */
#ifndef RS_DEVICE_CUDA_MEMORY_H
#define RS_DEVICE_CUDA_MEMORY_H

#include "device/cuda/cuda.h"

reshard_status rs_cuda_alloc(rs_device *device, size_t bytes, void **memory);
void rs_cuda_free(rs_device *device, void *memory);
reshard_status rs_cuda_alloc_async(rs_device *device, size_t bytes, void *stream, void **memory);
void rs_cuda_free_async(rs_device *device, void *memory, void *stream);
reshard_status rs_cuda_host_alloc(rs_device *device, size_t bytes, void **memory);
void rs_cuda_host_free(rs_device *device, void *memory);
reshard_status rs_cuda_memcpy(rs_device *device, void *dst, const void *src, size_t bytes, void *stream);
/* Lets kernels of GPU `by`, of this process, reach storage of device from now on, where GPUs can. For preparing. */
reshard_status rs_cuda_open(rs_device *device, int by);
reshard_status rs_cuda_reach(rs_device *device, rs_device *other, bool *can);
reshard_status rs_cuda_look_up(rs_device *device, const void *at, rs_address *address);

#endif
