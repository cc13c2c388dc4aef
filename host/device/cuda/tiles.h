/* From a list of copies to the tables of the box copy kernels (kernels/box_copy.h). No call of CUDA: also for tests.
 */
#ifndef RS_DEVICE_CUDA_TILES_H
#define RS_DEVICE_CUDA_TILES_H

#include "device/device.h"
#include "kernels/box_copy.h"

/* Device and sizes that the tables are made for. */
typedef struct rs_box_policy {
  int sms;      /* of the device */
  int64_t tile; /* bytes of a tile, a multiple of 128 from RS_BOX_TILE_LEAST to RS_BOX_TILE_MOST; 0: by bytes and SMs */
  int64_t bulk_from; /* bytes of a program from which on it pays; 0: RS_BOX_BULK_FROM */
  int64_t leap;      /* bytes from a row of 4 to 64 to the next in the source, from which on tiles follow its lines; 0:
                        RS_BOX_LEAP */
} rs_box_policy;
enum { RS_BOX_BULK_FROM = 4 << 20, RS_BOX_LEAP = 16 /* leaves half a sector or more to others */ };

/* A loop of a copy while it is cut. */
typedef struct rs_box_loop {
  int64_t n, src, dst;
  int64_t block;  /* steps of a tile */
  int64_t skew;   /* steps that are missing in the first block */
  int64_t blocks; /* count_tiles */
  int64_t at;     /* block */
} rs_box_loop;

/* Tiles of a class that follow one another, of one peer's sources. */
typedef struct rs_box_hand {
  rs_box_class class;
  int32_t peer;
  int64_t end; /* among those of the class */
} rs_box_hand;

/* Grow as they need to, and are used again. */
typedef struct rs_box_tables {
  RS_VEC(rs_box_tile) tile[RS_BOX_CLASSES];
  RS_VEC(rs_box_shape) shape;
  RS_VEC(rs_box_axis) axis;
  int64_t bulk_bytes, narrow_src, narrow_dst; /* bytes of copies that are cut for class bulk; with narrow lines there */
  uint32_t largest, slots;                    /* of classes bulk and rows: rs_box_part */
  uint32_t last;                              /* shape that was looked for last: mostly the next one, too */
  uint32_t threads, kept, vector_threads;     /* of classes converts and vectors: rs_box_part */
  /* Room for making them. */
  RS_VEC(uint32_t) slot; /* shapes by hash: index + 1, or 0 */
  RS_VEC(rs_axis) loops;
  RS_VEC(rs_box_loop) loop;
  RS_VEC(rs_box_hand) hand; /* where tiles are dealt; else none */
  RS_VEC(rs_box_tile) dealt;
  RS_VEC(uint32_t) count;
} rs_box_tables;

/* Errors: RESHARD_ERROR_OUT_OF_MEMORY; RESHARD_ERROR_UNSUPPORTED for more than 2^31 - 1 tiles of a class. */
reshard_status rs_box_tables_make(rs_box_tables *tables, const rs_copies *copies, const rs_box_policy *policy);
void rs_box_tables_free(rs_box_tables *tables);

/* Index of a shape that is filled in but for `more`, with shape->inside - 1 loops to stand there. */
reshard_status rs_box_shape_index(rs_box_tables *tables, const rs_box_shape *shape, const rs_box_axis *more,
                                  uint32_t *index);

/* Bytes of the tables in memory of the device. Then the tables written by the host to a copy of that memory, with
 * part[c].count tiles for each class. Pointers are those of the device. */
int64_t rs_box_tables_bytes(const rs_box_tables *tables);
void rs_box_tables_write(const rs_box_tables *tables, char *host, const char *device, rs_box_part part[RS_BOX_CLASSES]);

/* Adds a part (of one or more tiles); false where it does not fit any more. The batch begins with nparts = tiles = 0.
 */
bool rs_box_batch_add(rs_box_batch *batch, const rs_box_part *part);
/* Puts the parts in order: before the launch. */
void rs_box_batch_close(rs_box_batch *batch);

/* Likewise for spans, of bytes >= 1. The batch begins with n = 0 and has its tile. */
bool rs_box_spans_add(rs_box_spans *spans, const char *src, char *dst, int64_t bytes);

/* deal.c: notes the peer of tiles that were added to a class; then puts those of each class in turn, by peer. */
reshard_status rs_box_deal_note(rs_box_tables *tables, rs_box_class class, int32_t peer);
reshard_status rs_box_deal(rs_box_tables *tables);

/* convert_tiles.c: adds tiles of so many bytes of a copy that converts numbers: of one with scales, or of a cast, whose
 * loops are given in the order of the destination. */
reshard_status rs_box_scale(rs_box_tables *tables, const rs_copies *copies, const rs_copy *copy, int64_t tile);
reshard_status rs_box_cast(rs_box_tables *tables, const rs_copy *copy, int64_t nloops, const rs_box_loop *loops,
                           int64_t tile);
reshard_status rs_box_too_many_tiles(void);

/* Bytes of a tile for so many bytes in all. */
int64_t rs_box_tile_bytes(int64_t bytes, int sms);

#endif
