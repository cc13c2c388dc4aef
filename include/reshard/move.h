/* Casts of trees and tensors to another dtype, and moves to another device.
 *
 * Calls that return a status refuse a NULL tree or device (RESHARD_ERROR_INVALID), but for the arguments that may be
 * NULL.
 *
 * Source: torch/distributed/utils.py: _cast_forward_inputs, _recursive_to, _to_kwargs. */
#ifndef RESHARD_MOVE_H
#define RESHARD_MOVE_H

#include <reshard/tree.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a tree in which every floating tensor is a new, contiguous one of dtype `to`, with its requires_grad. Local.
 *
 * - to: f64, f32, f16, bf16, f8_e4m3 or f8_e5m2.
 * - device: the device that all these tensors are on, and from whose pool the new ones come.
 * - stream: one launch or one job for all tensors is in its order. NULL on the CPU, where the call returns when all
 *   is done.
 *
 * Tensors of other dtypes (f8_e8m0 holds scales) and of dtype `to`, and containers in which nothing changed, are the
 * same. A tensor at several places is cast once. Sharded and nested tensors and DTensors keep their layout. Numbers
 * are rounded to nearest even once, with the same bits on the CPU and all GPUs (docs/torch.md).
 *
 * Errors, after which nothing is kept:
 * - RESHARD_ERROR_INVALID naming the path: another device, storage that is freed.
 * - RESHARD_ERROR_UNSUPPORTED: `to` of another dtype.
 *
 * Source: torch/distributed/utils.py, _cast_forward_inputs. */
RESHARD_API reshard_status reshard_tree_cast(reshard_tree tree, reshard_dtype to, reshard_device device, void *stream,
                                             reshard_tree *cast);

/* Begin with RESHARD_MOVE_OPTIONS_DEFAULTS, or set `size` to RESHARD_MOVE_OPTIONS_INIT; the rest may be 0. */
typedef struct reshard_move_options {
  size_t size;
  int same_stream; /* 1: copies are given to `stream` itself; 0: to a side stream, which `stream` waits for */
  /* 1: no work that `stream` has been given still writes to the tensors. The copies then need not wait for it, and
   * overlap with it. Copies from pageable memory never wait. */
  int sources_ready;
} reshard_move_options;
#define RESHARD_MOVE_OPTIONS_INIT sizeof(reshard_move_options)
#define RESHARD_MOVE_OPTIONS_DEFAULTS \
  { sizeof(reshard_move_options), 0, 0 }

/* Makes a tree in which every tensor is on `device`. Local. Tensors that are elsewhere become new, contiguous ones
 * of the device's pool with dtype, shape, requires_grad and pin_memory; the others, and containers in which nothing
 * moved, are the same. Sharded and nested tensors and DTensors get local tensors there. A set stays as it is.
 *
 * - stream: one of the destination's GPU or, if that is the CPU, of the GPU that the tensors are on. Copies are in
 *   its order.
 *
 * The host waits only where pageable memory is written, or 256 MiB from pageable memory are under way already.
 * docs/torch.md has the lifetime of sources.
 *
 * Errors, after which nothing is kept:
 * - RESHARD_ERROR_INVALID naming the path: storage that is freed; tensors on two GPUs to the CPU; a captured stream.
 * - RESHARD_ERROR_UNSUPPORTED naming the path: other devices for sharded tensors.
 * - those of the pool.
 *
 * Source: torch/distributed/utils.py, _recursive_to. */
RESHARD_API reshard_status reshard_tree_to(reshard_tree tree, reshard_device device, void *stream,
                                           const reshard_move_options *options, reshard_tree *moved);
/* Moves the arguments of a call likewise.
 *
 * - args: a tuple or list. kwargs: a dict. Either may be NULL.
 * - args_list, kwargs_list: receive lists with the moved arguments, one entry for the one device; none where both are
 *   empty. If one is empty its entry is an empty tuple or dict.
 *
 * Source: torch/distributed/utils.py, _to_kwargs. */
RESHARD_API reshard_status reshard_tree_to_kwargs(reshard_tree args, reshard_tree kwargs, reshard_device device,
                                                  void *stream, const reshard_move_options *options,
                                                  reshard_tree *args_list, reshard_tree *kwargs_list);

#ifdef __cplusplus
}
#endif
#endif
