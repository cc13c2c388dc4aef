/* The copy kernels, written once over a vector type and compiled once per instruction set.
 *
 * The including file defines
 *   VB                bytes of a vector, 8 ... 64
 *   vec, vload(p), vstore(p, v)   a vector, loaded and stored at any address
 *   vstream(p, v)     stored past the cache at an address aligned to VB (or plainly, where the set cannot)
 *   vstream_16(p, v)  the same of 16 bytes of any type, at an address aligned to 16
 *   STREAM_FENCE()    orders such stores before later ones
 *   MICRO_1 ... MICRO_8 and SIDE_1 ... SIDE_8   optional: transposes of SIDE x SIDE elements of that width in registers
 *   CELL_4, CELL_8    optional: transposes of whole lines that can store past the cache
 * Everything is static and no header's inline function is used but those of copy_kernels.h, which do not depend on the
 * set: code for a newer machine must not end up in a symbol that others share.
 *
 * A run of n bytes between two powers of two is two moves that overlap in the middle, so no width needs a loop over bytes. */
#include "device/copy_kernels.h"

#define MOVE(dst, src, size) __builtin_memcpy((dst), (src), (size))
#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { LINE = 64 };

/* 16 ... 128 bytes by whole vectors of at most 16, 32, ... bytes. */
ALWAYS_INLINE void move_16(char *dst, const char *src) { MOVE(dst, src, 16); }
ALWAYS_INLINE void move_32(char *dst, const char *src) {
#if VB >= 32 && defined(__AVX2__)
  _mm256_storeu_si256((__m256i *)dst, _mm256_loadu_si256((const __m256i *)src));
#else
  move_16(dst, src);
  move_16(dst + 16, src + 16);
#endif
}
ALWAYS_INLINE void move_64(char *dst, const char *src) {
  for (int i = 0; i < 64; i += VB)
    vstore(dst + i, vload(src + i));
}

/* One line past the cache; dst is aligned to a line. */
ALWAYS_INLINE void stream_line(char *dst, const char *src) {
  for (int i = 0; i < LINE; i += VB)
    vstream(dst + i, vload(src + i));
}

enum {
  AHEAD = 2048, /* bytes between a store past the cache and what is asked for ahead of it */
  FAR = 2048,   /* a step that hardware does not foresee */
};

ALWAYS_INLINE int64_t to_line(const char *dst, int64_t bytes) {
  int64_t head = (int64_t)(-(uintptr_t)dst & (LINE - 1));
  return head < bytes ? head : bytes;
}

static void stream(char *dst, const char *src, int64_t bytes) {
  int64_t at = to_line(dst, bytes);
  if (at > 0)
    MOVE(dst, src, (size_t)at);
  for (; at + 4 * LINE <= bytes; at += 4 * LINE)
    for (int i = 0; i < 4; i++)
      stream_line(dst + at + i * LINE, src + at + i * LINE);
  for (; at + LINE <= bytes; at += LINE)
    stream_line(dst + at, src + at);
  if (at < bytes)
    MOVE(dst + at, src + at, (size_t)(bytes - at));
}

/* A long run. Hardware does not look beyond a page, and does not know where the next run begins. */
ALWAYS_INLINE void stream_ahead(char *dst, const char *src, int64_t bytes, const char *next) {
  int64_t at = to_line(dst, bytes);
  if (at > 0)
    MOVE(dst, src, (size_t)at);
  for (; at + LINE <= bytes - AHEAD; at += LINE) {
    __builtin_prefetch(src + at + AHEAD, 0, 3);
    stream_line(dst + at, src + at);
  }
  for (; at + LINE <= bytes; at += LINE) {
    __builtin_prefetch(next, 0, 3);
    next += LINE;
    stream_line(dst + at, src + at);
  }
  if (at < bytes)
    MOVE(dst + at, src + at, (size_t)(bytes - at));
}

