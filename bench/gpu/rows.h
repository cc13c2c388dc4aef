/* Inside of reshard_gpu bench: rows, and what the cases of several files need. */
#ifndef BENCH_GPU_ROWS_H
#define BENCH_GPU_ROWS_H

#include "bench/gpu/context.h"

enum { RIVALS = 2, ROWS = 24 };

typedef struct gpu_row {
  char name[64];
  const char *unit; /* of figure and goal: what is compared */
  double figure, goal;
  bool at_least; /* figure >= goal meets it; else <= */
  bool wrong;    /* the data */
  int64_t bytes;
  double us, memcpy_us;
  const char *rival[RIVALS]; /* NULL: none */
  double rival_us[RIVALS];   /* 0: this machine or build lacks it */
} gpu_row;

typedef struct gpu_bench_run {
  gpu_context *b;
  const gpu_bench_options *o;
  bool small; /* tests: sizes that show nothing */
  int64_t rows;
  gpu_row row[ROWS];
} gpu_bench_run;

typedef struct gpu_timed_work {
  gpu_work work;
  void *user; /* [sets], each of so many bytes */
  size_t size;
} gpu_timed_work;

/* Medians of n runners, in turns, each over all sets of buffers; one turn to warm up. For a profiler each runs once,
 * with the first set, and nothing is timed. */
void gpu_measure(gpu_bench_run *x, int64_t sets, int n, const gpu_timed_work *runners, double *seconds);
gpu_row *gpu_add_row(gpu_bench_run *x, const char *name, const char *unit, double goal, bool at_least);
bool gpu_wanted(const gpu_bench_run *x, const char *name);
void gpu_print_row(const gpu_bench_run *x, const gpu_row *r);

/* A copy of the GPU's own, of all of a set. */
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

/* Memory filled with numbers that tell places apart, and what the CPU makes of the same copies. */
typedef struct gpu_buffers {
  char *from, *to; /* of set i at i * from_step and i * to_step */
  char *host, *image, *seen;
  int64_t from_bytes, to_bytes, from_step, to_step, sets;
} gpu_buffers;
gpu_buffers gpu_buffers_create(gpu_context *b, int64_t from_bytes, int64_t to_bytes);
gpu_buffers gpu_buffers_create_one(gpu_context *b, int64_t from_bytes, int64_t to_bytes); /* one set, however small */
void gpu_buffers_free(gpu_context *b, gpu_buffers *s);
/* The destinations' places go to zero, so that nothing of before is taken for a result. */
void gpu_buffers_clear(gpu_context *b, gpu_buffers *s);
/* Are the destinations what the CPU made? */
bool gpu_buffers_right(gpu_context *b, gpu_buffers *s);

/* copies.c: box copies from [m][k][run] to [k][m][run], or, with k == 0, from [m][n] elements of `run` bytes to [n][m];
 * all rows of a table of bf16 in another order. */
void gpu_box_case(gpu_bench_run *x, const char *name, int64_t run, int64_t k, double goal);
void gpu_select_case(gpu_bench_run *x, const char *name, int64_t rows, int64_t columns);
/* batches.c: n contiguous boxes, of 4 to 64 KiB (alike 0) or of so many bytes, in an order of their own, by one program
 * of the box copy or as spans of an exchange, beside CUB and the runtime. */
void gpu_batch_case(gpu_bench_run *x, const char *name, int64_t n, int64_t alike, bool spans);
/* host.c: what the host needs for an execute. */
void gpu_host_cases(gpu_bench_run *x);

#endif
