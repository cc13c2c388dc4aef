/* Shards of tensors, made into layouts and stored arrays: those of a directory of safetensors files (shard_set.c,
 * shard_ranks.c), and those of a .distcp directory. */
#ifndef RS_FILE_SHARDS_H
#define RS_FILE_SHARDS_H

#include "base/text.h"
#include "file/model/layout_cache.h"
#include "file/read/open.h"

/* One tensor of one file. */
typedef struct rs_shard {
  int64_t tensor;
  int64_t file, offset; /* where its block is */
  int64_t runs;         /* an array stored whole: its index runs, in rs_shards.runs; -1: the block is a box */
  reshard_box box;      /* of an array stored whole: first index, and extent of the array */
  bool empty;           /* no elements */
} rs_shard;

/* A tensor of the set. */
typedef struct rs_global_tensor {
  const char *name;
  reshard_dtype dtype; /* NONE until a file has it */
  uint8_t packed;      /* as in rs_model_tensor */
  bool solid;          /* likewise; its name is a header's */
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  int64_t file;         /* the first that has it */
  int64_t first, count; /* its shards, in rs_shards.by_tensor */
  int64_t layout;       /* the one that the metadata names, in rs_shards.layouts; -1: none */
  bool whole_arrays;    /* some shard has runs */
  bool left_out;        /* of an unknown dtype, and not wanted */
} rs_global_tensor;

typedef struct rs_shards {
  const rs_opening *opening;
  struct json_t *root; /* of the "reshard" metadata, NULL: none. Texts of names below are in it or in the headers */
  int64_t text_memory; /* of root and its text */
  int64_t world;       /* of the layouts */
  int64_t stated;      /* by the metadata, where the layouts needed another; else 0 */
  rs_names names;      /* of the tensors */
  RS_VEC(rs_global_tensor) tensors;
  RS_VEC(rs_shard) all;       /* file by file */
  RS_VEC(int64_t) file_first; /* the first shard of each file, and one more */
  RS_VEC(int64_t) by_tensor;  /* shards of one tensor, in the order of files, then the next one's */
  RS_VEC(int64_t) runs;       /* dim by dim: how many, then begin and end of each */
  RS_VEC(int64_t) rank;       /* of each file */
  rs_layout_cache layouts;
} rs_shards;

/* Fills store and model from tensors, shards and the ranks of files, which are known; stored bytes and world of the
 * info are the caller's. */
reshard_status rs_shards_build(rs_shards *shards);
/* Says where a shard of an unknown dtype lies, as what of its tensor it is cannot be known: its bytes come behind those
 * before. */
reshard_status rs_shards_append(rs_shards *shards, rs_shard *shard, int64_t bytes);
/* Shards of one tensor side by side in by_tensor. */
reshard_status rs_shards_group(rs_shards *shards);
void rs_shards_free(rs_shards *shards);

/* Fills the store from headers with DCP_SHARDING_INFO, and bytes stored and world of the info. */
reshard_status rs_open_shards(rs_opening *opening);

/* "tensor 'name' of file 'dir/file'", for errors about a shard. */
#define RS_SHARD_WHERE (RS_WHERE + RS_QUOTE + 32)
const char *rs_shard_where(const rs_shards *shards, const rs_shard *shard, char where[RS_SHARD_WHERE]);

/* Reads the files: tensors, shards, runs, world. */
reshard_status rs_shards_collect(rs_shards *shards);

/* Finds the rank of each file; what a layout of the metadata says is checked. Needs by_tensor. */
reshard_status rs_shards_rank(rs_shards *shards);

#endif
