/* The holders of a tensor's elements, drawn. */
#ifndef BENCH_PLAN_SVG_CELLS_H
#define BENCH_PLAN_SVG_CELLS_H

#include "bench/plan/svg.h"

/* Before and after of one tensor, `most` high at most; worlds of PLAN_SVG_RANKS at
 * most. Draws from y on and returns where the drawing ends. */
double plan_svg_cells(cli_text *out, const workload_tensor *t, double most, double y);

#endif
