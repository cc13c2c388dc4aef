/* Instruction sets that this build and this machine have. */
#include "device/cpu/copy/kernels.h"

const char *reshard_isa_string(reshard_isa isa) {
  switch (isa) {
  case RESHARD_ISA_AUTO: return "auto";
  case RESHARD_ISA_SCALAR: return "scalar";
  case RESHARD_ISA_SSE2: return "sse2";
  case RESHARD_ISA_AVX2: return "avx2";
  case RESHARD_ISA_AVX512: return "avx512";
  case RESHARD_ISA_NEON: return "neon";
  case RESHARD_ISA_COUNT: break;
  }
  return "unknown";
}

#if defined(__x86_64__)
static bool machine_has(reshard_isa isa) {
  __builtin_cpu_init();
  switch (isa) {
  case RESHARD_ISA_SSE2: return __builtin_cpu_supports("sse2");
  case RESHARD_ISA_AVX2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  case RESHARD_ISA_AVX512:
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
  default: return isa == RESHARD_ISA_SCALAR;
  }
}
#else
/* Every 64-bit Arm has NEON; elsewhere its table is not compiled. */
static bool machine_has(reshard_isa isa) { return isa == RESHARD_ISA_SCALAR || isa == RESHARD_ISA_NEON; }
#endif

static const rs_kernels *compiled_kernels(reshard_isa isa) {
  switch (isa) {
  case RESHARD_ISA_SCALAR: return rs_kernels_scalar;
  case RESHARD_ISA_SSE2: return rs_kernels_sse2;
  case RESHARD_ISA_AVX2: return rs_kernels_avx2;
  case RESHARD_ISA_AVX512: return rs_kernels_avx512;
  case RESHARD_ISA_NEON: return rs_kernels_neon;
  default: return NULL;
  }
}

const rs_kernels *rs_kernels_of(reshard_isa isa) {
  static const reshard_isa best_first[] = {RESHARD_ISA_AVX512, RESHARD_ISA_AVX2, RESHARD_ISA_SSE2, RESHARD_ISA_NEON,
                                           RESHARD_ISA_SCALAR};
  if (isa != RESHARD_ISA_AUTO)
    return compiled_kernels(isa) != NULL && machine_has(isa) ? compiled_kernels(isa) : NULL;
  for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++)
    if (compiled_kernels(best_first[i]) != NULL && machine_has(best_first[i]))
      return compiled_kernels(best_first[i]);
  return rs_kernels_scalar;
}

int reshard_isa_available(reshard_isa isa) { return rs_kernels_of(isa) != NULL; }
