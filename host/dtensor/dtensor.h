/* Inside of a DTensor: a mesh, and what this rank holds of a layout of that mesh. It becomes a sharded tensor, with the
 * metadata of all ranks' shards, only when that is asked for: making and moving one lists no ranks. */
#ifndef RS_SHARDED_DTENSOR_H
#define RS_SHARDED_DTENSOR_H

#include "layout/layout.h"
#include "mesh/mesh.h"
#include "sharded/sharder.h"

#include <reshard/dtensor.h>

struct reshard_dtensor_s {
  atomic_int references;
  reshard_sharder given;   /* that it was made with; borrowed */
  reshard_sharder sharder; /* in whose ranks its layout is: `given`, or that of the sub-mesh's group */
  reshard_mesh mesh;       /* retained */
  reshard_properties properties;
  rs_local_arrays local; /* its layout has the placements */
  bool on_cpu;           /* the local tensors were moved there from the sharder's device, on all ranks */
  int order[RESHARD_MAX_DIMS];
  int64_t stride[RESHARD_MAX_DIMS];
  _Atomic(reshard_sharded_tensor) sharded; /* NULL until it was asked for */
};

/* The ranks that do together what is done in a placing. Those of a sub-mesh (a part with fewer ranks than its root) do
 * it alone, each group for itself, in ranks of the group; else all ranks of the communicator do. */
typedef struct rs_members {
  reshard_sharder sharder; /* theirs: the one that is given, or one that it keeps for the group */
  reshard_comm comm;       /* theirs; NULL: a group that has none */
  bool outside; /* of a sub-mesh: this rank takes no part, and has its layouts in ranks of the communicator */
} rs_members;
/* Checks the placing; call begins the errors. *members is written in any case: where the status is no success its comm
 * tells who may be told. */
reshard_status rs_members_find(const char *call, reshard_sharder given, const reshard_placing *placing,
                               rs_members *members);
/* Do the ranks of both meshes, in their order, do things together without the others? */
bool rs_same_group(reshard_mesh a, reshard_mesh b);
/* Rank of the tensor's layout at the i-th place of its mesh. */
static inline int64_t rs_dtensor_rank_at(reshard_dtensor t, int64_t i) {
  return t->sharder != t->given ? i : rs_mesh_rank_at(t->mesh, rs_mesh_position(t->mesh, i));
}

/* Takes local over on success; its layout is one of the mesh, in ranks of sharder. */
reshard_status rs_dtensor_new(reshard_sharder given, reshard_sharder sharder, reshard_mesh mesh,
                              const reshard_properties *properties, const rs_local_arrays *local,
                              reshard_dtensor *tensor);
/* With other local tensors, as rs_sharded_map; NULL where nothing changed. */
reshard_status rs_dtensor_map(reshard_dtensor tensor, const rs_tensor_mapper *mapper, reshard_dtensor *mapped);
/* The layout of a tensor, one reference; kept by the sharder for the next time. It is in ranks of the sharder: of a
 * group's, or of the one whose communicator the mesh is of. */
reshard_status rs_placing_layout(const char *call, reshard_sharder sharder, const reshard_placing *placing, int ndim,
                                 const int64_t *shape, reshard_layout *layout);
/* Local: the tensor in another placing, where this rank has all that it gets; else RESHARD_ERROR_INVALID. */
reshard_status rs_dtensor_keep(const char *call, reshard_dtensor tensor, const reshard_placing *placing, void *stream,
                               reshard_dtensor *result);
/* Collective over the sharder's ranks, for from_local. local: this rank's part, or NULL; shape NULL: it is to be
 * inferred. Mesh, placements, dtype and shape are compared, and what they are on all ranks is written. */
reshard_status rs_dtensor_compare(reshard_sharder sharder, const reshard_placing *placing, reshard_tensor local,
                                  int *ndim, int64_t shape[RESHARD_MAX_DIMS], bool infer, reshard_dtype *dtype);

/* "S0,R" "S0*2,S1;order=tp,dp"; cut off where it gets long; returns buffer. */
#define RS_PLACEMENTS_TEXT 128
const char *rs_placements_text(char buffer[RS_PLACEMENTS_TEXT], reshard_mesh mesh, const reshard_placement *placements,
                               const int *order);

#endif
