/* Copies that convert numbers.
 *
 * A piece of a copy fits the first-level cache. What is strided in the source is gathered by the copy kernels,
 * converted from buffer to buffer, and scattered in the destination. What is contiguous on a side needs no buffer
 * there. Past the cache go whole lines: they are converted into a buffer, from which the copy kernels stream them. */
#include "device/cpu/cast/blocks.h"
#include "device/cpu/cast/kernels.h"
#include "device/cpu/copy/task.h"

#include <fenv.h>

enum {
  PIECE = 2048,   /* numbers */
  LONG_RUN = 256, /* numbers of a run that is worth a piece of its own */
  FAR = 4096,     /* a step from run to run that hardware does not foresee: to another page */
  ROWS = 8,       /* of those that take turns: hardware needs some lines of a page before it foresees the rest */
  ROWS_AHEAD = 8, /* that are prefetched */
  PACE = 512, /* bytes of the wider side, whole lines of the other, for each few prefetches: of more, some are lost */
  STREAM_LEAST = 4, /* lines of a run that is worth storing past the cache */
};

typedef struct convert_buffers {
  _Alignas(RS_LINE) char in[RS_TILE]; /* of a piece, or a block of a transpose with a line more in each row */
  _Alignas(RS_LINE) char out[PIECE * 8];
} convert_buffers;

typedef struct converting {
  const rs_kernels *kernels;
  rs_cast_kernel convert;
  rs_cast_past past;
  int64_t from, to; /* bytes of a number */
  bool streaming;
  rs_ahead *ahead; /* what is prefetched meanwhile; NULL: nothing */
  convert_buffers *buffers;
} converting;

/* Reads memory for what comes next, while so many numbers are converted. */
static void look_ahead(const converting *c, int64_t numbers) {
  if (c->ahead != NULL)
    rs_program_ahead(c->ahead, numbers * c->from);
}

/* A run whose numbers are not aligned in the destination: lines cut them. */
static void convert_pieces(const converting *c, char *dst, const char *src, int64_t n) {
  for (int64_t at = 0, part; at < n; at += part) {
    part = rs_min(n - at, at > 0 ? PIECE : rs_max((int64_t)(-(uintptr_t)dst % RS_LINE) / c->to, 1));
    look_ahead(c, part);
    c->convert(c->buffers->out, src + at * c->from, part);
    c->kernels->stream(dst + at * c->to, c->buffers->out, part * c->to);
  }
}

/* Whole lines of the destination, past the cache, in pieces where memory is read for what comes next. */
static void convert_lines(const converting *c, char *dst, const char *src, int64_t n, rs_cast_runs runs) {
  if (c->ahead == NULL || runs.count > 1) {
    c->past(dst, src, n, &runs);
    return;
  }
  for (int64_t at = 0, part; at < n; at += part) {
    part = rs_min(n - at, PACE / rs_max(c->from, c->to));
    look_ahead(c, part);
    int64_t next = at + part < n ? part * c->from : runs.src - at * c->from;
    c->past(dst + at * c->to, src + at * c->from, part, &(rs_cast_runs){1, 0, next});
  }
}

/* Runs of n numbers that are contiguous on both sides; those of the destination begin alike in their lines. */
static void convert_run(const converting *c, char *dst, const char *src, int64_t n, rs_cast_runs runs) {
  const bool past = c->streaming && n * c->to >= STREAM_LEAST * RS_LINE;
  const bool whole = past && (uintptr_t)dst % (uintptr_t)c->to == 0;
  int64_t head = whole ? (int64_t)(-(uintptr_t)dst % RS_LINE) / c->to : n, lines = 0;
  if (whole) {
    lines = (n - head) / (RS_LINE / c->to) * (RS_LINE / c->to);
    convert_lines(c, dst + head * c->to, src + head * c->from, lines, runs);
  }
  for (int64_t k = 0; k < runs.count; k++, dst += runs.dst, src += runs.src) {
    if (past && !whole) {
      convert_pieces(c, dst, src, n);
      continue;
    }
    look_ahead(c, n - lines);
    c->convert(dst, src, head);
    c->convert(dst + (head + lines) * c->to, src + (head + lines) * c->from, n - head - lines);
  }
}

