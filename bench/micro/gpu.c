/* Copies within the memory of a GPU, timed by its events with none of their data in its caches: runs of so many bytes,
 * transposes of elements of so many; gpu_memcpy is the straight copy of as many bytes. RESHARD_MICRO_GPU_BYTES sets how
 * many, else 256 MiB. */
#include "bench/micro/micro.h"

#include "bench/gpu/context.h"

#include <math.h>
#include <stdlib.h>

typedef struct gpu_bench {
  gpu_context context;
  gpu_program copy;
  gpu_memcpy straight;
  char *src, *dst;
  int64_t bytes;
  double seconds; /* of the last run */
} gpu_bench;

static gpu_bench *gpu_open(void) {
  const char *given = getenv("RESHARD_MICRO_GPU_BYTES");
  gpu_bench *b = calloc(1, sizeof *b);
  if (b == NULL)
    return NULL;
  gpu_context_open(&b->context);
  b->bytes = given != NULL ? strtoll(given, NULL, 10) & -4096 : 256 << 20;
  if (b->bytes < 1 << 16)
    cli_exit(EXIT_USAGE, "RESHARD_MICRO_GPU_BYTES: '%s' is no number of 65536 or more", given);
  b->src = gpu_context_alloc(&b->context, 2 * b->bytes);
  b->dst = gpu_context_alloc(&b->context, b->bytes);
  CLI_TRY("", b->context.gpu->memory->memset(b->context.gpu, b->src, 1, (size_t)(2 * b->bytes), b->context.stream[0]));
  b->straight = (gpu_memcpy){&b->context, b->dst, b->src, b->bytes};
  return b;
}

static void gpu_drop(void *state) {
  gpu_bench *b = state;
  if (b->copy.program != NULL)
    b->context.gpu->work->release(b->context.gpu, b->copy.program);
  gpu_context_free(&b->context, b->src);
  gpu_context_free(&b->context, b->dst);
  gpu_context_close(&b->context);
  free(b);
}

static void compile_copy(gpu_bench *b, int32_t width, const rs_axis axes[2]) {
  rs_copies copies = {0};
  b->copy.b = &b->context;
  CLI_TRY("", rs_copies_add(&copies, b->src, b->dst, width, 2, axes));
  CLI_TRY("", b->context.gpu->work->compile(b->context.gpu, &copies, copies.bytes, &b->copy.program));
  rs_copies_free(&copies);
}

/* Runs of so many bytes: every second of the source, one behind the other in the destination. */
static void *runs_make(int64_t run, int64_t *items) {
  gpu_bench *b = gpu_open();
  if (b == NULL)
    return NULL;
  const rs_axis axes[] = {{b->bytes / run, 2 * run, run}, {run / 4, 4, 4}};
  b->bytes = b->bytes / run * run;
  *items = b->bytes / run;
  compile_copy(b, 4, axes);
  return b;
}

static void *transpose_make(int64_t width, int64_t *items) {
  gpu_bench *b = gpu_open();
  if (b == NULL)
    return NULL;
  int64_t n = (int64_t)sqrt((double)b->bytes / (double)width) & -8;
  const rs_axis axes[] = {{n, width, n * width}, {n, n * width, width}};
  b->bytes = n * n * width;
  *items = n * n;
  compile_copy(b, (int32_t)width, axes);
  return b;
}

static void *memcpy_make(int64_t unused, int64_t *items) {
  (void)unused;
  *items = 1;
  return gpu_open();
}

static int gpu_run(void *state) {
  gpu_bench *b = state;
  b->seconds = b->copy.program != NULL ? gpu_context_time(&b->context, gpu_program_run, &b->copy, 1, 0)
                                       : gpu_context_time(&b->context, gpu_memcpy_run, &b->straight, 1, 0);
  return 0;
}

static int64_t gpu_bytes(const void *state) { return ((const gpu_bench *)state)->bytes; }
static double gpu_seconds(const void *state) { return ((const gpu_bench *)state)->seconds; }
static int gpu_here(void) { return gpu_why_none() == NULL; }

#define CASE(name, parameter, make) \
  { name, parameter, 0, make, gpu_run, gpu_drop }

static const micro_case micro_gpu[] = {
    CASE("gpu_copy_runs", 16, runs_make),
    CASE("gpu_copy_runs", 64, runs_make),
    CASE("gpu_copy_runs", 256, runs_make),
    CASE("gpu_copy_runs", 4096, runs_make),
    CASE("gpu_copy_runs", 65536, runs_make),
    CASE("gpu_copy_transpose", 1, transpose_make),
    CASE("gpu_copy_transpose", 2, transpose_make),
    CASE("gpu_copy_transpose", 4, transpose_make),
    CASE("gpu_copy_transpose", 8, transpose_make),
    CASE("gpu_memcpy", 0, memcpy_make),
    {NULL, 0, 0, NULL, NULL, NULL},
};
MICRO_TABLE_TIMED(micro_gpu, gpu_bytes, gpu_seconds, gpu_here)
