/* Many seeds by several runners at once. */
#ifndef BENCH_CASE_MANY_H
#define BENCH_CASE_MANY_H

#include "bench/verify/case_run.h"

typedef struct case_options {
  int64_t cases;
  uint64_t seed; /* case i has seed + i */
  int workers;
  case_choices fixed;
  const char *reproduce; /* further options of the command that reproduces a failure */
  int64_t most_failures; /* stop after so many */
  double end;            /* begin no case after this time of rs_seconds(); 0: never */
} case_options;
/* Prints each failure with the command that reproduces it; returns how many there were. */
int64_t case_run_all(const case_options *many, case_totals *totals);
/* Kept regressions (regressions.h). */
int64_t case_run_regressions(const case_options *many, case_totals *totals, int64_t *count);
/* The table of pairs of kinds; returns the number of pairs without a case. */
int64_t case_print_totals(const case_totals *totals, FILE *out);

#endif
