/* Inside of a tensor. */
#ifndef RS_TENSOR_TENSOR_H
#define RS_TENSOR_TENSOR_H

#include "base/base.h"

#include <reshard/tensor.h>

#include <stdatomic.h>

struct reshard_tensor_s {
  atomic_int references;
  atomic_bool flattened; /* FSDP's mark: the one thing that may change while the tensor is shared */
  reshard_tensor_info info;
  void (*release)(void *user, void *data); /* NULL: nobody is told */
  void *user;
};

/* Contiguous tensor over the elements of a contiguous parent from `offset` on; keeps the parent. */
reshard_status rs_tensor_view(reshard_tensor parent, int64_t offset, int ndim, const int64_t *shape,
                              reshard_tensor *view);

/* What reshard_tensor_create takes, aligned for copies past the cache; free()d. *data is NULL for 0 bytes. */
reshard_status rs_tensor_memory(int64_t bytes, void **data);

/* Do no two elements share memory? Sufficient, and exact for what comes from slicing and transposing. */
bool rs_tensor_distinct(const reshard_tensor_info *info);

#endif
