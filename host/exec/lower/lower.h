/* Inside of lowering a segment: lower.c, and scaled.c, where blocks have scales. */
#ifndef RS_EXEC_LOWER_H
#define RS_EXEC_LOWER_H

#include "exec/arrays.h"
#include "plan/messages.h"

/* n indices, or positions of a message, from src and dst on; the same `steps` times, src_step and dst_step further on.
 */
typedef struct rs_progression {
  int64_t src, dst, n;
  int64_t steps, src_step, dst_step;
} rs_progression;

/* One axis with more than one index of the segment (or of the cut of it). */
typedef struct rs_lowered_axis {
  const rs_run *runs;
  int64_t count, skip; /* positions of the runs before the cut */
  int64_t length;
  int64_t src_stride, dst_stride; /* bytes per index */
  bool src_linear, dst_linear;
  int number; /* of the axis in the class' space */
} rs_lowered_axis;

typedef struct rs_lowered {
  const rs_lowering *of;
  int naxes;
  rs_lowered_axis axis[RESHARD_MAX_DIMS];
  const char *src;
  char *dst;
  char *scales; /* of the array that has scales: its first block */
  rs_format from, to;
  bool back;            /* copies go from dst to src */
  rs_geometry geometry; /* the runs of boxes are stored in it */
} rs_lowered;

/* The array that has scales; NULL: both sides are others, or messages. */
static inline const rs_view *rs_scaled_view(const rs_lowering *w) {
  if (w->class_->scaling == NULL)
    return NULL;
  return w->class_->scaling->source ? w->src : w->dst;
}
/* True where copies are of blocks, or multiply by scales. */
static inline bool rs_lowers_scales(const rs_lowering *w) {
  return rs_class_in_blocks(w->class_) || rs_scaled_view(w) != NULL;
}
/* Bytes of scales per index of an axis of the space: 0 where no array has them. */
static inline int64_t rs_scale_stride(const rs_lowering *w, int axis) {
  const rs_view *view = rs_scaled_view(w);
  const rs_space *space = &w->class_->space;
  int d = w->class_->scaling == NULL ? -1 : w->class_->scaling->source ? space->src_dim[axis] : space->dst_dim[axis];
  return view != NULL && d >= 0 ? view->scale_strides[d] : 0;
}

/* Appends the copies of one progression of each axis; src and dst are those of index 0. */
reshard_status rs_lower_scales(const rs_lowered *w, const char *src, char *dst, const rs_progression *const *picked,
                               rs_copies *copies);

#endif
