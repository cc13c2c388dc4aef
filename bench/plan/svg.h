/* The picture of a plan. */
#ifndef BENCH_PLAN_SVG_H
#define BENCH_PLAN_SVG_H

#include "bench/plan/plan.h"

#define PLAN_SVG_WIDTH 960
#define PLAN_SVG_RANKS 16 /* most ranks whose bytes are drawn one by one */
#define PLAN_SVG_CELLS 64 /* largest world whose holders are drawn */

/* Draws the plan to the file of --svg. */
void plan_svg(const cli_options *o, const workload *w, const world_plan *plan);

/* Parts of the picture; each draws from y on and returns where the drawing ends. */

/* Ranks that send, receive or keep something, ascending; where a bin has several ranks, such bins. */
int64_t plan_svg_busy(const world_plan *plan, int64_t ranks[PLAN_BINS]);
/* Kinds of things in the picture, which a legend explains. */
typedef struct plan_svg_kinds {
  bool replicas, origins;
} plan_svg_kinds;
/* Before and after of one tensor, `most` high at most; worlds of PLAN_SVG_CELLS at most. Adds the kinds drawn. */
double plan_svg_cells(rs_text *out, const workload_tensor *t, double most, double y, plan_svg_kinds *drawn);
/* Bands from senders to receivers, and the table of bytes; of PLAN_SVG_RANKS busy ranks at most, one a bin. */
double plan_svg_flows(rs_text *out, const world_plan *plan, double y);
/* Heat map of busy senders and receivers with the load of each; any world. */
double plan_svg_heat(rs_text *out, const world_plan *plan, double y);

#endif
