/* Memory of tensors that were freed, kept for new ones: the pages of new memory have to be cleared by the system, which
 * takes longer than a copy into them. */
#ifndef RS_TENSOR_STORAGE_H
#define RS_TENSOR_STORAGE_H

#include "tensor/tensor.h"

typedef struct rs_storage rs_storage;

/* Keeps `most` bytes at most. Thread-safe. */
reshard_status rs_storage_create(int64_t most, rs_storage **storage);
/* Frees what is kept; memory that is out is freed when it comes back. NULL is allowed. */
void rs_storage_drop(rs_storage *storage);
/* reshard_tensor_create from there. storage NULL, or a small tensor: without it. */
reshard_status rs_storage_tensor(rs_storage *storage, reshard_dtype dtype, int ndim, const int64_t *shape,
                                 reshard_tensor *tensor);

#endif
