/* Lanes of AVX-512 for the kernels of casts. The compiler counts by the narrowest elements, and takes vectors of 64 of
 * them apart and together again. Functions of lanes do as many of n as they can, and return how many; 0 where there is
 * nothing to be won. Included by kernels_body.h alone, among whose functions they are. */
#if defined(__AVX512F__)
enum { LANES = 16, CODES = 64, FETCHED = 2 * 64 /* bytes from a line that maxima fetch to the next */ };
/* 32 numbers: in their order, or those of even places and those of odd ones, in turns. */
typedef struct lanes {
  __m512 low, high;
} lanes;
/* A number of 448 and a little at most, plus the power of two whose unit is that of its f8_e4m3: the adder rounds. The
 * sum's last bits count these units, and its exponent the powers. least: the smallest normal number. */
ALWAYS_INLINE __m512 round_lanes(__m512 number, float least) {
  enum { ABSOLUTE_MOST = 3 }; /* with the sign of the first one */
  const __m512i power = _mm512_and_si512(_mm512_castps_si512(number), _mm512_set1_epi32(INF_32 | INT32_MIN));
  const __m512 normal = _mm512_range_ps(_mm512_castsi512_ps(power), _mm512_set1_ps(least), ABSOLUTE_MOST);
  return _mm512_fmadd_ps(normal, _mm512_set1_ps(0x1p20f), number);
}
/* The lower halves of 32 bits each, or the upper ones, in the order of the numbers. */
ALWAYS_INLINE __m512i halves_32(lanes sums, bool turns, int upper) {
  static const int16_t order[2][2 * LANES] = {{0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                               32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62},
                                              {0,  32, 2,  34, 4,  36, 6,  38, 8,  40, 10, 42, 12, 44, 14, 46,
                                               16, 48, 18, 50, 20, 52, 22, 54, 24, 56, 26, 58, 28, 60, 30, 62}};
  const __m512i places = _mm512_add_epi16(_mm512_loadu_si512(order[turns]), _mm512_set1_epi16((int16_t)upper));
  return _mm512_permutex2var_epi16(_mm512_castps_si512(sums.low), places, _mm512_castps_si512(sums.high));
}
/* Their codes, as words of 0 to 255. any: numbers as they are, and NaN among them; else 8 times as large, so that the
 * exponent of the smallest power is a multiple of 16, as that of its code is. */
