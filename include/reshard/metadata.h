/* Metadata of sharded tensors: the boxes, the rank and device of each, and the properties that all shards share.
 *
 * NULL metadata have 0 dims, 0 shards, hash 0, properties of dtype RESHARD_DTYPE_NONE, and NULL for pointers. Calls
 * that return a status refuse them (RESHARD_ERROR_INVALID).
 *
 * Ranks in placements are global ranks. If a communicator is a part of the world, the caller gives the table from
 * its ranks to global ones.
 *
 * Source: torch/distributed/_shard: metadata.py, sharded_tensor/metadata.py, sharded_tensor/utils.py,
 * sharding_spec/chunk_sharding_spec.py, remote_device.py. */
#ifndef RESHARD_METADATA_H
#define RESHARD_METADATA_H

#include <reshard/comm.h>
#include <reshard/dtype.h>
#include <reshard/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- Placements of shards --------------------------------------------------------------------------------------- */

/* Rank and device of a shard. Source: _remote_device. */
typedef struct reshard_remote_device {
  int64_t rank; /* global rank; -1: none is given */
  reshard_device_type type;
  int index; /* number of the device; -1: none is given ("cuda", "cpu") */
} reshard_remote_device;

/* Names of workers and their ranks, for placements such as "trainer0/cuda:1". Not thread-safe while names are added. */
typedef struct reshard_workers_s *reshard_workers;
RESHARD_API reshard_status reshard_workers_create(reshard_workers *workers);
/* Adds a worker. A name is [A-Za-z0-9_-]+ and not "rank". A name or rank twice is an error. The name is copied. */
RESHARD_API reshard_status reshard_workers_add(reshard_workers workers, const char *name, int64_t rank);
RESHARD_API void reshard_workers_free(reshard_workers workers); /* NULL is allowed */

/* Reads a placement: "rank:3/cuda:1", "rank:0/cpu", "trainer0/cuda:1", "cuda:0", "cuda", "cpu". A rank or a worker's
 * name alone ("rank:0", "trainer0") is on its cpu. "cpu" and "cuda" alone are devices. workers may be NULL: then names
 * are errors. Errors: RESHARD_ERROR_INVALID naming the part that is wrong, its column, and the part expected there.
 * Source: _parse_and_validate_remote_device, _remote_device.__init__. */
RESHARD_API reshard_status reshard_remote_device_parse(const char *text, reshard_workers workers,
                                                       reshard_remote_device *device);
/* Writes the canonical text, with "rank:R/" where a rank is given. text, size and needed as in reshard_layout_print. */
RESHARD_API reshard_status reshard_remote_device_print(const reshard_remote_device *device, char *text, size_t size,
                                                       size_t *needed);
RESHARD_API int reshard_remote_device_equal(const reshard_remote_device *a, const reshard_remote_device *b);

/* Global ranks of a communicator, by communicator rank. ranks NULL: 0..n-1. Borrowed. */
typedef struct reshard_group {
  int64_t n;
  const int64_t *ranks;
} reshard_group;
/* Finds the rank in the group of a global rank. Errors: RESHARD_ERROR_INVALID naming rank and group when it is not in
 * it. Source: _parse_and_validate_remote_device's check of the group. */
RESHARD_API reshard_status reshard_group_find(const reshard_group *group, int64_t global_rank, int64_t *rank);

/* --- Metadata --------------------------------------------------------------------------------------------------- */

/* A box and its placement. Source: ShardMetadata. */
typedef struct reshard_shard {
  reshard_box box; /* the tensor's ndim entries */
  reshard_remote_device placement;
} reshard_shard;

typedef enum reshard_memory_format { RESHARD_MEMORY_CONTIGUOUS = 0, RESHARD_MEMORY_PRESERVE } reshard_memory_format;

/* Properties that all shards share. Source: TensorProperties. */
typedef struct reshard_properties {
  reshard_dtype dtype;
  reshard_memory_format memory_format;
  int requires_grad, pin_memory; /* 0 or 1 */
} reshard_properties;

/* Immutable, reference counted. Shards keep the order in which they were given, unless a function says otherwise.
 * Source: ShardedTensorMetadata. */
typedef struct reshard_metadata_s *reshard_metadata;

/* Makes metadata of any shards, which are copied. Checks properties, dims, negative sizes and offsets, and sums and
 * products that overflow (also those that a size of 0 would hide). Only reshard_metadata_check looks whether shards are
 * inside of the shape. Shards of which the sizes have changed (reshard_metadata_recalc) need not be. Source:
 * _flatten_tensor_size for the size: its list of numbers is an array and its length here. */
