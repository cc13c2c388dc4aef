/* Rows of a GPU. Each is measured in turns with the GPU's own copy of as many bytes, and with rivals. None of them
 * finds its data in a cache (bench/launch/gpu.h). What a row leaves is compared with the CPU's result; where they
 * differ the row fails. A key of a row's note that ends in _us is a time beside the row's own. */
#ifndef MICRO_GPU_H
#define MICRO_GPU_H

#include "bench/gpu/context.h"
#include "bench/micro/micro.h"

typedef struct gpu_row {
  gpu_context context;
  int64_t parameter; /* of the case */
  int64_t most;      /* bytes of a large row: RESHARD_MICRO_GPU_BYTES, or 256 MiB */
  int64_t turns;     /* RESHARD_MICRO_GPU_TURNS, or 20. 0: each piece of work once and untimed, for a profiler */
  bool small;        /* tests: sizes that show nothing */
  /* what was measured */
  int64_t bytes;
  double seconds;
  char note[320];
} gpu_row;

void *gpu_row_open(const micro_case *of, int64_t *items);
void gpu_row_close(void *row);
/* The row's own time, and the bytes that it moves: they begin the note. */
void gpu_row_set(gpu_row *x, int64_t bytes, double seconds);
void gpu_row_add(gpu_row *x, const char *key, double value);
/* The time of a memcpy beside it: memcpy_us, x_memcpy (our time over its), of_memcpy (our speed over its). */
void gpu_row_add_memcpy(gpu_row *x, double seconds);

int gpu_row_here(void);
int64_t gpu_row_bytes(const void *row);
double gpu_row_seconds(const void *row);
const char *gpu_row_note(const void *row);
#define GPU_ROW(name, parameter, run) \
  { name, parameter, 1, gpu_row_open, run, gpu_row_close, {0}, NULL }
#define GPU_TABLE(cases) MICRO_TABLE_TIMED(cases, gpu_row_bytes, gpu_row_seconds, gpu_row_note, gpu_row_here)

typedef struct gpu_timed_work {
  gpu_work work;
  void *user; /* [sets], each of so many bytes */
  size_t size;
} gpu_timed_work;
/* Medians of n pieces of work, in turns, each over all sets of buffers; one turn to warm up. Work that takes the
 * host long has few turns. */
void gpu_row_measure(gpu_row *x, int64_t sets, int n, const gpu_timed_work *runners, double *seconds);

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
/* 1 where the destinations differ from the CPU's result, which is then told; else 0: what a row returns. */
int gpu_buffers_wrong(gpu_context *b, gpu_buffers *s);
/* Makes the sources numbers of usual sizes (bench/gpu/context.h). */
void gpu_buffers_make_numbers(gpu_context *b, gpu_buffers *s);

/* Measures work on the sets of buffers beside memcpys of as many bytes, and checks what it leaves. */
int gpu_row_measure_beside_memcpy(gpu_row *x, gpu_timed_work work, gpu_buffers *s, int64_t bytes);
/* The copies of a row, from one place to another, compiled for one device. */
typedef rs_program *gpu_compile(rs_device *device, const char *from, char *to, const void *shape);
/* Compiles a list and frees it. */
rs_program *gpu_compile_copies(rs_device *device, rs_copies *copies);
/* Measures a program of copies in the same way. What the same copies leave on the CPU is right. Frees the buffers. */
int gpu_row_measure_program(gpu_row *x, gpu_compile *compile, const void *shape, gpu_buffers s, int64_t bytes);

/* An order of n things that is not theirs. */
void gpu_shuffle(uint64_t seed, int64_t n, int64_t *order);

#endif
