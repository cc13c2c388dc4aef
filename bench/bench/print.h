/* The results of a benchmark: a table in the manner of nccl-tests, or JSON. */
#ifndef BENCH_PRINT_H
#define BENCH_PRINT_H

#include "bench/bench/state.h"
#include "bench/cli/machine.h"

void bench_print_head(const bench_state *b, const machine *m);
void bench_print_row(const bench_state *b);
void bench_json_head(rs_json *j, const bench_state *b, const machine *m);
void bench_json_row(rs_json *j, const bench_state *b);

#endif
