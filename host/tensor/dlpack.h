/* The binary interface of DLPack 1.x, as its specification gives it (https://dmlc.github.io/dlpack/latest/c_api.html):
 * what a program hands over of a tensor, and a function that takes it back. Declared here under our names; fields that
 * are enums there have the same size. */
#ifndef RS_TENSOR_DLPACK_H
#define RS_TENSOR_DLPACK_H

#include <stdint.h>

enum { RS_DL_MAJOR = 1, RS_DL_MINOR = 1 }; /* what is written; minor versions add values, and change no struct */

typedef enum rs_dl_device_type { RS_DL_CPU = 1, RS_DL_CUDA = 2, RS_DL_CUDA_HOST = 3 } rs_dl_device_type;

typedef enum rs_dl_code {
  RS_DL_INT = 0,
  RS_DL_UINT = 1,
  RS_DL_FLOAT = 2,
  RS_DL_BFLOAT = 4,
  RS_DL_COMPLEX = 5,
  RS_DL_BOOL = 6,
  RS_DL_F8_E4M3FN = 10,
  RS_DL_F8_E5M2 = 12,
  RS_DL_F8_E8M0 = 14
} rs_dl_code;

enum { RS_DL_READ_ONLY = 1 }; /* flags */

typedef struct rs_dl_tensor {
  void *data;
  int32_t device_type, device_index;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides; /* strides in elements; NULL: contiguous, in old versions */
  uint64_t byte_offset;
} rs_dl_tensor;

typedef struct rs_dl_managed {
  rs_dl_tensor tensor;
  void *owner;
  void (*deleter)(struct rs_dl_managed *self); /* may be NULL */
} rs_dl_managed;

typedef struct rs_dl_versioned {
  uint32_t major, minor;
  void *owner;
  void (*deleter)(struct rs_dl_versioned *self); /* may be NULL */
  uint64_t flags;
  rs_dl_tensor tensor;
} rs_dl_versioned;

#endif
