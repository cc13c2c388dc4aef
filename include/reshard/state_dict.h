/* State dicts: trees that a training job saves, whose leaves may be sharded and distributed tensors. Flattening of
 * nested sharded tensors. Checkpoints of state dicts.
 *
 * Calls that return a status refuse NULL handles (RESHARD_ERROR_INVALID).
 *
 * Source: torch/distributed/checkpoint/_sharded_tensor_utils.py, state_dict_saver.py and state_dict_loader.py,
 * _nested_dict.py. */
#ifndef RESHARD_STATE_DICT_H
#define RESHARD_STATE_DICT_H

#include <reshard/dtensor.h>
#include <reshard/tree.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Make leaves of a state dict, which is a tree. Beside the kinds of a tree its leaves may be opaque values of three
 * types: "sharded tensor", "DTensor" and "nested sharded tensor". Objects are retained. Each call returns one reference
 * for the caller. */
RESHARD_API reshard_status reshard_state_sharded(reshard_sharded_tensor tensor, reshard_tree *leaf);
/* Makes a leaf that is saved and loaded as its sharded tensor is. */
RESHARD_API reshard_status reshard_state_dtensor(reshard_dtensor tensor, reshard_tree *leaf);
/* Makes a sharded tensor of sharded tensors, as FSDP makes them of tensors that tensor parallelism has cut. Local.
 *
 * - sharder: its group has every rank that has a shard, outer or inner. The results of flattening belong to it.
 * - outer: the metadata of the outer shards, which may place a shard on this rank only if that is given, or empty.
 *   Shards of other ranks are theirs to give.
 * - shards: the entries of that metadata for the n local shards.
 * - inner: for each of them a sharded or nested leaf of the outer dtype, whose shape is the shard's extent, on the same
 *   global rank.
 *
 * Errors: RESHARD_ERROR_INVALID naming the shard and both values. */
RESHARD_API reshard_status reshard_state_nested(reshard_sharder sharder, reshard_metadata outer, int64_t n,
                                                const reshard_shard *shards, const reshard_tree *inner,
                                                reshard_tree *leaf);

/* Read the content of such a leaf. Each is an error for other leaves. Borrowed. */
RESHARD_API reshard_status reshard_state_get_sharded(reshard_tree leaf, reshard_sharded_tensor *tensor);
RESHARD_API reshard_status reshard_state_get_dtensor(reshard_tree leaf, reshard_dtensor *tensor);
/* Reads the arguments of reshard_state_nested: the inner tensors, and the number of each one's shard in the outer
 * metadata, *n of them. Any of the outputs may be NULL. Source: _pre_load_state_dict, which unwraps so. */
RESHARD_API reshard_status reshard_state_get_nested(reshard_tree leaf, reshard_metadata *outer, int64_t *n,
                                                    const int64_t **entries, const reshard_tree **inner);

/* Makes a state dict in which every nested sharded tensor has become a plain one. Local. Other nodes, with nothing
 * nested inside, are the same. Any depth, any number of outer and inner shards. A key with no local shard is kept.
 *
 * Offsets of outer and inner shards add up. Outer shards that have an inner tensor here, and equal boxes of other
 * ranks, leave the metadata. All inner shards take their place, with their true owners. Outer shards of other ranks
 * stay as the outer metadata have them, since their nested shards are not known here. Of equal boxes there is one:
 * this rank's, else the lowest rank's. Shards are ordered by rank.
 *
 * The local tensors are the inner ones, not copies; requires_grad and pin_memory are theirs. The result is checked
 * for overlap and coverage in O(n log n); the error names the path.
 *
 * Source: _flatten_sharded_tensors. */
RESHARD_API reshard_status reshard_state_flatten_sharded_tensors(reshard_tree state, reshard_tree *flat);
/* Flattens likewise, with every owner true on every rank, over any groups that the inner tensors are cut over.
 * Collective over the sharder's communicator, in one exchange for all tensors. The flat tensors belong to this
 * sharder.
 *
 * Equal boxes of several ranks are replicas (a parameter that TP replicates; HSDP). The layout is
 * `boxes(replicated;...)` and names every holder; the metadata have each box once, by the lowest global rank. All
 * holders keep their local tensor, and can gather, reshard, save and load the flat one.
 *
 * All ranks give trees with the same nested tensors, in the same order of visit. A node that is at several paths
 * counts once, at the first of them, on all ranks.
 *
 * All ranks succeed, or all have the same error: RESHARD_ERROR_MISMATCH naming ranks, path and both values (paths,
 * shapes, dtypes), or RESHARD_ERROR_INVALID as above. */
RESHARD_API reshard_status reshard_state_flatten_sharded_tensors_global(reshard_sharder sharder, reshard_tree state,
                                                                        reshard_tree *flat);

/* Options of checkpoints: state_dict_saver.save, state_dict_loader.load. Save and load are collective over the
 * sharder's communicator, of any kind. All ranks name one directory, of a file system that they share. A call succeeds
 * on all ranks, or returns the same error on all: a rank whose own step fails takes part all the same.
 *
 * Every leaf has a name, its path (reshard_tree_visit). No two leaves may have the same.
 *
 * Tensors are on the CPU or on the sharder's GPU. Tensors of a GPU go through pinned memory of twice staging_bytes, or
 * twice the largest of them, in groups: one is written to files or read from them while the GPU copies another. The
 * call saves the values that `stream` has written, and waits for it. Loaded values are there for work given to stream
 * after the call. A stream that is being captured is refused.
 *
 * Begin with RESHARD_STATE_SAVE_OPTIONS_DEFAULTS, or set `size` to RESHARD_STATE_SAVE_OPTIONS_INIT; the rest may be 0.
 */
