/* The host's part of an execute, of reshard_gpu bench. */
#ifndef BENCH_GPU_HOST_H
#define BENCH_GPU_HOST_H

#include "bench/gpu/rows.h"

/* Measures the host's time for an execute. */
void gpu_host_cases(gpu_bench_run *x);

#endif
