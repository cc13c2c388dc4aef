/* A walk through a tree, and mapping. */
#ifndef RS_TREE_WALK_H
#define RS_TREE_WALK_H

#include "tree/tree.h"

/* As reshard_tree_visitor, with the container whose child `index` the leaf is; NULL for a leaf that is the tree. */
typedef reshard_status (*rs_tree_visitor)(void *user, const char *path, reshard_tree parent, int64_t index,
                                          reshard_tree leaf);
reshard_status rs_tree_walk(reshard_tree tree, rs_tree_visitor visit, void *user);

/* Place of a walk: containers, the innermost one last, and the path of the child taken last. All zero: nowhere. */
typedef struct rs_frame {
  reshard_tree node;
  int64_t next; /* child */
  int64_t path; /* bytes of the path of the node */
} rs_frame;
typedef struct rs_walk {
  RS_VEC(rs_frame) stack;
  RS_VEC(char) path; /* NUL-terminated */
} rs_walk;
/* Enters a container: the child taken last, or the root. */
reshard_status rs_walk_enter(rs_walk *walk, reshard_tree container);
/* Takes the next child of the innermost container; *slot NULL: there is none, and the walk has left the container. */
reshard_status rs_walk_next(rs_walk *walk, reshard_tree **slot);
void rs_walk_free(rs_walk *walk);

/* As reshard_tree_map and reshard_tree_map_tensors (map.c, tensors.c); sets false: leaves of sets stay. */
reshard_status rs_tree_map(reshard_tree tree, reshard_tree_leaf_map map, void *user, bool sets, reshard_tree *mapped);
reshard_status rs_tree_map_tensors(reshard_tree tree, reshard_tree_tensor_map map, void *user, bool sets,
                                   reshard_tree *mapped);

#endif
