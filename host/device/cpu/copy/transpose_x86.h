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

/* 16 x 16 bytes. Each step interleaves the rows of the upper half with those of the lower one: one bit of the row
 * number becomes one of the column's. */
static inline void transpose_square_1(char *dst, const char *src, int64_t pitch, int64_t stride) {
  __m128i r[16], t[16];
  for (int i = 0; i < 16; i++)
    r[i] = LOAD_128(src + i * stride);
  for (int step = 0; step < 4; step++) {
    for (int i = 0; i < 8; i++) {
      t[2 * i] = _mm_unpacklo_epi8(r[i], r[i + 8]);
      t[2 * i + 1] = _mm_unpackhi_epi8(r[i], r[i + 8]);
    }
    for (int i = 0; i < 16; i++)
      r[i] = t[i];
  }
  for (int i = 0; i < 16; i++)
    STORE_128(dst + i * pitch, r[i]);
}
#define SIDE_1  16
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
/* Here a square is a cell: its columns are whole lines and may go past the cache straight from the registers. Four
 * groups of rows, as many as 16 bytes have elements, are transposed within each lane: by interleaving, as above. A lane
 * has a column of its group then, and four groups make a line of each. */
static inline __attribute__((always_inline)) void store_512(char *dst, __m512i v, bool past) {
  if (past)
    _mm512_stream_si512((__m512i *)dst, v);
  else
    _mm512_storeu_si512(dst, v);
}

/* Stores the lanes of four groups as four columns, `apart` bytes from one to the next. */
static inline __attribute__((always_inline)) void store_columns(char *dst, const __m512i *group, int n, int64_t apart,
                                                                bool past) {
  __m512i low01 = _mm512_shuffle_i32x4(group[0], group[n], 0x44);
  __m512i high01 = _mm512_shuffle_i32x4(group[0], group[n], 0xee);
  __m512i low23 = _mm512_shuffle_i32x4(group[2 * n], group[3 * n], 0x44);
  __m512i high23 = _mm512_shuffle_i32x4(group[2 * n], group[3 * n], 0xee);
  store_512(dst, _mm512_shuffle_i32x4(low01, low23, 0x88), past);
  store_512(dst + apart, _mm512_shuffle_i32x4(low01, low23, 0xdd), past);
  store_512(dst + 2 * apart, _mm512_shuffle_i32x4(high01, high23, 0x88), past);
  store_512(dst + 3 * apart, _mm512_shuffle_i32x4(high01, high23, 0xdd), past);
}

#define DEFINE_CELL(width, bits) \
  static inline __attribute__((always_inline)) void cell_##width(char *dst, const char *src, int64_t pitch, \
                                                                 int64_t stride, bool past) { \
    enum { N = 16 / width }; \
    __m512i group[4 * N]; \
    for (int g = 0; g < 4; g++) { \
      __m512i *r = group + g * N, t[N]; \
      for (int i = 0; i < N; i++) \
        r[i] = _mm512_loadu_si512(src + (g * N + i) * stride); \
      for (int step = 1; step < N; step *= 2) { \
        for (int i = 0; i < N / 2; i++) { \
          t[2 * i] = _mm512_unpacklo_epi##bits(r[i], r[i + N / 2]); \
          t[2 * i + 1] = _mm512_unpackhi_epi##bits(r[i], r[i + N / 2]); \
        } \
        for (int i = 0; i < N; i++) \
          r[i] = t[i]; \
      } \
    } \
    for (int i = 0; i < N; i++) \
      store_columns(dst + i * pitch, group + i, N, N * pitch, past); \
  }
DEFINE_CELL(1, 8)
DEFINE_CELL(2, 16)
DEFINE_CELL(4, 32)
DEFINE_CELL(8, 64)
#define CELL_1 cell_1
#define CELL_2 cell_2
#define CELL_4 cell_4
#define CELL_8 cell_8

static inline void transpose_square_4(char *dst, const char *src, int64_t pitch, int64_t stride) {
  cell_4(dst, src, pitch, stride, false);
}
#define SIDE_4 16
static inline void transpose_square_8(char *dst, const char *src, int64_t pitch, int64_t stride) {
  cell_8(dst, src, pitch, stride, false);
}
#define SIDE_8 8
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