static void stream_fan(rs_strand *strands, int m, int64_t n) {
  uint64_t bits = 0;
  int64_t step_bytes = 0, longest = 0;
  for (int j = 0; j < m; j++) {
    bits |= (uint64_t)(uintptr_t)strands[j].dst | (uint64_t)(strands[j].run | strands[j].dst_step);
    longest = strands[j].run > longest ? strands[j].run : longest;
    step_bytes += strands[j].run;
  }
  const bool lines = bits % LINE == 0 && longest < 1024;
  const int64_t steps_ahead = AHEAD / step_bytes + 1;
  for (int64_t k = 0; k < n; k++)
    for (int j = 0; j < m; j++) {
      rs_strand *strand = &strands[j];
      char *d = strand->dst;
      const char *s = strand->src;
      const int64_t run = strand->run;
      strand->dst += strand->dst_step;
      strand->src += strand->src_step;
      if (lines && strand->src_step > -FAR && strand->src_step < FAR)
        for (int64_t at = 0; at < run; at += LINE)
          stream_line(d + at, s + at);
      else if (lines)
        for (int64_t at = 0; at < run; at += LINE) {
          __builtin_prefetch(s + at + steps_ahead * strand->src_step, 0, 3);
          stream_line(d + at, s + at);
        }
      else if (run < 1024)
        stream(d, s, run);
      else
        stream_ahead(d, s, run, strands[j + 1 < m ? j + 1 : 0].src);
    }
}

/* Two loops around a move of `w->run` bytes. */
#define RUNS(name, move)                                                        \
  static void name(char *dst, const char *src, const rs_walk *w) {              \
    const int64_t run = w->run, n0 = w->n0, src0 = w->src0, dst0 = w->dst0;     \
    (void)run;                                                                  \
    for (int64_t i1 = 0; i1 < w->n1; i1++) {                                    \
      char *d = dst + i1 * w->dst1;                                             \
      const char *s = src + i1 * w->src1;                                       \
      _Pragma("GCC unroll 4") for (int64_t i0 = 0; i0 < n0; i0++) {             \
        move;                                                                   \
        d += dst0;                                                              \
        s += src0;                                                              \
      }                                                                         \
    }                                                                           \
  }
#define OVERLAP(part, size) (part(d, s), part(d + run - (size), s + run - (size)))
#define PART_2(d, s) MOVE(d, s, 2)
#define PART_4(d, s) MOVE(d, s, 4)
#define PART_8(d, s) MOVE(d, s, 8)

RUNS(runs_2, PART_2(d, s))
RUNS(runs_3, (PART_2(d, s), MOVE(d + 2, s + 2, 1)))
RUNS(runs_to_7, OVERLAP(PART_4, 4))
RUNS(runs_8, PART_8(d, s))
RUNS(runs_to_15, OVERLAP(PART_8, 8))
RUNS(runs_16, move_16(d, s))
RUNS(runs_to_31, OVERLAP(move_16, 16))
RUNS(runs_32, move_32(d, s))
RUNS(runs_to_63, OVERLAP(move_32, 32))
RUNS(runs_64, move_64(d, s))
RUNS(runs_to_128, OVERLAP(move_64, 64))
RUNS(runs_long, MOVE(d, s, (size_t)run))
RUNS(runs_1_any, *d = *s)
RUNS(runs_4_any, PART_4(d, s))

/* Gathers of single bytes and words put a vector together before they store. */
static void runs_1(char *dst, const char *src, const rs_walk *w) {
  if (w->dst0 != 1) {
    runs_1_any(dst, src, w);
    return;
  }
  const int64_t step = w->src0;
  for (int64_t i1 = 0; i1 < w->n1; i1++) {
    char *d = dst + i1 * w->dst1;
    const unsigned char *s = (const unsigned char *)src + i1 * w->src1;
    int64_t i0 = 0;
    for (; i0 + 8 <= w->n0; i0 += 8, s += 8 * step, d += 8) {
      char part[8] = {(char)s[0],        (char)s[step],     (char)s[2 * step], (char)s[3 * step],
                      (char)s[4 * step], (char)s[5 * step], (char)s[6 * step], (char)s[7 * step]};
      MOVE(d, part, 8);
    }
    for (; i0 < w->n0; i0++, s += step)
      *d++ = (char)*s;
  }
}

