/* A row of a benchmark. */
#ifndef BENCH_RUN_H
#define BENCH_RUN_H

#include "bench/bench/state.h"

/* Measures b->w, to b->row. */
void bench_run_row(bench_state *b);

#endif
