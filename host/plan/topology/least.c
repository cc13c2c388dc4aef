/* Counts of a plan with a topology. Beside the bytes between domains and within them is the least that any plan needs:
 * a byte leaves its source cell's domains once, and enters a domain that lacks it once. Both follow from the
 * layouts, and each rank counts a part of them that no other counts. */
#include "plan/hops.h"
#include "plan/intersect.h"
#include "plan/topology.h"

#include <stdlib.h>

/* A count of one class. */
typedef struct least_count {
  rs_work w;    /* of the rank */
  rs_work back; /* asks the destination what else a domain needs of a source cell */
  int64_t leaving, entering, held;
} least_count;

static int64_t domain_of(const least_count *n, int64_t rank) { return n->w.nodes[rank]; }

/* The first holder of a cell in my domain; rank -1: there is none. */
static reshard_status find_first(least_count *n, const struct reshard_layout_s *l, int64_t cell, rs_holder *first) {
  int64_t count = rs_layout_holder_count(l, cell);
  RS_TRY(rs_vec_reserve(&n->w.holders, count));
  const rs_holder *h = rs_layout_holders(l, cell, n->w.holders.at);
  *first = (rs_holder){-1, -1};
  for (int64_t i = 0; i < count && first->rank < 0; i++)
    if (domain_of(n, h[i].rank) == domain_of(n, n->w.rank))
      *first = h[i];
  return RESHARD_SUCCESS;
}

static reshard_status ask(rs_work *w, bool asks_src, int64_t cell, rs_hit_visit visit, void *user) {
  rs_query query;
  bool met;
  w->hits.n = w->scratch.run.n = w->scratch.list.n = 0;
  RS_TRY(rs_ask(w, asks_src, cell, &query, &met));
  return met ? rs_layout_query(asks_src ? w->class_->dst : w->class_->src, &query, &w->scratch, visit, user)
             : RESHARD_SUCCESS;
}

static reshard_status keep_hit(rs_work *w, const rs_hit *hit) {
  RS_TRY(rs_vec_reserve(&w->hits, w->hits.n + 1));
  w->hits.at[w->hits.n++] = *hit;
  return RESHARD_SUCCESS;
}

/* A destination cell that meets my source cell: kept where a domain without holder of this needs it. */
static reshard_status leaving_hit(void *user, const rs_hit *hit) {
  least_count *n = user;
  int64_t count = rs_layout_holder_count(n->w.class_->dst, hit->cell);
  RS_TRY(rs_vec_reserve(&n->w.holders, count));
  const rs_holder *h = rs_layout_holders(n->w.class_->dst, hit->cell, n->w.holders.at);
  bool leaves = false;
  for (int64_t i = 0; i < count && !leaves; i++) {
    int64_t low = 0, high = n->w.source_nodes.n, domain = domain_of(n, h[i].rank);
    RS_LOWER_BOUND(low, high, n->w.source_nodes.at[i] < domain);
    leaves = low == n->w.source_nodes.n || n->w.source_nodes.at[low] != domain;
  }
  if (leaves && n->w.overlapping)
    return keep_hit(&n->w, hit);
  n->leaving += leaves ? hit->elements : 0;
  return RESHARD_SUCCESS;
}

/* Elements of messages to other domains, or from them; first: of those of my arrays that are marked alone. */
static int64_t count_between(const least_count *n, const rs_side *side, const bool *first) {
  int64_t elements = 0;
  for (int64_t i = 0; i < side->messages.n; i++) {
    const rs_message *m = &side->messages.at[i];
    bool between = domain_of(n, m->peer) != domain_of(n, n->w.rank);
    for (int64_t k = 0; between && k < m->count; k++)
      elements += first == NULL || first[m->segments[k].dst_array] ? m->segments[k].elements : 0;
  }
  return elements;
}

/* True where no cell has two holders. */
static bool is_alone(const struct reshard_layout_s *l) {
  return l->kind == RESHARD_LAYOUT_BOXES ? l->boxes->ncells == l->boxes->n
                                         : !rs_layout_regular(l) || (l->replicas == 1 && l->runs_dim < 0);
}

static reshard_status count_leaving(least_count *n) {
  const struct reshard_layout_s *src = n->w.class_->src;
  bool alone = is_alone(src) && is_alone(n->w.class_->dst) && !n->w.overlapping;
  if (alone) /* the messages say it */
    n->leaving = count_between(n, &n->w.class_->send, NULL);
  for (int64_t a = 0, arrays = rs_layout_arrays(src, n->w.rank); a < arrays; a++) {
    int64_t cell = rs_layout_cell(src, n->w.rank, a);
    rs_query query;
    bool met;
    RS_TRY(rs_find_sources(&n->w, cell));
    RS_TRY(rs_ask(&n->w, true, cell, &query, &met));
    n->held += met ? n->w.asked : 0;
    if (alone || n->w.sources.at[0].rank != n->w.rank) /* its lowest holder counts it */
      continue;
    RS_TRY(ask(&n->w, true, cell, leaving_hit, n));
    if (n->w.hits.n > 0)
      RS_TRY(rs_union(&n->w, &n->w.scratch, &n->leaving));
  }
  return RESHARD_SUCCESS;
}

