/* Conversions of contiguous numbers by one instruction set, behind a const table. Compiled once per set from
 * kernels_body.h. */
#ifndef RS_DEVICE_CPU_CAST_KERNELS_H
#define RS_DEVICE_CPU_CAST_KERNELS_H

#include "base/base.h"

#include <reshard/device.h>
#include <reshard/dtype.h>

/* Dtypes that casts know are neighbours in reshard_dtype: an index of each. */
enum { RS_CAST_DTYPES = RESHARD_F64 - RESHARD_F8_E4M3 + 1 };
static inline int rs_cast_index(reshard_dtype dtype) { return (int)dtype - RESHARD_F8_E4M3; }

/* n numbers at any addresses; dst == src where both have as many bytes, else they do not overlap. In the default
 * floating-point environment. */
typedef void (*rs_cast_kernel)(char *dst, const char *src, int64_t n);
/* Runs of numbers, and the bytes from one to the next. As many behind them are prefetched: they are read soon. */
typedef struct rs_cast_runs {
  int64_t count, dst, src;
} rs_cast_runs;
/* n numbers of each run, apart. */
typedef void (*rs_cast_past)(char *dst, const char *src, int64_t n, const rs_cast_runs *runs);
/* n numbers of a row of blocks, each `width` long and the last one what is left; `by` has a number for each block. */
typedef void (*rs_unscale_kernel)(char *dst, const char *src, int64_t n, int64_t width, const float *by);
/* `soon`: as many that are read soon, of which AVX-512 prefetches half of the lines. past: lines are stored past the
 * cache, where dst is at one and width a multiple of one. */
typedef void (*rs_scale_kernel)(char *dst, const char *src, int64_t n, int64_t width, const float *by, const char *soon,
                                bool past);
/* Copies such numbers; dst is src, or apart from it. The bits of the largest magnitude of each block as f32, NaN above
 * all, where more than those in `most`. Lines of `soon` are prefetched that what makes values does not. */
typedef void (*rs_most_kernel)(int32_t *most, char *dst, const char *src, int64_t n, int64_t width, const char *soon);
/* Both at once, of finite blocks whose width is a multiple of a line: n numbers at `place` become values, `step` bytes
 * from block to block, and those at src take their place, with the maxima. All of `soon` is prefetched. */
typedef void (*rs_exchange_kernel)(char *dst, int64_t step, char *place, const char *src, int64_t n, int64_t width,
                                   const float *by, int32_t *most, const char *soon, bool past);
typedef struct rs_cast_kernels {
  rs_cast_kernel of[RS_CAST_DTYPES][RS_CAST_DTYPES]; /* from, to; NULL where there is none */
  /* The same past the cache, to whole lines of the destination. Ordered by the fence of the copy kernels. */
  rs_cast_past past[RS_CAST_DTYPES][RS_CAST_DTYPES];
  /* Of f16, bf16 and f32, with f8_e4m3 on the other side of a product in f32. */
  rs_most_kernel most[RS_CAST_DTYPES];
  rs_scale_kernel scale[RS_CAST_DTYPES];
  rs_exchange_kernel exchange[RS_CAST_DTYPES]; /* NULL where it wins nothing */
  rs_unscale_kernel unscale[RS_CAST_DTYPES];
} rs_cast_kernels;

/* Kernels for every machine of the architecture, and for newer ones; those are NULL where the compiler cannot. */
extern const rs_cast_kernels *const rs_cast_kernels_base;
extern const rs_cast_kernels *const rs_cast_kernels_avx2;
extern const rs_cast_kernels *const rs_cast_kernels_avx512;

/* The kernels of a set that this machine has. */
const rs_cast_kernels *rs_cast_kernels_of(reshard_isa isa);

#endif
