/* Casts by the CPU.
 *
 * All casts of a list are one sequence of numbers, each counted with the bytes that are read and written for it. The
 * sequence is cut in equal tasks. A task goes through its part in pieces that fit the first-level cache. A piece that
 * is strided is first gathered by the copy kernels, then converted from buffer to buffer, then scattered. What is
 * contiguous on a side needs no buffer there. In a large job results go past the cache: they are converted into a
 * buffer of whole lines, which the copy kernels stream from there. */
#include "device/cpu/memory.h"

#include "device/cpu/cast/kernels.h"

#include <fenv.h>

enum {
  LINE = 64,
  PIECE = 2048,      /* numbers */
  LONG = 256,        /* numbers of a run that is worth a piece of its own */
  ALONE = 256 << 10, /* bytes, as in the copies: jobs up to this size wake no helper */
  TASK = 512 << 10,
  TASK_LEAST = 64 << 10,
};

typedef struct cast_job {
  const rs_kernels *copy;
  const rs_cast_kernels *convert;
  const rs_casts *casts;
  int64_t size; /* of a task, in bytes */
  bool streaming;
} cast_job;

typedef struct cast_buffers {
  _Alignas(LINE) char in[PIECE * 8];
  _Alignas(LINE) char out[PIECE * 8];
} cast_buffers;

/* A cast with what follows from its dtypes. */
typedef struct converter {
  const rs_cast *cast;
  const rs_axis *axes;
  rs_cast_kernel convert;
  int64_t from, to; /* bytes of a number */
  int64_t numbers;  /* in all */
} converter;

static converter converter_of(const cast_job *job, const rs_cast *cast) {
  converter c = {.cast = cast,
                 .axes = cast->naxes == 0 ? NULL : job->casts->axis.at + cast->axes,
                 .convert =
                     job->convert->of[rs_cast_index((reshard_dtype)cast->from)][rs_cast_index((reshard_dtype)cast->to)],
                 .from = (int64_t)reshard_dtype_size((reshard_dtype)cast->from),
                 .to = (int64_t)reshard_dtype_size((reshard_dtype)cast->to),
                 .numbers = cast->elements};
  for (int i = 0; i < cast->naxes; i++)
    c.numbers *= c.axes[i].n;
  return c;
}

/* n numbers that are contiguous on both sides. */
static void convert_run(const cast_job *job, const converter *c, char *dst, const char *src, int64_t n,
                        cast_buffers *buffers) {
  if (!job->streaming) {
    c->convert(dst, src, n);
    return;
  }
  int64_t head = (int64_t)(-(uintptr_t)dst % LINE) / c->to; /* then pieces begin with lines */
  while (n > 0) {
    int64_t part = rs_min(n, head > 0 ? head : PIECE);
    c->convert(buffers->out, src, part);
    job->copy->stream(dst, buffers->out, part * c->to);
    head = 0;
    dst += part * c->to;
    src += part * c->from;
    n -= part;
  }
}

/* One side of a rectangle of n1 x n0 runs. */
static bool is_contiguous(int64_t run, int64_t n0, int64_t step0, int64_t n1, int64_t step1) {
  return (n0 == 1 || step0 == run) && (n1 == 1 || step1 == n0 * run);
}

/* n1 x n0 runs: steps of the last loop and of the one before. */
static void convert_runs(const cast_job *job, const converter *c, char *dst, const char *src, int64_t n1, int64_t n0,
                         cast_buffers *buffers) {
  static const rs_axis none = {1, 0, 0};
  const rs_axis *a0 = &c->axes[c->cast->naxes - 1], *a1 = c->cast->naxes > 1 ? a0 - 1 : &none;
  int64_t elements = c->cast->elements, run = elements * c->from;
  if (!is_contiguous(run, n0, a0->src, n1, a1->src)) {
    rs_run_loops loops = {run, n1, a1->src, n0 * run, n0, a0->src, run};
    job->copy->runs[rs_run_class(run)](buffers->in, src, &loops);
    src = buffers->in;
  }
  run = elements * c->to;
  if (is_contiguous(run, n0, a0->dst, n1, a1->dst)) {
    convert_run(job, c, dst, src, n1 * n0 * elements, buffers);
    return;
  }
  c->convert(buffers->out, src, n1 * n0 * elements);
  rs_run_loops loops = {run, n1, n0 * run, a1->dst, n0, run, a0->dst};
  job->copy->runs[rs_run_class(run)](dst, buffers->out, &loops);
}

