/* Times of a benchmark. */
#ifndef BENCH_TIME_H
#define BENCH_TIME_H

#include "bench/bench/state.h"

/* What is timed: called by every local rank, with each set of buffers in turn. */
typedef void (*bench_work)(bench_state *b, int64_t local, int64_t set);
void bench_reshard(bench_state *b, int64_t local, int64_t set);
void bench_memcpy(bench_state *b, int64_t local, int64_t set);
/* Called by every local rank; the result is local rank 0's. Seconds that work takes for a set; of what the processes'
 * first ranks have measured, the longest. */
double bench_timed(bench_state *b, int64_t local, bench_work work);
double bench_longest(bench_state *b, int64_t local, double seconds);

#endif
