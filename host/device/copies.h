/* Lists of box copies. */
#ifndef RS_DEVICE_COPIES_H
#define RS_DEVICE_COPIES_H

#include "base/base.h"
#include "base/dtype.h"
#include "device/pods.h"

/* Brings loops (outermost first, none of no steps) around a step of `src` and `dst` bytes into canonical form. Loops of
 * one step vanish, and those that continue their inner neighbour on both sides are merged into it. Loops that are
 * contiguous on both sides are merged into *run steps. Returns how many are kept; there is room for naxes of them. */
int32_t rs_axes_merge(int naxes, const rs_axis *axes, int64_t src, int64_t dst, rs_axis *kept, int64_t *run);

/* A box of rows and columns, once in a wide dtype (f32, f16 or bf16), once as values of f8_e4m3 with one scale (f32 or
 * f8_e8m0) for each block of them. All strides are in bytes, of rows and of columns; those of scales are from block to
 * block. */
typedef struct rs_block_box {
  char *wide, *values, *scales;
  reshard_dtype wide_dtype, scale_dtype;
  int64_t n[2], block[2];
  int64_t skip[2]; /* rows and columns of the first blocks that lie before the box */
  int64_t wide_stride[2], value_stride[2], scale_stride[2];
  int64_t value_step; /* from a block's values to those beside it, where the CPU makes them; 0: as within a block */
} rs_block_box;

/* Makes rows columns, and columns rows. */
void rs_block_box_turn(rs_block_box *box);

/* A loop around boxes of blocks: bytes from one to the next. */
typedef struct rs_block_axis {
  int64_t n, wide, values, scales;
} rs_block_axis;

/* Part that only copies of blocks have. */
typedef struct rs_scaled {
  rs_block_box box;                       /* of the first step */
  int64_t step[2 * RESHARD_MAX_DIMS + 1]; /* of scales, for each axis of the copy */
} rs_scaled;

/* A box copy: `run` contiguous bytes on both sides (1 or more, not necessarily a power of two), repeated over naxes
 * loops, outermost first. One that converts has a run of as many numbers on both sides, and `run` counts the bytes of
 * the source. Given in canonical form by rs_copies_add: no axis of n == 1, no two neighbours that merge,
 * no innermost axis that merges into the run. So a run shorter than a cache line means that the innermost axis is
 * strided on at least one side. */
typedef struct rs_copy {
  const char *src;
  char *dst;
  int64_t run;
  int64_t axes; /* index of the first axis in rs_copies.axes */
  int32_t naxes;
  int32_t element;  /* 1, 2, 4, 8, 16: bytes of an element of the source; run and all strides are multiples of it (in
                       the destination of its own), addresses need not be */
  int32_t from, to; /* reshard_dtype of each side where numbers are converted, else both 0 */
  int32_t peer;     /* rank that the source is of, as the list had it */
  int32_t scaled;   /* a box of blocks, repeated over the axes: number in rs_copies.scaled, from 1 on; 0: it is none */
} rs_copy;

/* A list of copies, to be compiled into a program. Copies of one list may run in any order and at the same time: no
 * destination byte is written twice, nothing that is written is read. */
typedef struct rs_copies {
  RS_VEC(rs_copy) copy;
  RS_VEC(rs_axis) axis;
  RS_VEC(rs_scaled) scaled;
  int64_t bytes; /* sum over the copies, as they are read */
  bool staging;  /* the destination is staging that is read again at once: worth keeping in the cache */
  bool deal;     /* sources are other ranks', on other GPUs: worth reading in turn, and never after a failed barrier */
  int32_t peer;  /* of the copies that are appended from now on */
} rs_copies;

/* Appends a copy with loops (outermost first) in canonical form, without sorting them. The innermost loop is merged
 * into the run where both sides are contiguous. n == 0 in any axis adds nothing. */
reshard_status rs_copies_add(rs_copies *copies, const char *src, char *dst, int32_t element, int naxes,
                             const rs_axis *axes);
/* Appends a copy that converts numbers as a cast does (rs_cast); loops have the bytes of each side. `bytes` counts the
 * source's. RESHARD_ERROR_UNSUPPORTED where rs_cast_supported says no. */
reshard_status rs_copies_convert(rs_copies *copies, const char *src, char *dst, reshard_dtype from, reshard_dtype to,
                                 int naxes, const rs_axis *axes);
/* Appends copies of a box of blocks, repeated over loops (outermost first): to values and scales, of whole blocks, or
 * back. */
reshard_status rs_copies_scale(rs_copies *copies, const rs_block_box *box, bool back, int naxes,
                               const rs_block_axis *axes);
/* The same with so many rows of the box in a copy: a multiple of those of a block. */
reshard_status rs_copies_scale_rows(rs_copies *copies, const rs_block_box *box, int64_t rows, bool back, int naxes,
                                    const rs_block_axis *axes);
/* Appends a list to another one, with its peers. */
reshard_status rs_copies_append(rs_copies *copies, const rs_copies *more);
/* Bytes of the destination for so many of the source. */
static inline int64_t rs_converted_bytes(reshard_dtype from, reshard_dtype to, int64_t bytes) {
  return from == to ? bytes : bytes / (int64_t)reshard_dtype_size(from) * (int64_t)reshard_dtype_size(to);
}
/* Empties a list, keeping the memory that it has. */
void rs_copies_clear(rs_copies *copies);
void rs_copies_free(rs_copies *copies);

/* Casts of one list may run in any order and at the same time. */
typedef struct rs_casts {
  RS_VEC(rs_cast) cast;
  RS_VEC(rs_axis) axis;
} rs_casts;
/* Appends a cast with loops (outermost first, byte strides), merging loops and elements as rs_copies_add does. n == 0
 * in any axis adds nothing. RESHARD_ERROR_UNSUPPORTED where rs_cast_supported says no. */
reshard_status rs_casts_add(rs_casts *casts, const char *src, char *dst, reshard_dtype from, reshard_dtype to,
                            int naxes, const rs_axis *axes);
void rs_casts_free(rs_casts *casts);

#endif
