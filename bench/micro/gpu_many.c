/* So many contiguous boxes in a shuffled order: 8 of equal size, or many of 4 to 64 KiB. A program of the box copy
 * moves them (gpu_copy_boxes; extra_percent: its memory), or they are the spans of an exchange. Rivals are CUB, the
 * runtime's own batch, and for many boxes a call of the runtime for each. x_rivals is our time over the fastest one's
 * of the first two. */
#include "bench/micro/gpu.h"

#include "bench/micro/cub_copy.h"
#include "bench/verify/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct copy_batch {
  gpu_context *b;
  int64_t n;
  rs_span *span;
  /* CUB's tables, of the device */
  const void **src;
  void **dst;
  uint64_t *sizes;
  void *workspace;
  size_t workspace_bytes;
} copy_batch;

static reshard_status run_spans(void *user, void *stream) {
  copy_batch *j = user;
  return j->b->gpu->work->copy(j->b->gpu, j->n, j->span, (int64_t)1 << 40, stream);
}

static reshard_status run_runtime(void *user, void *stream) {
  copy_batch *j = user;
  return gpu_memcpy_batch(j->b->gpu, j->n, j->span, stream);
}

static reshard_status run_cub(void *user, void *stream) {
  copy_batch *j = user;
  int error = rs_cub_copy_launch(j->n, j->src, j->dst, j->sizes, j->workspace, j->workspace_bytes, stream);
  return error == 0 ? RESHARD_SUCCESS : rs_error(RESHARD_ERROR_SYSTEM, "CUB: CUDA error %d", error);
}

/* A call for each box, as a program without this library has it. */
static reshard_status run_loop(void *user, void *stream) {
  copy_batch *j = user;
  for (int64_t i = 0; i < j->n; i++)
    RS_TRY(j->b->gpu->memory->memcpy(j->b->gpu, j->span[i].dst, j->span[i].src, (size_t)j->span[i].bytes, stream));
  return RESHARD_SUCCESS;
}

/* Seconds of the loop until the GPU is done, by the host's clock: the host is what it waits for. Median of three. */
static double time_loop(gpu_context *b, copy_batch *j) {
  double times[3];
  for (int i = 0; i < 3; i++) {
    gpu_context_wait(b);
    double begin = rs_seconds();
    CLI_TRY("", run_loop(j, b->stream[0]));
    gpu_context_wait(b);
    times[i] = rs_seconds() - begin;
  }
  return cli_median(times, 3);
}

static bool create_cub(copy_batch *j) {
  const void **src = cli_alloc(j->n, sizeof *src);
  void **dst = cli_alloc(j->n, sizeof *dst);
  uint64_t *sizes = cli_alloc(j->n, sizeof *sizes);
  for (int64_t i = 0; i < j->n; i++) {
    src[i] = j->span[i].src;
    dst[i] = j->span[i].dst;
    sizes[i] = (uint64_t)j->span[i].bytes;
  }
  j->src = gpu_context_alloc(j->b, j->n * 8);
  j->dst = gpu_context_alloc(j->b, j->n * 8);
  j->sizes = gpu_context_alloc(j->b, j->n * 8);
  gpu_context_to_gpu(j->b, j->src, src, j->n * 8);
  gpu_context_to_gpu(j->b, j->dst, dst, j->n * 8);
  gpu_context_to_gpu(j->b, j->sizes, sizes, j->n * 8);
  free(src);
  free(dst);
  free(sizes);
  if (rs_cub_copy_workspace(j->n, &j->workspace_bytes) != 0)
    return false;
  j->workspace = gpu_context_alloc(j->b, (int64_t)j->workspace_bytes);
  return true;
}

static void free_cub(copy_batch *j) {
  gpu_context_free(j->b, j->src);
  gpu_context_free(j->b, j->dst);
  gpu_context_free(j->b, j->sizes);
  gpu_context_free(j->b, j->workspace);
}

/* Bytes of box i of n: log-uniform from 4 to 64 KiB, or all alike. */
static int64_t draw_bytes(rng *r, int64_t alike) {
  return alike > 0 ? alike : (int64_t)(4096 * pow(16, (double)(rng_next(r) >> 11) * 0x1p-53)) & -4;
}

/* A rival's time, as one key of the row, and ours over it as another. */
static void add_rival(gpu_row *x, const char *us, const char *ratio, double seconds) {
  gpu_row_add(x, us, 1e6 * seconds);
  gpu_row_add(x, ratio, x->seconds / seconds);
}

