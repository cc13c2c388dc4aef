/* The pool: taking a block, and what it takes to free one. The idea is in storage_pool.h, the parts in
 * storage_inside.h.
 *
 * One mutex is held throughout; a block that its own stream gave back is found by two searches for a bit, so alloc and
 * free take it for some tens of nanoseconds. On the CPU sizes that malloc serves well stay with it: it keeps their
 * pages itself, where fresh ones for large blocks would have to be cleared by the system each time. */
#include "device/memory/pool_internal.h"

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
  pool->failure = pool->device->ops->alloc_async(pool->device, bytes, stream, &memory);
  return pool->failure == RESHARD_SUCCESS ? memory : NULL;
}

static void device_free(void *user, void *memory, size_t bytes, void *stream) {
  (void)bytes;
  rs_storage_pool *pool = user;
  pool->device->ops->free_async(pool->device, memory, stream);
}

static void *pinned_alloc(void *user, size_t bytes, void *stream) {
  (void)stream;
  rs_storage_pool *pool = user;
  void *memory = NULL;
  pool->failure = pool->device->ops->host_alloc(pool->device, bytes, &memory);
  return pool->failure == RESHARD_SUCCESS ? memory : NULL;
}

/* The device has no order for it: what is done rarely, and mostly at the end, may block. */
static void pinned_free(void *user, void *memory, size_t bytes, void *stream) {
  (void)bytes;
  rs_storage_pool *pool = user;
  (void)pool->device->ops->synchronize(pool->device, stream);
  pool->device->ops->host_free(pool->device, memory);
}

/* --- The pool as a whole ---------------------------------------------------------------------------------------- */

static reshard_status create(rs_device *device, rs_storage_pool **pool) {
  rs_storage_pool *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  int failed = pthread_mutex_init(&made->mutex, NULL);
  if (failed != 0) {
    free(made);
    return rs_error(RESHARD_ERROR_SYSTEM, "no mutex: %s", strerror(failed));
  }
  made->device = device;
  made->alone = device->ops->streams ? 0 : CPU_ALONE;
  made->small = device->ops->streams ? SMALL : 0;
  made->granule[RS_SMALL] = ALIGNMENT;
  made->granule[RS_LARGE] = device->ops->streams ? LARGE_GRANULE : CPU_GRANULE;
  *pool = made;
  return RESHARD_SUCCESS;
}

reshard_status rs_storage_pool_create(rs_device *device, const reshard_device_options *options,
                                      rs_storage_pool **pool) {
  RS_TRY(create(device, pool));
  (*pool)->upstream = (reshard_allocator){device_alloc, device_free, *pool};
  if (options->allocator != NULL)
    (*pool)->upstream = *options->allocator;
  (*pool)->limit = options->limit_bytes;
  (*pool)->keep = options->keep_bytes;
  return RESHARD_SUCCESS;
}

reshard_status rs_storage_pool_create_pinned(rs_device *device, rs_storage_pool **pool) {
  RS_TRY(create(device, pool));
  (*pool)->upstream = (reshard_allocator){pinned_alloc, pinned_free, *pool};
  return RESHARD_SUCCESS;
}

void rs_storage_pool_destroy(rs_storage_pool *pool) {
  if (pool == NULL)
    return;
  const rs_device_ops *ops = pool->device->ops;
  rs_storage_retry(pool);
  rs_pieces_free(pool);
  if (pool->sweeper != NULL)
    ops->stream_destroy(pool->device, pool->sweeper->stream);
  for (int64_t i = 0; i < pool->lanes.n; i++)
    rs_lane_free(pool, pool->lanes.at[i]);
  free(pool->lanes.at);
  for (rs_mark *next; pool->spare_marks != NULL; pool->spare_marks = next) {
    next = pool->spare_marks->next;
    ops->event_destroy(pool->device, pool->spare_marks->event);
    free(pool->spare_marks);
  }
  for (rs_store *next; pool->spare != NULL; pool->spare = next) {
    next = pool->spare->behind;
    free(pool->spare->after.at);
    free(pool->spare);
  }
  pthread_mutex_destroy(&pool->mutex);
  free(pool);
}

reshard_status rs_storage_pool_trim(rs_storage_pool *pool, size_t keep_bytes) {
  pthread_mutex_lock(&pool->mutex);
  rs_storage_retry(pool);
  rs_pieces_trim(pool, keep_bytes);
  pthread_mutex_unlock(&pool->mutex);
  return RESHARD_SUCCESS;
}

void rs_storage_pool_stats(rs_storage_pool *pool, reshard_memory_stats *stats) {
  pthread_mutex_lock(&pool->mutex);
  *stats = pool->stats;
  stats->kept_bytes = rs_pool_kept(pool);
  pthread_mutex_unlock(&pool->mutex);
}

/* --- Taking a block --------------------------------------------------------------------------------------------- */

/* A free block of any lane: the one that asks the least of the new lane, then the smallest. */
static rs_store *find_anywhere(rs_storage_pool *pool, rs_lane *lane, rs_kind kind, size_t size) {
  rs_store *best = NULL;
  int least = 3;
  for (int64_t i = 0; i < pool->lanes.n; i++) {
    rs_store *at = rs_bins_find(&pool->lanes.at[i]->bins[kind], size);
    if (at == NULL)
      continue;
    int distance = rs_lane_distance(pool, lane, at);
    if (distance < least || (distance == least && best != NULL && at->size < best->size)) {
      best = at;
      least = distance;
    }
  }
  return best;
}

