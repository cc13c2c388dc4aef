/* Block-scaled FP8: f8_e4m3 values with one scale for each block of them. */
#ifndef RS_DEVICE_CPU_CAST_BLOCKS_H
#define RS_DEVICE_CPU_CAST_BLOCKS_H

#include "device/copies.h"
#include "device/cpu/copy/kernels.h"

/* Both are called in the default floating-point environment, which some callers set for many boxes at once. past:
 * rows are stored past the cache, ordered by a fence of the caller. */

/* From wide to values and scales, where skip is 0. For a block with m the largest magnitude in f32, at least 1e-4, the
 * scale s is m / 448; for f8_e8m0 its exponent, rounded up, of 1 to 254. Values are e4m3(x * (1 / s)), computed in f32.
 * NaN is the largest. */
void rs_blocks_scale(const rs_kernels *kernels, const rs_block_box *box, bool past);
/* The same for the boxes of n steps, which are alike but for their addresses: where values do not go down columns, each
 * is read while values of the one before are made. place: makes that of a step, in the order of the steps. */
typedef struct rs_block_steps {
  void (*place)(const void *of, int64_t step, rs_block_box *box);
  const void *of;
  int64_t first, n;
} rs_block_steps;
void rs_blocks_scale_steps(const rs_kernels *kernels, const rs_block_steps *steps, bool past);
/* From values and scales to wide: the product in f32, rounded once more to the wide dtype. */
void rs_blocks_unscale(const rs_kernels *kernels, const rs_block_box *box, bool past);

/* Rows that are worth a call where values are contiguous down columns, whole blocks; 0 where they are not. */
int64_t rs_blocks_rows(const rs_block_box *box);

#endif
