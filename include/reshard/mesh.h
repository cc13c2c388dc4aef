/* Device meshes: ranks in an n-d array whose dims may have names.
 *
 * A mesh is immutable and reference counted, and asking it costs a few divisions, however many ranks it has: a rank
 * list that is regular - the default 0, 1, 2, ...; 4-7; 3-0; every eighth; the transpose of such a mesh - is kept as
 * its first rank and strides. Its ranks are ranks of one communicator, or of a world that is only stated (a dry mesh):
 * then it answers all questions and makes layouts, of 16,384 ranks on a laptop as well.
 *
 * Ranks of the communicator that are not in the mesh may hold it and ask it, as all ranks may; reshard_mesh_comm alone
 * needs them.
 *
 * Where a call takes a dim it takes text: a name (tp), or a number, negative from the end (1, -1); where it takes
 * several, in order: dp,tp. An unknown name is RESHARD_ERROR_INVALID with the names that there are.
 *
 * A NULL mesh has rank -1, no ranks, 0 dims and NULL for what is a pointer; calls that return a status refuse it
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

/* Where a call takes a rank: this one, the rank of the mesh's communicator. Dry meshes have none. */
#define RESHARD_MESH_MINE ((int64_t)-1)

/* init_device_mesh, DeviceMesh(mesh=...): row-major over ranks[0..nranks); ranks NULL and nranks 0: 0, 1, 2, ... Local;
 * all ranks of comm make the same one. ndim: 1 to RESHARD_MAX_DIMS. names: one per dim ([A-Za-z_][A-Za-z0-9_]*,
 * distinct), or NULL. comm: borrowed, outlives the mesh, its parts and their communicators; world is then 0, or its
 * size. comm NULL: a dry mesh of a world of `world` ranks; 0: the smallest that has the ranks.
 * Errors: RESHARD_ERROR_INVALID: extents below 1, product that overflows, nranks that is not the product, names that
 * are none or twice there, ranks outside the world or twice there. */
RESHARD_API reshard_status reshard_mesh_create(reshard_comm comm, int64_t world, int ndim, const int64_t *shape,
                                               const char *const *names, int64_t nranks, const int64_t *ranks,
                                               reshard_mesh *mesh);
/* The same from text, as in layout strings: 2x4 dp=2,tp=4 2x2@4-7 dp=2,tp=2@0,2,4,6; one named dim may be without its
 * size, dp,tp=4: the mesh has all ranks. Errors tell the column. */
RESHARD_API reshard_status reshard_mesh_parse(reshard_comm comm, int64_t world, const char *text, reshard_mesh *mesh);
/* The canonical text, with ranks: dp=2,tp=4@0-7; as reshard_layout_print. Parsing it gives an equal mesh. */
RESHARD_API reshard_status reshard_mesh_print(reshard_mesh mesh, char *text, size_t size, size_t *needed);

/* One more reference; returns its argument. */
RESHARD_API reshard_mesh reshard_mesh_retain(reshard_mesh mesh);
/* One reference less; the last one frees. NULL is allowed. A part (below) holds a reference to its root. */
RESHARD_API void reshard_mesh_release(reshard_mesh mesh);

/* --- What it is -------------------------------------------------------------------------------------------------- */

RESHARD_API int reshard_mesh_ndim(reshard_mesh mesh);
RESHARD_API const int64_t *reshard_mesh_shape(reshard_mesh mesh);      /* ndim extents, DeviceMesh.shape; borrowed */
RESHARD_API const char *reshard_mesh_name(reshard_mesh mesh, int dim); /* borrowed; NULL: it has none */
RESHARD_API int64_t reshard_mesh_size(reshard_mesh mesh);              /* ranks in it: DeviceMesh.size() */
RESHARD_API int64_t reshard_mesh_world(reshard_mesh mesh);
RESHARD_API reshard_comm reshard_mesh_base_comm(reshard_mesh mesh); /* that its ranks are of; NULL: dry; borrowed */
/* The mesh that this one is a part of, directly or by others; itself, when it was not made of another. Borrowed.
 * Source: DeviceMesh._get_root_mesh; the parent mesh of fsdp.py. */
RESHARD_API reshard_mesh reshard_mesh_root(reshard_mesh mesh);
/* Number of a dim, 0..ndim-1. Source: DeviceMesh._get_mesh_dim_by_name. */
RESHARD_API reshard_status reshard_mesh_dim(reshard_mesh mesh, const char *dim, int *number);
/* 1 when both have the same names, shape, ranks in the same order, world and communicator (dry ones: none); else 0. */
RESHARD_API int reshard_mesh_equal(reshard_mesh a, reshard_mesh b);
/* Equal meshes have equal hashes, in all processes. */
RESHARD_API uint64_t reshard_mesh_hash(reshard_mesh mesh);

/* --- Ranks and coordinates --------------------------------------------------------------------------------------- */

/* This rank in the communicator, in the mesh or not: DeviceMesh.get_rank. -1: a dry mesh has none. */
RESHARD_API int64_t reshard_mesh_rank(reshard_mesh mesh);
/* 1 when the rank (or RESHARD_MESH_MINE) is in the mesh; else 0. */
RESHARD_API int reshard_mesh_contains(reshard_mesh mesh, int64_t rank);
/* DeviceMesh.get_coordinate: writes ndim coordinates of a rank. RESHARD_ERROR_INVALID "rank 9 is not in the mesh
 * dp=2,tp=4@0-7" where it is not. */
