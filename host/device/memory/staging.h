/* A ring of pinned host memory, for data between the host and a device: tables of descriptors, and tensors in pageable
 * memory. A block is used again when the event behind its last use has happened; the host does not wait for that.
 * Where no block is free more memory is taken, up to `most`. Only then the host waits, for the block that was given
 * back first; the statistics count such waits. */
#ifndef RS_DEVICE_STAGING_H
#define RS_DEVICE_STAGING_H

#include "device/device.h"

typedef struct rs_staging rs_staging;
typedef struct rs_staging_block rs_staging_block;

/* Thread-safe. */
reshard_status rs_staging_create(rs_device *device, size_t most, rs_staging **staging);
/* Destroys a ring all of whose blocks have been given back; blocks until none is used. NULL is allowed. */
void rs_staging_destroy(rs_staging *staging);
/* Takes a block of at least `bytes`, aligned to 256. RESHARD_ERROR_OUT_OF_MEMORY where it would be more than `most`;
 * it tells how much callers have not given back yet. */
reshard_status rs_staging_take(rs_staging *staging, size_t bytes, rs_staging_block **block, void **memory);
/* Gives a block back; stream has been given its last use. The caller does not have the block any more, also after an
 * error. Where the stream is being captured, the block stays as it is until the ring ends: the graph reads it each
 * time that it runs. */
reshard_status rs_staging_give(rs_staging *staging, rs_staging_block *block, void *stream);

typedef struct rs_staging_stats {
  size_t bytes; /* pinned now */
  int64_t takes;
  int64_t waits; /* of the host */
} rs_staging_stats;
void rs_staging_get_stats(rs_staging *staging, rs_staging_stats *stats);

#endif
