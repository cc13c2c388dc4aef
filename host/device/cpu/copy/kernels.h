/* Copy kernels of one instruction set, behind a const table. Compiled once per set from kernels_body.h. */
#ifndef RS_DEVICE_CPU_COPY_KERNELS_H
#define RS_DEVICE_CPU_COPY_KERNELS_H

#include "base/base.h"

#include <reshard/comm.h> /* reshard_isa */

enum { RS_CURSORS = 64 };

/* Two loops around a contiguous run; the inner one is 0. */
typedef struct rs_run_loops {
  int64_t run;
  int64_t n1, src1, dst1;
  int64_t n0, src0, dst0;
} rs_run_loops;

/* A partial line: bytes for contiguous memory, from which only whole lines are stored past the cache. bytes[0] belongs
 * to dst, which is aligned to a line, and [lo, fill) are there. lo is 0 but in the first line. */
typedef struct rs_partial_line {
  char *dst;
  char *bytes; /* aligned to a line */
  int64_t lo, fill;
} rs_partial_line;

/* Position of one of several copies that interleave, a run of each in turn. */
typedef struct rs_cursor {
  char *dst;
  const char *src;
  int64_t run;
  int64_t dst_step, src_step;
  rs_partial_line *line; /* instead of dst and dst_step */
} rs_cursor;

/* Kernels by length of the run: one that is no more than a few moves has its own. */
enum { RS_RUN_CLASSES = 14 };
static inline int rs_run_class(int64_t run) {
  if (run > 128)
    return RS_RUN_CLASSES - 1;
  if (run > 64)
    return RS_RUN_CLASSES - 2;
  /* 1 2 3 4 (5..7) 8 (9..15) 16 (17..31) 32 (33..63) 64 */
  int log = 63 - __builtin_clzll((unsigned long long)run);
  return run == 1 ? 0 : 2 * log - ((run & (run - 1)) == 0);
}

/* Widths that a transpose takes: 1, 2, 4, 8, 16 bytes are 0 ... 4; -1 for others. */
static inline int rs_width_index(int64_t width) {
  return width >= 1 && width <= 16 && (width & (width - 1)) == 0 ? 63 - __builtin_clzll((unsigned long long)width) : -1;
}

typedef struct rs_kernels {
  reshard_isa isa;
  /* Contiguous, past the cache where the set can; ordered by fence only. */
  void (*stream)(char *dst, const char *src, int64_t bytes);
  /* Copies every run of the loops by ordinary stores; by rs_run_class of loops->run. */
  void (*runs[RS_RUN_CLASSES])(char *dst, const char *src, const rs_run_loops *loops);
  /* Copies n runs of each of m <= RS_CURSORS cursors in turn, by stores past the cache. Moves the cursors on. */
  void (*stream_runs)(rs_cursor *cursors, int m, int64_t n);
  /* The same for cursors of equal runs of 1, 2, 4, 8 or 16 bytes with dst_step == run and dst aligned to the run. */
  void (*stream_gather)(rs_cursor *cursors, int m, int64_t n);
  /* The same into partial lines, each of which goes on from run to run. */
  void (*stream_partial)(rs_cursor *cursors, int m, int64_t n);
  /* Stores the whole lines of a partial line; the rest moves to the front. */
  void (*flush)(rs_partial_line *line);
  /* dst[i * pitch + j * width] = src[i * width + j * stride], i < ni, j < nj; by rs_width_index. streaming: past the
   * cache as far as lines of the destination are filled. */
  void (*transpose[5])(char *dst, const char *src, int64_t ni, int64_t nj, int64_t pitch, int64_t stride,
                       bool streaming);
  /* Makes all stores past the cache visible before any later store. */
  void (*fence)(void);
} rs_kernels;

/* NULL where this build is for another architecture. */
extern const rs_kernels *const rs_kernels_scalar;
extern const rs_kernels *const rs_kernels_sse2;
extern const rs_kernels *const rs_kernels_avx2;
extern const rs_kernels *const rs_kernels_avx512;
extern const rs_kernels *const rs_kernels_neon;

/* Of a set that reshard_isa_available has, or of AUTO; NULL else. */
const rs_kernels *rs_kernels_of(reshard_isa isa);

#endif
