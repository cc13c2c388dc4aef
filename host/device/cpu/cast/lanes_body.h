/* Lanes of AVX-512 for the kernels of casts. The compiler counts by the narrowest elements, and takes vectors of 64 of
 * them apart and together again. Functions of lanes do as many of n as they can, and return how many; 0 where there is
 * nothing to be won. Included by kernels_body.h alone, among whose functions they are. */
#if defined(__AVX512F__)
enum { LANES = 16, CODES = 64 };
/* A number of 448 and a little at most, or a 256th of it, towards f8_e4m3: rounded as that, and half a unit more in
 * magnitude. Its sum with `large` has the unit of the result, so that the adder rounds. Half a unit more makes the sign
 * that of the number where that becomes 0. least: the large one for the smallest normal number and less. */
ALWAYS_INLINE __m512 round_lanes(__m512 number, float least) {
  enum { ABSOLUTE_MOST = 3 }; /* with the sign of the first one */
  const __m512i power = _mm512_and_si512(_mm512_castps_si512(number), _mm512_set1_epi32(INF_32 | INT32_MIN));
  const __m512 times = _mm512_castsi512_ps(_mm512_add_epi32(power, _mm512_set1_epi32(20 << 23)));
  const __m512 large = _mm512_range_ps(times, _mm512_set1_ps(least), ABSOLUTE_MOST);
  return _mm512_fnmadd_ps(large, _mm512_set1_ps(1 - 0x1p-24f), _mm512_add_ps(number, large));
}
ALWAYS_INLINE __m512i halves_32(__m512 low, __m512 high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(low, _MM_FROUND_TO_ZERO)),
                            _mm512_cvtps_ph(high, _MM_FROUND_TO_ZERO), 1);
}
/* An f16 of a number that was rounded so has the code, but the sign a bit further up. */
ALWAYS_INLINE __m512i codes_32(__m512i half) {
  return _mm512_ternarylogic_epi32(_mm512_set1_epi16((int16_t)0xff80), _mm512_srli_epi16(half, 8),
                                   _mm512_srli_epi16(half, 7), 0xca); /* a ? b : c */
}
/* Words of 0 to 255 as bytes. */
ALWAYS_INLINE __m512i pack_64(__m512i low, __m512i high) {
  return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), _mm512_packus_epi16(low, high));
}
ALWAYS_INLINE __m512 lanes_f32(const char *src, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, src); }
ALWAYS_INLINE __m512 lanes_f16(const char *src, __mmask16 mask) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, src));
}
ALWAYS_INLINE __m512 lanes_bf16(const char *src, __mmask16 mask) {
  const __m512i codes = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, src));
  return _mm512_castsi512_ps(_mm512_slli_epi32(codes, 16));
}
/* So many times the factor of some numbers, or of each. */
ALWAYS_INLINE __m512 lanes_by(const float *by, __mmask16 mask, bool each, float times) {
  return _mm512_mul_ps(each ? _mm512_maskz_loadu_ps(mask, by) : _mm512_set1_ps(*by), _mm512_set1_ps(times));
}
/* An f8_e4m3 a bit further up is an f16 of a 256th, subnormal ones too. */
ALWAYS_INLINE __m512i halves_of_codes(__m256i codes) {
  const __m512i moved = _mm512_slli_epi16(_mm512_cvtepu8_epi16(codes), 7);
  return _mm512_add_epi16(moved, _mm512_and_si512(moved, _mm512_set1_epi16(0x4000)));
}
ALWAYS_INLINE __mmask32 nan_codes(__m256i codes) {
  return _mm256_cmpeq_epi8_mask(_mm256_and_si256(codes, _mm256_set1_epi8(0x7f)), _mm256_set1_epi8(0x7f));
}
/* The upper halves are rounded to bf16. */
ALWAYS_INLINE __m512i round_upper(__m512 numbers) {
  const __m512i bits = _mm512_castps_si512(numbers), low = _mm512_set1_epi32(1);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), low);
  return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}
