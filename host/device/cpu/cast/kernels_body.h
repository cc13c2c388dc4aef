/* Conversions of numbers, written once per element in integer arithmetic and compiled once per instruction set. The
 * compiler makes vectors of the loops, so nothing here branches.
 *
 * Every pair goes through the bits of a float. Widening to it is exact. Narrowing from it rounds to nearest even:
 *   - a normal result: half a unit less one, and the bit that becomes the last one, are added to the bits of the float;
 *     what carries into the exponent is right there, too;
 *   - a subnormal result: a power of two is added whose unit is the unit of the result, and the adder rounds.
 * A double that becomes less than a float would be rounded twice. So it first becomes a float rounded to odd: cut off,
 * and its last bit set where anything was lost. A float has two bits more than what is narrower has at least. So that
 * bit says on which side of a tie the double was.
 *
 * Overflow gives infinity, and the largest number for f8_e4m3, which has none. Every NaN becomes the one whose bits are
 * all set but the sign: the one that NVIDIA's conversions give, where they are documented to give one.
 *
 * Everything is static and no header's inline function is used: code for a newer machine must not end up in a symbol
 * that others share. */
#include "device/cpu/cast/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define EACH_FROM(i, from, n) for (int64_t i = (from); i < (n); i++)
#else
#define EACH_FROM(i, from, n) \
  _Pragma("GCC ivdep") for (int64_t i = (from); i < (n); i++) /* dst is src, or apart from it */
#endif
#define EACH(i, n) EACH_FROM(i, 0, n)

typedef int32_t f32_bits; /* signed, because vectors compare signed numbers */

enum { NAN_32 = 0x7fffffff, INF_32 = 0x7f800000 };

ALWAYS_INLINE f32_bits bits_of(float number) {
  f32_bits bits;
  __builtin_memcpy(&bits, &number, sizeof bits);
  return bits;
}
ALWAYS_INLINE float float_of(f32_bits bits) {
  float number;
  __builtin_memcpy(&number, &bits, sizeof number);
  return number;
}

/* yes where the condition holds, else no: without a branch, though both may be of arithmetic that could trap. */
ALWAYS_INLINE int32_t pick(int32_t condition, int32_t yes, int32_t no) { return no ^ ((yes ^ no) & -condition); }
/* The same where numbers are narrowed: what has masks needs no arithmetic for it. Where they are widened gcc makes no
 * vectors of it. */
#if defined(__AVX512F__)
#define pick_narrow(condition, yes, no) ((condition) ? (yes) : (no))
#else
#define pick_narrow pick
#endif

/* A format narrower than a float. */
typedef struct format {
  int width, mantissa, bias; /* bits in all, of the mantissa; of the exponent */
  int last;                  /* largest code that is no NaN */
  int infinity;              /* code of it, or -1 */
  int most;                  /* what a number too large becomes */
} format;
#define F8_E4M3 ((format){8, 3, 7, 0x7e, -1, 0x7e})
#define F8_E5M2 ((format){8, 2, 15, 0x7c, 0x7c, 0x7c})
#define F16     ((format){16, 10, 15, 0x7c00, 0x7c00, 0x7c00})

ALWAYS_INLINE f32_bits widen(const format f, int32_t code) {
  const int32_t top = 1 << (f.width - 1), first = (127 - f.bias + 1) << 23; /* the smallest normal number, as a float */
  int32_t sign = (int32_t)((uint32_t)(code & top) << (32 - f.width)), magnitude = code & (top - 1);
  int32_t shifted = magnitude << (23 - f.mantissa);
  int32_t normal = shifted + ((127 - f.bias) << 23);
  int32_t subnormal = bits_of(float_of(shifted + first) - float_of(first));
  int32_t bits = pick(magnitude < 1 << f.mantissa, subnormal, normal);
  bits = pick(magnitude == f.infinity, INF_32, bits);
  return pick(magnitude > f.last, NAN_32, bits | sign);
}

