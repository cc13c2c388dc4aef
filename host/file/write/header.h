/* The headers of files that are written. */
#ifndef RS_FILE_HEADER_H
#define RS_FILE_HEADER_H

#include "file/ground/print.h"
#include "file/write/file_layout.h"

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
/* All that stands before the data of a file. Sets the offsets of the file's blocks, *size to the bytes of the file.
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
