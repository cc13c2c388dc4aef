/* What checkpoints of state dicts share: a rank's leaves by name, and the text of those that are no tensors. */
#ifndef RS_SHARDED_STATE_FILES_H
#define RS_SHARDED_STATE_FILES_H

#include "file/move/store.h"
#include "state/state.h"

/* What another process told of a leaf (told.c). */
typedef struct rs_told {
  reshard_tree_kind kind;
  bool sharded, boxes; /* as in an item */
  reshard_dtype dtype;
  uint64_t layout; /* its hash, where it is sharded and not told by boxes */
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  const char *value; /* of what is no tensor: as state.json has it; borrowed */
} rs_told;

/* A leaf of one rank's tree. */
typedef struct rs_item {
  const char *path;    /* owned by the list */
  const rs_told *told; /* a leaf of another process, of which no more than this is there; NULL: it is here */
  reshard_tree leaf, parent;
  int64_t index;                  /* of the leaf in its parent */
  reshard_sharded_tensor sharded; /* owned; of nested ones what they are flattened, once they are; NULL: another kind */
  const rs_nested *nested;        /* of a leaf that is not flattened yet: borrowed; else NULL */
  bool boxes;    /* its layout is not that of all ranks of the communicator: they have to tell each other their boxes */
  int64_t group; /* in which what a GPU has of it is staged; -1: nothing is */
  char *staged;  /* where, its arrays one after the other */
} rs_item;

typedef struct rs_items {
  RS_VEC(rs_item) all;
  rs_names names; /* of the paths, by number of the item */
  RS_VEC(char) text;
  rs_told *told; /* owned */
} rs_items;

/* All leaves of a state, in order. Borrows its nodes. comm: nested tensors stay as they are, and with what is of other
 * communicators are to be told by boxes; NULL: nested ones are flattened here. Errors: a state that is no container, a
 * path that is twice or no name. On error the list can be freed. */
reshard_status rs_items_list(reshard_comm comm, reshard_tree state, rs_items *items);
void rs_items_free(rs_items *items);
/* NULL when there is no such leaf. */
const rs_item *rs_items_find(const rs_items *items, const char *path);

/* What a GPU has of a rank's leaves goes to files and comes from them through pinned memory, a group of tensors at a
 * time, in the order of a stream. */
typedef struct rs_stage {
  reshard_device device; /* borrowed, as the items are */
  void *stream;
  rs_items *items;
  int64_t groups;
  reshard_tensor half[2]; /* pinned memory of even groups, and of odd ones */
} rs_stage;
/* Checks that there is memory behind all tensors, on the CPU or on the sharder's device; takes what staging in groups
 * of so many bytes (0: the default) needs. On error the stage can be closed. */
reshard_status rs_stage_open(reshard_sharder sharder, void *stream, int64_t bytes, rs_items *items, rs_stage *stage);
void rs_stage_close(rs_stage *stage);
/* Where array a of an item is for the host. */
char *rs_stage_at(const rs_item *item, int64_t a);
/* Gives the stream the copies of a group from the GPU (out), or to it. */
reshard_status rs_stage_copy(const rs_stage *stage, int64_t group, bool out);
/* The host waits for them. */
reshard_status rs_stage_wait(const rs_stage *stage);

/* What a rank brings to a meeting of a save or a load. */
typedef struct rs_state_turn {
  reshard_status status;
  const char *text; /* of a status that is no success */
  reshard_comm comm;
  const char *directory;
  rs_items items;
  rs_stage stage;
} rs_state_turn;
/* No rank has failed - the lowest one that has speaks for all - and all name one directory. does, way: "saves", "to".
 */
reshard_status rs_state_turns_check(const char *does, const char *way, int64_t n, rs_state_turn *const *turns);

/* What a leaf is; a tensor is a plain or a sharded one. */
static inline bool rs_item_is_sharded(const rs_item *item) {
  return item->told != NULL ? item->told->sharded : item->sharded != NULL || item->nested != NULL;
}
static inline bool rs_item_by_boxes(const rs_item *item) {
  return item->told != NULL ? item->told->boxes : item->boxes;
}
static inline reshard_tree_kind rs_item_kind(const rs_item *item) {
  return item->told != NULL ? item->told->kind : item->leaf->kind;
}
static inline bool rs_item_is_tensor(const rs_item *item) {
  return rs_item_is_sharded(item) || rs_item_kind(item) == RESHARD_TREE_TENSOR;
}
reshard_dtype rs_item_dtype(const rs_item *item);
int rs_item_ndim(const rs_item *item);
const int64_t *rs_item_shape(const rs_item *item);
/* Appends the arrays of a leaf to a store in memory, as what the rank has of a layout that is the item's, or single. */
reshard_status rs_item_add(const rs_item *item, reshard_layout layout, int64_t rank, rs_store *store);
/* The same for one more rank of the tensor that was appended last. Ranks ascend. */
reshard_status rs_item_hold(const rs_item *item, reshard_layout layout, int64_t rank, rs_store *store);
/* Marks the items of which an array, from its first to its last byte, overlaps another item's. sharing: [items->all.n],
 * all false before. */
