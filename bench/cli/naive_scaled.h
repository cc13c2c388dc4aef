/* Block-scaled FP8 by its definition, number by number, in f32: what moves and files are compared with. */
#ifndef BENCH_NAIVE_SCALED_H
#define BENCH_NAIVE_SCALED_H

#include <reshard/dtype.h>

/* Number i of f32, f16 or bf16, as f32. */
float naive_wide(const void *numbers, reshard_dtype dtype, int64_t i);
/* Scale i of f32 or f8_e8m0. */
float naive_stored_scale(const void *scales, reshard_dtype dtype, int64_t i);
/* The larger magnitude of one that is known and one more; NaN is the largest. */
float naive_most(float most, float number);
/* The scale of a block with this largest magnitude. */
float naive_scale(float most, reshard_dtype dtype);
/* The bits of a scale. */
uint32_t naive_scale_bits(float scale, reshard_dtype dtype);
/* The code of f8_e4m3 of a number in a block of the scale. */
uint32_t naive_scaled(float number, float scale);
/* The bits of a code times its scale, in f32, f16 or bf16. */
uint32_t naive_unscaled(uint32_t code, float scale, reshard_dtype dtype);

#endif
