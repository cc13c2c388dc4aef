/* Upload buffers: memory for tables that one use reads, of copies that run once and of long lists of casts.
 *
 * The use itself uploads its table, in its own stream, from pinned memory: the host waits for nothing. Pinned memory
 * must stay as it is until the upload is done, device memory until the kernels are, while the host writes the next
 * tables. So there are several buffers of both memories, each with an event that is recorded behind its last use. A
 * use takes a buffer whose event has happened, or a new one; there are at most RS_UPLOAD_BUFFERS. */
#include "device/cuda/cuda.h"

#include "base/range.h"
#include "device/stream.h"

#include <sched.h>

enum { LEAST = 64 << 10 };

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

static void free_memory(rs_device *device, rs_upload_buffer *buffer) {
  rs_cuda_host_free(device, buffer->host);
  rs_cuda_free(device, buffer->memory);
  buffer->host = buffer->memory = NULL;
  buffer->bytes = 0;
}

static reshard_status grow_buffer(rs_device *device, rs_upload_buffer *buffer, size_t bytes) {
  size_t size = LEAST;
  while (size < bytes)
    size *= 2;
  free_memory(device, buffer);
  RS_TRY(rs_cuda_host_alloc(device, size, (void **)&buffer->host));
  RS_TRY(rs_cuda_alloc(device, size, (void **)&buffer->memory));
  buffer->bytes = size;
  return RESHARD_SUCCESS;
}

/* Finds a buffer that is large enough, else a new one, else one that will grow; -1: all are in use. */
static reshard_status find_buffer(rs_device *device, rs_upload_buffers *buffers, size_t bytes, int *found) {
  int best = -1;
  for (int i = 0; i < buffers->n; i++) {
    RS_TRY(poll_buffer(device, &buffers->buffer[i]));
    if (!buffers->buffer[i].used && (best < 0 || buffers->buffer[i].bytes > buffers->buffer[best].bytes))
      best = i;
  }
  if ((best < 0 || buffers->buffer[best].bytes < bytes) && buffers->n < RS_UPLOAD_BUFFERS) {
    RS_TRY(device->streams->event_create(device, &buffers->buffer[buffers->n].event));
    best = buffers->n++;
  }
  *found = best;
  return RESHARD_SUCCESS;
}

reshard_status rs_upload_buffers_take(rs_device *device, rs_upload_buffers *buffers, size_t bytes, bool wait,
                                      rs_upload_buffer **taken) {
  int found;
  *taken = NULL;
  RS_TRY(find_buffer(device, buffers, bytes, &found));
  if (found < 0 && !wait)
    return RESHARD_SUCCESS;
  if (found < 0) {
    found = (buffers->last + 1) % RS_UPLOAD_BUFFERS; /* they are taken in turn when all are in use */
    RS_TRY(wait_for_buffer(device, &buffers->buffer[found]));
  }
  buffers->last = found;
  rs_upload_buffer *buffer = &buffers->buffer[found];
  if (buffer->bytes < bytes)
    RS_TRY(grow_buffer(device, buffer, bytes));
  *taken = buffer;
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
  for (int i = 0; i < buffers->n; i++)
    rs_cuda_host_free(device, buffers->buffer[i].host);
  for (int i = 0; i < buffers->n; i++) {
    rs_cuda_free(device, buffers->buffer[i].memory);
    device->streams->event_destroy(device, buffers->buffer[i].event);
  }
  buffers->n = 0;
}
