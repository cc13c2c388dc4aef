/* Slices of bytes that enter a domain once (rule 11 of plans).
 *
 * A unit is what a source cell and a destination cell share. Its receivers are ranks whose arrays are equal. Those of a
 * domain with holders are served from there, each by itself. Those of another domain share the entering: each of some
 * takes an even slice, cut at whole rows, and passes it on to all others there. So no rank holds what it does not need.
 * Which rank takes the first slice goes by the number of the class, so that small tensors spread. Domains with equally
 * many receivers are cut in chains, by their lowest ranks: the first of a chain receives from the holders, each other
 * one from the one before. */
#include "plan/intersect.h"

#include "base/order.h"

#include <stdlib.h>
#include <string.h>

enum { SLICE = 256 << 10 }; /* bytes of a slice at least, over all entries of the class; a constant of plans */
enum { COUNTED = 64 };      /* a line of fewer chains for each place that is looked for in it is listed */

static reshard_status add_part(rs_work *w, const rs_hop_unit *u, rs_holder h) {
  RS_TRY(rs_vec_reserve(&w->receivers, w->receivers.n + 1));
  w->receivers.at[w->receivers.n++] = (rs_receiver){h.rank, (int32_t)h.array, 0, u->elements, u->rows, u->lists};
  return RESHARD_SUCCESS;
}

/* Slices of a unit that so many receivers of a domain share, and the rows of one of them. */
static int64_t count_slices(const rs_work *w, const rs_hop_unit *u, int64_t receivers) {
  int64_t bytes = u->elements * w->class_->wire.width * w->class_->entries;
  return rs_min(receivers, rs_max(1, bytes / SLICE));
}

static void cut_slice(const rs_hop_unit *u, int64_t j, int64_t n, int64_t *begin, int64_t *end) {
  const rs_receiver whole = {.elements = u->elements, .rows = u->rows};
  *begin = rs_row_at(&whole, rs_share_begin(u->elements, j, n));
  *end = rs_row_at(&whole, rs_share_begin(u->elements, j + 1, n));
}

/* The taker of slice j of a unit, of the receivers of a domain. */
static const rs_holder *taker_of(const rs_work *w, const rs_hop_domain *domain, int64_t j) {
  return &w->groups->holder.at[domain->first + (w->number + j) % domain->count];
}

/* Slices for the receivers of a chain. */
static reshard_status add_chain(rs_work *w, const rs_hop_unit *u, const rs_hop_chain *chain) {
  const rs_hop_cell *c = &w->groups->cell.at[chain->cell];
  const rs_hop_domain *head = rs_hop_chain_at(w->groups, chain, 0);
  int64_t group = 0, own = !w->sending && c->own >= chain->begin && c->own < chain->end ? c->own_array : -1,
          n = count_slices(w, u, head->count), begin, end;
  if (rs_hop_chain_domains(chain) * head->count == 1)
    return add_part(w, u, *taker_of(w, head, 0));
  if (w->sending || own >= 0) /* else it is a part of the line, and no more */
    RS_TRY(rs_hop_groups_find(w->groups, chain, &group));
  RS_TRY(rs_vec_reserve(&w->receivers, w->receivers.n + n));
  RS_TRY(rs_vec_reserve(&w->slices, w->slices.n + n));
  for (int64_t j = 0; j < n; j++) {
    const rs_holder *taker = taker_of(w, head, j);
    cut_slice(u, j, n, &begin, &end);
    if (begin >= end)
      continue;
    w->receivers.at[w->receivers.n++] = (rs_receiver){taker->rank,          (int32_t)taker->array,
                                                      (int32_t)w->slices.n, (end - begin) * (u->elements / u->rows),
                                                      end - begin,          u->lists};
    w->slices.at[w->slices.n++] = (rs_slice){begin, group, own};
  }
  return RESHARD_SUCCESS;
}

