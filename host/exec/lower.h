/* From a segment to box copies. */
#ifndef RS_EXEC_LOWER_H
#define RS_EXEC_LOWER_H

#include "device/device.h"
#include "exec/arrays.h"

/* Appends to `copies` the part of a segment in positions [lo, hi) of its (cut) axes. A side is a view of the
 * array, or a message: `linear` is then the address of the segment's first byte in it. */
typedef struct rs_lowering {
  const struct reshard_plan_s *plan;
  const rs_class *class_;
  bool sending; /* the segment is of the class' send side, else of its receive side */
  const rs_segment *segment;
  const rs_view *src, *dst; /* NULL: linear */
  char *linear;
} rs_lowering;
/* The whole segment. */
reshard_status rs_lower(const rs_lowering *lowering, rs_copies *copies);
/* Elements [begin, end) of the segment in message order; linear is where element `begin` is. */
reshard_status rs_lower_range(const rs_lowering *lowering, int64_t begin, int64_t end, rs_copies *copies);

#endif
