/* Inside of a tensor. */
#ifndef RS_TENSOR_TENSOR_H
#define RS_TENSOR_TENSOR_H

#include "tensor/storage.h"

struct reshard_tensor_s {
  atomic_int references;
  atomic_bool flattened; /* FSDP's mark: the one thing that may change while the tensor is shared */
  /* Always right, with its data: storage that is freed or allocated tells all tensors over it. */
  reshard_tensor_info info;
  size_t reach;                 /* bytes from the first element to the end of the last one; 0 without elements */
  rs_storage *storage;          /* kept */
  reshard_tensor before, after; /* in the storage's list */
};

/* What follows from a shape and strides (NULL: contiguous): all of *info but what its storage says, and *reach. call
 * begins the errors. Extents of 0 count as 1 and strides that are not walked count, too: so every product that a user
 * of the tensor makes of them fits. */
reshard_status rs_tensor_describe(const char *call, reshard_dtype dtype, int ndim, const int64_t *shape,
                                  const int64_t *strides, reshard_tensor_info *info, size_t *reach);
/* What was described, at an offset of the storage: within it, or it has no memory yet. Takes a reference to the storage
 * over on success. The bytes up to the end of the last element fit in 63 bits. */
reshard_status rs_tensor_over(rs_storage *storage, const reshard_tensor_info *info, size_t reach, int64_t offset,
                              reshard_tensor *tensor);

/* reshard_tensor_create_on for pinned memory of the host, which streams of a GPU copy to and from: a tensor of the CPU
 * that keeps the GPU's handle. */
reshard_status rs_tensor_create_pinned(reshard_device gpu, reshard_dtype dtype, int ndim, const int64_t *shape,
                                       void *stream, reshard_tensor *tensor);

/* Every function that reads or writes a tensor's elements asks one of these first; `what` begins the error
 * ("reshard_index_select: src"). ready: is there memory? use: and what stream is given from here on may use it until it
 * is freed. Before anything is launched, so that an error leaves everything as it was. */
reshard_status rs_tensor_ready(const char *what, reshard_tensor tensor);
reshard_status rs_tensor_use(const char *what, reshard_tensor tensor, void *stream);
/* Also RESHARD_ERROR_INVALID where the tensor is not on that device. */
reshard_status rs_tensor_use_on(const char *what, reshard_tensor tensor, const rs_device *device, void *stream);

/* The handle that its storage is of, borrowed. NULL: plain memory of the CPU, and what came without one. */
reshard_device rs_tensor_device(reshard_tensor tensor);

#endif
