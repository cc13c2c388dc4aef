/* Programs and spans of a CUDA device: the box copies of its table of work. */
#ifndef RS_DEVICE_CUDA_PROGRAM_H
#define RS_DEVICE_CUDA_PROGRAM_H

#include "device/device.h"

reshard_status rs_cuda_compile(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **program);
reshard_status rs_cuda_recompile(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **program);
void rs_cuda_release(rs_device *device, rs_program *program);
reshard_status rs_cuda_run(rs_device *device, int64_t n, rs_program *const *programs, void *stream);
reshard_status rs_cuda_copy(rs_device *device, int64_t n, const rs_span *spans, int64_t total_bytes, void *stream);
int64_t rs_cuda_count(const rs_program *program);

#endif
