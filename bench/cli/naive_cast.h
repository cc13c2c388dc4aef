/* Conversion of one number, exactly and slowly, in integers: what casts are compared with. Shares nothing with the
 * library but the rules: nearest even, once; infinity where a number is too large, for f8_e4m3 the largest one; every
 * NaN is all ones but the sign. */
#ifndef BENCH_NAIVE_CAST_H
#define BENCH_NAIVE_CAST_H

#include <reshard/dtype.h>

/* The bits of a number of dtype `from` as one of dtype `to`: f64, f32, f16, bf16, f8_e4m3, f8_e5m2. */
uint64_t naive_cast(reshard_dtype from, reshard_dtype to, uint64_t bits);

#endif
