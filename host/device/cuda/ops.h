/* Casts, selection and memset of a CUDA device. */
#ifndef RS_DEVICE_CUDA_OPS_H
#define RS_DEVICE_CUDA_OPS_H

#include "device/device.h"

reshard_status rs_cuda_cast(rs_device *device, const rs_casts *casts, void *stream);
reshard_status rs_cuda_select(rs_device *device, const rs_select *select, rs_select_fault *fault, void *stream);
reshard_status rs_cuda_memset(rs_device *device, void *dst, int byte, size_t bytes, void *stream);

#endif
