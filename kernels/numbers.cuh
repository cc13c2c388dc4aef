/* Conversion of one number. The rules, which the CPU's casts keep to the bit:
 *  - nearest, ties to even, rounded once: f64 goes to what is narrower than f32 by way of an f32 rounded to odd. Its
 *    24 bits are more than two beyond theirs, so that the second rounding is as good as the only one;
 *  - what is too large becomes infinity, and for f8_e4m3, which has none, the largest number of its sign, as infinity
 *    itself does (PTX: cvt.rn.satfinite; CUDA: __NV_SATFINITE);
 *  - subnormal numbers are kept on both sides;
 *  - every NaN becomes the destination's with all bits but the sign set. That is what cvt gives for f8, f16, bf16 and
 *    f32 (PTX ISA, cvt). Where hardware differs, in widening, it is selected here, so that all machines agree.
 *
 * Machines that have an instruction use it; elsewhere - f8 before sm_89, and the host - the bits are put together, with
 * the adder doing the rounding of subnormals: x + 2^k has its last bit where the last bit of the result is. */
#ifndef RS_KERNELS_NUMBERS_CUH
#define RS_KERNELS_NUMBERS_CUH

#include "kernels/launch.h"

/* The dtypes that have casts, in memory and as numbers. `value` is what is computed with: f64, or f32 for all others.
 */
enum rs_number { RS_E4M3 = 0, RS_E5M2, RS_F16, RS_BF16, RS_F32, RS_F64, RS_NUMBERS };
__host__ __device__ constexpr int rs_number_bytes(int number) {
  return number <= RS_E5M2 ? 1 : number <= RS_BF16 ? 2 : number == RS_F32 ? 4 : 8;
}

static __device__ __forceinline__ uint32_t rs_bits(float x) { return __float_as_uint(x); }
static __device__ __forceinline__ float rs_float(uint32_t bits) { return __uint_as_float(bits); }
static __device__ __forceinline__ bool rs_is_nan(uint32_t f32) { return (f32 & 0x7fffffffu) > 0x7f800000u; }

/* --- Bits of a small format from and to those of an f32. Neither sign nor NaN reaches these. ---------------------*/

/* exponent and mantissa at the top of an f32 with their own bias, times what the biases differ by: also for subnormals,
 * which the multiplication makes normal. `end`: the first code that is no finite number. */
static __device__ __forceinline__ uint32_t rs_widen(uint32_t code, int mantissa, int bias, uint32_t end) {
  float scale = rs_float(static_cast<uint32_t>(254 - bias) << 23);
  return code >= end ? 0x7f800000u : rs_bits(rs_float(code << (23 - mantissa)) * scale);
}

/* largest: the code that what is too large becomes. */
static __device__ __forceinline__ uint32_t rs_narrow(uint32_t f32, int mantissa, int bias, uint32_t largest) {
  uint32_t code;
  if (f32 < static_cast<uint32_t>(128 - bias) << 23) { // subnormal: its last bit is 2^(1 - bias - mantissa)
    uint32_t step = static_cast<uint32_t>(127 + 1 - bias - mantissa + 23) << 23;
    code = rs_bits(rs_float(f32) + rs_float(step)) - step;
  } else {
    int cut = 23 - mantissa;
    uint32_t odd = f32 >> cut & 1;
    code = (f32 - (static_cast<uint32_t>(127 - bias) << 23) + (1u << (cut - 1)) - 1 + odd) >> cut;
  }
  return code < largest ? code : largest;
}

#if defined(__CUDA_ARCH__)
static __device__ __forceinline__ uint32_t rs_f16_of(float x) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
static __device__ __forceinline__ uint32_t rs_bf16_of(float x) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
static __device__ __forceinline__ uint32_t rs_f32_of_f16(uint32_t code) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<uint16_t>(code)));
  return rs_bits(x);
}
#else
static __device__ __forceinline__ uint32_t rs_f16_of(float x) {
  return rs_narrow(rs_bits(x) & 0x7fffffffu, 10, 15, 0x7c00) | (rs_bits(x) >> 16 & 0x8000u);
}
static __device__ __forceinline__ uint32_t rs_bf16_of(float x) {
  uint32_t bits = rs_bits(x);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static __device__ __forceinline__ uint32_t rs_f32_of_f16(uint32_t code) {
  return rs_widen(code & 0x7fff, 10, 15, 0x7c00) | (code & 0x8000u) << 16;
}
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
static __device__ __forceinline__ uint32_t rs_e4m3_of(float x) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return pair & 0xff;
}
static __device__ __forceinline__ uint32_t rs_e5m2_finite(float x) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return pair & 0xff;
}
static __device__ __forceinline__ uint32_t rs_f32_of_e4m3(uint32_t code) {
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(code)));
  return rs_f32_of_f16(pair & 0xffff);
}
#else
static __device__ __forceinline__ uint32_t rs_e4m3_of(float x) {
  return rs_narrow(rs_bits(x) & 0x7fffffffu, 3, 7, 0x7e) | (rs_bits(x) >> 24 & 0x80u);
}
static __device__ __forceinline__ uint32_t rs_e5m2_finite(float x) {
  return rs_narrow(rs_bits(x) & 0x7fffffffu, 2, 15, 0x7b) | (rs_bits(x) >> 24 & 0x80u);
}
static __device__ __forceinline__ uint32_t rs_f32_of_e4m3(uint32_t code) {
  return rs_widen(code & 0x7f, 3, 7, 0x7f) | (code & 0x80u) << 24;
}
#endif
/* Makes infinity, which the instruction does not, of all from half way between the largest number and the next power of
 * two on: the middle goes to the even code. */
