/* Inside of flattening: what there is to change in a tree, and the tree in which it is changed. */
#ifndef RS_SHARDED_STATE_FLATTEN_H
#define RS_SHARDED_STATE_FLATTEN_H

#include "state/state.h"

/* A container or a nested tensor, and what takes its place. */
typedef struct rs_change {
  reshard_state node; /* borrowed */
  char *path;         /* a nested one's, owned */
  reshard_state made; /* owned; NULL: itself */
} rs_change;

/* All of a tree, each once. All zero: empty. */
typedef struct rs_changes {
  rs_names numbers;      /* of nodes */
  RS_VEC(rs_change) all; /* by number */
  RS_VEC(int64_t) order; /* children before parents; nested ones as a visit finds them */
  rs_walk walk;
} rs_changes;

/* root: stays where it is as long as the changes. */
reshard_status rs_changes_find(rs_changes *changes, const reshard_state *root);
/* The next nested tensor in order; *i is 0 at first. NULL: there is none. */
rs_change *rs_changes_next(rs_changes *changes, int64_t *i);
/* What a nested tensor becomes. Takes the tensor over, also on error. */
reshard_status rs_change_put(rs_change *change, reshard_sharded_tensor tensor);
/* The tree in which all of that is done: one reference. */
reshard_status rs_changes_apply(rs_changes *changes, const reshard_state *root, reshard_state *made);
void rs_changes_free(rs_changes *changes);

#endif
