/* The argument of --topology: "nvl:64", "hgx:8", "64", or a file of domains. */
#ifndef BENCH_TOPOLOGY_H
#define BENCH_TOPOLOGY_H

#include "bench/cli/util.h"

/* Reads it for a world. The caller frees domain. Ends the program where something is wrong. */
void cli_read_topology(const char *text, int64_t world, reshard_topology *out);

#endif
