/* Conversions of numbers with AVX-512 (F, BW, VL, DQ); the build compiles this file for it where the compiler can. */
#include "device/cpu/cast/kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "device/cpu/cast/kernels_body.h"
const rs_cast_kernels *const rs_cast_kernels_avx512 = &kernels;
#else
const rs_cast_kernels *const rs_cast_kernels_avx512 = NULL;
#endif
