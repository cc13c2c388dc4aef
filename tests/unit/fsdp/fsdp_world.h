/* Meshes of ranks that are threads, tensors that number their elements, and the boxes that FSDP and TP make of them,
 * row by row. */
#ifndef TESTS_FSDP_WORLD_H
#define TESTS_FSDP_WORLD_H
#include "support/fixtures/case.h"
#include "support/fixtures/sharded_ranks.h"
#include "support/oracles/fsdp_boxes.h"

#include <reshard/fsdp.h>

#include <stdio.h>
#include <string.h>

/* Counts a condition that is false on a rank as wrong, with the line. */
#define SO(p, r, what) \
  ((what) ? true \
          : (fprintf(stderr, "%s:%d: rank %d: not so: %s (%s)\n", __FILE__, __LINE__, (int)(r), #what, \
                     reshard_last_error()), \
             (p)->wrong[r]++, false))
#define WELL(p, r, call) SO(p, r, (call) == RESHARD_SUCCESS)

/* Element i, row-major, is i. */
static inline reshard_tensor whole_of(int ndim, const int64_t *shape) {
  reshard_tensor tensor;
  reshard_tensor_info info;
  if (reshard_tensor_create(RESHARD_I32, ndim, shape, &tensor) != RESHARD_SUCCESS)
    return NULL;
  reshard_tensor_get_info(tensor, &info);
  for (int64_t i = 0; i < info.elements; i++)
    ((int32_t *)info.data)[i] = (int32_t)i;
  reshard_tensor_set_requires_grad(tensor, 1);
  return tensor;
}

/* Elements of a tensor that are not those of a box of such a whole; all of them when the extents differ. */
static inline int64_t wrong_in(reshard_tensor tensor, int ndim, const int64_t *shape, const reshard_box *box) {
  reshard_tensor_info info;
  int64_t wrong = 0;
  if (tensor == NULL || reshard_tensor_get_info(tensor, &info) != RESHARD_SUCCESS || info.ndim != ndim)
    return 1;
  if (memcmp(info.shape, box->extent, (size_t)ndim * sizeof *shape) != 0)
    return 1 + info.elements;
  for (int64_t e = 0; e < info.elements; e++) {
    int64_t rest = e, place = 0, index = 0, weight = 1;
    for (int d = ndim - 1; d >= 0; d--) {
      int64_t at = rest % info.shape[d];
      rest /= info.shape[d];
      place += at * info.strides[d];
      index += (box->offset[d] + at) * weight;
      weight *= shape[d];
    }
    wrong += ((const int32_t *)info.data)[place] != (int32_t)index;
  }
  return wrong;
}

static inline int64_t elements_of(int ndim, const reshard_box *box) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++)
    n *= box->extent[d];
  return n;
}

/* A leaf with this rank's TP part of the whole: a DTensor on the dim `tp` of a mesh, cut along dim (-1: not). NULL:
 * failed. */
static inline reshard_tree tp_leaf(reshard_sharder sharder, reshard_mesh mesh, reshard_tensor whole, int dim) {
  reshard_mesh tp = NULL;
  reshard_dtensor tensor = NULL;
  reshard_tree leaf = NULL;
  reshard_tensor_info info;
  reshard_placement placement = placement_of(dim);
  if (reshard_mesh_sub(mesh, "tp", RESHARD_MESH_MINE, &tp) == RESHARD_SUCCESS &&
      reshard_tensor_get_info(whole, &info) == RESHARD_SUCCESS) {
    reshard_placing placing = {tp, &placement, NULL};
    reshard_properties properties = {.dtype = info.dtype, .requires_grad = 1};
    if (reshard_dtensor_distribute(sharder, &placing, whole, -1, info.ndim, info.shape, &properties, NULL, &tensor) ==
            RESHARD_SUCCESS &&
        reshard_state_dtensor(tensor, &leaf) != RESHARD_SUCCESS)
      leaf = NULL;
  }
  reshard_dtensor_release(tensor);
  reshard_mesh_release(tp);
  return leaf;
}

static inline reshard_tensor local_of(reshard_tree leaf) {
  reshard_dtensor tensor;
  return reshard_state_get_dtensor(leaf, &tensor) == RESHARD_SUCCESS ? reshard_dtensor_local(tensor) : NULL;
}

static inline int64_t received(reshard_comm comm) {
  reshard_comm_stats stats = {0};
  reshard_comm_get_stats(comm, &stats);
  return stats.received_bytes;
}

#endif
