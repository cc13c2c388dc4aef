/* Layouts: the boxes of a global tensor that each rank holds.
 *
 * A layout is made for a shape and a world of ranks. A shape has 0 to RESHARD_MAX_DIMS dims, and extents may be 0. A
 * layout knows no data, element type, device or peer, is immutable and reference counted: threads and plans may share
 * it. Making one is local, never collective. Shapes, offsets and extents are in elements. Ranks are ranks of the
 * communicator that a plan will run on.
 *
 * Every cut follows the chunk rule: n over w gives pieces of ceil(n / w). Trailing pieces may be smaller or empty: 5
 * over 4 is 2,2,1,0. Source: torch.chunk and PyTorch's sharded tensor; numpy's array_split cuts otherwise.
 *
 * A NULL layout has kind RESHARD_LAYOUT_KIND_COUNT, a NULL shape and 0 of everything else. Calls that return a status
 * refuse it (RESHARD_ERROR_INVALID). */
#ifndef RESHARD_LAYOUT_H
#define RESHARD_LAYOUT_H

#include <reshard/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RESHARD_MAX_PARTS 4096 /* of a placement */

typedef struct reshard_layout_s *reshard_layout;

typedef enum reshard_layout_kind {
  RESHARD_LAYOUT_CHUNK = 0, /* one dim cut in w pieces, piece i to the i-th rank of a list */
  RESHARD_LAYOUT_MESH,      /* n-d device mesh of ranks, one placement per mesh dim */
  RESHARD_LAYOUT_CYCLIC,    /* ScaLAPACK's block-cyclic over a grid of ranks */
  RESHARD_LAYOUT_SINGLE,    /* the whole tensor on one rank */
  RESHARD_LAYOUT_FLAT,      /* the row-major flattening in equal pieces (FSDP1's flat parameter, ZeRO) */
  RESHARD_LAYOUT_BOXES,     /* any list of (rank, box) */
  RESHARD_LAYOUT_KIND_COUNT
} reshard_layout_kind;

/* Half-open box [offset, offset + extent). Only the first ndim entries are read. */
typedef struct reshard_box {
  int64_t offset[RESHARD_MAX_DIMS];
  int64_t extent[RESHARD_MAX_DIMS];
} reshard_box;

typedef struct reshard_interval {
  int64_t begin, end; /* half open */
} reshard_interval;

typedef enum reshard_placement_kind {
  RESHARD_PLACEMENT_REPLICATE = 0,
  RESHARD_PLACEMENT_SHARD, /* the chunk rule on tensor dim `dim`, or on each of its parts */
  /* Cuts dim in split_factor chunks and each of these in w. The i-th rank gets the i-th part of each chunk, one after
   * the other. Source: torch.distributed.tensor _StridedShard. */
  RESHARD_PLACEMENT_STRIDED_SHARD
} reshard_placement_kind;

/* A part of a dim: of a fused tensor's rows those of q, of k or of v, say. */
typedef struct reshard_part {
  int64_t size;   /* indices of the dim, 0 or more; in a ratio a number of 1 or more */
  int64_t pieces; /* at most so many, each on as many neighbouring ranks; 0: one for each rank */
} reshard_part;

/* A Shard with parts gives rank r its chunk of each, one behind the other: [q_r | k_r | v_r]. It is the first cut of
 * its dim. Sizes add up to the extent; the sum of a ratio divides it; one part alone, of any size, is the whole dim. A
 * part in fewer pieces than there are ranks is in n = min(pieces, ranks), which divides the ranks. No other mesh dim
 * cuts that dim then, and one dim of a layout has such parts. A rank has an array for each run of parts of one n.
 *
 * Parts are the caller's, and copied. Placements that a call returns have sizes, never a ratio, and point into the
 * layout, as long as it lives. */
