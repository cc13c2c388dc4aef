/* Division of numbers below 2^31 by one that is known before the launch, as a multiplication.
 *
 * With 2^(s-1) < d <= 2^s, the quotient of n is floor(n (2^32 + m) / 2^(32+s)) where 2^32 + m = floor(2^(32+s) / d) +
 * 1: that is larger than 2^(32+s) / d by at most 1, and n times the error stays below one step. m is kept, the lower 32
 * bits, and n is added to the high half of n m instead; below 2^31 that sum cannot overflow. (Granlund and
 * Montgomery, Division by Invariant Integers using Multiplication.) */
#ifndef RS_KERNELS_DIVIDE_CUH
#define RS_KERNELS_DIVIDE_CUH

#include "kernels/launch.h"

typedef struct rs_divider {
  uint32_t by, multiplier, shift;
} rs_divider;

/* by: 1 ... 2^31 - 1. On the host. */
static inline rs_divider rs_divider_make(uint32_t by) {
  uint32_t shift = 0;
  while ((1ull << shift) < by)
    shift++;
  return rs_divider{by, static_cast<uint32_t>((1ull << (32 + shift)) / by + 1), shift};
}

/* n / d, and *rest = n % d. */
static __device__ __forceinline__ uint32_t rs_divide(const rs_divider &d, uint32_t n, uint32_t *rest) {
  uint32_t quotient = (__umulhi(n, d.multiplier) + n) >> d.shift;
  *rest = n - quotient * d.by;
  return quotient;
}

#endif