ALWAYS_INLINE int32_t narrow(const format f, f32_bits bits) {
  const int lost = 23 - f.mantissa;
  const int32_t first = (127 - f.bias + 1) << 23, unit = (127 - f.bias + lost + 1) << 23;
  const int32_t most = (f.most << lost) + ((127 - f.bias) << 23); /* a float that becomes f.most, as all beyond do */
  int32_t magnitude = bits & NAN_32, sign = (int32_t)((uint32_t)bits >> 31 << (f.width - 1));
  int32_t within = magnitude < most ? magnitude : most;
  int32_t odd = within >> lost & 1;
  int32_t normal = (within - ((127 - f.bias) << 23) + (1 << (lost - 1)) - 1 + odd) >> lost;
  int32_t subnormal = bits_of(float_of(within) + float_of(unit)) - unit;
  int32_t code = pick_narrow(within < first, subnormal, normal);
  return pick_narrow(magnitude > INF_32, (1 << (f.width - 1)) - 1, code | sign);
}

/* bf16 has the exponent of a float, so that its subnormal numbers need nothing of their own. */
ALWAYS_INLINE int32_t narrow_bf16(f32_bits bits) {
  int32_t code = (int32_t)((uint32_t)bits + 0x7fff + ((uint32_t)bits >> 16 & 1)) >> 16;
  return pick_narrow((bits & NAN_32) > INF_32, 0x7fff, code);
}
ALWAYS_INLINE f32_bits widen_bf16(int32_t code) {
  return pick((code & 0x7fff) > 0x7f80, NAN_32, (int32_t)((uint32_t)code << 16));
}

ALWAYS_INLINE f32_bits odd_of(double number) {
  float near = (float)number;
  double back = near;
  f32_bits bits = bits_of(near);
  bits -= __builtin_fabs(back) > __builtin_fabs(number); /* it was rounded away from zero */
  bits |= back != number;
  return pick(number != number, NAN_32, bits);
}

/* --- Loads and stores ------------------------------------------------------------------------------------ */

#define NUMBERS(type, name) \
  ALWAYS_INLINE type get_##name(const char *src) { \
    type number; \
    __builtin_memcpy(&number, src, sizeof number); \
    return number; \
  } \
  ALWAYS_INLINE void put_##name(char *dst, type number) { __builtin_memcpy(dst, &number, sizeof number); }
NUMBERS(uint8_t, u8)
NUMBERS(uint16_t, u16)
NUMBERS(int16_t, i16)
NUMBERS(int32_t, i32)
NUMBERS(int64_t, i64)
NUMBERS(double, double)

enum { BYTES_e4m3 = 1, BYTES_e5m2 = 1, BYTES_f16 = 2, BYTES_bf16 = 2, BYTES_f32 = 4, BYTES_f64 = 8, BYTES_odd = 8 };
ALWAYS_INLINE f32_bits load_e4m3(const char *src) { return widen(F8_E4M3, get_u8(src)); }
ALWAYS_INLINE f32_bits load_e5m2(const char *src) { return widen(F8_E5M2, get_u8(src)); }
ALWAYS_INLINE f32_bits load_f16(const char *src) { return widen(F16, get_u16(src)); }
ALWAYS_INLINE f32_bits load_bf16(const char *src) { return widen_bf16(get_u16(src)); }
ALWAYS_INLINE f32_bits load_f32(const char *src) { return get_i32(src); }
ALWAYS_INLINE f32_bits load_f64(const char *src) {
  double number = get_double(src);
  return pick(number != number, NAN_32, bits_of((float)number));
}
ALWAYS_INLINE f32_bits load_odd(const char *src) { return odd_of(get_double(src)); }

ALWAYS_INLINE void store_e4m3(char *dst, f32_bits bits) { put_u8(dst, (uint8_t)narrow(F8_E4M3, bits)); }
ALWAYS_INLINE void store_e5m2(char *dst, f32_bits bits) { put_u8(dst, (uint8_t)narrow(F8_E5M2, bits)); }
ALWAYS_INLINE void store_f16(char *dst, f32_bits bits) { put_u16(dst, (uint16_t)narrow(F16, bits)); }
ALWAYS_INLINE void store_bf16(char *dst, f32_bits bits) { put_u16(dst, (uint16_t)narrow_bf16(bits)); }
ALWAYS_INLINE void store_f32(char *dst, f32_bits bits) { put_i32(dst, bits); }
ALWAYS_INLINE void store_f64(char *dst, f32_bits bits) {
  int32_t nan = -((bits & NAN_32) > INF_32);
  double number = (double)float_of((bits | nan) ^ (int32_t)((uint32_t)nan << 31));
  int64_t wide;
  __builtin_memcpy(&wide, &number, sizeof wide);
  put_i64(dst, wide | (nan & ((1 << 29) - 1))); /* the bits that a float's NaN lacks */
}

