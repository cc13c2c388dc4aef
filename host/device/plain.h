/* Memory that all streams of a device use at once (memory/plain.c). */
#ifndef RS_DEVICE_PLAIN_H
#define RS_DEVICE_PLAIN_H

#include "device/device.h"

/* Memory for preparing, from the pool of the device's handle and so from its caller's allocator: usable on all streams
 * at once, aligned to 256 bytes; NULL for 0 bytes. May block, but for no work of other streams. */
reshard_status rs_device_alloc(rs_device *device, size_t bytes, void **memory);
/* The same, and GPUs of this process reach it that have not been let into storage yet. */
reshard_status rs_device_alloc_open(rs_device *device, size_t bytes, void **memory);
/* Counts memory of meetings with other processes as the pool's, before it is taken from the driver. They open it, so it
 * comes from no allocator. RESHARD_ERROR_OUT_OF_MEMORY where it would exceed the pool's limit. Uncounted when it has
 * gone back. */
reshard_status rs_device_count_meeting(rs_device *device, size_t bytes);
void rs_device_uncount_meeting(rs_device *device, size_t bytes);
/* Frees memory that nothing uses any more. NULL is allowed. */
RS_PRIVATE_API void rs_device_free(rs_device *device, void *memory);

#endif
