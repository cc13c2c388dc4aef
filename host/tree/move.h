/* Inside of casts and moves. */
#ifndef RS_TENSOR_MOVE_H
#define RS_TENSOR_MOVE_H

#include "device/memory/deferred_release.h"
#include "tensor/tensor.h"

#include <reshard/move.h>

/* RESHARD_ERROR_INVALID where a tensor is not on a device, with both. */
reshard_status rs_tensor_where(const char *call, reshard_tensor tensor, reshard_device device);
/* Is a tensor on the device of this type and number? */
static inline bool rs_tensor_is_on(reshard_tensor tensor, const rs_device *device) {
  return tensor->info.device_type == device->type && tensor->info.device_index == device->index;
}
static inline size_t rs_tensor_bytes(reshard_tensor tensor) {
  return (size_t)tensor->info.elements * reshard_dtype_size(tensor->info.dtype);
}

/* A tensor and where it goes: contiguous, of the same shape. src is kept, dst is held by a tree. */
typedef struct rs_moved {
  reshard_tensor src, dst;
  rs_block *between; /* memory of the GPU in which a strided tensor is contiguous, or lies as it does at its source */
} rs_moved;

/* A move of some tensors: what goes on at one GPU, that of the destination, or of the source where that is the CPU. */
typedef struct rs_move {
  const char *call;
  reshard_device to;
  reshard_device gpu; /* kept; NULL: nothing has to be copied so far */
  void *stream;       /* the caller's */
  void *side;         /* where the copies run: stream, or a side stream of the GPU */
  bool same_stream, sources_ready;
  RS_VEC(rs_moved) moved;
  RS_VEC(reshard_device) owners; /* kept: of sources that belong to streams of other GPUs */
  rs_deferred_release *kept;
  int64_t pageable; /* bytes that are read by the host */
  bool after;       /* copies come after what stream has been given */
  bool waits;       /* the host does, for pageable memory that is written */
  bool under_way;   /* copies may not be done yet */
} rs_move;

/* Is it memory of the host that the GPU does not copy from or to on its own? */
static inline bool rs_tensor_pageable(reshard_tensor tensor) {
  return tensor->info.device_type == RESHARD_DEVICE_CPU && !tensor->info.pin_memory;
}

/* Gives all copies to the streams, with the edges before and after them (move_copy.c). After an error nothing is on its
 * way. */
reshard_status rs_move_launch(rs_move *move);

#endif
