/* Counts of the elements of a query that the ranks of a layout hold. */
#ifndef RS_LAYOUT_CENSUS_H
#define RS_LAYOUT_CENSUS_H

#include "layout/query.h"

/* Counts the elements of a query that the ranks of a regular layout hold, without visiting them. For layouts
 * whose rank list ascends, and for one rank of it. Made once, asked for query after query: a dim in which the query is
 * as before is not counted again. */
typedef struct rs_census {
  const struct reshard_layout_s *layout;
  int64_t position; /* of the rank, in the rank list */
  int nsubsets;
  struct rs_census_subset *subsets;
  struct {
    rs_pieces asked; /* the query it was counted for */
    rs_lists lists;
    int64_t all;    /* queried indices, over all parts */
    int64_t *below; /* [nsubsets] over the parts of ranks of that subset */
  } dim[RESHARD_MAX_DIMS];
} rs_census;
reshard_status rs_census_create(const struct reshard_layout_s *layout, int64_t rank, rs_census *out);
void rs_census_free(rs_census *census);
reshard_status rs_census_take(rs_census *census, const rs_query *query);
/* Elements of the query that a rank holds; that all ranks below mine hold, summed; that all ranks hold, summed. */
int64_t rs_census_of(const rs_census *census, int64_t rank);
int64_t rs_census_below(const rs_census *census);
int64_t rs_census_all(const rs_census *census);

#endif
