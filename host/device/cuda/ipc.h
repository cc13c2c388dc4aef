/* Memory of GPUs that other processes of the node open, and meetings of streams with theirs. */
#ifndef RS_DEVICE_CUDA_IPC_H
#define RS_DEVICE_CUDA_IPC_H

#include "device/device.h"

extern const rs_device_processes rs_cuda_processes;

/* Functions of that table for memory (ipc.c), which meetings are made of. Those have no descriptors. */
reshard_status rs_cuda_find_exported(rs_device *device, const void *begin, const void *end, rs_exported_memory *memory,
                                     int64_t *inside, bool *found);
reshard_status rs_cuda_open_exported(rs_device *device, const rs_exported_memory *memory, int fd, void **at);
void rs_cuda_close_exported(rs_device *device, const rs_exported_memory *memory, void *at);

#endif
