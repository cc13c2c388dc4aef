#ifndef BENCH_GPU_REDISTRIBUTE_H
#define BENCH_GPU_REDISTRIBUTE_H

#include "bench/gpu/rows.h"

/* Measures redistributing a DTensor over 4 ranks that are threads, by the host's clock, beside a memcpy by events. */
void gpu_redistribute_case(gpu_bench_run *x);

#endif
