/* Domains of ranks whose links within are faster than those between (rule 11 of plans). */
#ifndef RS_PLAN_TOPOLOGY_H
#define RS_PLAN_TOPOLOGY_H

#include "plan/plan.h"

/* A topology as it was asked for, checked. */
typedef struct rs_topology {
  int64_t domains;
  int64_t between, within; /* bytes a second of a rank, each way */
  int64_t round_ns;
  int64_t asked;     /* chains, as options have them */
  int64_t chains;    /* 0: nothing is passed on */
  int64_t pipelined; /* rounds that are worth while with so many */
} rs_topology;

/* Reads the topology of options into a plan, whose nodes become the domains: numbers from 0 on, in the order of their
 * lowest ranks. */
reshard_status rs_topology_read(struct reshard_plan_s *plan, const reshard_topology *given, const int64_t *nodes);
/* model.c: chooses the chains of a plan whose classes are known, and the rounds that are worth while. */
reshard_status rs_topology_choose(struct reshard_plan_s *plan);
/* The topology of a plan as options have it; what it points to is the plan's. */
reshard_topology rs_topology_of(const struct reshard_plan_s *plan);

/* Counts what goes between domains and within them, beside the least that has to: of the plan's info. */
reshard_status rs_topology_count(struct reshard_plan_s *plan);

#endif
