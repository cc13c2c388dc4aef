/* Conversions of numbers for every machine; and the choice of a set. */
#include "device/cpu/cast/kernels_body.h"

const rs_cast_kernels *const rs_cast_kernels_base = &kernels;

const rs_cast_kernels *rs_cast_kernels_of(reshard_isa isa) {
  const rs_cast_kernels *found = isa == RESHARD_ISA_AVX512 ? rs_cast_kernels_avx512
                                 : isa == RESHARD_ISA_AVX2 ? rs_cast_kernels_avx2
                                                           : NULL;
  return found != NULL ? found : rs_cast_kernels_base;
}
