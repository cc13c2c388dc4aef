/* Tensors: a shape, strides and an offset over storage, both reference counted. What sharded tensors are made of, and
 * what trees and state dicts hold. Local to the process.
 *
 * Storage is memory of a device that one or more tensors look at; contiguity, overlap of strides and bounds are checked
 * once, when a tensor is made. Counting references is thread-safe; nothing of a tensor changes once it is made, except
 * that its storage may be freed and allocated again (reshard_storage_free): by one thread at a time, while no other
 * uses it. While it is freed all tensors over it have shape, strides and dtype as before; their data is NULL, and calls
 * that would read or write them refuse them with RESHARD_ERROR_INVALID. Once it is allocated again their data is in the
 * new memory. A NULL tensor has no storage, and flags set on it are lost; calls that return a status refuse it
 * (RESHARD_ERROR_INVALID). */
#ifndef RESHARD_TENSOR_H
#define RESHARD_TENSOR_H

#include <reshard/device.h>
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
  void *data; /* of the first element; NULL where the storage is freed, and may be NULL for a tensor without elements */
  int requires_grad, pin_memory; /* 0 or 1: carried, and compared between shards */
  int contiguous;                /* row-major without gaps */
  int overlapping;               /* 1: two elements may share memory (broadcast views): never a destination */
  int64_t offset;                /* in elements, of the first one from where the storage begins */
  size_t storage_bytes;          /* of the storage as it is now: 0 while it is freed */
  reshard_device_type device_type;
  int device_index; /* of the GPU; 0 for the CPU */
} reshard_tensor_info;

/* New memory of the CPU, aligned to 256 bytes, not initialised, contiguous.
 * Errors: RESHARD_ERROR_INVALID (ndim, negative extents, unknown dtype, sizes that overflow), _OUT_OF_MEMORY. */
RESHARD_API reshard_status reshard_tensor_create(reshard_dtype dtype, int ndim, const int64_t *shape,
                                                 reshard_tensor *tensor);
/* The caller's memory. strides in elements, NULL: contiguous; negative ones are refused. release (may be NULL) is
 * called with user and data when the last reference goes. Errors as above, and for NULL data with elements. */
RESHARD_API reshard_status reshard_tensor_wrap(reshard_dtype dtype, int ndim, const int64_t *shape,
                                               const int64_t *strides, void *data,
                                               void (*release)(void *user, void *data), void *user,
                                               reshard_tensor *tensor);
/* New storage from the pool of a device, in the order of stream (NULL on the CPU), contiguous, not initialised; the
 * tensor keeps the device. It is freed, when the last tensor over it goes, in the order of the stream that allocated it
 * and after all uses that were recorded. stream lives as long as that, or reshard_device_forget_stream is told.
 * Errors as in reshard_tensor_create, and for a stream that is being captured: what a graph uses is allocated before
 * it; RESHARD_ERROR_OUT_OF_MEMORY with the pool's figures. */
RESHARD_API reshard_status reshard_tensor_create_on(reshard_device device, reshard_dtype dtype, int ndim,
                                                    const int64_t *shape, void *stream, reshard_tensor *tensor);
/* reshard_tensor_wrap for memory of a device; strides may be 0 or overlap (such a tensor is never written to). device
 * NULL: the CPU. release is called when the last reference goes, whatever streams still do: the memory is its owner's.
 */
RESHARD_API reshard_status reshard_tensor_wrap_on(reshard_device device, reshard_dtype dtype, int ndim,
                                                  const int64_t *shape, const int64_t *strides, void *data,
                                                  void (*release)(void *user, void *data), void *user,
                                                  reshard_tensor *tensor);

/* --- Views: another shape over the same storage, which they keep; requires_grad and pin_memory are carried ------ */

/* Any strides (0 or more; NULL: contiguous) and offset (elements from the beginning of the storage) within it.
 * Storage that is freed may be viewed anywhere: the view has data once the storage has as many bytes as it reaches.
 * Errors: RESHARD_ERROR_INVALID with the bytes that it would reach and those that there are. Source: torch.as_strided.
 */
RESHARD_API reshard_status reshard_tensor_as_strided(reshard_tensor tensor, int ndim, const int64_t *shape,
                                                     const int64_t *strides, int64_t offset, reshard_tensor *view);
/* [start, start + length) of a dim (a negative dim or start counts from the end). Source: torch.narrow. */
RESHARD_API reshard_status reshard_tensor_narrow(reshard_tensor tensor, int dim, int64_t start, int64_t length,
                                                 reshard_tensor *view);
/* Dim d of the view is dim order[d] of the tensor. Source: torch.permute. */
RESHARD_API reshard_status reshard_tensor_permute(reshard_tensor tensor, const int *order, reshard_tensor *view);
/* Another shape of as many elements (one extent may be -1), where strides allow that without a copy; else
 * RESHARD_ERROR_INVALID with both shapes and the strides. Source: torch.Tensor.view. */
