/* Batched box copies on a GPU: descriptors, which the host makes (host/device/cuda/tiles.h), and launchers. Plain C.
 *
 * All boxes of a program are cut in tiles of some KiB. Each is a small box of its own with the addresses of its first
 * element. A launch is given lists of tiles, and a block of threads takes one. What tiles of one box have in common -
 * and with other boxes of the same strides - is a shape. A tile without a shape is one contiguous piece.
 *
 * There is a kernel for each class; a program mostly has tiles of one class. Memory is of the device or such that it
 * can reach. No source byte outside of the boxes is read. */
#ifndef RS_KERNELS_BOX_COPY_H
#define RS_KERNELS_BOX_COPY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers to tune on hardware. Bytes in flight per SM are blocks that are resident x bytes that a block loads before
 * its first store: H100 wants 32 KiB of them, H200 48 KiB, B200 64 KiB. */
enum {
  RS_BOX_TILE = 32 << 10,      /* bytes of a tile, unless the host is told otherwise */
  RS_BOX_PIECE = 16 << 10,     /* of contiguous pieces that the kernel for rows copies, and of spans, at most */
  RS_BOX_TILE_MOST = 64 << 10, /* since items of a tile are divided as 16-bit numbers */
  RS_BOX_TILE_LEAST = 4 << 10, /* of small programs, so that each SM has some */
  RS_BOX_TILES_PER_SM = 8,     /* that a program is to have before its tiles are larger than the least */
  RS_BOX_LOOPS = 16, /* most loops of a tile: each has two steps or more, and all together at most RS_BOX_TILE_MOST */
  RS_BOX_THREADS = 256,
  RS_BOX_BLOCKS = 4,        /* of them on one SM: bounds the registers */
  RS_BOX_LINE_LOADS = 8,    /* 16-byte loads of a thread before its first store: contiguous pieces */
  RS_BOX_SHIFT_LOADS = 3,   /* pairs of loads, where source and destination differ modulo 16: contiguous pieces */
  RS_BOX_ROW_LOADS = 4,     /* rows, 8 or 16 bytes at a time; twice as many of less, half as many pairs */
  RS_BOX_ROW_LOADS_FEW = 2, /* the same, where a batch asks for it */
  RS_BOX_ROW_LOADS_MANY = 8,
  RS_BOX_TRANSPOSE_TILE = 16 << 10, /* bytes of a transposed tile in shared memory */
  RS_BOX_TRANSPOSE_BLOCKS = 5,      /* blocks of these on one SM */
  RS_BOX_BULK_THREADS = 128,
  RS_BOX_BULK_LOADS = 2,      /* 16-byte loads of a thread of the bulk class, all that it has */
  RS_BOX_BULK_BLOCKS = 12,    /* blocks of these on one SM */
  RS_BOX_CONVERT_UNITS = 4,   /* of 4 numbers that a thread holds in registers, a power of two */
  RS_BOX_CONVERT_VECTORS = 8, /* the same, of 16 bytes of the wider side */
  RS_BOX_CONVERT_AHEAD = 264, /* tiles from one that is worked on to one that is fetched to the second-level cache */
  RS_BOX_CONVERT_THREADS = 1024,
  RS_BOX_CONVERT_TURNED = 64,      /* rows and columns of a transposed box */
  RS_BOX_CONVERT_TURNED_BOXES = 2, /* of a tile, which are loaded at one time: class vectors */
  /* Bytes of shared memory in which half of a block waits: with registers, of 32,768 numbers. */
  RS_BOX_CONVERT_KEPT = 16 * RS_BOX_CONVERT_UNITS * RS_BOX_CONVERT_THREADS,
  RS_BOX_CONVERT_TURNED_KEPT = 4 * RS_BOX_CONVERT_TURNED * (RS_BOX_CONVERT_TURNED + 1), /* for a transposed box */
};

/* Elements of a transposed tile along the loop that is contiguous in the destination, and in the source. */
#define RS_BOX_TRANSPOSE_J(element) ((element) == 1 ? 128 : (element) == 16 ? 32 : 64)
#define RS_BOX_TRANSPOSE_I(element) (RS_BOX_TRANSPOSE_TILE / ((element)*RS_BOX_TRANSPOSE_J(element)))

/* Tiles of the bulk class are contiguous pieces whose ends are aligned to 16 bytes on both sides. Others are rows of
 * kind RS_BOX_UNITS_16 without inner loops. The kernel for rows can do them, too. */