/* One side of a rectangle of n1 x n0 runs. */
static bool is_contiguous(int64_t run, int64_t n0, int64_t step0, int64_t n1, int64_t step1) {
  return (n0 == 1 || step0 == run) && (n1 == 1 || step1 == n0 * run);
}

/* n1 x n0 runs of `numbers` each: steps of the last loop and of the one before. */
static void convert_runs(const converting *c, char *dst, const char *src, int64_t numbers, int64_t n1,
                         const rs_loop *l1, int64_t n0, const rs_loop *l0) {
  int64_t run = numbers * c->from;
  if (!is_contiguous(run, n0, l0->src, n1, l1->src)) {
    rs_run_loops loops = {run, n1, l1->src, n0 * run, n0, l0->src, run};
    c->kernels->runs[rs_run_class(run)](c->buffers->in, src, &loops);
    src = c->buffers->in;
  }
  run = numbers * c->to;
  if (is_contiguous(run, n0, l0->dst, n1, l1->dst)) {
    convert_run(c, dst, src, n1 * n0 * numbers, (rs_cast_runs){1, 0, n1 * n0 * numbers * c->from});
    return;
  }
  look_ahead(c, n1 * n0 * numbers);
  c->convert(c->buffers->out, src, n1 * n0 * numbers);
  rs_run_loops loops = {run, n1, n0 * run, l1->dst, n0, run, l0->dst};
  c->kernels->runs[rs_run_class(run)](dst, c->buffers->out, &loops);
}

/* Steps from `at` on, n at most, that are one rectangle of the two innermost loops; returns how many. */
static int64_t convert_steps(const converting *c, const rs_ordered_copy *copy, const rs_loop *loops, int64_t at,
                             int64_t n, rs_shift shift) {
  static const rs_loop once = {1, 0, 0, 1};
  int64_t numbers = copy->run / c->from, left0 = 1, left1 = 1;
  const char *src = copy->src + shift.src;
  char *dst = copy->dst + shift.dst;
  for (int i = 0; i < copy->nloops; i++) {
    int64_t step = at / loops[i].inner;
    at -= step * loops[i].inner;
    src += step * loops[i].src;
    dst += step * loops[i].dst;
    left1 = left0;
    left0 = loops[i].n - step;
  }
  if (copy->nloops == 0 || numbers >= LONG_RUN) {
    rs_cast_runs runs = {1, 0, copy->run};
    if (copy->nloops > 0) {
      runs = (rs_cast_runs){rs_min(rs_min(n, left0), ROWS), loops[copy->nloops - 1].dst, loops[copy->nloops - 1].src};
      if (c->ahead != NULL || runs.dst % RS_LINE != 0 || (runs.src < FAR && -runs.src < FAR))
        runs.count = 1; /* also of a message: it is in the cache */
    }
    convert_run(c, dst, src, numbers, runs);
    return runs.count;
  }
  const rs_loop *l0 = &loops[copy->nloops - 1], *l1 = copy->nloops > 1 ? l0 - 1 : &once;
  int64_t runs = rs_min(n, PIECE / numbers), n0 = rs_min(left0, runs), n1 = 1;
  if (n0 == l0->n && copy->nloops > 1)
    n1 = rs_min(left1, runs / n0);
  convert_runs(c, dst, src, numbers, n1, l1, n0, l0);
  return n0 * n1;
}

/* Converts a block along the source's rows, and turns the numbers round, as they are narrower then. */
static void convert_narrower(const converting *c, const rs_ordered_copy *copy, const rs_loop *loops,
                             rs_transposed_block block) {
  const rs_loop *i = &loops[copy->nloops - 2], *j = &loops[copy->nloops - 1];
  int64_t pitch = block.ni * c->to + RS_LINE, run = block.ni * c->from;
  for (int64_t row = 0; row < block.nj; row++) {
    int64_t soon = row + ROWS_AHEAD; /* or rows of the next block, which is beside it in the source */
    const char *ahead = block.src + soon % block.nj * j->src + (soon < block.nj ? 0 : run);
    for (int64_t at = 0; at < run; at += RS_LINE)
      __builtin_prefetch(ahead + at, 0, 2);
    c->convert(c->buffers->in + row * pitch, block.src + row * j->src, block.ni);
  }
  c->kernels->transpose[rs_width_index(c->to)](block.dst, c->buffers->in, block.ni, block.nj, i->dst, pitch,
                                               c->streaming);
}

