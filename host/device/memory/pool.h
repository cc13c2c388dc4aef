/* Storage that is allocated and freed in the order of streams, without blocking the host and - as long as the same
 * stream gets what it gave - without a call of the driver.
 *
 * A block belongs to the stream it was allocated or freed on last. free puts it on that stream's list, with no event:
 * what the stream does next comes after. When another stream wants it, an event is recorded on the first one, once for
 * all blocks that were freed there so far, and the other waits for it. Memory comes from: the stream's own list, other
 * streams' lists, after which blocks of the same piece of memory merge, and the device's allocator last.
 *
 * Streams are ones of the pool's device and live as long as the pool, or until they are forgotten. None is being
 * captured when it is given to alloc, use or free (rs_device_check_capture): a graph would use the memory again when it
 * runs, and it may be somebody else's then. Streams on which memory was freed before may be: others leave that alone.
 */
#ifndef RS_DEVICE_STORAGE_POOL_H
#define RS_DEVICE_STORAGE_POOL_H

#include "device/device.h"

typedef struct rs_storage_pool rs_storage_pool;
typedef struct rs_block { /* handed out; the rest of it is the pool's */
  void *memory;           /* aligned to 256 bytes */
  size_t bytes;           /* as asked for */
} rs_block;

/* options as in reshard_device_create, already checked. Thread-safe. */
reshard_status rs_storage_pool_create(rs_device *device, const reshard_device_options *options, rs_storage_pool **pool);
/* Of pinned memory of the host (ops->host_alloc), without a limit, for what streams of the device copy. */
reshard_status rs_storage_pool_create_pinned(rs_device *device, rs_storage_pool **pool);
/* All blocks have been freed; uses of them need not be over: their memory goes back in the order of the streams, after
 * which nothing of the pool is left. NULL is allowed. */
void rs_storage_pool_destroy(rs_storage_pool *pool);
/* Usable in the order of stream. bytes 0: a block whose memory is NULL. RESHARD_ERROR_OUT_OF_MEMORY with what is in
 * use, kept, and the limit. */
reshard_status rs_storage_pool_alloc(rs_storage_pool *pool, size_t bytes, void *stream, rs_block **block);
/* stream uses the block: freeing it comes after all that stream has been given until then. May be called before the use
 * is given to the stream, and costs nothing when it was called before. The stream that the block was allocated on is
 * counted as one that uses it. */
reshard_status rs_storage_pool_use(rs_storage_pool *pool, rs_block *block, void *stream);
/* In the order of stream, and after all uses. NULL is allowed. Where a stream that uses it is being captured at the
 * moment, nobody gets the block before that is over: whoever has the graph keeps what it uses. */
void rs_storage_pool_free(rs_storage_pool *pool, rs_block *block, void *stream);
/* The same in the order of the stream that it was allocated on, which may have been forgotten, or be captured now. */
void rs_storage_pool_drop(rs_storage_pool *pool, rs_block *block);
/* Pieces of which nothing is in use go back, least recently used first, until no more than keep_bytes are kept. */
reshard_status rs_storage_pool_trim(rs_storage_pool *pool, size_t keep_bytes);
/* stream will not be seen again, and may end: what was freed on it is marked now. Blocks that it uses are freed with
 * another stream from here on. */
reshard_status rs_storage_pool_forget(rs_storage_pool *pool, void *stream);
void rs_storage_pool_stats(rs_storage_pool *pool, reshard_memory_stats *stats);

#endif
