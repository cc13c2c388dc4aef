/* The files of a checkpoint that is written, and the blocks in each. */
#ifndef RS_FILE_LAYOUT_H
#define RS_FILE_LAYOUT_H

#include "file/ground/text_pairs.h"
#include "file/move/store.h"

/* A dense block of one file: a box, an array stored whole, or a tensor without elements. Block b is block b of the
 * store. */
typedef struct rs_file_block {
  int64_t tensor;
  int64_t array;  /* of the store; -1: a tensor without elements */
  int64_t rank;   /* whose files; 0 in whole formats */
  int64_t number; /* of its file among the rank's, from 0 */
  int32_t box;    /* of its array; -1: an array of more boxes than may be stored, whole */
} rs_file_block;

typedef struct rs_layout_file {
  int64_t rank, number, of; /* file number (from 1) of `of` */
  int64_t first, count; /* its blocks: rs_file_layout.order[first ...], in the order in which they lie in the file */
} rs_layout_file;

typedef struct rs_file_layout {
  reshard_file_format format;
  bool digests;  /* are to be in the headers */
  int64_t bytes; /* of data in all files */
  int64_t whole_arrays;
  const rs_text_pairs *owner; /* metadata for each .safetensors file; borrowed, NULL: none */
  RS_VEC(rs_file_block) blocks;
  RS_VEC(rs_layout_file) all; /* by rank, number */
  int64_t *order;
} rs_file_layout;

/* Fills the store's arrays, and its blocks with their file alone, from its tensors. where begins the text of an error;
 * index_bytes as in reshard_writer_options. On error the layout can be freed. */
reshard_status rs_file_layout_make(rs_file_layout *files, rs_store *store, const char *where, bool dedup,
                                   int64_t index_bytes);
void rs_file_layout_free(rs_file_layout *files);

/* Name of a file in its directory; "" where the checkpoint is one file. Ranks below 10^5 make 43 characters. */
#define RS_FILE_LAYOUT_NAME 96
const char *rs_file_layout_name(const rs_file_layout *files, int64_t file, char name[RS_FILE_LAYOUT_NAME]);

#endif