RESHARD_API reshard_status reshard_metadata_create(const reshard_properties *properties, int ndim, const int64_t *shape,
                                                   int64_t n, const reshard_shard *shards, reshard_metadata *metadata);
/* Cuts dim by the chunk rule over the placements, piece i to the i-th. Trailing empty pieces are shards at offset n.
 * Negative dims count from the end. The same rank twice is an error. Placements without a rank are taken as they are.
 * Source: ChunkShardingSpec.build_metadata. */
RESHARD_API reshard_status reshard_metadata_from_chunk(const reshard_properties *properties, int ndim,
                                                       const int64_t *shape, int dim, int64_t n,
                                                       const reshard_remote_device *placements,
                                                       reshard_metadata *metadata);
/* Makes metadata of every box that a layout's ranks hold, ordered by rank; replicas are each rank's. An array that is
 * no box is cut in its boxes (cyclic, StridedShard), row-major. An array without elements is one shard: an empty box of
 * a boxes layout as it is. Of other layouts it is at offset n in the dims in which it has no index, at its first
 * interval in the others.
 *
 * - group: the global ranks of the layout's world. NULL: the same numbers.
 * - devices: placement of each rank of the world; its `rank` is not read. NULL: cpu.
 *
 * (Metadata that a sharder makes of a layout have its kind of device: cpu, or cuda without a number, since the numbers
 * of the others are not known.) */
RESHARD_API reshard_status reshard_metadata_from_layout(const reshard_properties *properties, reshard_layout layout,
                                                        const reshard_group *group,
                                                        const reshard_remote_device *devices,
                                                        reshard_metadata *metadata);
/* Makes the boxes layout of the shards over the group's ranks (its world), arrays in the shards' order. replicated as
 * in reshard_layout_create_boxes. Errors: a placement without a rank, or whose rank is not in the group; those of
 * reshard_layout_create_boxes. */
RESHARD_API reshard_status reshard_metadata_layout(reshard_metadata metadata, const reshard_group *group,
                                                   int replicated, reshard_layout *layout);

/* One more reference; returns its argument. */
RESHARD_API reshard_metadata reshard_metadata_retain(reshard_metadata metadata);
/* One reference less; the last one frees. NULL is allowed. */
RESHARD_API void reshard_metadata_release(reshard_metadata metadata);

RESHARD_API int reshard_metadata_ndim(reshard_metadata metadata);
RESHARD_API const int64_t *reshard_metadata_shape(reshard_metadata metadata); /* borrowed */
RESHARD_API reshard_properties reshard_metadata_properties(reshard_metadata metadata);
RESHARD_API int64_t reshard_metadata_count(reshard_metadata metadata);
RESHARD_API const reshard_shard *reshard_metadata_shards(reshard_metadata metadata); /* borrowed, count of them */
/* 1 when shape, properties and shards are equal, the shards in the same order; else 0. */
RESHARD_API int reshard_metadata_equal(reshard_metadata a, reshard_metadata b);
/* Hash of all that reshard_metadata_equal compares. */
RESHARD_API uint64_t reshard_metadata_hash(reshard_metadata metadata);

/* Checks that shards are inside the shape, disjoint, and cover it. Equal boxes of different ranks are an overlap, too.
 * Empty boxes never overlap. Time: O(n log n) times 2^k, k: dims that not every shard spans. Errors:
 * RESHARD_ERROR_INVALID naming one shard outside, one pair that overlaps and its place, or one missing box. Source:
 * validate_non_overlapping_shards_metadata, check_tensor. */
RESHARD_API reshard_status reshard_metadata_check(reshard_metadata metadata);

/* Recalculates shards whose sizes along dim (negative: from the end) changed. Shards are sorted by rank (stable), and
 * their sizes along dim are cumulated into offsets. Other offsets are 0, and the global size of dim is their sum.
 * Errors: a shard without a rank; extents of other dims that differ between shards (both shards and values). Source:
 * recalc_global_sharded_tensor_metadata. */
RESHARD_API reshard_status reshard_metadata_recalc(reshard_metadata metadata, int dim, reshard_metadata *recalculated);

/* Convert metadata to and from a compact byte string: magic, version, length, checksum, then numbers as variable-length
 * integers. It is the same on all machines; equal metadata have equal strings. size 0 and bytes NULL ask for the length
 * in needed, which may be NULL otherwise. Reading refuses other versions, truncation, trailing bytes, wrong lengths and
 * checksums (RESHARD_ERROR_INVALID). */
RESHARD_API reshard_status reshard_metadata_serialize(reshard_metadata metadata, void *bytes, size_t size,
                                                      size_t *needed);
