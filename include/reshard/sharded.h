/* Sharded tensors: a tensor of which each rank of a communicator has some boxes.
 *
 * A sharded tensor is one rank's handle: the global metadata, the layout, and this rank's shards, each with its tensor.
 * Each operation is a pair of layouts and a plan.
 *
 * All ranks of its communicator make its collective calls, in one order. A call succeeds on all, or returns the same
 * error on all and leaves everything as it was.
 *
 * None of its calls that have a stream can be captured into a graph: RESHARD_ERROR_INVALID where the stream is being
 * captured. Only reshard_execute and reshard_execute_all are for that. Ranks that are threads of one process all have
 * the error, and so have processes with GPUs that read each other's storage on an explicit path. Another rank that is a
 * process returns before it meets the others. Nothing is lost where all ranks capture. A rank that alone does so alone
 * has the error: the others wait for it until their deadline, for ever without one, as for a rank that does not come.
 *
 * A NULL sharded tensor has 0 local arrays, and NULL metadata and layout. Calls that return a status refuse NULL
 * handles (RESHARD_ERROR_INVALID).
 *
 * Source: torch/distributed/_shard/sharded_tensor/api.py, reshard.py. */
#ifndef RESHARD_SHARDED_H
#define RESHARD_SHARDED_H

#include <reshard/metadata.h>
#include <reshard/tensor.h>
#include <reshard/transfer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_sharded_tensor_s *reshard_sharded_tensor;

/* A communicator and a cache of plans, keyed by layouts and dtypes, which sharded tensors share. The communicator is
 * borrowed and must outlive the sharder, which must outlive its sharded tensors. One per rank.
 *
 * All ranks make it together, and compare its options then; later calls do not. The first call for a pair of layouts
 * makes the connections, rounds and programs that it needs between ranks, and keeps them with the plan. Later calls
 * take nothing of the driver's allocator that an earlier one has not taken, and wait for no device; the last paragraph
 * has an exception. Only calls that succeed on all ranks count in the order of the cache. Local calls have a cache of
 * the same size for themselves. A plan that is evicted waits for its last call on a GPU.
 *
 * Processes of a node that read each other's arrays on CPUs meet twice in a call, before the copies and after them.
 * Ranks show each other where the arrays are, and map and list what has changed since their last call for the pair. A
 * rank without memory for that is an error on all, and destinations are undefined. If a rank has sources that the
 * others cannot map, all ranks take the packed path in that call, which is kept, too.
 *
 * Processes of a node with GPUs do not meet, as ranks over NCCL do not: they take the packed path. Over either, once a
 * plan is cached, an error that a rank finds before it knows the plan also ends the library's own communicator. A
 * stream that is being captured does not end it. Different calls of ranks of a node do.
 *
 * Processes with GPUs and RESHARD_PATH_DIRECT, or RESHARD_PATH_MIXED over NCCL, read each other's storage
 * (reshard_comm_create_node, reshard_comm_from_nccl). Their hosts meet once in each call, over NCCL by an all-gather of
 * their GPUs, which they wait for. If a rank's arrays or staging have moved all bind the transfer anew, and wait for
 * its last execute; on the mixed path they make another one. If a rank has freed storage that others have open, they
 * meet for that, too, and close it. Sources of cudaMalloc are RESHARD_ERROR_UNSUPPORTED on all ranks. An error before
 * anything moves is one on all ranks, and the communicator goes on; likewise for a stream that is being captured. */
typedef struct reshard_sharder_s *reshard_sharder;

/* Begin with RESHARD_SHARDER_OPTIONS_DEFAULTS, or set `size` to RESHARD_SHARDER_OPTIONS_INIT; the rest may be 0. All
 * ranks give group, cached_plans, workspace_limit, path and topology alike; device and keep_bytes are each rank's own.
 */
