/* Inside of casts and moves. */
#ifndef RS_TREE_MOVE_H
#define RS_TREE_MOVE_H

#include "device/memory/deferred_release.h"
#include "tensor/tensor.h"

#include <reshard/move.h>

/* RESHARD_ERROR_INVALID with both devices where a tensor is not on the device. */
reshard_status rs_tensor_where(const char *call, reshard_tensor tensor, reshard_device device);
/* The tensor is on the device of this type and number. */
static inline bool rs_tensor_is_on(reshard_tensor tensor, const rs_device *device) {
  return tensor->info.device_type == device->type && tensor->info.device_index == device->index;
}
static inline size_t rs_tensor_nbytes(reshard_tensor tensor) {
  return (size_t)tensor->info.elements * reshard_dtype_size(tensor->info.dtype);
}

/* A tensor and its destination: contiguous, of the same shape. Both are retained: a mapping may keep a view of dst
 * alone. */
typedef struct rs_move_entry {
  reshard_tensor src, dst;
  rs_block *temporary; /* of the GPU: a strided tensor is contiguous there, or lies as at its source */
} rs_move_entry;

/* A move of some tensors by one GPU: that of the destination, or of the source where the destination is the CPU. */
typedef struct rs_move {
  const char *call;
  reshard_device to;
  reshard_device gpu; /* retained; NULL: no copies so far */
  void *stream;       /* the caller's */
  void *side;         /* runs the copies: stream, or a side stream of the GPU */
  bool same_stream, sources_ready;
  RS_VEC(rs_move_entry) entries;
  RS_VEC(reshard_device) owners; /* retained: of sources that belong to streams of other GPUs */
  rs_deferred_release *kept;
  int64_t pageable; /* bytes that the host reads */
  bool after;       /* copies come after earlier work of stream */
  bool waits;       /* the host waits, for pageable memory that is written */
  bool under_way;   /* copies may not be done yet */
} rs_move;

/* Memory of the host that the GPU does not copy from or to on its own. */
static inline bool rs_tensor_pageable(reshard_tensor tensor) {
  return tensor->info.device_type == RESHARD_DEVICE_CPU && !tensor->info.pin_memory;
}

/* Gives all copies to the streams, with the edges before and after them (move_copy.c). After an error no copy is under
 * way. */
reshard_status rs_move_launch(rs_move *move);

#endif
