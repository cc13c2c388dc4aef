/* The copy kernels, written once over a vector type and compiled once per instruction set.
 *
 * The including file defines
 *   VB                bytes of a vector, 8 ... 64
 *   vec, vload(p), vstore(p, v)   a vector, loaded and stored at any address
 *   vstream(p, v)     stored past the cache at an address aligned to VB; a set that cannot defines none of these three
 *   vstream_16(p, v)  the same of 16 bytes of any type, at an address aligned to 16
 *   STREAM_FENCE()    orders such stores before later ones
 *   MICRO_1 ... MICRO_8 and SIDE_1 ... SIDE_8   optional: transposes of SIDE x SIDE elements of that width in registers
 *   CELL_4, CELL_8    optional: transposes of whole lines that can store past the cache
 * Everything is static and no header's inline function is used but those of kernels.h, which do not depend on the
 * set: code for a newer machine must not end up in a symbol that others share.
 *
 * A run of n bytes between two powers of two is two moves that overlap in the middle. So no width needs a loop over
 * bytes. */
#include "device/cpu/copy/kernels.h"

#define MOVE(dst, src, size) __builtin_memcpy((dst), (src), (size))
#define ALWAYS_INLINE        static inline __attribute__((always_inline))

#ifndef STREAM_FENCE
#define vstream vstore
#define vstream_16(p, v) \
  do { \
    __typeof__(v) v_ = (v); \
    MOVE((p), &v_, 16); \
  } while (0)
#define STREAM_FENCE() ((void)0)
#endif

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
  AHEAD = 2048,    /* bytes between a store past the cache and what is asked for ahead of it */
  FAR = 2048,      /* a step that hardware does not foresee */
  LONG = 1024,     /* a run that is worth foreseeing by itself */
  FAR_RUNS = 8,    /* long runs of one copy that are done at once */
  FAR_BLOCK = 128, /* bytes of each in turn */
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

/* Long runs of one copy that are far from each other in the source. Hardware needs some lines of each page before it
 * foresees the rest, so some runs are copied at once, a block of each in turn. */
static void stream_far_runs(rs_cursor *cursor, int64_t n) {
  const int64_t run = cursor->run, src_step = cursor->src_step;
  for (; n >= FAR_RUNS; n -= FAR_RUNS) {
    char *d[FAR_RUNS];
    const char *s[FAR_RUNS];
    int64_t head[FAR_RUNS], most = 0;
    for (int j = 0; j < FAR_RUNS; j++, cursor->dst += cursor->dst_step, cursor->src += src_step) {
      head[j] = to_line(cursor->dst, run);
      most = head[j] > most ? head[j] : most;
      MOVE(cursor->dst, cursor->src, (size_t)head[j]);
      d[j] = cursor->dst + head[j];
      s[j] = cursor->src + head[j];
    }
    const int64_t whole = (run - most) / FAR_BLOCK * FAR_BLOCK;
    for (int64_t at = 0; at < whole; at += FAR_BLOCK) {
      int64_t ahead = at + AHEAD < whole ? at + AHEAD : at + AHEAD - whole + FAR_RUNS * src_step;
      for (int j = 0; j < FAR_RUNS; j++)
        for (int64_t i = 0; i < FAR_BLOCK; i += LINE) {
          __builtin_prefetch(s[j] + ahead + i, 0, 2); /* the first-level cache has no room for that many */
          stream_line(d[j] + at + i, s[j] + at + i);
        }
    }
    for (int j = 0; j < FAR_RUNS; j++)
      stream(d[j] + whole, s[j] + whole, run - head[j] - whole);
  }
  for (; n > 0; n--, cursor->dst += cursor->dst_step, cursor->src += src_step)
    stream_ahead(cursor->dst, cursor->src, run, cursor->src + src_step);
}

static void stream_runs(rs_cursor *cursors, int m, int64_t n) {
  uint64_t bits = 0;
  const int64_t far = cursors->run + FAR;
  if (m == 1 && cursors->run >= LONG && (cursors->src_step >= far || cursors->src_step <= -far)) {
    stream_far_runs(cursors, n);
    return;
  }
  int64_t step_bytes = 0, longest = 0;
  for (int j = 0; j < m; j++) {
    bits |= (uint64_t)(uintptr_t)cursors[j].dst | (uint64_t)(cursors[j].run | cursors[j].dst_step);
    longest = cursors[j].run > longest ? cursors[j].run : longest;
    step_bytes += cursors[j].run;
  }
  const bool lines = bits % LINE == 0 && longest < LONG;
  const int64_t steps_ahead = AHEAD / step_bytes + 1;
  for (int64_t k = 0; k < n; k++)
    for (int j = 0; j < m; j++) {
      rs_cursor *cursor = &cursors[j];
      char *d = cursor->dst;
      const char *s = cursor->src;
      const int64_t run = cursor->run;
      cursor->dst += cursor->dst_step;
      cursor->src += cursor->src_step;
      if (lines && cursor->src_step > -FAR && cursor->src_step < FAR)
        for (int64_t at = 0; at < run; at += LINE)
          stream_line(d + at, s + at);
      else if (lines)
        for (int64_t at = 0; at < run; at += LINE) {
          __builtin_prefetch(s + at + steps_ahead * cursor->src_step, 0, 3);
          stream_line(d + at, s + at);
        }
      else if (run < LONG)
        stream(d, s, run);
      else
        stream_ahead(d, s, run, cursors[j + 1 < m ? j + 1 : 0].src);
    }
}

