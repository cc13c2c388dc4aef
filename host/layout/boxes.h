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
  int64_t nranks;         /* ranks that hold at least one box, ascending: */
  int64_t *rank;          /* [nranks] */
  int64_t *rank_first;    /* [nranks + 1] into by_rank */
  int64_t *rank_elements; /* [nranks] of all its boxes */
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

/* Cells that share elements with a region: queries within it need no walk through the tree. */
enum { RS_NEAR = 64 };
typedef struct rs_near {
  const struct rs_tree *tree;
  int64_t n, id[RS_NEAR];
  int32_t box[RESHARD_MAX_DIMS][2][RS_NEAR]; /* per active dim of the tree: lo and hi of each */
} rs_near;
/* False where they are more than RS_NEAR, or too large for 32 bits: then `near` is not to be asked. */
bool rs_boxes_gather(const rs_boxes *boxes, const int64_t *lo, const int64_t *hi, rs_near *near);
/* rs_boxes_query for a box in the region. */
reshard_status rs_near_query(const rs_near *near, const int64_t *lo, const int64_t *hi, rs_boxes_visit visit,
                             void *user);

/* Range [*first, *first + *count) in by_rank of a rank; count 0 for a rank without boxes. */
void rs_boxes_of_rank(const rs_boxes *boxes, int64_t rank, int64_t *first, int64_t *count);
/* Elements of all boxes of a rank. */
int64_t rs_boxes_elements(const rs_boxes *boxes, int64_t rank);

static inline const int64_t *rs_boxes_lo(const rs_boxes *b, int64_t box) { return b->corners + box * 2 * b->ndim; }
static inline const int64_t *rs_boxes_hi(const rs_boxes *b, int64_t box) {
  return b->corners + box * 2 * b->ndim + b->ndim;
}

/* Place in by_rank of an array of a rank. Places are in the order of (rank, array). */
static inline int64_t rs_boxes_place(const rs_boxes *b, int64_t rank, int64_t array) {
  int64_t first, count;
  if (rank < b->nranks && b->rank[rank] == rank) /* all ranks up to this one hold boxes: the usual case */
    return b->rank_first[rank] + array;
  rs_boxes_of_rank(b, rank, &first, &count);
  return first + array;
}
/* Number of the box that is an array of a rank. */
static inline int64_t rs_boxes_of_array(const rs_boxes *b, int64_t rank, int64_t array) {
  return b->by_rank[rs_boxes_place(b, rank, array)];
}

/* A static tree over boxes that answers "which of them share elements with this box". */
typedef struct rs_tree rs_tree;

/* A status other than success ends the walk and is returned by the query. */
typedef reshard_status (*rs_tree_visit)(void *user, int64_t id);

/* Makes a tree of n boxes, none of them empty. The i-th is at corners + box[i] * 2 * ndim (lo, then hi; 0 <= lo < hi)
 * and is reported as id[i]. corners is borrowed for the tree's life, box and id are copied. O(n log n). */
reshard_status rs_tree_create(int ndim, const int64_t *corners, int64_t n, const int64_t *box, const int64_t *id,
                              rs_tree **out);
void rs_tree_free(rs_tree *tree);

/* Calls visit once for each box that shares elements with [lo, hi), in no stated order. tree may be NULL: no boxes.
 * Queries that follow one another in space are quicker, because they find the tree's nodes in the cache. */
reshard_status rs_tree_query(const rs_tree *tree, const int64_t *lo, const int64_t *hi, rs_tree_visit visit,
                             void *user);
/* rs_boxes_gather, of ids; tree may be NULL. */
bool rs_tree_gather(const rs_tree *tree, const int64_t *lo, const int64_t *hi, rs_near *near);

/* Boxes are at corners + box[i] * 2 * ndim, lo then hi, as in boxes.h; none is empty, all are inside of the shape. */

/* excess 0: every element of the shape is in exactly one of the n boxes. Else point is the first element, in row-major
 * order, where that is wrong. excess -1: it is in no box; excess e > 0: it is in e + 1 of them. O(2^k n) time and
 * memory, k = dims that not every box spans. */
reshard_status rs_corners_check(int ndim, const int64_t *shape, const int64_t *corners, int64_t n, const int64_t *box,
                                int64_t *excess, int64_t *point);

/* Writes to i and j the numbers (into box) of the first two boxes that contain the point; they must exist. */
void rs_corners_pair(int ndim, const int64_t *corners, int64_t n, const int64_t *box, const int64_t *point, int64_t *i,
                     int64_t *j);

/* Grows a point that is in no box, the first such in row-major order, to a box [point, hi) in the shape. It shares no
 * element with any box and cannot be larger in any dim. O(n ndim^2). */
void rs_corners_gap(int ndim, const int64_t *shape, const int64_t *corners, int64_t n, const int64_t *box,
                    const int64_t *point, int64_t *hi);

#endif
