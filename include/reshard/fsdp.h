/* FSDP with tensor parallelism: parameters cut by TP (the inner mesh dim), and each part again by FSDP (the outer one).
 * What a training framework calls around flattening, saving, loading and gathering its parameters.
 *
 * Calls that return a status refuse NULL for what they need (RESHARD_ERROR_INVALID).
 *
 * Source: torch/distributed/tensor/parallel/fsdp.py (DTensorExtensions), torch/distributed/fsdp/_fsdp_extensions.py. */
#ifndef RESHARD_FSDP_H
#define RESHARD_FSDP_H

#include <reshard/dtensor.h>
#include <reshard/state_dict.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A parameter is a leaf of a state dict: a TENSOR, or one that is SHARDED, NESTED or a DTENSOR (state_dict.h). */

/* _flatten_tensor's record: what makes a DTensor of a local tensor again. */
typedef struct reshard_flat_record_s *reshard_flat_record;
RESHARD_API void reshard_flat_record_free(reshard_flat_record record); /* NULL is allowed */

/* _flatten_tensor: a TENSOR leaf with a DTensor's local tensor (the same, now marked; below), and its record; on a rank
 * outside of the mesh the tensor has shape 0. It is marked as flattened, and gets requires_grad, whatever the DTensor
 * has, as there. Any other leaf is itself, and *record is NULL. The results are the caller's. Local. */
RESHARD_API reshard_status reshard_fsdp_flatten(reshard_tree leaf, reshard_tree *flat, reshard_flat_record *record);
/* _unflatten_tensor: the DTensor again, over tensor, which has the local shape (error: both shapes), is retained and
 * marked; another dtype is allowed, as after a cast. record NULL: a TENSOR leaf with the tensor. sharder: of the
 * communicator of the DTensor's mesh; where it is of another one - the table's, for a DTensor on the TP group's own mesh
 * - the DTensor gets the sharder that it had, which outlives the record. Local. */
RESHARD_API reshard_status reshard_fsdp_unflatten(reshard_sharder sharder, reshard_tensor tensor,
                                                  reshard_flat_record record, reshard_tree *leaf);

/* Which ranks FSDP cuts over, and where they are. */
typedef struct reshard_fsdp_group {
  size_t size;
  reshard_sharder sharder; /* of the FSDP group's communicator: a row or column of the mesh, with its global ranks
                              (reshard_comm_global_ranks); borrowed, outlives the chunks */
  reshard_sharder world;   /* of a communicator that has the ranks of FSDP and of TP: nested results belong to it; NULL:
                              the sharder of the leaf is one; borrowed, outlives them */
  int64_t devices_per_node; /* on GPUs: global rank G is on cuda:(G mod this), as PyTorch has it; 0: no number is told.
                               On the CPU: not used, a chunk there is on "cpu" */
} reshard_fsdp_group;
#define RESHARD_FSDP_GROUP_INIT sizeof(reshard_fsdp_group)
#define RESHARD_FSDP_GROUP_DEFAULTS {sizeof(reshard_fsdp_group), NULL, NULL, 0}

/* The table of functions that a framework calls; FSDPExtensions. user comes first in each. Every function is required.
 * The table is the host program's (_set_fsdp_extensions keeps one for the whole process): it is filled by
 * reshard_fsdp_extension_init or by hand, checked once, and passed to who flattens, saves, loads and gathers. */
typedef struct reshard_fsdp_extension {
  size_t size;
  void *user;
  /* Local. */
  reshard_status (*pre_flatten_transform)(void *user, reshard_tree leaf, reshard_tree *flat,
                                          reshard_flat_record *record);
  /* Local; what touches the tensor is in the order of `stream`, the compute stream. */
  reshard_status (*post_unflatten_transform)(void *user, reshard_tensor tensor, reshard_flat_record record,
                                             void *stream, reshard_tree *leaf);
  /* Likewise; chunk_tensor is collective over the group, chunk_dtensor local (but reshard_fsdp_extension_set_order),
   * all_gather_dtensor collective. */
  reshard_status (*chunk_tensor)(void *user, reshard_tree leaf, const reshard_fsdp_group *group, void *stream,
                                 reshard_tree *chunk);
  reshard_status (*chunk_dtensor)(void *user, reshard_tree leaf, reshard_mesh mesh, void *stream, reshard_tree *chunk);
  reshard_status (*pre_load_state_dict_transform)(void *user, reshard_tree leaf, reshard_tree *inner,
                                                  reshard_metadata *metadata); /* local */
  reshard_status (*all_gather_dtensor)(void *user, reshard_tree leaf, reshard_mesh parent, void *stream,
                                       reshard_tree *whole);
} reshard_fsdp_extension;
#define RESHARD_FSDP_EXTENSION_INIT sizeof(reshard_fsdp_extension)
#define RESHARD_FSDP_EXTENSION_DEFAULTS {sizeof(reshard_fsdp_extension), NULL, NULL, NULL, NULL, NULL, NULL, NULL}

/* DTensorExtensions: ours; each function is the one of that name below. sharder: of the communicator of the meshes'
 * root; borrowed by every call through the table, and the `world` of a group that names none. Fills all of *extension
 * but `size`, which the caller has set. */
RESHARD_API reshard_status reshard_fsdp_extension_init(reshard_sharder sharder, reshard_fsdp_extension *extension);
/* RESHARD_SUCCESS when every function is there; RESHARD_ERROR_INVALID naming those that are missing. */
RESHARD_API reshard_status reshard_fsdp_extension_check(const reshard_fsdp_extension *extension);

