/* Shared by the files that intersect a class: for one rank, or for all ranks of a world (world.c). */
#ifndef RS_PLAN_INTERSECT_H
#define RS_PLAN_INTERSECT_H

#include "layout/census.h"
#include "plan/hops.h"
#include "plan/messages.h"

/* A (rank, destination array) that needs part of a replicated source cell. */
typedef struct rs_receiver {
  int64_t rank;
  int32_t array;
  int32_t part; /* number of the slice, where bytes are passed on; 0: it is whole */
  int64_t elements;
  int64_t rows;  /* of its outermost axis with more than one index */
  int64_t lists; /* as in rs_segment */
} rs_receiver;

/* A replicated source cell that one of my destination arrays needs part of. */
typedef struct rs_want {
  int64_t cell, array;
  int64_t elements, rows, lists;
} rs_want;

/* The common elements of the source cell and a destination cell, where bytes are passed on. */
typedef struct rs_hop_unit {
  int64_t cell; /* the destination's */
  int64_t elements, rows, lists;
} rs_hop_unit;

/* Rows of a part that one of the ranks which hold its array alike takes, to pass them on. */
typedef struct rs_slice {
  int64_t first; /* row */
  int64_t group;
  int64_t own; /* this rank's array, where it is in the group; else -1 */
} rs_slice;

/* A segment of a slice, on its way from a holder to its taker and to those whom this one passes it on to. */
typedef struct rs_passed {
  int64_t holder, taker, group;
  int32_t taker_array;
  rs_segment segment; /* of the array that this rank has */
} rs_passed;

/* Everything that intersecting one class needs, scratch memory included. */
typedef struct rs_work {
  rs_class *class_;   /* of the rank */
  rs_class **of_rank; /* of every rank, where all are planned; NULL for one rank */
  int64_t rank, world;
  const int64_t *nodes;
  rs_hop_groups *groups; /* bytes are passed on by these; NULL: nothing is. All cells are taken as shared then */
  int64_t chains;        /* of the topology */
  int64_t number;        /* of the class */
  bool listed;           /* segments keep lists: a side is regular */
  bool sending;
  rs_side *side; /* has the lists */
  RS_VEC(rs_loose_segment) found;
  bool boxed;       /* boxes without replicas are sent to boxes: `met` has what is found */
  rs_meetings met;  /* of one rank */
  int64_t array;    /* mine, being intersected */
  int64_t cell;     /* its cell, when sending */
  bool shared;      /* the cell has several holders */
  bool overlapping; /* destination boxes overlap each other */
  int64_t asked;    /* elements of the last query */
  int64_t alone[RS_MAX_AXES], alone_list[RS_MAX_AXES];
  rs_pieces pieces;
  rs_lists scratch;
  rs_census census;
  RS_VEC(rs_holder) holders;
  RS_VEC(rs_holder) sources;    /* holders of a replicated cell, ascending */
  RS_VEC(int64_t) source_nodes; /* their nodes, ascending */
  RS_VEC(rs_pair) node_ranks;   /* all ranks by node, and as many to sort them */
  const rs_pair *by_node;       /* of these, the half that is sorted */
  RS_VEC(rs_holder) servers;    /* those of the sources that serve a line */
  RS_VEC(rs_receiver) receivers;
  RS_VEC(uint64_t) keys; /* of the receivers, and as many to sort them */
  const uint64_t *order; /* of the receivers: the low bits of each are a place in the list; NULL: as they are */
  uint64_t place_mask;
  RS_VEC(rs_want) wants;
  RS_VEC(rs_hit) hits;
  RS_VEC(rs_hop_unit) units;
  RS_VEC(int64_t) without; /* places of a cell's domains that have holders of the source cell */
  int64_t without_of;      /* the number of that cell; -1: they are not found */
  RS_VEC(rs_slice) slices; /* the first one is none */
  RS_VEC(rs_passed) passed;
} rs_work;

/* Lists the segments of w->class_ that w->rank sends, in w->found and w->passed, then gives them to `make`; and those
 * that it receives. Frees the scratch memory. */