typedef struct reshard_state_save_options {
  size_t size;
  int force;             /* as in reshard_writer_options; the same on all ranks */
  int threads;           /* threads that write this rank's data; 0: its share of the cores */
  void *stream;          /* stream of the GPU that tensors are on (above); NULL on the CPU */
  int64_t staging_bytes; /* size of a group of tensors on their way from or to a GPU (above); 0: 256 MiB */
  int no_digests;        /* as in reshard_writer_options; the same on all ranks */
  reshard_dtype dtype;   /* as in reshard_convert_options: of all numbers in the files; the same on all ranks */
} reshard_state_save_options;
#define RESHARD_STATE_SAVE_OPTIONS_INIT sizeof(reshard_state_save_options)
#define RESHARD_STATE_SAVE_OPTIONS_DEFAULTS \
  { sizeof(reshard_state_save_options), 0, 0, NULL, 0, 0, RESHARD_DTYPE_NONE }

typedef struct reshard_state_save_report { /* the same on all ranks */
  int64_t tensors;
  int64_t files;          /* files of shards; index and state.json are not counted */
  int64_t bytes;          /* size of tensors' data in these files, without their headers */
  int64_t converted;      /* tensors that have another dtype there */
  int64_t unconverted;    /* tensors that `dtype` has left as they are */
  double prepare_seconds; /* comparison of the ranks' trees, headers */
  double reserve_seconds; /* space on the file system */
  double write_seconds;   /* data, until the last rank was done */
  double sync_seconds;    /* until data is on the device, and in place */
} reshard_state_save_report;

/* Saves a state dict. Collective over the sharder's communicator. Tensors and sharded tensors become a directory of
 * shards as reshard_convert writes it, named by their paths; each rank writes its files. Data that several ranks
 * hold is stored once, by the lowest. Other leaves go to state.json beside the shards. The directory appears
 * complete or not at all, as a reshard_writer's does. docs/torch.md has replicas, sharders of other communicators,
 * and the JSON of leaves.
 *
 * - options: NULL for the defaults.
 * - report: NULL, or written on success.
 *
 * Errors, the same on all ranks, after which the path is as it was: as in reshard_writer_create, and
 * - RESHARD_ERROR_MISMATCH naming ranks and path where kinds, dtypes or shapes differ.
 * - as reshard_convert for `dtype`.
 * - RESHARD_ERROR_INVALID naming path, both ranks and both boxes of an overlap, or the box that no rank holds; a
 *   leaf of a caller's own type. */
RESHARD_API reshard_status reshard_state_save(reshard_sharder sharder, reshard_tree state, const char *directory,
                                              const reshard_state_save_options *options,
                                              reshard_state_save_report *report);

/* Begin with RESHARD_STATE_LOAD_OPTIONS_DEFAULTS, or set `size` to RESHARD_STATE_LOAD_OPTIONS_INIT; the
 * rest may be 0. */
typedef struct reshard_state_load_options {
  size_t size;
  int partial;           /* non-zero on all ranks: a name of the checkpoint may be in no rank's state */
  int threads;           /* threads that read this rank's data; 0: its share of the cores */
  void *stream;          /* stream of the GPU that tensors are on (above); NULL on the CPU */
  int64_t staging_bytes; /* size of a group of tensors on their way from or to a GPU (above); 0: 256 MiB */
  int check;             /* non-zero: what is read is checked by the digests that files have; each rank for itself */
} reshard_state_load_options;
#define RESHARD_STATE_LOAD_OPTIONS_INIT sizeof(reshard_state_load_options)
#define RESHARD_STATE_LOAD_OPTIONS_DEFAULTS \
  { sizeof(reshard_state_load_options), 0, 0, NULL, 0, 0 }

typedef struct reshard_state_load_report { /* of this rank */
  int64_t tensors;
  int64_t converted; /* of these, tensors that the checkpoint has in another dtype */
  int64_t bytes;     /* size of this rank's tensors: the bytes needed */
  /* Bytes of data read from files. Replicas are read once: where ranks read together, this rank's share. */
  int64_t read_bytes;
  /* With check: bytes of the files whose digests are right, and files without digests. Of all ranks of the process. */
  int64_t checked_bytes, unchecked_files;
  double open_seconds; /* headers, which one rank of a process reads and checks for all */
  double read_seconds; /* data */
} reshard_state_load_report;

/* Loads into the tensors of a state dict, of any layouts, from any checkpoint that reshard_checkpoint_open reads,
 * saved by any number of ranks. Collective over the sharder's communicator. Every tensor of `state` is filled from
 * the checkpoint's tensor of its path: a rank reads its own part and no more. Numbers of another dtype are converted
 * (docs/torch.md). Other leaves are replaced by the stored ones. Trees may differ between ranks: docs/torch.md.
 *
 * - options, report: may be NULL: the defaults; not written.
 *
 * Before anything is overwritten everything is checked on all ranks: names, dtypes, shapes, gaps, files of a set.
 *
 * Errors: as in reshard_checkpoint_open, and
 * - RESHARD_ERROR_INVALID naming rank and path.
 * - RESHARD_ERROR_CORRUPT with check: file, tensor, box and bytes that are not those that were written; tensors may
 *   be filled in part.
 * - RESHARD_ERROR_SYSTEM: a file cannot be read, or changes meanwhile; tensors may be filled in part, other leaves
 *   are as they were. */
RESHARD_API reshard_status reshard_state_load(reshard_sharder sharder, reshard_tree state, const char *directory,
                                              const reshard_state_load_options *options,
                                              reshard_state_load_report *report);

#ifdef __cplusplus
}
#endif
#endif
