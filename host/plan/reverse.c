/* The plan of the adjoint: sides swapped. Gradients of a reshard travel so. */
#include "plan/topology.h"

#include <stdlib.h>

/* Everything that an entry points to. */
typedef struct rebuilt {
  int64_t src_offset[RESHARD_MAX_DIMS], src_extent[RESHARD_MAX_DIMS];
  int64_t dst_offset[RESHARD_MAX_DIMS], dst_extent[RESHARD_MAX_DIMS];
  int permutation[RESHARD_MAX_DIMS];
} rebuilt;

/* True when an element of the destination comes to several ranks, so that its adjoint is a sum. */
static bool needs_sum(const struct reshard_layout_s *dst) {
  if (dst->kind != RESHARD_LAYOUT_BOXES)
    return rs_layout_replicates(dst) && dst->elements > 0;
  for (int64_t cell = 0; cell < dst->boxes->ncells; cell++) {
    int64_t shape[RESHARD_MAX_DIMS], elements = 1;
    rs_layout_cell_shape(dst, cell, shape);
    for (int d = 0; d < dst->ndim; d++)
      elements *= shape[d];
    if (elements > 0 && rs_layout_holder_count(dst, cell) > 1)
      return true;
  }
  return dst->boxes->overlapping;
}

static void swap_sides(const rs_class *c, rebuilt *r, reshard_entry *e) {
  const rs_space *s = &c->space;
  for (int d = 0; d < RESHARD_MAX_DIMS; d++)
    r->permutation[d] = -1;
  for (int a = 0; a < s->naxes; a++) {
    if (s->dst_dim[a] >= 0) {
      r->src_offset[s->dst_dim[a]] = s->dst_offset[a];
      r->src_extent[s->dst_dim[a]] = s->extent[a];
    }
    if (s->src_dim[a] >= 0) {
      r->dst_offset[s->src_dim[a]] = s->src_offset[a];
      r->dst_extent[s->src_dim[a]] = s->extent[a];
      r->permutation[s->src_dim[a]] = s->dst_dim[a];
    }
  }
  e->src = c->dst;
  e->dst = c->src;
  e->src_offset = r->src_offset;
  e->src_extent = r->src_extent;
  e->dst_offset = r->dst_offset;
  e->dst_extent = r->dst_extent;
  e->permutation = r->permutation;
}

reshard_status reshard_plan_reverse(reshard_plan plan, reshard_plan *reverse) {
  RS_TRY(RS_GIVEN("reshard_plan_reverse", plan, reverse));
  for (int64_t i = 0; i < plan->nentries; i++)
    if (needs_sum(plan->classes.at[plan->entries[i].class_].dst))
      return rs_error(RESHARD_ERROR_UNSUPPORTED,
                      "entry %lld '%.64s': elements of its destination are on several ranks, so the adjoint is a sum, "
                      "which is not built",
                      (long long)i, plan->entries[i].name);
  for (int64_t i = 0; i < plan->nentries; i++)
    if (plan->classes.at[plan->entries[i].class_].scaling != NULL)
      return rs_error(RESHARD_ERROR_UNSUPPORTED, "entry %lld '%.64s': the reverse of f8_e4m3 with scales is not built",
                      (long long)i, plan->entries[i].name);
  reshard_entry *entries = NULL;
  rebuilt *parts = NULL;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc_zero(&entries, plan->nentries, sizeof *entries), done);
  RS_TRY_GOTO(status, rs_alloc_zero(&parts, plan->nentries, sizeof *parts), done);
  for (int64_t i = 0; i < plan->nentries; i++) {
    entries[i].size = sizeof *entries;
    entries[i].dtype = plan->entries[i].dst_dtype;
    entries[i].dst_dtype = plan->entries[i].dtype;
    entries[i].name = plan->entries[i].name;
    swap_sides(&plan->classes.at[plan->entries[i].class_], &parts[i], &entries[i]);
  }
  reshard_topology topology = plan->topology != NULL ? rs_topology_of(plan) : (reshard_topology){0};
  reshard_plan_options options = {RESHARD_PLAN_OPTIONS_INIT, plan->limit, plan->nodes, plan->on_cpu,
                                  plan->topology != NULL ? &topology : NULL};
  status = reshard_plan_create(plan->nentries, entries, plan->rank, &options, reverse);
done:
  free(entries);
  free(parts);
  return status;
}
