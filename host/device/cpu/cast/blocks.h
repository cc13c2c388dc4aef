/* Block-scaled FP8: f8_e4m3 values with one scale for each block of them. */
#ifndef RS_DEVICE_CPU_CAST_BLOCKS_H
#define RS_DEVICE_CPU_CAST_BLOCKS_H

#include "device/cpu/cast/kernels.h"

/* A box of rows and columns, once in a wide dtype (f32, f16 or bf16), once as values with scales (f32 or f8_e8m0). All
 * strides are in bytes, of rows and of columns; those of scales are from block to block. */
typedef struct rs_block_box {
  char *wide, *values, *scales;
  reshard_dtype wide_dtype, scale_dtype;
  int64_t n[2], block[2];
  int64_t skip[2]; /* rows and columns of the first blocks that lie before the box */
  int64_t wide_stride[2], value_stride[2], scale_stride[2];
} rs_block_box;

/* From wide to values and scales, where skip is 0. For a block with m the largest magnitude in f32, at least 1e-4, the
 * scale s is m / 448; for f8_e8m0 its exponent, rounded up, of 1 to 254. Values are e4m3(x * (1 / s)), computed in f32.
 * NaN is the largest. */
void rs_blocks_scale(const rs_cast_kernels *kernels, const rs_block_box *box);
/* From values and scales to wide: the product in f32, rounded once more to the wide dtype. */
void rs_blocks_unscale(const rs_cast_kernels *kernels, const rs_block_box *box);

#endif
