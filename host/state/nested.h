/* Nested sharded tensors: made, listed as shards, flattened by one rank or by all together. */
#ifndef RS_STATE_NESTED_H
#define RS_STATE_NESTED_H

#include "sharded/sharder.h"
#include "tree/tree.h"

#include <reshard/state_dict.h>

/* A sharded tensor of sharded tensors. */
typedef struct rs_nested {
  struct rs_nested *next;  /* of those that are being freed */
  reshard_sharder sharder; /* borrowed */
  reshard_metadata outer;
  int64_t n;           /* outer shards of this rank */
  reshard_tree *inner; /* [n], in the order in which they were given */
  int64_t *entries;    /* [n]: the outer shard of each */
  int64_t *given;      /* per shard of the outer metadata the number of its inner tensor, or one of these: */
} rs_nested;
#define RS_NESTED_OTHER   (-1) /* of another rank */
#define RS_NESTED_REPLICA (-2) /* of another rank, and of the same box as one of this rank */

void rs_nested_release(void *value);
/* The nested tensor with other local tensors, as rs_sharded_map; NULL where nothing changed (nested_map.c). */
reshard_status rs_nested_map(const rs_nested *nested, const rs_tensor_mapper *mapper, rs_nested **mapped);

/* The shards of a tensor, nested to any depth or plain, as one list (nested.c). */
typedef struct rs_listed_shard {
  reshard_shard shard;  /* in the outermost tensor */
  bool mine;            /* of this rank */
  reshard_tensor local; /* of mine; owned; NULL where it has no elements */
} rs_listed_shard;
typedef struct rs_shard_list {
  int64_t rank; /* global, of this process */
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  reshard_properties properties; /* those of the inner tensors where there are any, else of the outermost one */
  bool inner;                    /* there are */
  bool any_flags;                /* requires_grad and pin_memory may differ between shards and ranks */
  RS_VEC(rs_listed_shard) shards;
} rs_shard_list;
/* Lists the shards as this rank knows them: inner shards, and outer ones of which no inner tensor is here. */
reshard_status rs_shard_list_nested(const rs_nested *nested, rs_shard_list *list);
reshard_status rs_shard_list_plain(reshard_sharded_tensor plain, rs_shard_list *list);
void rs_shard_list_free(rs_shard_list *list);
/* Builds the tensor of a list, checked; empties the list (flatten.c). every: the list has all ranks' shards; its layout
 * names every holder of a box, its metadata the lowest rank. Else equal boxes are there once: mine, or the lowest
 * rank's. */
reshard_status rs_shard_list_build(rs_shard_list *list, bool every, reshard_sharder sharder,
                                   reshard_sharded_tensor *tensor);
/* Lists and builds: the plain form of a nested tensor, one reference; local. path for the error. */
reshard_status rs_nested_flatten(const rs_nested *nested, const char *path, reshard_sharded_tensor *tensor);

#endif
