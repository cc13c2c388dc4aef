/* Slices of bytes that enter a domain once (rule 11 of plans).
 *
 * A unit is what a source cell and a destination cell share. Its receivers are ranks whose arrays are equal. Those of a
 * domain with holders are served from there, each by itself. Those of another domain share the entering: each of some
 * takes an even slice from the holders, cut at whole rows, and passes it on to all others there. So no rank holds what
 * it does not need. Which rank takes the first slice goes by the number of the class, so that small tensors spread. */
#include "layout/sort.h"
#include "plan/intersect.h"

#include <stdlib.h>

enum { SLICE = 256 << 10 }; /* bytes of a slice at least, over all entries of the class; a constant of plans */

/* Slices for n receivers of one domain, by rank. */
static reshard_status add_slices(rs_work *w, const rs_receiver *r, int64_t n) {
  int64_t group = 0, own = -1, row = r->elements / r->rows,
          bytes = r->elements * w->class_->wire.width * w->class_->entries, parts = rs_min(n, rs_max(1, bytes / SLICE));
  for (int64_t k = 0; k < n; k++)
    own = r[k].rank == w->rank ? r[k].array : own;
  if (w->sending || own >= 0) /* else it is a part of the line, and no more */
    RS_TRY(rs_hop_groups_find(w->groups, n, r, &group));
  RS_TRY(rs_vec_reserve(&w->cut, w->cut.n + parts));
  RS_TRY(rs_vec_reserve(&w->slices, w->slices.n + parts));
  for (int64_t j = 0; j < parts; j++) {
    int64_t begin = rs_row_at(r, rs_share_begin(r->elements, j, parts)),
            end = rs_row_at(r, rs_share_begin(r->elements, j + 1, parts));
    rs_receiver slice = r[(w->number + j) % n];
    if (begin >= end)
      continue;
    slice.part = (int32_t)w->slices.n;
    slice.rows = end - begin;
    slice.elements = (end - begin) * row;
    w->slices.at[w->slices.n++] = (rs_slice){begin, group, own};
    w->cut.at[w->cut.n++] = slice;
  }
  return RESHARD_SUCCESS;
}

/* Receivers of a unit, by domain in w->run; within a domain they stay by rank. */
static reshard_status sort_by_domain(rs_work *w, const rs_receiver *r, int64_t n) {
  int places = rs_bits((uint64_t)n), nodes = rs_bits((uint64_t)w->world);
  bool ordered = true;
  RS_TRY(rs_vec_reserve(&w->run, n));
  for (int64_t i = 0; i < n; i++) {
    w->run.at[i] = r[i];
    ordered = ordered && (i == 0 || w->nodes[r[i - 1].rank] <= w->nodes[r[i].rank]);
  }
  if (ordered)
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&w->keys, 2 * n));
  for (int64_t i = 0; i < n; i++)
    w->keys.at[i] = (uint64_t)w->nodes[r[i].rank] << places | (uint64_t)i;
  const uint64_t *order = rs_sort_keys(w->keys.at, w->keys.at + n, n, places, places + nodes);
  for (int64_t i = 0; i < n; i++)
    w->run.at[i] = r[order[i] & (((uint64_t)1 << places) - 1)];
  return RESHARD_SUCCESS;
}

static reshard_status cut_unit(rs_work *w, const rs_receiver *r, int64_t n) {
  RS_TRY(sort_by_domain(w, r, n));
  for (int64_t i = 0, end; i < n; i = end) {
    int64_t node = w->nodes[w->run.at[i].rank];
    for (end = i + 1; end < n && w->nodes[w->run.at[end].rank] == node;)
      end++;
    if (end - i > 1 && !rs_node_has_sources(w, node)) {
      RS_TRY(add_slices(w, w->run.at + i, end - i));
      continue;
    }
    RS_TRY(rs_vec_reserve(&w->cut, w->cut.n + end - i));
    for (int64_t k = i; k < end; k++) {
      w->cut.at[w->cut.n] = w->run.at[k];
      w->cut.at[w->cut.n++].part = 0;
    }
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_cut_units(rs_work *w) {
  RS_TRY(rs_vec_reserve(&w->slices, 1));
  w->slices.n = 1;
  w->cut.n = 0;
  for (int64_t i = 0, end; i < w->receivers.n; i = end) {
    for (end = i + 1; end < w->receivers.n && w->receivers.at[end].part == w->receivers.at[i].part;)
      end++;
    RS_TRY(cut_unit(w, w->receivers.at + i, end - i));
  }
  RS_TRY(rs_vec_reserve(&w->receivers, w->cut.n));
  for (int64_t i = 0; i < w->cut.n; i++)
    w->receivers.at[i] = w->cut.at[i];
  w->receivers.n = w->cut.n;
  return RESHARD_SUCCESS;
}
