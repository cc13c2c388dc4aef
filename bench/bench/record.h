/* The trace of a row of a benchmark. */
#ifndef BENCH_RECORD_H
#define BENCH_RECORD_H

#include "bench/bench/state.h"

/* Records an execute. Called by every local rank, between the creation of the row's transfers and their end. */
void bench_trace_row(bench_state *b, int64_t local);
/* Sets the row's times of phases from the trace. */
void bench_trace_phases(bench_state *b);
/* Writes the trace; NULL: no file of this kind. */
void bench_trace_write(const bench_state *b, const char *json, const char *svg);

#endif
