/* The host's part of an execute on GPUs. */
#ifndef BENCH_HOST_H
#define BENCH_HOST_H

#include "bench/bench/state.h"

/* Called by every local rank on GPUs, between the creation of the row's transfers and their end. */
void bench_host_times(bench_state *b, int64_t local, reshard_plan plan);

#endif
