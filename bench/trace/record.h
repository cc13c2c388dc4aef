/* One execute more of a benchmark's row, recorded. */
#ifndef BENCH_TRACE_RECORD_H
#define BENCH_TRACE_RECORD_H

#include "bench/bench/state.h"

/* Called by every local rank while the row's transfers are there. */
void bench_trace_row(bench_state *b, int64_t local);
/* NULL: not to a file of this kind. */
void bench_trace_write(const bench_state *b, const char *json, const char *svg);

#endif
