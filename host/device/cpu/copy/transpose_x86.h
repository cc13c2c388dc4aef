/* Transposes of small squares in registers: each stage interleaves pairs of rows of elements twice as wide.
 *
 * Every function reads SIDE rows of SIDE elements, `stride` bytes apart, and writes the columns, `pitch` bytes apart.
 */
#include <stdint.h>

#define LOAD_128(p)     _mm_loadu_si128((const __m128i *)(p))
#define STORE_128(p, v) _mm_storeu_si128((__m128i *)(p), (v))

/* Of kernels_body.h, alike in all sets. */
#define vstream_16(p, v) _mm_stream_si128((__m128i *)(p), (__m128i)(v))
#define STREAM_FENCE()   _mm_sfence()

/* 8 x 8 bytes; rows are half vectors. */
static inline void transpose_square_1(char *dst, const char *src, int64_t pitch, int64_t stride) {
  __m128i r[8], a[4], b[4];
  for (int i = 0; i < 8; i++)
    r[i] = _mm_loadl_epi64((const __m128i *)(src + i * stride));
  for (int i = 0; i < 4; i++)
    a[i] = _mm_unpacklo_epi8(r[2 * i], r[2 * i + 1]);
  for (int i = 0; i < 2; i++) {
    b[2 * i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    __m128i low = _mm_unpacklo_epi32(b[i], b[i + 2]), high = _mm_unpackhi_epi32(b[i], b[i + 2]);
    char *d = dst + 4 * i * pitch;
    _mm_storel_epi64((__m128i *)d, low);
    _mm_storel_epi64((__m128i *)(d + pitch), _mm_unpackhi_epi64(low, low));
    _mm_storel_epi64((__m128i *)(d + 2 * pitch), high);
    _mm_storel_epi64((__m128i *)(d + 3 * pitch), _mm_unpackhi_epi64(high, high));
  }
}
#define SIDE_1  8
#define MICRO_1 transpose_square_1

/* 8 x 8 elements of 2 bytes. */
static inline void transpose_square_2(char *dst, const char *src, int64_t pitch, int64_t stride) {
  __m128i r[8], a[8], b[8];
  for (int i = 0; i < 8; i++)
    r[i] = LOAD_128(src + i * stride);
  for (int i = 0; i < 4; i++) {
    a[i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    a[i + 4] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; i++) {
    b[i] = _mm_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
    b[i + 4] = _mm_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
  }
  /* b[0], b[1]: columns 0 and 1 of rows 0-3 and 4-7; b[4], b[5]: columns 2, 3; b[2], b[3]: 4, 5; b[6], b[7]: 6, 7. */
  static const int from[4] = {0, 4, 2, 6};
  for (int i = 0; i < 4; i++) {
    STORE_128(dst + 2 * i * pitch, _mm_unpacklo_epi64(b[from[i]], b[from[i] + 1]));
    STORE_128(dst + (2 * i + 1) * pitch, _mm_unpackhi_epi64(b[from[i]], b[from[i] + 1]));
  }
}
#define SIDE_2  8
#define MICRO_2 transpose_square_2

#if defined(__AVX512F__)
/* Here a square is a cell: its columns are whole lines and may go past the cache straight from the registers. */
static inline __attribute__((always_inline)) void store_512(char *dst, __m512i v, bool past) {
  if (past)
    _mm512_stream_si512((__m512i *)dst, v);
  else
    _mm512_storeu_si512(dst, v);
}

/* 16 x 16 words: interleave within lanes twice, then transpose the 4 x 4 lanes. */
static inline __attribute__((always_inline)) void cell_4(char *dst, const char *src, int64_t pitch, int64_t stride,
                                                         bool past) {
  __m512i r[16], t[16];
  for (int i = 0; i < 16; i++)
    r[i] = _mm512_loadu_si512(src + i * stride);
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; i++) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  /* r[4 g + c] has in lane l column 4 l + c of rows 4 g ... 4 g + 3. */
  for (int c = 0; c < 4; c++) {
    __m512i low01 = _mm512_shuffle_i32x4(r[c], r[c + 4], 0x44), high01 = _mm512_shuffle_i32x4(r[c], r[c + 4], 0xee);
    __m512i low23 = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0x44);
    __m512i high23 = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0xee);
    store_512(dst + c * pitch, _mm512_shuffle_i32x4(low01, low23, 0x88), past);
    store_512(dst + (c + 4) * pitch, _mm512_shuffle_i32x4(low01, low23, 0xdd), past);
    store_512(dst + (c + 8) * pitch, _mm512_shuffle_i32x4(high01, high23, 0x88), past);
    store_512(dst + (c + 12) * pitch, _mm512_shuffle_i32x4(high01, high23, 0xdd), past);
  }
}
static inline void transpose_square_4(char *dst, const char *src, int64_t pitch, int64_t stride) {
  cell_4(dst, src, pitch, stride, false);
}
#define SIDE_4 16
#define CELL_4 cell_4

