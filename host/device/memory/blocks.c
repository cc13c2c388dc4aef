/* Segments of memory as the upstream allocator gives them, and the blocks that divide them.
 *
 * Only segments of which nothing is in use can go back; `busy` counts the bytes of the others. With keep_bytes 0 idle
 * segments go back before one is added, so that no more is held than was busy at one time. A loop that asks for the
 * same sizes again and again therefore asks upstream for nothing from its second turn on.
 *
 * A segment goes back in the order of its stream where all its blocks are that stream's. Else a side stream waits for
 * all uses and releases it, so that no stream of the caller's waits. Only where a stream needs room for a new segment
 * does that stream wait, because it may then have the memory that it frees. */
#include "device/memory/bins.h"

#include <stdlib.h>

enum { SLAB = 2 << 20 };

/* --- Block records ---------------------------------------------------------------------------------------------- */

reshard_status rs_pool_block_new(rs_storage_pool *pool, rs_pool_block **block) {
  if (pool->spare == NULL)
    return rs_alloc_zero(block, 1, sizeof **block);
  *block = pool->spare;
  pool->spare = pool->spare->next;
  return RESHARD_SUCCESS;
}

void rs_pool_block_recycle(rs_storage_pool *pool, rs_pool_block *block) {
  rs_pool_block_drop_uses(pool, block);
  rs_pool_block_set_stream(block, NULL);
  block->segment = NULL;
  block->prev = NULL;
  block->next = pool->spare;
  pool->spare = block;
}

/* --- Blocks of a segment ------------------------------------------------------------------------------------------ */

rs_pool_block *rs_pool_blocks_merge(rs_storage_pool *pool, rs_pool_block *first, const rs_pool_block *last) {
  while (first != last) {
    rs_pool_block *next = first->next;
    bool end = next == last;
    first->size += next->size;
    first->needs = first->needs > next->needs ? first->needs : next->needs;
    first->next = next->next;
    if (next->next != NULL)
      next->next->prev = first;
    rs_pool_block_recycle(pool, next);
    if (end)
      break;
  }
  return first;
}

static bool can_merge(const rs_pool_block *a, const rs_pool_block *b) {
  return b != NULL && b->free && b->stream == a->stream && b->uses.n == 0;
}

void rs_pool_block_insert(rs_storage_pool *pool, rs_pool_block *block) {
  rs_pool_bins *bins = rs_pool_bins_of(block->stream, block);
  if (block->uses.n == 0) {
    rs_pool_block *last = block;
    if (can_merge(block, block->next)) {
      last = block->next;
      rs_pool_bins_remove(bins, last);
    }
    if (can_merge(block, block->prev)) {
      block = block->prev;
      rs_pool_bins_remove(bins, block);
    }
    block = rs_pool_blocks_merge(pool, block, last);
  }
  rs_pool_bins_put(bins, block);
}

void rs_pool_block_split(rs_storage_pool *pool, rs_pool_block *block, size_t size) {
  rs_pool_block *rest;
  if (block->size - size < pool->granule[block->segment->kind] || rs_pool_block_new(pool, &rest) != RESHARD_SUCCESS)
    return; /* a little more than was asked for */
  rest->base.memory = (char *)block->base.memory + size;
  rest->size = block->size - size;
  rest->segment = block->segment;
  rest->prev = block;
  rest->next = block->next;
  if (rest->next != NULL)
    rest->next->prev = rest;
  block->next = rest;
  block->size = size;
  rs_pool_block_set_stream(rest, block->stream);
  rest->needs = block->needs;
  rest->free = true;
  rs_pool_block_insert(pool, rest);
}

/* --- Segments in use ---------------------------------------------------------------------------------------------- */

static void unlink_idle(rs_storage_pool *pool, rs_pool_segment *segment) {
  *(segment->older != NULL ? &segment->older->newer : &pool->oldest) = segment->newer;
  *(segment->newer != NULL ? &segment->newer->older : &pool->newest) = segment->older;
}

static void link_idle(rs_storage_pool *pool, rs_pool_segment *segment) {
  segment->older = pool->newest;
  segment->newer = NULL;
  *(pool->newest != NULL ? &pool->newest->newer : &pool->oldest) = segment;
  pool->newest = segment;
}

void rs_pool_segment_use(rs_storage_pool *pool, rs_pool_segment *segment) {
  if (segment->used++ > 0)
    return;
  unlink_idle(pool, segment);
  size_t *busy = &pool->busy[segment->kind], *most = &pool->most_busy[segment->kind];
  *busy += segment->bytes;
  *most = *busy > *most ? *busy : *most;
}

void rs_pool_segment_unuse(rs_storage_pool *pool, rs_pool_segment *segment) {
  if (--segment->used > 0)
    return;
  pool->busy[segment->kind] -= segment->bytes;
  link_idle(pool, segment);
}

