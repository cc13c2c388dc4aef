/* Transposes: a part of kernels_body.h.
 *
 * Squares of SIDE x SIDE elements are transposed in registers, or one by one where the set has no such kernel. A cell
 * is as many squares as have whole lines on both sides. It is put together in a small buffer and stored line by line.
 * So no stride makes lines push each other out of the cache before they are used up. Reading takes the time: rows are
 * far from each other, so a strip of them is asked for row by row while the one before is done.
 *
 * Where rows of the destination do not begin with lines, their buffers begin in a line where they do. The line that a
 * strip leaves incomplete is carried to the next strip. So all but the first and last of a row go past the cache whole.
 */
#ifndef SIDE_1
#define SIDE_1                           1
#define MICRO_1(dst, src, pitch, stride) MOVE(dst, src, 1)
#endif
#ifndef SIDE_2
#define SIDE_2                           1
#define MICRO_2(dst, src, pitch, stride) MOVE(dst, src, 2)
#endif
#ifndef SIDE_4
#define SIDE_4                           1
#define MICRO_4(dst, src, pitch, stride) MOVE(dst, src, 4)
#endif
#ifndef SIDE_8
#define SIDE_8                           1
#define MICRO_8(dst, src, pitch, stride) MOVE(dst, src, 8)
#endif
#define SIDE_16                           1
#define MICRO_16(dst, src, pitch, stride) MOVE(dst, src, 16)

