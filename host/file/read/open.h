/* A checkpoint that is being opened: its files and their headers, then its store. */
#ifndef RS_FILE_OPEN_H
#define RS_FILE_OPEN_H

#include "file/format/safetensors.h"
#include "file/read/checkpoint.h"
#include "file/read/layout_cache.h"

/* A checkpoint that is being opened. */
typedef struct rs_opening {
  const char *where; /* "checkpoint 'path'" */
  rs_checkpoint_options options;
  reshard_checkpoint checkpoint; /* its files are open, in the order of their names */
  rs_safetensors *headers;       /* of each file */
} rs_opening;

/* Opens a file of a directory as the store's next, for which there is room. files: how many are opened in all. */
reshard_status rs_opening_add(rs_opening *opening, const char *path, const char *name, int64_t files);
/* Name of file i without its directory. */
const char *rs_opening_name(const rs_opening *opening, int64_t file);
/* "file 'dir/name'". */
const char *rs_opening_where(const rs_opening *opening, int64_t file, char where[RS_WHERE]);

/* These fill the store, the format, and bytes stored and world of the info. The checkpoint's names may borrow their
 * text from the headers.
 * A single file, of any format. */
reshard_status rs_open_file(rs_opening *opening, const char *path);
/* Files of safetensors whose headers are read: shards where all have DCP_SHARDING_INFO, else the format given. */
reshard_status rs_open_headed(rs_opening *opening, reshard_file_format format);

/* Fills store and info from a file of torch.save, the only one that is open. */
reshard_status rs_open_state_dict(rs_opening *opening);
/* Fills store and info from the .metadata of a directory and the .distcp files that it names. */
reshard_status rs_open_distcp(rs_opening *opening, const char *path);
/* Opens and reads the safetensors files of a directory; *distcp: it has none but .metadata. */
reshard_status rs_open_directory(rs_opening *opening, const char *path, bool *distcp);
/* Reads the headers of the files that are open. */
reshard_status rs_open_headers(rs_opening *opening);

/* Appends a tensor to the store: model, layout, stored array. */
reshard_status rs_open_add(rs_opening *opening, rs_layout_cache *layouts, const rs_whole_tensor *whole);
#endif
