/* The header of a safetensors file. */
#ifndef RS_FILE_SAFETENSORS_H
#define RS_FILE_SAFETENSORS_H

#include "file/ground/file.h"
#include "file/ground/json.h"
#include "file/ground/text_pairs.h"
#include "file/model/model.h"

typedef struct rs_safetensors {
  reshard_model model; /* owned; the tensors in the header's order */
  int64_t start;       /* of the data: bytes of the header */
  int64_t file_bytes;
  RS_VEC(int64_t) offsets;  /* of each tensor's first byte, in the file */
  rs_text_pairs owner;      /* the other entries of "__metadata__" */
  char *sharding, *reshard; /* owned; texts of DCP_SHARDING_INFO and "reshard" in "__metadata__", NULL where absent */
  RS_VEC(int64_t)
  saved; /* after rs_safetensors_read_sharding: where each tensor begins in the global one, ndim numbers
            each, end to end */
} rs_safetensors;

/* Reads the header of an open file. Errors: RESHARD_ERROR_INVALID when it does not fit the file, or its tensors do not
 * tile the data. RESHARD_ERROR_UNSUPPORTED in a build without jansson. */
reshard_status rs_safetensors_read(const char *where, const rs_file *file, rs_safetensors *header);
/* Fills in `saved` from the text of DCP_SHARDING_INFO, which must be there and name every tensor. */
reshard_status rs_safetensors_read_sharding(const char *where, rs_safetensors *header);
/* Makes the digests by which what is read of the file is checked; none where its header has no such entry. Errors:
 * RESHARD_ERROR_CORRUPT for a header that is not as it was written; RESHARD_ERROR_UNSUPPORTED in a build without XXH3.
 */
reshard_status rs_safetensors_read_digests(const char *where, const rs_safetensors *header, rs_file *file);
/* Takes the digits of the pieces out of a header's text of n bytes, which then says the same of all else. They are 16
 * bytes a MiB of the file, and a JSON parser takes them one by one. Returns the bytes that are left. */
int64_t rs_safetensors_cut_digits(char *text, int64_t n);
void rs_safetensors_free(rs_safetensors *header);

#ifdef RS_HAVE_JANSSON
/* Appends a tensor: "dtype" and "shape" of an object. *bytes: those that it has in its file, becomes those that it
 * needs. One of an unknown dtype is then that many bytes of dtype NONE; an error where bytes is NULL. */
reshard_status rs_safetensors_add_tensor(reshard_model model, const char *where, const char *name, json_t *object,
                                         int64_t *bytes);
#endif

#endif
