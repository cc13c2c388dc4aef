/* Copy kernels with AVX-512 (F, BW, VL, DQ); the build compiles this file for it where the compiler can. */
#include "device/cpu/copy/kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <immintrin.h>

#define VB 64
typedef __m512i vec;
static inline vec vload(const char *src) { return _mm512_loadu_si512(src); }
static inline void vstore(char *dst, vec v) { _mm512_storeu_si512(dst, v); }
static inline void vstream(char *dst, vec v) { _mm512_stream_si512((vec *)dst, v); }
#include "device/cpu/copy/transpose_x86.h"

#include "device/cpu/copy/kernels_body.h"

static const rs_kernels kernels = KERNELS(RESHARD_ISA_AVX512);
const rs_kernels *const rs_kernels_avx512 = &kernels;
#else
const rs_kernels *const rs_kernels_avx512 = NULL;
#endif
