/* A static tree over boxes that answers "which of them share elements with this box". */
#ifndef RS_LAYOUT_TREE_H
#define RS_LAYOUT_TREE_H

#include "base/base.h"

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

#endif