static __device__ __forceinline__ uint32_t rs_e5m2_of(float x) {
  return (rs_bits(x) & 0x7fffffffu) < 0x47700000u ? rs_e5m2_finite(x) : (rs_bits(x) >> 24 & 0x80u) | 0x7cu;
}
/* The upper half of an f16. */
static __device__ __forceinline__ uint32_t rs_f32_of_e5m2(uint32_t code) { return rs_f32_of_f16(code << 8); }

/* --- One number --------------------------------------------------------------------------------------------------*/

static __device__ __forceinline__ double rs_double(uint64_t bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}

/* The f64 between zero and it that is an f32, or where that is not exact the one of both neighbours that is odd. */
static __device__ __forceinline__ float rs_f32_to_odd(double x) {
  float near = static_cast<float>(x);
  double back = static_cast<double>(near);
  uint32_t bits = rs_bits(near);
  if (fabs(back) > fabs(x))
    bits--;
  return rs_float(back != x ? bits | 1 : bits);
}

template <int From> __device__ __forceinline__ uint32_t rs_f32_of(uint32_t code) {
  return From == RS_E4M3   ? rs_f32_of_e4m3(code)
         : From == RS_E5M2 ? rs_f32_of_e5m2(code)
         : From == RS_F16  ? rs_f32_of_f16(code)
         : From == RS_BF16 ? code << 16
                           : code;
}

template <int From> __device__ __forceinline__ bool rs_code_is_nan(uint64_t code) {
  return From == RS_E4M3   ? (code & 0x7f) == 0x7f
         : From == RS_E5M2 ? (code & 0x7f) > 0x7c
         : From == RS_F16  ? (code & 0x7fff) > 0x7c00
         : From == RS_BF16 ? (code & 0x7fff) > 0x7f80
         : From == RS_F32  ? rs_is_nan(static_cast<uint32_t>(code))
                           : (code & ~(1ull << 63)) > 0x7ff0000000000000ull;
}

/* The bits of the number `code` of dtype From as one of dtype To. */
template <int From, int To> __device__ __forceinline__ uint64_t rs_convert(uint64_t code) {
  if (rs_code_is_nan<From>(code))
    return (1ull << (8 * rs_number_bytes(To) - 1)) - 1;
  if (From == RS_F64 && To == RS_F32)
    return rs_bits(static_cast<float>(rs_double(code)));
  float x = From == RS_F64 ? rs_f32_to_odd(rs_double(code)) : rs_float(rs_f32_of<From>(static_cast<uint32_t>(code)));
  return To == RS_E4M3   ? rs_e4m3_of(x)
         : To == RS_E5M2 ? rs_e5m2_of(x)
         : To == RS_F16  ? rs_f16_of(x)
         : To == RS_BF16 ? rs_bf16_of(x)
         : To == RS_F32  ? rs_bits(x)
                         : static_cast<uint64_t>(__double_as_longlong(static_cast<double>(x)));
}

/* --- By way of an f32: a load for each dtype, a store for each -----------------------------------------------------*/

/* The number `code` as an f32. odd: an f64 that is not exact is rounded to odd, since it goes to what is narrower. */
template <int From> __device__ __forceinline__ float rs_number_of(uint64_t code, bool odd) {
  if (From == RS_F32)
    return rs_float(static_cast<uint32_t>(code));
  if (rs_code_is_nan<From>(code))
    return rs_float(0x7fffffff);
  if (From == RS_F64)
    return odd ? rs_f32_to_odd(rs_double(code)) : static_cast<float>(rs_double(code));
  return rs_float(rs_f32_of<From>(static_cast<uint32_t>(code)));
}
template <int To> __device__ __forceinline__ uint64_t rs_code_of(float x) { return rs_convert<RS_F32, To>(rs_bits(x)); }
template <> __device__ __forceinline__ uint64_t rs_code_of<RS_F32>(float x) {
  return rs_is_nan(rs_bits(x)) ? 0x7fffffff : rs_bits(x);
}