ALWAYS_INLINE __m512i codes_32(lanes sums, bool turns, bool any) {
  enum { A_B_OR_C = 0xca }; /* a ? b : c */
  const __m512i upper = halves_32(sums, turns, 1), sign = _mm512_set1_epi16((int16_t)0xff80);
  __m512i codes = _mm512_add_epi16(_mm512_srli_epi16(upper, 4), halves_32(sums, turns, 0));
  if (any)
    codes = _mm512_add_epi16(codes, _mm512_set1_epi16(3 * 8));
  codes = _mm512_ternarylogic_epi32(sign, _mm512_srli_epi16(upper, 8), codes, A_B_OR_C);
  if (!any)
    return codes;
  const __mmask32 nan = _mm512_test_epi16_mask(upper, _mm512_set1_epi16(0x2000)); /* in exponents of NaN alone */
  return _mm512_mask_mov_epi16(codes, nan, _mm512_set1_epi16(0x7f));
}
/* Words of 0 to 255 as bytes. */
ALWAYS_INLINE __m512i pack_64(__m512i low, __m512i high) {
  return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), _mm512_packus_epi16(low, high));
}
ALWAYS_INLINE lanes lanes_f32(const char *src, __mmask32 mask) {
  return (lanes){_mm512_maskz_loadu_ps((__mmask16)mask, src),
                 _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), src + 4 * LANES)};
}
ALWAYS_INLINE lanes lanes_f16(const char *src, __mmask32 mask) {
  const __m512i codes = _mm512_maskz_loadu_epi16(mask, src);
  return (lanes){_mm512_cvtph_ps(_mm512_castsi512_si256(codes)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(codes, 1))};
}
ALWAYS_INLINE lanes lanes_bf16(const char *src, __mmask32 mask) { /* in turns */
  const __m512i codes = _mm512_maskz_loadu_epi16(mask, src);
  return (lanes){_mm512_castsi512_ps(_mm512_slli_epi32(codes, 16)),
                 _mm512_castsi512_ps(_mm512_and_si512(codes, _mm512_set1_epi32((int32_t)0xffff0000)))};
}
/* So many times the factor of some numbers, or of each. */
ALWAYS_INLINE lanes lanes_by(const float *by, __mmask32 mask, bool each, float times) {
  const lanes factors = each ? lanes_f32((const char *)by, mask) : (lanes){_mm512_set1_ps(*by), _mm512_set1_ps(*by)};
  return (lanes){_mm512_mul_ps(factors.low, _mm512_set1_ps(times)), _mm512_mul_ps(factors.high, _mm512_set1_ps(times))};
}
/* Places of factors of each where numbers are in turns. */
ALWAYS_INLINE lanes lanes_in_turns(lanes l) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return (lanes){_mm512_permutex2var_ps(l.low, even, l.high),
                 _mm512_permutex2var_ps(l.low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), l.high)};
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
ALWAYS_INLINE void put_32_bf16(char *dst, __m512 low, __m512 high, __mmask32 nan, __mmask32 mask) {
  const lanes rounded = {_mm512_castsi512_ps(round_upper(low)), _mm512_castsi512_ps(round_upper(high))};
  _mm512_mask_storeu_epi16(dst, mask,
                           _mm512_mask_mov_epi16(halves_32(rounded, false, 1), nan, _mm512_set1_epi16(0x7fff)));
}
ALWAYS_INLINE void put_32_f16(char *dst, __m512 low, __m512 high, __mmask32 nan, __mmask32 mask) {
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT)),
                                          _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT), 1);
  _mm512_mask_storeu_epi16(dst, mask, _mm512_mask_mov_epi16(both, nan, _mm512_set1_epi16(0x7fff)));
}
#define LANES_BACK(wide) \
  ALWAYS_INLINE void unscale_32_##wide(char *dst, const char *src, __mmask32 mask, const float *by, bool each) { \
    const __m256i codes = _mm256_maskz_loadu_epi8(mask, src); \
    const __m512i half = halves_of_codes(codes); \
    const lanes factors = lanes_by(by, mask, each, 256); \
    const __m512 low = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(half)), factors.low); \
    const __m512 high = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1)), factors.high); \
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
LANES_BACK(f16)
LANES_BACK(bf16)
/* In their order. An f8_e5m2 is the upper half of an f16. */
#define ordered_f32 lanes_f32
#define ordered_f16 lanes_f16
ALWAYS_INLINE lanes ordered_bf16(const char *src, __mmask32 mask) {
  const __m512i codes = _mm512_maskz_loadu_epi16(mask, src);
  const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(codes));
  const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(codes, 1));
  return (lanes){_mm512_castsi512_ps(_mm512_slli_epi32(low, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(high, 16))};
}
ALWAYS_INLINE lanes ordered_e5m2(const char *src, __mmask32 mask) {
  const __m512i half = _mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, src)), 8);
  return (lanes){_mm512_cvtph_ps(_mm512_castsi512_si256(half)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1))};
}
#define LANES_PAIR(from, to) \
  ALWAYS_INLINE void from##_32_##to(char *dst, const char *src, __mmask32 mask) { \
    const lanes l = ordered_##from(src, mask); \
    const __mmask32 high_nan = _mm512_cmp_ps_mask(l.high, l.high, _CMP_UNORD_Q); \
    put_32_##to(dst, l.low, l.high, high_nan << LANES | _mm512_cmp_ps_mask(l.low, l.low, _CMP_UNORD_Q), mask); \
  } \
  ALWAYS_INLINE int64_t from##_lanes_##to(char *dst, const char *src, int64_t n) { \
    int64_t i = 0; \
    for (; i + 2 * LANES <= n; i += 2 * LANES) \
      from##_32_##to(dst + i * BYTES_##to, src + i * BYTES_##from, UINT32_MAX); \
    if (i < n) \
      from##_32_##to(dst + i * BYTES_##to, src + i * BYTES_##from, ~(UINT32_MAX << (n - i))); \
    return n; \
  }
#define LANES_MOST(bits) \
  ALWAYS_INLINE __m512i larger_##bits(__m512i most, __m512i numbers) { \
    return _mm512_max_epi##bits(most, _mm512_and_si512(numbers, _mm512_set1_epi##bits(INT##bits##_MAX))); \
  } \
  ALWAYS_INLINE int##bits##_t largest_##bits(__m512i most) { \
    if (bits == 16) /* two of them in 32 bits */ \
      most = _mm512_max_epi32(_mm512_and_si512(most, _mm512_set1_epi32(0xffff)), _mm512_srli_epi32(most, 16)); \
    return (int##bits##_t)_mm512_reduce_max_epi32(most); \
  } \
  ALWAYS_INLINE int64_t most_lanes_##bits(int##bits##_t *largest, char *dst, const char *src, int64_t n, \
                                          int64_t ahead) { \
    __m512i most = _mm512_setzero_si512(); \
    int64_t i = 0, step = LINE_BYTES / (bits / 8); \
    for (; i + step <= n; i += step, src += LINE_BYTES, dst += LINE_BYTES) { \
      const __m512i numbers = _mm512_loadu_si512(src); \
      if (i / step % 2 == 0) /* the others by what makes values */ \
        __builtin_prefetch(src + ahead, 0, 2); \
      _mm512_storeu_si512(dst, numbers); \
      most = larger_##bits(most, numbers); \
    } \
    *largest = largest_##bits(most); \
    return i; \
  }
