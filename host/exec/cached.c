/* Binding a cached transfer is listing its copies anew. The pool gives a stream the memory that it freed last, so
 * arrays and staging are often where they were: then the programs are right as they are. */
#include "exec/cached.h"

#include "device/plain.h"

#include <stdlib.h>

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

/* Memory at an address may be unregistered, or another GPU's, since it was bound. */
static reshard_status look_up_again(rs_cached_transfer *k) {
  rs_arrays *arrays = &k->transfer->binding.arrays;
  bool had_private = arrays->has_private;
  k->transfer->bound = false; /* an error leaves half of what was found */
  RS_TRY(rs_arrays_look_up(k->transfer->comm, k->transfer->plan, &k->extents, false, arrays));
  k->transfer->bound = arrays->has_private == had_private;
  return RESHARD_SUCCESS;
}

reshard_status rs_cached_compare(rs_cached_transfer *k, const reshard_arrays *arrays, void *stream) {
  reshard_transfer t = k->transfer;
  const rs_binding *binding = &t->binding;
  void *was = k->staging.at, *memory = was;
  k->staging.stream = stream;
  t->bound = t->bound && rs_arrays_same(t->plan, &binding->arrays, arrays);
  if (t->bound)
    RS_TRY(look_up_again(k));
  if (t->bound && binding->info.workspace_bytes > 0)
    RS_TRY(rs_call_staging_take(&k->staging, binding->info.workspace_bytes, &memory));
  t->bound = t->bound && memory == was;
  return RESHARD_SUCCESS;
}

reshard_status rs_cached_bind(rs_cached_transfer *k, const reshard_arrays *arrays,
                              const rs_descriptor *const *descriptors, void *stream) {
  RS_TRY(rs_cached_compare(k, arrays, stream));
  if (k->transfer->bound)
    return RESHARD_SUCCESS;
  RS_TRY(rs_transfer_rebind_cached(k->transfer, arrays, descriptors));
  k->transfer->bound = true;
  return RESHARD_SUCCESS;
}

reshard_status rs_cached_bind_direct(rs_cached_transfer *k, reshard_comm comm, reshard_plan plan) {
  bool changed, made = k->direct == NULL;
  const rs_descriptor *const *descriptors = rs_mapped_sources_all(k->mapped, &changed);
  if (made)
    RS_TRY(rs_transfer_create_alone(plan, comm, &k->staging, &k->direct));
  if (!made && !changed)
    return RESHARD_SUCCESS;
  reshard_status status = rs_transfer_rebind_cached(k->direct, NULL, descriptors);
  if (status != RESHARD_SUCCESS) { /* the next call binds another one, whatever has changed by then */
    reshard_transfer_destroy(k->direct);
    k->direct = NULL;
  }
  return status;
}

reshard_status rs_cached_rebind(rs_cached_transfer *k, const reshard_arrays *arrays, void *stream) {
  k->staging.stream = stream;
  RS_TRY(reshard_transfer_rebind(k->transfer, arrays));
  k->transfer->bound = true;
  return RESHARD_SUCCESS;
}

reshard_status rs_cached_create(rs_cached_transfer *k, reshard_plan plan, reshard_comm comm,
                                const reshard_arrays *arrays, reshard_path path, rs_staging_cache *cache,
                                void *stream) {
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = path};
  k->staging = (rs_call_staging){.cache = cache, .comm = comm, .stream = stream};
  RS_TRY(rs_transfer_create_cached(plan, comm, arrays, &options, &k->staging, &k->transfer));
  k->transfer->bound = true;
  return RESHARD_SUCCESS;
}

void rs_cached_drop(rs_cached_transfer *k) {
  rs_call_staging_return(&k->staging);
  reshard_transfer_destroy(k->transfer);
  k->transfer = NULL;
  k->packed = false;
  k->published = 0;
}

void rs_cached_free(rs_cached_transfer *k) {
  rs_cached_drop(k);
  reshard_transfer_destroy(k->direct);
  rs_mapped_sources_free(k->mapped);
  free(k->extents.at);
  *k = (rs_cached_transfer){.transfer = NULL};
}
