/* FSDP with tensor parallelism: parameters cut by TP (the inner mesh dim), and each part again by FSDP (the outer one).
 * A training framework makes these calls when it flattens, saves, loads and gathers its parameters.
 *
 * Calls that return a status refuse NULL for required arguments (RESHARD_ERROR_INVALID).
 *
 * Streams that are being captured are refused. If one process of several captures, the others have its error or wait
 * for it, as in sharded.h.
 *
 * Source: torch/distributed/tensor/parallel/fsdp.py (DTensorExtensions), torch/distributed/fsdp/_fsdp_extensions.py. */
#ifndef RESHARD_FSDP_H
#define RESHARD_FSDP_H

#include <reshard/dtensor.h>
#include <reshard/state_dict.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Parameters are leaves of a state dict: TENSOR, SHARDED, NESTED or DTENSOR (state_dict.h). */

/* Record of a flattened DTensor, from which it is made again of a local tensor. Source: _flatten_tensor. */
typedef struct reshard_flat_record_s *reshard_flat_record;
RESHARD_API void reshard_flat_record_free(reshard_flat_record record); /* NULL is allowed */

/* Flattens a DTensor. Local. *flat is a TENSOR leaf with its local tensor: the same, now marked (below). Outside of the
 * mesh that tensor has shape 0. The tensor gets requires_grad, whatever the DTensor has, as in PyTorch. *record is its
 * record. Any other leaf is itself, and *record is NULL. The caller owns the results. Source: _flatten_tensor. */
RESHARD_API reshard_status reshard_fsdp_flatten(reshard_tree leaf, reshard_tree *flat, reshard_flat_record *record);
/* Makes the DTensor again. Local.
 *
 * - sharder: of the communicator of the DTensor's mesh. With another one the DTensor gets the sharder that it had,
 *   which outlives the record. The table's is, for a DTensor on the TP group's own mesh.
 * - tensor: has the local shape (error: both shapes), is retained and marked. Another dtype is allowed, as after a
 *   cast.
 * - record: NULL: the result is a TENSOR leaf with the tensor.
 *
 * Source: _unflatten_tensor. */
RESHARD_API reshard_status reshard_fsdp_unflatten(reshard_sharder sharder, reshard_tensor tensor,
                                                  reshard_flat_record record, reshard_tree *leaf);

/* Ranks that FSDP cuts over, and their devices. Begin with RESHARD_FSDP_GROUP_DEFAULTS, or set `size` to
 * RESHARD_FSDP_GROUP_INIT. */
typedef struct reshard_fsdp_group {
  size_t size;
  /* Of the FSDP group's communicator: a row or column of the mesh, with its global ranks (reshard_comm_global_ranks).
   * Borrowed; outlives the chunks. */
  reshard_sharder sharder;
  /* Of a communicator that has the ranks of FSDP and of TP. Nested results belong to it. NULL: the sharder of the leaf
   * is one. Borrowed; outlives them. */
  reshard_sharder world;
  /* On GPUs global rank G is on cuda:(G mod this), as in PyTorch. 0: no number is given. Not used on the CPU: a chunk
   * there is on "cpu". */
  int64_t devices_per_node;
} reshard_fsdp_group;
#define RESHARD_FSDP_GROUP_INIT sizeof(reshard_fsdp_group)
#define RESHARD_FSDP_GROUP_DEFAULTS \
  { sizeof(reshard_fsdp_group), NULL, NULL, 0 }

/* Table of functions that a framework calls: FSDPExtensions. user comes first in each. Every function is required. The
 * table belongs to the host program (_set_fsdp_extensions keeps one for the whole process). reshard_fsdp_extension_init
 * or the program fills it. The program checks it once, and passes it to the code that flattens, saves, loads and
 * gathers. */
