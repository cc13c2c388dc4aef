/* Distributed tensors: a tensor cut over a device mesh by one placement per mesh dim.
 *
 * A DTensor is one rank's handle: mesh, placements, global shape, and this rank's local tensor; a sharded tensor with
 * the layout of a mesh. Every operation is a pair of layouts and a plan.
 *
 * All ranks of the sharder's communicator make its collective calls, in one order, also those outside of the mesh. A
 * call succeeds on all, or returns the same error on all and leaves everything as it was. Results are new tensors.
 *
 * Sub-meshes, mesh["tp"], are parts with fewer ranks than their root. The group of a sub-mesh alone works on it:
 * - from_local, distribute, full, and redistribute to placements on the same ranks are collective over the group, in
 *   its order. Other groups make other calls, or none.
 * - The layout is in ranks of the group (0: the first of the sub-mesh). In errors from_local names ranks of the
 *   communicator. A rank that failed alone is named by its rank in the group.
 * - Groups have communicators of their own, which all ranks make once, after the mesh (reshard_mesh_init_groups). A
 *   call that needs a missing one returns RESHARD_ERROR_INVALID and names it.
 * - A rank that is outside of the sub-mesh takes no part: these calls are local there, a DTensor is a handle without a
 *   local tensor, and its layout is in ranks of the communicator.
 * - The sharder is that of the root's communicator, makes one for each group with its own options, and keeps these and
 *   the mesh until it is destroyed.
 *
 * Streams that are being captured are refused. If one process of several captures, the others have its error or wait
 * for it, as in sharded.h.
 *
 * A NULL DTensor has 0 dims and NULL for everything else. Calls that return a status refuse it (RESHARD_ERROR_INVALID).
 *
 * Source: torch/distributed/tensor: _api.py, _dtensor_spec.py, _redistribute.py, _utils.py. */
#ifndef RESHARD_DTENSOR_H
#define RESHARD_DTENSOR_H

#include <reshard/mesh.h>
#include <reshard/sharded.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_dtensor_s *reshard_dtensor;

/* The cuts of a DTensor. All borrowed during calls.
 *
 * - mesh: of the sharder's communicator, or a part of one.
 * - placements: one per mesh dim. Parts of a Shard may be in no fewer pieces than ranks: RESHARD_ERROR_UNSUPPORTED.
 * - order: the mesh dims in the order in which they cut (TP first: {1, 0} for dp, tp). NULL: left to right. */
typedef struct reshard_placing {
  reshard_mesh mesh;
  const reshard_placement *placements;
  const int *order;
} reshard_placing;

/* Reads the part of a layout string after its mesh: "S0,R", "S0*2,S1", "R;order=tp,dp". Writes mesh_ndim placements,
 * and mesh_ndim entries of order (left to right where none is given).
 *
 * Errors:
 * - RESHARD_ERROR_INVALID with the column; for more or fewer placements than mesh dims, with both numbers.
 * - RESHARD_ERROR_UNSUPPORTED for Psum and its like, and for parts (S0{1:1}, S0/4), which would need memory. */
RESHARD_API reshard_status reshard_placements_parse(const char *text, reshard_mesh mesh, reshard_placement *placements,
                                                    int *order);

/* --- Made from tensors ------------------------------------------------------------------------------------------- */

/* Makes a DTensor of local parts.
 *
 * - local: this rank's part, of any strides, retained. May be NULL in collective calls where the part has no
 *   elements, and outside of the mesh. In local calls a tensor without elements gives the dtype; outside of the mesh
 *   any shape will do.
 * - shape: the global shape: the call is local, and the part has the shape that the layout gives (error: both
 *   shapes). NULL: the call is collective, and the extents are the sums of the parts' along the cuts. Outside of a
 *   sub-mesh shape and local are given.
 * - check: non-zero: collective, too.
 *
 * Collective calls compare every part with the one that the cuts make of the extents: RESHARD_ERROR_INVALID on all
 * with the lowest rank that differs. Mesh, placements, dtype and global shape are compared, too:
 * RESHARD_ERROR_MISMATCH on all with both values. Contents of replicas are not.
 *
 * Source: DTensor.from_local. */
RESHARD_API reshard_status reshard_dtensor_from_local(reshard_sharder sharder, const reshard_placing *placing,
                                                      reshard_tensor local, int ndim, const int64_t *shape, int check,
                                                      reshard_dtensor *tensor);