/* --- Giving back ------------------------------------------------------------------------------------------------ */

void rs_pool_upstream_free(rs_storage_pool *pool, rs_pool_kind kind, void *memory, size_t bytes, void *stream) {
  pool->upstream.free(pool->upstream.user, memory, bytes, stream);
  pool->stats.upstream_frees++;
  pool->held[kind] -= bytes;
  pool->held[RS_POOL_ALL] -= bytes;
}

/* Returns a segment to upstream, when nothing uses it any more in the order of stream. */
static void free_segment(rs_storage_pool *pool, rs_pool_segment *segment, void *stream) {
  void *memory = segment->first->base.memory;
  for (rs_pool_block *at = segment->first, *next; at != NULL; at = next) {
    next = at->next;
    if (at->free)
      rs_pool_bins_remove(rs_pool_bins_of(at->stream, at), at);
    rs_pool_block_recycle(pool, at);
  }
  if (segment->used == 0)
    unlink_idle(pool, segment);
  *(segment->prev != NULL ? &segment->prev->next : &pool->segments) = segment->next;
  if (segment->next != NULL)
    segment->next->prev = segment->prev;
  rs_pool_upstream_free(pool, segment->kind, memory, segment->bytes, stream);
  free(segment);
}

/* The stream of all blocks, where they need no order and the calling thread can give work to it; else NULL. */
static rs_pool_stream *only_stream(rs_storage_pool *pool, const rs_pool_segment *segment) {
  rs_pool_stream *stream = segment->first->stream;
  for (const rs_pool_block *at = segment->first; at != NULL; at = at->next)
    if (at->stream != stream || at->uses.n > 0)
      return NULL;
  return stream->ended || stream->thread.place != NULL || rs_pool_stream_captured(pool, stream) ? NULL : stream;
}

static rs_pool_stream *release_stream(rs_storage_pool *pool) {
  void *handle;
  if (pool->release_stream == NULL && pool->device->streams->create(pool->device, &handle) == RESHARD_SUCCESS) {
    if (rs_pool_stream_of(pool, handle, &pool->release_stream) != RESHARD_SUCCESS)
      pool->device->streams->destroy(pool->device, handle);
  }
  return pool->release_stream;
}

/* Releases a segment in the order of stream; NULL: of whichever stream is best. Changes nothing when it fails. */
static reshard_status release_segment(rs_storage_pool *pool, rs_pool_segment *segment, rs_pool_stream *stream) {
  if (stream == NULL)
    stream = only_stream(pool, segment);
  if (stream == NULL && (stream = release_stream(pool)) == NULL)
    return RESHARD_ERROR_SYSTEM;
  for (const rs_pool_block *at = segment->first; at != NULL; at = at->next)
    RS_TRY(rs_pool_stream_order(pool, stream, at));
  free_segment(pool, segment, stream->handle);
  return RESHARD_SUCCESS;
}

void rs_pool_segments_trim(rs_storage_pool *pool, size_t keep) {
  for (rs_pool_segment *at = pool->oldest, *next; at != NULL && rs_pool_kept(pool) > keep; at = next) {
    next = at->newer;
    (void)release_segment(pool, at, NULL);
  }
}

void rs_pool_segments_keep_within(rs_storage_pool *pool) {
  if (pool->keep != 0)
    rs_pool_segments_trim(pool, pool->keep < 0 ? 0 : (size_t)pool->keep);
}

void rs_pool_segments_free(rs_storage_pool *pool) {
  rs_pool_segments_trim(pool, 0);
  while (pool->segments != NULL) { /* those with no stream to release them, and with blocks that could not be freed */
    for (const rs_pool_block *at = pool->segments->first; at != NULL; at = at->next)
      rs_pool_block_synchronize(pool, at);
    free_segment(pool, pool->segments, NULL);
  }
}

/* --- Growing ---------------------------------------------------------------------------------------------------- */

/* Releases idle segments of a kind, oldest first, while more than `most` bytes would be held with `bytes` more. */
static void release_idle_segments(rs_storage_pool *pool, rs_pool_kind kind, size_t bytes, size_t most,
                                  rs_pool_stream *stream) {
  const size_t *held = &pool->held[kind];
  for (rs_pool_segment *at = pool->oldest, *next; at != NULL && (*held > most || bytes > most - *held); at = next) {
    next = at->newer;
    if (kind == RS_POOL_ALL || at->kind == kind)
      (void)release_segment(pool, at, stream);
  }
}

/* Keeps to the peak of each kind by itself: else kinds would take turns in driving each other out. */
static void release_beyond_peak(rs_storage_pool *pool, rs_pool_kind kind, size_t bytes) {
  size_t now = pool->busy[kind] + bytes;
  release_idle_segments(pool, kind, bytes, now > pool->most_busy[kind] ? now : pool->most_busy[kind], NULL);
}