LANES_MOST(16)
LANES_MOST(32)
/* turns: of the numbers of that dtype. Every second line is prefetched `ahead`. */
#define LANES_THERE(wide, turns) \
  ALWAYS_INLINE __m512i scaled_32_##wide(const char *src, __mmask32 mask, lanes by) { \
    const lanes numbers = lanes_##wide(src, mask); \
    return codes_32((lanes){round_lanes(_mm512_mul_ps(numbers.low, by.low), 0x1p-3f), \
                            round_lanes(_mm512_mul_ps(numbers.high, by.high), 0x1p-3f)}, \
                    turns, false); \
  } \
  ALWAYS_INLINE lanes factors_##wide(const float *by, __mmask32 mask) { \
    return turns ? lanes_in_turns(lanes_by(by, mask, true, 8)) : lanes_by(by, mask, true, 8); \
  } \
  ALWAYS_INLINE void scale_64_##wide(char *dst, const char *src, uint64_t mask, lanes low, lanes high) { \
    const __m512i codes = scaled_32_##wide(src + CODES / 2 * BYTES_##wide, (__mmask32)(mask >> 32), high); \
    _mm512_mask_storeu_epi8(dst, mask, pack_64(scaled_32_##wide(src, (__mmask32)mask, low), codes)); \
  } \
  ALWAYS_INLINE int64_t scale_lanes_##wide(char *dst, const char *src, int64_t n, const float *by, bool each, \
                                           int64_t ahead) { \
    const lanes all = lanes_by(by, UINT32_MAX, false, 8); \
    int64_t i = 0; \
    for (; i + CODES <= n; i += CODES, src += CODES * BYTES_##wide) { \
      for (int line = LINE_BYTES; line < CODES * BYTES_##wide; line += 2 * LINE_BYTES) \
        __builtin_prefetch(src + line + ahead, 0, 2); \
      scale_64_##wide(dst + i, src, UINT64_MAX, each ? factors_##wide(by + i, UINT32_MAX) : all, \
                      each ? factors_##wide(by + i + CODES / 2, UINT32_MAX) : all); \
    } \
    const uint64_t mask = ~(UINT64_MAX << (n - i)); \
    if (i < n) \
      scale_64_##wide(dst + i, src, mask, each ? factors_##wide(by + i, (__mmask32)mask) : all, \
                      each ? factors_##wide(by + i + CODES / 2, (__mmask32)(mask >> 32)) : all); \
    return n; \
  } \
  /* Blocks of 32 numbers, two at a time. */ \
  ALWAYS_INLINE int64_t scale_pairs_##wide(char *dst, const char *src, int64_t n, const float *by, int64_t ahead) { \
    int64_t i = 0; \
    for (; i + CODES <= n && all_above(by, 2, OF_FINITE); i += CODES, src += CODES * BYTES_##wide, by += 2) { \
      if (BYTES_##wide > 2) { /* else maxima fetch every line, which is one of a block */ \
        __builtin_prefetch(src + LINE_BYTES + ahead, 0, 2); \
        __builtin_prefetch(src + 3 * LINE_BYTES + ahead, 0, 2); \
      } \
      scale_64_##wide(dst + i, src, UINT64_MAX, lanes_by(by, UINT32_MAX, false, 8), \
                      lanes_by(by + 1, UINT32_MAX, false, 8)); \
    } \
    return i; \
  }
/* Values of numbers in a buffer, whose place others take, with their maxima: so that arithmetic and memory
 * overlap. Of f32, that has twice the memory, one behind the other is faster. */
