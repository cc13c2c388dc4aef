/* Queries: which cells of a layout share elements with a product of index sets. */
#ifndef RS_LAYOUT_QUERY_H
#define RS_LAYOUT_QUERY_H

#include "layout/layout.h"

/* A run that asker and holder share: n indices from `ask` on in the asker's array, from `held` on in the holder's. */
typedef struct rs_run {
  int64_t ask, held, n;
} rs_run;
typedef struct rs_list {
  int64_t first, count; /* in rs_lists.run */
  int64_t length;       /* sum of n */
} rs_list;
/* A part of one dim that a query meets: its list, and the number of the part. */
typedef struct rs_group {
  int64_t part, list;
} rs_group;
typedef struct rs_found {
  int64_t part;
  rs_run run;
} rs_found;
/* Pool of lists of runs; ascending within a list. The rest is scratch memory of queries, kept from one to the next. */
typedef struct rs_lists {
  RS_VEC(rs_run) run;
  RS_VEC(rs_list) list;
  RS_VEC(rs_found) found;
  RS_VEC(rs_group) group;
} rs_lists;
void rs_lists_free(rs_lists *lists);
/* Frees the scratch memory, once no query comes any more. */
void rs_lists_drop_scratch(rs_lists *lists);

/* Product of index sets: per dim of the layout `count[d]` pieces, ascending. */
typedef struct rs_query {
  int64_t count[RESHARD_MAX_DIMS];
  const rs_piece *pieces[RESHARD_MAX_DIMS];
} rs_query;

/* One cell that the query meets. list[d]: number in the pool of the runs in dim d; length[d]: their indices; elements:
 * the product of the lengths. */
typedef struct rs_hit {
  int64_t cell;
  int64_t elements;
  int64_t length[RESHARD_MAX_DIMS];
  int64_t list[RESHARD_MAX_DIMS];
} rs_hit;
typedef reshard_status (*rs_hit_visit)(void *user, const rs_hit *hit);

/* Calls visit for each cell that shares elements with the query; lists are appended to `lists`. With ndim 0 a query
 * meets its one cell once, with no lists. Regular layouts make their lists before the first visit and share them
 * between cells; the others make ndim lists for each cell. lists NULL: none are made; allowed for boxes and flat
 * layouts, with one piece per dim. Cost: the runs met, and a search for each. */
reshard_status rs_layout_query(const struct reshard_layout_s *layout, const rs_query *query, rs_lists *lists,
                               rs_hit_visit visit, void *user);

/* Parts of one dim that pieces meet, as groups appended to lists->group, each with a list. */
reshard_status rs_dim_meet(const rs_dim *dim, const rs_piece *pieces, int64_t count, rs_lists *lists);

#endif
