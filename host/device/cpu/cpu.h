/* The CPU device: box copies by the calling thread and a pool of helpers. */
#ifndef RS_DEVICE_CPU_H
#define RS_DEVICE_CPU_H

#include "device/device.h"

#include <reshard/comm.h> /* reshard_isa */

/* threads: copy threads in all, the calling one included (1 starts none); 0: one per core that the process may use.
 * isa: AUTO for the best of the machine; RESHARD_ERROR_UNSUPPORTED when the forced one is not available. Several
 * threads may call run and copy at once; jobs then run one after the other. */
reshard_status rs_device_cpu_create(int threads, reshard_isa isa, rs_device **device);
/* Lets the storage of a new device be memory that other processes of the node can map (segment.h). */
reshard_status rs_device_cpu_share(rs_device *device);
/* Cores that the process may use. */
int rs_device_cpu_cores(void);
int rs_device_cpu_threads(const rs_device *device);
reshard_isa rs_device_cpu_isa(const rs_device *device);

/* bytes copied from src to dst, all by `device`'s threads, by memcpy (streaming false) or by the non-temporal stores
 * of its instruction set (streaming true): the references that the benchmark compares with. */
void rs_device_cpu_straight(rs_device *device, char *dst, const char *src, int64_t bytes, bool streaming);

#endif
