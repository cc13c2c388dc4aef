/* Cases of reshard_gpu bench: copies.c, batches.c, host.c. */
#ifndef BENCH_GPU_CASES_H
#define BENCH_GPU_CASES_H

#include "bench/gpu/rows.h"

/* Measures box copies from [m][k][run] to [k][m][run] or, with k == 0, from [m][n] elements of `run` bytes to [n][m];
 * and a selection of all rows of a table of bf16 in another order. */
void gpu_box_case(gpu_bench_run *x, const char *name, int64_t run, int64_t k, double goal);
void gpu_select_case(gpu_bench_run *x, const char *name, int64_t rows, int64_t columns);

/* Measures n contiguous boxes, of 4 to 64 KiB (alike 0) or of so many bytes, in a shuffled order, by one program of the
 * box copy or as spans of an exchange, beside CUB and the runtime. */
void gpu_batch_case(gpu_bench_run *x, const char *name, int64_t n, int64_t alike, bool spans);

/* Measures the host's time for an execute. */
void gpu_host_cases(gpu_bench_run *x);

#endif
