/* Parts of the CPU's tables: memory; streams and events, which are none; selections. */
#ifndef RS_DEVICE_CPU_MEMORY_H
#define RS_DEVICE_CPU_MEMORY_H

#include "device/cpu/copy/kernels.h"
#include "device/cpu/threads.h"
#include "device/device.h"

reshard_status rs_cpu_alloc(rs_device *device, size_t bytes, void **memory);
void rs_cpu_free(rs_device *device, void *memory);
reshard_status rs_cpu_alloc_async(rs_device *device, size_t bytes, void *stream, void **memory);
void rs_cpu_free_async(rs_device *device, void *memory, void *stream);
/* alloc_async and free_async of a device whose storage other processes of the node can map. */
reshard_status rs_cpu_shared_alloc(rs_device *device, size_t bytes, void *stream, void **memory);
void rs_cpu_shared_free(rs_device *device, void *memory, void *stream);
reshard_status rs_cpu_memcpy(rs_device *device, void *dst, const void *src, size_t bytes, void *stream);
reshard_status rs_cpu_memset(rs_device *device, void *dst, int byte, size_t bytes, void *stream);
/* Streams and events of a device that has none: all work is done when a call returns. */
reshard_status rs_cpu_stream_create(rs_device *device, void **stream);
void rs_cpu_stream_destroy(rs_device *device, void *stream);
reshard_status rs_cpu_event_create(rs_device *device, rs_event **event);
void rs_cpu_event_destroy(rs_device *device, rs_event *event);
reshard_status rs_cpu_event_record(rs_device *device, rs_event *event, void *stream);
reshard_status rs_cpu_event_wait(rs_device *device, void *stream, rs_event *event);
reshard_status rs_cpu_event_done(rs_device *device, rs_event *event, bool *done);
reshard_status rs_cpu_synchronize(rs_device *device, void *stream);
reshard_status rs_cpu_finish(rs_device *device);
reshard_status rs_cpu_capturing(rs_device *device, void *stream, bool *capturing);
reshard_status rs_cpu_enable_access(rs_device *device, rs_device *other, bool *can);

/* Selection along a dim by the CPU, in box copies. */
reshard_status rs_cpu_select(rs_device *device, const rs_select *select, rs_select_fault *fault, void *stream);

#endif