typedef enum rs_box_class {
  RS_BOX_ROWS = 0,
  RS_BOX_TRANSPOSES,
  RS_BOX_BULK,
  RS_BOX_CONVERTS, /* copies that convert numbers */
  RS_BOX_VECTORS,  /* the same, all aligned to units of 16 bytes of the wider side */
  RS_BOX_CLASSES
} rs_box_class;

typedef enum rs_box_kind {
  RS_BOX_UNITS_1 = 0, /* rows of units of 1 << kind bytes, to which everything is aligned */
  RS_BOX_UNITS_2,
  RS_BOX_UNITS_4,
  RS_BOX_UNITS_8,
  RS_BOX_UNITS_16,
  RS_BOX_SLOTS,     /* longer rows of any alignment: aligned 16 bytes of the destination at a time, and the ends */
  RS_BOX_TRANSPOSE, /* class transposes: `run` is the element; inner loop contiguous in dst, outer one in src */
  RS_BOX_CONVERT_1, /* class converts: numbers one by one */
  RS_BOX_CONVERT_4, /* class converts: four that are neighbours at a time */
  RS_BOX_CONVERT_V, /* class vectors: 16 bytes of the wider side at a time */
} rs_box_kind;

/* A loop. */
typedef struct rs_box_axis {
  int64_t src, dst; /* byte strides */
  uint32_t n;
  uint32_t magic; /* divides by n */
} rs_box_axis;

/* Rows of `run` bytes over loops, of which the tile tells how often the outermost one goes round.
 *
 * In the classes converts and vectors these are boxes of rows and columns of numbers, each row of `items` units, over
 * two loops. A transposed one has columns where the source has rows, and the other way round. In the class converts its
 * three entries from `more` on are:
 * - rows, with the units of a box as n;
 * - columns, with log2 of the lanes of a box as n, and of the units that each of them has as magic;
 * - scales: bytes from one to the next in the inner loop as src, in the outer one as dst; the source's `items`.
 * The tile's `count` is an entry, too: the first scale's address as src, steps of the outer loop as n. */
typedef struct rs_box_shape {
  uint32_t run;
  uint32_t items; /* of a row: units; or 16-byte slots, the most that there can be */
  uint32_t magic; /* divides by items */
  uint8_t kind;   /* rs_box_kind */
  uint8_t inside; /* loops inside of the outermost one */
  uint8_t grain;  /* log2 of what everything is aligned to, 0 to 4; converts: 1, the source is to units, 2, the other */
  uint8_t agree;  /* strides of both sides are equal modulo 16 */
  rs_box_axis inner; /* the innermost loop, where inside >= 1 */
  int64_t outer_src, outer_dst;
  uint32_t more; /* inside >= 2: the loops between them, from the inside out, from this entry of part.axes on */
  uint8_t from, to, scale; /* class converts: reshard_dtype of the sides, and of scales or 0 */
  uint8_t turned;          /* class converts: boxes are transposed */
} rs_box_shape;

/* Boxes of the class vectors: takes the place of three entries. A tile has the index of the first one in place of its
 * shape's, so that a block of threads loads all that it has to know of a tile at one time. Strides are in bytes; no
 * number is 2^31 bytes or more behind the first one of a tile. */
typedef struct rs_box_vectors {
  int32_t line_src, line_dst;                                                     /* of lines of a box */
  int32_t inner_src, inner_dst, outer_src, outer_dst, inner_scales, outer_scales; /* of boxes, over two loops */
  uint32_t inner_n, inner_magic;
  uint32_t items, magic;           /* units of a line; */
  uint32_t from_items, from_magic; /* in the source, where those of transposed boxes are others */
  uint32_t units;                  /* of a box */
  uint8_t lanes, turns;            /* log2 of lanes of a box, and of the units that each of them has */
  uint8_t from, to, scale, turned; /* as in a shape */
  uint8_t split;                   /* units of the narrower side are aligned to 4 bytes alone */
  uint8_t unused[5];
} rs_box_vectors;

enum { RS_BOX_CONTIGUOUS = 0xffffffff }; /* in place of the index of a shape */
typedef struct rs_box_tile {
  const char *src;
  char *dst;
  uint32_t shape; /* class vectors: rs_box_vectors */
  uint32_t count; /* of the outermost loop; contiguous: bytes; transpose: ni | nj << 16, of the outer and inner loop */
} rs_box_tile;

