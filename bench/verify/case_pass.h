/* A pass of a case: a transfer, executed again and again. */
#ifndef BENCH_CASE_PASS_H
#define BENCH_CASE_PASS_H

#include "bench/verify/case_context.h"

/* A pass, on one rank, of that number. generation counts on, so that no data comes twice. False where any rank's was
 * not right. */
bool case_pass_run(case_context *l, const case_pass *p, int64_t rank, int number, int *generation);
/* The reverse plan brings every source element of the region back from what a forward pass delivered. */
bool case_pass_reverse(case_context *l, const case_pass *p, int64_t rank, int number, int generation);

#endif
