/* Distributed tensors: a tensor cut over a device mesh by one placement per mesh dim.
 *
 * A DTensor is one rank's handle: mesh, placements, global shape, and this rank's local tensor. It is a sharded tensor
 * whose layout is that of a mesh, and moves no data of its own: every operation is a pair of layouts and a plan.
 * "Collective" calls are made by all ranks of the sharder's communicator, in one order, by those outside of the mesh,
 * too; they succeed on all, or return the same error on all and leave everything as it was. Results are new tensors.
 *
 * Sub-meshes, mesh["tp"]: parts with fewer ranks than their root. What is done on one alone is done by its group alone:
 * from_local, distribute, full, and redistribute to placements on the same ranks are collective over the group, in its
 * order; other groups make other calls, or none. The layout is in ranks of the group (0: the first of the sub-mesh); in
 * errors from_local names ranks of the communicator, and a rank that failed alone is named by its rank in the group. The
 * groups have communicators of their own, which all ranks make once, after
 * the mesh (reshard_mesh_init_groups); where one is needed and missing, it is RESHARD_ERROR_INVALID that says so. A rank
 * that is outside of the sub-mesh takes no part: there these calls are local, a DTensor is a handle without a local
 * tensor, and its layout is in ranks of the communicator. The sharder is that of the root's communicator, as ever: it
 * makes one for each group, with its own options, and keeps it, and the mesh, until it is destroyed.
 *
 * A NULL DTensor has 0 dims and NULL for everything else that is asked of it; calls that return a status refuse it
 * (RESHARD_ERROR_INVALID).
 * Source: torch/distributed/tensor: _api.py, _dtensor_spec.py, _redistribute.py, _utils.py. */
#ifndef RESHARD_DTENSOR_H
#define RESHARD_DTENSOR_H

#include <reshard/mesh.h>
#include <reshard/sharded.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_dtensor_s *reshard_dtensor;

/* How it is cut. mesh: of the sharder's communicator, or a part of one. placements: one per mesh dim. order: the mesh dims
 * in the order in which they cut (TP first: {1, 0} for dp, tp), NULL: left to right. All borrowed during calls. */
typedef struct reshard_placing {
  reshard_mesh mesh;
  const reshard_placement *placements;
  const int *order;
} reshard_placing;

/* "S0,R", "S0*2,S1", "R;order=tp,dp": what stands behind the mesh in a layout string. Writes mesh_ndim placements, and
 * mesh_ndim entries of order (left to right where none is said). Errors: RESHARD_ERROR_INVALID with the column; more or
 * fewer placements than mesh dims, with both numbers; RESHARD_ERROR_UNSUPPORTED for Psum and its like. */
RESHARD_API reshard_status reshard_placements_parse(const char *text, reshard_mesh mesh, reshard_placement *placements,
                                                    int *order);

/* --- Made from tensors ------------------------------------------------------------------------------------------- */

/* DTensor.from_local. local: this rank's part, of any strides, retained. shape given: local; the part has the shape
 * that the layout says (error: both shapes). shape NULL (then ndim is not read): collective: the global extents are the
 * sums of the parts' along the cuts, and every rank's part is compared with what the cuts make of them
 * (RESHARD_ERROR_INVALID on all: the lowest rank that differs, and both shapes). check non-zero: collective, too. In
 * collective calls mesh, placements, dtype and global shape are compared between the ranks (RESHARD_ERROR_MISMATCH on
 * all: two ranks and both values). Replicas' contents are not compared. Where the part has no elements and outside of
 * the mesh, local may be NULL in collective calls; else a tensor without elements tells the dtype, outside of the mesh
 * of any shape. Outside of a sub-mesh the shape is given, and local tells the dtype. */
RESHARD_API reshard_status reshard_dtensor_from_local(reshard_sharder sharder, const reshard_placing *placing,
                                                      reshard_tensor local, int ndim, const int64_t *shape, int check,
                                                      reshard_dtensor *tensor);
/* distribute_tensor. src -1: local; every rank of the mesh has the whole and keeps a copy of its part (NULL outside of
 * the mesh). src >= 0: collective; that rank of the communicator has the whole, in the mesh or not (NULL on the
 * others); on a sub-mesh that rank of the group, of each group its own. properties: those of the result; ndim, shape and dtype are those of the whole, too (error: both). In the
 * order of stream (NULL on the CPU), as all that has one here. */
RESHARD_API reshard_status reshard_dtensor_distribute(reshard_sharder sharder, const reshard_placing *placing,
                                                      reshard_tensor whole, int64_t src, int ndim, const int64_t *shape,
                                                      const reshard_properties *properties, void *stream,
                                                      reshard_dtensor *tensor);
/* torch.distributed.tensor.empty: local, not initialised; usable in the order of stream. */
RESHARD_API reshard_status reshard_dtensor_empty(reshard_sharder sharder, const reshard_placing *placing, int ndim,
                                                 const int64_t *shape, const reshard_properties *properties,
                                                 void *stream, reshard_dtensor *tensor);
/* A sharded tensor with a mesh layout as a DTensor over mesh, which has that layout's shape and ranks; and back: the
 * same shards, borrowed from the DTensor; the metadata of all ranks are made the first time. NULL: no memory. Local. On
 * a sub-mesh the sharded tensor is one of the group (in its ranks; gather, reshard: by the group alone), and its
 * metadata name global ranks, as everywhere; so a checkpoint of all ranks knows where its shards are. */
