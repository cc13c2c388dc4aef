/* Trees and tensors on their way: cast to another dtype, moved to another device.
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

/* A tree in which every floating tensor (f64, f32, f16, bf16, f8_e4m3, f8_e5m2) is a new, contiguous one of dtype `to`,
 * one of these, from the pool of `device`, with its requires_grad; tensors of other dtypes (integers, bool, complex;
 * f8_e8m0 holds scales), wherever they are, and of dtype `to` are the same, and so are all containers in which nothing
 * changed. A tensor that is at several places is cast once. Sharded tensors, nested ones and DTensors become ones of
 * dtype `to`, of the same layout (reshard_tree_map_tensors): local, on each rank that has them.
 * One launch or one job for all tensors, in the order of stream (NULL on the CPU, where the call returns when all is
 * done). device: that all these tensors are on.
 *
 * Numbers are rounded to nearest even, once; subnormal ones are kept. What is too large becomes infinity, for f8_e4m3,
 * which has none, the largest number, as infinities do (PyTorch does both). Every NaN becomes the one that has all bits
 * set but the sign. So the CPU and all GPUs give the same bits. Errors: RESHARD_ERROR_INVALID naming the path (another
 * device, storage that is freed), RESHARD_ERROR_UNSUPPORTED for `to` of other dtypes; nothing is kept then. Source:
 * torch/distributed/utils.py, _cast_forward_inputs. */
RESHARD_API reshard_status reshard_tree_cast(reshard_tree tree, reshard_dtype to, reshard_device device, void *stream,
                                             reshard_tree *cast);

/* Set `size` through RESHARD_MOVE_OPTIONS_INIT; the rest may be 0. */
typedef struct reshard_move_options {
  size_t size;
  int same_stream;   /* 1: copies are given to `stream` itself; 0: to a side stream, which `stream` waits for */
  int sources_ready; /* 1: nothing that `stream` has been given still writes to the tensors; then the copies need not
                        wait for it, and overlap with it. What comes from pageable memory never waits. */
} reshard_move_options;
#define RESHARD_MOVE_OPTIONS_INIT sizeof(reshard_move_options)
#define RESHARD_MOVE_OPTIONS_DEFAULTS {sizeof(reshard_move_options), 0, 0}

/* A tree in which every tensor is on `device`: those that are elsewhere are new ones of the same dtype, shape,
 * requires_grad and pin_memory, contiguous, from its pool (to the CPU: of pinned memory where pin_memory is set); those
 * that are there, and all containers in which nothing moved, are the same, with no copy. A tensor that is at several
 * places is moved once. Kinds struct and packed are entered as well; a set stays as it is, as _recursive_to leaves it,
 * though reshard_tree_cast and reshard_tree_map_tensors enter it.
 *
 * stream is one of the GPU's: of the destination's, or of the one that the tensors are on where that is the CPU. It is
 * not looked at where nothing moves. The copies come after what stream has been given before the call and before what
 * it is given after it; they run on a side stream of the device. The host does not wait, except where what is written
 * is pageable memory of the CPU (then the call returns when it is there), or where 256 MiB from pageable memory are
 * under way already. A tensor of pageable memory has been read when the call returns; one of pinned memory (pin_memory
 * says so) is read, and a new one of pinned memory is there, when stream is past the call. Sources may be released at
 * once: their memory is kept until it has been copied (lent pinned memory until a later call finds that it has; lent
 * memory of a GPU is its owner's to keep, in the order of stream).
 *
 * Sharded tensors, nested ones and DTensors become ones whose local tensors are on the device, and whose metadata say
 * so: on the CPU, where they can be saved, or on their sharder's device, where alone they can be resharded. Errors:
 * RESHARD_ERROR_UNSUPPORTED naming the path for other devices.
 *
 * Errors: RESHARD_ERROR_INVALID naming the path (storage that is freed; tensors on two GPUs to the CPU), or where
 * stream is being captured; what the pool says; nothing is kept then, and what was on its way is done. Source:
 * torch/distributed/utils.py, _recursive_to. */
RESHARD_API reshard_status reshard_tree_to(reshard_tree tree, reshard_device device, void *stream,
                                           const reshard_move_options *options, reshard_tree *moved);
/* The same for the arguments of a call: args (a tuple or list) and kwargs (a dict); either may be NULL. *args_list and
 * *kwargs_list are lists with what was moved, one entry for the one device, none where both have nothing in them; where
 * one of them has nothing its entry is an empty tuple or dict. Source: torch/distributed/utils.py, _to_kwargs. */
RESHARD_API reshard_status reshard_tree_to_kwargs(reshard_tree args, reshard_tree kwargs, reshard_device device,
                                                  void *stream, const reshard_move_options *options,
                                                  reshard_tree *args_list, reshard_tree *kwargs_list);

#ifdef __cplusplus
}
#endif
#endif
