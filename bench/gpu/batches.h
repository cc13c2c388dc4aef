/* Batches of contiguous boxes of reshard_gpu bench. */
#ifndef BENCH_GPU_BATCHES_H
#define BENCH_GPU_BATCHES_H

#include "bench/gpu/rows.h"

/* Measures n contiguous boxes, of 4 to 64 KiB (alike 0) or of so many bytes, in a shuffled order, by one program of the
 * box copy or as spans of an exchange, beside CUB and the runtime. */
void gpu_batch_case(gpu_bench_run *x, const char *name, int64_t n, int64_t alike, bool spans);

#endif
