/* Conversions of numbers with AVX2; the build compiles this file for it where the compiler can. */
#include "device/cpu/cast/kernels.h"

#if defined(__AVX2__)
#include "device/cpu/cast/kernels_body.h"
const rs_cast_kernels *const rs_cast_kernels_avx2 = &kernels;
#else
const rs_cast_kernels *const rs_cast_kernels_avx2 = NULL;
#endif