typedef struct reshard_placement {
  reshard_placement_kind kind;
  int dim;              /* SHARD and STRIDED_SHARD: tensor dim, negative counts from the end */
  int64_t split_factor; /* STRIDED_SHARD: at least 1 */
  int nparts;           /* SHARD: 0: the dim is one part; at most RESHARD_MAX_PARTS */
  int ratio;            /* non-zero: sizes of parts are a ratio */
  const reshard_part *parts;
} reshard_placement;

/* Reads a layout string. docs/layouts.md has the whole grammar. Examples:
 *
 *     chunk(0) chunk(-1;2,0,3,1)
 *     mesh(2x4;S0,R) mesh(dp=2,tp=4;S0,S1) mesh(2x2@4-7;R,S1) mesh(dp=3,tp=2;S0,S0;order=tp,dp)
 *     mesh(tp=4;S0{4096,1024,1024}) mesh(tp=16;S0{32:8/8:8/8}) mesh(8;S0/4)
 *     cyclic(2x2;32x32) cyclic(2x2@3-0;32x32)
 *     rank(3) flat() flat(4-7)
 *     boxes(0:[0,0]+[5,12];1:[5,0]+[8,12]) boxes(@file) boxes(replicated;...)
 *
 * One named mesh dim may be without its size: mesh(dp,tp=4;S0,S1). The mesh then has all ranks named after `@`, else
 * all of the world. rank(5/128) is the rank that gets piece 5 of 128 by the chunk rule over the world.
 *
 * - world: number of ranks. 0: the smallest world that holds the ranks named; an error for a string that names none, as
 *   chunk(0), flat() and mesh(dp;S0).
 *
 * Errors:
 * - RESHARD_ERROR_INVALID: syntax, with the column; anything else that is wrong, with the numbers; a box file that is
 *   missing.
 * - RESHARD_ERROR_UNSUPPORTED: Psum, Pavg, Pmin, Pmax, Pprod; more than RESHARD_MAX_PARTS parts.
 * - RESHARD_ERROR_SYSTEM: a box file that cannot be read. */
RESHARD_API reshard_status reshard_layout_parse(const char *text, int ndim, const int64_t *shape, int64_t world,
                                                reshard_layout *layout);

/* Smallest world that a layout string names: largest rank + 1, or 0 when it names none. Reads box files. Errors as in
 * reshard_layout_parse. */
RESHARD_API reshard_status reshard_layout_parse_world(const char *text, int64_t *world);

/* Cuts dim (negative: from the end) over ranks[0..nranks). ranks NULL with nranks 0: all ranks of the world. */
RESHARD_API reshard_status reshard_layout_create_chunk(int ndim, const int64_t *shape, int64_t world, int dim,
                                                       int64_t nranks, const int64_t *ranks, reshard_layout *layout);

/* Lays a mesh of ranks over the tensor.
 *
 * - mesh_ndim, mesh_shape: extents of the mesh, 1 dim or more.
 * - names: one per mesh dim ([A-Za-z_][A-Za-z0-9_]*, distinct), or NULL.
 * - placements: one per mesh dim.
 * - order: the mesh dims in the order in which they cut, a permutation of 0..mesh_ndim-1. NULL: left to right.
 * - ranks: the mesh's ranks in row-major order, as many as the product of mesh_shape. NULL: 0, 1, 2, ... */
RESHARD_API reshard_status reshard_layout_create_mesh(int ndim, const int64_t *shape, int64_t world, int mesh_ndim,
                                                      const int64_t *mesh_shape, const char *const *names,
                                                      const reshard_placement *placements, const int *order,
                                                      const int64_t *ranks, reshard_layout *layout);

/* Block-cyclic layout, whose first block is at coordinate 0.
 *
 * - grid: extent of the grid of ranks in each tensor dim.
 * - block: extent of a block in each tensor dim, 1 or more.
 * - ranks: the grid's ranks in row-major order, as many as the product of grid. NULL: 0, 1, 2, ... */
RESHARD_API reshard_status reshard_layout_create_cyclic(int ndim, const int64_t *shape, int64_t world,
                                                        const int64_t *grid, const int64_t *block, const int64_t *ranks,
                                                        reshard_layout *layout);

