/* The cases of reshard_gpu bench: each measures, checks and adds its row. */
#ifndef BENCH_GPU_CASES_H
#define BENCH_GPU_CASES_H

#include "bench/gpu/rows.h"

/* Measures box copies from [m][k][run] to [k][m][run] or, with k == 0, from [m][n] elements of `run` bytes to [n][m];
 * the source begins `shift` bytes behind an aligned address. parts: k copies, one a run of the source, in the place of
 * one. */
typedef struct gpu_box {
  const char *name;
  int64_t run, k, shift;
  bool parts;
} gpu_box;
void gpu_box_case(gpu_bench_run *x, const gpu_box *box);
/* Measures a selection of all rows of a table, of so many bytes each, in another order. */
void gpu_select_case(gpu_bench_run *x, const char *name, int64_t rows, int64_t run, int32_t element);
/* Measures what FSDP copies after an all-gather, from the buffer to the tensors of a layer; or back, before a
 * reduce-scatter. */
void gpu_fsdp_case(gpu_bench_run *x, const char *name, bool back);
/* Measures a cast of contiguous elements beside a memcpy that reads and writes as many bytes together. */
void gpu_cast_case(gpu_bench_run *x, const char *name, reshard_dtype from, reshard_dtype to);
/* Measures the host's time to allocate a block of the storage pool and to free it. */
void gpu_pool_case(gpu_bench_run *x);
/* Measures n contiguous boxes, of 4 to 64 KiB (alike 0) or of so many bytes, in a shuffled order. One program of the
 * box copy moves them, or they are spans of an exchange, beside CUB and the runtime. */
void gpu_batch_case(gpu_bench_run *x, const char *name, int64_t n, int64_t alike, bool spans);

/* Measures the host's time for an execute. */
void gpu_host_cases(gpu_bench_run *x);

#endif
