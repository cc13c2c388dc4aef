/* What plans say, compared with the oracle's counts. Nothing is added to why where all is right. */
#ifndef BENCH_CASE_CHECK_H
#define BENCH_CASE_CHECK_H

#include "bench/verify/case_make.h"

void case_check_plan(const case_plan *c, int64_t rank, reshard_plan plan, const reshard_plan_info *info, cli_text *why);
/* The ranks' plans fit together: what one sends another receives. */
void case_check_world(const case_plan *c, const reshard_plan *plans, cli_text *why);
/* The public queries of a layout: arrays, their index sets, buffers, and who holds what meets a random box. */
void case_check_layout(rng *r, const case_side *side, cli_text *why);
/* A line that tells what an entry is. */
void case_describe_entry(const case_entry *e, int64_t number, cli_text *out);

#endif
