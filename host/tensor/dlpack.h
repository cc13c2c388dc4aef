/* The binary interface of DLPack, as include/dlpack/dlpack.h of version 1.1 gives it (github.com/dmlc/dlpack at
 * 007cef0): a description of a tensor, and a function that takes it back. Declared here under our names; fields that
 * are enums there have the same size. The form without a version is the same from 0.6 on; codes of bool came with 0.8,
 * those of 8-bit floats with 1.1. Other codes, 6-bit and 4-bit floats among them, are refused. */
#ifndef RS_TENSOR_DLPACK_H
#define RS_TENSOR_DLPACK_H

#include <stddef.h>
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
  int64_t *shape, *strides; /* strides in elements; NULL: contiguous, before 1.2 */
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

/* Places and sizes of that header's fields, where pointers have 8 bytes. */
#define RS_DL_AT(type, field, place) _Static_assert(sizeof(void *) != 8 || offsetof(type, field) == (place), #field)
RS_DL_AT(rs_dl_tensor, device_type, 8);
RS_DL_AT(rs_dl_tensor, device_index, 12);
RS_DL_AT(rs_dl_tensor, ndim, 16);
RS_DL_AT(rs_dl_tensor, code, 20);
RS_DL_AT(rs_dl_tensor, bits, 21);
RS_DL_AT(rs_dl_tensor, lanes, 22);
RS_DL_AT(rs_dl_tensor, shape, 24);
RS_DL_AT(rs_dl_tensor, strides, 32);
RS_DL_AT(rs_dl_tensor, byte_offset, 40);
RS_DL_AT(rs_dl_managed, owner, 48);
RS_DL_AT(rs_dl_managed, deleter, 56);
RS_DL_AT(rs_dl_versioned, owner, 8);
RS_DL_AT(rs_dl_versioned, deleter, 16);
RS_DL_AT(rs_dl_versioned, flags, 24);
RS_DL_AT(rs_dl_versioned, tensor, 32);
_Static_assert(sizeof(void *) != 8 || (sizeof(rs_dl_managed) == 64 && sizeof(rs_dl_versioned) == 80), "sizes");

#endif
