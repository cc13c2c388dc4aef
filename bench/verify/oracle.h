/* The oracle: a reshard element by element, from the definition alone. It shares no code with the rooms layout and
 * plan: a layout is described by its parameters, and evaluated into lists of element numbers. Slow, and for small
 * worlds (64 ranks). */
#ifndef BENCH_ORACLE_H
#define BENCH_ORACLE_H

#include <reshard/reshard.h>

#include <stdbool.h>

#define ORACLE_MESH_DIMS 6
#define ORACLE_WORLD     64
#define ORACLE_PARTS     6

/* A layout described, not built. Dims are in 0..ndim-1. */
typedef struct oracle_layout {
  reshard_layout_kind kind;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  int64_t world;
  int64_t nranks; /* every kind but boxes; single: 1 */
  int64_t ranks[ORACLE_WORLD];
  int dim;       /* chunk */
  int mesh_ndim; /* mesh */
  int64_t mesh[ORACLE_MESH_DIMS];
  reshard_placement placement[ORACLE_MESH_DIMS];           /* parts: those of part[], the pointer is not read */
  reshard_part part[ORACLE_MESH_DIMS][ORACLE_PARTS];       /* in elements */
  int order[ORACLE_MESH_DIMS];                             /* mesh dims in the order in which they cut */
  int64_t grid[RESHARD_MAX_DIMS], block[RESHARD_MAX_DIMS]; /* cyclic */
  int64_t nboxes;                                          /* boxes: owned lists */
  int64_t *box_rank;
  reshard_box *box;
  bool replicated;
} oracle_layout;

/* One buffer of a rank: global linear index (row-major) of each of its elements, in memory order. */
typedef struct oracle_buffer {
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS]; /* local shape, for strides; a flat piece has one dim */
  int64_t n;
  int64_t *index;
} oracle_buffer;

typedef struct oracle_buffers {
  int64_t first[ORACLE_WORLD + 1]; /* buffers of rank r: [first[r], first[r + 1]) */
  oracle_buffer *buffer;
} oracle_buffers;

void oracle_evaluate(const oracle_layout *layout, oracle_buffers *buffers);
void oracle_buffers_free(oracle_buffers *buffers, int64_t world);

/* The part of the source that becomes a part of the destination; as in reshard_entry, everything explicit. */
typedef struct oracle_region {
  int64_t src_offset[RESHARD_MAX_DIMS], src_extent[RESHARD_MAX_DIMS];
  int64_t dst_offset[RESHARD_MAX_DIMS], dst_extent[RESHARD_MAX_DIMS];
  int permutation[RESHARD_MAX_DIMS];
} oracle_region;

/* The counts of one reshard. */
typedef struct oracle_counts {
  int64_t needed[ORACLE_WORLD];    /* elements that each rank's destination receives */
  int64_t lacked[ORACLE_WORLD];    /* of these, elements that its own source does not have */
  int64_t exclusive[ORACLE_WORLD]; /* elements that only this rank has and some other rank needs */
} oracle_counts;

/* Replaces each index of the destination's buffers by the source's global linear index of the element that belongs
 * there. -1: nothing is to be written there. Adds to counts, `width` bytes an element. */
void oracle_reshard(const oracle_layout *src, const oracle_buffers *from, const oracle_layout *dst, oracle_buffers *to,
                    const oracle_region *region, int64_t width, oracle_counts *counts);
/* Adds to counts what such a reshard moves, source element s being of bytes[s]. */
void oracle_count(const oracle_layout *src, const oracle_buffers *from, const oracle_layout *dst,
                  const oracle_buffers *to, const int64_t *bytes, oracle_counts *counts);

/* The bytes of an element: depend on the key, the index and the byte's place. */
void oracle_stamp(uint64_t key, int64_t index, size_t width, unsigned char *bytes);

#endif
