/* Inside of state dicts: leaves that are sharded tensors. */
#ifndef RS_SHARDED_STATE_H
#define RS_SHARDED_STATE_H

#include "sharded/sharder.h"
#include "tree/tree.h"

#include <reshard/state_dict.h>

/* A sharded tensor of sharded tensors. */
typedef struct rs_nested {
  struct rs_nested *next;  /* of those that are being freed */
  reshard_sharder sharder; /* borrowed */
  reshard_metadata outer;
  int64_t n;           /* outer shards that are here */
  reshard_tree *inner; /* [n], in the order in which they were given */
  int64_t *entries;    /* [n]: which outer shard each is */
  int64_t *given;      /* per shard of the outer metadata the number of its inner tensor, or one of these: */
} rs_nested;
#define RS_NESTED_OTHER   (-1) /* not here */
#define RS_NESTED_REPLICA (-2) /* not here, of the same box as one that is */

extern const reshard_tree_type rs_sharded_type, rs_dtensor_type, rs_nested_type;
/* What a leaf is; NULL where it is another kind, and for NULL. */
static inline reshard_sharded_tensor rs_leaf_sharded(reshard_tree leaf) {
  return rs_node_value(leaf, &rs_sharded_type);
}
static inline reshard_dtensor rs_leaf_dtensor(reshard_tree leaf) { return rs_node_value(leaf, &rs_dtensor_type); }
static inline const rs_nested *rs_leaf_nested(reshard_tree leaf) { return rs_node_value(leaf, &rs_nested_type); }
/* A leaf of that type, and somewhere to put what it has? */
reshard_status rs_leaf_check(const char *call, const reshard_tree_type *type, reshard_tree leaf, const void *output);

/* print of these types (print.c): "f32 8x6 chunk(0;0-3)". */
void rs_sharded_print(const void *value, char *text, size_t size);
void rs_dtensor_print(const void *value, char *text, size_t size);
void rs_nested_print(const void *value, char *text, size_t size);

/* --- Nested tensors (nested.c, flatten.c) --------------------------------------------------------------- */

void rs_nested_release(void *value);
/* With other local tensors, as rs_sharded_map; NULL where nothing changed (map.c). */
reshard_status rs_nested_map(const rs_nested *nested, const rs_tensor_mapper *mapper, rs_nested **mapped);

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
  bool any_flags;                /* requires_grad and pin_memory may differ between shards and ranks */
  RS_VEC(rs_flat_shard) shards;
} rs_flat;
/* As this rank knows them: the inner shards, and what the outer metadata say where nothing is nested here. */
reshard_status rs_flat_list(const rs_nested *nested, rs_flat *flat);
/* The same of a tensor that is not nested. */
reshard_status rs_flat_list_plain(reshard_sharded_tensor plain, rs_flat *flat);
/* The tensor of a list, checked; empties the list. every: the list has all ranks' shards; its layout names every holder
 * of a box, its metadata the lowest rank. Else equal boxes are there once: mine, or the lowest rank's. */
reshard_status rs_flat_finish(rs_flat *flat, bool every, reshard_sharder sharder, reshard_sharded_tensor *tensor);
void rs_flat_free(rs_flat *flat);
/* Both: the plain sharded tensor that a nested one is, one reference; local. path for the error. */
reshard_status rs_nested_flatten(const rs_nested *nested, const char *path, reshard_sharded_tensor *tensor);

/* A tensor of which each rank tells the others its shards (exchange.c). */
typedef struct rs_meeting {
  char *path;   /* owned, as all that follows */
  rs_flat flat; /* in: as this rank knows it, of which only its own shards are told */
  reshard_metadata mine;
  reshard_sharded_tensor made; /* out: of the sharder of the call */
} rs_meeting;
/* Collective over the sharder's communicator, one exchange: n tensors, whose paths, dtypes and shapes are compared. A
 * rank without shards of one has an empty list with its dtype and shape. status: as in rs_comm_gather_bytes. */
reshard_status rs_flat_meet(reshard_sharder sharder, reshard_status status, int64_t n, rs_meeting *tensors);
void rs_meetings_free(int64_t n, rs_meeting *tensors);

#endif
