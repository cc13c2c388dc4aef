/* A transfer that is cached for its plan, while the arrays are other ones each time: connections, agreement, rounds and
 * programs stay. Binding to other arrays is done by each rank alone, in the order of its stream. It waits for nothing,
 * and takes nothing of the driver's allocator that an earlier call has not taken. */
#ifndef RS_EXEC_CACHED_H
#define RS_EXEC_CACHED_H

#include "exec/transfer.h"

typedef struct rs_cached_transfer {
  reshard_transfer transfer; /* that ranks have made together; NULL: none is cached */
  /* Of processes that reach each other's memory; NULL: none yet. Where all are on one node, each rank makes itself a
   * transfer on the direct path. */
  rs_mapped_sources *mapped;
  reshard_transfer direct;
  bool packed; /* they took `transfer` all the same, in their last call */
  /* Of the mixed path on the CPU: hash of the sources of all ranks that it was bound to. Of GPUs that read each other's
   * arrays: rs_sources_version of this rank's. 0: of none. */
  uint64_t published;
  rs_call_staging staging;
  rs_extents extents; /* of the transfer's arrays, to be looked up */
} rs_cached_transfer;

/* Makes the transfer, and binds it for the first execute. Collective. */
reshard_status rs_cached_create(rs_cached_transfer *cached, reshard_plan plan, reshard_comm comm,
                                const reshard_arrays *arrays, reshard_path path, rs_staging_cache *cache, void *stream);
/* Finds out if it is bound to these arrays, for the next execute, which is on `stream`: its `bound`. Takes its staging.
 * Local. Errors: those of rs_arrays_look_up, since other memory may be at the same addresses. */
reshard_status rs_cached_compare(rs_cached_transfer *cached, const reshard_arrays *arrays, void *stream);
/* Binds it for the next execute, which is on `stream`. Local. After an error there is nothing to execute. descriptors:
 * of a transfer on the mixed path, by rank, else NULL; where they have changed, `bound` is cleared before. */
reshard_status rs_cached_bind(rs_cached_transfer *cached, const reshard_arrays *arrays,
                              const rs_descriptor *const *descriptors, void *stream);
/* Binds the direct transfer of this rank alone to the arrays that ranks have published, if these changed. Local. */
reshard_status rs_cached_bind_direct(rs_cached_transfer *cached, reshard_comm comm, reshard_plan plan);
/* The same by all ranks, where they read each other's arrays: reshard_transfer_rebind. After an error there is nothing
 * to execute. */
reshard_status rs_cached_rebind(rs_cached_transfer *cached, const reshard_arrays *arrays, void *stream);
/* Destroys the transfer alone; NULL is allowed. */
void rs_cached_drop(rs_cached_transfer *cached);
/* Frees all. */
void rs_cached_free(rs_cached_transfer *cached);

#endif
