/* The pool: allocating a block, and the pool as a whole. The idea is in pool.h, the parts are in pool_internal.h.
 *
 * One mutex is held throughout. A block that its own stream freed is found by two searches for a bit. So alloc and free
 * hold the mutex for some tens of nanoseconds. On the CPU, sizes that malloc serves well stay with malloc, unless other
 * processes are to map them. Larger blocks are kept here, because the system would have to clear fresh pages for them
 * each time. */
#include "device/memory/bins.h"

#include "base/range.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  ALIGNMENT = 256,
  CPU_ALONE = 256 << 10,
  CPU_GRANULE = 4 << 10,
  SMALL = 1 << 20, /* below this blocks come from slabs */
  LARGE_GRANULE = 64 << 10,
};

/* --- Upstream --------------------------------------------------------------------------------------------------- */

static void *device_alloc(void *user, size_t bytes, void *stream) {
  rs_storage_pool *pool = user;
  void *memory = NULL;
  pool->failure = pool->device->memory->alloc_async(pool->device, bytes, stream, &memory);
  return pool->failure == RESHARD_SUCCESS ? memory : NULL;
}

static void device_free(void *user, void *memory, size_t bytes, void *stream) {
  (void)bytes;
  rs_storage_pool *pool = user;
  pool->device->memory->free_async(pool->device, memory, stream);
}

static void *pinned_alloc(void *user, size_t bytes, void *stream) {
  (void)stream;
  rs_storage_pool *pool = user;
  void *memory = NULL;
  pool->failure = pool->device->memory->host_alloc(pool->device, bytes, &memory);
  return pool->failure == RESHARD_SUCCESS ? memory : NULL;
}

/* Blocks, as the device has no order for pinned memory; this happens rarely, and mostly at the end. */
static void pinned_free(void *user, void *memory, size_t bytes, void *stream) {
  (void)bytes;
  rs_storage_pool *pool = user;
  (void)pool->device->streams->synchronize(pool->device, stream);
  pool->device->memory->host_free(pool->device, memory);
}

/* --- The pool as a whole ---------------------------------------------------------------------------------------- */

/* alone: the upstream serves small sizes well, as malloc does. */
static reshard_status create_pool(rs_device *device, bool alone, rs_storage_pool **pool) {
  rs_storage_pool *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  int failed = pthread_mutex_init(&made->mutex, NULL);
  if (failed != 0) {
    free(made);
    return rs_error(RESHARD_ERROR_SYSTEM, "no mutex: %s", strerror(failed));
  }
  made->device = device;
  bool streams = device->streams->asynchronous;
  made->dedicated_below = alone ? CPU_ALONE : 0;
  made->slabs_below = alone ? 0 : SMALL;
  made->granule[RS_POOL_SMALL] = ALIGNMENT;
  made->granule[RS_POOL_LARGE] = streams ? LARGE_GRANULE : CPU_GRANULE;
  made->segment_granule = 1;
  *pool = made;
  return RESHARD_SUCCESS;
}

reshard_status rs_storage_pool_create(rs_device *device, const reshard_device_options *options,
                                      rs_storage_pool **pool) {
  bool system = !device->streams->asynchronous && (!device->memory->shared || options->allocator != NULL);
  RS_TRY(create_pool(device, system, pool));
  (*pool)->upstream = (reshard_allocator){device_alloc, device_free, *pool};
  if (device->granule > 0) /* other processes are to map its segments */
    (*pool)->segment_granule = device->granule;
  if (options->allocator != NULL)
    (*pool)->upstream = *options->allocator;
  (*pool)->limit = options->limit_bytes;
  (*pool)->keep = options->keep_bytes;
  return RESHARD_SUCCESS;
}

reshard_status rs_storage_pool_create_pinned(rs_device *device, rs_storage_pool **pool) {
  RS_TRY(create_pool(device, !device->streams->asynchronous, pool));
  (*pool)->upstream = (reshard_allocator){pinned_alloc, pinned_free, *pool};
  return RESHARD_SUCCESS;
}