/* Makes the block-cyclic layout of a ScaLAPACK matrix of M_ x N_ elements. docs/scalapack.md shows its use.
 *
 * - desc: DTYPE_ 1, CTXT_, M_, N_, MB_, NB_, RSRC_, CSRC_, LLD_. CTXT_ and LLD_ are not read: strides of a local array
 *   are {1, LLD_}.
 * - nprow, npcol: the grid of the context.
 * - ranks: of the grid row by row, nprow * npcol of them. NULL: 0, 1, 2, ..., as BLACS has them for order 'R'.
 *
 * The world is the smallest that has these ranks; reshard_layout_extend makes it larger.
 *
 * Errors: RESHARD_ERROR_UNSUPPORTED: another DTYPE_. RESHARD_ERROR_INVALID: names the entry and its value. */
RESHARD_API reshard_status reshard_layout_scalapack(const int desc[9], int nprow, int npcol, const int64_t *ranks,
                                                    reshard_layout *layout);

/* Makes the same layout for a world of as many ranks, or more. New ranks hold nothing. Errors:
 * RESHARD_ERROR_INVALID: a smaller world. */
RESHARD_API reshard_status reshard_layout_extend(reshard_layout layout, int64_t world, reshard_layout *extended);

RESHARD_API reshard_status reshard_layout_create_single(int ndim, const int64_t *shape, int64_t world, int64_t rank,
                                                        reshard_layout *layout);

/* Cuts the row-major flattening in pieces of ceil(elements / nranks). ranks as in reshard_layout_create_chunk. */
RESHARD_API reshard_status reshard_layout_create_flat(int ndim, const int64_t *shape, int64_t world, int64_t nranks,
                                                      const int64_t *ranks, reshard_layout *layout);

/* Any boxes: box i is held by ranks[i]. A rank may hold many, in the order given.
 *
 * - replicated: non-zero: equal boxes on several ranks are replicas when the layout is a source.
 *
 * Checks bounds and overlap within a rank, in O(n log n). Gaps, and overlap between ranks, are found here too, and are
 * an error only where the layout becomes a source (reshard_layout_check_source): a destination may have gaps and halos.
 */
RESHARD_API reshard_status reshard_layout_create_boxes(int ndim, const int64_t *shape, int64_t world, int64_t nboxes,
                                                       const int64_t *ranks, const reshard_box *boxes, int replicated,
                                                       reshard_layout *layout);

/* One more reference; returns its argument. */
RESHARD_API reshard_layout reshard_layout_retain(reshard_layout layout);
/* One reference less; the last one frees. NULL is allowed. */
RESHARD_API void reshard_layout_release(reshard_layout layout);

/* Writes the canonical string, NUL-terminated: explicit ranks with ranges, non-negative dims, no default.
 *
 * - size: bytes of text. Errors: RESHARD_ERROR_INVALID when it is too small; needed is then written.
 * - needed: length of the string with its NUL. May be NULL. */
RESHARD_API reshard_status reshard_layout_print(reshard_layout layout, char *text, size_t size, size_t *needed);

RESHARD_API reshard_layout_kind reshard_layout_get_kind(reshard_layout layout);
/* "chunk", "mesh", "cyclic", "single", "flat", "boxes"; "unknown" else. Static lifetime. */
RESHARD_API const char *reshard_layout_kind_string(reshard_layout_kind kind);
RESHARD_API int64_t reshard_layout_world(reshard_layout layout);
RESHARD_API int reshard_layout_ndim(reshard_layout layout);
/* ndim extents. Borrowed: lives as long as the layout. */
RESHARD_API const int64_t *reshard_layout_shape(reshard_layout layout);
RESHARD_API int64_t reshard_layout_elements(reshard_layout layout);
/* 1 when kind, shape, world, ranks and parameters of both layouts are equal; else 0. */
RESHARD_API int reshard_layout_equal(reshard_layout a, reshard_layout b);

/* Checks that the layout can be a source: every element is held, and by several ranks only where the kind allows it.
 * Regular kinds always can be one. Errors: RESHARD_ERROR_INVALID naming one gap or one overlapping pair. */
