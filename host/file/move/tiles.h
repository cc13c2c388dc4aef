/* Tiles, the units of moving: a box of one region, or many small regions whole. */
#ifndef RS_FILE_TILES_H
#define RS_FILE_TILES_H

#include "file/move/move.h"

/* A box of a region's region, in the dims of the target, as an entry of a plan has it: in the dims of the stored
 * layouts.
 */
typedef struct rs_tile {
  int64_t region;
  int64_t bytes;
  int64_t src_offset[RESHARD_MAX_DIMS], src_extent[RESHARD_MAX_DIMS];
  int64_t dst_offset[RESHARD_MAX_DIMS], dst_extent[RESHARD_MAX_DIMS];
  int permutation[RESHARD_MAX_DIMS];
} rs_tile;
typedef RS_VEC(rs_tile) rs_tiles;

/* Walks the regions of a move, tile after tile. One thread at a time. */
typedef struct rs_tiling {
  const rs_store_move *move;
  int64_t most;   /* bytes that a batch may have, whatever the number of ranks */
  int64_t region; /* the next one */
  bool inside;    /* of it, some tiles are done: the next is at `at` */
  int64_t at[RESHARD_MAX_DIMS], step[RESHARD_MAX_DIMS];
} rs_tiling;

/* Bytes of all regions. Errors: regions that do not fit their tensors (a defect of who made them). */
reshard_status rs_tiling_start(rs_tiling *tiling, const rs_store_move *move, int64_t most, int64_t *bytes);
/* The next batch, in place of what is in it; none are left when it is empty. */
reshard_status rs_tiling_next(rs_tiling *tiling, rs_tiles *batch);

#endif
