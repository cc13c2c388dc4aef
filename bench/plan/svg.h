/* The picture of a plan. */
#ifndef BENCH_PLAN_SVG_H
#define BENCH_PLAN_SVG_H

#include "bench/plan/plan.h"

#define PLAN_SVG_WIDTH 960
#define PLAN_SVG_RANKS 16 /* most ranks that are drawn one by one */

/* Draws the plan to the file of --svg. */
void plan_svg(const cli_options *o, const workload *w, const world_plan *plan);

#endif
