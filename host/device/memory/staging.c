/* Pieces are powers of two, so that few sizes serve all. They stand in one list in the order in which they were given
 * back, those that are free among them; the first that fits and is done is taken. */
#include "device/memory/staging.h"

#include "device/stream.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST = 64 << 10, LOOSE = 8 }; /* a piece serves what needs a LOOSE-th of it */

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
  rs_staging_block *graphs;       /* what graphs read */
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

static void drop_piece(rs_staging *s, rs_staging_block *piece) {
  s->device->ops->event_destroy(s->device, piece->event);
  s->device->ops->host_free(s->device, piece->memory);
  s->stats.bytes -= piece->bytes;
  free(piece);
}

static reshard_status make_piece(rs_staging *s, size_t bytes, rs_staging_block **piece) {
  rs_staging_block *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  reshard_status status;
  RS_TRY_GOTO(status, s->device->ops->event_create(s->device, &made->event), no_event);
  RS_TRY_GOTO(status, s->device->ops->host_alloc(s->device, bytes, &made->memory), no_memory);
  made->bytes = bytes;
  s->stats.bytes += bytes;
  *piece = made;
  return RESHARD_SUCCESS;
no_memory:
  s->device->ops->event_destroy(s->device, made->event);
no_event:
  free(made);
  return status;
}

static void append(rs_staging *s, rs_staging_block *piece) {
  piece->next = NULL;
  *s->end = piece;
  s->end = &piece->next;
}

static rs_staging_block *take_out(rs_staging *s, rs_staging_block **link) {
  rs_staging_block *piece = *link;
  *link = piece->next;
  if (piece->next == NULL)
    s->end = link;
  return piece;
}

static reshard_status look(rs_staging *s, rs_staging_block *piece) {
  bool done = !piece->pending;
  if (!done)
    RS_TRY(s->device->ops->event_done(s->device, piece->event, &done));
  piece->pending = !done;
  return RESHARD_SUCCESS;
}

/* The first that is free and of a size between the two; *piece NULL: there is none. */
static reshard_status find(rs_staging *s, size_t least, size_t most, rs_staging_block **piece) {
  *piece = NULL;
  for (rs_staging_block **link = &s->first; *link != NULL; link = &(*link)->next) {
    if ((*link)->bytes < least || (*link)->bytes > most)
      continue;
    RS_TRY(look(s, *link));
    if ((*link)->pending)
      continue;
    *piece = take_out(s, link);
    break;
  }
  return RESHARD_SUCCESS;
}

/* The one that was given back first goes: the host waits for it. */
static reshard_status wait_and_drop(rs_staging *s) {
  RS_TRY(look(s, s->first));
  s->stats.waits += s->first->pending;
  while (s->first->pending) {
    sched_yield();
    RS_TRY(look(s, s->first));
  }
  drop_piece(s, take_out(s, &s->first));
  return RESHARD_SUCCESS;
}

static reshard_status take(rs_staging *s, size_t bytes, rs_staging_block **piece) {
  size_t size = LEAST;
  while (size < bytes && size <= SIZE_MAX / LOOSE)
    size *= 2;
  if (bytes > s->most || size > SIZE_MAX / LOOSE)
    return rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "%zu bytes of staging: %zu are the most", bytes, s->most);
  size = size < s->most ? size : s->most;
  RS_TRY(find(s, bytes, LOOSE * size, piece));
  while (*piece == NULL && size > s->most - s->stats.bytes) {
    rs_staging_block *idle;
    RS_TRY(find(s, bytes, SIZE_MAX, piece)); /* larger than it should be */
    if (*piece != NULL)
      break;
    RS_TRY(find(s, 0, bytes, &idle));
    if (idle != NULL)
      drop_piece(s, idle);
    else if (s->first != NULL)
      RS_TRY(wait_and_drop(s));
    else
      return rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "%zu bytes of staging: %zu of at most %zu are in use", bytes,
                      s->stats.bytes, s->most);
  }
  return *piece != NULL ? RESHARD_SUCCESS : make_piece(s, size, piece);
}

reshard_status rs_staging_take(rs_staging *staging, size_t bytes, rs_staging_block **piece, void **memory) {
  rs_staging_block *taken;
  pthread_mutex_lock(&staging->mutex);
  reshard_status status = take(staging, bytes, &taken);
  if (status == RESHARD_SUCCESS) {
    staging->stats.takes++;
    *piece = taken;
    *memory = taken->memory;
  }
  pthread_mutex_unlock(&staging->mutex);
  return status;
}

/* A piece that cannot be marked is free when the stream is empty. */
static reshard_status mark(rs_staging *s, rs_staging_block *piece, void *stream, bool *captured) {
  RS_TRY(s->device->ops->capturing(s->device, stream, captured));
  if (*captured)
    return RESHARD_SUCCESS;
  piece->pending = s->device->ops->streams;
  if (rs_stream_record(s->device, piece->event, stream, RS_EDGE("staging: reuse after use")) == RESHARD_SUCCESS)
    return RESHARD_SUCCESS;
  RS_TRY(s->device->ops->synchronize(s->device, stream));
  piece->pending = false;
  return RESHARD_SUCCESS;
}

reshard_status rs_staging_give(rs_staging *staging, rs_staging_block *piece, void *stream) {
  bool captured = false;
  reshard_status status = mark(staging, piece, stream, &captured);
  pthread_mutex_lock(&staging->mutex);
  if (status != RESHARD_SUCCESS || captured) { /* nobody can tell when it is free */
    piece->next = staging->graphs;
    staging->graphs = piece;
  } else {
    append(staging, piece);
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
    status = wait_and_drop(staging);
  if (staging->first != NULL || staging->graphs != NULL) /* lost, or nobody can tell */
    (void)staging->device->ops->finish(staging->device);
  for (rs_staging_block *next; staging->graphs != NULL; staging->graphs = next) {
    next = staging->graphs->next;
    drop_piece(staging, staging->graphs);
  }
  while (staging->first != NULL)
    drop_piece(staging, take_out(staging, &staging->first));
  pthread_mutex_destroy(&staging->mutex);
  free(staging);
}
