/* The boxes that FSDP and TP make of a tensor, row by row. */
#ifndef TESTS_FSDP_BOXES_H
#define TESTS_FSDP_BOXES_H

#include <reshard/layout.h>

#include <string.h>

/* The one of w that has index j of n. */
static inline int64_t owner_of(int64_t n, int64_t w, int64_t j) { return j / ((n + w - 1) / w); }

/* The indices of n that the i-th of w has, looked for one by one; a box's extent is 0 where there are none. */
static inline void indices_of(int64_t n, int64_t w, int64_t i, int64_t *offset, int64_t *extent) {
  *offset = *extent = 0;
  for (int64_t j = n - 1; j >= 0; j--)
    if (owner_of(n, w, j) == i) {
      *offset = j;
      ++*extent;
    }
}

/* The box of TP coordinate t, and within it that of FSDP coordinate f. dim -1: TP has not cut. */
static inline reshard_box box_of(int ndim, const int64_t *shape, int dim, int64_t tp, int64_t t, int64_t fsdp,
                                 int64_t f) {
  reshard_box box = {0};
  memcpy(box.extent, shape, (size_t)ndim * sizeof *shape);
  if (dim >= 0)
    indices_of(shape[dim], tp, t, &box.offset[dim], &box.extent[dim]);
  int64_t offset;
  indices_of(box.extent[0], fsdp, f, &offset, &box.extent[0]);
  box.offset[0] += offset;
  return box;
}

static inline reshard_placement placement_of(int dim) {
  reshard_placement shard = {.kind = RESHARD_PLACEMENT_SHARD, .dim = dim};
  reshard_placement replicate = {.kind = RESHARD_PLACEMENT_REPLICATE};
  return dim >= 0 ? shard : replicate;
}

#endif
