/* State dicts: trees of what a training job saves, whose leaves may be sharded and distributed tensors; flattening of
 * nested sharded tensors; and checkpoints of them.
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

/* A state dict is a tree; what its leaves may be besides what trees know are opaque values, a type for each: "sharded
 * tensor", "DTensor" and "nested sharded tensor". They are retained. Each call returns one reference for the caller. */
RESHARD_API reshard_status reshard_state_sharded(reshard_sharded_tensor tensor, reshard_tree *leaf);
/* Saved and loaded as its sharded tensor is. */
RESHARD_API reshard_status reshard_state_dtensor(reshard_dtensor tensor, reshard_tree *leaf);
/* A sharded tensor of sharded tensors, as FSDP makes them of what tensor parallelism has cut. outer: where the outer
 * shards are; for each of the n local ones its entry of that metadata, and what it is made of: a sharded or nested leaf
 * of the outer dtype, whose shape is the shard's extent, on the same global rank. The outer metadata may place a shard
 * on this rank only if it is given, or empty; what others have is theirs to give. sharder: its group has every rank
 * that has a shard, outer or inner; what comes of flattening belongs to it. Local. Errors: RESHARD_ERROR_INVALID naming
 * the shard and both values. */
RESHARD_API reshard_status reshard_state_nested(reshard_sharder sharder, reshard_metadata outer, int64_t n,
                                                const reshard_shard *shards, const reshard_tree *inner,
                                                reshard_tree *leaf);

/* What such a leaf has; each is an error for other leaves. Borrowed. */
RESHARD_API reshard_status reshard_state_get_sharded(reshard_tree leaf, reshard_sharded_tensor *tensor);
RESHARD_API reshard_status reshard_state_get_dtensor(reshard_tree leaf, reshard_dtensor *tensor);
/* What reshard_state_nested was given: the inner tensors, and which shard of the outer metadata each is, *n of them.
 * Any of the outputs may be NULL. Source: _pre_load_state_dict, which unwraps so. */
RESHARD_API reshard_status reshard_state_get_nested(reshard_tree leaf, reshard_metadata *outer, int64_t *n,
                                                    const int64_t **entries, const reshard_tree **inner);

/* _flatten_sharded_tensors: local. A state dict in which every nested sharded tensor has become a plain one; everything
 * else, and what has nothing nested in it, is the same node. Offsets of outer and inner shards add up; outer shards
 * that have an inner tensor here leave the metadata, and so do their replicas (equal boxes of other ranks); all inner
 * shards, mine and others', with their true owners, take their place. Outer shards that others have stay as the outer
 * metadata have them: what is nested in them is not known here (see below). Of equal boxes there is one: mine where I
 * have it, else the lowest rank's. Any depth, any number of outer and inner shards; a key with no local shard is kept.
 * Shards are ordered by rank. The local tensors are the inner ones, not copies of them; requires_grad and pin_memory
 * are theirs. The result is checked for overlap and coverage in O(n log n); the error names the path. */
RESHARD_API reshard_status reshard_state_flatten_sharded_tensors(reshard_tree state, reshard_tree *flat);
/* The same, with every owner true on every rank, whatever the groups that the inner tensors are cut over: collective
 * over the sharder's communicator. Each rank tells what it has, in one exchange for all tensors, so that nothing is
 * left of outer shards. Equal boxes of several ranks are replicas (a parameter that TP replicates; HSDP): the layout is
 * `boxes(replicated;...)` and names every holder, equal on all ranks; the metadata have each box once, by the lowest
 * global rank; every holder keeps its local tensor. So a flat tensor can be gathered, resharded, saved and loaded into
 * on all ranks, and all that hold a box get it. All ranks give trees with the same nested tensors, in the same order of
 * visit; a node that is at several paths counts once, at the first of them, and is then at these paths on all ranks.
 * The flat ones belong to this sharder. All ranks succeed, or all have the same error: RESHARD_ERROR_MISMATCH naming
 * ranks, path and both values (paths, shapes, dtypes), or RESHARD_ERROR_INVALID as above. */
RESHARD_API reshard_status reshard_state_flatten_sharded_tensors_global(reshard_sharder sharder, reshard_tree state,
                                                                        reshard_tree *flat);

/* Checkpoints: state_dict_saver.save, state_dict_loader.load. Both are collective over the sharder's communicator,
 * of any kind; all ranks name one directory, of a file system that they share. They succeed on all ranks, or return the
 * same error on all: a rank whose own step fails takes part all the same.
 *
 * Every leaf has a name, its path (reshard_tree_visit); no two leaves may have the same.
 *
 * Tensors are on the CPU or on the sharder's GPU. Those go through pinned memory of twice staging_bytes, or twice the
 * largest of them: in groups, of which one is written to files or read from them while the GPU copies another. What is
 * saved is what `stream` has written, for which the call waits; what is loaded is there for what stream is given after
 * the call. A stream that is being captured is refused. */
typedef struct reshard_state_save_options {
  size_t size;
  int force;             /* as in reshard_writer_options; the same on all ranks */
  int threads;           /* that write what this rank holds; 0: its share of the cores */
  void *stream;          /* of the GPU that tensors are on (above); NULL on the CPU */
  int64_t staging_bytes; /* of a group of tensors on their way from or to a GPU (above); 0: 256 MiB */
} reshard_state_save_options;
#define RESHARD_STATE_SAVE_OPTIONS_INIT sizeof(reshard_state_save_options)
#define RESHARD_STATE_SAVE_OPTIONS_DEFAULTS {sizeof(reshard_state_save_options), 0, 0, NULL, 0}

