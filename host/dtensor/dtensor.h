/* Inside of a DTensor: a mesh, and local arrays of a layout of that mesh. A DTensor becomes a sharded tensor, with the
 * metadata of all ranks' shards, only when that is asked for: making and moving one lists no ranks. */
#ifndef RS_DTENSOR_DTENSOR_H
#define RS_DTENSOR_DTENSOR_H

#include "layout/layout.h"
#include "mesh/mesh.h"
#include "sharded/sharder.h"

#include <reshard/dtensor.h>

struct reshard_dtensor_s {
  atomic_int references;
  reshard_sharder given;   /* which it was made with; borrowed */
  reshard_sharder sharder; /* whose ranks its layout has: `given`, or that of the sub-mesh's group */
  reshard_mesh mesh;       /* retained */
  reshard_properties properties;
  rs_local_arrays local; /* its layout has the placements */
  bool on_cpu;           /* the local tensors were moved there from the sharder's device, on all ranks */
  int order[RESHARD_MAX_DIMS];
  int64_t stride[RESHARD_MAX_DIMS];
  _Atomic(reshard_sharded_tensor) sharded; /* NULL until it was asked for */
};

/* Rank of the tensor's layout at the i-th index of its mesh. */
static inline int64_t rs_dtensor_rank_at(reshard_dtensor t, int64_t i) {
  return t->sharder != t->given ? i : rs_mesh_rank_at(t->mesh, rs_mesh_position(t->mesh, i));
}

/* Takes local arrays over on success; their layout is one of the mesh, in ranks of sharder. */
reshard_status rs_dtensor_new(reshard_sharder given, reshard_sharder sharder, reshard_mesh mesh,
                              const reshard_properties *properties, const rs_local_arrays *local,
                              reshard_dtensor *tensor);
/* Maps local tensors, as rs_sharded_map; NULL where nothing changed. */
reshard_status rs_dtensor_map(reshard_dtensor tensor, const rs_tensor_mapper *mapper, reshard_dtensor *mapped);
/* Local: redistributes the tensor where this rank has all of its new part; else RESHARD_ERROR_INVALID. */
reshard_status rs_dtensor_redistribute_local(const char *call, reshard_dtensor tensor, const reshard_placing *placing,
                                             void *stream, reshard_dtensor *result);
/* Collective over the sharder's ranks, for from_local. local: this rank's part, or NULL; infer: the shape is to be
 * inferred. Compares mesh, placements, dtype and shape, and writes those of all ranks. */
reshard_status rs_dtensor_compare(reshard_sharder sharder, const reshard_placing *placing, reshard_tensor local,
                                  int *ndim, int64_t shape[RESHARD_MAX_DIMS], bool infer, reshard_dtype *dtype);

/* "S0,R" "S0*2,S1;order=tp,dp"; cut off where it gets long; returns buffer. */
#define RS_PLACEMENTS_TEXT 128
const char *rs_placements_text(char buffer[RS_PLACEMENTS_TEXT], reshard_mesh mesh, const reshard_placement *placements,
                               const int *order);

/* The sharder of a sub-mesh's group. The root, retained, owns the group's communicator. */
typedef struct rs_group_sharder {
  reshard_mesh root;
  reshard_sharder sharder;
} rs_group_sharder;
/* Attached to the sharder that DTensors are made with; or to that of a group. */
typedef struct rs_dtensor_cache {
  reshard_sharder made_for;                  /* a group's: the sharder that owns it; NULL: it is a user's */
  RS_VEC(rs_group_sharder) groups;           /* group.c */
  RS_VEC(struct rs_cached_layout *) layouts; /* used last first (layouts.c) */
} rs_dtensor_cache;
/* The cache of a sharder, made when it is first asked for (group.c). */
reshard_status rs_dtensor_cache_get(reshard_sharder sharder, rs_dtensor_cache **cache);
void rs_cached_layout_free(struct rs_cached_layout *cached);

/* The ranks that act together in a placing. Those of a sub-mesh (a part with fewer ranks than its root) act alone, each
 * group for itself, in ranks of the group. Else all ranks of the communicator do. */
typedef struct rs_placing_group {
  reshard_sharder sharder; /* given, or made for the group and owned by it */
  reshard_comm comm;       /* of the sharder; NULL: the group has none */
  bool outside; /* this rank is not of the sub-mesh: it takes no part, and its layouts have ranks of the communicator */
} rs_placing_group;
/* Checks the placing; call begins the errors. *group is written in any case: with no success its comm has the ranks to
 * agree with. */
reshard_status rs_placing_group_find(const char *call, reshard_sharder given, const reshard_placing *placing,
                                     rs_placing_group *group);
/* Both meshes are sub-meshes of the same ranks in the same order. */
bool rs_same_group(reshard_mesh a, reshard_mesh b);
/* Layout of a tensor, one reference, cached by the sharder. It has the ranks of the sharder: of a group's, or of the
 * one whose communicator the mesh is of. */
reshard_status rs_placing_layout(const char *call, reshard_sharder sharder, const reshard_placing *placing, int ndim,
                                 const int64_t *shape, reshard_layout *layout);

#endif
