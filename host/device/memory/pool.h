/* Storage that is allocated and freed in the order of streams, without blocking the host. As long as a stream gets the
 * blocks that it freed, that is done without a call of the driver.
 *
 * A block belongs to the stream that it was last allocated or freed on. free puts it on that stream's list without an
 * event, since the stream's later work comes after. When another stream wants the block, it waits for an event on the
 * first stream. That is recorded once for all blocks freed there so far. Memory comes from the stream's own list, then
 * from other streams' lists, where free neighbours of one segment merge, and last from the device.
 *
 * Streams are ones of the pool's device and live as long as the pool, or until they are forgotten. None is being
 * captured when it is given to alloc, use or free (rs_device_check_capture): a graph would use the memory each time
 * that it runs, when it may be somebody else's. Streams on which memory was freed before may be captured: others leave
 * that memory alone. */
#ifndef RS_DEVICE_MEMORY_POOL_H
#define RS_DEVICE_MEMORY_POOL_H

#include "device/device.h"

typedef struct rs_storage_pool rs_storage_pool;
typedef struct rs_block { /* first part of the pool's own record */
  void *memory;           /* aligned to 256 bytes */
  size_t bytes;           /* as asked for */
} rs_block;

/* Creates a pool; options as in reshard_device_create, already checked. Thread-safe. */
reshard_status rs_storage_pool_create(rs_device *device, const reshard_device_options *options, rs_storage_pool **pool);
/* Creates one of pinned memory of the host, without a limit, for copies by streams of the device. */
reshard_status rs_storage_pool_create_pinned(rs_device *device, rs_storage_pool **pool);
/* Destroys a pool all of whose blocks have been freed. Uses of them need not be over: their memory goes back in the
 * order of the streams. NULL is allowed. */
void rs_storage_pool_destroy(rs_storage_pool *pool);
/* Allocates a block that is usable in the order of stream; its memory is NULL for 0 bytes. RESHARD_ERROR_OUT_OF_MEMORY
 * tells the bytes in use, kept, and the limit. */
reshard_status rs_storage_pool_alloc(rs_storage_pool *pool, size_t bytes, void *stream, rs_block **block);
/* Tells that stream uses the block: freeing it comes after all that stream has been given until then. May be called
 * before the use is given to the stream, and costs nothing the second time. The stream that the block was allocated on
 * counts as one that uses it. */
reshard_status rs_storage_pool_use(rs_storage_pool *pool, rs_block *block, void *stream);
/* Frees a block in the order of stream, and after all uses. NULL is allowed. Where a stream that uses it is being
 * captured, the block is not given out before that is over: the graph's owner keeps the memory that the graph uses. */
void rs_storage_pool_free(rs_storage_pool *pool, rs_block *block, void *stream);
/* Frees in the order of the stream that the block was allocated on, which may be forgotten, or be captured now. */
void rs_storage_pool_drop(rs_storage_pool *pool, rs_block *block);
/* Gives back segments of which nothing is in use, least recently used first, until at most keep_bytes are kept. */
reshard_status rs_storage_pool_trim(rs_storage_pool *pool, size_t keep_bytes);
/* Forgets a stream that may end now: an event is recorded after all that was freed on it. Blocks that it uses are
 * freed with another stream from here on. */
reshard_status rs_storage_pool_forget(rs_storage_pool *pool, void *stream);
void rs_storage_pool_stats(rs_storage_pool *pool, reshard_memory_stats *stats);

#endif
