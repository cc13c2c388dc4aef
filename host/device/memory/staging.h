/* Pinned host memory that is used again and again, for what goes between the host and a device: tables of descriptors,
 * and tensors in pageable memory. A piece is used again when the event that was recorded after its last use has
 * happened; the host never waits for that: where no piece is free more memory is taken, up to `most`, and only then,
 * as a last resort that the statistics count, the host waits for the piece that was given back first. */
#ifndef RS_DEVICE_STAGING_H
#define RS_DEVICE_STAGING_H

#include "device/device.h"

typedef struct rs_staging rs_staging;
typedef struct rs_staging_block rs_staging_block;

/* Thread-safe. */
reshard_status rs_staging_create(rs_device *device, size_t most, rs_staging **staging);
/* All pieces have been given; blocks until none is used. NULL is allowed. */
void rs_staging_destroy(rs_staging *staging);
/* A piece of at least `bytes`, aligned to 256. RESHARD_ERROR_OUT_OF_MEMORY where it would be more than `most`, with
 * what callers have and have not given yet. */
reshard_status rs_staging_take(rs_staging *staging, size_t bytes, rs_staging_block **piece, void **memory);
/* stream has been given the last use of the piece. The caller does not have it any more, also after an error. Where
 * the stream is being captured the piece stays as it is until the ring goes: the graph reads it each time that it
 * runs. */
reshard_status rs_staging_give(rs_staging *staging, rs_staging_block *piece, void *stream);

typedef struct rs_staging_stats {
  size_t bytes; /* pinned now */
  int64_t takes;
  int64_t waits; /* of the host */
} rs_staging_stats;
void rs_staging_get_stats(rs_staging *staging, rs_staging_stats *stats);

#endif
