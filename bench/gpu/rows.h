/* The rows of reshard_gpu bench: measuring, printing, JSON. */
#ifndef BENCH_GPU_ROWS_H
#define BENCH_GPU_ROWS_H

#include "bench/gpu/context.h"

typedef struct gpu_bench_options {
  int64_t bytes; /* of the large cases */
  int64_t iterations;
  const char *only;  /* beginnings of names of cases, with | between them; NULL: all */
  const char *after; /* the case before the first; NULL: none */
  const char *json;  /* NULL: none */
  int64_t seconds;   /* that a case has; then the program is ended, as by a kernel that hangs. 0: no limit */
  bool sweep;        /* of how programs are cut, in place of the cases */
  bool profile;      /* each piece of work once, untimed */
} gpu_bench_options;

enum { RIVALS = 2, ROWS = 64 };

typedef struct gpu_row {
  char name[64];
  const char *unit; /* of figure: what is compared */
  double figure;
  bool wrong; /* the data */
  int64_t bytes;
  double us, memcpy_us;
  const char *rival[RIVALS]; /* NULL: none */
  double rival_us[RIVALS];   /* 0: this machine or build lacks it */
} gpu_row;

typedef struct gpu_bench_run {
  gpu_context *b;
  const gpu_bench_options *o;
  bool small;   /* tests: sizes that show nothing */
  bool reached; /* the case that o->after names */
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
gpu_row *gpu_add_row(gpu_bench_run *x, const char *name, const char *unit);
/* Begins a case where it is wanted: prints its name, which is the last line of a program that it ends. */
bool gpu_begin_case(gpu_bench_run *x, const char *name);
void gpu_print_row(const gpu_bench_run *x, const gpu_row *r);

/* Writes all rows to the file of --json. */
void gpu_write_rows(const gpu_bench_run *x);

/* Runs all cases. Returns the exit status. */
int gpu_bench(gpu_context *b, const gpu_bench_options *options);

#endif