typedef struct reshard_sharder_options {
  size_t size;
  /* Global ranks of the communicator's ranks, copied. n 0: reshard_comm_global_ranks; where that is NULL, 0..size-1. */
  reshard_group group;
  int64_t cached_plans; /* most plans that are kept; 0: 64; -1: none, and each call makes all anew */
  /* As in reshard_plan_options. A plan that is kept has the rounds of its first arrays: others, of which less goes in
   * place, may stage more (reshard_plan_workspace). */
  int64_t workspace_limit;
  reshard_path path; /* as in reshard_transfer_options */
  /* Device whose pool new arrays come from, the communicator's. Several sharders may share it. Kept by the sharder and
   * by its arrays. NULL: a pool of the sharder's own. Between processes of one node it is shared storage
   * (reshard_device_options), so that arrays can be moved straight from rank to rank. */
  reshard_device device;
  /* Memory of freed arrays and staging that the sharder's own pool keeps for new ones, as in reshard_device_options.
   * The system has to clear new memory, which takes longer than a copy into it. 0: as much as keeps old and new
   * together at the most that was in use at one time. A reshard in place then takes no more memory than without. -1:
   * none; else bytes. 0 where a device is given. */
  int64_t keep_bytes;
  /* As in reshard_plan_options, of the communicator's ranks; copied. Packed and mixed calls pass bytes on by it. A
   * DTensor's part of the mesh has the domains of its ranks, and no more chains than these. NULL: none. */
  const reshard_topology *topology;
} reshard_sharder_options;
#define RESHARD_SHARDER_OPTIONS_INIT sizeof(reshard_sharder_options)
#define RESHARD_SHARDER_OPTIONS_DEFAULTS \
  { sizeof(reshard_sharder_options), {0, NULL}, 0, 0, RESHARD_PATH_AUTO, NULL, 0, NULL }
/* Collective over comm: each rank makes its own, all in one order. options: NULL for the defaults.
 *
 * The call blocks until all ranks have come, in one all-gather of fixed size, by the communicator's deadline at most;
 * over NCCL, too. All ranks succeed, or all get one error, and write no output. Unequal options are
 * RESHARD_ERROR_MISMATCH with both values: "cached_plans 3 on rank 0, 2 on rank 1". A rank's own error, as bad options
 * or a lack of memory, is every rank's, with its number. A NULL comm is an error of this rank alone. */
RESHARD_API reshard_status reshard_sharder_create(reshard_comm comm, const reshard_sharder_options *options,
                                                  reshard_sharder *sharder);
/* Local. Waits for this rank's work on GPUs with what the sharder has kept, not for other ranks. NULL is allowed. */
RESHARD_API void reshard_sharder_destroy(reshard_sharder sharder);
typedef struct reshard_sharder_stats {
  int64_t hits, misses, evicted; /* of the cache of plans */
  int64_t cached;
  /* most memory of shards and workspace at once during the last reshard, beyond the memory before it */
  int64_t peak_bytes;
} reshard_sharder_stats;
RESHARD_API reshard_status reshard_sharder_get_stats(reshard_sharder sharder, reshard_sharder_stats *stats);

/* Makes a sharded tensor of n (0 or more) local shards. Collective. The tensors are retained. Builds and checks the
 * global metadata (reshard_metadata_build_local, reshard_metadata_build_global). Source: init_from_local_shards. */
RESHARD_API reshard_status reshard_sharded_tensor_from_local(reshard_sharder sharder, int ndim, const int64_t *shape,
                                                             int64_t n, const reshard_local_shard *shards,
                                                             reshard_sharded_tensor *tensor);
/* Makes a sharded tensor of the shards that the metadata places on this rank, in its order. Local. Source:
 * init_from_local_shards_and_global_metadata. */
RESHARD_API reshard_status reshard_sharded_tensor_from_metadata(reshard_sharder sharder, reshard_metadata metadata,
                                                                int64_t n, reshard_tensor const *tensors,
                                                                reshard_sharded_tensor *tensor);
/* Makes a sharded tensor of this rank's arrays of a layout, in its order. Local. The tensors may have any strides, and
 * are retained. Shards of a flat piece lie end to end. With reshard_sharded_tensor_local the call converts between
 * sharded tensors and tensors on a mesh. No copy is made where both hold the same. Source: DTensor.from_local. */
RESHARD_API reshard_status reshard_sharded_tensor_from_layout(reshard_sharder sharder, reshard_layout layout,
                                                              const reshard_properties *properties, int64_t n,
                                                              reshard_tensor const *tensors,
                                                              reshard_sharded_tensor *tensor);
/* Makes a sharded tensor over this rank's buffers of a layout, as reshard_arrays names them, without a copy. Local.
 *
 * - buffers: reshard_layout_buffer_count, borrowed memory of the sharder's device. Those without elements may be NULL,
 *   and so may the list of a rank without arrays.
 * - strides: in elements, a list per buffer; a NULL list or element: contiguous, as flat pieces and buffers of several
 *   arrays are. */
RESHARD_API reshard_status reshard_sharded_tensor_from_buffers(reshard_sharder sharder, reshard_layout layout,
                                                               const reshard_properties *properties,
                                                               void *const *buffers, const int64_t *const *strides,
                                                               reshard_sharded_tensor *tensor);
/* Makes a view of a buffer of this rank: its one array, or all of its arrays that lie there. Local. The view of a
 * buffer that holds nothing is a new tensor without elements. RESHARD_ERROR_INVALID: several arrays that were given one
 * by one, each in memory of its own. */