RESHARD_API reshard_status reshard_dtensor_from_sharded(reshard_sharded_tensor sharded, reshard_mesh mesh,
                                                        reshard_dtensor *tensor);
RESHARD_API reshard_sharded_tensor reshard_dtensor_sharded(reshard_dtensor tensor);

/* One more reference; returns its argument. */
RESHARD_API reshard_dtensor reshard_dtensor_retain(reshard_dtensor tensor);
/* One reference less; the last one frees. NULL is allowed. Local. */
RESHARD_API void reshard_dtensor_release(reshard_dtensor tensor);

/* --- Moved ------------------------------------------------------------------------------------------------------- */

/* DTensor.redistribute: collective: n tensors to any placements on the same mesh or another of the same communicator,
 * as one plan, kept by the sharder for the next time. Where nothing moves between ranks nothing is sent. By a group
 * alone where all n are, and stay, on one sub-mesh (the same ranks in the same order, however they are named and
 * shaped). From or to a sub-mesh and another mesh it is collective over the communicator, and all ranks give equal
 * meshes: reshard_mesh_sub of a rank that they agree on. Where each gives the one that it is in, it is
 * RESHARD_ERROR_MISMATCH. */
RESHARD_API reshard_status reshard_dtensor_redistribute(int64_t n, const reshard_dtensor *tensors,
                                                        const reshard_placing *placings, void *stream,
                                                        reshard_dtensor *results);
/* DTensor.full_tensor: collective: the whole, on every rank of the mesh; NULL outside. On a sub-mesh: by its group. */
RESHARD_API reshard_status reshard_dtensor_full(reshard_dtensor tensor, void *stream, reshard_tensor *whole);

/* --- What it is -------------------------------------------------------------------------------------------------- */

/* All borrowed, and live as long as the DTensor. Placements: one per mesh dim, with non-negative tensor dims; order:
 * the mesh dims in the order in which they cut; layout: in ranks of the communicator, or of a sub-mesh's group; shape:
 * global; stride: global, row-major, in elements. */
RESHARD_API reshard_mesh reshard_dtensor_mesh(reshard_dtensor tensor);
RESHARD_API const reshard_placement *reshard_dtensor_placements(reshard_dtensor tensor);
RESHARD_API const int *reshard_dtensor_order(reshard_dtensor tensor);
RESHARD_API reshard_layout reshard_dtensor_layout(reshard_dtensor tensor);
RESHARD_API int reshard_dtensor_ndim(reshard_dtensor tensor);
RESHARD_API const int64_t *reshard_dtensor_shape(reshard_dtensor tensor);
RESHARD_API const int64_t *reshard_dtensor_stride(reshard_dtensor tensor);
/* to_local: borrowed; NULL outside of the mesh. */
RESHARD_API reshard_tensor reshard_dtensor_local(reshard_dtensor tensor);

/* compute_local_shape_and_global_offset, without a tensor: of the rank at a mesh coordinate (mesh_ndim numbers).
 * offset: of its first element (may be NULL); the extent where it has none, so that it never lies beyond. Local, no
 * list of ranks is walked. */
RESHARD_API reshard_status reshard_dtensor_local_shape(const reshard_placing *placing, int ndim, const int64_t *shape,
                                                       const int64_t *coordinate, int64_t *local_shape,
                                                       int64_t *offset);

/* The mesh, then which rank has which box, as a person would draw it: a grid for one or two tensor dims, a list for
 * more; at most 64 ranks. As reshard_layout_print. */
RESHARD_API reshard_status reshard_dtensor_print(reshard_dtensor tensor, char *text, size_t size, size_t *needed);

/* The box of this rank (_get_local_box, and _get_box, of which the offset is the unit that _get_box_for multiplies),
 * and of the i-th rank of the mesh, row-major (_get_box_for). Exact for uneven sizes, on any mesh. Errors: a part that
 * is no box (StridedShard), with its number of boxes; this rank is outside of the mesh; i out of range. */
RESHARD_API reshard_status reshard_dtensor_local_box(reshard_dtensor tensor, reshard_box *box);
RESHARD_API reshard_status reshard_dtensor_box_for(reshard_dtensor tensor, int64_t i, reshard_box *box);

/* _create_shard_md_from_dt: the metadata of this rank's shard; _create_sharded_tensor_md_from_dt: of all shards, with
 * true ranks (each box once: the lowest rank that has it), one reference for the caller. Local. */
RESHARD_API reshard_status reshard_dtensor_shard_metadata(reshard_dtensor tensor, reshard_shard *shard);
RESHARD_API reshard_status reshard_dtensor_metadata(reshard_dtensor tensor, reshard_metadata *metadata);

/* _rewrite_spec_if_needed: metadata in which this rank's placements name the device that its tensor is on. One
 * reference: of the same metadata where they do already, of a copy else. global_rank: this rank's. Local. */
RESHARD_API reshard_status reshard_metadata_rewrite(reshard_metadata metadata, reshard_tensor tensor,
                                                    int64_t global_rank, reshard_metadata *rewritten);

#ifdef __cplusplus
}
#endif
#endif