typedef uint32_t words_4 __attribute__((vector_size(16)));
ALWAYS_INLINE uint32_t word(const char *src) {
  uint32_t value;
  MOVE(&value, src, 4);
  return value;
}
static void runs_4(char *dst, const char *src, const rs_walk *w) {
  if (w->dst0 != 4) {
    runs_4_any(dst, src, w);
    return;
  }
  const int64_t step = w->src0;
  for (int64_t i1 = 0; i1 < w->n1; i1++) {
    char *d = dst + i1 * w->dst1;
    const char *s = src + i1 * w->src1;
    int64_t i0 = 0;
    for (; i0 + 4 <= w->n0; i0 += 4, s += 4 * step, d += 16) {
      words_4 four = {word(s), word(s + step), word(s + 2 * step), word(s + 3 * step)};
      MOVE(d, &four, 16);
    }
    for (; i0 < w->n0; i0++, s += step, d += 4)
      MOVE(d, s, 4);
  }
}

/* Transposes. Squares of SIDE x SIDE elements are turned in registers, or one by one where the set has no such kernel. A
 * cell is as many squares as have whole lines on both sides: it is put together in a small buffer and stored line by
 * line, so that neither side's stride can make lines push each other out of the cache before they are used up. */
#ifndef SIDE_1
#define SIDE_1 1
#define MICRO_1(dst, src, pitch, stride) MOVE(dst, src, 1)
#endif
#ifndef SIDE_2
#define SIDE_2 1
#define MICRO_2(dst, src, pitch, stride) MOVE(dst, src, 2)
#endif
#ifndef SIDE_4
#define SIDE_4 1
#define MICRO_4(dst, src, pitch, stride) MOVE(dst, src, 4)
#endif
#ifndef SIDE_8
#define SIDE_8 1
#define MICRO_8(dst, src, pitch, stride) MOVE(dst, src, 8)
#endif
#define SIDE_16 1
#define MICRO_16(dst, src, pitch, stride) MOVE(dst, src, 16)

#define BUFFERED_CELL(width)                                                                                 \
  ALWAYS_INLINE void turn_cell_##width(char *dst, const char *src, int64_t pitch, int64_t stride, bool lines) { \
    _Alignas(LINE) char cell[LINE / width * LINE];                                                           \
    for (int j = 0; j < LINE / width; j += SIDE_##width)                                                     \
      for (int i = 0; i < LINE / width; i += SIDE_##width)                                                   \
        MICRO_##width(cell + i * LINE + j * width, src + i * width + j * stride, LINE, stride);              \
    if (lines)                                                                                               \
      for (int i = 0; i < LINE / width; i++)                                                                 \
        stream_line(dst + i * pitch, cell + i * LINE);                                                       \
    else                                                                                                     \
      for (int i = 0; i < LINE / width; i++)                                                                 \
        move_64(dst + i * pitch, cell + i * LINE);                                                           \
  }
#ifndef CELL_4
BUFFERED_CELL(4)
#define CELL_4 turn_cell_4
#endif
#ifndef CELL_8
BUFFERED_CELL(8)
#define CELL_8 turn_cell_8
#endif
BUFFERED_CELL(1)
BUFFERED_CELL(2)
BUFFERED_CELL(16)
#define CELL_1 turn_cell_1
#define CELL_2 turn_cell_2
#define CELL_16 turn_cell_16

#define TRANSPOSE(width)                                                                                     \
  static void turn_edge_##width(char *dst, const char *src, int64_t ni, int64_t nj, int64_t pitch,           \
                                int64_t stride) {                                                            \
    const int64_t wi = ni - ni % SIDE_##width, wj = nj - nj % SIDE_##width;                                  \
    for (int64_t j = 0; j < wj; j += SIDE_##width)                                                           \
      for (int64_t i = 0; i < wi; i += SIDE_##width)                                                         \
        MICRO_##width(dst + i * pitch + j * width, src + i * width + j * stride, pitch, stride);             \
    for (int64_t i = 0; i < ni; i++)                                                                         \
      for (int64_t j = i < wi ? wj : 0; j < nj; j++)                                                         \
        MOVE(dst + i * pitch + j * width, src + i * width + j * stride, width);                              \
  }                                                                                                          \
  static void transpose_##width(char *dst, const char *src, int64_t ni, int64_t nj, int64_t pitch,           \
                                int64_t stride, bool streaming) {                                            \
    const int64_t side = LINE / width;                                                                       \
    int64_t head = 0;                                                                                        \
    bool lines = streaming && pitch % LINE == 0 && (uintptr_t)dst % width == 0;                              \
    if (lines)                                                                                               \
      head = to_line(dst, nj * width) / width;                                                               \
    const int64_t wi = ni - ni % side, wj = nj - (nj - head) % side;                                         \
    for (int64_t i = 0; i < wi; i += side)                                                                   \
      for (int64_t j = head; j < wj; j += side)                                                              \
        CELL_##width(dst + i * pitch + j * width, src + i * width + j * stride, pitch, stride, lines);       \
    turn_edge_##width(dst, src, wi, head, pitch, stride);                                                    \
    turn_edge_##width(dst + wj * width, src + wj * stride, wi, nj - wj, pitch, stride);                      \
    turn_edge_##width(dst + wi * pitch, src + wi * width, ni - wi, nj, pitch, stride);                       \
  }
TRANSPOSE(1)
TRANSPOSE(2)
TRANSPOSE(4)
TRANSPOSE(8)
TRANSPOSE(16)

/* Narrow runs of each strand, gathered into lines: vectors of 16 bytes are put together from single loads. */
typedef uint8_t bytes_16 __attribute__((vector_size(16)));
typedef uint16_t halves_8 __attribute__((vector_size(16)));
typedef uint64_t longs_2 __attribute__((vector_size(16)));
#define PIECE(type, k) piece_##type(src + (k) * step)
#define DEFINE_PIECE(type)                                                                                   \
  ALWAYS_INLINE type##_t piece_##type(const char *src) {                                                     \
    type##_t value;                                                                                          \
    MOVE(&value, src, sizeof value);                                                                         \
    return value;                                                                                            \
  }
