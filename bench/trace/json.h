/* A trace in Chrome's format, for Perfetto and chrome://tracing. */
#ifndef BENCH_TRACE_JSON_H
#define BENCH_TRACE_JSON_H

#include "bench/trace/trace.h"

/* title names the workload, note the ranks and devices. */
void trace_json(const trace *t, const char *title, const char *note, const char *path);

#endif