/* _chunk_tensor: dim 0 by the chunk rule over the group. TENSOR: a SHARDED leaf with a copy of this rank's chunk,
 * a tensor of the group's sharder, which reshard_state_save over all ranks takes together with others.
 * SHARDED with one local shard, or DTENSOR on a 1-d mesh: its local part is chunked: a NESTED leaf (outer TP, inner
 * FSDP), whose outer metadata are the leaf's, with true ranks. requires_grad is 0 inside and outside. The group may
 * have more ranks than there are chunks; those after have no local shard. Nothing of the result aliases the leaf; it
 * is copied in the order of stream (NULL on the CPU).
 * Collective over the group: no data moves, but all ranks succeed, or get the same error.
 * Errors: RESHARD_ERROR_INVALID: a sharded tensor that has not one local shard, or one of several boxes (their number);
 * a mesh of other dims; other kinds of leaves; scalars; a `world` without the group's ranks. RESHARD_ERROR_MISMATCH:
 * ranks whose parts differ in shape or dtype (both ranks and both of them). */
RESHARD_API reshard_status reshard_fsdp_chunk_tensor(reshard_tree leaf, const reshard_fsdp_group *group, void *stream,
                                                     reshard_tree *chunk);
/* Which cuts first where FSDP and TP both cut dim 0: 12 rows on fsdp 2 x tp 2. */
typedef enum reshard_fsdp_order {
  /* TP, exactly as it did; FSDP cuts what TP has left: (fsdp 0, tp 1) has rows 6-8. Nothing is sent, and uneven rows are
   * right. Ours, and the default. */
  RESHARD_FSDP_TP_FIRST,
  /* FSDP; TP cuts what FSDP has left: (fsdp 0, tp 1) has rows 3-5. PyTorch's: its placements (Shard(0), Shard(0)) cut
   * from left to right, so that checkpoints and hooks of both meet rank by rank. (Uneven rows, on which PyTorch fails,
   * are cut by the chunk rule.) Rows move between ranks. */
  RESHARD_FSDP_FSDP_FIRST
} reshard_fsdp_order;
/* _chunk_dtensor. mesh: the parent mesh, whose last dims are FSDP's and TP's: (..., fsdp, tp), 2 dims or more; a mesh
 * of one dim, as FSDP has it, stands for its root. sharder: of the parent mesh's communicator; the result is of it.
 * TENSOR: Shard(0) on the FSDP dim, Replicate on the others: every rank has the whole and keeps its part. DTENSOR on the
 * TP dim of the parent mesh: Shard(0) on dim -2, its own placement on dim -1, Replicate on the rest (HSDP). It is on
 * mesh["tp"] with the same sharder, or on a mesh of the TP group's own communicator (reshard_mesh_own) with that one's:
 * its global ranks are compared with those of the dim.
 * The result is a DTENSOR leaf that aliases nothing, copied in the order of stream, requires_grad 0.
 * RESHARD_FSDP_TP_FIRST, as reshard_fsdp_chunk_dtensor has it: local, nothing is sent. RESHARD_FSDP_FSDP_FIRST:
 * collective over the parent mesh's communicator (where that mesh is a sub-mesh: over its group). Its layout is then
 * another one: (..., S0, S0) without an order.
 * Errors: RESHARD_ERROR_INVALID: a parent mesh of fewer than 2 dims; a DTensor that is not on its last dim (the meshes);
 * other kinds of leaves. */
RESHARD_API reshard_status reshard_fsdp_chunk_dtensor(reshard_sharder sharder, reshard_tree leaf, reshard_mesh mesh,
                                                      void *stream, reshard_tree *chunk);
RESHARD_API reshard_status reshard_fsdp_chunk_dtensor_ordered(reshard_sharder sharder, reshard_tree leaf,
                                                              reshard_mesh mesh, reshard_fsdp_order order, void *stream,
                                                              reshard_tree *chunk);
/* The table's chunk_dtensor, as reshard_fsdp_extension_init has filled it, cuts in this order from now on. */
RESHARD_API reshard_status reshard_fsdp_extension_set_order(reshard_fsdp_extension *extension,
                                                            reshard_fsdp_order order);
/* _pre_load_state_dict: NESTED with one local shard: the inner tensor and its metadata; else the leaf and its metadata
 * (NULL for a TENSOR). The results are the caller's. Local. */
RESHARD_API reshard_status reshard_fsdp_pre_load(reshard_tree leaf, reshard_tree *inner, reshard_metadata *metadata);
/* _all_gather_dtensor: collective as reshard_dtensor_redistribute on the DTensor's own mesh: over the communicator of the
 * sharder, which it was made with, or over the sub-mesh's group. Every placement but the last becomes Replicate. The result is a TENSOR leaf with the local tensor, in new memory: the TP part; on a rank
 * outside of the mesh one of shape 0. parent: the mesh of the DTensor (else an error: both meshes), or NULL. */
RESHARD_API reshard_status reshard_fsdp_all_gather(reshard_sharder sharder, reshard_tree leaf, reshard_mesh parent,
                                                   void *stream, reshard_tree *whole);

/* _set_fsdp_flattened, _is_fsdp_flattened: a mark on a tensor that a transform of FSDP made, which post-transforms look
 * for. It stays with the tensor, not with its leaf, and may be set at any time, by any thread. NULL is allowed, and has
 * none. */
RESHARD_API void reshard_fsdp_mark_flattened(reshard_tensor tensor);
RESHARD_API int reshard_fsdp_is_flattened(reshard_tensor tensor);

#ifdef __cplusplus
}
#endif
#endif
