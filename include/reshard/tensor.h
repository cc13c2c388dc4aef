/* Tensors: a shape, strides and an offset over storage, both reference counted. Sharded tensors, trees and state dicts
 * are made of them. Local to the process.
 *
 * Storage is memory of a device that one or more tensors look at. Contiguity, overlap of strides and bounds are checked
 * once, when a tensor is made. Counting references is thread-safe. A tensor does not change once it is made, except
 * that its storage may be freed and allocated again (reshard_storage_free). One thread at a time does that, while no
 * other uses the storage.
 *
 * While storage is freed, all tensors over it keep shape, strides and dtype. Data is NULL, and calls that would
 * read or write them return RESHARD_ERROR_INVALID. Once it is allocated again their data is in the new memory.
 *
 * A NULL tensor has no storage, and flags set on it are lost. Calls that return a status refuse it
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
  /* Address of the first element. NULL where the storage is freed; may be NULL for a tensor without elements. */
  void *data;
  int requires_grad, pin_memory; /* 0 or 1: carried, and compared between shards */
  int contiguous;                /* row-major without gaps */
  int overlapping;      /* 1: two elements may share memory (broadcast views); such a tensor is never a destination */
  int64_t offset;       /* elements between the beginning of the storage and the first element */
  size_t storage_bytes; /* size of the storage as it is now: 0 while it is freed */
  reshard_device_type device_type;
  int device_index; /* of the GPU; 0 for the CPU */
} reshard_tensor_info;

/* Allocates memory of the CPU: aligned to 256 bytes, not initialised, contiguous. Errors: RESHARD_ERROR_INVALID (ndim,
 * negative extents, unknown dtype, sizes that overflow), RESHARD_ERROR_OUT_OF_MEMORY. */
RESHARD_API reshard_status reshard_tensor_create(reshard_dtype dtype, int ndim, const int64_t *shape,
                                                 reshard_tensor *tensor);
/* Wraps the caller's memory.
 *
 * - strides: in elements. NULL: contiguous. Negative ones are refused.
 * - release: called with user and data when the last reference goes. May be NULL.
 *
 * Errors as in reshard_tensor_create, and for NULL data with elements. */
RESHARD_API reshard_status reshard_tensor_wrap(reshard_dtype dtype, int ndim, const int64_t *shape,
                                               const int64_t *strides, void *data,
                                               void (*release)(void *user, void *data), void *user,
                                               reshard_tensor *tensor);
/* Allocates storage from the pool of a device, in the order of stream (NULL on the CPU): contiguous, not initialised.
 * The tensor keeps the device.
 *
 * The storage is freed when the last tensor over it goes, in the order of the stream that allocated it, and
 * after all uses that were recorded. stream lives as long as that, or reshard_device_forget_stream is called.
 *
 * Errors as in reshard_tensor_create, and:
 * - RESHARD_ERROR_INVALID: a stream that is being captured. Storage for a graph is allocated before it.
 * - RESHARD_ERROR_OUT_OF_MEMORY with the pool's figures. */
RESHARD_API reshard_status reshard_tensor_create_on(reshard_device device, reshard_dtype dtype, int ndim,
                                                    const int64_t *shape, void *stream, reshard_tensor *tensor);
/* Wraps memory of a device, as reshard_tensor_wrap does. Strides may be 0 or overlap; such a tensor is never written
 * to. device NULL: the CPU. release is called when the last reference goes, whatever streams still do: the memory is
 * its owner's. */
RESHARD_API reshard_status reshard_tensor_wrap_on(reshard_device device, reshard_dtype dtype, int ndim,
                                                  const int64_t *shape, const int64_t *strides, void *data,
                                                  void (*release)(void *user, void *data), void *user,
                                                  reshard_tensor *tensor);

/* --- Views: another shape over the same storage, which they keep; requires_grad and pin_memory are carried ------ */

/* Makes a view of any strides and offset within the storage.
 *
 * - strides: 0 or more. NULL: contiguous.
 * - offset: elements from the beginning of the storage.
 *
 * Freed storage may be viewed anywhere: the view has data once the storage has as many bytes as it reaches. Errors:
 * RESHARD_ERROR_INVALID with the bytes that it would reach and those that there are. Source: torch.as_strided. */
RESHARD_API reshard_status reshard_tensor_as_strided(reshard_tensor tensor, int ndim, const int64_t *shape,
                                                     const int64_t *strides, int64_t offset, reshard_tensor *view);
/* Makes a view of [start, start + length) of a dim. A negative dim or start counts from the end. Source: torch.narrow.
 */
RESHARD_API reshard_status reshard_tensor_narrow(reshard_tensor tensor, int dim, int64_t start, int64_t length,
                                                 reshard_tensor *view);
/* Makes a view whose dim d is dim order[d] of the tensor. Source: torch.permute. */
RESHARD_API reshard_status reshard_tensor_permute(reshard_tensor tensor, const int *order, reshard_tensor *view);
/* Makes a view of another shape of as many elements, where strides allow that without a copy. One extent may be -1.
 * Errors: RESHARD_ERROR_INVALID with both shapes and the strides. Source: torch.Tensor.view. */
RESHARD_API reshard_status reshard_tensor_reshape(reshard_tensor tensor, int ndim, const int64_t *shape,
                                                  reshard_tensor *view);

/* --- Storage: allocated, freed, used on other streams ----------------------------------------------------------- */