typedef struct reshard_fsdp_extension {
  size_t size;
  void *user;
  /* Local. */
  reshard_status (*pre_flatten_transform)(void *user, reshard_tree leaf, reshard_tree *flat,
                                          reshard_flat_record *record);
  /* Local. Work on the tensor is in the order of `stream`, the compute stream. */
  reshard_status (*post_unflatten_transform)(void *user, reshard_tensor tensor, reshard_flat_record record,
                                             void *stream, reshard_tree *leaf);
  /* Use `stream` likewise. chunk_tensor is collective over the group. chunk_dtensor is local (but
   * reshard_fsdp_extension_set_order), all_gather_dtensor collective. */
  reshard_status (*chunk_tensor)(void *user, reshard_tree leaf, const reshard_fsdp_group *group, void *stream,
                                 reshard_tree *chunk);
  reshard_status (*chunk_dtensor)(void *user, reshard_tree leaf, reshard_mesh mesh, void *stream, reshard_tree *chunk);
  reshard_status (*pre_load_state_dict_transform)(void *user, reshard_tree leaf, reshard_tree *inner,
                                                  reshard_metadata *metadata); /* local */
  reshard_status (*all_gather_dtensor)(void *user, reshard_tree leaf, reshard_mesh parent, void *stream,
                                       reshard_tree *whole);
  /* Likewise in another dtype, as MixedPrecision's param_dtype asks for. */
  reshard_status (*all_gather_dtensor_as)(void *user, reshard_tree leaf, reshard_mesh parent, reshard_dtype dtype,
                                          void *stream, reshard_tree *whole);
} reshard_fsdp_extension;
#define RESHARD_FSDP_EXTENSION_INIT sizeof(reshard_fsdp_extension)
#define RESHARD_FSDP_EXTENSION_DEFAULTS \
  { sizeof(reshard_fsdp_extension), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* Fills all of *extension but `size`, which the caller has set. Each function is the one of that name below. sharder:
 * of the communicator of the meshes' root, borrowed by every call through the table, and is the `world` of a
 * group that names none. Source: DTensorExtensions. */
RESHARD_API reshard_status reshard_fsdp_extension_init(reshard_sharder sharder, reshard_fsdp_extension *extension);
/* Checks that every function is there. Errors: RESHARD_ERROR_INVALID naming those that are missing. */
RESHARD_API reshard_status reshard_fsdp_extension_check(const reshard_fsdp_extension *extension);

/* Cuts dim 0 by the chunk rule over the group. Collective over the group, without data. The leaf is one of:
 *
 * - TENSOR: the result is a SHARDED leaf with a copy of this rank's chunk, a tensor of the group's sharder.
 * - SHARDED with one local shard, or DTENSOR on a 1-d mesh: its local part is chunked. The result is a NESTED leaf
 *   (outer TP, inner FSDP), whose outer metadata are the leaf's, with true ranks.
 *
 * requires_grad is 0. Ranks beyond the number of chunks have no local shard. The leaf is copied in the order of
 * stream (NULL on the CPU).
 *
 * Errors, the same on all ranks:
 * - RESHARD_ERROR_INVALID: not one local shard, or one of several boxes; a mesh of other dims; other kinds of
 *   leaves; scalars; a `world` without the group's ranks.
 * - RESHARD_ERROR_MISMATCH: parts that differ in shape or dtype.
 *
 * Source: _chunk_tensor. */
RESHARD_API reshard_status reshard_fsdp_chunk_tensor(reshard_tree leaf, const reshard_fsdp_group *group, void *stream,
                                                     reshard_tree *chunk);
/* Order of the cuts where FSDP and TP both cut dim 0. The examples have 12 rows on fsdp 2 x tp 2. */
typedef enum reshard_fsdp_order {
  /* TP cuts first, exactly as it did, and FSDP cuts each of its parts: (fsdp 0, tp 1) has rows 6-8. Nothing is sent,
   * and uneven rows are right. The library's order, and the default. */
  RESHARD_FSDP_TP_FIRST,
  /* FSDP cuts first, and TP cuts each of its parts: (fsdp 0, tp 1) has rows 3-5. PyTorch's order: its placements
   * (Shard(0), Shard(0)) cut from left to right. Checkpoints and hooks of both then meet rank by rank. The chunk rule
   * cuts uneven rows, on which PyTorch fails. Rows move between ranks. */
  RESHARD_FSDP_FSDP_FIRST
} reshard_fsdp_order;
/* Cuts a leaf over the FSDP dim of a mesh, by rows of what TP has cut. Local. The result is a DTENSOR leaf of the
 * parent mesh's communicator, copied in the order of stream, with requires_grad 0.
 *
 * - sharder: of the parent mesh's communicator.
 * - leaf: a TENSOR gets Shard(0) on the FSDP dim, Replicate on the others; every rank has the whole. A DTENSOR on
 *   the TP dim of the parent mesh gets Shard(0) on dim -2, its own on dim -1, Replicate on the rest. The leaf is on
 *   mesh["tp"], or on a mesh of the TP group's own communicator (reshard_mesh_own).
 * - mesh: the parent mesh of 2 dims or more, the last two FSDP's and TP's. A mesh of one dim stands for its root.
 *
 * Errors: RESHARD_ERROR_INVALID: a mesh of fewer than 2 dims; a DTensor that is not on its last dim; other kinds of
 * leaves. Source: _chunk_dtensor. */
RESHARD_API reshard_status reshard_fsdp_chunk_dtensor(reshard_sharder sharder, reshard_tree leaf, reshard_mesh mesh,
                                                      void *stream, reshard_tree *chunk);
/* Cuts likewise, in an order. RESHARD_FSDP_TP_FIRST is reshard_fsdp_chunk_dtensor's: local, nothing is sent.
 * RESHARD_FSDP_FSDP_FIRST is collective over the parent mesh's communicator, on a sub-mesh over its group: the layout
 * is another one, (..., S0, S0) without an order. */
RESHARD_API reshard_status reshard_fsdp_chunk_dtensor_ordered(reshard_sharder sharder, reshard_tree leaf,
                                                              reshard_mesh mesh, reshard_fsdp_order order, void *stream,
                                                              reshard_tree *chunk);
/* Sets the order in which the table's chunk_dtensor cuts from now on. reshard_fsdp_extension_init has filled the table.
 */
RESHARD_API reshard_status reshard_fsdp_extension_set_order(reshard_fsdp_extension *extension,
                                                            reshard_fsdp_order order);
/* Unwraps a leaf before loading. Local. NESTED with one local shard: the inner tensor and its metadata. Other leaves:
 * the leaf and its metadata (NULL for a TENSOR). The caller owns the results. Source: _pre_load_state_dict. */
RESHARD_API reshard_status reshard_fsdp_pre_load(reshard_tree leaf, reshard_tree *inner, reshard_metadata *metadata);
/* Gathers a DTensor over FSDP: every placement but the last becomes Replicate. Collective as
 * reshard_dtensor_redistribute on the DTensor's own mesh. The communicator is that of the sharder which it was made
 * with, or the sub-mesh's group.
 *
 * - parent: the mesh of the DTensor (else an error: both meshes), or NULL. On a sub-mesh a rank whose leaf is no
 *   DTensor of the sharder finds the group by it. With NULL that rank meets the whole communicator: the group waits.
 * - whole: receives a TENSOR leaf with the local tensor, in new memory: the TP part. Outside of the mesh it has shape
 *   0.
 *
 * Source: _all_gather_dtensor. */
RESHARD_API reshard_status reshard_fsdp_all_gather(reshard_sharder sharder, reshard_tree leaf, reshard_mesh parent,
                                                   void *stream, reshard_tree *whole);

/* Gathers likewise, and converts on the way: shards of f32 to parameters of bf16. dtype is alike on all ranks;
 * RESHARD_DTYPE_NONE: the DTensor's. The narrower of both travels, and bf16 is packed from the shards straight to its
 * place. Errors: also RESHARD_ERROR_UNSUPPORTED for dtypes without a cast. Source: MixedPrecisionPolicy
 * with param_dtype. */
RESHARD_API reshard_status reshard_fsdp_all_gather_as(reshard_sharder sharder, reshard_tree leaf, reshard_mesh parent,
                                                      reshard_dtype dtype, void *stream, reshard_tree *whole);

/* Set and read the mark of a tensor that a transform of FSDP made, which post-transforms look for. The mark stays with
 * the tensor, not with its leaf. Any thread may set it at any time. NULL is allowed, and has none. Source:
 * _set_fsdp_flattened, _is_fsdp_flattened. */
RESHARD_API void reshard_fsdp_mark_flattened(reshard_tensor tensor);
RESHARD_API int reshard_fsdp_is_flattened(reshard_tensor tensor);

#ifdef __cplusplus
}
#endif
#endif
