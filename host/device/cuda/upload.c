/* Upload buffers: memory for tables that one use reads, of copies that run once and of long lists of casts.
 *
 * The use itself uploads its table, in its own stream, from pinned memory: the host waits for nothing. Pinned memory
 * must stay as it is until the upload is done, device memory until the kernels are, while the host writes the next
 * tables. So there are several buffers of both memories, each with an event that is recorded behind its last use. A
 * use takes a buffer whose event has happened. All are made at once, of one size: then no later use of tables that are
 * not longer calls the driver's allocator, however far the host is ahead. */
#include "device/cuda/memory.h"

#include "base/range.h"
#include "device/plain.h"
#include "device/stream.h"

#include <sched.h>

enum { LEAST = 4 << 10 };

static reshard_status poll_buffer(rs_device *device, rs_upload_buffer *buffer) {
  if (buffer->lost) {
    RS_TRY(device->streams->finish(device));
    buffer->used = buffer->lost = false;
  }
  if (buffer->used) {
    bool done = false;
    RS_TRY(device->streams->event_done(device, buffer->event, &done));
    buffer->used = !done;
  }
  return RESHARD_SUCCESS;
}

static reshard_status wait_for_buffer(rs_device *device, rs_upload_buffer *buffer) {
  RS_TRY(poll_buffer(device, buffer));
  RS_RANGE("wait", -1, -1, -1, -1);
  while (buffer->used) {
    sched_yield();
    RS_TRY(poll_buffer(device, buffer));
  }
  return RESHARD_SUCCESS;
}

static void free_memory(rs_device *device, rs_upload_buffers *buffers) {
  rs_cuda_host_free(device, buffers->host);
  rs_device_free(device, buffers->memory);
  buffers->host = buffers->memory = NULL;
  buffers->bytes = 0;
}

/* Makes all buffers anew, where none is in use. */
static reshard_status grow_buffers(rs_device *device, rs_upload_buffers *buffers, size_t bytes) {
  size_t size = LEAST;
  while (size < bytes)
    size *= 2;
  for (; buffers->n < RS_UPLOAD_BUFFERS; buffers->n++)
    RS_TRY(device->streams->event_create(device, &buffers->buffer[buffers->n].event));
  free_memory(device, buffers);
  RS_TRY(rs_cuda_host_alloc(device, RS_UPLOAD_BUFFERS * size, (void **)&buffers->host));
  RS_TRY_OR(rs_device_alloc(device, RS_UPLOAD_BUFFERS * size, (void **)&buffers->memory), free_memory(device, buffers));
  buffers->bytes = size;
  for (int i = 0; i < RS_UPLOAD_BUFFERS; i++) {
    buffers->buffer[i].host = buffers->host + (size_t)i * size;
    buffers->buffer[i].memory = buffers->memory + (size_t)i * size;
  }
  return RESHARD_SUCCESS;
}

/* Grows the buffers to tables longer than any before. *grown false: some are in use, and `wait` is. */
static reshard_status fit_buffers(rs_device *device, rs_upload_buffers *buffers, size_t bytes, bool wait, bool *grown) {
  *grown = true;
  if (buffers->bytes >= bytes)
    return RESHARD_SUCCESS;
  for (int i = 0; i < buffers->n && *grown; i++) {
    RS_TRY(wait ? wait_for_buffer(device, &buffers->buffer[i]) : poll_buffer(device, &buffers->buffer[i]));
    *grown = !buffers->buffer[i].used;
  }
  return *grown ? grow_buffers(device, buffers, bytes) : RESHARD_SUCCESS;
}

reshard_status rs_upload_buffers_take(rs_device *device, rs_upload_buffers *buffers, size_t bytes, bool wait,
                                      rs_upload_buffer **taken) {
  bool fits;
  *taken = NULL;
  RS_TRY(fit_buffers(device, buffers, bytes, wait, &fits));
  for (int i = 0; i < buffers->n && fits && *taken == NULL; i++) {
    RS_TRY(poll_buffer(device, &buffers->buffer[i]));
    if (!buffers->buffer[i].used)
      *taken = &buffers->buffer[i];
  }
  if (*taken == NULL && wait) { /* they are taken in turn when all are in use */
    rs_upload_buffer *oldest = &buffers->buffer[(buffers->last + 1) % RS_UPLOAD_BUFFERS];
    RS_TRY(wait_for_buffer(device, oldest));
    *taken = oldest;
  }
  if (*taken != NULL)
    buffers->last = (int)(*taken - buffers->buffer);
  return RESHARD_SUCCESS;
}

reshard_status rs_upload_buffer_used(rs_device *device, rs_upload_buffer *buffer, void *stream) {
  buffer->stream = stream;
  buffer->used = true;
  reshard_status status = rs_stream_record(device, buffer->event, stream, RS_EDGE("tables after run"));
  if (status != RESHARD_SUCCESS) /* no event tells when the use is over */
    buffer->used = buffer->lost = device->streams->synchronize(device, stream) != RESHARD_SUCCESS;
  return status;
}

void rs_upload_buffers_free(rs_device *device, rs_upload_buffers *buffers) {
  for (int i = 0; i < buffers->n; i++)
    if (wait_for_buffer(device, &buffers->buffer[i]) != RESHARD_SUCCESS)
      (void)device->streams->finish(device); /* the device may be lost */
  free_memory(device, buffers);
  for (int i = 0; i < buffers->n; i++)
    device->streams->event_destroy(device, buffers->buffer[i].event);
  buffers->n = 0;
}
