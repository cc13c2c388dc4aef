#include "bench/cli/naive_cast.h"

#include <stdbool.h>
#include <stdlib.h>

typedef struct naive_format {
  int exponent, mantissa; /* bits */
  bool infinite; /* has infinities; else the exponent of all ones is one of numbers, all ones is NaN, and what is too
                    large becomes the largest number */
} naive_format;

static naive_format format_of(reshard_dtype dtype) {
  switch (dtype) {
  case RESHARD_F64: return (naive_format){11, 52, true};
  case RESHARD_F32: return (naive_format){8, 23, true};
  case RESHARD_F16: return (naive_format){5, 10, true};
  case RESHARD_BF16: return (naive_format){8, 7, true};
  case RESHARD_F8_E4M3: return (naive_format){4, 3, false};
  case RESHARD_F8_E5M2: return (naive_format){5, 2, true};
  default: abort();
  }
}

static int bias(naive_format f) { return (1 << (f.exponent - 1)) - 1; }
static uint64_t ones(int n) { return (UINT64_C(1) << n) - 1; }

/* The code, without a sign, of the number of a format that is nearest to m * 2^e, 0 < m < 2^53; beyond the largest one
 * codes go on as if there were more exponents. */
static uint64_t nearest(naive_format f, uint64_t m, int e) {
  int top = 63 - __builtin_clzll(m) + e;               /* 2^top <= number < 2^(top + 1) */
  int least = 1 - bias(f);                             /* exponent of the smallest normal number */
  int unit = (top > least ? top : least) - f.mantissa; /* exponent of the last place */
  uint64_t count, rest, half;                          /* of units */
  int drop = unit - e;
  if (drop <= 0) {
    count = m << -drop;
    rest = half = 0;
  } else if (drop > 63) {
    count = 0;
    rest = 0; /* less than half of a unit */
    half = 1;
  } else {
    count = m >> drop;
    rest = m & ones(drop);
    half = UINT64_C(1) << (drop - 1);
  }
  if (drop > 0 && (rest > half || (rest == half && count % 2 == 1)))
    count++;
  /* A normal number's first bit adds one to the exponent; so does a carry. */
  return top > least ? count + ((uint64_t)(top - least) << f.mantissa) : count;
}

uint64_t naive_cast(reshard_dtype from, reshard_dtype to, uint64_t bits) {
  naive_format a = format_of(from), b = format_of(to);
  int wide_a = a.exponent + a.mantissa, wide_b = b.exponent + b.mantissa;
  uint64_t magnitude = bits & ones(wide_a), sign = (bits >> wide_a & 1) << wide_b;
  uint64_t infinity_a = ones(a.exponent) << a.mantissa, infinity_b = ones(b.exponent) << b.mantissa;
  if (a.infinite ? magnitude > infinity_a : magnitude == ones(wide_a))
    return ones(wide_b);
  uint64_t largest = b.infinite ? infinity_b - 1 : ones(wide_b) - 1, over = b.infinite ? infinity_b : largest;
  if (a.infinite && magnitude == infinity_a)
    return sign | over;
  if (magnitude == 0)
    return sign;
  int exponent = (int)(magnitude >> a.mantissa);
  uint64_t m = magnitude & ones(a.mantissa);
  if (exponent > 0)
    m |= UINT64_C(1) << a.mantissa;
  else
    exponent = 1;
  uint64_t code = nearest(b, m, exponent - bias(a) - a.mantissa);
  return sign | (code > largest ? over : code);
}