DEFINE_PIECE(uint8)
DEFINE_PIECE(uint16)
DEFINE_PIECE(uint32)
DEFINE_PIECE(uint64)
#define FOUR(type, k) PIECE(type, k), PIECE(type, (k) + 1), PIECE(type, (k) + 2), PIECE(type, (k) + 3)
ALWAYS_INLINE bytes_16 gather_1(const char *src, int64_t step) {
  return (bytes_16){FOUR(uint8, 0), FOUR(uint8, 4), FOUR(uint8, 8), FOUR(uint8, 12)};
}
ALWAYS_INLINE halves_8 gather_2(const char *src, int64_t step) {
  return (halves_8){FOUR(uint16, 0), FOUR(uint16, 4)};
}
ALWAYS_INLINE words_4 gather_4(const char *src, int64_t step) { return (words_4){FOUR(uint32, 0)}; }
ALWAYS_INLINE longs_2 gather_8(const char *src, int64_t step) { return (longs_2){PIECE(uint64, 0), PIECE(uint64, 1)}; }
ALWAYS_INLINE bytes_16 gather_16(const char *src, int64_t step) {
  bytes_16 value;
  (void)step;
  MOVE(&value, src, 16);
  return value;
}

/* A line of each strand in turn, once all have reached the beginning of one; what is before and behind by plain moves. */
#define GATHER(width)                                                                                        \
  static void stream_gather_##width(rs_strand *strands, int m, int64_t n) {                                  \
    int64_t left[RS_STRANDS], lines = INT64_MAX;                                                             \
    for (int j = 0; j < m; j++) {                                                                            \
      rs_strand *s = &strands[j];                                                                            \
      int64_t head = to_line(s->dst, n * width) / width;                                                     \
      for (int64_t k = 0; k < head; k++, s->dst += width, s->src += s->src_step)                             \
        MOVE(s->dst, s->src, width);                                                                         \
      left[j] = n - head;                                                                                    \
      lines = left[j] / (LINE / width) < lines ? left[j] / (LINE / width) : lines;                           \
    }                                                                                                        \
    for (int64_t k = 0; k < lines; k++)                                                                      \
      for (int j = 0; j < m; j++) {                                                                          \
        rs_strand *s = &strands[j];                                                                          \
        const int64_t step = s->src_step;                                                                    \
        const char *src = s->src;                                                                            \
        for (int i = 0; i < 4; i++, src += step * (16 / width))                                              \
          vstream_16(s->dst + 16 * i, gather_##width(src, step));                                            \
        s->src = src;                                                                                        \
        s->dst += LINE;                                                                                      \
      }                                                                                                      \
    for (int j = 0; j < m; j++) {                                                                            \
      rs_strand *s = &strands[j];                                                                            \
      for (int64_t k = lines * (LINE / width); k < left[j]; k++, s->dst += width, s->src += s->src_step)     \
        MOVE(s->dst, s->src, width);                                                                         \
    }                                                                                                        \
  }
