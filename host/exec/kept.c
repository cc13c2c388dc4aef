/* Binding a kept transfer is listing its copies anew. The pool gives a stream the memory that it freed last, so arrays
 * and staging are often where they were: then the programs are right as they are. */
#include "exec/kept.h"

/* Streams of all GPUs of the process may use memory that is in no pool. */
static void free_staging(rs_lender *lender, reshard_comm comm) {
  for (int64_t g = 0; lender->memory != NULL && g < comm->lanes; g++)
    (void)comm->lane_devices[g]->streams->finish(comm->lane_devices[g]);
  if (comm->ops->retire != NULL)
    comm->ops->retire(comm, lender->memory);
  else
    comm->device->memory->free(comm->device, lender->memory);
  lender->memory = NULL;
  lender->bytes = 0;
}

void rs_lender_free(rs_lender *lender, reshard_comm comm) { free_staging(lender, comm); }

static reshard_status grow_staging(rs_lender *lender, reshard_comm comm, size_t bytes) {
  if (lender->bytes >= bytes)
    return RESHARD_SUCCESS;
  free_staging(lender, comm);
  RS_TRY(comm->device->memory->alloc(comm->device, bytes, &lender->memory));
  lender->bytes = bytes;
  return RESHARD_SUCCESS;
}

reshard_status rs_kept_staging(rs_kept *k, size_t bytes, void **memory) {
  rs_lender *lender = k->lender;
  if (lender->pool == NULL) {
    RS_TRY(grow_staging(lender, k->comm, bytes));
    *memory = k->staging = lender->memory;
    return RESHARD_SUCCESS;
  }
  if (k->block != NULL && k->block->bytes < bytes)
    rs_kept_return(k);
  if (k->block == NULL)
    RS_TRY(rs_storage_pool_alloc(lender->pool, bytes, k->stream, &k->block));
  *memory = k->staging = k->block->memory;
  return RESHARD_SUCCESS;
}

/* Finds out if the binding is one to these arrays, and takes its staging. */
static reshard_status find_bound(rs_kept *k, const reshard_arrays *arrays, bool *bound) {
  const rs_binding *binding = &k->transfer->binding;
  void *was = k->staging, *memory = was;
  *bound = k->bound && rs_arrays_same(k->transfer->plan, &binding->arrays, arrays);
  if (*bound && binding->info.workspace_bytes > 0)
    RS_TRY(rs_kept_staging(k, binding->info.workspace_bytes, &memory));
  *bound = *bound && memory == was;
  return RESHARD_SUCCESS;
}

reshard_status rs_kept_bind(rs_kept *k, const reshard_arrays *arrays, void *stream) {
  k->stream = stream;
  RS_TRY(find_bound(k, arrays, &k->bound));
  if (k->bound)
    return RESHARD_SUCCESS;
  RS_TRY(rs_transfer_rebind_kept(k->transfer, arrays));
  k->bound = true;
  return RESHARD_SUCCESS;
}

void rs_kept_return(rs_kept *k) {
  if (k->block != NULL)
    rs_storage_pool_free(k->lender->pool, k->block, k->stream);
  k->block = NULL;
}

reshard_status rs_kept_create(rs_kept *k, reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                              reshard_path path, rs_lender *lender, void *stream) {
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = path};
  k->comm = comm;
  k->lender = lender;
  k->stream = stream;
  RS_TRY(rs_transfer_create_kept(plan, comm, arrays, &options, k));
  k->bound = true;
  return RESHARD_SUCCESS;
}

void rs_kept_free(rs_kept *k) {
  rs_kept_return(k);
  reshard_transfer_destroy(k->transfer);
  *k = (rs_kept){.transfer = NULL};
}