#define BUFFERED_CELL(width) \
  ALWAYS_INLINE void transpose_cell_##width(char *dst, const char *src, int64_t pitch, int64_t stride, bool lines) { \
    _Alignas(LINE) char cell[LINE / width * LINE]; \
    for (int j = 0; j < LINE / width; j += SIDE_##width) \
      for (int i = 0; i < LINE / width; i += SIDE_##width) \
        MICRO_##width(cell + i * LINE + j * width, src + i * width + j * stride, LINE, stride); \
    if (lines) \
      for (int i = 0; i < LINE / width; i++) \
        stream_line(dst + i * pitch, cell + i * LINE); \
    else \
      for (int i = 0; i < LINE / width; i++) \
        move_64(dst + i * pitch, cell + i * LINE); \
  }
#ifndef CELL_4
BUFFERED_CELL(4)
#define CELL_4 transpose_cell_4
#endif
#ifndef CELL_8
BUFFERED_CELL(8)
#define CELL_8 transpose_cell_8
#endif
#ifndef CELL_1
BUFFERED_CELL(1)
BUFFERED_CELL(2)
#define CELL_1 transpose_cell_1
#define CELL_2 transpose_cell_2
#endif
BUFFERED_CELL(16)
#define CELL_16 transpose_cell_16

/* Rows of the source that are walked along together. Where they fill several lines of the destination's rows, these
 * are stored side by side; those of elements of one byte fill one. More rows would not stay in the cache where the
 * stride is a power of two. */
#define STRIP(width) (LINE / width < 32 ? 32 : 64)

/* Columns of the source that carry incomplete lines, at most: those of a block (compile.c). */
#define CARRIED(width) (width < 4 ? 512 / width : 128)

#define TRANSPOSE(width) \
  static void transpose_edge_##width(char *dst, const char *src, int64_t ni, int64_t nj, int64_t pitch, \
                                     int64_t stride) { \
    const int64_t wi = ni - ni % SIDE_##width, wj = nj - nj % SIDE_##width; \
    for (int64_t j = 0; j < wj; j += SIDE_##width) \
      for (int64_t i = 0; i < wi; i += SIDE_##width) \
        MICRO_##width(dst + i * pitch + j * width, src + i * width + j * stride, pitch, stride); \
    for (int64_t i = 0; i < ni; i++) \
      for (int64_t j = i < wi ? wj : 0; j < nj; j++) \
        MOVE(dst + i * pitch + j * width, src + i * width + j * stride, width); \
  } \
  /* Cells of a strip, one above the other. Past the cache their lines go side by side. */ \
  ALWAYS_INLINE void transpose_column_##width(char *dst, const char *src, int64_t rows, int64_t pitch, int64_t stride, \
                                              bool lines) { \
    enum { SIDE = LINE / width, WIDE = STRIP(width) * width }; \
    if (!lines || STRIP(width) == LINE / width || rows < STRIP(width)) { \
      for (int64_t j = 0; j < rows; j += SIDE) \
        CELL_##width(dst + j * width, src + j * stride, pitch, stride, lines); \
      return; \
    } \
    _Alignas(LINE) char column[SIDE * WIDE]; \
    for (int j = 0; j < STRIP(width); j += SIDE) \
      CELL_##width(column + j * width, src + j * stride, WIDE, stride, false); \
    for (int i = 0; i < SIDE; i++) \
      for (int at = 0; at < WIDE; at += LINE) \
        stream_line(dst + i * pitch + at, column + i * WIDE + at); \
  } \
  /* The same where lines are carried: to here from a strip before, unless it is the first, and on to the next. */ \
  ALWAYS_INLINE void transpose_carried_##width(char *dst, const char *src, int64_t rows, int64_t pitch, \
                                               int64_t stride, char *carry, bool first, bool last) { \
    enum { SIDE = LINE / width, WIDE = STRIP(width) * width }; \
    _Alignas(LINE) char columns[SIDE * (WIDE + 2 * LINE) + 2 * LINE]; \
    const int64_t room = WIDE + LINE + pitch % LINE; \
    char *column = columns + (uintptr_t)dst % LINE; \
    for (int i = 0; i < SIDE && !first; i++) \
      move_64(column + i * room - (uintptr_t)(dst + i * pitch) % LINE, carry + i * LINE); \
    for (int64_t j = 0; j < rows; j += SIDE) \
      CELL_##width(column + j * width, src + j * stride, room, stride, false); \
    for (int i = 0; i < SIDE; i++) { \
      const int64_t before = (int64_t)((uintptr_t)(dst + i * pitch) % LINE), end = before + rows * width; \
      char *to = dst + i * pitch - before; \
      const char *from = column + i * room - before; \
      int64_t at = 0; \
      if (first && before > 0) { \
        MOVE(to + before, from + before, (size_t)(LINE - before)); \
        at = LINE; \
      } \
      for (; at + LINE <= end; at += LINE) \
        stream_line(to + at, from + at); \
      if (!last) \
        move_64(carry + i * LINE, from + at); \
      else if (at < end) \
        MOVE(to + at, from + at, (size_t)(end - at)); \
    } \
  } \
  static void transpose_##width(char *dst, const char *src, int64_t ni, int64_t nj, int64_t pitch, int64_t stride, \
                                bool streaming) { \
    const int64_t side = LINE / width; \
    const bool past = streaming && (uintptr_t)dst % width == 0, lines = past && pitch % LINE == 0; \
    const bool carries = past && !lines && pitch % width == 0 && ni <= CARRIED(width); \
    char carry[CARRIED(width) * LINE]; \
    int64_t head = 0; \
    if (lines) \
      head = to_line(dst, nj * width) / width; \
    const int64_t wi = ni - ni % side, wj = nj - (nj - head) % side; \
    for (int64_t j = head; j < wj; j += STRIP(width)) { \
      int64_t rows = wj - j < STRIP(width) ? wj - j : STRIP(width), at = 0; \
      /* The next strip, or the first of the next block, row by row: hardware does not see so far. */ \
      const char *ahead = src + (j + rows < wj ? (j + rows) * stride : wi * width + head * stride); \
      for (int64_t i = 0; i < wi; i += side) { \
        for (int64_t k = 0; k < rows; k++) { \
          __builtin_prefetch(ahead + at, 0, 2); \
          at += LINE; \
          if (at == wi * width) { \
            at = 0; \
            ahead += stride; \
          } \
        } \
        char *to = dst + i * pitch + j * width; \
        const char *from = src + i * width + j * stride; \
        if (carries) \
          transpose_carried_##width(to, from, rows, pitch, stride, carry + i * LINE, j == 0, j + rows == wj); \
        else \
          transpose_column_##width(to, from, rows, pitch, stride, lines); \
      } \
    } \
    transpose_edge_##width(dst, src, wi, head, pitch, stride); \
    transpose_edge_##width(dst + wj * width, src + wj * stride, wi, nj - wj, pitch, stride); \
    transpose_edge_##width(dst + wi * pitch, src + wi * width, ni - wi, nj, pitch, stride); \
  }
TRANSPOSE(1)
TRANSPOSE(2)
TRANSPOSE(4)
TRANSPOSE(8)
TRANSPOSE(16)