/* Makes a DTensor of a whole tensor, in the order of stream (NULL on the CPU), as all calls here that have one.
 *
 * - src -1: local. Every rank of the mesh has the whole and keeps a copy of its part. whole is NULL outside of the
 *   mesh.
 * - src >= 0: collective. Rank src of the communicator has the whole, in the mesh or not; whole is NULL on the others.
 *   On a sub-mesh it is that rank of the group, of each group its own.
 * - properties: those of the result. ndim, shape and dtype are those of the whole, too (error: both).
 *
 * Source: distribute_tensor. */
RESHARD_API reshard_status reshard_dtensor_distribute(reshard_sharder sharder, const reshard_placing *placing,
                                                      reshard_tensor whole, int64_t src, int ndim, const int64_t *shape,
                                                      const reshard_properties *properties, void *stream,
                                                      reshard_dtensor *tensor);
/* Allocates a DTensor. Local, not initialised; usable in the order of stream. Source: torch.distributed.tensor.empty.
 */
RESHARD_API reshard_status reshard_dtensor_empty(reshard_sharder sharder, const reshard_placing *placing, int ndim,
                                                 const int64_t *shape, const reshard_properties *properties,
                                                 void *stream, reshard_dtensor *tensor);
/* Convert between sharded tensors and DTensors: the same shards, with no new memory. Local. On a sub-mesh the sharded
 * tensor is one of the group, in its ranks: the group alone gathers or reshards it. Its metadata name global ranks, as
 * everywhere, so a checkpoint of all ranks knows where its shards are.
 *
 * - from_sharded: the tensor has a mesh layout, with the shape and ranks of mesh.
 * - sharded: borrowed from the DTensor. The metadata of all ranks are made the first time. NULL: no memory. */
RESHARD_API reshard_status reshard_dtensor_from_sharded(reshard_sharded_tensor sharded, reshard_mesh mesh,
                                                        reshard_dtensor *tensor);
RESHARD_API reshard_sharded_tensor reshard_dtensor_sharded(reshard_dtensor tensor);

/* One more reference; returns its argument. */
RESHARD_API reshard_dtensor reshard_dtensor_retain(reshard_dtensor tensor);
/* One reference less; the last one frees. NULL is allowed. Local. */
RESHARD_API void reshard_dtensor_release(reshard_dtensor tensor);

/* --- Moved ------------------------------------------------------------------------------------------------------- */

/* Moves n tensors to any placements, as one plan, which the sharder keeps for the next time. Collective. Placements are
 * on the same mesh or another of the same communicator. Nothing is sent if nothing moves between ranks.
 *
 * By a group alone where all n are, and stay, on one sub-mesh: the same ranks in the same order, under any names and
 * shape. Between a sub-mesh and another mesh the call is collective over the communicator. All ranks then give equal
 * meshes: reshard_mesh_sub of a rank that they agree on. Ranks that each give the one that they are in get
 * RESHARD_ERROR_MISMATCH. Source: DTensor.redistribute. */
RESHARD_API reshard_status reshard_dtensor_redistribute(int64_t n, const reshard_dtensor *tensors,
                                                        const reshard_placing *placings, void *stream,
                                                        reshard_dtensor *results);
/* Redistributes likewise to tensors of other dtypes, in the same move. Collective as above.
 *
 * - dtypes: one for each result, the same on all ranks. RESHARD_DTYPE_NONE, or NULL for the list: the tensor's own.
 *
 * The narrower dtype travels, and numbers are rounded once (reshard_entry). FSDP's all-gather of f32 shards in bf16 is
 * one to Replicate: shards are packed straight to their place in the result. Errors: also RESHARD_ERROR_UNSUPPORTED for
 * dtypes without a cast. Source: DTensor.redistribute with forward_dtype=.... */
RESHARD_API reshard_status reshard_dtensor_redistribute_as(int64_t n, const reshard_dtensor *tensors,
                                                           const reshard_placing *placings, const reshard_dtype *dtypes,
                                                           void *stream, reshard_dtensor *results);
/* Moves n tensors into DTensors that are there, as one plan: reshard_dtensor_redistribute, with the placings and the
 * memory of results. Collective, in the same cases over a group alone. It allocates no arrays.
 *
 * - results: one per tensor, of its dtype and shape and of the same sharder, with writable local tensors of any
 *   strides. No two of them share memory, nor does one with a tensor. A rank outside of a result's mesh gives a
 *   handle without a local tensor.
 *
 * All ranks succeed or have the same error. After an error before the move nothing is written. Source:
 * torch.distributed.tensor, redistribute and copy_. */
