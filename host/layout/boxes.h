/* A list of (rank, box): who holds what, found through a tree; validity, found by corners.
 *
 * Equal boxes are one cell with several holders. The tree is over the cells. */
#ifndef RS_LAYOUT_BOXES_H
#define RS_LAYOUT_BOXES_H

#include "base/base.h"

#include <reshard/layout.h>

typedef struct rs_holder {
  int64_t rank;
  int64_t array; /* index among the rank's arrays */
} rs_holder;

typedef struct rs_boxes {
  int ndim;
  int64_t n;        /* boxes as given */
  int64_t *ranks;   /* [n] rank of each, as given */
  int64_t *corners; /* [n][2 * ndim] lo then hi of each, as given */
  bool replicated;
  int64_t nranks;      /* ranks that hold at least one box, ascending: */
  int64_t *rank;       /* [nranks] */
  int64_t *rank_first; /* [nranks + 1] into by_rank */
  int64_t *by_rank;    /* [n] box numbers, by rank, as given within one: array j of rank[i] is at rank_first[i] + j */
  int64_t ncells;      /* distinct boxes; empty boxes (some extent 0) are cells too, but in no query */
  int64_t *cell_box;   /* [ncells] a box that has this extent (the first as given) */
  int64_t *cell_of;    /* [n] cell of each box */
  int64_t *cell_first; /* [ncells + 1] into holders */
  rs_holder *holders;  /* [n] by cell, rank ascending */
  void *tree;          /* private to boxes.c / tree.c */
  bool covers;         /* cells cover every element of the shape exactly once */
  bool overlapping;    /* two cells share elements */
  char *source_error;  /* NULL, or why the list cannot be a source: a gap, an overlapping pair, undeclared replicas */
} rs_boxes;

/* Checks bounds (0 <= offset, offset + extent <= shape, without overflow), ranks in [0, world), and overlap within a
 * rank. Equal boxes of one rank overlap, unless empty. These are errors here; gaps and overlaps between ranks go to
 * source_error. O(2^k n log n), k = dims that are cut at all. */
reshard_status rs_boxes_create(int ndim, const int64_t *shape, int64_t world, int64_t n, const int64_t *ranks,
                               const reshard_box *boxes, bool replicated, rs_boxes **out);
void rs_boxes_free(rs_boxes *boxes);

/* Calls visit for every cell that shares elements with [lo, hi); each once, in no stated order. A status other than
 * success ends the walk and is returned. */
typedef reshard_status (*rs_boxes_visit)(void *user, int64_t cell);
reshard_status rs_boxes_query(const rs_boxes *boxes, const int64_t *lo, const int64_t *hi, rs_boxes_visit visit,
                              void *user);

/* Range [*first, *first + *count) in by_rank of a rank; count 0 for a rank without boxes. */
void rs_boxes_of_rank(const rs_boxes *boxes, int64_t rank, int64_t *first, int64_t *count);

static inline const int64_t *rs_boxes_lo(const rs_boxes *b, int64_t box) { return b->corners + box * 2 * b->ndim; }
static inline const int64_t *rs_boxes_hi(const rs_boxes *b, int64_t box) {
  return b->corners + box * 2 * b->ndim + b->ndim;
}

#endif