RESHARD_API reshard_status reshard_sharded_tensor_buffer(reshard_sharded_tensor tensor, int64_t buffer,
                                                         reshard_tensor *view);
/* Allocates this rank's part of a layout over the communicator's ranks. Local.
 *
 * - properties: dtype and flags.
 * - stream: NULL on the CPU. On a GPU new memory is usable in its order, and the last reference frees it in that order.
 *   This holds for all calls below.
 *
 * The rank's local tensors are its arrays: one per array. A cyclic or StridedShard array is one tensor, though its
 * metadata has a shard per box. Source: sharded_tensor.empty. */
RESHARD_API reshard_status reshard_sharded_tensor_empty(reshard_sharder sharder, reshard_layout layout,
                                                        const reshard_properties *properties, void *stream,
                                                        reshard_sharded_tensor *tensor);
/* Allocate likewise, and fill in the order of stream. Local. element: one element of the dtype, of the host, read
 * during the call. Source: sharded_tensor.zeros, sharded_tensor.full. */
RESHARD_API reshard_status reshard_sharded_tensor_zeros(reshard_sharder sharder, reshard_layout layout,
                                                        const reshard_properties *properties, void *stream,
                                                        reshard_sharded_tensor *tensor);
RESHARD_API reshard_status reshard_sharded_tensor_full(reshard_sharder sharder, reshard_layout layout,
                                                       const reshard_properties *properties, const void *element,
                                                       void *stream, reshard_sharded_tensor *tensor);
/* Allocates likewise, and calls fill for each local array, with its tensor and the global box of its first to last
 * index. Local. On a GPU the callback gives its work to stream, or work that stream comes after. The memory is there in
 * that order, and so is the filled tensor. A status other than success ends the call and is returned. The text of the
 * last error is then the callback's. */
typedef reshard_status (*reshard_fill)(void *user, reshard_tensor array, const reshard_box *box);
RESHARD_API reshard_status reshard_sharded_tensor_generate(reshard_sharder sharder, reshard_layout layout,
                                                           const reshard_properties *properties, reshard_fill fill,
                                                           void *user, void *stream, reshard_sharded_tensor *tensor);
/* Scatters a tensor from one rank. Collective. whole: the tensor on rank src (any strides), NULL on the others. Source:
 * _shard_tensor, scatter. */
RESHARD_API reshard_status reshard_sharded_tensor_scatter(reshard_sharder sharder, reshard_tensor whole, int64_t src,
                                                          reshard_layout layout, const reshard_properties *properties,
                                                          void *stream, reshard_sharded_tensor *tensor);

RESHARD_API reshard_sharded_tensor reshard_sharded_tensor_retain(reshard_sharded_tensor tensor);
RESHARD_API void reshard_sharded_tensor_release(reshard_sharded_tensor tensor); /* NULL is allowed; local */

/* Metadata and layout. Borrowed until the tensor is resharded in place or released; retain them to keep them longer.
 * The layout names every holder of a box, as do the metadata, but for a flattened nested tensor, whose replicas are
 * there once (state_dict.h). */
RESHARD_API reshard_metadata reshard_sharded_tensor_metadata(reshard_sharded_tensor tensor);
RESHARD_API reshard_layout reshard_sharded_tensor_layout(reshard_sharded_tensor tensor);
/* Local arrays, borrowed likewise, in the order of the layout, or of the shards that the tensor was made from. bounds:
 * the global box from the first to the last index. Either may be NULL. An array without elements may be a NULL tensor
 * where it was given so. */
RESHARD_API int64_t reshard_sharded_tensor_local_count(reshard_sharded_tensor tensor);
RESHARD_API reshard_status reshard_sharded_tensor_local(reshard_sharded_tensor tensor, int64_t i, reshard_tensor *array,
                                                        reshard_box *bounds);

/* Reshards in place, from any layout to any layout. Collective. n tensors of one sharder in one call are one plan.
 * All ranks give the same tensors and layouts in the same order. New shards are allocated, filled, and take the
 * place of the old ones, which are released in the order of stream. Metadata are replaced with them.
 *
 * - stream: NULL on the CPU. On a GPU all is done in its order, and the host waits for no device, but in the first
 *   call for a pair of layouts over NCCL or on the packed path (docs/torch.md).
 *
 * Memory: the new shards, and at most the sharder's workspace limit.
 *
 * Errors: after an error on any rank every rank's tensor is as it was, but where ranks do not meet: docs/torch.md. A
 * rank whose list has no tensor at all has no communicator: its error is its own.
 *
 * Source: ShardedTensor.reshard. */
