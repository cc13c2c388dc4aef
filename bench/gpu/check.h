/* A GPU's copies, casts, selections and storage against the CPU's, at random. */
#ifndef BENCH_GPU_CHECK_H
#define BENCH_GPU_CHECK_H

#include "bench/gpu/context.h"

/* Returns the exit status. */
int gpu_check(gpu_context *b, int64_t cases, uint64_t seed, bool large);

#endif
