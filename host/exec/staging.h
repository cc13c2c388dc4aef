/* Staging of transfers that are cached, which execute one after the other, each with other arrays in each call. */
#ifndef RS_EXEC_STAGING_H
#define RS_EXEC_STAGING_H

#include "comm/comm.h"
#include "device/memory/pool.h"

/* Of all transfers of one rank. All zero at first, but for the pool. */
typedef struct rs_staging_cache {
  rs_storage_pool *pool; /* staging comes from there, and goes back, in the order of the stream; NULL: */
  void *memory;          /* as much as was needed at once so far */
  size_t bytes;
} rs_staging_cache;
void rs_staging_cache_free(rs_staging_cache *cache, reshard_comm comm);

/* Of one transfer. */
typedef struct rs_call_staging {
  rs_staging_cache *cache;
  reshard_comm comm;
  void *at; /* where it was last */
  /* of the call under way */
  void *stream;
  rs_block *block;
} rs_call_staging;
reshard_status rs_call_staging_take(rs_call_staging *staging, size_t bytes, void **memory);
/* Gives it back, in the order of the stream. */
void rs_call_staging_return(rs_call_staging *staging);

#endif