RESHARD_API reshard_status reshard_dtensor_redistribute_into(int64_t n, const reshard_dtensor *tensors,
                                                             const reshard_dtensor *results, void *stream);
/* Gathers the whole tensor on every rank of the mesh; NULL outside. Collective; on a sub-mesh over its group. Source:
 * DTensor.full_tensor. */
RESHARD_API reshard_status reshard_dtensor_full(reshard_dtensor tensor, void *stream, reshard_tensor *whole);

/* --- Mesh, layout and shape -------------------------------------------------------------------------------------- */

/* All borrowed: they live as long as the DTensor.
 *
 * - placements: one per mesh dim, with non-negative tensor dims.
 * - order: the mesh dims in the order in which they cut.
 * - layout: in ranks of the communicator, or of a sub-mesh's group.
 * - shape: global. stride: global, row-major, in elements. */
RESHARD_API reshard_mesh reshard_dtensor_mesh(reshard_dtensor tensor);
RESHARD_API const reshard_placement *reshard_dtensor_placements(reshard_dtensor tensor);
RESHARD_API const int *reshard_dtensor_order(reshard_dtensor tensor);
RESHARD_API reshard_layout reshard_dtensor_layout(reshard_dtensor tensor);
RESHARD_API int reshard_dtensor_ndim(reshard_dtensor tensor);
RESHARD_API const int64_t *reshard_dtensor_shape(reshard_dtensor tensor);
RESHARD_API const int64_t *reshard_dtensor_stride(reshard_dtensor tensor);
/* Local tensor, borrowed. NULL outside of the mesh. Source: DTensor.to_local. */
RESHARD_API reshard_tensor reshard_dtensor_local(reshard_dtensor tensor);

/* Computes the part of the rank at a mesh coordinate (mesh_ndim numbers), without a tensor. Local; no list of ranks is
 * walked.
 *
 * - offset: of the part's first element; the extent where it has none, so that it never lies beyond. May be NULL.
 *
 * Source: compute_local_shape_and_global_offset. */
RESHARD_API reshard_status reshard_dtensor_local_shape(const reshard_placing *placing, int ndim, const int64_t *shape,
                                                       const int64_t *coordinate, int64_t *local_shape,
                                                       int64_t *offset);

/* Draws the mesh, and the boxes of its ranks: a grid for one or two tensor dims, a list for more. At most 64 ranks.
 * Ranks have their global numbers (reshard_comm_global_ranks), which the first line lists for a communicator of a
 * split. text, size and needed as in reshard_layout_print. */
RESHARD_API reshard_status reshard_dtensor_print(reshard_dtensor tensor, char *text, size_t size, size_t *needed);

/* Box of this rank, and of the i-th rank of the mesh, row-major. Exact for uneven sizes, on any mesh. Errors: a part
 * that is no box (StridedShard), with its number of boxes; this rank is outside of the mesh; i out of range. Source:
 * _get_local_box, and _get_box, whose offset is the unit that _get_box_for multiplies; _get_box_for. */
RESHARD_API reshard_status reshard_dtensor_local_box(reshard_dtensor tensor, reshard_box *box);
RESHARD_API reshard_status reshard_dtensor_box_for(reshard_dtensor tensor, int64_t i, reshard_box *box);

/* Metadata of this rank's shard (_create_shard_md_from_dt), and of all shards (_create_sharded_tensor_md_from_dt), with
 * true ranks. Local. The second has each box once, by the lowest rank that has it, and gives one reference for the
 * caller. */
RESHARD_API reshard_status reshard_dtensor_shard_metadata(reshard_dtensor tensor, reshard_shard *shard);
RESHARD_API reshard_status reshard_dtensor_metadata(reshard_dtensor tensor, reshard_metadata *metadata);

/* Makes metadata in which this rank's placements name the device that its tensor is on. Gives one reference: of the
 * same metadata where they do already, of a copy else. global_rank: this rank's. Local. Source:
 * _rewrite_spec_if_needed. */
RESHARD_API reshard_status reshard_metadata_rewrite(reshard_metadata metadata, reshard_tensor tensor,
                                                    int64_t global_rank, reshard_metadata *rewritten);

#ifdef __cplusplus
}
#endif
#endif
