/* Device meshes: ranks in an n-d array whose dims may have names.
 *
 * A mesh is immutable and reference counted. Its ranks are ranks of one communicator, or of a world that is only stated
 * (a dry mesh). A dry mesh answers all questions and makes layouts, of 16,384 ranks on a laptop as well. A query costs
 * a few divisions, however many ranks the mesh has. A regular rank list is kept as its first rank and strides: 0, 1, 2,
 * ...; 4-7; 3-0; every eighth; the transpose of such a mesh.
 *
 * Ranks of the communicator that are not in the mesh may hold and query it too. Only reshard_mesh_comm needs them.
 *
 * A dim is given as text: a name (tp), or a number, negative from the end (1, -1). Several dims are given in order:
 * dp,tp. An unknown name is RESHARD_ERROR_INVALID with the names that there are.
 *
 * A NULL mesh has rank -1, no ranks, 0 dims, and NULL for pointers. Calls that return a status refuse it
 * (RESHARD_ERROR_INVALID).
 *
 * Source: torch/distributed/device_mesh.py, DeviceMesh. */
#ifndef RESHARD_MESH_H
#define RESHARD_MESH_H

#include <reshard/comm.h>
#include <reshard/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_mesh_s *reshard_mesh;

/* The caller's rank in the mesh's communicator, as the argument of calls that take a rank. Dry meshes have none. */
#define RESHARD_MESH_MINE ((int64_t)-1)

/* Makes a mesh. Local; all ranks of comm make the same one.
 *
 * - comm: borrowed; outlives the mesh, its parts and their communicators. NULL: a dry mesh.
 * - world: with comm: 0 or its size. Of a dry mesh: its number of ranks. 0: the smallest that has the ranks.
 * - ndim, shape: extents, 1 to RESHARD_MAX_DIMS dims.
 * - names: one per dim ([A-Za-z_][A-Za-z0-9_]*, distinct), or NULL.
 * - nranks, ranks: the ranks, row-major. ranks NULL and nranks 0: 0, 1, 2, ...
 *
 * Errors: RESHARD_ERROR_INVALID:
 * - extents below 1, a product that overflows, nranks that is not the product;
 * - names that are none or twice there, ranks outside the world or twice there.
 *
 * Source: init_device_mesh, DeviceMesh(mesh=...). */
RESHARD_API reshard_status reshard_mesh_create(reshard_comm comm, int64_t world, int ndim, const int64_t *shape,
                                               const char *const *names, int64_t nranks, const int64_t *ranks,
                                               reshard_mesh *mesh);
/* Makes a mesh from text, as in layout strings: 2x4 dp=2,tp=4 2x2@4-7 dp=2,tp=2@0,2,4,6. One named dim may be without
 * its size, dp,tp=4: the mesh has all ranks. Errors as in reshard_mesh_create, with the column. */
RESHARD_API reshard_status reshard_mesh_parse(reshard_comm comm, int64_t world, const char *text, reshard_mesh *mesh);
/* Writes the canonical text, with ranks: dp=2,tp=4@0-7. Parsing it gives an equal mesh. text, size and needed as in
 * reshard_layout_print. */
RESHARD_API reshard_status reshard_mesh_print(reshard_mesh mesh, char *text, size_t size, size_t *needed);

/* One more reference; returns its argument. */
RESHARD_API reshard_mesh reshard_mesh_retain(reshard_mesh mesh);
/* One reference less; the last one frees. NULL is allowed. A part (below) holds a reference to its root. */
RESHARD_API void reshard_mesh_release(reshard_mesh mesh);

/* --- Shape and names --------------------------------------------------------------------------------------------- */

RESHARD_API int reshard_mesh_ndim(reshard_mesh mesh);
RESHARD_API const int64_t *reshard_mesh_shape(reshard_mesh mesh);      /* ndim extents, DeviceMesh.shape; borrowed */
RESHARD_API const char *reshard_mesh_name(reshard_mesh mesh, int dim); /* borrowed; NULL: it has none */
RESHARD_API int64_t reshard_mesh_size(reshard_mesh mesh);              /* number of its ranks; DeviceMesh.size() */
RESHARD_API int64_t reshard_mesh_world(reshard_mesh mesh);
RESHARD_API reshard_comm reshard_mesh_base_comm(reshard_mesh mesh); /* communicator of its ranks; NULL: dry; borrowed */
/* The mesh that this one is a part of, directly or by others. A mesh that was not made of another is its own root.
 * Borrowed. Source: DeviceMesh._get_root_mesh; the parent mesh of fsdp.py. */
RESHARD_API reshard_mesh reshard_mesh_root(reshard_mesh mesh);
/* Finds the number of a dim, 0..ndim-1. Source: DeviceMesh._get_mesh_dim_by_name. */
RESHARD_API reshard_status reshard_mesh_dim(reshard_mesh mesh, const char *dim, int *number);
/* 1 when both have the same names, shape, ranks in the same order, world and communicator (dry ones: none); else 0. */
RESHARD_API int reshard_mesh_equal(reshard_mesh a, reshard_mesh b);
/* Hash of a mesh. Equal meshes have equal hashes, in all processes. */
RESHARD_API uint64_t reshard_mesh_hash(reshard_mesh mesh);

/* --- Ranks and coordinates --------------------------------------------------------------------------------------- */