/* Tiles of one class of one program: all in memory of the device. */
typedef struct rs_box_part {
  const rs_box_tile *tiles;
  const rs_box_shape *shapes;
  const rs_box_axis *axes;
  uint32_t count;          /* of tiles, 1 or more */
  uint32_t begin;          /* rs_box_batch_close */
  uint32_t largest;        /* class bulk: bytes of a tile, at most */
  uint32_t slots;          /* class rows: there may be tiles of kind RS_BOX_SLOTS */
  uint32_t threads;        /* class converts: that share a box, at most; */
  uint32_t kept;           /* bytes of shared memory that a box takes, at most */
  uint32_t vector_threads; /* as `threads`, of the class vectors */
  uint32_t unused;
} rs_box_part;

/* Parts that run in one launch, as a parameter. They take turns, tile by tile: when each rank of a process has its own,
 * those that read the same lines stay together. The host sorts them by count, ascending: then turn after turn goes
 * round those that are left, and tile t is found without a table: `begin` is the first tile at which part k is the
 * shortest one left. */
enum { RS_BOX_PARTS = 64 };
typedef struct rs_box_batch {
  uint32_t nparts;
  uint32_t tiles; /* of all parts, below 2^31 */
  uint32_t loads; /* RS_BOX_ROW_LOADS_FEW or _MANY; else RS_BOX_ROW_LOADS */
  uint32_t unused;
  /* Flags in memory of the device; NULL: there is none. Nothing is copied when one is not 0. It is known before sources
   * are read; or only before something is stored, where they can be read whatever it is. */
  const uint32_t *closed, *closed_late;
  rs_box_part part[RS_BOX_PARTS];
} rs_box_batch;

/* Brings the code of a class to the current device, so that no launch has to; that of spans comes with rows. Of
 * classes that convert numbers see box_convert.h. */
int rs_box_rows_load(void);
int rs_box_transpose_load(void);
int rs_box_bulk_load(void);

/* A launch each; a cudaError_t. most: of blocks, which then take tiles in turn; 0: no limit. */
int rs_box_rows_launch(const rs_box_batch *batch, uint32_t most, void *stream);
int rs_box_transpose_launch(const rs_box_batch *batch, uint32_t most, void *stream);
int rs_box_bulk_launch(const rs_box_batch *batch, uint32_t most, void *stream);

/* Contiguous copies that are decided at run time, as a parameter: cut in tiles by the kernel. */
enum { RS_BOX_SPANS = 120 };
typedef struct rs_box_span {
  const char *src;
  char *dst;
  int64_t bytes;
  uint32_t end; /* tiles of this span and those before it: rs_box_pieces of each */
  uint32_t unused;
} rs_box_span;
typedef struct rs_box_spans {
  uint32_t n;
  uint32_t tile;          /* bytes, a multiple of 128 */
  const uint32_t *closed; /* rs_box_batch.closed */
  rs_box_span span[RS_BOX_SPANS];
} rs_box_spans;
int rs_box_spans_launch(const rs_box_spans *spans, uint32_t most, void *stream);

/* --- Arithmetic that host and kernels share --- */

#ifdef __CUDACC__
#define RS_BOX_FUNCTION static __host__ __device__ inline
#else
#define RS_BOX_FUNCTION static inline
#endif

/* Pieces of a contiguous copy: all but the first begin at a multiple of 128 in the destination. tile: likewise one. */
enum { RS_BOX_LINE = 128 };
RS_BOX_FUNCTION int64_t rs_box_pieces(const char *dst, int64_t bytes, int64_t tile) {
  return (bytes + (int64_t)((uintptr_t)dst % RS_BOX_LINE) + tile - 1) / tile;
}
/* First byte of piece i; that of the piece after the last one is behind the end. */
RS_BOX_FUNCTION int64_t rs_box_piece_begin(const char *dst, int64_t tile, int64_t i) {
  return i == 0 ? 0 : i * tile - (int64_t)((uintptr_t)dst % RS_BOX_LINE);
}

/* x / n == rs_box_divide(x, rs_box_magic(n)) for x < 2^16, 0 < n <= 2^16: the error of the multiplier is below n, and x
 * times it below 2^32. */
RS_BOX_FUNCTION uint32_t rs_box_magic(uint32_t n) { return n == 1 ? 0 : (uint32_t)((0x100000000u + n - 1) / n); }
RS_BOX_FUNCTION uint32_t rs_box_divide(uint32_t x, uint32_t magic) {
  return magic == 0 ? x : (uint32_t)((uint64_t)x * magic >> 32);
}

#undef RS_BOX_FUNCTION

#ifdef __cplusplus
}
#endif
#endif