/* --- Stores past the cache ------------------------------------------------------------------------------- */

enum {
  LINE_BYTES = 64,  /* of a line of the destination */
  AHEAD = 4096,     /* bytes of the source that are prefetched of one run */
  FAR_BLOCK = 256,  /* bytes of each run in turn, or two lines of the destination */
  FAR_AHEAD = 2048, /* bytes that are prefetched of each of several */
};

#if defined(__AVX512F__)
ALWAYS_INLINE void stream_line(char *dst, const char *line) {
  _mm512_stream_si512((__m512i *)dst, _mm512_load_si512(line));
}
#elif defined(__AVX2__)
ALWAYS_INLINE void stream_line(char *dst, const char *line) {
  for (int i = 0; i < LINE_BYTES; i += 32)
    _mm256_stream_si256((__m256i *)(dst + i), _mm256_load_si256((const __m256i *)(line + i)));
}
#elif defined(__SSE2__)
ALWAYS_INLINE void stream_line(char *dst, const char *line) {
  for (int i = 0; i < LINE_BYTES; i += 16)
    _mm_stream_si128((__m128i *)(dst + i), _mm_load_si128((const __m128i *)(line + i)));
}
#else
ALWAYS_INLINE void stream_line(char *dst, const char *line) { __builtin_memcpy(dst, line, LINE_BYTES); }
#endif

/* lanes: as below, or NO_LANES. */
#define NO_LANES(dst, src, n) 0
#define CAST(from, to)        CAST_BY(from, to, NO_LANES)
#define CAST_BY(from, to, lanes) \
  static void from##_to_##to(char *dst, const char *src, int64_t n) { \
    EACH_FROM(i, lanes(dst, src, n), n) \
    store_##to(dst + i * BYTES_##to, load_##from(src + i * BYTES_##from)); \
  } \
  static void from##_to_##to##_past(char *dst, const char *src, int64_t n, const rs_cast_runs *w) { \
    enum { NUMBERS = LINE_BYTES / BYTES_##to, STEP = NUMBERS * BYTES_##from }; \
    enum { LINES = (int)STEP < (int)FAR_BLOCK / 2 ? FAR_BLOCK / STEP : 2 }; \
    const int64_t lines = n / NUMBERS, count = w->count, src_step = w->src, dst_step = w->dst; \
    int64_t soon = (count > 1 ? FAR_AHEAD : AHEAD) / STEP; \
    soon = soon < lines ? soon : lines; /* of runs so short, those of the next turn */ \
    for (int64_t at = 0, part; at < lines; at += part) { \
      part = lines - at < LINES ? lines - at : LINES; \
      const char *ahead = src + (at + soon) * STEP; \
      ahead = at + soon < lines ? ahead : ahead - lines * STEP + count * src_step; \
      for (int64_t k = 0; k < count; k++) \
        for (int64_t i = at; i < at + part; i++) { \
          _Alignas(LINE_BYTES) char line[LINE_BYTES]; \
          const char *from_line = src + k * src_step + i * STEP; \
          for (int byte = 0; byte < STEP; byte += LINE_BYTES) \
            __builtin_prefetch(ahead + k * src_step + (i - at) * STEP + byte, 0, 2); \
          EACH_FROM(j, lanes(line, from_line, NUMBERS), NUMBERS) \
          store_##to(line + j * BYTES_##to, load_##from(from_line + j * BYTES_##from)); \
          stream_line(dst + k * dst_step + i * LINE_BYTES, line); \
        } \
    } \
  }
/* --- Numbers with scales ------------------------------------------------------------------------------- */

