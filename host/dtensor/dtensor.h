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
  reshard_sharder sharder; /* borrowed */
  reshard_mesh mesh;       /* retained */
  reshard_properties properties;
  rs_held held; /* its layout has the placements */
  bool on_cpu;  /* the local tensors were moved there from the sharder's device, on all ranks */
  int order[RESHARD_MAX_DIMS];
  int64_t stride[RESHARD_MAX_DIMS];
  _Atomic(reshard_sharded_tensor) sharded; /* NULL until it was asked for */
};

/* Takes held over on success; its layout is one of the mesh. */
reshard_status rs_dtensor_new(reshard_sharder sharder, reshard_mesh mesh, const reshard_properties *properties,
                              const rs_held *held, reshard_dtensor *tensor);
/* With other local tensors, as rs_sharded_map; NULL where nothing changed. */
reshard_status rs_dtensor_map(reshard_dtensor tensor, const rs_tensor_mapper *mapper, reshard_dtensor *mapped);
/* A placing on a mesh of the sharder's communicator; call begins the errors. */
reshard_status rs_placing_check(const char *call, reshard_sharder sharder, const reshard_placing *placing);
/* Its layout of a tensor, one reference; kept by the sharder for the next time. */
reshard_status rs_placing_layout(const char *call, reshard_sharder sharder, const reshard_placing *placing, int ndim,
                                 const int64_t *shape, reshard_layout *layout);
/* Local: the tensor in another placing, where this rank has all that it gets; else RESHARD_ERROR_INVALID. */
reshard_status rs_dtensor_keep(const char *call, reshard_dtensor tensor, const reshard_placing *placing, void *stream,
                               reshard_dtensor *result);
/* Collective, for from_local. local: this rank's part, or NULL; shape NULL: it is to be inferred. mine: of what this
 * rank has checked alone. Mesh, placements, dtype and shape are compared, and what they are on all ranks is written. */
reshard_status rs_dtensor_compare(reshard_sharder sharder, const reshard_placing *placing, reshard_tensor local,
                                  int *ndim, int64_t shape[RESHARD_MAX_DIMS], bool infer, reshard_status mine,
                                  reshard_dtype *dtype);

/* "S0,R" "S0*2,S1;order=tp,dp"; cut off where it gets long; returns buffer. */
#define RS_PLACEMENTS_TEXT 128
const char *rs_placements_text(char buffer[RS_PLACEMENTS_TEXT], reshard_mesh mesh, const reshard_placement *placements,
                               const int *order);

#endif
