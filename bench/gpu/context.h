/* The context of a check or a benchmark on one GPU: devices, streams, events. */
#ifndef BENCH_GPU_CONTEXT_H
#define BENCH_GPU_CONTEXT_H

#include "bench/cli/util.h"
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

/* Seconds that the GPU takes for the work, with empty caches and without the host's launches: memsets hold the stream
 * until these are over. The work is repeated n times, the i-th with user + i * size, one after the other; the time is
 * the mean (gpu.h). */
typedef reshard_status (*gpu_work)(void *user, void *stream);
double gpu_context_time(gpu_context *b, gpu_work work, void *user, int64_t n, size_t size);

typedef struct gpu_check_options {
  int64_t cases;
  uint64_t seed;
  const char *kind; /* of the cases; NULL: all */
  bool large;       /* offsets beyond 4 GiB, too */
} gpu_check_options;
/* Checks a GPU's copies, casts, selections and storage against the CPU's, at random. Returns the exit status. */
int gpu_check(gpu_context *b, const gpu_check_options *options);
bool gpu_check_knows(const char *kind);

/* Draws strides of n loops (4 at most) on one side: in any order, with gaps. Returns the bytes that they span. */
int64_t gpu_draw_strides(rng *r, int n, const int64_t *extent, int32_t element, bool gaps, int64_t *stride);
/* Makes memory, of whole 8 bytes, numbers of usual sizes in each dtype: f32 and bf16 of 2^-15 to 2, of either sign. */
void gpu_usual_numbers(char *memory, int64_t bytes);
/* Draws copies that convert, the same for two devices, from and to memory of so many bytes on each. */
void gpu_draw_conversions(rng *r, int64_t room, char *const from[2], char *const to[2], rs_copies copies[2]);

#endif