ALWAYS_INLINE void put_32_f32(char *dst, __m512 low, __m512 high, __mmask32 nan, __mmask32 mask) {
  low = _mm512_mask_mov_ps(low, (__mmask16)nan, _mm512_castsi512_ps(_mm512_set1_epi32(NAN_32)));
  high = _mm512_mask_mov_ps(high, (__mmask16)(nan >> 16), _mm512_castsi512_ps(_mm512_set1_epi32(NAN_32)));
  _mm512_mask_storeu_ps(dst, (__mmask16)mask, low);
  _mm512_mask_storeu_ps(dst + 4 * LANES, (__mmask16)(mask >> 16), high);
}
/* One instruction takes the upper halves of both. */
ALWAYS_INLINE void put_32_bf16(char *dst, __m512 low, __m512 high, __mmask32 nan, __mmask32 mask) {
  static const int16_t upper[2 * LANES] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                           33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i both = _mm512_permutex2var_epi16(round_upper(low), _mm512_loadu_si512(upper), round_upper(high));
  _mm512_mask_storeu_epi16(dst, mask, _mm512_mask_mov_epi16(both, nan, _mm512_set1_epi16(0x7fff)));
}
#define LANES_BACK(wide) \
  ALWAYS_INLINE void unscale_32_##wide(char *dst, const char *src, __mmask32 mask, const float *by, bool each) { \
    const __m256i codes = _mm256_maskz_loadu_epi8(mask, src); \
    const __m512i half = halves_of_codes(codes); \
    const __m512 by_low = lanes_by(by, (__mmask16)mask, each, 256); \
    const __m512 by_high = lanes_by(by + (each ? LANES : 0), (__mmask16)(mask >> 16), each, 256); \
    const __m512 low = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(half)), by_low); \
    const __m512 high = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1)), by_high); \
    put_32_##wide(dst, low, high, nan_codes(codes), mask); \
  } \
  ALWAYS_INLINE int64_t unscale_lanes_##wide(char *dst, const char *src, int64_t n, const float *by, bool each) { \
    int64_t i = 0; \
    if (!are_finite(by, each ? n : 1, 256)) \
      return 0; \
    for (; i + 2 * LANES <= n; i += 2 * LANES) \
      unscale_32_##wide(dst + i * BYTES_##wide, src + i, UINT32_MAX, by + (each ? i : 0), each); \
    if (i < n) \
      unscale_32_##wide(dst + i * BYTES_##wide, src + i, ~(UINT32_MAX << (n - i)), by + (each ? i : 0), each); \
    return n; \
  }