/* A destination cell that meets a source cell which my domain lacks: kept where the domain needs it. The first array of
 * the domain that needs any counts them all. */
typedef struct needed {
  least_count *n;
  rs_holder first;
} needed;

static reshard_status needed_hit(void *user, const rs_hit *hit) {
  needed *need = user;
  rs_holder h;
  RS_TRY(find_first(need->n, need->n->w.class_->dst, hit->cell, &h));
  if (h.rank < 0)
    return RESHARD_SUCCESS;
  if (need->first.rank < 0 || h.rank < need->first.rank || (h.rank == need->first.rank && h.array < need->first.array))
    need->first = h;
  return keep_hit(&need->n->back, hit);
}

/* A source cell that meets my array, which is the first of its cell in my domain; destinations overlap. */
static reshard_status entering_hit(void *user, const rs_hit *hit) {
  least_count *n = user;
  needed need = {n, {-1, -1}};
  rs_holder h;
  RS_TRY(find_first(n, n->w.class_->src, hit->cell, &h));
  if (h.rank >= 0)
    return RESHARD_SUCCESS;
  RS_TRY(ask(&n->back, true, hit->cell, needed_hit, &need));
  return need.first.rank == n->w.rank && need.first.array == n->w.array
             ? rs_union(&n->back, &n->back.scratch, &n->entering)
             : RESHARD_SUCCESS;
}

/* A domain that has no holder of a source cell receives all of it from others. */
static reshard_status count_entering(least_count *n) {
  const struct reshard_layout_s *dst = n->w.class_->dst;
  int64_t arrays = rs_layout_arrays(dst, n->w.rank);
  bool *first; /* of its cell in my domain */
  RS_TRY(rs_alloc(&first, arrays, sizeof *first));
  reshard_status status = RESHARD_SUCCESS;
  for (n->w.array = 0; n->w.array < arrays; n->w.array++) {
    int64_t cell = rs_layout_cell(dst, n->w.rank, n->w.array);
    rs_holder h = {-1, -1};
    RS_THEN(status, find_first(n, dst, cell, &h));
    first[n->w.array] = h.rank == n->w.rank;
    if (first[n->w.array] && n->w.overlapping)
      RS_THEN(status, ask(&n->w, false, cell, entering_hit, n));
  }
  if (!n->w.overlapping)
    n->entering = count_between(n, &n->w.class_->receive, first);
  free(first);
  return status;
}

static reshard_status count_class(const struct reshard_plan_s *plan, rs_class *c, reshard_plan_info *info) {
  rs_work w = {.class_ = c, .rank = plan->rank, .world = plan->world, .nodes = plan->nodes};
  w.overlapping = c->dst->kind == RESHARD_LAYOUT_BOXES && c->dst->boxes->overlapping;
  least_count n = {w, w, 0, 0, 0};
  reshard_status status = count_leaving(&n);
  RS_THEN(status, count_entering(&n));
  rs_work_free(&n.w);
  rs_work_free(&n.back);
  info->source_bytes += n.held * c->wire.width * c->entries;
  info->leaving_least_bytes += n.leaving * c->wire.width * c->entries;
  info->entering_least_bytes += n.entering * c->wire.width * c->entries;
  return status;
}

/* Bytes that go to other domains from my source, not from what I have received. */
static int64_t sent_by_holders(const struct reshard_plan_s *plan) {
  const rs_hops *h = plan->hops;
  int64_t bytes = 0;
  for (int64_t i = 0; i < h->sends.n; i++)
    if (h->sends.at[i].hop == 0 && plan->nodes[h->sends.at[i].peer] != plan->nodes[plan->rank])
      bytes += h->streams.at[h->sends.at[i].stream].bytes;
  return bytes;
}

reshard_status rs_topology_count(struct reshard_plan_s *plan) {
  reshard_plan_info *info = &plan->info;
  info->domains = plan->topology->domains;
  info->domain = plan->nodes[plan->rank];
  info->chains = plan->topology->chains;
  info->hops = plan->hops != NULL ? plan->hops->hops : 1;
  const rs_peer *peers;
  for (int64_t i = 0, n = rs_plan_partners(plan, &peers); i < n; i++) {
    const rs_peer *p = &peers[i];
    bool within = plan->nodes[p->rank] == plan->nodes[plan->rank];
    *(within ? &info->within_sent_bytes : &info->between_sent_bytes) += p->sent;
    *(within ? &info->within_received_bytes : &info->between_received_bytes) += p->received;
  }
  info->leaving_bytes = plan->hops != NULL ? sent_by_holders(plan) : info->between_sent_bytes;
  for (int64_t i = 0; i < plan->classes.n; i++)
    RS_TRY(count_class(plan, &plan->classes.at[i], info));
  return RESHARD_SUCCESS;
}
