/* Inside of a tensor. */
#ifndef RS_TENSOR_TENSOR_H
#define RS_TENSOR_TENSOR_H

#include "tensor/storage.h"

struct reshard_tensor_s {
  atomic_int references;
  atomic_bool flattened;    /* FSDP's mark: the one thing that may change while the tensor is shared */
  reshard_tensor_info info; /* without data and storage_bytes, which are the storage's to say */
  size_t span;              /* bytes from the first element to the end of the last one; 0 without elements */
  rs_storage *storage;      /* retained */
};

/* Address of the first element now. NULL where the storage is freed, or was allocated again and ends before the tensor
 * does; may be NULL for a tensor without elements. */
void *rs_tensor_data(reshard_tensor tensor);

/* Fills in *info from a shape and strides (NULL: contiguous), all but what the storage says, and *span. call begins
 * the errors. Extents of 0 count as 1, and strides of dims of extent 1 count, too. So every product that a user of the
 * tensor makes of them fits. */
reshard_status rs_tensor_describe(const char *call, reshard_dtype dtype, int ndim, const int64_t *shape,
                                  const int64_t *strides, reshard_tensor_info *info, size_t *span);
/* Makes a tensor of *info, at an offset of the storage: within it, or it has no memory yet. Takes a reference to the
 * storage over on success. The bytes up to the end of the last element fit in 63 bits. */
reshard_status rs_tensor_new(rs_storage *storage, const reshard_tensor_info *info, size_t span, int64_t offset,
                             reshard_tensor *tensor);

/* reshard_tensor_create_on for pinned memory of the host, which streams of a GPU copy to and from: a tensor of the CPU
 * that keeps the GPU's handle. */
reshard_status rs_tensor_create_pinned(reshard_device gpu, reshard_dtype dtype, int ndim, const int64_t *shape,
                                       void *stream, reshard_tensor *tensor);

/* Every function that reads or writes a tensor's elements calls one of these first, before anything is launched; `what`
 * begins the error ("reshard_index_select: src"). ready checks that there is memory; use also marks stream as one that
 * uses the memory until it is freed. */
reshard_status rs_tensor_ready(const char *what, reshard_tensor tensor);
reshard_status rs_tensor_use(const char *what, reshard_tensor tensor, void *stream);
/* Also RESHARD_ERROR_INVALID where the tensor is not on that device. */
reshard_status rs_tensor_use_on(const char *what, reshard_tensor tensor, const rs_device *device, void *stream);

/* The handle of its storage, borrowed. NULL: plain memory of the CPU, or memory that came without a handle. */
reshard_device rs_tensor_device(reshard_tensor tensor);
/* "the CPU", "cuda:1"; returns buffer or a constant. */
#define RS_DEVICE_TEXT 16
const char *rs_device_text(char buffer[RS_DEVICE_TEXT], reshard_device_type type, int index);
/* Lists the cast of a tensor's elements into a tensor of the same shape. */
reshard_status rs_tensor_list_cast(rs_casts *casts, reshard_tensor src, reshard_tensor dst);

#endif