/* 8 x 8 elements of 8 bytes: interleave within lanes, then transpose the 4 x 4 lanes of pairs. */
static inline __attribute__((always_inline)) void cell_8(char *dst, const char *src, int64_t pitch, int64_t stride,
                                                         bool past) {
  __m512i r[8], t[8];
  for (int i = 0; i < 8; i++)
    r[i] = _mm512_loadu_si512(src + i * stride);
  for (int i = 0; i < 4; i++) {
    t[2 * i] = _mm512_unpacklo_epi64(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi64(r[2 * i], r[2 * i + 1]);
  }
  /* t[2 g + c] has in lane l column 2 l + c of rows 2 g and 2 g + 1. */
  for (int c = 0; c < 2; c++) {
    __m512i low01 = _mm512_shuffle_i64x2(t[c], t[c + 2], 0x44), high01 = _mm512_shuffle_i64x2(t[c], t[c + 2], 0xee);
    __m512i low23 = _mm512_shuffle_i64x2(t[c + 4], t[c + 6], 0x44);
    __m512i high23 = _mm512_shuffle_i64x2(t[c + 4], t[c + 6], 0xee);
    store_512(dst + c * pitch, _mm512_shuffle_i64x2(low01, low23, 0x88), past);
    store_512(dst + (c + 2) * pitch, _mm512_shuffle_i64x2(low01, low23, 0xdd), past);
    store_512(dst + (c + 4) * pitch, _mm512_shuffle_i64x2(high01, high23, 0x88), past);
    store_512(dst + (c + 6) * pitch, _mm512_shuffle_i64x2(high01, high23, 0xdd), past);
  }
}
static inline void transpose_square_8(char *dst, const char *src, int64_t pitch, int64_t stride) {
  cell_8(dst, src, pitch, stride, false);
}
#define SIDE_8 8
#define CELL_8 cell_8
#elif defined(__AVX2__)
/* 8 x 8 words: interleave within lanes twice, then swap the lanes. */
static inline void transpose_square_4(char *dst, const char *src, int64_t pitch, int64_t stride) {
  __m256i r[8], t[8];
  for (int i = 0; i < 8; i++)
    r[i] = _mm256_loadu_si256((const __m256i *)(src + i * stride));
  for (int i = 0; i < 4; i++) {
    t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    r[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int c = 0; c < 4; c++) {
    _mm256_storeu_si256((__m256i *)(dst + c * pitch), _mm256_permute2x128_si256(r[c], r[c + 4], 0x20));
    _mm256_storeu_si256((__m256i *)(dst + (c + 4) * pitch), _mm256_permute2x128_si256(r[c], r[c + 4], 0x31));
  }
}
#define SIDE_4 8
#else
/* 4 x 4 words. */
static inline void transpose_square_4(char *dst, const char *src, int64_t pitch, int64_t stride) {
  __m128i a = LOAD_128(src), b = LOAD_128(src + stride), c = LOAD_128(src + 2 * stride), d = LOAD_128(src + 3 * stride);
  __m128i ab0 = _mm_unpacklo_epi32(a, b), ab2 = _mm_unpackhi_epi32(a, b);
  __m128i cd0 = _mm_unpacklo_epi32(c, d), cd2 = _mm_unpackhi_epi32(c, d);
  STORE_128(dst, _mm_unpacklo_epi64(ab0, cd0));
  STORE_128(dst + pitch, _mm_unpackhi_epi64(ab0, cd0));
  STORE_128(dst + 2 * pitch, _mm_unpacklo_epi64(ab2, cd2));
  STORE_128(dst + 3 * pitch, _mm_unpackhi_epi64(ab2, cd2));
}
#define SIDE_4 4
#endif
#define MICRO_4 transpose_square_4

#if defined(__AVX512F__)
/* above */
#elif defined(__AVX2__)
/* 4 x 4 elements of 8 bytes. */
static inline void transpose_square_8(char *dst, const char *src, int64_t pitch, int64_t stride) {
  __m256i r[4], t[4];
  for (int i = 0; i < 4; i++)
    r[i] = _mm256_loadu_si256((const __m256i *)(src + i * stride));
  for (int i = 0; i < 2; i++) {
    t[2 * i] = _mm256_unpacklo_epi64(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_epi64(r[2 * i], r[2 * i + 1]);
  }
  for (int c = 0; c < 2; c++) {
    _mm256_storeu_si256((__m256i *)(dst + c * pitch), _mm256_permute2x128_si256(t[c], t[c + 2], 0x20));
    _mm256_storeu_si256((__m256i *)(dst + (c + 2) * pitch), _mm256_permute2x128_si256(t[c], t[c + 2], 0x31));
  }
}
#define SIDE_8 4
#else
/* 2 x 2 elements of 8 bytes. */
static inline void transpose_square_8(char *dst, const char *src, int64_t pitch, int64_t stride) {
  __m128i a = LOAD_128(src), b = LOAD_128(src + stride);
  STORE_128(dst, _mm_unpacklo_epi64(a, b));
  STORE_128(dst + pitch, _mm_unpackhi_epi64(a, b));
}
#define SIDE_8 2
#endif
#define MICRO_8 transpose_square_8
