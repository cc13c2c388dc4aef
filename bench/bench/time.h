/* Times of a row: of work on all ranks, and of the host. */
#ifndef BENCH_TIME_H
#define BENCH_TIME_H

#include "bench/bench/state.h"

/* Work that is timed: called by every local rank, with each set of buffers in turn. */
typedef void (*bench_work)(bench_state *b, int64_t local, int64_t set);
void bench_execute(bench_state *b, int64_t local, int64_t set);
void bench_reshard(bench_state *b, int64_t local, int64_t set); /* `each` executes, or a graph of them */
void bench_memcpy(bench_state *b, int64_t local, int64_t set);

/* One time of those that ranks or processes have measured, as -a has it. */
typedef enum bench_average { BENCH_RANK_0, BENCH_MEAN, BENCH_SHORTEST, BENCH_LONGEST } bench_average;
/* The functions below are called by every local rank; the result is local rank 0's.
 *
 * bench_timed returns the seconds of the work on one set. bench_timed_call returns those of one call on set 0, by the
 * host's clock, until it is done. bench_combine joins the times of the processes' first ranks. */
double bench_timed(bench_state *b, int64_t local, bench_work work, bench_average average);
double bench_timed_call(bench_state *b, int64_t local, bench_work work);
double bench_combine(bench_state *b, int64_t local, double seconds, bench_average average);

/* Called by every local rank on GPUs, between the creation of the row's transfers and their end. */
void bench_host_times(bench_state *b, int64_t local, reshard_plan plan);

#endif
