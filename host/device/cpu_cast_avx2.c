/* Conversions of numbers with AVX2; the build compiles this file for it where the compiler can. */
#include "device/cpu_cast_kernels.h"

#if defined(__AVX2__)
#include "device/cpu_cast_body.h"
const rs_cast_kernels *const rs_cast_kernels_avx2 = &kernels;
#else
const rs_cast_kernels *const rs_cast_kernels_avx2 = NULL;
#endif
