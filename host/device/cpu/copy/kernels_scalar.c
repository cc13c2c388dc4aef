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
#define vstream vstore
#define vstream_16(p, v) \
  do { \
    __typeof__(v) v_ = (v); \
    __builtin_memcpy((p), &v_, 16); \
  } while (0)
#define STREAM_FENCE() ((void)0)
#include "device/cpu/copy/kernels_body.h"

static const rs_kernels kernels = KERNELS(RESHARD_ISA_SCALAR);
const rs_kernels *const rs_kernels_scalar = &kernels;
