/* The plans of a world, added up. */
#ifndef BENCH_PLAN_H
#define BENCH_PLAN_H

#include "bench/cli/workload.h"
#include "plan/scaled.h"

typedef struct peer_plan {
  int64_t rank, sent, received;
} peer_plan;

typedef struct rank_plan {
  reshard_plan_info info;
  peer_plan *peer; /* info.peers, where they are kept */
  reshard_pattern pattern;
  int64_t needed; /* rounds that it needs by itself */
} rank_plan;

typedef struct world_plan {
  int64_t ranks, tensors, bytes;
  int64_t first, n; /* ranks planned: [first, first + n) */
  rank_plan *rank;
  int64_t wire, bound, kept, messages, rounds, least_rounds, stages, max_sent, max_received, workspace, limit, busiest,
      busiest_bound;
  const char *path;
  int64_t odd; /* the first rank whose pattern is none, or not that of the first; -1: there is none, or none was looked
                  at */
  double seconds;
  int64_t bins; /* who sends what to whom: bins x bins sums over as many ranks each (1 rank a bin in small worlds); */
  int64_t per_bin;
  reshard_topology topology; /* domain NULL: none */
  struct link_counts *links; /* of a topology; NULL: there is none, or one rank is planned */
  reshard_plan converting;   /* of the first rank, where tensors convert; its: */
  rs_conversion *conversions;
  int64_t nconversions;
  int64_t *heat; /* [from][to] bytes, with what is kept on the diagonal of worlds of one rank a bin */
} world_plan;

#define PLAN_BINS     128
#define PLAN_PATTERNS 256 /* of larger worlds patterns are not looked at: a rank's takes time by its peers */

/* Plans all ranks, or that of --rank. keep_peers: the list of each rank's peers; heat: the matrix. */
void plan_world(const cli_options *o, const workload *w, bool keep_peers, bool heat, world_plan *out);
void plan_free(world_plan *plan); /* and its links */

int command_plan(int argc, char **argv); /* as those of commands/commands.h */

#endif
