/* Times of a benchmark. */
#ifndef BENCH_TIME_H
#define BENCH_TIME_H

#include "bench/bench/state.h"

/* Work that is timed: called by every local rank, with each set of buffers in turn. */
typedef void (*bench_work)(bench_state *b, int64_t local, int64_t set);
void bench_reshard(bench_state *b, int64_t local, int64_t set);
void bench_memcpy(bench_state *b, int64_t local, int64_t set);
/* Both functions are called by every local rank; the result is local rank 0's. bench_timed returns the seconds of the
 * work on one set. bench_longest returns the longest time of the processes' first ranks. */
double bench_timed(bench_state *b, int64_t local, bench_work work);
double bench_longest(bench_state *b, int64_t local, double seconds);

#endif