LANES_BACK(f32)
LANES_BACK(bf16)
#define LANES_MOST(bits) \
  ALWAYS_INLINE int64_t most_lanes_##bits(int##bits##_t *largest, char *dst, const char *src, int64_t n, \
                                          int64_t ahead) { \
    __m512i most = _mm512_setzero_si512(); \
    int64_t i = 0, step = LINE_BYTES / (bits / 8); \
    for (; i + step <= n; i += step, src += LINE_BYTES, dst += LINE_BYTES) { \
      const __m512i numbers = _mm512_loadu_si512(src); \
      __builtin_prefetch(src + ahead, 0, 2); \
      _mm512_storeu_si512(dst, numbers); \
      most = _mm512_max_epi##bits(most, _mm512_and_si512(numbers, _mm512_set1_epi##bits(INT##bits##_MAX))); \
    } \
    if (bits == 16) /* two of them in 32 bits */ \
      most = _mm512_max_epi32(_mm512_and_si512(most, _mm512_set1_epi32(0xffff)), _mm512_srli_epi32(most, 16)); \
    *largest = (int##bits##_t)_mm512_reduce_max_epi32(most); \
    return i; \
  }
LANES_MOST(16)
LANES_MOST(32)
#define LANES_THERE(wide) \
  ALWAYS_INLINE __m512 scaled_##wide(const char *src, uint64_t mask, const float *by, bool each) { \
    const __m512 factor = lanes_by(by, (__mmask16)mask, each, 1 / 256.0f); \
    return round_lanes(_mm512_mul_ps(lanes_##wide(src, (__mmask16)mask), factor), 0x1p6f); \
  } \
  ALWAYS_INLINE __m512i scaled_32_##wide(const char *src, uint64_t mask, const float *by, bool each) { \
    return codes_32(halves_32(scaled_##wide(src, mask, by, each), \
                              scaled_##wide(src + LANES * BYTES_##wide, mask >> 16, by + (each ? LANES : 0), each))); \
  } \
  ALWAYS_INLINE void scale_64_##wide(char *dst, const char *src, uint64_t mask, const float *by, bool each) { \
    const __m512i high = \
        scaled_32_##wide(src + 2 * LANES * BYTES_##wide, mask >> 32, by + (each ? 2 * LANES : 0), each); \
    _mm512_mask_storeu_epi8(dst, mask, pack_64(scaled_32_##wide(src, mask, by, each), high)); \
  } \
  ALWAYS_INLINE int64_t scale_lanes_##wide(char *dst, const char *src, int64_t n, const float *by, bool each) { \
    int64_t i = 0; \
    if (!all_above(by, each ? n : 1, 0x1p-118f)) /* else a 256th of them is exact */ \
      return 0; \
    for (; i + CODES <= n; i += CODES) \
      scale_64_##wide(dst + i, src + i * BYTES_##wide, UINT64_MAX, by + (each ? i : 0), each); \
    if (i < n) \
      scale_64_##wide(dst + i, src + i * BYTES_##wide, ~(UINT64_MAX << (n - i)), by + (each ? i : 0), each); \
    return n; \
  }
/* Any numbers. No product of one is formed: where it is subnormal, that takes hundreds of cycles. NaN stays, as the
 * second operand. */
ALWAYS_INLINE __m512 limited(__m512 numbers) {
  const __m512 most = _mm512_set1_ps(448), least = _mm512_set1_ps(-448);
  const __m512 number = _mm512_min_ps(most, _mm512_max_ps(least, numbers));
  return _mm512_mul_ps(round_lanes(number, 0x1p14f), _mm512_set1_ps(0x1p-8f));
}
/* f16 of NaN are above 1. */
ALWAYS_INLINE __m512i limited_32(__m512 low, __m512 high) {
  const __m512i half = halves_32(limited(low), limited(high));
  const __mmask32 nan = _mm512_test_epi16_mask(half, _mm512_set1_epi16(0x4000));
  return _mm512_mask_mov_epi16(codes_32(half), nan, _mm512_set1_epi16(0x7f));
}
#define LANES_CAST(wide) \
  ALWAYS_INLINE __m512i cast_32_##wide(const char *src, uint64_t mask) { \
    return limited_32(lanes_##wide(src, (__mmask16)mask), \
                      lanes_##wide(src + LANES * BYTES_##wide, (__mmask16)(mask >> 16))); \
  } \
  ALWAYS_INLINE void cast_64_##wide(char *dst, const char *src, uint64_t mask) { \
    const __m512i high = cast_32_##wide(src + 2 * LANES * BYTES_##wide, mask >> 32); \
    _mm512_mask_storeu_epi8(dst, mask, pack_64(cast_32_##wide(src, mask), high)); \
  } \
  ALWAYS_INLINE int64_t cast_lanes_##wide(char *dst, const char *src, int64_t n) { \
    int64_t i = 0; \
    for (; i + CODES <= n; i += CODES) \
      cast_64_##wide(dst + i, src + i * BYTES_##wide, UINT64_MAX); \
    if (i < n) \
      cast_64_##wide(dst + i, src + i * BYTES_##wide, ~(UINT64_MAX << (n - i))); \
    return n; \
  }
#else
#define LANES_BACK(wide) \
  ALWAYS_INLINE int64_t unscale_lanes_##wide(char *dst, const char *src, int64_t n, const float *by, bool each) { \
    return (void)dst, (void)src, (void)n, (void)by, (void)each, 0; \
  }
LANES_BACK(f32)
LANES_BACK(bf16)
#define LANES_THERE(wide) \
  ALWAYS_INLINE int64_t scale_lanes_##wide(char *dst, const char *src, int64_t n, const float *by, bool each) { \
    return (void)dst, (void)src, (void)n, (void)by, (void)each, 0; \
  }
#define LANES_MOST(bits) \
  ALWAYS_INLINE int64_t most_lanes_##bits(int##bits##_t *largest, char *dst, const char *src, int64_t n, \
                                          int64_t ahead) { \
    return (void)largest, (void)dst, (void)src, (void)n, (void)ahead, 0; \
  }
LANES_MOST(16)
LANES_MOST(32)
#define LANES_CAST(wide) \
  ALWAYS_INLINE int64_t cast_lanes_##wide(char *dst, const char *src, int64_t n) { \
    return (void)dst, (void)src, (void)n, 0; \
  }
#endif
LANES_CAST(f32)
LANES_CAST(f16)
LANES_CAST(bf16)
/* Numbers whose scale is 1. */
#define LANES_OF_ONE(wide) \
  ALWAYS_INLINE int64_t back_lanes_##wide(char *dst, const char *src, int64_t n) { \
    const float one = 1; \
    return unscale_lanes_##wide(dst, src, n, &one, false); \
  }
LANES_OF_ONE(f32)
LANES_OF_ONE(bf16)
