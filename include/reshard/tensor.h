/* Tensors: a shape and strides over memory, reference counted. What sharded tensors are made of, and what state dicts
 * hold. Local to the process. Counting references is thread-safe; nothing else of a tensor changes once it is made. */
#ifndef RESHARD_TENSOR_H
#define RESHARD_TENSOR_H

#include <reshard/dtype.h>
#include <reshard/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_tensor_s *reshard_tensor;

typedef struct reshard_tensor_info {
  reshard_dtype dtype;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];   /* the first ndim extents */
  int64_t strides[RESHARD_MAX_DIMS]; /* in elements */
  int64_t elements;
  void *data; /* of the first element; NULL may be for a tensor without elements */
  int requires_grad, pin_memory; /* 0 or 1: carried, and compared between shards */
  int contiguous;                /* row-major without gaps */
} reshard_tensor_info;

/* New memory of the CPU, aligned to 256 bytes, not initialised, contiguous.
 * Errors: RESHARD_ERROR_INVALID (ndim, negative extents, unknown dtype, sizes that overflow), _OUT_OF_MEMORY. */
RESHARD_API reshard_status reshard_tensor_create(reshard_dtype dtype, int ndim, const int64_t *shape,
                                                 reshard_tensor *tensor);
/* The caller's memory. strides in elements, NULL: contiguous; negative ones are refused. release (may be NULL) is called
 * with user and data when the last reference goes. Errors as above, and for NULL data with elements. */
RESHARD_API reshard_status reshard_tensor_wrap(reshard_dtype dtype, int ndim, const int64_t *shape,
                                               const int64_t *strides, void *data,
                                               void (*release)(void *user, void *data), void *user,
                                               reshard_tensor *tensor);
/* Both before the tensor is shared: they are for who makes it. */
RESHARD_API void reshard_tensor_set_requires_grad(reshard_tensor tensor, int requires_grad);
RESHARD_API void reshard_tensor_set_pin_memory(reshard_tensor tensor, int pin_memory);

/* One more reference; returns its argument. */
RESHARD_API reshard_tensor reshard_tensor_retain(reshard_tensor tensor);
/* One reference less; the last one frees. NULL is allowed. */
RESHARD_API void reshard_tensor_release(reshard_tensor tensor);
RESHARD_API reshard_status reshard_tensor_get_info(reshard_tensor tensor, reshard_tensor_info *info);

/* dst[..., i, ...] = src[..., index[i], ...] along dim (negative counts from the end). index: 1-d, i32 or i64, any
 * stride, any order, duplicates allowed, length 0 is legal; dst has its length in dim and src's extents else, and src's
 * dtype; any strides (dst's must not overlap). src and dst must not overlap. stream: NULL on the CPU, where the call
 * returns when it is done; threads: copy threads, 0 for one per core.
 * Errors: RESHARD_ERROR_INVALID, before anything is written: an index out of [0, extent) with its position and value,
 * shapes, dtypes. Source: torch.index_select (as reshard_local_shard in torch/distributed/_shard uses it). */
RESHARD_API reshard_status reshard_index_select(reshard_tensor src, int dim, reshard_tensor index, reshard_tensor dst,
                                                int threads, void *stream);

#ifdef __cplusplus
}
#endif
#endif