static int measure_batch(gpu_row *x, copy_batch *j, gpu_program *program, gpu_buffers *s, int64_t bytes) {
  gpu_context *b = &x->context;
  gpu_memcpy p = {b, s->to, s->from, bytes};
  gpu_timed_work runners[4] = {{gpu_program_run, program, 0}, {gpu_memcpy_run, &p, 0}};
  double t[4] = {0}, fastest = INFINITY;
  int n = 2, runtime = 0, cub = 0; /* their places; 0: this machine lacks it */
  if (program->program == NULL)
    runners[0] = (gpu_timed_work){run_spans, j, 0};
  if (run_runtime(j, b->stream[0]) == RESHARD_SUCCESS)
    runners[runtime = n++] = (gpu_timed_work){run_runtime, j, 0};
  if (create_cub(j))
    runners[cub = n++] = (gpu_timed_work){run_cub, j, 0};
  gpu_row_measure(x, s->sets, n, runners, t);
  gpu_buffers_clear(b, s);
  CLI_TRY("", runners[0].work(runners[0].user, b->stream[0]));
  gpu_row_set(x, bytes, t[0]);
  gpu_row_add_memcpy(x, t[1]);
  int wrong = gpu_buffers_wrong(b, s);
  for (int i = 2; i < n; i++)
    fastest = fmin(fastest, t[i]);
  if (n > 2)
    gpu_row_add(x, "x_rivals", t[0] / fastest);
  if (runtime > 0)
    add_rival(x, "cudaMemcpyBatchAsync_us", "x_batch", t[runtime]);
  if (cub > 0)
    add_rival(x, "cub_us", "x_cub", t[cub]);
  if (j->n > 8 && x->turns > 0)
    add_rival(x, "loop_us", "x_loop", time_loop(b, j));
  free_cub(j);
  return wrong;
}

/* Boxes of so many bytes each, or of 4 to 64 KiB (alike 0). */
static int measure_boxes(gpu_row *x, int64_t n, int64_t alike, bool spans) {
  gpu_context *b = &x->context;
  copy_batch j = {.b = b, .n = n, .span = cli_alloc(n, sizeof *j.span)};
  int64_t *first = cli_alloc(n, sizeof *first), *size = cli_alloc(n, sizeof *size),
          *order = cli_alloc(n, sizeof *order);
  int64_t bytes = 0, at = 0;
  rng r;
  rng_seed(&r, 7);
  for (int64_t i = 0; i < n; bytes += size[i++]) {
    size[i] = draw_bytes(&r, alike);
    first[i] = bytes;
  }
  gpu_shuffle(8, n, order);
  gpu_buffers s = gpu_buffers_create_one(b, bytes, bytes);
  rs_copies copies = {0};
  for (int64_t i = 0; i < n; i++) {
    int64_t k = order[i];
    j.span[i] = (rs_span){s.from + first[k], s.to + at, size[k], false};
    rs_axis axis = {size[k] / 4, 4, 4};
    CLI_TRY("", rs_copies_add(&copies, s.from + first[k], s.to + at, 4, 1, &axis));
    memcpy(s.image + at, s.host + first[k], (size_t)size[k]);
    at += size[k];
  }
  gpu_program program = {.b = b};
  reshard_memory_stats before, after; /* the driver's count goes in larger steps */
  CLI_TRY("", reshard_device_get_memory_stats(b->handle, &before));
  if (!spans)
    CLI_TRY("", b->gpu->work->compile(b->gpu, &copies, bytes, &program.program));
  CLI_TRY("", reshard_device_get_memory_stats(b->handle, &after));
  int wrong = measure_batch(x, &j, &program, &s, bytes);
  if (!spans) {
    gpu_row_add(x, "extra_percent", 100 * (double)(after.in_use_bytes - before.in_use_bytes) / (double)bytes);
    b->gpu->work->release(b->gpu, program.program);
  }
  rs_copies_free(&copies);
  gpu_buffers_free(b, &s);
  free(first);
  free(size);
  free(order);
  free(j.span);
  return wrong;
}

static int copy_many(void *row) {
  gpu_row *x = row;
  return measure_boxes(x, x->small ? 20 : x->parameter, 0, false);
}
static int measure_large(gpu_row *x, bool spans) {
  return measure_boxes(x, x->parameter, x->most / x->parameter & -16, spans);
}
static int copy_large(void *row) { return measure_large(row, false); }
static int copy_spans(void *row) { return measure_large(row, true); }

static const micro_case micro_gpu_many[] = {
    GPU_ROW("gpu_copy_boxes", 100000, copy_many),
    GPU_ROW("gpu_copy_boxes", 8, copy_large),
    GPU_ROW("gpu_copy_spans", 8, copy_spans),
};
GPU_TABLE(micro_gpu_many)
