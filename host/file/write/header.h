/* The headers of files that are written. */
#ifndef RS_FILE_HEADER_H
#define RS_FILE_HEADER_H

#include "base/json.h"
#include "file/write/file_layout.h"

/* Bytes that the header of a .safetensors file of whole tensors has at the most: without a tensor, and for one. */
int64_t rs_header_least(const rs_file_layout *files);
int64_t rs_header_most(const rs_file_layout *files, const rs_store *store, int64_t tensor);

/* Key of a tensor's place in a .safetensors file: larger first, then by name. 0: a dtype that the format lacks. Source:
 * the safetensors library sorts so, by its own list of dtypes. Wide elements come first, hence all of them at multiples
 * of their width. */
int rs_header_class(reshard_dtype dtype);
/* numpy's name of a dtype, as "<f4"; NULL: it has none. */
const char *rs_header_descr(reshard_dtype dtype);

/* Shards: what the "reshard" text of all files has in common, escaped, without its end. */
reshard_status rs_header_common(const rs_file_layout *files, const rs_store *store, rs_text *common);
/* All that stands before the data of a file. Sets the offsets of the file's blocks, *size to the bytes of the file.
 * Texts are emptied first: memory is used again from file to file. */
typedef struct rs_header_texts {
  rs_text common; /* shards: made by rs_header_common */
  rs_json whole;  /* the result */
  rs_json body, sharding, intervals;
  int64_t header_at, pieces_at; /* digits of the digests in the text; 0: none */
} rs_header_texts;
reshard_status rs_header_make(rs_header_texts *headers, const rs_file_layout *files, rs_store *store, const char *where,
                              int64_t file, int64_t *size);
/* The digests of the file whose header was made last; NULL where it has none. */
reshard_status rs_header_digests(const rs_header_texts *headers, const rs_file_layout *files, const rs_store *store,
                                 int64_t file, int64_t size, rs_digests **digests);
void rs_header_texts_free(rs_header_texts *headers);
/* model.safetensors.index.json, as Hugging Face's save_pretrained writes it. */
reshard_status rs_header_index(rs_header_texts *headers, const rs_file_layout *files, const rs_store *store);

#endif