/* Neighbours that are free, of whatever lanes, and together large enough; *last is the last of them. */
static rs_store *find_run(rs_storage_pool *pool, rs_lane *lane, rs_kind kind, size_t size, rs_store **last) {
  for (rs_pool_piece *piece = pool->pieces; piece != NULL; piece = piece->next) {
    rs_store *first = NULL;
    size_t bytes = 0;
    if (piece->kind != kind || piece->bytes < size)
      continue;
    for (rs_store *at = piece->first; at != NULL; at = at->behind) {
      if (!at->free || rs_lane_distance(pool, lane, at) == 3) {
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

/* The blocks from first to last leave their lists and become one of lane's. */
static reshard_status acquire(rs_storage_pool *pool, rs_lane *lane, rs_store *first, rs_store *last) {
  bool ordered = first == last && first->lane == lane && first->after.n == 0;
  for (rs_store *at = first; !ordered; at = at->behind) {
    RS_TRY(rs_lane_order(pool, lane, at));
    if (at == last)
      break;
  }
  for (rs_store *at = first;; at = at->behind) {
    rs_bins_remove(rs_bins_of(at->lane, at), at);
    if (at == last)
      break;
  }
  if (ordered)
    return RESHARD_SUCCESS;
  rs_store_join(pool, first, last);
  rs_store_drop_after(pool, first);
  rs_store_set_lane(first, lane);
  first->needs = lane->marks + 1;
  return RESHARD_SUCCESS;
}

static reshard_status take(rs_storage_pool *pool, rs_lane *lane, rs_kind kind, size_t size, rs_store **store) {
  rs_store *found = rs_bins_find(&lane->bins[kind], size), *last = found;
  if (found == NULL || found->after.n > 0)
    last = found = find_anywhere(pool, lane, kind, size);
  if (found == NULL && pool->stuck != NULL) {
    rs_storage_retry(pool);
    last = found = find_anywhere(pool, lane, kind, size);
  }
  if (found == NULL)
    found = find_run(pool, lane, kind, size, &last);
  if (found != NULL)
    RS_TRY(acquire(pool, lane, found, last));
  else
    RS_TRY(rs_piece_grow(pool, kind, size, lane, &found));
  found->free = false;
  rs_store_cut(pool, found, size);
  rs_piece_use(pool, found->piece);
  *store = found;
  return RESHARD_SUCCESS;
}

/* Memory that is no part of a piece; none for 0 bytes. */
static reshard_status take_alone(rs_storage_pool *pool, rs_lane *lane, size_t size, rs_store **store) {
  rs_store *made;
  RS_TRY(rs_store_take_spare(pool, &made));
  made->block.memory = NULL;
  reshard_status status = RESHARD_SUCCESS;
  if (size > 0)
    status = rs_upstream_alloc(pool, RS_ALONE, size, lane, &made->block.memory);
  if (status != RESHARD_SUCCESS) {
    rs_store_give_spare(pool, made);
    return status;
  }
  made->size = size;
  rs_store_set_lane(made, lane);
  made->free = false;
  *store = made;
  return RESHARD_SUCCESS;
}

static reshard_status out_of_memory(const rs_storage_pool *pool, size_t bytes) {
  char limit[48] = "none";
  const rs_device *d = pool->device;
  if (pool->limit > 0)
    snprintf(limit, sizeof limit, "%zu", pool->limit);
  return rs_error(RESHARD_ERROR_OUT_OF_MEMORY,
                  "%zu bytes of storage on %s %d: %zu are in use, %zu kept, the limit is %s", bytes, d->ops->name,
                  d->index, pool->stats.in_use_bytes, rs_pool_kept(pool), limit);
}

static reshard_status alloc(rs_storage_pool *pool, size_t bytes, void *stream, rs_store **store) {
  rs_kind kind = bytes < pool->small ? RS_SMALL : RS_LARGE;
  size_t granule = pool->granule[kind];
  rs_lane *lane;
  if (bytes > (size_t)1 << RS_LARGEST)
    return RESHARD_ERROR_OUT_OF_MEMORY;
  RS_TRY(rs_lane_of(pool, stream, &lane));
  if (bytes == 0 || bytes < pool->alone)
    return take_alone(pool, lane, bytes, store);
  return take(pool, lane, kind, (bytes + granule - 1) / granule * granule, store);
}

reshard_status rs_storage_pool_alloc(rs_storage_pool *pool, size_t bytes, void *stream, rs_block **block) {
  rs_store *store = NULL;
  pthread_mutex_lock(&pool->mutex);
  reshard_status status = alloc(pool, bytes, stream, &store);
  if (status == RESHARD_SUCCESS) {
    reshard_memory_stats *s = &pool->stats;
    store->block.bytes = bytes;
    s->allocs++;
    s->in_use_bytes += store->size;
    s->peak_bytes = s->in_use_bytes > s->peak_bytes ? s->in_use_bytes : s->peak_bytes;
    *block = &store->block;
    rs_pieces_keep_within(pool); /* what is left of a new slab is kept */
  } else if (status == RESHARD_ERROR_OUT_OF_MEMORY) {
    status = out_of_memory(pool, bytes);
  }
  pthread_mutex_unlock(&pool->mutex);
  return status;
}
