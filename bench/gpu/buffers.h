/* Memory that the cases of reshard_gpu bench copy, and the two copies that most of them compare. */
#ifndef BENCH_GPU_BUFFERS_H
#define BENCH_GPU_BUFFERS_H

#include "bench/gpu/context.h"

/* The GPU's own copy of a whole set. */
typedef struct gpu_memcpy {
  gpu_context *b;
  char *to;
  const char *from;
  int64_t bytes;
} gpu_memcpy;
reshard_status gpu_memcpy_run(void *user, void *stream);
/* A program of box copies. */
typedef struct gpu_program {
  gpu_context *b;
  rs_program *program;
} gpu_program;
reshard_status gpu_program_run(void *user, void *stream);

/* Memory filled with numbers that differ from place to place, and the CPU's result of the same copies. */
typedef struct gpu_buffers {
  char *from, *to; /* of set i at i * from_step and i * to_step */
  char *host, *image, *seen;
  int64_t from_bytes, to_bytes, from_step, to_step, sets;
} gpu_buffers;
gpu_buffers gpu_buffers_create(gpu_context *b, int64_t from_bytes, int64_t to_bytes);
gpu_buffers gpu_buffers_create_one(gpu_context *b, int64_t from_bytes, int64_t to_bytes); /* one set, however small */
void gpu_buffers_free(gpu_context *b, gpu_buffers *s);
/* Clears the destinations, so that no earlier result is taken for a new one. */
void gpu_buffers_clear(gpu_context *b, gpu_buffers *s);
/* True where the destinations equal the CPU's result. */
bool gpu_buffers_right(gpu_context *b, gpu_buffers *s);

#endif
