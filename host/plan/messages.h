/* Segments and messages of a class, and the peers that the messages of all classes have. */
#ifndef RS_PLAN_MESSAGES_H
#define RS_PLAN_MESSAGES_H

#include "layout/sort.h"
#include "plan/plan.h"

/* One side of a segment, axis by axis, in elements of the rank's local arrays. */
typedef struct rs_span_list {
  const rs_run *runs;
  int64_t count, length;
} rs_span_list;
/* Geometry of a segment: per axis its runs (ask = source index, held = destination index where `src_asks`, the other
 * way round else). For segments without lists the runs are put into storage[naxes]. */
typedef struct rs_geometry {
  int naxes;
  bool src_asks;
  rs_span_list axis[RS_MAX_AXES];
  rs_run storage[RS_MAX_AXES];
  int cut;     /* the outermost axis with more than one index; -1: there is none */
  int64_t row; /* elements of one index of it */
} rs_geometry;
void rs_segment_geometry(const rs_class *class_, const rs_side *side, rs_route route, const rs_segment *segment,
                         rs_geometry *out);

/* Indices of the cut that the segment has. */
static inline int64_t rs_segment_rows(const rs_segment *segment, const rs_geometry *geometry) {
  return segment->elements / geometry->row;
}

void rs_class_free(rs_class *class_);
int64_t rs_class_memory(const rs_class *class_); /* bytes */
void rs_side_free(rs_side *side);

/* Corners of an array that is a box, lo then hi: the layout's own, or in storage[2 * ndim]. */
static inline const int64_t *rs_array_corners(const struct reshard_layout_s *l, int64_t rank, int64_t array,
                                              int64_t *storage) {
  if (l->kind == RESHARD_LAYOUT_BOXES)
    return rs_boxes_lo(l->boxes, rs_boxes_of_array(l->boxes, rank, array));
  rs_layout_cell_box(l, rs_layout_cell(l, rank, array), storage, storage + l->ndim);
  return storage;
}
/* The message of a class with a peer; NULL when there is none. */
const rs_message *rs_side_message(const rs_side *side, int64_t peer);

/* Sets the peers of a plan, once its classes have their messages, and the numbers of these. */
reshard_status rs_plan_find_peers(struct reshard_plan_s *plan);

/* A segment that is not in its message yet. */
typedef struct rs_loose_segment {
  rs_route route;
  rs_segment segment;
} rs_loose_segment;

/* Memory that sorting needs. */
typedef RS_VEC(uint64_t) rs_sorting;
/* Puts segments that one rank sends, or receives, into sorted[n], by message, and lists the messages. Whether they are
 * in place is not known yet. The order of `found` may change. */
reshard_status rs_make_messages(rs_loose_segment *found, int64_t n, bool sending, rs_sorting *scratch,
                                rs_segment *sorted, rs_messages *messages);

/* Boxes that a rank sends to boxes: {place of the destination's (rs_boxes_place) << 32 | source array, elements}. That
 * is the order of messages. A third of a loose segment, so that a rank's stay in the cache while they are sorted. */
typedef struct rs_meetings {
  RS_VEC(rs_pair) pair;
  RS_VEC(rs_pair) spare; /* to sort them */
} rs_meetings;
/* rs_make_messages of boxes that are sent. They come by source array; their order may change. */
reshard_status rs_make_box_messages(rs_meetings *met, const rs_boxes *dst, rs_segment *sorted, rs_messages *messages);

/* A holder of a replicated cell lists all who need it, a world full of ranks maybe, and serves a few. Keeps the lists
 * of those, so that a plan's memory follows its own segments. Lists that most segments use are left as they are. */
reshard_status rs_side_keep_used_lists(rs_side *side, int64_t naxes);

#endif
