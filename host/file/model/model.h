/* Inside of a model: tensors by name, dtype and shape. */
#ifndef RS_FILE_MODEL_H
#define RS_FILE_MODEL_H

#include "base/base.h"

#include <reshard/file.h>

#include <string.h>

typedef struct rs_model_tensor {
  int64_t name; /* offset in reshard_model_s.names */
  reshard_dtype dtype;
  uint8_t packed; /* of rs_packed_types: U8 bytes of that type; 0: none */
  /* One dim of all bytes. Packed, and its last dim ends within a byte: "[6,3]" stands behind the name. Or of no dtype:
   * one that this library does not know; the error of whoever moves it stands there. */
  bool solid;
  bool cast;       /* a map's cast has said its dtype */
  bool multiplied; /* that cast multiplies f8_e4m3 by scales */
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  reshard_blocks blocks; /* for which that cast makes scales; rows 0: it makes none */
} rs_model_tensor;

/* Types of safetensors that are moved as bytes and never computed with: `elements` of them are in `bytes`. A tensor has
 * dtype U8, and a last dim of bytes. Source: the format's Dtype, version 0.8. */
typedef struct rs_packed_type {
  const char *name;  /* of safetensors */
  const char *torch; /* of PyTorch, an element of which is a byte; NULL: it has none */
  int bytes, elements;
} rs_packed_type;
#define RS_PACKED_TYPES 6
extern const rs_packed_type rs_packed_types[RS_PACKED_TYPES];
/* 0: no such type. */
uint8_t rs_packed_find(const char *name);
/* "bf16", "F4": what a tensor "is". */
static inline const char *rs_type_text(reshard_dtype dtype, uint8_t packed) {
  const char *known = packed > 0 ? rs_packed_types[packed].name : reshard_dtype_string(dtype);
  return dtype != RESHARD_DTYPE_NONE ? known : "of an unknown dtype";
}

/* An element of an unknown dtype is a byte. */
static inline size_t rs_stored_width(reshard_dtype dtype) {
  return dtype != RESHARD_DTYPE_NONE ? reshard_dtype_size(dtype) : 1;
}

struct reshard_model_s {
  RS_VEC(char) names; /* NUL-terminated, one after the other */
  RS_VEC(rs_model_tensor) tensors;
  int64_t bytes;
};

/* Borrowed; tensors that are added later may move it. */
static inline const char *rs_model_name(const struct reshard_model_s *model, int64_t tensor) {
  return model->names.at + model->tensors.at[tensor].name;
}
/* Length of a name and of what stands behind it. */
static inline size_t rs_name_length(const char *name, bool solid) {
  size_t n = strlen(name);
  return solid ? n + 1 + strlen(name + n + 1) : n;
}
static inline size_t rs_model_name_length(const struct reshard_model_s *model, int64_t tensor) {
  return rs_name_length(rs_model_name(model, tensor), model->tensors.at[tensor].solid);
}
/* RESHARD_ERROR_INVALID naming file, tensor and dtype where the dtype is none that this library knows: who moves a
 * tensor asks, so that maps and an index can leave it out. */
reshard_status rs_model_check_dtype(const struct reshard_model_s *model, int64_t tensor);
reshard_status rs_model_new(reshard_model *model);
/* Appends a tensor; what ("model file 'x.json'") begins the text of an error. Checks the extents and every product;
 * ndim and dtype are the caller's to check. An element of dtype NONE is a byte. */
reshard_status rs_model_add(reshard_model model, const char *what, const char *name, size_t length, reshard_dtype dtype,
                            int ndim, const int64_t *shape);
/* Gives a tensor another dtype; what as in rs_model_add. */
reshard_status rs_model_set_dtype(reshard_model model, const char *what, int64_t tensor, reshard_dtype dtype);
/* "w", and behind its NUL the error of whoever moves it: a tensor of a dtype that this library does not know. The name
 * has no quotes of errors. The caller frees it. */
reshard_status rs_model_unknown(const char *where, const char *name, const char *dtype, char **both);
/* Error when two tensors have one name. */
reshard_status rs_model_check_names(reshard_model model, const char *what);
/* *bytes = elements * width. Errors: a negative extent; an overflow, also one that a zero extent would hide. */
reshard_status rs_tensor_bytes(int ndim, const int64_t *shape, size_t width, int64_t *bytes);

/* A whole tensor in a file. */
typedef struct rs_whole_tensor {
  reshard_model_tensor tensor;
  bool reversed;
  int64_t file, offset;
  uint8_t packed; /* as in rs_model_tensor */
  bool solid;
} rs_whole_tensor;

/* RESHARD_ERROR_INVALID: what, the name, and the presets that there are. */
reshard_status rs_preset_error(const char *what, const char *name);

#endif
