/* Plans compared with the oracle's counts. Nothing is added to why where all is right. */
#ifndef BENCH_CASE_CHECK_H
#define BENCH_CASE_CHECK_H

#include "bench/verify/case_make.h"

void case_check_plan(const case_plan *c, int64_t rank, reshard_plan plan, const reshard_plan_info *info, rs_text *why);
/* Checks that the ranks' plans fit together: every byte that one sends another receives. */
void case_check_world(const case_plan *c, const reshard_plan *plans, rs_text *why);
/* Checks the public queries of a layout: arrays, their index sets, buffers, and the holders that meet a random box. */
void case_check_layout(rng *r, const case_side *side, rs_text *why);
/* Adds a line that describes an entry. */
void case_describe_entry(const case_entry *e, int64_t number, rs_text *out);

#endif
