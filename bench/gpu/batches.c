/* Batches of contiguous boxes, beside CUB and the runtime. */
#include "bench/gpu/cases.h"

#include "bench/gpu/context.h"
#include "bench/gpu/cub_copy.h"
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

/* Adds a row of our time over a rival's. */
static void add_rival(gpu_bench_run *x, const char *name, const char *rival, const gpu_row *ours, double seconds) {
  gpu_row *r = gpu_add_row(x, name, "x its time");
  snprintf(r->name + strlen(r->name), sizeof r->name - strlen(r->name), ", %s", rival);
  r->bytes = ours->bytes;
  r->us = ours->us;
  r->memcpy_us = ours->memcpy_us;
  r->figure = ours->us / (1e6 * seconds);
  gpu_print_row(x, r);
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

static void measure_batch(gpu_bench_run *x, const char *name, copy_batch *j, gpu_program *program, gpu_buffers *s,
                          int64_t bytes) {
  gpu_context *b = x->b;
  gpu_memcpy p = {b, s->to, s->from, bytes};
  gpu_timed_work runners[4] = {{gpu_program_run, program, 0}, {gpu_memcpy_run, &p, 0}};
  double t[4] = {0}, fastest = 0;
  int n = 2, at[RIVALS] = {-1, -1};
  if (program->program == NULL)
    runners[0] = (gpu_timed_work){run_spans, j, 0};
  bool cub = create_cub(j);
  if (run_runtime(j, b->stream[0]) == RESHARD_SUCCESS)
    runners[at[0] = n++] = (gpu_timed_work){run_runtime, j, 0};
  if (cub)
    runners[at[1] = n++] = (gpu_timed_work){run_cub, j, 0};
  gpu_measure(x, s->sets, n, runners, t);
  gpu_buffers_clear(b, s);
  CLI_TRY("", runners[0].work(runners[0].user, b->stream[0]));
  gpu_row *r = gpu_add_row(x, name, "of memcpy's speed");
  r->wrong = !gpu_buffers_right(b, s);
  r->bytes = bytes;
  r->us = 1e6 * t[0];
  r->memcpy_us = 1e6 * t[1];
  r->figure = t[1] / t[0];
  static const char *const rivals[RIVALS] = {"cudaMemcpyBatchAsync", "cub::DeviceMemcpy"};
  for (int i = 0; i < RIVALS; i++) {
    r->rival[i] = rivals[i];
    r->rival_us[i] = at[i] >= 0 ? 1e6 * t[at[i]] : 0;
    if (at[i] >= 0 && (fastest == 0 || t[at[i]] < fastest))
      fastest = t[at[i]];
  }
  gpu_print_row(x, r);
  if (fastest > 0 && !x->o->profile)
    add_rival(x, name, "rivals", r, fastest);
  if (program->program != NULL && j->n > 8 && !x->o->profile) { /* many small boxes */
    add_rival(x, name, "a loop of cudaMemcpyAsync", r, time_loop(b, j));
    if (at[1] >= 0)
      add_rival(x, name, "CUB", r, t[at[1]]);
  }
  free_cub(j);
}

void gpu_batch_case(gpu_bench_run *x, const char *name, int64_t n, int64_t alike, bool spans) {
  if (!gpu_begin_case(x, name))
    return;
  gpu_context *b = x->b;
  copy_batch j = {.b = b, .n = n, .span = cli_alloc(n, sizeof *j.span)};
  rng r;
  rng_seed(&r, 7);
  int64_t *size = cli_alloc(n, sizeof *size), *order = cli_alloc(n, sizeof *order), bytes = 0, at = 0;
  for (int64_t i = 0; i < n; i++) {
    bytes += size[i] = draw_bytes(&r, alike);
    int64_t k = rng_in(&r, 0, i);
    order[i] = order[k];
    order[k] = i;
  }
  gpu_buffers s = gpu_buffers_create_one(b, bytes, bytes);
  rs_copies copies = {0};
  int64_t *first = cli_alloc(n, sizeof *first);
  for (int64_t i = 0; i < n; at += size[i++])
    first[i] = at;
  at = 0;
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
  if (!spans && !x->o->profile) {
    gpu_row *r = gpu_add_row(x, name, "% of the bytes");
    snprintf(r->name + strlen(r->name), sizeof r->name - strlen(r->name), ", extra memory");
    r->bytes = (int64_t)(after.in_use_bytes - before.in_use_bytes);
    r->figure = 100 * (double)r->bytes / (double)bytes;
    gpu_print_row(x, r);
  }
  measure_batch(x, name, &j, &program, &s, bytes);
  if (!spans)
    b->gpu->work->release(b->gpu, program.program);
  rs_copies_free(&copies);
  gpu_buffers_free(b, &s);
  free(first);
  free(size);
  free(order);
  free(j.span);
}
