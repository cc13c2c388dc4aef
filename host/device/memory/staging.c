/* Blocks are powers of two, so that few sizes serve all. They stand in one list in the order in which they were given
 * back. The first that fits and whose event has happened is taken. */
#include "device/memory/staging.h"

#include "base/range.h"
#include "device/stream.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST = 64 << 10, LOOSE = 8 }; /* a block serves requests of a LOOSE-th of its size and more */

struct rs_staging_block {
  rs_staging_block *next;
  void *memory;
  size_t bytes;
  rs_event *event;
  bool pending; /* the event has not been seen to have happened */
};

struct rs_staging {
  rs_device *device;
  size_t most;
  pthread_mutex_t mutex;
  rs_staging_block *first, **end; /* given back */
  rs_staging_block *graphs;       /* read by graphs */
  rs_staging_stats stats;
};

reshard_status rs_staging_create(rs_device *device, size_t most, rs_staging **staging) {
  rs_staging *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  int failed = pthread_mutex_init(&made->mutex, NULL);
  if (failed != 0) {
    free(made);
    return rs_error(RESHARD_ERROR_SYSTEM, "no mutex: %s", strerror(failed));
  }
  made->device = device;
  made->most = most;
  made->end = &made->first;
  *staging = made;
  return RESHARD_SUCCESS;
}

static void free_block(rs_staging *s, rs_staging_block *block) {
  s->device->streams->event_destroy(s->device, block->event);
  s->device->memory->host_free(s->device, block->memory);
  s->stats.bytes -= block->bytes;
  free(block);
}

static reshard_status make_block(rs_staging *s, size_t bytes, rs_staging_block **block) {
  rs_staging_block *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  reshard_status status;
  RS_TRY_GOTO(status, s->device->streams->event_create(s->device, &made->event), no_event);
  RS_TRY_GOTO(status, s->device->memory->host_alloc(s->device, bytes, &made->memory), no_memory);
  made->bytes = bytes;
  s->stats.bytes += bytes;
  *block = made;
  return RESHARD_SUCCESS;
no_memory:
  s->device->streams->event_destroy(s->device, made->event);
no_event:
  free(made);
  return status;
}

static void append_block(rs_staging *s, rs_staging_block *block) {
  block->next = NULL;
  *s->end = block;
  s->end = &block->next;
}

static rs_staging_block *unlink_block(rs_staging *s, rs_staging_block **link) {
  rs_staging_block *block = *link;
  *link = block->next;
  if (block->next == NULL)
    s->end = link;
  return block;
}

static reshard_status poll_block(rs_staging *s, rs_staging_block *block) {
  bool done = !block->pending;
  if (!done)
    RS_TRY(s->device->streams->event_done(s->device, block->event, &done));
  block->pending = !done;
  return RESHARD_SUCCESS;
}

/* Takes out the first block that is free and of a size between the two; *block NULL: there is none. */
static reshard_status find_block(rs_staging *s, size_t least, size_t most, rs_staging_block **block) {
  *block = NULL;
  for (rs_staging_block **link = &s->first; *link != NULL; link = &(*link)->next) {
    if ((*link)->bytes < least || (*link)->bytes > most)
      continue;
    RS_TRY(poll_block(s, *link));
    if ((*link)->pending)
      continue;
    *block = unlink_block(s, link);
    break;
  }
  return RESHARD_SUCCESS;
}

/* Frees the block that was given back first; the host waits for its event. */
static reshard_status free_oldest(rs_staging *s) {
  RS_TRY(poll_block(s, s->first));
  s->stats.waits += s->first->pending;
  RS_RANGE("wait", -1, -1, -1, -1);
  while (s->first->pending) {
    sched_yield();
    RS_TRY(poll_block(s, s->first));
  }
  free_block(s, unlink_block(s, &s->first));
  return RESHARD_SUCCESS;
}

static reshard_status take_block(rs_staging *s, size_t bytes, rs_staging_block **block) {
  size_t size = LEAST;
  while (size < bytes && size <= SIZE_MAX / LOOSE)
    size *= 2;
  if (bytes > s->most || size > SIZE_MAX / LOOSE)
    return rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "%zu bytes of staging: %zu are the most", bytes, s->most);
  size = size < s->most ? size : s->most;
  RS_TRY(find_block(s, bytes, LOOSE * size, block));
  while (*block == NULL && size > s->most - s->stats.bytes) {
    rs_staging_block *idle;
    RS_TRY(find_block(s, bytes, SIZE_MAX, block)); /* larger than it should be */
    if (*block != NULL)
      break;
    RS_TRY(find_block(s, 0, bytes, &idle));
    if (idle != NULL)
      free_block(s, idle);
    else if (s->first != NULL)
      RS_TRY(free_oldest(s));
    else
      return rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "%zu bytes of staging: %zu of at most %zu are in use", bytes,
                      s->stats.bytes, s->most);
  }
  return *block != NULL ? RESHARD_SUCCESS : make_block(s, size, block);
}

reshard_status rs_staging_take(rs_staging *staging, size_t bytes, rs_staging_block **block, void **memory) {
  rs_staging_block *taken;
  pthread_mutex_lock(&staging->mutex);
  reshard_status status = take_block(staging, bytes, &taken);
  if (status == RESHARD_SUCCESS) {
    staging->stats.takes++;
    *block = taken;
    *memory = taken->memory;
  }
  pthread_mutex_unlock(&staging->mutex);
  return status;
}

/* Records the block's event behind its last use; where that fails, waits until the stream is empty. */
static reshard_status record_last_use(rs_staging *s, rs_staging_block *block, void *stream, bool *captured) {
  RS_TRY(s->device->streams->capturing(s->device, stream, captured));
  if (*captured)
    return RESHARD_SUCCESS;
  block->pending = true;
  if (rs_stream_record(s->device, block->event, stream, RS_EDGE("staging: reuse after use")) == RESHARD_SUCCESS)
    return RESHARD_SUCCESS;
  RS_TRY(s->device->streams->synchronize(s->device, stream));
  block->pending = false;
  return RESHARD_SUCCESS;
}

reshard_status rs_staging_give(rs_staging *staging, rs_staging_block *block, void *stream) {
  bool captured = false;
  reshard_status status = record_last_use(staging, block, stream, &captured);
  pthread_mutex_lock(&staging->mutex);
  if (status != RESHARD_SUCCESS || captured) { /* no event tells when it is free */
    block->next = staging->graphs;
    staging->graphs = block;
  } else {
    append_block(staging, block);
  }
  pthread_mutex_unlock(&staging->mutex);
  return status;
}

void rs_staging_get_stats(rs_staging *staging, rs_staging_stats *stats) {
  pthread_mutex_lock(&staging->mutex);
  *stats = staging->stats;
  pthread_mutex_unlock(&staging->mutex);
}

void rs_staging_destroy(rs_staging *staging) {
  if (staging == NULL)
    return;
  reshard_status status = RESHARD_SUCCESS;
  while (staging->first != NULL && status == RESHARD_SUCCESS)
    status = free_oldest(staging);
  if (staging->first != NULL || staging->graphs != NULL) /* the device is lost, or graphs may read them */
    (void)staging->device->streams->finish(staging->device);
  for (rs_staging_block *next; staging->graphs != NULL; staging->graphs = next) {
    next = staging->graphs->next;
    free_block(staging, staging->graphs);
  }
  while (staging->first != NULL)
    free_block(staging, unlink_block(staging, &staging->first));
  pthread_mutex_destroy(&staging->mutex);
  free(staging);
}
