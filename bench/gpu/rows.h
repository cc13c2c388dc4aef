/* The rows of reshard_gpu bench: measuring, printing, JSON. */
#ifndef BENCH_GPU_ROWS_H
#define BENCH_GPU_ROWS_H

#include "bench/gpu/context.h"

typedef struct gpu_bench_options {
  int64_t bytes; /* of the large cases */
  int64_t iterations;
  const char *only; /* cases whose names begin so; NULL: all */
  const char *json; /* NULL: none */
  bool sweep;       /* of how programs are cut, in place of the cases */
  bool profile;     /* each piece of work once, untimed */
} gpu_bench_options;

enum { RIVALS = 2, ROWS = 64 };

typedef struct gpu_row {
  char name[64];
  const char *unit;    /* of figure and goal: what is compared */
  double figure, goal; /* goal 0: none */
  bool at_least;       /* figure >= goal meets it; else <= */
  bool wrong;          /* the data */
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

/* Medians of n pieces of work, in turns, each over all sets of buffers; one turn to warm up. For a profiler each runs
 * once, with the first set, and nothing is timed. */
void gpu_measure(gpu_bench_run *x, int64_t sets, int n, const gpu_timed_work *runners, double *seconds);
gpu_row *gpu_add_row(gpu_bench_run *x, const char *name, const char *unit, double goal, bool at_least);
bool gpu_wanted(const gpu_bench_run *x, const char *name);
void gpu_print_row(const gpu_bench_run *x, const gpu_row *r);

/* Writes all rows to the file of --json. */
void gpu_write_rows(const gpu_bench_run *x);

/* Measures box copies from [m][k][run] to [k][m][run] or, with k == 0, from [m][n] elements of `run` bytes to [n][m];
 * the source begins `shift` bytes behind an aligned address. goal 0: none. */
typedef struct gpu_box {
  const char *name;
  int64_t run, k, shift;
  double goal;
} gpu_box;
void gpu_box_case(gpu_bench_run *x, const gpu_box *box);
/* Measures a selection of all rows of a table, of so many bytes each, in another order. */
void gpu_select_case(gpu_bench_run *x, const char *name, int64_t rows, int64_t run, int32_t element, double goal);
/* Measures a cast of contiguous elements beside a memcpy that reads and writes as many bytes together. */
void gpu_cast_case(gpu_bench_run *x, const char *name, reshard_dtype from, reshard_dtype to);
/* Measures the host's time to allocate a block of the storage pool and to free it. */
void gpu_pool_case(gpu_bench_run *x);
/* Measures how programs are best cut on this GPU, and prints what to set. */
void gpu_sweep(gpu_bench_run *x);

/* Measures n contiguous boxes, of 4 to 64 KiB (alike 0) or of so many bytes, in a shuffled order. One program of the
 * box copy moves them, or they are spans of an exchange, beside CUB and the runtime. */
void gpu_batch_case(gpu_bench_run *x, const char *name, int64_t n, int64_t alike, bool spans);

/* Measures the host's time for an execute. */
void gpu_host_cases(gpu_bench_run *x);

/* Runs all cases. Returns the exit status. */
int gpu_bench(gpu_context *b, const gpu_bench_options *options);

#endif