/* Two loops around a move of `w->run` bytes. */
#define RUNS(name, move) \
  static void name(char *dst, const char *src, const rs_run_loops *w) { \
    const int64_t run = w->run, n0 = w->n0, src0 = w->src0, dst0 = w->dst0; \
    (void)run; \
    for (int64_t i1 = 0; i1 < w->n1; i1++) { \
      char *d = dst + i1 * w->dst1; \
      const char *s = src + i1 * w->src1; \
      _Pragma("GCC unroll 4") for (int64_t i0 = 0; i0 < n0; i0++) { \
        move; \
        d += dst0; \
        s += src0; \
      } \
    } \
  }
#define OVERLAP(part, size) (part(d, s), part(d + run - (size), s + run - (size)))
#define PART_2(d, s)        MOVE(d, s, 2)
#define PART_4(d, s)        MOVE(d, s, 4)
#define PART_8(d, s)        MOVE(d, s, 8)

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

/* Moves a long run to staging, which is filled at the pace at which lines are asked for. So it prefetches, and at its
 * end for the next run. */
ALWAYS_INLINE void move_ahead(char *dst, const char *src, int64_t bytes, const char *next) {
  int64_t at = 0;
  for (; at + LINE <= bytes - AHEAD; at += LINE) {
    __builtin_prefetch(src + at + AHEAD, 0, 3);
    move_64(dst + at, src + at);
  }
  for (; at + LINE <= bytes; at += LINE) {
    __builtin_prefetch(next, 0, 3);
    next += LINE;
    move_64(dst + at, src + at);
  }
  if (at < bytes)
    MOVE(dst + at, src + at, (size_t)(bytes - at));
}
RUNS(runs_long, move_ahead(d, s, run, s + src0))
RUNS(runs_1_any, *d = *s)
RUNS(runs_4_any, PART_4(d, s))