/* Allocates memory for a tensor whose storage is freed, in the order of stream, from where it came before: the
 * device's pool, or plain memory of the CPU (reshard_tensor_create).
 *
 * - bytes: size of the storage, at least what the tensor reaches. Views of the storage have data again, but those that
 *   reach further: theirs stays NULL.
 * - allocated: receives 1, or 0 where the storage has this size already. May be NULL.
 *
 * Errors: those of the pool, and RESHARD_ERROR_INVALID:
 * - storage of another size, with both sizes;
 * - memory that is the caller's (wrapped, DLPack);
 * - a stream that is being captured.
 *
 * Source: torch/distributed/utils.py, _alloc_storage. */
RESHARD_API reshard_status reshard_storage_alloc(reshard_tensor tensor, size_t bytes, void *stream, int *allocated);
/* Frees the memory of a tensor's storage in the order of stream, after the uses on other streams that were recorded.
 * The host does not wait. Views may be over the storage, as FSDP's parameters are over its flat one: their data is NULL
 * until it is allocated again.
 *
 * - freed: receives 1, or 0 where the storage is freed already. May be NULL.
 *
 * Errors: RESHARD_ERROR_INVALID:
 * - a tensor that begins at an offset (as for PyTorch's sole occupant), or a managed tensor over the storage, with
 *   offset, shape and sizes;
 * - memory that is the caller's;
 * - a stream that is being captured.
 *
 * Source: torch/distributed/utils.py, _free_storage. */
RESHARD_API reshard_status reshard_storage_free(reshard_tensor tensor, void *stream, int *freed);
/* Records that stream uses the tensor's storage: freeing it comes after all that stream has been given until then.
 * Calls of this library record the streams that they are given on their own. Nothing is recorded of memory that is the
 * caller's, nor on a stream that is being captured: the owner of a graph keeps its tensors. Source:
 * torch.Tensor.record_stream. */
RESHARD_API reshard_status reshard_storage_record_use(reshard_tensor tensor, void *stream);
/* 1 where there is memory behind the tensor, or none is needed (no elements); else 0. NULL has none. Source:
 * torch/distributed/utils.py, _data_ptr_allocated. */
RESHARD_API int reshard_data_allocated(reshard_tensor tensor);

/* --- DLPack: tensors of other programs without a copy ----------------------------------------------------------- */

/* Makes a tensor over a DLPack tensor, whose memory is kept until the last tensor over it goes; then its deleter is
 * called. After success the caller no longer owns it; after an error as before.
 *
 * - managed: a DLManagedTensorVersioned (versioned 1) or a DLManagedTensor (versioned 0), on the CPU (pinned as well)
 *   or CUDA. strides NULL: contiguous. lanes is 1.
 * - read_only: 1: the caller says that a tensor flagged read-only will not be written to. With 0 such a tensor is
 *   refused.
 *
 * Errors: RESHARD_ERROR_INVALID (dims, negative strides or extents), RESHARD_ERROR_UNSUPPORTED (major version, dtype,
 * device), with its values. Source: the DLPack specification, torch.from_dlpack. */
RESHARD_API reshard_status reshard_tensor_from_dlpack(void *managed, int versioned, int read_only,
                                                      reshard_tensor *tensor);
/* Makes a managed tensor that keeps the tensor until its deleter is called. Freed storage is refused, and the storage
 * cannot be freed meanwhile. Errors: RESHARD_ERROR_UNSUPPORTED for dtypes that DLPack lacks. Source: torch.to_dlpack,
 * __dlpack__. */
RESHARD_API reshard_status reshard_tensor_to_dlpack(reshard_tensor tensor, int versioned, void **managed);

/* Flags. Set by the maker of a tensor, before it is shared. */
RESHARD_API void reshard_tensor_set_requires_grad(reshard_tensor tensor, int requires_grad);
RESHARD_API void reshard_tensor_set_pin_memory(reshard_tensor tensor, int pin_memory);

/* One more reference; returns its argument. */
RESHARD_API reshard_tensor reshard_tensor_retain(reshard_tensor tensor);
/* One reference less; the last one frees. NULL is allowed. */
RESHARD_API void reshard_tensor_release(reshard_tensor tensor);
RESHARD_API reshard_status reshard_tensor_get_info(reshard_tensor tensor, reshard_tensor_info *info);

/* Copies dst[..., i, ...] = src[..., index[i], ...] along dim (negative: from the end).
 *
 * - index: 1-d, i32 or i64, any stride, any order. Duplicates and length 0 are legal.
 * - dst: src's dtype; the length of index in dim and src's extents in the others. Any strides without overlap, also
 *   not with src.
 * - threads: copy threads of the CPU. 0: one per core.
 * - stream: NULL on the CPU, where the call returns when all is done. On a GPU one of the tensors was made with its
 *   device, and the call waits for stream. The kernel checks the index, and writes nothing for a number that is out
 *   of range.
 *
 * Errors: RESHARD_ERROR_INVALID, on the CPU before anything is written:
 * - an index out of [0, extent), with its position and value;
 * - shapes, dtypes, devices, a stream that is being captured, storage that is freed.
 *
 * Source: torch.index_select (as reshard_local_shard in torch/distributed/_shard uses it). */
RESHARD_API reshard_status reshard_index_select(reshard_tensor src, int dim, reshard_tensor index, reshard_tensor dst,
                                                int threads, void *stream);
/* Selects likewise in the order of stream, for which the call does not wait. The stream may be captured.
 *
 * - fault: a contiguous i64 tensor of 2 elements on the same device. Receives -1 and 0, or the position and the value
 *   of the first index that is out of range.
 *
 * After a fault, dst holds the selected data in some of its places and what was there in all others. On the CPU nothing
 * is written to it. */
RESHARD_API reshard_status reshard_index_select_async(reshard_tensor src, int dim, reshard_tensor index,
                                                      reshard_tensor dst, reshard_tensor fault, int threads,
                                                      void *stream);

#ifdef __cplusplus
}
#endif
#endif