/* Numbers from `at` on, in the order of the loops, up to end at most; returns how many. */
static int64_t convert_piece(const cast_job *job, const converter *c, int64_t at, int64_t end, cast_buffers *buffers) {
  const rs_cast *cast = c->cast;
  const char *src = cast->src;
  char *dst = cast->dst;
  int64_t run = cast->elements, rest = at / run, inside = at % run, left0 = 1, left1 = 1;
  for (int i = cast->naxes - 1; i >= 0; i--) {
    int64_t index = rest % c->axes[i].n;
    rest /= c->axes[i].n;
    src += index * c->axes[i].src;
    dst += index * c->axes[i].dst;
    if (i == cast->naxes - 1)
      left0 = c->axes[i].n - index;
    else if (i == cast->naxes - 2)
      left1 = c->axes[i].n - index;
  }
  if (cast->naxes == 0 || run >= LONG || inside > 0 || end - at < run) {
    int64_t n = rs_min(run - inside, end - at);
    convert_run(job, c, dst + inside * c->to, src + inside * c->from, n, buffers);
    return n;
  }
  int64_t runs = rs_min((end - at) / run, PIECE / run), n0 = rs_min(left0, runs), n1 = 1;
  if (n0 == c->axes[cast->naxes - 1].n)
    n1 = rs_min(left1, runs / n0);
  convert_runs(job, c, dst, src, n1, n0, buffers);
  return n1 * n0 * run;
}

/* The number with which the byte `at` of a cast begins, or the line after: both sides of a cut agree on it. */
static int64_t number_at(const converter *c, int64_t at) {
  if (at <= 0)
    return 0;
  int64_t number = rs_ceil_div(at, c->from + c->to);
  return rs_min((number + LINE - 1) / LINE * LINE, c->numbers);
}

static void convert_tasks(const cast_job *job, rs_claim *claim, cast_buffers *buffers) {
  const rs_casts *casts = job->casts;
  converter c = {0};
  int64_t next = 0, base = 0, bytes = 0; /* of the cast in the sequence */
  for (int64_t task; (task = rs_threads_next(claim)) >= 0;) {
    int64_t at = task * job->size, end = at + job->size;
    for (;;) {
      if (base + bytes <= at) {
        if (next == casts->cast.n)
          break;
        base += bytes;
        c = converter_of(job, &casts->cast.at[next++]);
        bytes = c.numbers * (c.from + c.to);
        continue;
      }
      int64_t number = number_at(&c, at - base), last = number_at(&c, end - base);
      while (number < last)
        number += convert_piece(job, &c, number, last, buffers);
      if (base + bytes >= end)
        break;
      at = base + bytes;
    }
  }
}

/* The rounding of the kernels is the default one, subnormal numbers are kept, and nothing traps. */
static void cast_tasks(const void *user, rs_claim *claim) {
  const cast_job *job = user;
  cast_buffers buffers;
  fenv_t before;
  fegetenv(&before);
  fesetenv(FE_DFL_ENV);
  convert_tasks(job, claim, &buffers);
  fesetenv(&before);
  job->copy->fence();
}

void rs_cpu_cast(rs_threads *threads, const rs_kernels *kernels, int64_t stream_from, const rs_casts *casts) {
  cast_job job = {.copy = kernels, .convert = rs_cast_kernels_of(kernels->isa), .casts = casts};
  int64_t bytes = 0;
  for (int64_t i = 0; i < casts->cast.n; i++) {
    converter c = converter_of(&job, &casts->cast.at[i]);
    bytes += c.numbers * (c.from + c.to);
  }
  job.streaming = bytes / 2 >= stream_from;
  job.size = rs_max(rs_min(bytes / (4 * rs_threads_count(threads)), TASK), TASK_LEAST);
  job.size = rs_max(job.size, rs_ceil_div(bytes, UINT32_MAX));
  int64_t tasks = rs_ceil_div(bytes, job.size);
  if (bytes / 2 <= ALONE)
    rs_threads_run_alone(tasks, cast_tasks, &job);
  else
    rs_threads_run(threads, tasks, cast_tasks, &job);
}
