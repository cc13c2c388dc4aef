/* Suites: the reshards that a field has. */
#ifndef BENCH_SUITE_H
#define BENCH_SUITE_H

#include "bench/cli/util.h"

/* A reshard of a suite, for a world of `ranks`. */
typedef struct bench_case {
  const char *name;
  const char *shape, *dtype, *model; /* shape or model is NULL */
  char src[96], dst[96];
  char mesh[64], mesh_dst[64]; /* "": none */
} bench_case;
/* Makes the i-th case of a suite; false behind the last. Ends the program where the world is not one for it. */
bool bench_suite_case(const char *suite, int64_t i, int64_t ranks, bench_case *out);

#endif