/* --- Two numbers at a time, as they lie in memory: the first in the lower bits ------------------------------------*/

static __device__ __forceinline__ uint32_t rs_bits_with_nan(float x) {
  return rs_is_nan(rs_bits(x)) ? 0x7fffffffu : rs_bits(x);
}

/* As f32. Bits behind the two codes do not matter. Which NaN one becomes is not said. */
template <int From> static __device__ __forceinline__ void rs_floats_of_two(uint32_t codes, float *a, float *b) {
  if (From == RS_BF16) {
    *a = rs_float(codes << 16);
    *b = rs_float(codes & 0xffff0000u);
    return;
  }
#if defined(__CUDA_ARCH__)
  if (From == RS_F16) {
    *a = rs_float(rs_f32_of_f16(codes & 0xffff));
    *b = rs_float(rs_f32_of_f16(codes >> 16));
    return;
  }
  if (From == RS_E5M2) {
    *a = rs_float(rs_f32_of_f16(codes << 8 & 0xff00));
    *b = rs_float(rs_f32_of_f16(codes & 0xff00));
    return;
  }
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if (From == RS_E4M3) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes)));
    rs_floats_of_two<RS_F16>(halves, a, b);
    return;
  }
#endif
  constexpr int BITS = 8 * rs_number_bytes(From);
  constexpr uint32_t MASK = 0xffffffffu >> (32 - BITS);
  *a = rs_number_of<From>(codes & MASK, false);
  *b = rs_number_of<From>(codes >> BITS % 32 & MASK, false);
}

/* Their codes; bits behind these are 0. */
template <int To> static __device__ __forceinline__ uint32_t rs_codes_of_two(float a, float b) {
#if defined(__CUDA_ARCH__)
  uint32_t words;
  if (To == RS_BF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(words) : "f"(b), "f"(a));
    return words;
  }
  if (To == RS_F16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(words) : "f"(b), "f"(a));
    return words;
  }
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if (To == RS_E4M3) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
    return pair;
  }
  if (To == RS_E5M2 && max(rs_bits(a) & 0x7fffffffu, rs_bits(b) & 0x7fffffffu) < 0x47700000u) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
    return pair;
  }
#endif
  return static_cast<uint32_t>(rs_code_of<To>(a) | rs_code_of<To>(b) << 8 * rs_number_bytes(To));
}

/* N numbers of dtypes below f64, times `by` where that is asked for. */
template <int From, int To, int N, bool Scaled>
static __device__ __forceinline__ void rs_convert_words(const uint32_t *in, uint32_t *out, float by) {
  constexpr int IN = rs_number_bytes(From), OUT = rs_number_bytes(To);
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    float a, b;
    if (From == RS_F32) {
      a = rs_float(in[2 * i]);
      b = rs_float(in[2 * i + 1]);
    } else {
      rs_floats_of_two<From>(in[i * IN / 2] >> (IN == 1 ? i % 2 * 16 : 0), &a, &b);
    }
    if (Scaled) {
      a = a * by;
      b = b * by;
    }
    if (To == RS_F32) {
      out[2 * i] = rs_bits_with_nan(a);
      out[2 * i + 1] = rs_bits_with_nan(b);
    } else if (OUT == 2) {
      out[i] = rs_codes_of_two<To>(a, b);
    } else {
      out[i / 2] = i % 2 == 0 ? rs_codes_of_two<To>(a, b) : out[i / 2] | rs_codes_of_two<To>(a, b) << 16;
    }
  }
}

/* --- Scales of f8_e4m3 -------------------------------------------------------------------------------------------*/

/* The scale of a block whose largest magnitude has these bits, NaN above all, goes to *code. The result is what its
 * numbers are multiplied by. */
static __device__ __forceinline__ float rs_scale_f32(uint32_t most, uint32_t *code) {
  const float m = rs_float(most), scale = (m < 1e-4f ? 1e-4f : m) / 448;
  *code = most > 0x7f800000u ? 0x7fffffffu : rs_bits(scale);
  return 1 / scale;
}
static __device__ __forceinline__ float rs_scale_e8m0(uint32_t most, uint32_t *code) {
  uint32_t bits;
  (void)rs_scale_f32(most, &bits); /* the quotient alone */
  const uint32_t exponent = (bits >> 23 & 0xff) + ((bits & 0x7fffff) != 0);
  *code = max(1u, min(exponent, 254u));
  return rs_float(*code == 254 ? 0x400000u : (254 - *code) << 23); /* one over a power of two */
}
/* 255 is NaN, 0 a subnormal number in f32. */
static __device__ __forceinline__ float rs_float_of_e8m0(uint32_t code) {
  return rs_float(code == 255 ? 0x7fffffff : code == 0 ? 0x400000 : code << 23);
}

#endif
