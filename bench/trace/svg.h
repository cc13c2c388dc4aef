/* A trace as a picture. */
#ifndef BENCH_TRACE_SVG_H
#define BENCH_TRACE_SVG_H

#include "bench/trace/trace.h"

/* title: what was done; note: whose time it is. */
void trace_svg(const trace *t, const char *title, const char *note, const char *path);

#endif
