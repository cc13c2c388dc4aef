/* All cases of reshard_gpu bench. */
#ifndef BENCH_GPU_BENCH_H
#define BENCH_GPU_BENCH_H

#include "bench/gpu/rows.h"

/* Returns the exit status. */
int gpu_bench(gpu_context *b, const gpu_bench_options *options);

#endif