ALWAYS_INLINE f32_bits times(f32_bits number, float by) { return bits_of(float_of(number) * by); }
/* In a block whose largest number is finite, none becomes more than 448 and a little, which rounds to that. */
ALWAYS_INLINE int32_t narrow_scaled(f32_bits bits) {
  enum { BIAS = (127 - 7) << 23, FIRST = BIAS + (1 << 23), UNIT = (127 - 7 + 21) << 23 };
  int32_t magnitude = bits & NAN_32, sign = (int32_t)((uint32_t)bits >> 31 << 7);
  int32_t normal = (magnitude - BIAS + (1 << 19) - 1 + (magnitude >> 20 & 1)) >> 20;
  int32_t subnormal = bits_of(float_of(magnitude) + float_of(UNIT)) - UNIT;
  return pick_narrow(magnitude < FIRST, subnormal, normal) | sign;
}
/* Blocks of one number each are done as one, whose numbers have factors of their own: `each`. Factors of blocks that
 * are finite: scales are at most the largest number over 448, rounded up to a power of two. */
#define OF_FINITE 0x1p-127f
ALWAYS_INLINE int32_t all_above(const float *by, int64_t n, float least) {
  int32_t all = 1;
  EACH(i, n) all &= by[i] > least;
  return all;
}
/* Scales with which no number but NaN becomes one, even so many times as large. */
ALWAYS_INLINE int32_t are_finite(const float *by, int64_t n, float larger) {
  int32_t all = 1;
  EACH(i, n) all &= (bits_of(by[i] * larger) & NAN_32) < INF_32;
  return all;
}
/* An f8_e4m3 that is no NaN. */
ALWAYS_INLINE f32_bits widen_number(int32_t code) {
  enum { BIAS = (127 - 7) << 23, FIRST = BIAS + (1 << 23) };
  int32_t magnitude = code & 0x7f, shifted = magnitude << 20, sign = (int32_t)((uint32_t)(code & 0x80) << 24);
  int32_t subnormal = bits_of(float_of(shifted + FIRST) - float_of(FIRST));
  return pick(magnitude < 8, subnormal, shifted + BIAS) | sign;
}
ALWAYS_INLINE f32_bits number_f32(const char *src) { return get_i32(src); }
ALWAYS_INLINE f32_bits number_f16(const char *src) { return load_f16(src); }
ALWAYS_INLINE f32_bits number_bf16(const char *src) { return (int32_t)((uint32_t)get_u16(src) << 16); }
/* A product of a number, or the NaN of an f8_e4m3 whose magnitude that is. */
ALWAYS_INLINE void put_f32(char *dst, f32_bits bits, int32_t magnitude) {
  put_i32(dst, pick(magnitude == 0x7f, NAN_32, bits));
}
ALWAYS_INLINE void put_f16(char *dst, f32_bits bits, int32_t magnitude) {
  store_f16(dst, pick(magnitude == 0x7f, NAN_32, bits));
}
ALWAYS_INLINE void put_bf16(char *dst, f32_bits bits, int32_t magnitude) {
  int32_t code = (int32_t)((uint32_t)bits + 0x7fff + ((uint32_t)bits >> 16 & 1)) >> 16;
  put_u16(dst, (uint16_t)pick_narrow(magnitude == 0x7f, 0x7fff, code));
}
ALWAYS_INLINE f32_bits one_nan_f32(f32_bits bits) { return pick((bits & NAN_32) > INF_32, NAN_32, bits); }
ALWAYS_INLINE f32_bits one_nan_f16(f32_bits bits) { return bits; }
ALWAYS_INLINE f32_bits one_nan_bf16(f32_bits bits) { return bits; }

#include "device/cpu/cast/lanes_body.h"
LANES_THERE(f32, false)
LANES_THERE(f16, false)
LANES_THERE(bf16, true)

#define EACH_BLOCK(from, to, with) \
  for (int64_t w = width < n ? width : n; n > 0; \
       n -= w, src += w * (from), dst += w * (to), (with)++, w = width < n ? width : n)

