/* Copy kernels in plain C, for every machine. */
#include <stdint.h>

#define VB 8
typedef uint64_t vec;
static inline vec vload(const char *src) {
  vec v;
  __builtin_memcpy(&v, src, VB);
  return v;
}
static inline void vstore(char *dst, vec v) { __builtin_memcpy(dst, &v, VB); }
#include "device/cpu/copy/kernels_body.h"

static const rs_kernels kernels = KERNELS(RESHARD_ISA_SCALAR);
const rs_kernels *const rs_kernels_scalar = &kernels;
