/* A rank's call of a save or a load: its leaves by name, and the pinned memory between a GPU and files. */
#ifndef RS_STATE_LEAVES_H
#define RS_STATE_LEAVES_H

#include "base/json.h"
#include "file/ground/names.h"
#include "file/move/store.h"
#include "state/nested.h"

/* A leaf of another process's tree, as call.c has received it. */
typedef struct rs_remote_leaf {
  reshard_tree_kind kind;
  bool sharded, exchanged; /* as in rs_state_leaf */
  reshard_dtype dtype;
  uint64_t layout; /* hash, where the leaf is sharded and not exchanged */
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  const char *value; /* JSON of a leaf that is no tensor; borrowed */
} rs_remote_leaf;

/* A leaf of one rank's tree. */
typedef struct rs_state_leaf {
  const char *path;             /* owned by the list */
  const rs_remote_leaf *remote; /* NULL: the leaf is of this process */
  reshard_tree node, parent;
  int64_t index;                  /* of the node in its parent */
  reshard_sharded_tensor sharded; /* owned; of a nested tensor its plain form, once flattened; NULL: another kind */
  const rs_nested *nested;        /* borrowed; a nested tensor that is not flattened yet; else NULL */
  bool exchanged;                 /* no layout of all ranks describes it: the ranks exchange their shards */
  int64_t batch;                  /* in which its arrays of a GPU are copied; -1: it has none */
  char *pinned;                   /* address of these arrays in pinned memory, one after the other */
} rs_state_leaf;

typedef struct rs_state_leaves {
  RS_VEC(rs_state_leaf) all;
  rs_names names; /* paths, by number of the leaf */
  RS_VEC(char) text;
  rs_remote_leaf *remote; /* owned */
} rs_state_leaves;

/* Lists all leaves of a state, in order; borrows its nodes. comm NULL: flattens nested tensors. Else nested tensors and
 * those of other communicators are marked as exchanged. Errors: a state that is no container, a path that is twice or
 * no name. On error the list can be freed. */
reshard_status rs_state_leaves_list(reshard_comm comm, reshard_tree state, rs_state_leaves *leaves);
void rs_state_leaves_free(rs_state_leaves *leaves);
/* NULL when there is no such leaf. */
const rs_state_leaf *rs_state_leaves_find(const rs_state_leaves *leaves, const char *path);
/* Marks the leaves of which an array, from its first to its last byte, overlaps another leaf's. shared:
 * [leaves->all.n], all false before. */
reshard_status rs_state_leaves_find_shared(const rs_state_leaves *leaves, bool *shared);

/* Kind of a leaf; tensors are plain or sharded. */
static inline bool rs_state_leaf_is_sharded(const rs_state_leaf *leaf) {
  return leaf->remote != NULL ? leaf->remote->sharded : leaf->sharded != NULL || leaf->nested != NULL;
}
static inline bool rs_state_leaf_is_exchanged(const rs_state_leaf *leaf) {
  return leaf->remote != NULL ? leaf->remote->exchanged : leaf->exchanged;
}
static inline reshard_tree_kind rs_state_leaf_kind(const rs_state_leaf *leaf) {
  return leaf->remote != NULL ? leaf->remote->kind : leaf->node->kind;
}
static inline bool rs_state_leaf_is_tensor(const rs_state_leaf *leaf) {
  return rs_state_leaf_is_sharded(leaf) || rs_state_leaf_kind(leaf) == RESHARD_TREE_TENSOR;
}
reshard_dtype rs_state_leaf_dtype(const rs_state_leaf *leaf);
int rs_state_leaf_ndim(const rs_state_leaf *leaf);
const int64_t *rs_state_leaf_shape(const rs_state_leaf *leaf);
/* Arrays of a leaf of this process, in the order of its layout; an array without elements may be NULL. */
static inline int64_t rs_state_leaf_arrays(const rs_state_leaf *leaf) {
  return leaf->sharded != NULL ? leaf->sharded->local.n : leaf->nested == NULL && rs_state_leaf_is_tensor(leaf);
}
static inline reshard_tensor rs_state_leaf_array(const rs_state_leaf *leaf, int64_t a) {
  return leaf->sharded != NULL ? leaf->sharded->local.arrays[a] : leaf->node->tensor;
}
/* Appends the arrays of a leaf to a store in memory, as the rank's part of a layout: the leaf's own, or single. */
reshard_status rs_state_leaf_add(const rs_state_leaf *leaf, reshard_layout layout, int64_t rank, rs_store *store);
/* Adds those of one more rank to the tensor that was appended last. Ranks ascend. */
reshard_status rs_state_leaf_add_rank(const rs_state_leaf *leaf, reshard_layout layout, int64_t rank, rs_store *store);

/* --- Pinned memory between a GPU and files (pinned_buffers.c) ---------------------------------------------------- */

typedef struct rs_pinned_buffers {
  reshard_device device; /* borrowed, as the leaves are */
  void *stream;
  rs_state_leaves *leaves;
  int64_t batches;
  reshard_tensor half[2]; /* pinned memory of even batches, and of odd ones */
} rs_pinned_buffers;
/* Checks that all tensors have memory, on the CPU or on the sharder's device. Sorts those of a GPU into batches of so
 * many bytes (0: the default) and allocates the pinned memory. On error the buffers can be closed. */
reshard_status rs_pinned_buffers_open(reshard_sharder sharder, void *stream, int64_t bytes, rs_state_leaves *leaves,
                                      rs_pinned_buffers *buffers);
void rs_pinned_buffers_close(rs_pinned_buffers *buffers);
/* Address of array a of a leaf in pinned memory. */
char *rs_pinned_buffers_at(const rs_state_leaf *leaf, int64_t a);
/* Enqueues the copies of a batch from the GPU (out), or to it. */
reshard_status rs_pinned_buffers_copy(const rs_pinned_buffers *buffers, int64_t batch, bool out);
/* Blocks the host until the copies are done. */
reshard_status rs_pinned_buffers_wait(const rs_pinned_buffers *buffers);

/* --- Calls (call.c) ---------------------------------------------------------------------------------------------- */

/* One rank's call, as the ranks compare it. */
typedef struct rs_state_call {
  reshard_status status;
  const char *text; /* of a status that is no success */
  reshard_comm comm;
  const char *directory;
  rs_state_leaves leaves;
  rs_pinned_buffers buffers;
} rs_state_call;
/* Error of the lowest rank that has failed, or of two that name different directories. does, way: "saves", "to". */
reshard_status rs_state_calls_check(const char *does, const char *way, int64_t n, rs_state_call *const *calls);
/* A call as bytes for other processes, with a number that they compare. An unpacked call borrows the bytes; its leaves
 * are to be freed, also after an error. */
reshard_status rs_state_call_pack(const rs_state_call *call, int64_t option, rs_text *bytes);
reshard_status rs_state_call_unpack(const char *bytes, int64_t size, rs_state_call *call, int64_t *option);
/* Threads that one rank has; threads 0: its share of the cores. */
int rs_rank_threads(reshard_comm comm, int threads);
/* All ranks are threads of this process. */
static inline bool rs_one_process(reshard_comm comm) { return comm->locals == comm->size; }

#endif
