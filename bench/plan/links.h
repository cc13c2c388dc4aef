/* Counts of what the plans of a world ask of the links between domains and within, and how long that takes. */
#ifndef BENCH_PLAN_LINKS_H
#define BENCH_PLAN_LINKS_H

#include "bench/plan/plan.h"

/* One domain: the bytes that come into it, and the least that have to. */
typedef struct domain_links {
  int64_t ranks, receivers, entering, least;
} domain_links;

struct link_counts {
  reshard_topology topology;
  int64_t ndomains;
  domain_links *domain;
  int64_t between, within, leaving, entering; /* bytes of all ranks */
  int64_t leaving_least, entering_least;
  int64_t within_least;                   /* what ranks lack beyond the least that enters */
  int64_t most_out, most_in, most_within; /* of a rank */
  int64_t chains, hops, later;            /* later: rounds beyond the plan's, for later hops */
  double estimate, bound;                 /* seconds */
  double twice;                           /* the estimate with a limit of twice the size; 0: no limit */
};

/* Adds up the plans of all ranks. topology: borrowed. rounds_twice: those with a limit of twice the size, or 0. */
struct link_counts *link_counts_make(const world_plan *p, const reshard_topology *topology, int64_t rounds_twice);
void link_counts_free(struct link_counts *links);
void link_counts_print(const world_plan *p, const struct link_counts *links);
/* The same of one rank alone. */
void link_counts_print_rank(const reshard_topology *topology, const reshard_plan_info *info);
/* The totals, and what one rank has, for JSON. */
void link_counts_json(const struct link_counts *links, rs_json *j);
void link_counts_json_rank(const reshard_topology *topology, const reshard_plan_info *info, rs_json *j);

#endif
