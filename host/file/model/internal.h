/* Inside of a model and of its makers: the presets, the JSON list, the safetensors header. */
#ifndef RS_FILE_FILE_H
#define RS_FILE_FILE_H

#include "base/text.h"

#include <reshard/file.h>

typedef struct rs_model_tensor {
  int64_t name; /* offset in reshard_model_s.names */
  reshard_dtype dtype;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
} rs_model_tensor;

struct reshard_model_s {
  RS_VEC(char) names; /* NUL-terminated, one after the other */
  RS_VEC(rs_model_tensor) tensors;
  int64_t bytes;
};

reshard_status rs_model_new(reshard_model *model);
/* Appends a tensor; what ("model file 'x.json'") begins the text of an error. Checks the extents and every product;
 * ndim and dtype are the caller's to check. */
reshard_status rs_model_add(reshard_model model, const char *what, const char *name, size_t length, reshard_dtype dtype,
                            int ndim, const int64_t *shape);
/* Error when two tensors have one name. */
reshard_status rs_model_check_names(reshard_model model, const char *what);
/* *bytes = elements * width. Errors: a negative extent; an overflow, also one that a zero extent would hide. */
reshard_status rs_tensor_bytes(int ndim, const int64_t *shape, size_t width, int64_t *bytes);

/* RESHARD_ERROR_INVALID: what, the name, and the presets that there are. */
reshard_status rs_preset_error(const char *what, const char *name);

/* what 'path', quoted: how errors about a file begin. */
#define RS_WHERE 512
const char *rs_where(char where[RS_WHERE], const char *what, const char *path);

/* The error of errno for a file: RESHARD_ERROR_INVALID when there is no such file, else RESHARD_ERROR_SYSTEM. */
reshard_status rs_file_error(const char *where, int number);
/* The whole of a file or pipe, with a NUL behind it; the caller frees *text. Errors as rs_file_error, and
 * RESHARD_ERROR_INVALID when it is longer than limit. */
reshard_status rs_file_read(const char *where, const char *path, int64_t limit, char **text, int64_t *size);

#endif
