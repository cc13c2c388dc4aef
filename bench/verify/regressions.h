/* Random cases that once failed, kept by name; they run before any other case. A seed says nothing once the generator
 * draws otherwise: when case_make.c or case_layout.c change what they draw, put the old fault back, look for a seed
 * that shows it, and keep that one. */
#ifndef BENCH_REGRESSIONS_H
#define BENCH_REGRESSIONS_H

#include <stdint.h>

static const struct regression {
  const char *name;
  uint64_t seed;
} regressions[] = {
    {"strided-cut-only-the-last-chunk-gives",
     980}, /* full chunks are too short for all ranks, the shorter last one is not: division by zero */
    {"no-entries-with-limit-and-nodes", 1973}, /* no layout names the world: ranks took different options */
};

#endif