RESHARD_API reshard_status reshard_layout_check_source(reshard_layout layout);

/* A rank holds a list of arrays. A chunk, mesh, cyclic or single layout has one, maybe empty, for each rank that it
 * names; a mesh with parts in fewer pieces than ranks has several, side by side in the buffer along the dim of the
 * parts. A boxes layout has one per box. A flat layout has the boxes of its piece, at most 2 ndim - 1. A rank that the
 * layout does not name has none. */
typedef struct reshard_array_info {
  int64_t elements;
  int64_t shape[RESHARD_MAX_DIMS];   /* local shape */
  int64_t strides[RESHARD_MAX_DIMS]; /* in elements: row-major, contiguous where it is alone in its buffer */
  int64_t buffer;                    /* number of the rank's buffer that holds it */
  int64_t offset;                    /* elements before the array in that buffer */
} reshard_array_info;

RESHARD_API reshard_status reshard_layout_array_count(reshard_layout layout, int64_t rank, int64_t *count);
RESHARD_API reshard_status reshard_layout_array(reshard_layout layout, int64_t rank, int64_t array,
                                                reshard_array_info *info);

/* Index set of an array in one dim: the maximal runs of global indices, ascending.
 *
 * - first, capacity: the runs to write: at most capacity of them, from number first on.
 * - intervals: room for capacity runs. May be NULL with capacity 0.
 * - count: receives the number of all runs. */
RESHARD_API reshard_status reshard_layout_array_intervals(reshard_layout layout, int64_t rank, int64_t array, int dim,
                                                          int64_t first, int64_t capacity, reshard_interval *intervals,
                                                          int64_t *count);

/* Buffers that a caller passes to a transfer. A boxes layout has one per box, in the order given. Every other kind has
 * one per rank, also for a rank that holds nothing: its pointer is not read. */
RESHARD_API reshard_status reshard_layout_buffer_count(reshard_layout layout, int64_t rank, int64_t *count);
RESHARD_API reshard_status reshard_layout_buffer_elements(reshard_layout layout, int64_t rank, int64_t buffer,
                                                          int64_t *elements);
/* Extents of a buffer, row-major: those of its array, or of its arrays together, where it has several. One dim of
 * elements for a piece of a flat layout, and for a rank that holds nothing.
 *
 * - block: NULL: of the values. Else the extent of a block in each dim, 1 or more: of the scales that an entry has
 *   behind them (plan.h), one for each block.
 * - ndim: receives the number of extents. shape: room for RESHARD_MAX_DIMS. */
RESHARD_API reshard_status reshard_layout_buffer_shape(reshard_layout layout, int64_t rank, int64_t buffer,
                                                       const int64_t *block, int *ndim, int64_t *shape);

/* Called for each (rank, array) that holds part of a box, with the elements held. Ranks ascend, and arrays within a
 * rank. Non-zero return ends the walk. */
typedef int (*reshard_layout_visitor)(void *user, int64_t rank, int64_t array, int64_t elements);
/* Visits all arrays that meet a box: by arithmetic per dim for the regular kinds, by a tree for boxes. */
RESHARD_API reshard_status reshard_layout_meet(reshard_layout layout, const reshard_box *box,
                                               reshard_layout_visitor visit, void *user);

/* Called for each box that is lost. Non-zero return ends the walk. */
typedef int (*reshard_lost_visitor)(void *user, const reshard_box *box);
/* Visits the boxes that no rank has but the n lost ones (ascending): the part of a tensor that is gone with them, each
 * element once. None where survivors have replicas of all. See reshard_comm_missing. Errors: RESHARD_ERROR_INVALID: a
 * list that does not ascend; a layout that cannot be a source. */
RESHARD_API reshard_status reshard_layout_lost(reshard_layout layout, int64_t n, const int64_t *lost,
                                               reshard_lost_visitor visit, void *user);

#ifdef __cplusplus
}
#endif
#endif
