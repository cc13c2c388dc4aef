/* Layouts: which rank holds which boxes of a global tensor.
 *
 * A layout is made for a shape (0 to RESHARD_MAX_DIMS dims; 0-size dims are legal) and a world of ranks. It knows
 * nothing of data, element types, devices or peers. It is immutable and reference counted, so that it can be shared
 * by threads and plans; making one is local, never collective. All shapes, offsets and extents are in elements, all
 * ranks are ranks of the communicator that a plan will run on.
 *
 * Every cut follows the chunk rule: n over w gives pieces of ceil(n / w); trailing pieces may be smaller or empty (5
 * over 4 is 2,2,1,0). Source: torch.chunk and PyTorch's sharded tensor; it is not numpy's array_split. A NULL layout
 * has kind RESHARD_LAYOUT_KIND_COUNT, a NULL shape and 0 of everything else; calls that return a status refuse it
 * (RESHARD_ERROR_INVALID). */
#ifndef RESHARD_LAYOUT_H
#define RESHARD_LAYOUT_H

#include <reshard/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_layout_s *reshard_layout;

typedef enum reshard_layout_kind {
  RESHARD_LAYOUT_CHUNK = 0, /* one dim cut in w pieces, piece i to the i-th rank of a list */
  RESHARD_LAYOUT_MESH,      /* n-d device mesh of ranks, one placement per mesh dim */
  RESHARD_LAYOUT_CYCLIC,    /* ScaLAPACK's block-cyclic over a grid of ranks */
  RESHARD_LAYOUT_SINGLE,    /* all of it on one rank */
  RESHARD_LAYOUT_FLAT,      /* the row-major flattening cut in equal pieces (FSDP1's flat parameter, ZeRO) */
  RESHARD_LAYOUT_BOXES,     /* any list of (rank, box) */
  RESHARD_LAYOUT_KIND_COUNT
} reshard_layout_kind;

/* Half-open box [offset, offset + extent); only the first ndim entries are read. */
typedef struct reshard_box {
  int64_t offset[RESHARD_MAX_DIMS];
  int64_t extent[RESHARD_MAX_DIMS];
} reshard_box;

typedef struct reshard_interval {
  int64_t begin, end; /* half open */
} reshard_interval;

typedef enum reshard_placement_kind {
  RESHARD_PLACEMENT_REPLICATE = 0,
  RESHARD_PLACEMENT_SHARD,        /* the chunk rule on tensor dim `dim` */
  RESHARD_PLACEMENT_STRIDED_SHARD /* dim cut in split_factor chunks, each of these in w; the i-th rank gets the i-th of
                                     each, one after the other. Source: torch.distributed.tensor _StridedShard. */
} reshard_placement_kind;

typedef struct reshard_placement {
  reshard_placement_kind kind;
  int dim;              /* SHARD and STRIDED_SHARD: tensor dim, negative counts from the end */
  int64_t split_factor; /* STRIDED_SHARD: at least 1 */
} reshard_placement;

/* Reads a layout string: chunk(0) chunk(-1;2,0,3,1) mesh(2x4;S0,R) mesh(dp=2,tp=4;S0,S1) mesh(2x2@4-7;R,S1)
 * mesh(dp=3,tp=2;S0,S0;order=tp,dp) cyclic(2x2;32x32) cyclic(2x2@3-0;32x32) rank(3) flat() flat(4-7)
 * boxes(0:[0,0]+[5,12];1:[5,0]+[8,12]) boxes(@file) boxes(replicated;...). README.md has the whole grammar.
 * One named mesh dim may be without its size, mesh(dp,tp=4;S0,S1): the mesh then has all ranks that are named behind
 * `@`, else all of the world. rank(5/128) is the rank that the chunk rule gives piece 5 of 128 over the world.
 * world 0 means "the smallest world that holds the ranks named"; it is an error for a string that names none (chunk(0),
 * flat(), mesh(dp;S0)). Errors: RESHARD_ERROR_INVALID with the column for syntax, with the numbers else;
 * RESHARD_ERROR_UNSUPPORTED for Psum, Pavg, Pmin, Pmax, Pprod. A box file that is not there is RESHARD_ERROR_INVALID,
 * one that cannot be read RESHARD_ERROR_SYSTEM. */
RESHARD_API reshard_status reshard_layout_parse(const char *text, int ndim, const int64_t *shape, int64_t world,
                                                reshard_layout *layout);

/* Smallest world that a layout string names: largest rank + 1, or 0 when it names none. Reads box files.
 * Errors as reshard_layout_parse. */
RESHARD_API reshard_status reshard_layout_parse_world(const char *text, int64_t *world);

/* dim (negative counts from the end) cut over ranks[0..nranks); ranks NULL with nranks 0 means all of the world. */
RESHARD_API reshard_status reshard_layout_create_chunk(int ndim, const int64_t *shape, int64_t world, int dim,
                                                       int64_t nranks, const int64_t *ranks, reshard_layout *layout);

/* A mesh of mesh_ndim (1 or more) dims in row-major order over ranks[0..product of mesh_shape); ranks NULL means
 * 0, 1, 2, ... names: one per mesh dim ([A-Za-z_][A-Za-z0-9_]*, distinct), or NULL. placements: one per mesh dim.
 * order: the mesh dims in the order in which they cut, a permutation of 0..mesh_ndim-1, or NULL for left to right. */
RESHARD_API reshard_status reshard_layout_create_mesh(int ndim, const int64_t *shape, int64_t world, int mesh_ndim,
                                                      const int64_t *mesh_shape, const char *const *names,
                                                      const reshard_placement *placements, const int *order,
                                                      const int64_t *ranks, reshard_layout *layout);

