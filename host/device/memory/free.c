/* Uses of a block, and freeing it.
 *
 * The pool was told which streams use the block. Their work so far must be over before the block is used again. An
 * event is recorded at once on streams that only used it, because their later work has nothing to do with the block.
 * The streams that free it and that it was allocated on are another matter. Their event is recorded when another stream
 * first wants the block, since mostly none does. */
#include "base/range.h"
#include "device/memory/pool_internal.h"
#include "device/stream.h"

#include <stddef.h>

static rs_pool_block *pool_block_of(rs_block *block) {
  return (rs_pool_block *)((char *)block - offsetof(rs_pool_block, base));
}

static reshard_status add_use(rs_pool_block *block, rs_pool_stream *stream) {
  if (stream == block->stream)
    return RESHARD_SUCCESS;
  for (int64_t i = 0; i < block->uses.n; i++)
    if (block->uses.at[i].stream == stream)
      return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&block->uses, block->uses.n + 2)); /* with one for the stream that it was allocated on */
  block->uses.at[block->uses.n++] = (rs_pool_use){stream, NULL, 0};
  stream->references++;
  return RESHARD_SUCCESS;
}

/* True for the handle of a block's stream, as on the CPU, where all are NULL. Needs no lock: the caller has the block,
 * and with it the stream. */
static bool is_home(const rs_pool_stream *stream, const void *handle) {
  return stream->handle == handle && stream->thread.place == NULL && !stream->ended;
}

reshard_status rs_storage_pool_use(rs_storage_pool *pool, rs_block *block, void *handle) {
  rs_pool_stream *stream;
  if (block == NULL || block->memory == NULL || is_home(pool_block_of(block)->stream, handle))
    return RESHARD_SUCCESS;
  pthread_mutex_lock(&pool->mutex);
  reshard_status status = rs_pool_stream_of(pool, handle, &stream);
  if (status == RESHARD_SUCCESS)
    status = add_use(pool_block_of(block), stream);
  pthread_mutex_unlock(&pool->mutex);
  return status;
}

/* Number of the event that comes after all work of the stream so far. */
static uint64_t next_event_number(const rs_pool_stream *stream) {
  return stream->ended ? stream->records : stream->records + 1;
}

/* Records events for uses on other streams than the block's, or makes the host wait for them. False where it cannot do
 * that either, since the stream is being captured or the device is lost; events recorded so far stay. */
static bool record_uses(rs_storage_pool *pool, rs_pool_block *block) {
  int64_t n = block->uses.n;
  bool all = true;
  block->uses.n = 0;
  for (int64_t i = 0; i < n; i++) {
    rs_pool_use use = block->uses.at[i];
    bool past = use.stream == block->stream;
    if (!past && use.event == NULL && use.needs == 0) {
      if (rs_pool_stream_record(pool, use.stream, RS_EDGE("storage: free after use")) == RESHARD_SUCCESS) {
        use.event = use.stream->last;
        use.event->references++;
      } else {
        past = rs_pool_stream_synchronize(pool, use.stream);
        all &= past;
      }
    }
    if (past)
      use.stream->references--;
    else
      block->uses.at[block->uses.n++] = use;
  }
  return all;
}

/* Puts the block in the list of the stream that it was freed on. */
static bool finish_free(rs_storage_pool *pool, rs_pool_block *block) {
  if (block->uses.n > 0 && !record_uses(pool, block))
    return false;
  block->needs = next_event_number(block->stream);
  pool->stats.in_use_bytes -= block->size;
  block->free = true;
  rs_pool_segment_unuse(pool, block->segment);
  rs_pool_block_insert(pool, block);
  return true;
}

/* Moves a block from the stream that it was allocated on, which uses it, to the one that frees it. False where memory
 * for that is lacking and the host cannot wait: the block is lost until the pool ends. */
static bool move_to_stream(rs_storage_pool *pool, rs_pool_block *block, void *handle) {
  rs_pool_stream *home = block->stream, *stream;
  if (rs_pool_stream_of(pool, handle, &stream) != RESHARD_SUCCESS)
    return pool->device->streams->synchronize(pool->device, handle) == RESHARD_SUCCESS;
  if (stream == home)
    return true;
  rs_pool_block_set_stream(block, stream);
  if (add_use(block, home) == RESHARD_SUCCESS) {
    block->uses.at[block->uses.n - 1].needs = next_event_number(home);
    return true;
  }
  if (rs_pool_stream_synchronize(pool, home))
    return true;
  rs_pool_block_set_stream(block, home);
  return false;
}

void rs_pool_retry_frees(rs_storage_pool *pool) {
  rs_pool_block *stuck = pool->pending_frees;
  pool->pending_frees = NULL;
  for (rs_pool_block *next; stuck != NULL; stuck = next) {
    next = (rs_pool_block *)stuck->link.next;
    if (!finish_free(pool, stuck)) {
      stuck->link.next = (rs_pool_link *)pool->pending_frees;
      pool->pending_frees = stuck;
    }
  }
}

void rs_pool_free_dedicated(rs_storage_pool *pool, rs_pool_block *block, void *stream) {
  pool->stats.frees++;
  if (block->size > 0)
    rs_pool_upstream_free(pool, RS_POOL_DEDICATED, block->base.memory, block->size, stream);
  pool->stats.in_use_bytes -= block->size;
  rs_pool_block_recycle(pool, block);
}

/* Frees a block; home: in the order of the stream that it was allocated on, whatever the handle is. */
static void free_block(rs_storage_pool *pool, rs_pool_block *block, bool home, void *handle) {
  if (block->segment == NULL) {
    rs_pool_free_dedicated(pool, block, handle);
    return;
  }
  pool->stats.frees++;
  if (!home && !move_to_stream(pool, block, handle))
    return;
  if (finish_free(pool, block)) {
    rs_pool_segments_keep_within(pool);
  } else {
    block->link.next = (rs_pool_link *)pool->pending_frees;
    pool->pending_frees = block;
  }
}

void rs_storage_pool_free(rs_storage_pool *pool, rs_block *block, void *stream) {
  if (block == NULL)
    return;
  RS_RANGE("free", (int64_t)block->bytes, -1, -1, -1);
  pthread_mutex_lock(&pool->mutex);
  free_block(pool, pool_block_of(block), false, stream);
  pthread_mutex_unlock(&pool->mutex);
}

void rs_storage_pool_drop(rs_storage_pool *pool, rs_block *block) {
  if (block == NULL)
    return;
  RS_RANGE("free", (int64_t)block->bytes, -1, -1, -1);
  pthread_mutex_lock(&pool->mutex);
  free_block(pool, pool_block_of(block), true, NULL);
  pthread_mutex_unlock(&pool->mutex);
}

reshard_status rs_storage_pool_forget(rs_storage_pool *pool, void *handle) {
  rs_pool_stream *stream;
  if (handle == NULL) /* lives as long as the device */
    return RESHARD_SUCCESS;
  pthread_mutex_lock(&pool->mutex);
  reshard_status status = rs_pool_stream_of(pool, handle, &stream);
  if (status == RESHARD_SUCCESS && stream->references > 0)
    status = rs_pool_stream_record(pool, stream, RS_EDGE("storage: forget stream"));
  if (status == RESHARD_SUCCESS)
    stream->ended = true;
  pthread_mutex_unlock(&pool->mutex);
  return status;
}
