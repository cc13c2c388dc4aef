/* One rank's tensors to all ranks, and the check before it that all ranks have the same ones.
 *
 * Calls refuse a NULL communicator or module (RESHARD_ERROR_INVALID).
 *
 * Source: torch/distributed/utils.py. */
#ifndef RESHARD_SYNC_H
#define RESHARD_SYNC_H

#include <reshard/module.h>
#include <reshard/transfer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Collective. All ranks have as many tensors, with equal shapes, dtypes and strides (those that are walked: not of dims
 * of extent 1, nor of tensors without elements), under equal names. names: one per tensor, or NULL: none have. One
 * exchange of a fixed size where all agree; where they do not, as many more as there are binary digits in n. Nothing is
 * allocated.
 *
 * All ranks succeed, or all have the same error. RESHARD_ERROR_MISMATCH: rank 0 and the lowest rank that differs from
 * it, the first tensor that does, by name or number, the field and both values. RESHARD_ERROR_INVALID: NULL among the
 * tensors. Source: _verify_param_shape_across_processes. */
RESHARD_API reshard_status reshard_verify_shapes(reshard_comm comm, int64_t n, const reshard_tensor *tensors,
                                                 const char *const *names);

/* Set `size` through RESHARD_SYNC_OPTIONS_INIT; the rest may be 0. The same on all ranks. */
typedef struct reshard_sync_options {
  size_t size;
  int64_t bucket_bytes; /* of a message on the packed path; 0: 250 MiB; rounded up to 256 */
  reshard_path path;
} reshard_sync_options;
#define RESHARD_SYNC_OPTIONS_INIT sizeof(reshard_sync_options)
#define RESHARD_SYNC_OPTIONS_DEFAULTS {sizeof(reshard_sync_options), 0, RESHARD_PATH_AUTO}

typedef struct reshard_sync_report {
  int64_t tensors, bytes;  /* of this rank; what other ranks' have, too */
  int64_t alone;           /* tensors above a bucket, which have messages of their own; 0 on the direct path */
  int64_t workspace_bytes; /* staging that was in use: two buckets at most */
} reshard_sync_report;

/* Collective: what the tensors of rank src (of comm) hold is copied to those of all ranks. Tensors may be of several
 * dtypes and any strides, which may differ between ranks; those of src are read alone, those of other ranks do not
 * overlap one another. names are compared and quoted as in reshard_verify_shapes. A plan moves the data, from rank(src)
 * to the others as replicas: on the direct path from tensor to tensor in one pass; on the packed path each rank gets
 * ceil(bytes / bucket) messages for all tensors of a bucket at most together, whatever their dtypes, and as many for
 * each tensor above that, which is sent from where it is and received where it goes when it is contiguous there. src
 * packs bucket by bucket, for one rank after the other.
 *
 * stream: NULL on the CPU, where the call returns when all is done. report may be NULL; it is written on success.
 * All ranks succeed, or all have the same error: RESHARD_ERROR_MISMATCH as in reshard_verify_shapes (but strides are
 * each rank's own), and where src or the options differ; nothing is written then. Where memory or a peer fails later,
 * tensors may be filled in part. Source: _sync_params_and_buffers, torch.distributed._broadcast_coalesced. */
RESHARD_API reshard_status reshard_sync_tensors(reshard_comm comm, int64_t src, int64_t n,
                                                const reshard_tensor *tensors, const char *const *names,
                                                const reshard_sync_options *options, void *stream,
                                                reshard_sync_report *report);

/* Collective: the same for what reshard_module_visit_states has of a module. Source: _sync_module_states. */
RESHARD_API reshard_status reshard_sync_module_states(reshard_comm comm, int64_t src, reshard_module module,
                                                      const reshard_module_selection *selection,
                                                      const reshard_sync_options *options, void *stream,
                                                      reshard_sync_report *report);

#ifdef __cplusplus
}
#endif
#endif