/* The bits of magnitudes are in the order of the numbers, NaN above all. */
#define MOST(wide, bits) \
  ALWAYS_INLINE void most_block_##wide(int32_t *most, char *dst, const char *src, int64_t n, int64_t ahead) { \
    int##bits##_t largest = 0; \
    EACH_FROM(i, most_lanes_##bits(&largest, dst, src, n, ahead), n) { \
      int##bits##_t number = get_i##bits(src + i * BYTES_##wide), magnitude = number & INT##bits##_MAX; \
      put_i##bits(dst + i * BYTES_##wide, number); \
      largest = magnitude > largest ? magnitude : largest; \
    } \
    f32_bits number = load_##wide((const char *)&largest); \
    *most = number > *most ? number : *most; \
  } \
  static void most_##wide(int32_t *most, char *dst, const char *src, int64_t n, int64_t width, const char *soon) { \
    if (width > 1) { \
      const int64_t ahead = soon - src; \
      EACH_BLOCK(BYTES_##wide, BYTES_##wide, most) most_block_##wide(most, dst, src, w, ahead); \
      return; \
    } \
    for (int64_t at = 0; at < n * BYTES_##wide; at += FETCHED) \
      __builtin_prefetch(soon + at, 0, 2); \
    EACH(i, n) { \
      int##bits##_t number = get_i##bits(src + i * BYTES_##wide), magnitude = number & INT##bits##_MAX; \
      put_i##bits(dst + i * BYTES_##wide, number); \
      f32_bits largest = load_##wide((const char *)&magnitude); \
      most[i] = largest > most[i] ? largest : most[i]; \
    } \
  }

#define SCALED(wide, bits) \
  MOST(wide, bits) \
  ALWAYS_INLINE void scale_block_##wide(char *dst, const char *src, int64_t n, const float *by, bool each, \
                                        int64_t ahead) { \
    const float all = *by; /* which no store changes */ \
    if (all_above(by, each ? n : 1, OF_FINITE)) { \
      EACH_FROM(i, scale_lanes_##wide(dst, src, n, by, each, ahead), n) \
      put_u8(dst + i, (uint8_t)narrow_scaled(times(number_##wide(src + i * BYTES_##wide), each ? by[i] : all))); \
      return; \
    } \
    EACH(i, n) store_e4m3(dst + i, times(load_##wide(src + i * BYTES_##wide), each ? by[i] : all)); \
  } \
  ALWAYS_INLINE int64_t scale_lines_##wide(char *dst, const char *src, int64_t n, const float *by, int64_t ahead) { \
    int64_t i = 0; \
    for (; i + LINE_BYTES <= n; i += LINE_BYTES) { \
      _Alignas(LINE_BYTES) char line[LINE_BYTES]; \
      scale_block_##wide(line, src + i * BYTES_##wide, LINE_BYTES, by, false, ahead); \
      stream_line(dst + i, line); \
    } \
    return i; \
  } \
  static void scale_##wide(char *dst, const char *src, int64_t n, int64_t width, const float *by, const char *soon, \
                           bool past) { \
    const int64_t ahead = soon - src; \
    if (width == 1) { \
      scale_block_##wide(dst, src, n, by, true, ahead); \
      return; \
    } \
    const int64_t pairs = width == LINE_BYTES / 2 ? scale_pairs_##wide(dst, src, n, by, ahead) : 0; \
    n -= pairs, dst += pairs, src += pairs * BYTES_##wide, by += pairs / width; \
    EACH_BLOCK(BYTES_##wide, 1, by) { \
      const int64_t done = past ? scale_lines_##wide(dst, src, w, by, ahead) : 0; \
      if (done < w) \
        scale_block_##wide(dst + done, src + done * BYTES_##wide, w - done, by, false, ahead); \
    } \
  } \
  ALWAYS_INLINE void unscale_block_##wide(char *dst, const char *src, int64_t n, const float *by, bool each) { \
    const float all = *by; \
    if (are_finite(by, each ? n : 1, 1)) { \
      EACH_FROM(i, unscale_lanes_##wide(dst, src, n, by, each), n) \
      put_##wide(dst + i * BYTES_##wide, times(widen_number(get_u8(src + i)), each ? by[i] : all), \
                 get_u8(src + i) & 0x7f); \
      return; \
    } \
    EACH(i, n) store_##wide(dst + i * BYTES_##wide, one_nan_##wide(times(load_e4m3(src + i), each ? by[i] : all))); \
  } \
  static void unscale_##wide(char *dst, const char *src, int64_t n, int64_t width, const float *by) { \
    if (width == 1) \
      unscale_block_##wide(dst, src, n, by, true); \
    else \
      EACH_BLOCK(1, BYTES_##wide, by) unscale_block_##wide(dst, src, w, by, false); \
  }
SCALED(f16, 16)
SCALED(bf16, 16)
SCALED(f32, 32)
#if defined(HAVE_EXCHANGE)
LANES_EXCHANGE(f16)
LANES_EXCHANGE(bf16)
#define EXCHANGES \
  { AT(F16) = exchange_f16, AT(BF16) = exchange_bf16 }
#else
#define EXCHANGES \
  { NULL }
#endif
#undef SCALED
#undef MOST
#undef EACH_BLOCK

/* clang-format off */
CAST(e4m3, e5m2) CAST_BY(e4m3, f16, back_lanes_f16) CAST_BY(e4m3, bf16, back_lanes_bf16)
CAST_BY(e4m3, f32, back_lanes_f32) CAST(e4m3, f64)
CAST(e5m2, e4m3) CAST_BY(e5m2, f16, e5m2_lanes_f16) CAST_BY(e5m2, bf16, e5m2_lanes_bf16)
CAST_BY(e5m2, f32, e5m2_lanes_f32) CAST(e5m2, f64)
CAST_BY(f16, e4m3, cast_lanes_f16) CAST(f16, e5m2) CAST_BY(f16, bf16, f16_lanes_bf16)
CAST_BY(f16, f32, f16_lanes_f32) CAST(f16, f64)
CAST_BY(bf16, e4m3, cast_lanes_bf16) CAST(bf16, e5m2) CAST_BY(bf16, f16, bf16_lanes_f16) CAST(bf16, f32) CAST(bf16, f64)
CAST_BY(f32, e4m3, cast_lanes_f32) CAST(f32, e5m2) CAST_BY(f32, f16, f32_lanes_f16) CAST(f32, bf16) CAST(f32, f64)
CAST(odd, e4m3) CAST(odd, e5m2) CAST(odd, f16) CAST(odd, bf16) CAST(f64, f32)

#define AT(dtype) [RESHARD_##dtype - RESHARD_F8_E4M3]
#define TABLE(past) { \
  AT(F8_E4M3) = {AT(F8_E5M2) = e4m3_to_e5m2##past, AT(F16) = e4m3_to_f16##past, AT(BF16) = e4m3_to_bf16##past, \
                 AT(F32) = e4m3_to_f32##past, AT(F64) = e4m3_to_f64##past}, \
  AT(F8_E5M2) = {AT(F8_E4M3) = e5m2_to_e4m3##past, AT(F16) = e5m2_to_f16##past, AT(BF16) = e5m2_to_bf16##past, \
                 AT(F32) = e5m2_to_f32##past, AT(F64) = e5m2_to_f64##past}, \
  AT(F16) = {AT(F8_E4M3) = f16_to_e4m3##past, AT(F8_E5M2) = f16_to_e5m2##past, AT(BF16) = f16_to_bf16##past, \
             AT(F32) = f16_to_f32##past, AT(F64) = f16_to_f64##past}, \
  AT(BF16) = {AT(F8_E4M3) = bf16_to_e4m3##past, AT(F8_E5M2) = bf16_to_e5m2##past, AT(F16) = bf16_to_f16##past, \
              AT(F32) = bf16_to_f32##past, AT(F64) = bf16_to_f64##past}, \
  AT(F32) = {AT(F8_E4M3) = f32_to_e4m3##past, AT(F8_E5M2) = f32_to_e5m2##past, AT(F16) = f32_to_f16##past, \
             AT(BF16) = f32_to_bf16##past, AT(F64) = f32_to_f64##past}, \
  AT(F64) = {AT(F8_E4M3) = odd_to_e4m3##past, AT(F8_E5M2) = odd_to_e5m2##past, AT(F16) = odd_to_f16##past, \
             AT(BF16) = odd_to_bf16##past, AT(F32) = f64_to_f32##past}}
#define BLOCKS(field) {AT(F16) = field##_f16, AT(BF16) = field##_bf16, AT(F32) = field##_f32}
static const rs_cast_kernels kernels = {
  .of = TABLE(), .past = TABLE(_past), .most = BLOCKS(most), .scale = BLOCKS(scale), .exchange = EXCHANGES,
  .unscale = BLOCKS(unscale)};
#undef TABLE
/* clang-format on */
