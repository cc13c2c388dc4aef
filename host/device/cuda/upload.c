/* Tables that one use of them reads: of copies that run once, of long lists of casts.
 *
 * The use itself uploads them, in its own stream, from pinned memory: the host waits for nothing. What it reads -
 * pinned memory as long as the upload, device memory as long as the kernels - must stay as it is until that stream is
 * there, while the host goes on and writes the next tables. So there are several lots of both memories, each with an
 * event that is recorded behind its last use. Who needs one takes a lot whose event has happened, or one more; there
 * are at most RS_CUDA_LOTS of them. */
#include "device/cuda/cuda.h"
#include "device/stream.h"

#include <sched.h>

enum { LEAST = 64 << 10 };

static reshard_status look(rs_device *device, rs_cuda_lot *lot) {
  if (lot->lost) {
    RS_TRY(device->ops->finish(device));
    lot->used = lot->lost = false;
  }
  if (lot->used) {
    bool done = false;
    RS_TRY(device->ops->event_done(device, lot->event, &done));
    lot->used = !done;
  }
  return RESHARD_SUCCESS;
}

static reshard_status wait_for(rs_device *device, rs_cuda_lot *lot) {
  RS_TRY(look(device, lot));
  while (lot->used) {
    sched_yield();
    RS_TRY(look(device, lot));
  }
  return RESHARD_SUCCESS;
}

static void drop_memory(rs_device *device, rs_cuda_lot *lot) {
  rs_cuda_host_free(device, lot->host);
  rs_cuda_free(device, lot->memory);
  lot->host = lot->memory = NULL;
  lot->bytes = 0;
}

static reshard_status grow(rs_device *device, rs_cuda_lot *lot, size_t bytes) {
  size_t size = LEAST;
  while (size < bytes)
    size *= 2;
  drop_memory(device, lot);
  RS_TRY(rs_cuda_host_alloc(device, size, (void **)&lot->host));
  RS_TRY(rs_cuda_alloc(device, size, (void **)&lot->memory));
  lot->bytes = size;
  return RESHARD_SUCCESS;
}

/* One that is large enough, else a new one, else one that will grow; -1: all are in use. */
static reshard_status find(rs_device *device, rs_cuda_lots *lots, size_t bytes, int *found) {
  int best = -1;
  for (int i = 0; i < lots->n; i++) {
    RS_TRY(look(device, &lots->lot[i]));
    if (!lots->lot[i].used && (best < 0 || lots->lot[i].bytes > lots->lot[best].bytes))
      best = i;
  }
  if ((best < 0 || lots->lot[best].bytes < bytes) && lots->n < RS_CUDA_LOTS) {
    RS_TRY(device->ops->event_create(device, &lots->lot[lots->n].event));
    best = lots->n++;
  }
  *found = best;
  return RESHARD_SUCCESS;
}

reshard_status rs_cuda_lots_take(rs_device *device, rs_cuda_lots *lots, size_t bytes, bool wait, rs_cuda_lot **taken) {
  int found;
  *taken = NULL;
  RS_TRY(find(device, lots, bytes, &found));
  if (found < 0 && !wait)
    return RESHARD_SUCCESS;
  if (found < 0) {
    found = (lots->last + 1) % RS_CUDA_LOTS; /* they are taken in turn when all are in use */
    RS_TRY(wait_for(device, &lots->lot[found]));
  }
  lots->last = found;
  rs_cuda_lot *lot = &lots->lot[found];
  if (lot->bytes < bytes)
    RS_TRY(grow(device, lot, bytes));
  *taken = lot;
  return RESHARD_SUCCESS;
}

reshard_status rs_cuda_lot_used(rs_device *device, rs_cuda_lot *lot, void *stream) {
  lot->stream = stream;
  lot->used = true;
  reshard_status status = rs_stream_record(device, lot->event, stream, RS_EDGE("tables after run"));
  if (status != RESHARD_SUCCESS) /* no event tells, so this must */
    lot->used = lot->lost = device->ops->synchronize(device, stream) != RESHARD_SUCCESS;
  return status;
}

void rs_cuda_lots_free(rs_device *device, rs_cuda_lots *lots) {
  for (int i = 0; i < lots->n; i++)
    if (wait_for(device, &lots->lot[i]) != RESHARD_SUCCESS)
      (void)device->ops->finish(device); /* the device is lost, or this is the last that it did */
  for (int i = 0; i < lots->n; i++)
    rs_cuda_host_free(device, lots->lot[i].host);
  for (int i = 0; i < lots->n; i++) {
    rs_cuda_free(device, lots->lot[i].memory);
    device->ops->event_destroy(device, lots->lot[i].event);
  }
  lots->n = 0;
}