/* Rank of the caller in the communicator, in the mesh or not. -1: a dry mesh has none. Source: DeviceMesh.get_rank. */
RESHARD_API int64_t reshard_mesh_rank(reshard_mesh mesh);
/* 1 when the rank (or RESHARD_MESH_MINE) is in the mesh; else 0. */
RESHARD_API int reshard_mesh_contains(reshard_mesh mesh, int64_t rank);
/* Writes the ndim coordinates of a rank. Errors: RESHARD_ERROR_INVALID "rank 9 is not in the mesh dp=2,tp=4@0-7".
 * Source: DeviceMesh.get_coordinate. */
RESHARD_API reshard_status reshard_mesh_coordinate(reshard_mesh mesh, int64_t rank, int64_t *coordinate);
/* Writes the coordinate of a rank in one dim. Source: DeviceMesh.get_local_rank. */
RESHARD_API reshard_status reshard_mesh_local_rank(reshard_mesh mesh, const char *dim, int64_t rank, int64_t *local);
/* Finds the rank at a coordinate. Source: DeviceMesh.mesh[coordinate]. */
RESHARD_API reshard_status reshard_mesh_rank_at(reshard_mesh mesh, const int64_t *coordinate, int64_t *rank);
/* Lists all ranks, row-major. ranks has room for reshard_mesh_size of them. Source: DeviceMesh.mesh. */
RESHARD_API reshard_status reshard_mesh_ranks(reshard_mesh mesh, int64_t *ranks);

/* --- Parts of a mesh: local, and references to the same root ----------------------------------------------------- */

/* Makes the part with these dims, in this order, of the ranks with the same coordinates as `rank` in all other
 * dims. RESHARD_MESH_MINE: each rank has the part that it is in itself. Source: DeviceMesh.__getitem__. */
RESHARD_API reshard_status reshard_mesh_sub(reshard_mesh mesh, const char *dims, int64_t rank, reshard_mesh *sub);
/* Makes the part with the coordinates begin, begin + step, ... below end of a dim. All dims stay. step: 1 or more. A
 * dim that was flattened from dims whose ranks do not lie at equal distances can be cut to one coordinate. Another cut
 * of it is RESHARD_ERROR_UNSUPPORTED. */
RESHARD_API reshard_status reshard_mesh_slice(reshard_mesh mesh, const char *dim, int64_t begin, int64_t end,
                                              int64_t step, reshard_mesh *slice);
/* Makes one dim of several, row-major in this order, at the place of the first of them. The others stay. name: of the
 * new dim; NULL where the mesh has no names. Source: DeviceMesh._flatten. */
RESHARD_API reshard_status reshard_mesh_flatten(reshard_mesh mesh, const char *dims, const char *name,
                                                reshard_mesh *flat);

/* --- Layouts and communicators ----------------------------------------------------------------------------------- */

/* Makes the layout of a tensor over the mesh, in ranks of its communicator (world: reshard_mesh_world). placements (one
 * per dim), order and errors are those of reshard_layout_create_mesh. Source: DTensorSpec. */
RESHARD_API reshard_status reshard_mesh_layout(reshard_mesh mesh, int ndim, const int64_t *shape,
                                               const reshard_placement *placements, const int *order,
                                               reshard_layout *layout);

/* Makes the communicators of groups of the mesh at once, so that later work on sub-meshes needs no rank outside of
 * them. Collective over the mesh's communicator, always, also for ranks outside of the mesh.
 *
 * - n 0: one group for each dim alone.
 * - dims: n texts. Each names the dims of a group ("tp", "replicate,shard"; NULL: all dims of this mesh), in the order
 *   that a sub-mesh has them.
 *
 * DTensors on a sub-mesh need its group (dtensor.h), which is never made on the way, as groups that call unequally
 * often would wait for each other. The communicators are kept as those of reshard_mesh_comm, which finds them. All
 * ranks succeed, or all get the same error and nothing of the call is kept. Errors: RESHARD_ERROR_MISMATCH: ranks that
 * ask for different groups, or of different meshes. Source: init_device_mesh, which also makes the groups. */
RESHARD_API reshard_status reshard_mesh_init_groups(reshard_mesh mesh, int64_t n, const char *const *dims);
/* Gives the communicator of the ranks that differ from this one in these dims alone, ranked row-major in this order.
 * Collective over the mesh's communicator the first time, also for its ranks outside the mesh; later calls are
 * local, also for other meshes in which the same groups are found.
 *
 * - dims: NULL: all dims, so the group of this whole mesh.
 * - comm: receives the communicator, NULL (with RESHARD_SUCCESS) for a rank that is not in the mesh. Owned by the
 *   root of the mesh: alive until the root and its parts are released and sharders that made DTensors on its
 *   sub-meshes are destroyed. Where it would be the mesh's own communicator, rank by rank, it is that one.
 *
 * All ranks give the same dims and meshes made alike, or all get the same error, naming two that differ.
 * docs/mesh-handles.md has ranks that ask for different groups. Source: DeviceMesh.get_group, _get_dt_pg. */
RESHARD_API reshard_status reshard_mesh_comm(reshard_mesh mesh, const char *dims, reshard_comm *comm);
/* Makes the same mesh on the communicator of its own ranks. Collective as reshard_mesh_comm of all dims. Names and
 * shape stay, ranks are 0, 1, 2, ...; NULL on ranks outside. Its layouts have the world of the sub-mesh, for work that
 * its ranks do among themselves. The new mesh holds a reference to `mesh`. */
RESHARD_API reshard_status reshard_mesh_own(reshard_mesh mesh, reshard_mesh *own);

#ifdef __cplusplus
}
#endif
#endif
