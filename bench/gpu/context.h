/* reshard_gpu: the parts of the library that `reshard` does not show alone - copies, casts, selections, storage - on
 * one GPU: that they do what the CPU does (check), and how fast they are (bench). */
#ifndef BENCH_GPU_CONTEXT_H
#define BENCH_GPU_CONTEXT_H

#include "bench/cli/json.h"
#include "bench/launch/gpu.h"
#include "bench/verify/random.h"

enum { GPU_STREAMS = 3 };

typedef struct gpu_context {
  reshard_device handle;
  rs_device *gpu, *cpu; /* cpu: to compare with */
  void *stream[GPU_STREAMS];
  gpu_info info;
  /* timing */
  rs_event *begin, *end;
  void *scratch;
  size_t scratch_bytes;
  int64_t hold;
} gpu_context;

void gpu_context_open(gpu_context *b);
void gpu_context_close(gpu_context *b);
/* Memory of the GPU; ends the program where there is none. */
void *gpu_context_alloc(const gpu_context *b, int64_t bytes);
void gpu_context_free(const gpu_context *b, void *memory);
void gpu_context_to_gpu(const gpu_context *b, void *to, const void *from,
                        int64_t bytes); /* both are done when they return */
void gpu_context_to_host(const gpu_context *b, void *to, const void *from, int64_t bytes);
void gpu_context_wait(const gpu_context *b);

/* Seconds that the GPU takes for what work gives to the stream, with empty caches, and without the time that the host
 * takes to give it: the stream is held by memsets until it has been given. Of several pieces of work, each with buffers
 * of its own - user + i * size is that of the i-th -, one after the other: the mean (gpu.h). */
typedef reshard_status (*gpu_work)(void *user, void *stream);
double gpu_context_time(gpu_context *b, gpu_work work, void *user, int64_t n, size_t size);

/* Both return the exit status. */
int gpu_check(gpu_context *b, int64_t cases, uint64_t seed, bool large);
typedef struct gpu_bench_options {
  int64_t bytes; /* of the large cases */
  int64_t iterations;
  const char *only; /* cases whose names begin so; NULL: all */
  const char *json; /* NULL: none */
  bool profile;     /* each piece of work once, untimed */
} gpu_bench_options;
int gpu_bench(gpu_context *b, const gpu_bench_options *options);

#endif