RESHARD_API reshard_status reshard_metadata_deserialize(const void *bytes, size_t size, reshard_metadata *metadata);
/* Writes JSON: {"shape", "dtype", "memory_format", "requires_grad", "pin_memory", "shards": [{"offsets", "sizes",
 * "placement"}]}. text, size and needed as in reshard_layout_print. */
RESHARD_API reshard_status reshard_metadata_print_json(reshard_metadata metadata, char *text, size_t size,
                                                       size_t *needed);

/* --- From local shards ------------------------------------------------------------------------------------------ */

/* A local shard: its metadata and the tensor that has its data. */
struct reshard_tensor_s;
typedef struct reshard_local_shard {
  reshard_shard metadata;
  struct reshard_tensor_s *tensor; /* borrowed during calls */
} reshard_local_shard;

/* Makes the metadata of this rank's shards, n >= 1 of them, with the global shape given. Local. Every placement has
 * this global rank and the device that the tensor is on (without a number: its kind). Sizes equal the tensor's. dtype,
 * requires_grad and pin_memory are those of the first. The result has the local shards alone. Its memory format is
 * contiguous, however the local tensors are strided. Errors: RESHARD_ERROR_INVALID with the rank and both values
 * (_raise_if_mismatch's content). Source: build_metadata_from_local_shards. */
RESHARD_API reshard_status reshard_metadata_build_local(int ndim, const int64_t *shape, int64_t n,
                                                        const reshard_local_shard *shards, int64_t global_rank,
                                                        reshard_metadata *metadata);
/* Merges the ranks' metadata. Collective over comm. Shards are appended by rank, and reshard_metadata_check checks
 * the result, which ranks of one process share.
 *
 * - local: this rank's metadata, NULL where it has no shards. Placements are taken as they are:
 *   reshard_metadata_build_local has checked them.
 * - local_status: RESHARD_SUCCESS, or the status of a rank whose own step failed (with its text in
 *   reshard_last_error), so that no rank waits for it.
 * - recalc_dim: -1, or the dim along which sizes are recalculated (reshard_metadata_recalc) before the check, as
 *   with recalc_metadata=True. Shapes then need not agree in it. The same on all ranks.
 *
 * All ranks succeed, or all get the same error:
 * - RESHARD_ERROR_MISMATCH: the first rank that differs in shape or properties from the lowest that has shards, with
 *   the field, both ranks and both values.
 * - RESHARD_ERROR_INVALID: "no rank has any shard", or the error of the check.
 *
 * Source: build_global_metadata. */
RESHARD_API reshard_status reshard_metadata_build_global(reshard_comm comm, reshard_metadata local,
                                                         reshard_status local_status, int recalc_dim,
                                                         reshard_metadata *global);
/* Merges a list in one process likewise, without a communicator. Local. locals[r] is rank r's, of n; NULL: it has no
 * shards. Errors name places in the list as ranks. Source: build_global_metadata, which takes the list that was
 * gathered. */
RESHARD_API reshard_status reshard_metadata_merge(int64_t n, const reshard_metadata *locals, int recalc_dim,
                                                  reshard_metadata *global);
/* Merges the metadata of many tensors likewise, in one exchange: locals[i] and globals[i], n of each, in the same order
 * on all ranks. The number of them is compared. Errors begin with the number of the tensor. */
RESHARD_API reshard_status reshard_metadata_build_global_many(reshard_comm comm, int64_t n,
                                                              const reshard_metadata *locals,
                                                              reshard_status local_status, reshard_metadata *globals);

/* --- PyTorch's functions for resharding chunk to chunk ---------------------------------------------------------- */

/* Finds the index of a global rank in a list of placements, the first where it is there twice. Errors:
 * RESHARD_ERROR_INVALID naming the rank and the list. Source: get_idx_from_placements. */
RESHARD_API reshard_status reshard_placements_find(int64_t n, const reshard_remote_device *placements, int64_t rank,
                                                   int64_t *index);
/* Lists the shards of a chunk spec by global rank. Works when fewer ranks hold shards than the world has. Ranks that
 * hold none have extent 0 at offset 0 of dim, and "cpu" without an index as device.
 *
 * - shards: receives `world` entries: shards[r] for r in [0, world).
 * - order: receives n entries: order[i] is the rank of the i-th placement.
 *
 * Errors: RESHARD_ERROR_INVALID for a rank that is named twice, is none or is not in [0, world). Outputs are written on
 * success only. Source: build_reshard_metadata. */
RESHARD_API reshard_status reshard_build_reshard_metadata(int ndim, const int64_t *shape, int dim, int64_t n,
                                                          const reshard_remote_device *placements, int64_t world,
                                                          reshard_shard *shards, int64_t *order);

#ifdef __cplusplus
}
#endif
#endif
