#include "plan/topology.h"

#include "layout/sort.h"

#include <stdlib.h>

static reshard_status check_numbers(const reshard_topology *t) {
  const struct {
    const char *what;
    int64_t value;
  } numbers[] = {{"between its domains", t->between}, {"within a domain", t->within}};
  for (int i = 0; i < 2; i++)
    if (numbers[i].value <= 0)
      return rs_error(RESHARD_ERROR_INVALID, "topology: a speed of %lld bytes a second %s, above 0 is needed",
                      (long long)numbers[i].value, numbers[i].what);
  return t->round_ns > 0 ? RESHARD_SUCCESS
                         : rs_error(RESHARD_ERROR_INVALID, "topology: a round costs %lld ns, above 0 is needed",
                                    (long long)t->round_ns);
}

/* Numbers groups of ranks from 0 on, in the order of their lowest ranks: two maps are alike where these are equal. */
static reshard_status number_groups(int64_t n, const int64_t *given, int64_t *number, int64_t *groups) {
  rs_pair *pairs;
  uint64_t bits = 0;
  RS_TRY(rs_alloc(&pairs, 2 * n, sizeof *pairs));
  for (int64_t r = 0; r < n; r++) {
    pairs[r] = (rs_pair){(uint64_t)given[r], (uint64_t)r};
    bits |= pairs[r].key;
  }
  const rs_pair *sorted = rs_sort_pairs(pairs, pairs + n, n, false, 0, rs_bits(bits));
  for (int64_t i = 0, lead = 0; i < n; i++) {
    lead = i > 0 && sorted[i].key == sorted[i - 1].key ? lead : (int64_t)sorted[i].value;
    number[sorted[i].value] = lead;
  }
  *groups = 0;
  for (int64_t r = 0; r < n; r++)
    number[r] = number[r] == r ? (*groups)++ : number[number[r]];
  free(pairs);
  return RESHARD_SUCCESS;
}

/* A node map beside a topology says the same, or is refused. */
static reshard_status check_nodes(const struct reshard_plan_s *plan, const int64_t *nodes) {
  int64_t *number, count;
  RS_TRY(rs_alloc(&number, plan->world, sizeof *number));
  reshard_status status = number_groups(plan->world, nodes, number, &count);
  for (int64_t r = 0; r < plan->world && status == RESHARD_SUCCESS; r++)
    if (number[r] != plan->nodes[r])
      status =
          rs_error(RESHARD_ERROR_INVALID,
                   "nodes: rank %lld is on node %lld, the %lldth from rank 0 on; the topology has it in the %lldth",
                   (long long)r, (long long)nodes[r], (long long)number[r], (long long)plan->nodes[r]);
  free(number);
  return status;
}

reshard_status rs_topology_read(struct reshard_plan_s *plan, const reshard_topology *t, const int64_t *nodes) {
  RS_TRY(RS_SIZED(reshard_topology, t));
  RS_TRY(check_numbers(t));
  if (plan->nentries == 0) /* the number of ranks is not known */
    return RESHARD_SUCCESS;
  if (t->ranks != plan->world || t->domain == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "topology: domains of %lld ranks, the world has %lld",
                    t->domain != NULL ? (long long)t->ranks : 0LL, (long long)plan->world);
  rs_topology *made;
  RS_TRY(rs_alloc(&plan->nodes, plan->world, sizeof *plan->nodes));
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  plan->topology = made;
  *made = (rs_topology){.between = t->between, .within = t->within, .round_ns = t->round_ns, .asked = t->chains};
  RS_TRY(number_groups(plan->world, t->domain, plan->nodes, &made->domains));
  if (t->chains < RESHARD_NO_CHAINS || t->chains > made->domains)
    return rs_error(RESHARD_ERROR_INVALID, "topology: %lld chains, it has %lld domains", (long long)t->chains,
                    (long long)made->domains);
  return nodes != NULL ? check_nodes(plan, nodes) : RESHARD_SUCCESS;
}

reshard_topology rs_topology_of(const struct reshard_plan_s *plan) {
  const rs_topology *t = plan->topology;
  return (reshard_topology){RESHARD_TOPOLOGY_INIT, plan->world, plan->nodes, t->between, t->within,
                            t->round_ns,           t->asked};
}