/* Gathers of single bytes and words put a vector together before they store. */
static void runs_1(char *dst, const char *src, const rs_run_loops *w) {
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
static void runs_4(char *dst, const char *src, const rs_run_loops *w) {
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

#include "device/cpu/copy/transpose.h"

/* Narrow runs of each cursor, gathered into lines: vectors of 16 bytes are put together from single loads. */
typedef uint8_t bytes_16 __attribute__((vector_size(16)));
typedef uint16_t halves_8 __attribute__((vector_size(16)));
typedef uint64_t longs_2 __attribute__((vector_size(16)));
#define PIECE(type, k) piece_##type(src + (k)*step)
#define DEFINE_PIECE(type) \
  ALWAYS_INLINE type##_t piece_##type(const char *src) { \
    type##_t value; \
    MOVE(&value, src, sizeof value); \
    return value; \
  }
DEFINE_PIECE(uint8)
DEFINE_PIECE(uint16)
DEFINE_PIECE(uint32)
DEFINE_PIECE(uint64)
#define FOUR(type, k) PIECE(type, k), PIECE(type, (k) + 1), PIECE(type, (k) + 2), PIECE(type, (k) + 3)
ALWAYS_INLINE bytes_16 gather_1(const char *src, int64_t step) {
  return (bytes_16){FOUR(uint8, 0), FOUR(uint8, 4), FOUR(uint8, 8), FOUR(uint8, 12)};
}
ALWAYS_INLINE halves_8 gather_2(const char *src, int64_t step) { return (halves_8){FOUR(uint16, 0), FOUR(uint16, 4)}; }
ALWAYS_INLINE words_4 gather_4(const char *src, int64_t step) { return (words_4){FOUR(uint32, 0)}; }
ALWAYS_INLINE longs_2 gather_8(const char *src, int64_t step) { return (longs_2){PIECE(uint64, 0), PIECE(uint64, 1)}; }
ALWAYS_INLINE bytes_16 gather_16(const char *src, int64_t step) {
  bytes_16 value;
  (void)step;
  MOVE(&value, src, 16);
  return value;
}

/* Gathers a line of each cursor in turn, once all are at the beginning of one; bytes before and behind by plain moves.
 */
#define GATHER(width) \
  static void stream_gather_##width(rs_cursor *cursors, int m, int64_t n) { \
    int64_t left[RS_CURSORS], lines = INT64_MAX; \
    for (int j = 0; j < m; j++) { \
      rs_cursor *s = &cursors[j]; \
      int64_t head = to_line(s->dst, n * width) / width; \
      for (int64_t k = 0; k < head; k++, s->dst += width, s->src += s->src_step) \
        MOVE(s->dst, s->src, width); \
      left[j] = n - head; \
      lines = left[j] / (LINE / width) < lines ? left[j] / (LINE / width) : lines; \
    } \
    for (int64_t k = 0; k < lines; k++) \
      for (int j = 0; j < m; j++) { \
        rs_cursor *s = &cursors[j]; \
        const int64_t step = s->src_step; \
        const char *src = s->src; \
        for (int i = 0; i < 4; i++, src += step * (16 / width)) \
          vstream_16(s->dst + 16 * i, gather_##width(src, step)); \
        s->src = src; \
        s->dst += LINE; \
      } \
    for (int j = 0; j < m; j++) { \
      rs_cursor *s = &cursors[j]; \
      for (int64_t k = lines * (LINE / width); k < left[j]; k++, s->dst += width, s->src += s->src_step) \
        MOVE(s->dst, s->src, width); \
    } \
  }
GATHER(1)
GATHER(2)
GATHER(4)
GATHER(8)
GATHER(16)

static void stream_gather(rs_cursor *cursors, int m, int64_t n) {
  switch (m > 0 ? cursors->run : 0) {
  case 1: stream_gather_1(cursors, m, n); break;
  case 2: stream_gather_2(cursors, m, n); break;
  case 4: stream_gather_4(cursors, m, n); break;
  case 8: stream_gather_8(cursors, m, n); break;
  case 16: stream_gather_16(cursors, m, n); break;
  }
}

static void flush(rs_partial_line *line) {
  int64_t at = 0;
  if (line->lo > 0 && line->fill >= LINE) {
    MOVE(line->dst + line->lo, line->bytes + line->lo, (size_t)(LINE - line->lo));
    line->lo = 0;
    at = LINE;
  }
  for (; at + LINE <= line->fill; at += LINE)
    stream_line(line->dst + at, line->bytes + at);
  if (at == 0)
    return;
  move_64(line->bytes, line->bytes + at);
  line->dst += at;
  line->fill -= at;
}

/* Appends to a partial line of one line: fills it up, stores whole lines straight from src, and keeps the rest. */
ALWAYS_INLINE void append_run(rs_partial_line *line, const char *src, int64_t bytes) {
  if (line->fill > 0) {
    int64_t part = LINE - line->fill < bytes ? LINE - line->fill : bytes;
    MOVE(line->bytes + line->fill, src, (size_t)part);
    line->fill += part;
    src += part;
    bytes -= part;
    if (line->fill < LINE)
      return;
    if (line->lo > 0)
      MOVE(line->dst + line->lo, line->bytes + line->lo, (size_t)(LINE - line->lo));
    else
      stream_line(line->dst, line->bytes);
    line->lo = line->fill = 0;
    line->dst += LINE;
  }
  char *dst = line->dst;
  for (; bytes >= LINE; bytes -= LINE, src += LINE, dst += LINE)
    stream_line(dst, src);
  line->dst = dst;
  MOVE(line->bytes, src, (size_t)bytes);
  line->fill = bytes;
}

static void stream_partial(rs_cursor *cursors, int m, int64_t n) {
  for (int64_t k = 0; k < n; k++)
    for (int j = 0; j < m; j++) {
      append_run(cursors[j].line, cursors[j].src, cursors[j].run);
      cursors[j].src += cursors[j].src_step;
    }
}

static void fence(void) { STREAM_FENCE(); }

#define KERNELS(set) \
  { \
    .isa = set, .stream = stream, \
    .runs = {runs_1,  runs_2,     runs_3,  runs_4,     runs_to_7, runs_8,      runs_to_15, \
             runs_16, runs_to_31, runs_32, runs_to_63, runs_64,   runs_to_128, runs_long}, \
    .stream_runs = stream_runs, .stream_gather = stream_gather, .stream_partial = stream_partial, .flush = flush, \
    .transpose = {transpose_1, transpose_2, transpose_4, transpose_8, transpose_16}, .fence = fence, \
  }
