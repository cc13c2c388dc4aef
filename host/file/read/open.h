/* A checkpoint that is being opened: its files and their headers, then its store. */
#ifndef RS_FILE_OPEN_H
#define RS_FILE_OPEN_H

#include "base/text.h"
#include "file/format/safetensors.h"
#include "file/model/layout_cache.h"
#include "file/read/checkpoint.h"

/* Its parts: headers of safetensors files that are read, files of torch.save, files of
 * which the store is filled. */
typedef enum rs_opening_kind { RS_OPENING_HEADERS = 0, RS_OPENING_TORCH, RS_OPENING_PLACED } rs_opening_kind;

/* A checkpoint that is being opened. */
typedef struct rs_opening {
  const char *where; /* "checkpoint 'path'" */
  rs_checkpoint_options options;
  reshard_checkpoint checkpoint; /* its files are open, in the order of their names */
  rs_safetensors *headers;       /* of each file */
  rs_opening_kind kind;
  size_t below;                      /* where the name of a file of a directory begins in its path; 0: one file */
  struct json_t *index, *weight_map; /* the index file, and what holds in it; NULL: none */
  int64_t beside;                    /* memory of layouts, and of tensors that are not in the store yet */
  char sets[2 * RS_QUOTE + 64];      /* how to take one of several sets of files; "": there is one */
} rs_opening;

/* Opens a file of a directory as the store's next, for which there is room. files: how many are opened in all. */
reshard_status rs_opening_add(rs_opening *opening, const char *path, const char *name, int64_t files);
/* Name of file i below the directory, or without its own. */
const char *rs_opening_name(const rs_opening *opening, int64_t file);
/* "file 'dir/name'". */
const char *rs_opening_where(const rs_opening *opening, int64_t file, char where[RS_WHERE]);

/* These fill the store, the format, and bytes stored and world of the info. The checkpoint's names may borrow their
 * text from the headers.
 * A single file, of any format. */
reshard_status rs_open_file(rs_opening *opening, const char *path);
/* Files of safetensors whose headers are read: shards where all have DCP_SHARDING_INFO, else the format given. */
reshard_status rs_open_headed(rs_opening *opening, reshard_file_format format);

/* Adds what a file of torch.save has to store and info. */
reshard_status rs_open_state_dict(rs_opening *opening, int64_t file);
/* Fills store and info from the .metadata of a directory and the .distcp files that it names. */
reshard_status rs_open_distcp(rs_opening *opening, const char *path);
/* True for a tensor of an unknown dtype that is to be left out, which is counted. */
bool rs_opening_leaves(const rs_opening *opening, const reshard_model_tensor *tensor);
/* Memory of all that was read so far, but for headers. */
int64_t rs_opening_memory(const rs_opening *opening);
/* Appends a tensor of a file to the store, where the index takes it: model, layout, stored array. where: the file. */
reshard_status rs_open_add(rs_opening *opening, rs_layout_cache *layouts, const char *where,
                           const rs_whole_tensor *whole);
#endif
