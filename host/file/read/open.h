/* How a checkpoint is opened: its files and their headers, then what they are together. */
#ifndef RS_FILE_OPEN_H
#define RS_FILE_OPEN_H

#include "file/format/safetensors.h"

/* read.c. Opens a regular file for reading. files: how many are opened together, for the error when these are too many.
 * Errors: as rs_file_error, RESHARD_ERROR_INVALID for what is no regular file. */
reshard_status rs_file_open(const char *where, const char *path, int64_t files, rs_file *file);
void rs_file_close(rs_file *file);
/* Size and time of the last change of an open file. */
reshard_status rs_file_stat(const char *where, int fd, int64_t *size, int64_t *changed_ns);

/* A checkpoint that is being opened. */
typedef struct rs_opening {
  const char *where; /* "checkpoint 'path'" */
  bool gaps_allowed;
  reshard_checkpoint checkpoint; /* its files are open, in the order of their names */
  rs_header *headers;            /* of each file */
} rs_opening;

/* Name of file i without its directory. */
const char *rs_opening_name(const rs_opening *opening, int64_t file);
/* "file 'dir/name'". */
const char *rs_opening_where(const rs_opening *opening, int64_t file, char where[RS_WHERE]);

/* directory.c. Opens and reads the files of a directory; *distcp: it has none of safetensors but .metadata. */
reshard_status rs_open_directory(rs_opening *opening, const char *path, bool *distcp);
/* The path of a name in a directory, with a NUL. */
typedef RS_VEC(char) rs_path;
reshard_status rs_path_join(const char *path, const char *name, rs_path *whole);
/* Reads the headers of the files that are open. */
reshard_status rs_open_headers(rs_opening *opening);

/* Layouts that are made once: tensors that are cut alike share one. All zero: none. */
typedef struct rs_layouts {
  rs_names keys;
  RS_VEC(reshard_layout) made; /* by number */
  RS_VEC(int64_t) key;         /* scratch */
} rs_layouts;
/* rank(0) in a world of one. */
reshard_status rs_layouts_single(rs_layouts *layouts, int ndim, const int64_t *shape, int64_t *number);
/* What reshard_layout_parse makes of a text. */
reshard_status rs_layouts_text(rs_layouts *layouts, const char *text, int ndim, const int64_t *shape, int64_t world,
                               int64_t *number);
/* Boxes, replicated where some are equal. */
reshard_status rs_layouts_boxes(rs_layouts *layouts, int ndim, const int64_t *shape, int64_t world, int64_t n,
                                const int64_t *ranks, const reshard_box *boxes, int64_t *number);
void rs_layouts_free(rs_layouts *layouts);

/* A whole tensor in a file. */
typedef struct rs_whole {
  reshard_model_tensor tensor;
  bool reversed;
  int64_t file, offset;
} rs_whole;
/* Appends it to the store: model, layout, hold. */
reshard_status rs_open_add(rs_opening *opening, rs_layouts *layouts, const rs_whole *whole);

/* These fill the store from the headers, and bytes stored and world of the info: whole.c, where every tensor of every
 * file is a whole one; shards.c, where every file has DCP_SHARDING_INFO. The checkpoint's names may borrow their text
 * from the headers. */
reshard_status rs_open_whole(rs_opening *opening);
reshard_status rs_open_shards(rs_opening *opening);

/* These fill store and info: distcp.c, from the .metadata of a directory and the .distcp files that it names;
 * state_dict.c, from the only file that is open, of torch.save. */
reshard_status rs_open_distcp(rs_opening *opening, const char *path);
reshard_status rs_open_state_dict(rs_opening *opening);

#endif