/* Turns a block round in a buffer whose rows are not a power of two apart, and converts these. */
static void convert_block(const converting *c, const rs_ordered_copy *copy, const rs_loop *loops,
                          rs_transposed_block block) {
  const rs_loop *i = &loops[copy->nloops - 2], *j = &loops[copy->nloops - 1];
  int64_t pitch = block.nj * c->from + RS_LINE;
  c->kernels->transpose[copy->width](c->buffers->in, block.src, block.ni, block.nj, pitch, j->src, false);
  for (int64_t row = 0; row < block.ni; row++)
    convert_run(c, block.dst + row * i->dst, c->buffers->in + row * pitch, block.nj, (rs_cast_runs){1, 0, pitch});
}

/* A copy of blocks, and the numbers of a step. */
typedef struct scaled_copy {
  const converting *c;
  const rs_program *program;
  const rs_ordered_copy *copy;
  rs_shift shift;
  int64_t numbers;
} scaled_copy;

static void place_scaled(const void *of, int64_t at, rs_block_box *box) {
  const scaled_copy *s = of;
  const rs_scaled *scaled = &s->program->scaled.at[s->copy->scaled - 1];
  const rs_loop *loops = rs_copy_loops(s->program, s->copy);
  bool back = s->copy->from == RESHARD_F8_E4M3;
  rs_shift moved = s->shift;
  look_ahead(s->c, s->numbers);
  *box = scaled->box;
  box->scales += back ? moved.src : moved.dst;
  for (int i = 0; i < s->copy->nloops; i++) {
    int64_t step = at / loops[i].inner;
    at -= step * loops[i].inner;
    moved.src += step * loops[i].src;
    moved.dst += step * loops[i].dst;
    box->scales += step * scaled->step[i];
  }
  box->values += back ? moved.src : moved.dst;
  box->wide += back ? moved.dst : moved.src;
}

static void convert_scaled(const scaled_copy *s, int64_t at, int64_t n) {
  const converting *c = s->c;
  if (s->copy->from != RESHARD_F8_E4M3)
    rs_blocks_scale_steps(c->kernels, &(rs_block_steps){place_scaled, s, at, n}, c->streaming);
  else
    for (int64_t i = 0; i < n; i++) {
      rs_block_box box;
      place_scaled(s, at + i, &box);
      rs_blocks_unscale(c->kernels, &box, c->streaming);
    }
}

/* The rounding of the kernels is the default one, subnormal numbers are kept, and nothing traps. */
void rs_run_convert(const rs_program *program, const rs_kernels *kernels, const rs_copy_group *group, int64_t at,
                    int64_t n, rs_shift shift, bool streaming, rs_ahead *ahead) {
  const rs_ordered_copy *copy = &program->copy.at[group->first];
  convert_buffers buffers;
  const rs_cast_kernels *casts = rs_cast_kernels_of(kernels->isa);
  int from = rs_cast_index((reshard_dtype)copy->from), to = rs_cast_index((reshard_dtype)copy->to);
  converting c = {.kernels = kernels,
                  .convert = casts->of[from][to],
                  .past = casts->past[from][to],
                  .from = (int64_t)reshard_dtype_size((reshard_dtype)copy->from),
                  .to = (int64_t)reshard_dtype_size((reshard_dtype)copy->to),
                  .streaming = streaming && kernels->isa != RESHARD_ISA_SCALAR, /* whose fence orders no such store */
                  .ahead = ahead,
                  .buffers = &buffers};
  fenv_t before;
  fegetenv(&before);
  fesetenv(FE_DFL_ENV);
  for (int64_t end = at + n; at < end;)
    if (copy->scaled > 0) {
      convert_scaled(&(scaled_copy){&c, program, copy, shift, group->step_bytes / c.from}, at, end - at);
      at = end;
    } else if (copy->transpose) {
      look_ahead(&c, group->step_bytes / c.from);
      (c.to < c.from ? convert_narrower : convert_block)(&c, copy, rs_copy_loops(program, copy),
                                                         rs_transpose_block(program, copy, at, shift));
      at++;
    } else {
      at += convert_steps(&c, copy, rs_copy_loops(program, copy), at, end - at, shift);
    }
  fesetenv(&before);
}