RESHARD_API reshard_status reshard_tensor_reshape(reshard_tensor tensor, int ndim, const int64_t *shape,
                                                  reshard_tensor *view);

/* --- Storage: allocated, freed, used on other streams ----------------------------------------------------------- */

/* Memory for a tensor whose storage is freed: bytes of it (those that the tensor reaches at least), in the order of
 * stream, from where it came before: the device's pool, or plain memory of the CPU (reshard_tensor_create). All views
 * of the storage have data again, but those that reach further than bytes: theirs stays NULL. *allocated (may be NULL)
 * says whether it did: not where the storage has this size already.
 * Errors: RESHARD_ERROR_INVALID where it has another size, with both; where the memory is the caller's (wrapped,
 * DLPack); a stream that is being captured; what the pool says. Source: torch/distributed/utils.py, _alloc_storage. */
RESHARD_API reshard_status reshard_storage_alloc(reshard_tensor tensor, size_t bytes, void *stream, int *allocated);
/* Frees the memory of a tensor's storage in the order of stream, after the uses on other streams that were recorded;
 * the host does not wait. Views may be over it, as FSDP's parameters are over its flat one: their data is NULL until it
 * is allocated again. *freed (may be NULL): not where it is freed already. Errors: RESHARD_ERROR_INVALID where the
 * tensor begins at an offset, as for PyTorch's sole occupant, or a managed tensor is over the storage, with offset,
 * shape and sizes; where the memory is the caller's; a stream that is being captured. Source: _free_storage. */
RESHARD_API reshard_status reshard_storage_free(reshard_tensor tensor, void *stream, int *freed);
/* Stream uses the tensor's storage: freeing it comes after all that stream has been given until then. Calls of this
 * library record the streams that they are given on their own. Nothing is recorded of memory that is the caller's, nor
 * on a stream that is being captured: who has a graph keeps its tensors. Source: torch.Tensor.record_stream. */
RESHARD_API reshard_status reshard_storage_record_use(reshard_tensor tensor, void *stream);
/* 1 where there is memory behind the tensor, or none is needed (no elements); else 0; NULL has none. Source:
 * _data_ptr_allocated. */
RESHARD_API int reshard_data_allocated(reshard_tensor tensor);

/* --- DLPack: tensors of other programs without a copy
 * ------------------------------------------------------------------ */

/* A tensor over what a DLManagedTensorVersioned (versioned 1) or a DLManagedTensor (0) describes: its memory is kept
 * until the last tensor over it goes, its deleter is called then. After success the caller no longer owns it; after an
 * error as before. CPU (pinned as well) and CUDA; strides NULL: contiguous; lanes 1. A tensor that is flagged read-only
 * is refused unless read_only is 1: then the caller says that it will not be written to.
 * Errors: RESHARD_ERROR_INVALID (dims, negative strides or extents), RESHARD_ERROR_UNSUPPORTED (major version, dtype,
 * device), with what it has. Source: the DLPack specification, torch.from_dlpack. */
RESHARD_API reshard_status reshard_tensor_from_dlpack(void *managed, int versioned, int read_only,
                                                      reshard_tensor *tensor);
/* The other way: a new managed tensor that keeps the tensor until its deleter is called. Storage that is freed is
 * refused, and cannot be freed meanwhile. Errors: RESHARD_ERROR_UNSUPPORTED for dtypes that DLPack lacks. Source:
 * torch.to_dlpack, __dlpack__. */
RESHARD_API reshard_status reshard_tensor_to_dlpack(reshard_tensor tensor, int versioned, void **managed);

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
 * returns when it is done; threads: copy threads of the CPU, 0 for one per core. On a GPU at least one of the tensors
 * was made with its device, and the call waits for stream: the kernel checks the index, and writes nothing for a number
 * that is out of range. Errors: RESHARD_ERROR_INVALID, on the CPU before anything is written: an index out of [0,
 * extent) with its position and value; shapes, dtypes, devices, a stream that is being captured, storage that is freed.
 * Source: torch.index_select (as reshard_local_shard in torch/distributed/_shard uses it). */
RESHARD_API reshard_status reshard_index_select(reshard_tensor src, int dim, reshard_tensor index, reshard_tensor dst,
                                                int threads, void *stream);
/* The same in the order of stream, for which the call does not wait; the stream may be captured. What was found is left
 * in fault, a contiguous i64 tensor of 2 elements on the same device: -1 and 0, or the position of the first index that
 * is out of range, and its value. Then dst has what the indices in range say in some of their places, and what was
 * there in all others; on the CPU nothing is written to it. */
RESHARD_API reshard_status reshard_index_select_async(reshard_tensor src, int dim, reshard_tensor index,
                                                      reshard_tensor dst, reshard_tensor fault, int threads,
                                                      void *stream);

#ifdef __cplusplus
}
#endif
#endif