void rs_storage_pool_destroy(rs_storage_pool *pool) {
  if (pool == NULL)
    return;
  const rs_device_streams *streams = pool->device->streams;
  rs_pool_retry_frees(pool);
  rs_pool_segments_free(pool);
  if (pool->release_stream != NULL)
    streams->destroy(pool->device, pool->release_stream->handle);
  if (pool->plain_stream != NULL)
    streams->destroy(pool->device, pool->plain_stream->handle);
  for (int64_t i = 0; i < pool->plain.n; i++) /* their memory stays: a GPU waits in it for ever */
    rs_pool_block_recycle(pool, pool->plain.at[i]);
  free(pool->plain.at);
  for (int64_t i = 0; i < pool->streams.n; i++)
    rs_pool_stream_free(pool, pool->streams.at[i]);
  free(pool->streams.at);
  for (rs_pool_event *next; pool->spare_events != NULL; pool->spare_events = next) {
    next = pool->spare_events->next;
    streams->event_destroy(pool->device, pool->spare_events->handle);
    free(pool->spare_events);
  }
  for (rs_pool_block *next; pool->spare != NULL; pool->spare = next) {
    next = pool->spare->next;
    free(pool->spare->uses.at);
    free(pool->spare);
  }
  pthread_mutex_destroy(&pool->mutex);
  free(pool);
}

reshard_status rs_storage_pool_trim(rs_storage_pool *pool, size_t keep_bytes) {
  pthread_mutex_lock(&pool->mutex);
  rs_pool_retry_frees(pool);
  rs_pool_segments_trim(pool, keep_bytes);
  pthread_mutex_unlock(&pool->mutex);
  return RESHARD_SUCCESS;
}

void rs_storage_pool_stats(rs_storage_pool *pool, reshard_memory_stats *stats) {
  pthread_mutex_lock(&pool->mutex);
  *stats = pool->stats;
  stats->kept_bytes = rs_pool_kept(pool);
  pthread_mutex_unlock(&pool->mutex);
}

/* --- Allocating a block ------------------------------------------------------------------------------------------- */

/* Finds the free block of any stream that costs the new stream least, then the smallest. */
static rs_pool_block *find_any_stream(rs_storage_pool *pool, rs_pool_stream *stream, rs_pool_kind kind, size_t size) {
  rs_pool_block *best = NULL;
  int least = 3;
  for (int64_t i = 0; i < pool->streams.n; i++) {
    rs_pool_block *at = rs_pool_bins_find(&pool->streams.at[i]->bins[kind], size);
    if (at == NULL)
      continue;
    int distance = rs_pool_stream_distance(pool, stream, at);
    if (distance < least || (distance == least && best != NULL && at->size < best->size)) {
      best = at;
      least = distance;
    }
  }
  return best;
}

/* Finds neighbours that are free, of any streams, and together large enough; *last is the last of them. */
static rs_pool_block *find_neighbours(rs_storage_pool *pool, rs_pool_stream *stream, rs_pool_kind kind, size_t size,
                                      rs_pool_block **last) {
  for (rs_pool_segment *segment = pool->segments; segment != NULL; segment = segment->next) {
    rs_pool_block *first = NULL;
    size_t bytes = 0;
    if (segment->kind != kind || segment->bytes < size)
      continue;
    for (rs_pool_block *at = segment->first; at != NULL; at = at->next) {
      if (!at->free || rs_pool_stream_distance(pool, stream, at) == 3) {
        bytes = 0;
        continue;
      }
      first = bytes == 0 ? at : first;
      bytes += at->size;
      *last = at;
      if (bytes >= size)
        return first;
    }
  }
  return NULL;
}

/* Takes the blocks from first to last out of their lists and merges them into one of stream's. */
static reshard_status acquire_blocks(rs_storage_pool *pool, rs_pool_stream *stream, rs_pool_block *first,
                                     rs_pool_block *last) {
  bool ordered = first == last && first->stream == stream && first->uses.n == 0;
  for (rs_pool_block *at = first; !ordered; at = at->next) {
    RS_TRY(rs_pool_stream_order(pool, stream, at));
    if (at == last)
      break;
  }
  for (rs_pool_block *at = first;; at = at->next) {
    rs_pool_bins_remove(rs_pool_bins_of(at->stream, at), at);
    if (at == last)
      break;
  }
  if (ordered)
    return RESHARD_SUCCESS;
  rs_pool_blocks_merge(pool, first, last);
  rs_pool_block_drop_uses(pool, first);
  rs_pool_block_set_stream(first, stream);
  first->needs = stream->records + 1;
  return RESHARD_SUCCESS;
}