/* Finds the places of a cell's domains that have holders of the source cell, in w->without. */
static reshard_status find_without(rs_work *w, int64_t cell) {
  if (w->without_of == cell)
    return RESHARD_SUCCESS;
  const rs_hop_cell *c = &w->groups->cell.at[cell];
  const rs_hop_domain *domain = w->groups->domain.at + c->first;
  const int64_t *node = w->source_nodes.at;
  int64_t n = w->source_nodes.n;
  bool ordered = true;
  w->without.n = 0;
  RS_TRY(rs_vec_reserve(&w->without, rs_min(n, c->domains)));
  for (int64_t p = 0; n > c->domains && p < c->domains; p++)
    if (rs_node_has_sources(w, domain[p].number))
      w->without.at[w->without.n++] = p;
  for (int64_t i = 0; n <= c->domains && i < n; i++) {
    int64_t place = i > 0 && node[i] == node[i - 1] ? -1 : rs_hop_cell_place(w->groups, c, node[i]);
    if (place < 0)
      continue;
    ordered = ordered && (w->without.n == 0 || w->without.at[w->without.n - 1] < place);
    w->without.at[w->without.n++] = place;
  }
  if (!ordered)
    qsort(w->without.at, (size_t)w->without.n, sizeof *w->without.at, rs_order_numbers);
  w->without_of = cell;
  return RESHARD_SUCCESS;
}

/* Chain k of n, of domains [begin, end) of a cell with equally many receivers, but for those without. */
static rs_hop_chain nth_chain(const rs_hop_chain *all, int64_t k, int64_t n) {
  int64_t domains = rs_hop_chain_domains(all), begin = rs_hop_chain_place(all, k * domains / n),
          end = rs_hop_chain_place(all, (k + 1) * domains / n - 1) + 1;
  int64_t skipped = rs_hop_without(all, begin);
  return (rs_hop_chain){all->cell, begin, end, all->without + skipped, rs_hop_without(all, end) - skipped};
}

/* The domains that have as many receivers as the one at a place, but for those without. */
static rs_hop_chain find_alike(const rs_work *w, int64_t cell, int64_t place) {
  const rs_hop_cell *c = &w->groups->cell.at[cell];
  const rs_hop_domain *domain = &w->groups->domain.at[c->first + place];
  rs_hop_chain all = {cell, domain->begin, domain->end, w->without.at, w->without.n};
  int64_t skipped = rs_hop_without(&all, all.begin);
  all.nwithout = rs_hop_without(&all, all.end) - skipped;
  if (all.nwithout > 0)
    all.without += skipped;
  return all;
}

/* Receivers of a unit in domains that have no holder. */
static reshard_status list_elsewhere(rs_work *w, const rs_hop_unit *u) {
  int64_t cell;
  RS_TRY(rs_hop_cell_find(w, u->cell, &cell));
  RS_TRY(find_without(w, cell));
  for (int64_t place = 0, n = w->groups->cell.at[cell].domains; place < n;) {
    rs_hop_chain all = find_alike(w, cell, place);
    place = all.end;
    for (int64_t k = 0, chains = rs_min(w->chains, rs_hop_chain_domains(&all)); k < chains; k++) {
      rs_hop_chain chain = nth_chain(&all, k, chains);
      RS_TRY(add_chain(w, u, &chain));
    }
  }
  return RESHARD_SUCCESS;
}

/* Receivers of a unit in this rank's domain, which has holders. */
static reshard_status list_here(rs_work *w, const rs_hop_unit *u) {
  int64_t cell;
  RS_TRY(rs_hop_cell_find(w, u->cell, &cell));
  const rs_hop_cell *c = &w->groups->cell.at[cell];
  if (c->own < 0)
    return RESHARD_SUCCESS;
  const rs_hop_domain *own = &w->groups->domain.at[c->first + c->own];
  const rs_holder *h = w->groups->holder.at + own->first;
  for (int64_t i = 0; i < own->count; i++)
    if (!rs_layout_holds(w->class_->src, w->cell, h[i].rank))
      RS_TRY(add_part(w, u, h[i]));
  return RESHARD_SUCCESS;
}

/* The same of a cell that one rank holds, of which no list is kept. */
static reshard_status list_one(rs_work *w, const rs_hop_unit *u, bool here) {
  rs_holder storage, h = *rs_layout_holders(w->class_->dst, u->cell, &storage);
  int64_t node = w->nodes[h.rank];
  bool serves = here ? node == w->nodes[w->rank] && !rs_layout_holds(w->class_->src, w->cell, h.rank)
                     : !rs_node_has_sources(w, node);
  return serves ? add_part(w, u, h) : RESHARD_SUCCESS;
}

static void clear_line(rs_work *w) {
  w->receivers.n = 0;
  w->slices.n = 1;
}