typedef struct reshard_state_save_report { /* the same on all ranks */
  int64_t tensors;
  int64_t files;          /* of shards; index and state.json are not counted */
  int64_t bytes;          /* of tensors' data in these files, without their headers */
  double prepare_seconds; /* comparing the ranks' trees, headers */
  double reserve_seconds; /* space on the file system */
  double write_seconds;   /* data, until the last rank was done */
  double sync_seconds;    /* until it is on the device, and in place */
} reshard_state_save_report;

/* Saves a state dict. Tensors and sharded tensors become a directory of shards as reshard_convert writes it, named by
 * their paths: each rank writes its files, what several ranks hold is stored once, by the lowest. A path may be absent
 * on some ranks, or a null. A plain tensor is saved by the lowest rank that has it; others' are replicas: they have its
 * dtype and shape, their elements are not compared.
 *
 * Sharded tensors, DTensors and nested ones may be of any sharders: of this communicator, or of others, as what FSDP
 * makes of a plain tensor is of its group's. Where all ranks have a path in one layout of this communicator, that says
 * who holds what. Else - another communicator, a nested tensor, layouts that differ, ranks without the path - each rank
 * that has it tells its own boxes: equal ones are replicas, whose contents are not compared; any other overlap, and a
 * gap, is an error. So a path that is in several groups is one tensor. Both sharders give this process one global rank
 * (reshard_comm_global_ranks, or the options of a sharder whose communicator has no common root with this one).
 *
 * Other leaves go to state.json beside the shards, as the lowest rank has them where it is not null: integers, floats,
 * bools and nulls as JSON has them, what JSON lacks as {"float": "nan"} ("inf", "-inf"; a NaN is a NaN, whatever its
 * bits), bytes as {"bytes": base64}; values of the caller's own types are refused.
 * Containers leave no trace but in the paths: kinds, names of structs, batch sizes of packed sequences are not saved
 * (their data is, as a tensor). The directory appears complete or not at all, as a reshard_writer's does.
 *
 * options and report may be NULL; the report is written on success.
 * Errors: as reshard_writer_create; RESHARD_ERROR_MISMATCH naming ranks and path where kinds, dtypes or shapes differ;
 * RESHARD_ERROR_INVALID naming path, both ranks and both boxes of an overlap, or the box that no rank holds. After an
 * error the path is as it was. */
RESHARD_API reshard_status reshard_state_save(reshard_sharder sharder, reshard_tree state, const char *directory,
                                              const reshard_state_save_options *options,
                                              reshard_state_save_report *report);

typedef struct reshard_state_load_options {
  size_t size;
  int partial;           /* non-zero on all ranks: a name of the checkpoint may be in no rank's state */
  int threads;           /* that read what this rank needs; 0: its share of the cores */
  void *stream;          /* of the GPU that tensors are on (above); NULL on the CPU */
  int64_t staging_bytes; /* of a group of tensors on their way from or to a GPU (above); 0: 256 MiB */
} reshard_state_load_options;
#define RESHARD_STATE_LOAD_OPTIONS_INIT sizeof(reshard_state_load_options)
#define RESHARD_STATE_LOAD_OPTIONS_DEFAULTS {sizeof(reshard_state_load_options), 0, 0, NULL, 0}

typedef struct reshard_state_load_report { /* of this rank */
  int64_t tensors;
  int64_t bytes;       /* of the tensors that this rank has: what is needed */
  int64_t read_bytes;  /* of data, from files; its share where ranks read together: replicas are read once */
  double open_seconds; /* headers, which one rank of a process reads for all, and checks */
  double read_seconds; /* data */
} reshard_state_load_report;

/* Loads into the tensors of a state dict, whatever layouts they have and whatever number of ranks saved, from any
 * checkpoint that reshard_checkpoint_open reads. Every tensor and sharded tensor of `state` is filled from the
 * checkpoint's tensor of its path, every rank reading what it holds and no more, straight into the tensor's memory
 * where stored and wanted runs allow it. Other leaves are replaced by the stored ones (a null, where the checkpoint has
 * a tensor, stays). Trees may differ between ranks, and sharded tensors may be of any communicators: what is in the
 * checkpoint has to be in some rank's state (see partial). No container and no tensor's memory is in two ranks' trees,
 * for leaves are replaced where they are. A tensor that stands at several paths, or shares memory with another, is
 * filled from one after the other: what the last path has stays. Before anything is overwritten everything is checked
 * on all ranks: names, dtypes, shapes, gaps, the files of a set, data within files. What a writer has not put
 * in its place yet is refused.
 *
 * options and report may be NULL; the report is written on success.
 * Errors: as reshard_checkpoint_open; RESHARD_ERROR_INVALID naming rank and path. RESHARD_ERROR_SYSTEM, when a file
 * cannot be read or changes while it is read: tensors may then be filled in part, other leaves are as they were. A
 * directory that is replaced meanwhile is that, too, or what was there before is loaded: never some of both. */
RESHARD_API reshard_status reshard_state_load(reshard_sharder sharder, reshard_tree state, const char *directory,
                                              const reshard_state_load_options *options,
                                              reshard_state_load_report *report);

#ifdef __cplusplus
}
#endif
#endif
