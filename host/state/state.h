/* Inside of state dicts: nodes, and the walk over them. */
#ifndef RS_SHARDED_STATE_H
#define RS_SHARDED_STATE_H

#include "file/names.h"
#include "sharded/sharder.h"

#include <reshard/state_dict.h>

typedef struct rs_child {
  char *key;          /* owned; NULL in a list */
  reshard_state node; /* owned */
} rs_child;

/* A sharded tensor of sharded tensors. */
typedef struct rs_nested {
  reshard_sharder sharder; /* borrowed */
  reshard_metadata outer;
  int64_t n;            /* outer shards that are here */
  reshard_state *inner; /* [n], in the order in which they were given */
  int64_t *entries;     /* [n]: which outer shard each is */
  int64_t *given;       /* per shard of the outer metadata the number of its inner tensor, or one of these: */
} rs_nested;
#define RS_NESTED_OTHER   (-1) /* not here */
#define RS_NESTED_REPLICA (-2) /* not here, of the same box as one that is */

struct reshard_state_s {
  atomic_int references;
  atomic_bool placed; /* was put in a container once: may be inside of others */
  reshard_state_kind kind;
  reshard_state next; /* of those that are being freed */
  union {
    struct {
      RS_VEC(rs_child) children;
      rs_names keys;  /* a dict's, by the number of the child */
      size_t longest; /* key */
    };
    reshard_tensor tensor;
    reshard_sharded_tensor sharded;
    reshard_dtensor dtensor;
    rs_nested nested;
    struct {
      char *bytes;
      size_t size;
    };
    int64_t integer; /* of a bool, too */
    double real;
  };
};

/* A node without anything in it; call is for the error where output is NULL. */
reshard_status rs_state_new(const char *call, reshard_state_kind kind, reshard_state *output);
static inline bool rs_state_holds(reshard_state s) {
  return s->kind == RESHARD_STATE_DICT || s->kind == RESHARD_STATE_LIST;
}
/* Appends a child, which is retained and does not have the container inside it, under a key that is not there yet (NULL
 * in a list). */
reshard_status rs_state_add(reshard_state container, const char *key, reshard_state child);
/* Puts a node, which is retained, in the place of child i, which is released. */
void rs_state_replace(reshard_state parent, int64_t i, reshard_state child);
/* "a dict", "an integer"; "NULL" for a kind that is none. */
const char *rs_state_kind_text(reshard_state_kind kind);
/* "path 'x': " before the last error; returns status. */
reshard_status rs_state_path_error(const char *path, reshard_status status);

/* --- Going through a tree (walk.c) ---------------------------------------------------------------------- */

/* As reshard_state_visitor, with the container whose child `index` the leaf is; NULL for a leaf that is the state. */
typedef reshard_status (*rs_state_visitor)(void *user, const char *path, reshard_state parent, int64_t index,
                                           reshard_state leaf);
reshard_status rs_state_walk(reshard_state state, rs_state_visitor visit, void *user);

/* Where a walk is: containers, the innermost one last, and the path of the child taken last. All zero: nowhere. */
typedef struct rs_frame {
  reshard_state node;
  int64_t next; /* child */
  int64_t path; /* bytes of the path of the node */
} rs_frame;
typedef struct rs_walk {
  RS_VEC(rs_frame) stack;
  RS_VEC(char) path; /* NUL-terminated */
} rs_walk;
/* Goes into a container: the child taken last, or the root. */
reshard_status rs_walk_enter(rs_walk *walk, reshard_state container);
/* The next child of the innermost container, borrowed from it; NULL: there is none, and the walk is out of the
 * container. */
reshard_status rs_walk_next(rs_walk *walk, const rs_child **child);
void rs_walk_free(rs_walk *walk);

/* --- Nested tensors (nested.c) -------------------------------------------------------------------------- */

/* The shards of a nested tensor, of any depth, as one list: what becomes its plain form. */
typedef struct rs_flat_shard {
  reshard_shard shard;  /* in the outermost tensor */
  bool mine;            /* of this rank */
  reshard_tensor local; /* of mine; owned; NULL where it has no elements */
} rs_flat_shard;
typedef struct rs_flat {
  int64_t rank; /* global, of this process */
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  reshard_properties properties; /* those of the inner tensors where there are any, else of the outermost one */
  bool inner;                    /* there are */
  RS_VEC(rs_flat_shard) shards;
} rs_flat;
/* As this rank knows them: the inner shards, and what the outer metadata say where nothing is nested here. */
reshard_status rs_flat_list(reshard_state nested, rs_flat *flat);
/* Equal boxes once, by rank, checked. Empties the list. */
reshard_status rs_flat_finish(rs_flat *flat, reshard_sharder sharder, reshard_sharded_tensor *tensor);
void rs_flat_free(rs_flat *flat);
/* Both: the plain sharded tensor that a NESTED node is, one reference; local. path for the error. */
reshard_status rs_nested_flatten(reshard_state nested, const char *path, reshard_sharded_tensor *tensor);

#endif
