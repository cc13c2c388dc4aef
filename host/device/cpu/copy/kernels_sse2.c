/* Copy kernels with SSE2, which every x86-64 has. */
#include "device/cpu/copy/kernels.h"

#if defined(__SSE2__)
#include <emmintrin.h>

#define VB 16
typedef __m128i vec;
static inline vec vload(const char *src) { return _mm_loadu_si128((const vec *)src); }
static inline void vstore(char *dst, vec v) { _mm_storeu_si128((vec *)dst, v); }
static inline void vstream(char *dst, vec v) { _mm_stream_si128((vec *)dst, v); }
#include "device/cpu/copy/transpose_x86.h"

#include "device/cpu/copy/kernels_body.h"

static const rs_kernels kernels = KERNELS(RESHARD_ISA_SSE2);
const rs_kernels *const rs_kernels_sse2 = &kernels;
#else
const rs_kernels *const rs_kernels_sse2 = NULL;
#endif
