/* Which file of a checkpoint that is written holds which block, and what stands before the blocks in each file. */
#ifndef RS_FILE_LAY_H
#define RS_FILE_LAY_H

#include "file/ground/print.h"
#include "file/move/store.h"

/* A dense block of one file: a box, an array stored whole, or a tensor without elements. Block b is the store's spot b.
 */
typedef struct rs_block {
  int64_t tensor;
  int64_t hold;   /* of the store; -1: a tensor without elements */
  int64_t rank;   /* whose files; 0 in whole formats */
  int64_t number; /* of its file among the rank's, from 0 */
  int32_t box;    /* of its array; -1: an array of more boxes than may be stored, whole */
} rs_block;

typedef struct rs_lay_file {
  int64_t rank, number, of; /* file number (from 1) of `of` */
  int64_t first, count;     /* its blocks: rs_lay.order[first ...], in the order in which they lie in the file */
} rs_lay_file;

typedef struct rs_lay {
  reshard_file_format format;
  int64_t bytes; /* of data in all files */
  int64_t whole_arrays;
  RS_VEC(rs_block) blocks;
  RS_VEC(rs_lay_file) files; /* by rank, number */
  int64_t *order;
} rs_lay;

/* Fills the store's holds, and its spots with their file alone, from its tensors. where begins the text of an error;
 * index_bytes as in reshard_writer_options. On error the lay can be freed. */
reshard_status rs_lay_make(rs_lay *lay, rs_store *store, const char *where, bool dedup, int64_t index_bytes);
void rs_lay_free(rs_lay *lay);

/* Name of a file in its directory; "" where the checkpoint is one file. Names of ranks below 10^5 have 43 characters.
 */
#define RS_LAY_NAME 96
const char *rs_lay_name(const rs_lay *lay, int64_t file, char name[RS_LAY_NAME]);

/* Bytes that the header of a .safetensors file of whole tensors has at the most: without a tensor, and for one. */
#define RS_LAY_HEADER_LEAST 64
int64_t rs_lay_header_most(const rs_store *store, int64_t tensor);

/* What a tensor's place in a .safetensors file depends on: larger first, then by name. 0: a dtype that the format
 * lacks. Source: the safetensors library sorts so, by its own list of dtypes; that puts wide elements first, hence all
 * of them at multiples of their width. */
int rs_lay_class(reshard_dtype dtype);
/* numpy's name of a dtype, as "<f4"; NULL: it has none. */
const char *rs_lay_descr(reshard_dtype dtype);

/* Shards: what the "reshard" text of all files has in common, escaped, without its end. */
reshard_status rs_lay_common(const rs_lay *lay, const rs_store *store, rs_print *common);
/* All that stands before the data of a file. Sets the offsets of the file's spots, *size to the bytes of the file.
 * Texts are emptied first: memory is used again from file to file. */
typedef struct rs_lay_headers {
  rs_print common; /* shards: made by rs_lay_common */
  rs_print text;   /* the result */
  rs_print body, sharding, intervals;
} rs_lay_headers;
reshard_status rs_lay_header(rs_lay_headers *headers, const rs_lay *lay, rs_store *store, const char *where,
                             int64_t file, int64_t *size);
void rs_lay_headers_free(rs_lay_headers *headers);
/* model.safetensors.index.json, as Hugging Face's save_pretrained writes it. */
reshard_status rs_lay_index(const rs_lay *lay, const rs_store *store, rs_print *text);

#endif