static void *ask_upstream(rs_storage_pool *pool, size_t bytes, const rs_pool_stream *stream) {
  pool->failure = RESHARD_ERROR_OUT_OF_MEMORY;
  return pool->upstream.alloc(pool->upstream.user, bytes, stream->handle);
}

/* Releases idle segments where the limit asks for it. False: so many bytes more would exceed it. */
static bool make_room(rs_storage_pool *pool, size_t bytes, rs_pool_stream *stream) {
  size_t limit = pool->limit > 0 ? pool->limit : SIZE_MAX;
  release_idle_segments(pool, RS_POOL_ALL, bytes, limit, stream);
  return pool->held[RS_POOL_ALL] <= limit && bytes <= limit - pool->held[RS_POOL_ALL];
}

static void count_held(rs_storage_pool *pool, rs_pool_kind kind, size_t bytes) {
  pool->held[kind] += bytes;
  pool->held[RS_POOL_ALL] += bytes;
  if (pool->held[RS_POOL_ALL] > pool->stats.peak_held_bytes)
    pool->stats.peak_held_bytes = pool->held[RS_POOL_ALL];
}

reshard_status rs_pool_count_driver(rs_storage_pool *pool, size_t bytes) {
  if (!make_room(pool, bytes, NULL))
    return RESHARD_ERROR_OUT_OF_MEMORY;
  count_held(pool, RS_POOL_DEDICATED, bytes);
  rs_pool_count_use(pool, bytes);
  return RESHARD_SUCCESS;
}

void rs_pool_uncount_driver(rs_storage_pool *pool, size_t bytes) {
  pool->held[RS_POOL_DEDICATED] -= bytes;
  pool->held[RS_POOL_ALL] -= bytes;
  pool->stats.in_use_bytes -= bytes;
}

reshard_status rs_pool_upstream_alloc(rs_storage_pool *pool, rs_pool_kind kind, size_t bytes, rs_pool_stream *stream,
                                      void **memory) {
  rs_pool_stream *waits = stream == pool->plain_stream ? NULL : stream; /* the host waits for that one */
  if (!make_room(pool, bytes, waits))
    return RESHARD_ERROR_OUT_OF_MEMORY;
  if (pool->keep == 0 && kind != RS_POOL_DEDICATED)
    release_beyond_peak(pool, kind, bytes);
  void *made = ask_upstream(pool, bytes, stream);
  if (made == NULL && pool->oldest != NULL && pool->failure == RESHARD_ERROR_OUT_OF_MEMORY) {
    release_idle_segments(pool, RS_POOL_ALL, bytes, 0, waits);
    made = ask_upstream(pool, bytes, stream);
    /* Released memory goes back when its streams have come so far, and the plain one waits for none of them. */
    if (made == NULL && waits == NULL) {
      for (int64_t i = 0; i < pool->streams.n; i++)
        (void)rs_pool_stream_synchronize(pool, pool->streams.at[i]);
      made = ask_upstream(pool, bytes, stream);
    }
  }
  if (made == NULL)
    return pool->failure;
  pool->stats.upstream_allocs++;
  count_held(pool, kind, bytes);
  *memory = made;
  return RESHARD_SUCCESS;
}

reshard_status rs_pool_segment_add(rs_storage_pool *pool, rs_pool_kind kind, size_t size, rs_pool_stream *stream,
                                   rs_pool_block **out) {
  size_t granule = pool->segment_granule, bytes = kind == RS_POOL_SMALL ? SLAB : size;
  rs_pool_segment *segment;
  rs_pool_block *block;
  size = (size + granule - 1) / granule * granule;
  bytes = (bytes + granule - 1) / granule * granule;
  RS_TRY(rs_alloc_zero(&segment, 1, sizeof *segment));
  reshard_status status;
  RS_TRY_GOTO(status, rs_pool_block_new(pool, &block), no_block);
  status = rs_pool_upstream_alloc(pool, kind, bytes, stream, &block->base.memory);
  if (status == RESHARD_ERROR_OUT_OF_MEMORY && bytes > size)
    status = rs_pool_upstream_alloc(pool, kind, bytes = size, stream, &block->base.memory);
  if (status != RESHARD_SUCCESS)
    goto no_memory;
  *segment = (rs_pool_segment){.next = pool->segments, .first = block, .bytes = bytes, .kind = kind};
  if (pool->segments != NULL)
    pool->segments->prev = segment;
  pool->segments = segment;
  link_idle(pool, segment);
  block->size = bytes;
  block->segment = segment;
  block->prev = block->next = NULL;
  block->free = true;
  rs_pool_block_set_stream(block, stream);
  block->needs = stream->records + 1;
  *out = block;
  return RESHARD_SUCCESS;
no_memory:
  rs_pool_block_recycle(pool, block);
no_block:
  free(segment);
  return status;
}
