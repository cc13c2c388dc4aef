/* One thread's work on a move: a batch of tiles from the source's arrays to the target's. */
#ifndef RS_FILE_BATCH_H
#define RS_FILE_BATCH_H

#include "file/move/move.h"

/* A box of a region's region, in the dims of the target, as an entry of a plan has it: in the dims of the stored
 * layouts.
 */
typedef struct rs_tile {
  int64_t region;
  int64_t bytes; /* of the target */
  int64_t src_offset[RESHARD_MAX_DIMS], src_extent[RESHARD_MAX_DIMS];
  int64_t dst_offset[RESHARD_MAX_DIMS], dst_extent[RESHARD_MAX_DIMS];
  int permutation[RESHARD_MAX_DIMS];
} rs_tile;
typedef RS_VEC(rs_tile) rs_tiles;

/* Walks the regions of a move, tile after tile. One thread at a time. */
typedef struct rs_tiling {
  const rs_store_move *move;
  int64_t most;   /* bytes of both sides that a batch may have, whatever the number of ranks */
  int64_t region; /* the next one */
  bool inside;    /* of it, some tiles are done: the next is at `at` */
  int64_t at[RESHARD_MAX_DIMS], step[RESHARD_MAX_DIMS];
} rs_tiling;

/* most: bytes of a batch, mean of both sides. *bytes: of all regions in the target. Errors: regions that do not fit
 * their tensors (a defect of who made them). */
reshard_status rs_tiling_start(rs_tiling *tiling, const rs_store_move *move, int64_t most, int64_t *bytes);
/* The next batch, in place of what is in it; none are left when it is empty. */
reshard_status rs_tiling_next(rs_tiling *tiling, rs_tiles *batch);

/* Part of an array that is in a tile. */
typedef struct rs_tile_part {
  int64_t tile; /* of the batch */
  int64_t cell; /* of the layout: arrays of one cell hold the same */
  int64_t rank, array;
  const rs_stored_array *stored; /* NULL: not stored */
  char *memory;                  /* its place; of arrays that are in memory: NULL */
  const char *data;              /* target: what it has, there or where it was read */
  int64_t bytes;
  int64_t lo[RESHARD_MAX_DIMS], extent[RESHARD_MAX_DIMS]; /* in the array's indices */
  bool done;       /* target: written with another part of its cell; source: read */
  bool wanted;     /* source: it is to be read */
  bool in_place;   /* source: it is read to where it goes */
  int64_t shifted; /* source: bytes of it that go `shift` from their place; -1: it is scattered */
  uintptr_t shift;
} rs_tile_part;
typedef RS_VEC(rs_tile_part) rs_tile_parts;

/* All zero but for the first three. Memory is used over and over. */
typedef struct rs_batch {
  const rs_store_move *move;
  int64_t world, all_bytes;      /* of the whole move */
  rs_device *device;             /* of one thread; owned */
  rs_tiles tiles;                /* the batch */
  int64_t read_bytes;            /* of the source's files, so far */
  RS_VEC(reshard_entry) entries; /* of the plan in hand */
  RS_VEC(int64_t) entry_tile;    /* per entry */
  rs_tile_parts src, dst;
  RS_VEC(rs_tile_part *) cells; /* dst by cell */
  RS_VEC(char) src_memory;
  RS_VEC(char) dst_memory;
  rs_scratch scratch, compared;
  rs_scratch values, scales; /* of FP8 with scales: those of a part of the target; values of the source's, scales of: */
  int64_t scaled_tile;       /* -1: none */
  rs_copies copies;
  int64_t rank_first, rank_count; /* of dst: the parts of the rank in hand */
  bool exclusive;                 /* no element goes to two places */
} rs_batch;

/* Writes, or compares, a part of the target that has `data`. */
reshard_status rs_tile_write(rs_batch *batch, int64_t tensor, const rs_tile_part *part, const rs_stored_array *array);

/* Reads a part of the source that has scales, and multiplies it to the dtype of the target, dense at `to` (scaled.c).
 */
reshard_status rs_scaled_read(rs_batch *batch, const rs_tile_part *part, char *to);
/* Makes values and scales of a part of the target, as parts of the tensors that have them. They live until the next
 * call. */
reshard_status rs_scaled_make(rs_batch *batch, const rs_tile_part *part, rs_tile_part *values, rs_tile_part *scales);

/* Moves the tiles of the batch, or compares what would be written with what is there. */
reshard_status rs_batch_move(rs_batch *batch);
void rs_batch_free(rs_batch *batch);

/* Compares a part of the target with what is stored of that array (compare.c): RESHARD_ERROR_CORRUPT naming tensor,
 * file and index of the first difference. */
reshard_status rs_tile_compare(rs_batch *batch, int64_t tensor, const rs_tile_part *part, const rs_stored_array *array);

#endif
