/* Copies of one rank's tensors to all ranks, and the check before it that all ranks have the same ones.
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

/* Checks that all ranks have as many tensors, with equal shapes, dtypes and strides, under equal names. Collective.
 * Strides that are never walked are not compared: of dims of extent 1, and of tensors without elements. names: one per
 * tensor, or NULL: none have.
 *
 * One exchange of a fixed size where all agree. If they do not, as many more as there are binary digits in n.
 * Nothing is allocated.
 *
 * All ranks succeed, or all have the same error:
 * - RESHARD_ERROR_MISMATCH: rank 0 and the lowest rank that differs from it, the first tensor that does, by name or
 *   number, the field and both values.
 * - RESHARD_ERROR_INVALID: NULL among the tensors.
 *
 * Source: _verify_param_shape_across_processes. */
RESHARD_API reshard_status reshard_verify_shapes(reshard_comm comm, int64_t n, const reshard_tensor *tensors,
                                                 const char *const *names);

/* Begin with RESHARD_SYNC_OPTIONS_DEFAULTS, or set `size` to RESHARD_SYNC_OPTIONS_INIT; the rest may be 0. The same on
 * all ranks. */
typedef struct reshard_sync_options {
  size_t size;
  int64_t bucket_bytes; /* packed at a time, on the packed path; 0: 250 MiB; rounded up to 256 */
  reshard_path path;
} reshard_sync_options;
#define RESHARD_SYNC_OPTIONS_INIT sizeof(reshard_sync_options)
#define RESHARD_SYNC_OPTIONS_DEFAULTS \
  { sizeof(reshard_sync_options), 0, RESHARD_PATH_AUTO }

typedef struct reshard_sync_report {
  int64_t tensors, bytes; /* of this rank, and of every other */
  /* Tensors above a bucket, which have messages, or a pass, of their own; 0 where ranks of one process take the direct
   * path. */
  int64_t alone;
  int64_t workspace_bytes; /* staging that was in use: two buckets at most, or 256 a rank */
  int64_t planned;         /* plans that were made in this call; 0: those of the call before did */
} reshard_sync_report;

/* Copies the tensors of rank src (of comm) to those of all ranks. Collective.
 *
 * - tensors: of several dtypes and any strides, which ranks may differ in. Tensors of other ranks than src do not
 *   overlap one another.
 * - names: compared and quoted as in reshard_verify_shapes.
 * - stream: NULL on the CPU, where the call returns when all is done. A captured stream is RESHARD_ERROR_INVALID on
 *   all.
 * - report: NULL, or written on success.
 *
 * The communicator keeps the plans of the last call: the next call with tensors of the same names, shapes and dtypes
 * in the same order, the same src and options makes none (docs/torch.md).
 *
 * All ranks succeed, or all have the same error. RESHARD_ERROR_MISMATCH as in reshard_verify_shapes, but strides are
 * each rank's own, and where src or the options differ: nothing is written. If memory or a peer fails later, tensors
 * may be filled in part.
 *
 * Source: _sync_params_and_buffers, torch.distributed._broadcast_coalesced. */
RESHARD_API reshard_status reshard_sync_tensors(reshard_comm comm, int64_t src, int64_t n,
                                                const reshard_tensor *tensors, const char *const *names,
                                                const reshard_sync_options *options, void *stream,
                                                reshard_sync_report *report);

/* Copies the tensors that reshard_module_visit_states visits of a module likewise. Collective. Source:
 * _sync_module_states. */
RESHARD_API reshard_status reshard_sync_module_states(reshard_comm comm, int64_t src, reshard_module module,
                                                      const reshard_module_selection *selection,
                                                      const reshard_sync_options *options, void *stream,
                                                      reshard_sync_report *report);

#ifdef __cplusplus
}
#endif
#endif
