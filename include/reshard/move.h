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

/* Makes a tree in which every floating tensor is a new, contiguous one of dtype `to`, with its requires_grad. Floating
 * dtypes are f64, f32, f16, bf16, f8_e4m3 and f8_e5m2.
 *
 * - to: one of these.
 * - device: the device that all these tensors are on, and from whose pool the new ones come.
 * - stream: the cast is in its order: one launch or one job for all tensors. NULL on the CPU, where the call returns
 *   when all is done.
 *
 * Tensors of other dtypes are the same, wherever they are: integers, bool, complex, and f8_e8m0, which holds scales. So
 * are tensors of dtype `to`, and all containers in which nothing changed. A tensor that is at several places is cast
 * once. Sharded tensors, nested ones and DTensors become ones of dtype `to`, of the same layout
 * (reshard_tree_map_tensors). This is local, on each rank that has them.
 *
 * Numbers are rounded to nearest even, once; subnormal ones are kept. A number that is too large becomes infinity. For
 * f8_e4m3, which has no infinity, it becomes the largest number, as infinities do (PyTorch does both). Every NaN
 * becomes the one that has all bits set but the sign. So the CPU and all GPUs give the same bits.
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

/* Makes a tree in which every tensor is on `device`. Tensors that are elsewhere become new ones of the same dtype,
 * shape, requires_grad and pin_memory: contiguous, from its pool. To the CPU they are of pinned memory where pin_memory
 * is set. Tensors that are there, and all containers in which nothing moved, are the same, with no copy. A tensor that
 * is at several places is moved once. Kinds struct and packed are entered as well. A set stays as it is, as
 * _recursive_to leaves it, though reshard_tree_cast and reshard_tree_map_tensors enter it.
 *
 * - stream: one of the destination's GPU or, where that is the CPU, of the GPU that the tensors are on. Not looked at
 *   where nothing moves. The copies come after its earlier work and before its later work; they run on a side stream of
 *   the device.
 *
 * The host does not wait, with two exceptions. Where pageable memory of the CPU is written, the call returns when the
 * data is there. The call also waits where 256 MiB from pageable memory are under way already.
 *
 * A tensor of pageable memory has been read when the call returns. One of pinned memory (by its pin_memory) is read
 * when stream is past the call. A new one of pinned memory is filled then, too. Sources may be released at once: their
 * memory is kept until it has been copied. Lent pinned memory is kept until a later call finds that it has been copied.
 * Lent memory of a GPU is its owner's to keep, in the order of stream.
 *
 * Sharded tensors, nested ones and DTensors become ones whose local tensors are on the device, and whose metadata name
 * it. They move to the CPU, where they can be saved, or to their sharder's device, where alone they can be resharded.
 *
 * Errors, after which nothing is kept, and copies under way are done:
 * - RESHARD_ERROR_INVALID naming the path: storage that is freed; tensors on two GPUs to the CPU.
 * - RESHARD_ERROR_INVALID: stream is being captured.
 * - RESHARD_ERROR_UNSUPPORTED naming the path: other devices for sharded tensors.
 * - those of the pool.
 *
 * Source: torch/distributed/utils.py, _recursive_to. */
RESHARD_API reshard_status reshard_tree_to(reshard_tree tree, reshard_device device, void *stream,
                                           const reshard_move_options *options, reshard_tree *moved);
/* Moves the arguments of a call likewise.
 *
 * - args: a tuple or list. kwargs: a dict. Either may be NULL.
 * - args_list, kwargs_list: receive lists with the moved arguments, one entry for the one device. They have no entry
 *   where both are empty. Where one is empty its entry is an empty tuple or dict.
 *
 * Source: torch/distributed/utils.py, _to_kwargs. */
RESHARD_API reshard_status reshard_tree_to_kwargs(reshard_tree args, reshard_tree kwargs, reshard_device device,
                                                  void *stream, const reshard_move_options *options,
                                                  reshard_tree *args_list, reshard_tree *kwargs_list);

#ifdef __cplusplus
}
#endif
#endif