static reshard_status take_block(rs_storage_pool *pool, rs_pool_stream *stream, rs_pool_kind kind, size_t size,
                                 rs_pool_block **block) {
  rs_pool_block *found = rs_pool_bins_find(&stream->bins[kind], size), *last = found;
  if (found == NULL || found->uses.n > 0)
    last = found = find_any_stream(pool, stream, kind, size);
  if (found == NULL && pool->pending_frees != NULL) {
    rs_pool_retry_frees(pool);
    last = found = find_any_stream(pool, stream, kind, size);
  }
  if (found == NULL)
    found = find_neighbours(pool, stream, kind, size, &last);
  if (found != NULL)
    RS_TRY(acquire_blocks(pool, stream, found, last));
  else
    RS_TRY(rs_pool_segment_add(pool, kind, size, stream, &found));
  found->free = false;
  rs_pool_block_split(pool, found, size);
  rs_pool_segment_use(pool, found->segment);
  *block = found;
  return RESHARD_SUCCESS;
}

reshard_status rs_pool_take_dedicated(rs_storage_pool *pool, rs_pool_stream *stream, size_t size,
                                      rs_pool_block **block) {
  rs_pool_block *made;
  RS_TRY(rs_pool_block_new(pool, &made));
  made->base.memory = NULL;
  reshard_status status = RESHARD_SUCCESS;
  if (size > 0)
    status = rs_pool_upstream_alloc(pool, RS_POOL_DEDICATED, size, stream, &made->base.memory);
  RS_TRY_OR(status, rs_pool_block_recycle(pool, made));
  made->size = size;
  rs_pool_block_set_stream(made, stream);
  made->free = false;
  *block = made;
  return RESHARD_SUCCESS;
}

reshard_status rs_pool_error_memory(const rs_storage_pool *pool, size_t bytes) {
  char limit[48] = "none";
  const rs_device *d = pool->device;
  if (pool->limit > 0)
    snprintf(limit, sizeof limit, "%zu", pool->limit);
  return rs_error(RESHARD_ERROR_OUT_OF_MEMORY,
                  "%zu bytes of storage on %s %d: %zu are in use, %zu kept, the limit is %s", bytes, d->name, d->index,
                  pool->stats.in_use_bytes, rs_pool_kept(pool), limit);
}

static reshard_status alloc_block(rs_storage_pool *pool, size_t bytes, void *handle, rs_pool_block **block) {
  rs_pool_kind kind = bytes < pool->slabs_below ? RS_POOL_SMALL : RS_POOL_LARGE;
  size_t granule = pool->granule[kind];
  rs_pool_stream *stream;
  if (bytes > (size_t)1 << RS_BIN_LARGEST)
    return RESHARD_ERROR_OUT_OF_MEMORY;
  RS_TRY(rs_pool_stream_of(pool, handle, &stream));
  if (bytes == 0 || bytes < pool->dedicated_below)
    return rs_pool_take_dedicated(pool, stream, bytes, block);
  return take_block(pool, stream, kind, (bytes + granule - 1) / granule * granule, block);
}

void rs_pool_count_use(rs_storage_pool *pool, size_t bytes) {
  reshard_memory_stats *s = &pool->stats;
  s->in_use_bytes += bytes;
  s->peak_bytes = s->in_use_bytes > s->peak_bytes ? s->in_use_bytes : s->peak_bytes;
}

void rs_pool_count_alloc(rs_storage_pool *pool, rs_pool_block *block, size_t bytes) {
  block->base.bytes = bytes;
  pool->stats.allocs++;
  rs_pool_count_use(pool, block->size);
}

reshard_status rs_storage_pool_alloc(rs_storage_pool *pool, size_t bytes, void *stream, rs_block **block) {
  rs_pool_block *made = NULL;
  RS_RANGE("alloc", (int64_t)bytes, -1, -1, -1);
  pthread_mutex_lock(&pool->mutex);
  reshard_status status = alloc_block(pool, bytes, stream, &made);
  if (status == RESHARD_SUCCESS) {
    rs_pool_count_alloc(pool, made, bytes);
    *block = &made->base;
    rs_pool_segments_keep_within(pool); /* the rest of a new slab counts as kept */
  } else if (status == RESHARD_ERROR_OUT_OF_MEMORY) {
    status = rs_pool_error_memory(pool, bytes);
  }
  pthread_mutex_unlock(&pool->mutex);
  return status;
}