#define LANES_EXCHANGE(wide) \
  static void exchange_##wide(char *dst, int64_t step, char *place, const char *src, int64_t n, int64_t width, \
                              const float *by, int32_t *most, const char *soon, bool past) { \
    const int64_t from = src - place, ahead = soon - place; \
    for (char *end = place + n * BYTES_##wide; place < end; by++, most++, dst += step) { \
      const lanes all = lanes_by(by, UINT32_MAX, false, 8); \
      __m512i largest = _mm512_setzero_si512(); \
      for (int64_t i = 0; i < width; i += CODES, place += CODES * BYTES_##wide) { \
        const __m512i low = scaled_32_##wide(place, UINT32_MAX, all); \
        const __m512i codes = pack_64(low, scaled_32_##wide(place + CODES / 2 * BYTES_##wide, UINT32_MAX, all)); \
        for (int line = 0; line < CODES * BYTES_##wide; line += LINE_BYTES) { \
          const __m512i numbers = _mm512_loadu_si512(place + line + from); \
          __builtin_prefetch(place + line + ahead, 0, 2); \
          _mm512_storeu_si512(place + line, numbers); \
          largest = larger_16(largest, numbers); \
        } \
        if (past) \
          _mm512_stream_si512((__m512i *)(dst + i), codes); \
        else \
          _mm512_storeu_si512(dst + i, codes); \
      } \
      const int16_t magnitude = largest_16(largest); \
      const f32_bits number = load_##wide((const char *)&magnitude); \
      *most = number > *most ? number : *most; \
    } \
  }
/* Any numbers. No product of one is formed: where it is subnormal, that takes hundreds of cycles. NaN stays, as the
 * second operand. */
ALWAYS_INLINE __m512 limited(__m512 numbers) {
  const __m512 most = _mm512_set1_ps(448), least = _mm512_set1_ps(-448);
  return round_lanes(_mm512_min_ps(most, _mm512_max_ps(least, numbers)), 0x1p-6f);
}
#define LANES_CAST(wide, turns) \
  ALWAYS_INLINE __m512i cast_32_##wide(const char *src, __mmask32 mask) { \
    const lanes numbers = lanes_##wide(src, mask); \
    return codes_32((lanes){limited(numbers.low), limited(numbers.high)}, turns, true); \
  } \
  ALWAYS_INLINE void cast_64_##wide(char *dst, const char *src, uint64_t mask) { \
    const __m512i high = cast_32_##wide(src + CODES / 2 * BYTES_##wide, (__mmask32)(mask >> 32)); \
    _mm512_mask_storeu_epi8(dst, mask, pack_64(cast_32_##wide(src, (__mmask32)mask), high)); \
  } \
  ALWAYS_INLINE int64_t cast_lanes_##wide(char *dst, const char *src, int64_t n) { \
    int64_t i = 0; \
    for (; i + CODES <= n; i += CODES) \
      cast_64_##wide(dst + i, src + i * BYTES_##wide, UINT64_MAX); \
    if (i < n) \
      cast_64_##wide(dst + i, src + i * BYTES_##wide, ~(UINT64_MAX << (n - i))); \
    return n; \
  }
#define HAVE_EXCHANGE 1
#else
enum { FETCHED = 64 };
#define LANES_BACK(wide) \
  ALWAYS_INLINE int64_t unscale_lanes_##wide(char *dst, const char *src, int64_t n, const float *by, bool each) { \
    return (void)dst, (void)src, (void)n, (void)by, (void)each, 0; \
  }
LANES_BACK(f32)
LANES_BACK(f16)
LANES_BACK(bf16)
#define LANES_PAIR(from, to) \
  ALWAYS_INLINE int64_t from##_lanes_##to(char *dst, const char *src, int64_t n) { \
    return (void)dst, (void)src, (void)n, 0; \
  }
#define LANES_THERE(wide, turns) \
  ALWAYS_INLINE int64_t scale_lanes_##wide(char *dst, const char *src, int64_t n, const float *by, bool each, \
                                           int64_t ahead) { \
    return (void)dst, (void)src, (void)n, (void)by, (void)each, (void)ahead, 0; \
  } \
  ALWAYS_INLINE int64_t scale_pairs_##wide(char *dst, const char *src, int64_t n, const float *by, int64_t ahead) { \
    return (void)dst, (void)src, (void)n, (void)by, (void)ahead, 0; \
  }
#define LANES_MOST(bits) \
  ALWAYS_INLINE int64_t most_lanes_##bits(int##bits##_t *largest, char *dst, const char *src, int64_t n, \
                                          int64_t ahead) { \
    return (void)largest, (void)dst, (void)src, (void)n, (void)ahead, 0; \
  }
LANES_MOST(16)
LANES_MOST(32)
#define LANES_CAST(wide, turns) \
  ALWAYS_INLINE int64_t cast_lanes_##wide(char *dst, const char *src, int64_t n) { \
    return (void)dst, (void)src, (void)n, 0; \
  }
#endif
LANES_CAST(f32, false)
LANES_CAST(f16, false)
LANES_CAST(bf16, true)
/* Numbers whose scale is 1. */
#define LANES_OF_ONE(wide) \
  ALWAYS_INLINE int64_t back_lanes_##wide(char *dst, const char *src, int64_t n) { \
    const float one = 1; \
    return unscale_lanes_##wide(dst, src, n, &one, false); \
  }
LANES_OF_ONE(f32)
LANES_OF_ONE(f16)
LANES_OF_ONE(bf16)
LANES_PAIR(e5m2, f32)
LANES_PAIR(e5m2, f16)
LANES_PAIR(e5m2, bf16)
LANES_PAIR(f16, f32)
LANES_PAIR(f16, bf16)
LANES_PAIR(bf16, f16)
LANES_PAIR(f32, f16)
