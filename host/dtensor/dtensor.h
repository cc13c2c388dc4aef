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
/* Collective: reshard_dtensor_redistribute_as of one tensor, by the call of this name. mine: as in rs_sharder_execute.
 * Where it is no success the tensor is not read; `ranks` is the sharder of those that hear of it, NULL: there are
 * none. */
reshard_status rs_dtensor_redistribute(const char *call, reshard_sharder ranks, reshard_status mine,
                                       reshard_dtensor tensor, const reshard_placing *placing, reshard_dtype dtype,
                                       void *stream, reshard_dtensor *result);
/* Local: redistributes the tensor where this rank has all of its new part; else RESHARD_ERROR_INVALID. */
reshard_status rs_dtensor_redistribute_local(const char *call, reshard_dtensor tensor, const reshard_placing *placing,
                                             void *stream, reshard_dtensor *result);
/* Collective over the sharder's ranks, for from_local. local: this rank's part, or NULL; infer: the shape is to be
 * inferred. Compares mesh, placements, dtype and shape, and writes those of all ranks. */
reshard_status rs_dtensor_compare(reshard_sharder sharder, const reshard_placing *placing, reshard_tensor local,
                                  int *ndim, int64_t shape[RESHARD_MAX_DIMS], bool infer, reshard_dtype *dtype);

/* "S0,R" "S0*2,S1;order=tp,dp" "S0{4,4}"; cut off where it gets long; returns buffer. */
#define RS_PLACEMENTS_TEXT 128
const char *rs_placements_text(char buffer[RS_PLACEMENTS_TEXT], reshard_mesh mesh, const reshard_placement *placements,
                               const int *order);

#endif
