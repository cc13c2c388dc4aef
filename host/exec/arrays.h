/* The user's arrays of a transfer, checked. */
#ifndef RS_EXEC_ARRAYS_H
#define RS_EXEC_ARRAYS_H

#include "exec/overlap.h"

#include <reshard/transfer.h>

/* The user's arrays: one per buffer of this rank, in the order of the plan's entries. */
typedef struct rs_arrays {
  void **src, **dst;           /* [plan->nsrc], [plan->ndst] */
  const int64_t **src_strides; /* NULL element: contiguous; NULL: all are */
  const int64_t **dst_strides;
  int64_t *stride_values; /* storage behind them */
} rs_arrays;

/* Copies the caller's lists, checked: pointers, strides, overlap. */
reshard_status rs_arrays_bind(const struct reshard_plan_s *plan, const reshard_arrays *given, rs_arrays *out);
void rs_arrays_free(rs_arrays *arrays);
/* rs_arrays_bind for lists that are all there and outlive *out, which has nothing to free. extents: memory for the
 * check, whatever is in it. */
reshard_status rs_arrays_borrow(const struct reshard_plan_s *plan, const reshard_arrays *given, rs_extents *extents,
                                rs_arrays *out);

/* One array of a rank in memory: its address, and a byte stride per dim. */
typedef struct rs_view {
  char *at;
  int64_t strides[RESHARD_MAX_DIMS];
} rs_view;
void rs_arrays_view(const rs_arrays *arrays, const struct reshard_plan_s *plan, int64_t entry, bool source,
                    int64_t array, rs_view *view);

#endif
