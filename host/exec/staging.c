#include "exec/staging.h"

#include "device/plain.h"

/* Streams of all GPUs of the process may use memory that is in no pool. */
void rs_staging_cache_free(rs_staging_cache *cache, reshard_comm comm) {
  for (int64_t g = 0; cache->memory != NULL && g < comm->process.lanes; g++)
    (void)comm->process.lane_devices[g]->streams->finish(comm->process.lane_devices[g]);
  rs_comm_retire(comm, cache->memory);
  cache->memory = NULL;
  cache->bytes = 0;
}

static reshard_status grow_staging(rs_staging_cache *cache, reshard_comm comm, size_t bytes) {
  if (cache->bytes >= bytes)
    return RESHARD_SUCCESS;
  rs_staging_cache_free(cache, comm);
  RS_TRY(rs_device_alloc(comm->device, bytes, &cache->memory));
  cache->bytes = bytes;
  return RESHARD_SUCCESS;
}

reshard_status rs_call_staging_take(rs_call_staging *k, size_t bytes, void **memory) {
  rs_staging_cache *cache = k->cache;
  if (cache->pool == NULL) {
    RS_TRY(grow_staging(cache, k->comm, bytes));
    *memory = k->at = cache->memory;
    return RESHARD_SUCCESS;
  }
  if (k->block != NULL && k->block->bytes < bytes)
    rs_call_staging_return(k);
  if (k->block == NULL)
    RS_TRY(rs_storage_pool_alloc(cache->pool, bytes, k->stream, &k->block));
  *memory = k->at = k->block->memory;
  return RESHARD_SUCCESS;
}

void rs_call_staging_return(rs_call_staging *k) {
  if (k->block != NULL)
    rs_storage_pool_free(k->cache->pool, k->block, k->stream);
  k->block = NULL;
}
