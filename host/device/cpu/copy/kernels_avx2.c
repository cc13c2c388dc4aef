/* Copy kernels with AVX2; the build compiles this file for it where the compiler can. */
#include "device/cpu/copy/kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>

#define VB 32
typedef __m256i vec;
static inline vec vload(const char *src) { return _mm256_loadu_si256((const vec *)src); }
static inline void vstore(char *dst, vec v) { _mm256_storeu_si256((vec *)dst, v); }
static inline void vstream(char *dst, vec v) { _mm256_stream_si256((vec *)dst, v); }
#include "device/cpu/copy/transpose_x86.h"

#include "device/cpu/copy/kernels_body.h"

static const rs_kernels kernels = KERNELS(RESHARD_ISA_AVX2);
const rs_kernels *const rs_kernels_avx2 = &kernels;
#else
const rs_kernels *const rs_kernels_avx2 = NULL;
#endif