GATHER(1)
GATHER(2)
GATHER(4)
GATHER(8)
GATHER(16)

static void stream_gather(rs_strand *strands, int m, int64_t n) {
  switch (m > 0 ? strands->run : 0) {
  case 1: stream_gather_1(strands, m, n); break;
  case 2: stream_gather_2(strands, m, n); break;
  case 4: stream_gather_4(strands, m, n); break;
  case 8: stream_gather_8(strands, m, n); break;
  case 16: stream_gather_16(strands, m, n); break;
  }
}

static void flush(rs_carry *carry) {
  int64_t at = 0;
  if (carry->lo > 0 && carry->fill >= LINE) {
    MOVE(carry->dst + carry->lo, carry->bytes + carry->lo, (size_t)(LINE - carry->lo));
    carry->lo = 0;
    at = LINE;
  }
  for (; at + LINE <= carry->fill; at += LINE)
    stream_line(carry->dst + at, carry->bytes + at);
  if (at == 0)
    return;
  move_64(carry->bytes, carry->bytes + at);
  carry->dst += at;
  carry->fill -= at;
}

/* Appends to a carry of one line: its line is filled up, whole lines are stored straight from src, the rest is kept. */
ALWAYS_INLINE void append(rs_carry *carry, const char *src, int64_t bytes) {
  if (carry->fill > 0) {
    int64_t part = LINE - carry->fill < bytes ? LINE - carry->fill : bytes;
    MOVE(carry->bytes + carry->fill, src, (size_t)part);
    carry->fill += part;
    src += part;
    bytes -= part;
    if (carry->fill < LINE)
      return;
    if (carry->lo > 0)
      MOVE(carry->dst + carry->lo, carry->bytes + carry->lo, (size_t)(LINE - carry->lo));
    else
      stream_line(carry->dst, carry->bytes);
    carry->lo = carry->fill = 0;
    carry->dst += LINE;
  }
  char *dst = carry->dst;
  for (; bytes >= LINE; bytes -= LINE, src += LINE, dst += LINE)
    stream_line(dst, src);
  carry->dst = dst;
  MOVE(carry->bytes, src, (size_t)bytes);
  carry->fill = bytes;
}

static void stream_carry(rs_strand *strands, int m, int64_t n) {
  for (int64_t k = 0; k < n; k++)
    for (int j = 0; j < m; j++) {
      append(strands[j].carry, strands[j].src, strands[j].run);
      strands[j].src += strands[j].src_step;
    }
}

static void fence(void) { STREAM_FENCE(); }

#define KERNELS(set)                                                                                         \
  {                                                                                                          \
    .isa = set, .stream = stream,                                                                            \
    .runs = {runs_1, runs_2, runs_3, runs_4, runs_to_7, runs_8, runs_to_15, runs_16, runs_to_31, runs_32,    \
             runs_to_63, runs_64, runs_to_128, runs_long},                                                   \
    .stream_fan = stream_fan, .stream_gather = stream_gather,                                \
    .stream_carry = stream_carry, .flush = flush, .transpose = {transpose_1, transpose_2, transpose_4, transpose_8, transpose_16}, \
    .fence = fence,                                                                                          \
  }
