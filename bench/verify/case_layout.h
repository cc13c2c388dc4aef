/* Random layouts of every kind. */
#ifndef BENCH_CASE_LAYOUT_H
#define BENCH_CASE_LAYOUT_H

#include "bench/verify/oracle.h"
#include "bench/verify/random.h"

/* A random description for a shape, and the library's layout for it. */
void case_describe(rng *r, int ndim, const int64_t *shape, int64_t world, bool source, oracle_layout *out);
void case_describe_free(oracle_layout *what);
/* The layout, by string or by constructor; *text receives how. Errors of the library are returned. */
reshard_status case_build(rng *r, const oracle_layout *what, reshard_layout *layout, char **text);
extern const char *const case_kind_name[RESHARD_LAYOUT_KIND_COUNT];

#endif
