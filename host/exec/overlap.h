/* Finds buffers of a rank that share bytes. */
#ifndef RS_EXEC_OVERLAP_H
#define RS_EXEC_OVERLAP_H

#include "plan/plan.h"

/* Most bytes that a buffer may reach below or above its pointer. */
#define RS_EXTENT_MOST (INT64_MAX / 8)

/* One buffer of the user that holds something: bytes [begin, end), and the walk through them. */
typedef struct rs_extent {
  const char *at, *begin, *end;
  bool source, dense; /* dense: every byte of the range is an element's */
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS], strides[RESHARD_MAX_DIMS]; /* strides in bytes, any sign; shape without 0 */
  int64_t width, entry;
  int64_t buffer; /* of the rank's, in the entry's layout */
} rs_extent;

typedef RS_VEC(rs_extent) rs_extents;

/* RESHARD_ERROR_INVALID naming a destination and the source or destination that shares a byte with it. Entries whose
 * regions in the destination are disjoint may name the same array: q, k, v into qkv. Sorts the list. The strides of a
 * destination are those of rs_arrays_bind: none overlaps itself. */
reshard_status rs_check_overlap(const struct reshard_plan_s *plan, rs_extents *all);

#endif
