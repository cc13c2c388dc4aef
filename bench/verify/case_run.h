/* A case run over a communicator and compared with the oracle byte by byte. */
#ifndef BENCH_CASE_RUN_H
#define BENCH_CASE_RUN_H

#include "bench/verify/case_make.h"

/* A runner owns rank threads and communicators and runs one case at a time; several runners may run at
 * once. */
typedef struct case_runner case_runner;
typedef struct case_totals {
  int64_t cases, entries, executes, bytes, wire_bytes, reversed;
  int64_t pairs[RESHARD_LAYOUT_KIND_COUNT][RESHARD_LAYOUT_KIND_COUNT]; /* cases that hold such an entry */
} case_totals;
case_runner *case_runner_create(const case_choices *fixed);
void case_runner_destroy(case_runner *runner);
/* True when all was right; else *why (to be freed) tells the first thing that was not. Adds to totals. */
bool case_run(case_runner *runner, uint64_t seed, case_totals *totals, char **why);

#endif
