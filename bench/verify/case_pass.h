/* A pass of a case: a transfer, executed again and again. */
#ifndef BENCH_CASE_PASS_H
#define BENCH_CASE_PASS_H

#include "bench/verify/case_context.h"

/* Runs a pass of that number on one rank. generation counts on, so that no data comes twice. False where any rank's
 * result was wrong. */
bool case_pass_run(case_context *l, const case_pass *p, int64_t rank, int number, int *generation);
/* Checks that the reverse plan brings every source element of the region back from the result of a forward pass. */
bool case_pass_reverse(case_context *l, const case_pass *p, int64_t rank, int number, int generation);

#endif
