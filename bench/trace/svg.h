/* A trace as a picture. */
#ifndef BENCH_TRACE_SVG_H
#define BENCH_TRACE_SVG_H

#include "bench/trace/trace.h"

/* title names the workload, note the ranks and devices. */
void trace_svg(const trace *t, const char *title, const char *note, const char *path);

#endif
