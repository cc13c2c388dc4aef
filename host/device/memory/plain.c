/* Memory that all streams of a device use at once: staging of transfers, tables of programs, records.
 *
 * It comes from where storage comes from, and counts with it. It is allocated on a side stream that has nothing else to
 * do, which the host then waits for: so it is there for whichever stream comes next, and no work under way delays it.
 * It goes back in the order of that stream. Callers have only its address, so the pool keeps a list. */
#include "device/plain.h"

#include "device/memory/pool_internal.h"

#include <string.h>

static reshard_status find_stream(rs_storage_pool *pool) {
  void *handle;
  if (pool->plain_stream != NULL)
    return RESHARD_SUCCESS;
  RS_TRY(pool->device->streams->create(pool->device, &handle));
  reshard_status status = rs_pool_stream_of(pool, handle, &pool->plain_stream);
  if (status != RESHARD_SUCCESS)
    pool->device->streams->destroy(pool->device, handle);
  return status;
}

/* Index of the first block at the address or behind it. */
static int64_t find_place(const rs_storage_pool *pool, const void *memory) {
  int64_t low = 0, high = pool->plain.n;
  RS_LOWER_BOUND(low, high, (uintptr_t)pool->plain.at[i]->base.memory < (uintptr_t)memory);
  return low;
}

static void list_plain(rs_storage_pool *pool, rs_pool_block *block) {
  int64_t i = find_place(pool, block->base.memory);
  memmove(pool->plain.at + i + 1, pool->plain.at + i, (size_t)(pool->plain.n++ - i) * sizeof *pool->plain.at);
  pool->plain.at[i] = block;
}

static reshard_status alloc_plain(rs_storage_pool *pool, size_t bytes, void **memory) {
  rs_pool_block *block;
  RS_TRY(find_stream(pool));
  RS_TRY(rs_vec_reserve(&pool->plain, pool->plain.n + 1));
  void *stream = pool->plain_stream->handle;
  reshard_status status = rs_pool_take_dedicated(pool, pool->plain_stream, bytes, &block);
  if (status == RESHARD_ERROR_OUT_OF_MEMORY)
    return rs_pool_error_memory(pool, bytes);
  RS_TRY(status);
  rs_pool_count_alloc(pool, block, bytes);
  status = pool->device->streams->synchronize(pool->device, stream);
  if (status != RESHARD_SUCCESS) {
    rs_pool_free_dedicated(pool, block, stream);
    return status;
  }
  list_plain(pool, block);
  *memory = block->base.memory;
  return RESHARD_SUCCESS;
}

/* Counts and lists memory that the driver has given, as a block without a stream. */
static reshard_status add_driver(rs_storage_pool *pool, size_t bytes, void *memory) {
  rs_pool_block *block;
  RS_TRY(rs_vec_reserve(&pool->plain, pool->plain.n + 1));
  RS_TRY(rs_pool_block_new(pool, &block));
  reshard_status status = rs_pool_count_driver(pool, bytes);
  if (status != RESHARD_SUCCESS) {
    rs_pool_block_recycle(pool, block);
    return rs_pool_error_memory(pool, bytes);
  }
  block->base.memory = memory;
  block->base.bytes = block->size = bytes;
  list_plain(pool, block);
  return RESHARD_SUCCESS;
}

/* False: the memory is the driver's, of the list or not. */
static bool free_plain(rs_storage_pool *pool, void *memory) {
  int64_t i = find_place(pool, memory);
  rs_pool_block **place = pool->plain.at + i, *block = i < pool->plain.n ? *place : NULL;
  if (block == NULL || block->base.memory != memory)
    return false;
  memmove(place, place + 1, (size_t)(--pool->plain.n - i) * sizeof *place);
  if (block->stream == NULL) {
    rs_pool_uncount_driver(pool, block->size);
    rs_pool_block_recycle(pool, block);
    return false;
  }
  rs_pool_free_dedicated(pool, block, pool->plain_stream->handle);
  return true;
}

reshard_status rs_device_alloc(rs_device *device, size_t bytes, void **memory) {
  rs_storage_pool *pool = device->pool;
  if (pool == NULL || bytes == 0)
    return device->memory->alloc(device, bytes, memory);
  pthread_mutex_lock(&pool->mutex);
  reshard_status status = alloc_plain(pool, bytes, memory);
  pthread_mutex_unlock(&pool->mutex);
  return status;
}

reshard_status rs_device_alloc_open(rs_device *device, size_t bytes, void **memory) {
  rs_storage_pool *pool = device->pool;
  void *made;
  if (pool == NULL || pool->upstream.user != pool)
    return rs_device_alloc(device, bytes, memory);
  RS_TRY(device->memory->alloc(device, bytes, &made));
  pthread_mutex_lock(&pool->mutex);
  reshard_status status = add_driver(pool, bytes, made);
  pthread_mutex_unlock(&pool->mutex);
  if (status == RESHARD_SUCCESS)
    *memory = made;
  else
    device->memory->free(device, made);
  return status;
}

reshard_status rs_device_count_meeting(rs_device *device, size_t bytes) {
  rs_storage_pool *pool = device->pool;
  if (pool == NULL)
    return RESHARD_SUCCESS;
  pthread_mutex_lock(&pool->mutex);
  reshard_status status = rs_pool_count_driver(pool, bytes);
  if (status == RESHARD_SUCCESS)
    pool->stats.meeting_bytes += bytes;
  else
    status = rs_pool_error_memory(pool, bytes);
  pthread_mutex_unlock(&pool->mutex);
  return status == RESHARD_SUCCESS ? status
                                   : rs_error(status, "mailboxes and words of meetings: %s", reshard_last_error());
}

void rs_device_uncount_meeting(rs_device *device, size_t bytes) {
  rs_storage_pool *pool = device->pool;
  if (pool == NULL)
    return;
  pthread_mutex_lock(&pool->mutex);
  rs_pool_uncount_driver(pool, bytes);
  pool->stats.meeting_bytes -= bytes;
  pthread_mutex_unlock(&pool->mutex);
}

void rs_device_free(rs_device *device, void *memory) {
  rs_storage_pool *pool = device->pool;
  bool freed = memory == NULL;
  if (!freed && pool != NULL) {
    pthread_mutex_lock(&pool->mutex);
    freed = free_plain(pool, memory);
    pthread_mutex_unlock(&pool->mutex);
  }
  if (!freed)
    device->memory->free(device, memory);
}
