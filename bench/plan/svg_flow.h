/* The bytes between ranks, drawn. Each function draws from y on and returns where the drawing ends. */
#ifndef BENCH_PLAN_SVG_FLOW_H
#define BENCH_PLAN_SVG_FLOW_H

#include "bench/plan/svg.h"

/* Bands from senders to receivers, and the table of bytes; worlds of PLAN_SVG_RANKS at most. */
double plan_svg_flows(cli_text *out, const world_plan *plan, double y);
/* Heat map of senders and receivers with the load of each; any world. */
double plan_svg_heat(cli_text *out, const world_plan *plan, double y);

#endif
