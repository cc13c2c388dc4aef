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
/* The lock of the handles, of storage that is open to GPUs, and of segments. */
void rs_cuda_lock(void);
void rs_cuda_unlock(void);
/* Calls open for each GPU that storage of `gpu` is open to, until one fails. The lock is held. */
reshard_status rs_cuda_for_openings(int gpu, reshard_status (*open)(void *user, int by), void *user);
/* Begins and ends a handle's place in the process: storage of all handles of a GPU is opened to peers together. */
void rs_cuda_join(rs_cuda *cuda);
void rs_cuda_part(rs_cuda *cuda);
/* Lets kernels of GPU `by`, of this process, reach storage of device's GPU from now on, where GPUs can: that of each
 * handle, also of later ones, until none of that GPU is left. For preparing. */
reshard_status rs_cuda_open(rs_device *device, int by);
reshard_status rs_cuda_enable_access(rs_device *device, rs_device *other, bool *can);
reshard_status rs_cuda_look_up(rs_device *device, const void *at, rs_address *address);

#endif