RESHARD_API reshard_status reshard_mesh_coordinate(reshard_mesh mesh, int64_t rank, int64_t *coordinate);
/* DeviceMesh.get_local_rank: its coordinate in one dim. */
RESHARD_API reshard_status reshard_mesh_local_rank(reshard_mesh mesh, const char *dim, int64_t rank, int64_t *local);
/* DeviceMesh.mesh[coordinate]: the rank there. */
RESHARD_API reshard_status reshard_mesh_rank_at(reshard_mesh mesh, const int64_t *coordinate, int64_t *rank);
/* DeviceMesh.mesh: all ranks, row-major; there is room for reshard_mesh_size of them. */
RESHARD_API reshard_status reshard_mesh_ranks(reshard_mesh mesh, int64_t *ranks);

/* --- Parts of a mesh: local, and references to the same root ----------------------------------------------------- */

/* DeviceMesh.__getitem__: these dims, in this order, of the ranks that have the same coordinates as `rank` in all the
 * others. RESHARD_MESH_MINE: each rank has the part that it is in itself. */
RESHARD_API reshard_status reshard_mesh_sub(reshard_mesh mesh, const char *dims, int64_t rank, reshard_mesh *sub);
/* Only the coordinates begin, begin + step, ... below end of a dim: all dims stay. step: 1 or more. A dim that was
 * flattened from dims whose ranks do not lie at equal distances can be cut to one coordinate; else it is
 * RESHARD_ERROR_UNSUPPORTED. */
RESHARD_API reshard_status reshard_mesh_slice(reshard_mesh mesh, const char *dim, int64_t begin, int64_t end,
                                              int64_t step, reshard_mesh *slice);
/* DeviceMesh._flatten: these dims become one, row-major in this order, at the place of the first of them; the others
 * stay. name: of the new dim; NULL where the mesh has no names. */
RESHARD_API reshard_status reshard_mesh_flatten(reshard_mesh mesh, const char *dims, const char *name,
                                                reshard_mesh *flat);

/* --- Layouts and communicators ----------------------------------------------------------------------------------- */

/* The layout of a tensor over the mesh, in ranks of its communicator (world: reshard_mesh_world): placements one per
 * dim, order as in reshard_layout_create_mesh, whose errors these are. Source: DTensorSpec. */
RESHARD_API reshard_status reshard_mesh_layout(reshard_mesh mesh, int ndim, const int64_t *shape,
                                               const reshard_placement *placements, const int *order,
                                               reshard_layout *layout);

/* What init_device_mesh does beside the mesh: the communicators of its groups, made at once, so that what is done on
 * sub-meshes later needs no rank outside of them. n 0: of each dim alone. Else of the dims in each of n texts ("tp",
 * "replicate,shard"; NULL: all dims of this mesh), in the order that a sub-mesh has them. DTensors on a sub-mesh need
 * its group (dtensor.h); it is never made by the way, as groups that call unequally often would wait for each other.
 * Collective over the mesh's communicator, always, and by ranks outside of the mesh, too. Kept as those of
 * reshard_mesh_comm, which finds them. All ranks succeed, or all get the same error and nothing of the call is kept.
 * Errors: RESHARD_ERROR_MISMATCH: ranks that ask for different groups, or of different meshes. */
RESHARD_API reshard_status reshard_mesh_init_groups(reshard_mesh mesh, int64_t n, const char *const *dims);
/* DeviceMesh.get_group, _get_dt_pg: the communicator of the ranks that differ from this one in these dims alone, ranked
 * row-major in this order. dims NULL: all of them, so of this whole mesh. It is made once, the first time, and kept by
 * the root of the mesh, which owns it: it lives until the root and its parts are released, and sharders that have made
 * DTensors on its sub-meshes are destroyed; every transfer on it is destroyed before. Where it would be the mesh's communicator itself, rank by rank, it is that. The first time it is
 * collective over the mesh's communicator, also for its ranks outside the mesh, with meshes made alike (sub-meshes:
 * each rank the one it is in) and the same dims: all ranks get the same error, naming two that differ, and nothing is
 * kept. (Where a rank already has the communicator that it asks for it asks nobody: if others ask for another one, they
 * wait until they are aborted or their deadline has passed.) Later, and for other meshes in which the same groups of
 * ranks are found, it is local. Where ranks outside should take no part, all make the mesh's own once
 * (reshard_mesh_own), and those that are in it go on with that. A rank that is not in the mesh gets NULL, with
 * RESHARD_SUCCESS. By one thread at a time, as all collective calls. */
RESHARD_API reshard_status reshard_mesh_comm(reshard_mesh mesh, const char *dims, reshard_comm *comm);
/* The same mesh on the communicator of its own ranks (reshard_mesh_comm of all dims, and collective as that): names and
 * shape stay, ranks are 0, 1, 2, ...; NULL on ranks outside. For what the ranks of a sub-mesh do among themselves: its
 * layouts have the world of the sub-mesh. It holds a reference to `mesh`. */
RESHARD_API reshard_status reshard_mesh_own(reshard_mesh mesh, reshard_mesh *own);

#ifdef __cplusplus
}
#endif
#endif
