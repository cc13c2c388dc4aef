/* Slices of bytes that enter a domain once (rule 11 of plans).
 *
 * A unit is what a source cell and a destination cell share. Its receivers are ranks whose arrays are equal. Those of a
 * domain with holders are served from there, each by itself. Those of another domain share the entering: each of some
 * takes an even slice, cut at whole rows, and passes it on to all others there. So no rank holds what it does not need.
 * Which rank takes the first slice goes by the number of the class, so that small tensors spread. Domains with equally
 * many receivers are cut in chains, by their lowest ranks: the first of a chain receives from the holders, each other
 * one from the one before. */
#include "layout/sort.h"
#include "plan/intersect.h"

#include <stdlib.h>
#include <string.h>

enum { SLICE = 256 << 10 }; /* bytes of a slice at least, over all entries of the class; a constant of plans */

/* Slices for the n receivers of a chain's domains, `each` of them in one. */
static reshard_status add_slices(rs_work *w, const rs_receiver *r, int64_t n, int64_t each) {
  int64_t group = 0, own = -1, row = r->elements / r->rows,
          bytes = r->elements * w->class_->wire.width * w->class_->entries,
          parts = rs_min(each, rs_max(1, bytes / SLICE));
  for (int64_t k = 0; k < n; k++)
    own = r[k].rank == w->rank ? r[k].array : own;
  if (w->sending || own >= 0) /* else it is a part of the line, and no more */
    RS_TRY(rs_hop_groups_find(w->groups, n, each, r, &group));
  RS_TRY(rs_vec_reserve(&w->cut, w->cut.n + parts));
  RS_TRY(rs_vec_reserve(&w->slices, w->slices.n + parts));
  for (int64_t j = 0; j < parts; j++) {
    int64_t begin = rs_row_at(r, rs_share_begin(r->elements, j, parts)),
            end = rs_row_at(r, rs_share_begin(r->elements, j + 1, parts));
    rs_receiver slice = r[(w->number + j) % each];
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

/* Receivers that the holders serve each by itself. */
static reshard_status add_plain(rs_work *w, const rs_receiver *r, int64_t n) {
  RS_TRY(rs_vec_reserve(&w->cut, w->cut.n + n));
  for (int64_t i = 0; i < n; i++) {
    w->cut.at[w->cut.n] = r[i];
    w->cut.at[w->cut.n++].part = 0;
  }
  return RESHARD_SUCCESS;
}

/* The chain of n domains with `each` receivers; first: the low half of each is the place of a domain's in w->run. */
static reshard_status add_chain(rs_work *w, const uint64_t *first, int64_t n, int64_t each) {
  const rs_receiver *r = w->run.at + (uint32_t)first[0];
  if (n > 1) {
    RS_TRY(rs_vec_reserve(&w->chain, n * each));
    for (int64_t d = 0; d < n; d++)
      memcpy(w->chain.at + d * each, w->run.at + (uint32_t)first[d], (size_t)each * sizeof *r);
    r = w->chain.at;
  }
  return n * each > 1 ? add_slices(w, r, n * each, each) : add_plain(w, r, 1);
}

static reshard_status cut_unit(rs_work *w, const rs_receiver *r, int64_t n) {
  RS_TRY(sort_by_domain(w, r, n));
  RS_TRY(rs_vec_reserve(&w->keys, 2 * n));
  uint64_t *keys = w->keys.at; /* domains that are passed on to: number of receivers, then the place of the first */
  int64_t domains = 0, most = 0;
  for (int64_t i = 0, end; i < n; i = end) {
    int64_t node = w->nodes[w->run.at[i].rank];
    for (end = i + 1; end < n && w->nodes[w->run.at[end].rank] == node;)
      end++;
    if (rs_node_has_sources(w, node)) {
      RS_TRY(add_plain(w, w->run.at + i, end - i));
      continue;
    }
    keys[domains++] = (uint64_t)(end - i) << 32 | (uint64_t)i;
    most = rs_max(most, end - i);
  }
  const uint64_t *sorted = rs_sort_keys(keys, keys + n, domains, 32, 32 + rs_bits((uint64_t)most));
  for (int64_t i = 0, end; i < domains; i = end) {
    for (end = i + 1; end < domains && sorted[end] >> 32 == sorted[i] >> 32;)
      end++;
    for (int64_t k = 0, alike = end - i, chains = rs_min(w->chains, alike); k < chains; k++) {
      int64_t from = k * alike / chains, to = (k + 1) * alike / chains;
      RS_TRY(add_chain(w, sorted + i + from, to - from, (int64_t)(sorted[i] >> 32)));
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
