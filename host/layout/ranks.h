/* Lists of ranks. */
#ifndef RS_LAYOUT_RANKS_H
#define RS_LAYOUT_RANKS_H

#include "base/base.h"

/* A list of distinct ranks, kept as ranges, so that "all of the world" costs the same for 4 and for 16,384 ranks. */
typedef struct rs_rank_range {
  int64_t position; /* of its first rank in the list */
  int64_t first, count;
  int64_t step; /* +1 up, -1 down; +1 for one rank */
} rs_rank_range;

typedef struct rs_ranks {
  int64_t n; /* ranks in the list */
  int64_t nranges;
  rs_rank_range *ranges; /* in list order */
  rs_rank_range *sorted; /* the same, by lowest rank */
  bool ascending;        /* the list is in ascending order */
} rs_ranks;

/* ranks NULL: 0..n-1. Errors: a rank outside [0, world), a duplicate; what ("chunk", "mesh") names the layout in the
 * text. */
reshard_status rs_ranks_create(const char *what, int64_t n, const int64_t *ranks, int64_t world, rs_ranks *out);
void rs_ranks_free(rs_ranks *ranks);
int64_t rs_ranks_at(const rs_ranks *ranks, int64_t position);
/* Position of a rank, or -1. */
int64_t rs_ranks_find(const rs_ranks *ranks, int64_t rank);
bool rs_ranks_equal(const rs_ranks *a, const rs_ranks *b);

#endif