reshard_status rs_work_intersect(rs_work *work, reshard_status (*make)(rs_work *work, bool sending));
/* Fills send and receive of a class for one rank. */
reshard_status rs_class_intersect(rs_class *class_, int64_t rank, int64_t world, const int64_t *nodes);

reshard_status rs_ask(rs_work *work, bool asks_src, int64_t cell, rs_query *query, bool *met);
int64_t rs_hit_rows(const rs_space *space, bool asks_src, const rs_hit *hit);

static inline reshard_status rs_add_segment(rs_work *w, int64_t src_rank, int64_t dst_rank, rs_segment segment) {
  if (w->found.n == w->found.cap)
    RS_TRY(rs_vec_reserve(&w->found, w->found.n + 1));
  w->found.at[w->found.n++] = (rs_loose_segment){{src_rank, dst_rank}, segment};
  return RESHARD_SUCCESS;
}

/* A holder of a destination cell that meets my source array: a segment, or a receiver of a replicated cell. */
reshard_status rs_add_receiver(rs_work *work, rs_holder holder, int64_t elements, int64_t rows, int64_t lists);
static inline reshard_status rs_add_holder(rs_work *w, rs_holder h, int64_t elements, int64_t rows, int64_t lists) {
  if (w->shared && h.rank != w->rank)
    return rs_add_receiver(w, h, elements, rows, lists);
  if (h.rank == w->rank)
    w->class_->kept += elements;
  return rs_add_segment(w, w->rank, h.rank, (rs_segment){w->array, h.array, lists, 0, elements});
}

/* Around the query of a source array to the destination. *mine is false where another holder's array is asked for all
 * of the cell's. */
reshard_status rs_begin_cell(rs_work *work, bool *mine);
reshard_status rs_end_cell(rs_work *work);

/* Segments that w->rank sends, for all its source arrays. Where all ranks are planned, those of a replicated cell for
 * all its holders, by the first of them. */
reshard_status rs_intersect_sends(rs_work *work);
/* Adds up the elements of the region that the destination arrays of w->rank hold. */
reshard_status rs_count_wanted(rs_work *work);
void rs_count_wanted_boxes(rs_work *work); /* intersect_boxes.c */
void rs_work_free(rs_work *work);

/* intersect_boxes.c: the same as intersect.c, where both sides are boxes (and, sending, destinations do not overlap).
 */
reshard_status rs_send_boxes(rs_work *work);
reshard_status rs_receive_boxes(rs_work *work);

/* replicas.c. Holders of a replicated source cell into w->sources, and the nodes they are on. */
reshard_status rs_find_sources(rs_work *work, int64_t cell);
/* Segments of my share of w->receivers of w->cell, whose sources are found; of all holders' shares; of what I want. */
reshard_status rs_share_sends(rs_work *work);
reshard_status rs_share_all(rs_work *work);
reshard_status rs_share_receives(rs_work *work);

static inline reshard_status rs_add_hop_unit(rs_work *w, rs_hop_unit unit) {
  RS_TRY(rs_vec_reserve(&w->units, w->units.n + 1));
  w->units.at[w->units.n++] = unit;
  return RESHARD_SUCCESS;
}

/* Begin of the k-th of n shares of `total` elements. */
static inline int64_t rs_share_begin(int64_t total, int64_t k, int64_t n) { return total / n * k + total % n * k / n; }
/* Whole rows of a part nearest to element x of it. Monotone in x, so shares neither overlap nor leave gaps. */
static inline int64_t rs_row_at(const rs_receiver *r, int64_t x) {
  int64_t row = r->elements / r->rows;
  return x <= 0 ? 0 : x >= r->elements ? r->rows : (x + row / 2) / row;
}
/* True where a node has holders of the cell whose sources are found. */
bool rs_node_has_sources(const rs_work *work, int64_t node);

/* Adds to *elements the elements of my array that some of w->hits have, each counted once. */
reshard_status rs_union(const rs_work *work, const rs_lists *lists, int64_t *elements);

#endif