reshard_status rs_list_line(rs_work *w, bool here) {
  RS_TRY(rs_vec_reserve(&w->slices, 1));
  clear_line(w);
  for (int64_t i = 0; i < w->units.n; i++) {
    const rs_hop_unit *u = &w->units.at[i];
    bool one = rs_layout_holder_count(w->class_->dst, u->cell) == 1;
    RS_TRY(one ? list_one(w, u, here) : here ? list_here(w, u) : list_elsewhere(w, u));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_list_own_chain(rs_work *w, const rs_hop_unit *u, int64_t array) {
  int64_t cell;
  RS_TRY(rs_vec_reserve(&w->slices, 1));
  clear_line(w);
  if (rs_layout_holder_count(w->class_->dst, u->cell) == 1)
    return add_part(w, u, (rs_holder){w->rank, array});
  RS_TRY(rs_hop_cell_find(w, u->cell, &cell));
  const rs_hop_cell *c = &w->groups->cell.at[cell];
  RS_TRY(find_without(w, cell));
  rs_hop_chain all = find_alike(w, cell, c->own);
  int64_t n = rs_hop_chain_domains(&all), chains = rs_min(w->chains, n),
          at = c->own - all.begin - rs_hop_without(&all, c->own);
  rs_hop_chain chain = nth_chain(&all, ((at + 1) * chains - 1) / n, chains);
  return add_chain(w, u, &chain);
}

/* --- Counting a line ---------------------------------------------------------------------------------------------- */

reshard_status rs_line_is_counted(rs_work *w, int64_t wants, bool *counted) {
  int64_t listed = 0, cell;
  *counted = true;
  for (int64_t i = 0; i < w->units.n && *counted; i++) {
    if (rs_layout_holder_count(w->class_->dst, w->units.at[i].cell) == 1)
      continue;
    RS_TRY(rs_hop_cell_find(w, w->units.at[i].cell, &cell));
    *counted = w->groups->cell.at[cell].ascending;
    listed += rs_min(w->chains, w->groups->cell.at[cell].domains);
  }
  *counted = *counted && listed / COUNTED > wants * w->units.n;
  return RESHARD_SUCCESS;
}

static bool is_before(int64_t rank, int64_t array, const rs_holder *h) {
  return h->rank < rank || (h->rank == rank && h->array < array);
}

/* True where all holders of a domain are. */
static bool ends_before(const rs_work *w, const rs_hop_domain *domain, int64_t rank, int64_t array) {
  return is_before(rank, array, &w->groups->holder.at[domain->first + domain->count - 1]);
}

/* Adds the slices of the first domains of chains: all, and those of takers before an array of a rank. */
static void count_heads(const rs_work *w, const rs_hop_unit *u, const rs_hop_chain *all, int64_t rank, int64_t array,
                        int64_t *before, int64_t *total) {
  int64_t domains = rs_hop_chain_domains(all), chains = rs_min(w->chains, domains), begin, end;
  *total += chains * u->elements;
  if (chains == 0)
    return;
  int64_t n = count_slices(w, u, rs_hop_chain_at(w->groups, all, 0)->count), low = 0, high = chains - 1;
  RS_LOWER_BOUND(low, high, ends_before(w, rs_hop_chain_at(w->groups, all, i * domains / chains), rank, array));
  const rs_hop_domain *head = rs_hop_chain_at(w->groups, all, low * domains / chains); /* those before it are before */
  for (int64_t j = 0; j < n; j++) {
    cut_slice(u, j, n, &begin, &end);
    *before += (low + is_before(rank, array, taker_of(w, head, j))) * (end - begin) * (u->elements / u->rows);
  }
}

reshard_status rs_count_line(rs_work *w, int64_t rank, int64_t array, int64_t *before, int64_t *total) {
  *before = *total = 0;
  for (int64_t i = 0; i < w->units.n; i++) {
    const rs_hop_unit *u = &w->units.at[i];
    int64_t cell;
    if (rs_layout_holder_count(w->class_->dst, u->cell) == 1) {
      rs_holder storage, h = *rs_layout_holders(w->class_->dst, u->cell, &storage);
      int64_t elements = rs_node_has_sources(w, w->nodes[h.rank]) ? 0 : u->elements;
      *total += elements;
      *before += is_before(rank, array, &h) ? elements : 0;
      continue;
    }
    RS_TRY(rs_hop_cell_find(w, u->cell, &cell));
    RS_TRY(find_without(w, cell));
    for (int64_t place = 0, n = w->groups->cell.at[cell].domains; place < n;) {
      rs_hop_chain all = find_alike(w, cell, place);
      place = all.end;
      count_heads(w, u, &all, rank, array, before, total);
    }
  }
  return RESHARD_SUCCESS;
}