reshard_status rs_items_sharing(const rs_items *items, bool *sharing);
/* Threads that one rank has. */
int rs_rank_threads(reshard_comm comm, int threads);
/* Are all ranks threads of this process? */
static inline bool rs_one_process(reshard_comm comm) { return comm->locals == comm->size; }

/* A turn as bytes for other processes, with a number that is compared; and such a turn of another rank, which borrows
 * the bytes, and whose items are to be freed, also after an error. */
reshard_status rs_told_pack(const rs_state_turn *turn, int64_t option, rs_print *bytes);
reshard_status rs_told_unpack(const char *bytes, int64_t size, rs_state_turn *turn, int64_t *option);

/* A path of a state that is saved, as all ranks have it. A path may be absent on some of them. */
typedef struct rs_path {
  const rs_item *item; /* of the lowest rank that has it, where it is no null if there is such a one */
  int64_t rank;        /* this one */
  bool boxes;          /* sharded, and the ranks do not all have the same layout of the communicator */
} rs_path;
typedef struct rs_paths {
  RS_VEC(rs_path) all;
  int64_t boxes; /* how many are told by boxes */
} rs_paths;
/* All paths, those of rank 0 first; kinds, dtypes and shapes are compared. The same on all ranks. On error the list can
 * be freed. */
reshard_status rs_paths_compare(int64_t n, rs_state_turn *const *turns, rs_paths *paths);
void rs_paths_free(rs_paths *paths);

/* What is told by boxes, in the order of the paths. */
typedef struct rs_boxed {
  int64_t n;
  rs_meeting *tensors; /* made: over all ranks of the communicator; owned */
} rs_boxed;
/* A copy of names, dtypes and shapes that borrows nothing. On error it can be freed, here and below. */
reshard_status rs_boxed_list(const rs_paths *paths, rs_boxed *boxed);
void rs_boxed_free(rs_boxed *boxed);
/* Collective over the sharder's communicator, with what the list above has on all ranks: what this rank holds of it is
 * told, and the items become tensors of the layouts of all. */
reshard_status rs_boxed_meet(reshard_sharder sharder, rs_items *items, const rs_boxed *list, rs_boxed *made);

/* state.json: {"version": 1, "leaves": {path: value}}. */
#define RS_STATE_JSON "state.json"
void rs_state_json_begin(rs_print *text);
/* A leaf that is no tensor and has no children: its value; and appended. */
void rs_state_json_value(rs_print *text, reshard_tree leaf);
void rs_state_json_add(rs_print *text, const rs_item *item);
void rs_state_json_end(rs_print *text);

/* Leaves that were stored, by path. */
typedef struct rs_leaves {
  RS_VEC(reshard_tree) all; /* owned */
  rs_names names;
  RS_VEC(char *) paths; /* owned */
} rs_leaves;
/* Reads them from a directory; none when it is a file or has no state.json. On error the leaves can be freed. */
reshard_status rs_state_json_read(const char *directory, rs_leaves *leaves);
void rs_leaves_free(rs_leaves *leaves);

/* What is loaded (fit.c). */
typedef struct rs_opened {
  reshard_checkpoint checkpoint; /* owned, as the leaves are */
  rs_leaves leaves;
} rs_opened;
/* Number of a tensor, or of a leaf that is none; -1 when there is no such. */
int64_t rs_opened_tensor(const rs_opened *opened, const char *path);
int64_t rs_opened_leaf(const rs_opened *opened, const char *path);
/* Everything in a rank's state is stored, of its kind, dtype and shape, and can be filled. */
reshard_status rs_opened_fits(const rs_opened *opened, const rs_items *items);
/* How many names there are, of tensors and then of leaves. For each of them, whether a rank's state lacks it; some: it
 * lacks one at least. *lacks is the caller's to free. */
int64_t rs_opened_names(const rs_opened *opened);
reshard_status rs_opened_list_lacking(const rs_opened *opened, const rs_items *items, char **lacks, bool *some);
/* Each name is in a rank's state; lacks: of each of n ranks. */
reshard_status rs_opened_check_lacking(const rs_opened *opened, int64_t n, const char *const *lacks);

#endif
