/* Memory of the CPU, and its streams and events, which are none. */
#define _DEFAULT_SOURCE /* MADV_HUGEPAGE */
#include "device/cpu/memory.h"

#include "device/cpu/segment.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 256, HUGE = 2 << 20 };

/* Huge pages where they fit: strided copies touch many pages, and touching new ones is what takes the time. */
reshard_status rs_cpu_alloc(rs_device *device, size_t bytes, void **memory) {
  (void)device;
  void *at = NULL;
  bool huge = bytes >= HUGE;
  if (bytes > 0 && posix_memalign(&at, huge ? HUGE : ALIGNMENT, bytes) != 0)
    return rs_error_memory(bytes);
#if defined(MADV_HUGEPAGE)
  if (huge)
    (void)madvise(at, bytes / HUGE * HUGE, MADV_HUGEPAGE);
#endif
  *memory = at;
  return RESHARD_SUCCESS;
}

void rs_cpu_free(rs_device *device, void *memory) {
  (void)device;
  free(memory);
}

reshard_status rs_cpu_alloc_async(rs_device *device, size_t bytes, void *stream, void **memory) {
  (void)stream;
  return rs_cpu_alloc(device, bytes, memory);
}

void rs_cpu_free_async(rs_device *device, void *memory, void *stream) {
  (void)device, (void)stream;
  free(memory);
}

reshard_status rs_cpu_shared_alloc(rs_device *device, size_t bytes, void *stream, void **memory) {
  (void)device, (void)stream;
  return rs_shared_alloc(bytes, memory);
}

void rs_cpu_shared_free(rs_device *device, void *memory, void *stream) {
  (void)device, (void)stream;
  rs_shared_free(memory);
}

reshard_status rs_cpu_memcpy(rs_device *device, void *dst, const void *src, size_t bytes, void *stream) {
  rs_span span = {src, dst, (int64_t)bytes, false};
  return device->work->copy(device, 1, &span, span.bytes, stream);
}

reshard_status rs_cpu_memset(rs_device *device, void *dst, int byte, size_t bytes, void *stream) {
  (void)device, (void)stream;
  if (bytes > 0)
    memset(dst, byte, bytes);
  return RESHARD_SUCCESS;
}

reshard_status rs_cpu_stream_create(rs_device *device, void **stream) {
  (void)device;
  *stream = NULL;
  return RESHARD_SUCCESS;
}

void rs_cpu_stream_destroy(rs_device *device, void *stream) { (void)device, (void)stream; }

reshard_status rs_cpu_event_create(rs_device *device, rs_event **event) {
  (void)device;
  *event = NULL;
  return RESHARD_SUCCESS;
}

void rs_cpu_event_destroy(rs_device *device, rs_event *event) { (void)device, (void)event; }

reshard_status rs_cpu_event_record(rs_device *device, rs_event *event, void *stream) {
  (void)device, (void)event, (void)stream;
  return RESHARD_SUCCESS;
}

reshard_status rs_cpu_event_wait(rs_device *device, void *stream, rs_event *event) {
  return rs_cpu_event_record(device, event, stream);
}

reshard_status rs_cpu_event_done(rs_device *device, rs_event *event, bool *done) {
  *done = true;
  return rs_cpu_event_record(device, event, NULL);
}

reshard_status rs_cpu_synchronize(rs_device *device, void *stream) { return rs_cpu_event_record(device, NULL, stream); }

reshard_status rs_cpu_finish(rs_device *device) { return rs_cpu_event_record(device, NULL, NULL); }

reshard_status rs_cpu_capturing(rs_device *device, void *stream, bool *capturing) {
  *capturing = false;
  return rs_cpu_event_record(device, NULL, stream);
}

reshard_status rs_cpu_enable_access(rs_device *device, rs_device *other, bool *can) {
  *can = other->type == device->type;
  return RESHARD_SUCCESS;
}
