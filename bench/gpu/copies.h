/* Box copies and selections of reshard_gpu bench. */
#ifndef BENCH_GPU_COPIES_H
#define BENCH_GPU_COPIES_H

#include "bench/gpu/rows.h"

/* Measures box copies from [m][k][run] to [k][m][run] or, with k == 0, from [m][n] elements of `run` bytes to [n][m];
 * and a selection of all rows of a table of bf16 in another order. */
void gpu_box_case(gpu_bench_run *x, const char *name, int64_t run, int64_t k, double goal);
void gpu_select_case(gpu_bench_run *x, const char *name, int64_t rows, int64_t columns);

#endif