RESHARD_API reshard_status reshard_sharded_tensor_reshard(int64_t n, const reshard_sharded_tensor *tensors,
                                                          const reshard_layout *layouts, void *stream);
/* Reshards likewise into new tensors. Collective. */
RESHARD_API reshard_status reshard_sharded_tensor_reshard_to(int64_t n, const reshard_sharded_tensor *tensors,
                                                             const reshard_layout *layouts, void *stream,
                                                             reshard_sharded_tensor *results);
/* Reshards likewise, and converts on the way. dtypes: of the results, alike on all ranks, RESHARD_DTYPE_NONE: the
 * tensor's; NULL: all are. Errors: also RESHARD_ERROR_UNSUPPORTED for dtypes without a cast. */
RESHARD_API reshard_status reshard_sharded_tensor_reshard_to_as(int64_t n, const reshard_sharded_tensor *tensors,
                                                                const reshard_layout *layouts,
                                                                const reshard_dtype *dtypes, void *stream,
                                                                reshard_sharded_tensor *results);
/* Gathers a tensor on one rank. Collective.
 *
 * - dst: rank of the communicator.
 * - out: a tensor of the full shape and dtype on rank dst (any strides), NULL on all others.
 *
 * Errors as in _validate_output_tensor_for_gather: no output on dst; an output elsewhere; wrong shape. After an error
 * no output was written to. Source: ShardedTensor.gather. */
RESHARD_API reshard_status reshard_sharded_tensor_gather(reshard_sharded_tensor tensor, int64_t dst, reshard_tensor out,
                                                         void *stream);
/* Gathers likewise with another dtype. Collective. The narrower of both dtypes travels
 * (reshard_entry). dtype: of out, the same on all ranks. RESHARD_DTYPE_NONE: the tensor's own.
 * Errors: also RESHARD_ERROR_UNSUPPORTED for dtypes that have no cast. Source: ShardedTensor.gather with dtype=..., or
 * enforce_dtype=True and the output's. */
RESHARD_API reshard_status reshard_sharded_tensor_gather_as(reshard_sharded_tensor tensor, int64_t dst,
                                                            reshard_dtype dtype, reshard_tensor out, void *stream);
/* Gathers likewise on all ranks: each gives an output. Collective. */
RESHARD_API reshard_status reshard_sharded_tensor_gather_all(reshard_sharded_tensor tensor, reshard_tensor out,
                                                             void *stream);

/* One dim of a tensor cut by the chunk rule over placements, which name global ranks. Source: ChunkShardingSpec. */
typedef struct reshard_chunk_spec {
  int dim;   /* negative: from the end */
  int64_t n; /* placements, 1 or more */
  const reshard_remote_device *placements;
} reshard_chunk_spec;

/* A tensor, and its cuts before and after. Begin with RESHARD_LOCAL_RESHARD_DEFAULTS, or set `size` to
 * RESHARD_LOCAL_RESHARD_INIT. Read during the call. */
typedef struct reshard_local_reshard {
  size_t size;
  reshard_dtype dtype;
  int ndim;
  const int64_t *shape;      /* of the whole tensor */
  reshard_chunk_spec before; /* PyTorch's sharding_spec */
  reshard_chunk_spec after;  /* PyTorch's resharding_spec */
} reshard_local_reshard;
#define RESHARD_LOCAL_RESHARD_INIT sizeof(reshard_local_reshard)
#define RESHARD_LOCAL_RESHARD_DEFAULTS \
  { \
    sizeof(reshard_local_reshard), RESHARD_DTYPE_NONE, 0, NULL, {0, 0, NULL}, { 0, 0, NULL } \
  }

/* Move this rank's one shard from chunks to chunks. Collective.
 *
 * - reshuffle: the same dim in another order of placements. A shard goes whole to the rank that holds its chunk in the
 *   new order. Any permutation, any dim, no transposes. There are as many placements after as before; they may be other
 *   ranks.
 * - reshard: the dims differ.
 *
 * Arguments of both:
 * - local: this rank's shard, of any strides. NULL when it holds none.
 * - result: receives a new contiguous tensor, NULL when this rank is not among the placements after. The tensor
 *   requires a gradient where any rank's shard does.
 *
 * Source: reshuffle_local_shard, reshard_local_shard. */
RESHARD_API reshard_status reshard_reshuffle_local_shard(reshard_sharder sharder, const reshard_local_reshard *cuts,
                                                         reshard_tensor local, void *stream, reshard_tensor *result);
RESHARD_API reshard_status reshard_reshard_local_shard(reshard_sharder sharder, const reshard_local_reshard *cuts,
                                                       reshard_tensor local, void *stream, reshard_tensor *result);

#ifdef __cplusplus
}
#endif
#endif