/* Block-cyclic: one grid dim and one block extent (1 or more) per tensor dim; the grid is row-major over
 * ranks[0..product of grid), NULL meaning 0, 1, 2, ...; the first block is at coordinate 0. */
RESHARD_API reshard_status reshard_layout_create_cyclic(int ndim, const int64_t *shape, int64_t world,
                                                        const int64_t *grid, const int64_t *block, const int64_t *ranks,
                                                        reshard_layout *layout);

RESHARD_API reshard_status reshard_layout_create_single(int ndim, const int64_t *shape, int64_t world, int64_t rank,
                                                        reshard_layout *layout);

/* The row-major flattening in pieces of ceil(elements / nranks); ranks as in reshard_layout_create_chunk. */
RESHARD_API reshard_status reshard_layout_create_flat(int ndim, const int64_t *shape, int64_t world, int64_t nranks,
                                                      const int64_t *ranks, reshard_layout *layout);

/* Box i is held by ranks[i]; a rank may hold many, in the order given. replicated non-zero: equal boxes on several
 * ranks are replicas when the layout is a source. Checked here, in O(n log n): bounds, overlap within a rank. Coverage
 * and overlap between ranks are found here too, and are an error where the layout becomes a source
 * (reshard_layout_check_source): a destination may have gaps and halos. */
RESHARD_API reshard_status reshard_layout_create_boxes(int ndim, const int64_t *shape, int64_t world, int64_t nboxes,
                                                       const int64_t *ranks, const reshard_box *boxes, int replicated,
                                                       reshard_layout *layout);

/* One more reference; returns its argument. */
RESHARD_API reshard_layout reshard_layout_retain(reshard_layout layout);
/* One reference less; the last one frees. NULL is allowed. */
RESHARD_API void reshard_layout_release(reshard_layout layout);

/* The canonical string (explicit ranks with ranges, non-negative dims, no default written), NUL-terminated. needed
 * (may be NULL) receives its length with the NUL. Errors: RESHARD_ERROR_INVALID when size is too small, needed is then
 * written. */
RESHARD_API reshard_status reshard_layout_print(reshard_layout layout, char *text, size_t size, size_t *needed);

RESHARD_API reshard_layout_kind reshard_layout_get_kind(reshard_layout layout);
RESHARD_API int64_t reshard_layout_world(reshard_layout layout);
RESHARD_API int reshard_layout_ndim(reshard_layout layout);
/* ndim extents; borrowed, lives as long as the layout. */
RESHARD_API const int64_t *reshard_layout_shape(reshard_layout layout);
RESHARD_API int64_t reshard_layout_elements(reshard_layout layout);
/* 1 when both layouts say the same: kind, shape, world, ranks and parameters; else 0. */
RESHARD_API int reshard_layout_equal(reshard_layout a, reshard_layout b);

/* RESHARD_SUCCESS when the layout can be a source: every element is held, and by several ranks only where the kind
 * says so. Regular kinds always can. Errors: RESHARD_ERROR_INVALID naming one gap or one overlapping pair. */
RESHARD_API reshard_status reshard_layout_check_source(reshard_layout layout);

/* What a rank holds is a list of arrays. A chunk, mesh, cyclic or single layout has one per rank that it names (it may
 * be empty), a boxes layout one per box, a flat layout the boxes of its piece (2 ndim - 1 at most). A rank that the
 * layout does not name has none. */
typedef struct reshard_array_info {
  int64_t elements;
  int64_t shape[RESHARD_MAX_DIMS];   /* local shape */
  int64_t strides[RESHARD_MAX_DIMS]; /* in elements: contiguous row-major */
  int64_t buffer;                    /* which of the rank's buffers holds it */
  int64_t offset;                    /* elements before it in that buffer */
} reshard_array_info;

RESHARD_API reshard_status reshard_layout_array_count(reshard_layout layout, int64_t rank, int64_t *count);
RESHARD_API reshard_status reshard_layout_array(reshard_layout layout, int64_t rank, int64_t array,
                                                reshard_array_info *info);

/* Index set of an array in one dim: the maximal runs of global indices, ascending. Writes at most capacity of them from
 * the first-th on, and to *count how many there are in all. intervals may be NULL with capacity 0. */
RESHARD_API reshard_status reshard_layout_array_intervals(reshard_layout layout, int64_t rank, int64_t array, int dim,
                                                          int64_t first, int64_t capacity, reshard_interval *intervals,
                                                          int64_t *count);

/* Buffers are what a caller passes to a transfer: one per rank for every kind but boxes, whether the rank holds
 * anything or not (its pointer is not read when it holds nothing); one per box for boxes, in the order given. */
RESHARD_API reshard_status reshard_layout_buffer_count(reshard_layout layout, int64_t rank, int64_t *count);
RESHARD_API reshard_status reshard_layout_buffer_elements(reshard_layout layout, int64_t rank, int64_t buffer,
                                                          int64_t *elements);

/* Called for each (rank, array) that holds part of a box, rank ascending, array ascending within a rank, with the
 * elements held. Non-zero return ends the walk. */
typedef int (*reshard_layout_visitor)(void *user, int64_t rank, int64_t array, int64_t elements);
/* Who holds what meets a box: by arithmetic per dim for the regular kinds, by a tree for boxes. */
RESHARD_API reshard_status reshard_layout_meet(reshard_layout layout, const reshard_box *box,
                                               reshard_layout_visitor visit, void *user);

#ifdef __cplusplus
}
#endif
#endif
