/* Checkpoints of state dicts: the paths that are saved, state.json, and a stored state that is loaded. */
#ifndef RS_STATE_CHECKPOINT_H
#define RS_STATE_CHECKPOINT_H

#include "file/ground/digest.h"
#include "file/ground/leaves.h"
#include "file/ground/names.h"
#include "state/leaves.h"

/* A path of a state that is saved, in the view of all ranks. Some ranks may lack it (paths.c). */
typedef struct rs_state_path {
  const rs_state_leaf *leaf; /* of the lowest rank that has one that is no null, or has one at all */
  int64_t rank;              /* that rank */
  bool exchanged;            /* the leaf is sharded, and not on all ranks in one layout of the communicator */
} rs_state_path;
typedef struct rs_state_paths {
  RS_VEC(rs_state_path) all;
  int64_t exchanged; /* how many are */
} rs_state_paths;
/* Lists all paths, those of rank 0 first, the same on all ranks; compares kinds, dtypes and shapes. On error the list
 * can be freed. */
reshard_status rs_state_paths_compare(int64_t n, rs_state_call *const *calls, rs_state_paths *paths);
void rs_state_paths_free(rs_state_paths *paths);

/* Tensors whose shards the ranks exchange, in the order of the paths (exchange_shards.c). */
typedef struct rs_exchanged_tensor {
  char *path;         /* owned, as all that follows */
  rs_shard_list flat; /* in: as this rank knows it; only this rank's own shards are sent */
  reshard_metadata mine;
  reshard_sharded_tensor made; /* out: of the sharder of the call */
} rs_exchanged_tensor;
typedef struct rs_exchanged_leaves {
  int64_t n;
  rs_exchanged_tensor *tensors; /* made: over all ranks of the communicator; owned */
} rs_exchanged_leaves;
/* Copies paths, dtypes and shapes; borrows nothing. On error the list can be freed, here and below. */
reshard_status rs_exchanged_leaves_list(const rs_state_paths *paths, rs_exchanged_leaves *exchanged);
void rs_exchanged_leaves_free(rs_exchanged_leaves *exchanged);
/* Collective over the sharder's communicator; the list is the same on all ranks. Exchanges this rank's shards of the
 * tensors in it; the leaves become tensors whose layouts have all ranks. */
reshard_status rs_exchange_leaves(reshard_sharder sharder, rs_state_leaves *leaves, const rs_exchanged_leaves *list,
                                  rs_exchanged_leaves *made);

/* --- state.json: {"version": 1, "leaves": {path: value}} (json.c) ------------------------------------------------ */

/* Appends the value of a leaf that is no tensor and has no children, or the value with its path. Text and JSON begin
 * all zero and grow. */
void rs_state_json_value(rs_text *text, reshard_tree leaf);
void rs_state_json_add(rs_json *json, const rs_state_leaf *leaf);

/* Leaves that were stored, by path. */
typedef struct rs_stored_leaves {
  RS_VEC(reshard_tree) all; /* owned */
  rs_names names;
  RS_VEC(char *) paths; /* owned */
} rs_stored_leaves;
/* Reads them from a directory; none when it is a file or has no state.json. check: compares the text with its digest,
 * where it has one. On error the leaves can be freed. */
reshard_status rs_state_json_read(const char *directory, bool check, rs_stored_leaves *leaves);
/* Adds those that the files of a checkpoint have beside its tensors. */
reshard_status rs_stored_leaves_add(rs_stored_leaves *leaves, reshard_checkpoint checkpoint);
void rs_stored_leaves_free(rs_stored_leaves *leaves);

/* --- A checkpoint that is loaded (checkpoint.c) ------------------------------------------------------------------ */

typedef struct rs_state_checkpoint {
  reshard_checkpoint checkpoint; /* owned, as the leaves are */
  rs_stored_leaves leaves;
} rs_state_checkpoint;
/* Identifies one version of a checkpoint, wherever its file system is mounted: names and sizes of its tensors, and its
 * files, with the times of their last change. */
uint64_t rs_state_checkpoint_version(const rs_state_checkpoint *checkpoint);
/* Number of a tensor, or of a leaf that is none; -1 when there is no such. */
int64_t rs_state_checkpoint_tensor(const rs_state_checkpoint *checkpoint, const char *path);
int64_t rs_state_checkpoint_leaf(const rs_state_checkpoint *checkpoint, const char *path);
/* Checks that every leaf of a rank's state is stored, of its kind, dtype and shape, and can be filled. */
reshard_status rs_state_checkpoint_match(const rs_state_checkpoint *checkpoint, const rs_state_leaves *leaves);
/* Number of names, of tensors and then of leaves. */
int64_t rs_state_checkpoint_names(const rs_state_checkpoint *checkpoint);
/* Marks the names that a rank's state lacks (PyTorch's unexpected keys); any: there are some. *unexpected is the
 * caller's to free. */
reshard_status rs_state_checkpoint_list_unexpected(const rs_state_checkpoint *checkpoint, const rs_state_leaves *leaves,
                                                   char **unexpected, bool *any);
/* Error where a name is unexpected on each of n ranks. */
reshard_status rs_state_checkpoint_check_unexpected(const rs_state_checkpoint *checkpoint, int64_t n,
                                                    const char *const *unexpected);

#endif
