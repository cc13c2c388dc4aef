/* Destination cells by domain, and the groups of ranks that pass their bytes on.
 *
 * A world has as many ranks as cells, or more, and a rank that receives meets a world of source cells. So the holders
 * of a destination cell are listed once. A chain is a range of their domains, but for those that hold the source cell;
 * two chains of the same ranks are one group, whatever the cells. */
#include "plan/intersect.h"

#include "layout/sort.h"

#include <stdlib.h>
#include <string.h>

/* The slot of the first number with this hash from a slot on; else of a free one. */
static int64_t next_slot(const rs_hop_table *t, uint64_t hash, int64_t slot) {
  int64_t mask = t->slot.n - 1;
  for (slot &= mask; t->slot.at[slot] >= 0 && t->hash.at[t->slot.at[slot]] != hash; slot = (slot + 1) & mask)
    ;
  return slot;
}

/* Makes room for one more. */
static reshard_status grow_table(rs_hop_table *t) {
  int64_t n = rs_max(64, 2 * t->slot.n);
  RS_TRY(rs_vec_reserve(&t->hash, t->hash.n + 1));
  if (2 * t->hash.n < t->slot.n)
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&t->slot, n));
  memset(t->slot.at, -1, (size_t)n * sizeof *t->slot.at);
  t->slot.n = n;
  for (int64_t i = 0; i < t->hash.n; i++) {
    int64_t slot = (int64_t)(t->hash.at[i] & (uint64_t)(n - 1));
    while (t->slot.at[slot] >= 0)
      slot = (slot + 1) & (n - 1);
    t->slot.at[slot] = i;
  }
  return RESHARD_SUCCESS;
}

static void add_number(rs_hop_table *t, uint64_t hash, int64_t slot) {
  t->slot.at[slot] = t->hash.n;
  t->hash.at[t->hash.n++] = hash;
}

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

/* --- Cells -------------------------------------------------------------------------------------------------------- */

/* Lists the holders of a cell by domain; within one they stay by rank. Returns the number of domains. */
static reshard_status list_holders(rs_work *w, int64_t cell, int64_t *domains) {
  rs_hop_groups *g = w->groups;
  int64_t n = rs_layout_holder_count(w->class_->dst, cell);
  RS_TRY(rs_vec_reserve(&w->holders, n));
  RS_TRY(rs_vec_reserve(&g->holder, g->holder.n + n));
  RS_TRY(rs_vec_reserve(&w->keys, 2 * n));
  const rs_holder *h = rs_layout_holders(w->class_->dst, cell, w->holders.at);
  rs_holder *out = g->holder.at + g->holder.n;
  int places = rs_bits((uint64_t)n), nodes = rs_bits((uint64_t)w->world);
  bool ordered = true;
  *domains = 0;
  for (int64_t i = 0; i < n; i++) {
    w->keys.at[i] = (uint64_t)w->nodes[h[i].rank] << places | (uint64_t)i;
    ordered = ordered && (i == 0 || w->keys.at[i - 1] < w->keys.at[i]);
  }
  const uint64_t *order = ordered ? w->keys.at : rs_sort_keys(w->keys.at, w->keys.at + n, n, places, places + nodes);
  for (int64_t i = 0; i < n; i++) {
    out[i] = h[order[i] & (((uint64_t)1 << places) - 1)];
    *domains += i == 0 || order[i] >> places != order[i - 1] >> places;
  }
  g->holder.n += n;
  return RESHARD_SUCCESS;
}

/* Lists the domains of a cell, whose holders are listed: those with fewer first, then by number. */
static reshard_status list_domains(rs_work *w, rs_hop_cell *c) {
  rs_hop_groups *g = w->groups;
  int64_t at = 0, end = g->holder.n;
  RS_TRY(rs_vec_reserve(&g->domain, g->domain.n + c->domains));
  RS_TRY(rs_vec_reserve(&g->place, g->place.n + c->domains));
  RS_TRY(rs_vec_reserve(&w->keys, 2 * c->domains));
  rs_hop_domain *found = g->domain.at + g->domain.n;
  uint64_t *keys = w->keys.at, sum = 0; /* number of ranks, then the place of the first */
  int64_t most = 0;
  for (int64_t i = c->holders, next; i < end; i = next) {
    for (next = i + 1; next < end && w->nodes[g->holder.at[next].rank] == w->nodes[g->holder.at[i].rank];)
      next++;
    keys[at++] = (uint64_t)(next - i) << 32 | (uint64_t)(i - c->holders);
    most = rs_max(most, next - i);
  }
  c->ascending = true;
  const uint64_t *order = rs_sort_keys(keys, keys + c->domains, c->domains, 32, 32 + rs_bits((uint64_t)most));
  rs_pair *place = g->place.at + g->place.n, *spare = NULL;
  bool ordered = true;
  for (int64_t i = 0; i < c->domains; i++) {
    const rs_holder *h = g->holder.at + c->holders + (uint32_t)order[i];
    int64_t count = (int64_t)(order[i] >> 32);
    bool alike = i > 0 && found[i - 1].count == count;
    found[i] = (rs_hop_domain){w->nodes[h->rank], h - g->holder.at, count, alike ? found[i - 1].begin : i, 0, sum};
    place[i] = (rs_pair){(uint64_t)found[i].number, (uint64_t)i};
    ordered = ordered && (i == 0 || place[i - 1].key < place[i].key);
    c->ascending = c->ascending && (!alike || g->holder.at[found[i - 1].first + count - 1].rank < h->rank);
    uint64_t hash = 1;
    for (int64_t k = 0; k < count; k++)
      hash = mix(hash, (uint64_t)h[k].rank);
    sum += mix(hash, (uint64_t)count);
  }
  for (int64_t i = c->domains - 1; i >= 0; i--)
    found[i].end = i + 1 < c->domains && found[i + 1].count == found[i].count ? found[i + 1].end : i + 1;
  c->sum = sum;
  g->domain.n += c->domains;
  g->place.n += c->domains;
  if (ordered)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc(&spare, c->domains, sizeof *spare));
  const rs_pair *sorted = rs_sort_pairs(place, spare, c->domains, false, 0, rs_bits((uint64_t)w->world));
  if (sorted != place)
    memcpy(place, sorted, (size_t)c->domains * sizeof *place);
  free(spare);
  return RESHARD_SUCCESS;
}

int64_t rs_hop_cell_place(const rs_hop_groups *g, const rs_hop_cell *c, int64_t domain) {
  const rs_pair *place = g->place.at + c->first;
  int64_t low = 0, high = c->domains;
  RS_LOWER_BOUND(low, high, (int64_t)place[i].key < domain);
  return low < c->domains && (int64_t)place[low].key == domain ? (int64_t)place[low].value : -1;
}

reshard_status rs_hop_cell_find(rs_work *w, int64_t cell, int64_t *number) {
  rs_hop_groups *g = w->groups;
  *number = g->last;
  if (g->cell.n > 0 && g->cell.at[g->last].class_ == w->number && g->cell.at[g->last].cell == cell)
    return RESHARD_SUCCESS;
  uint64_t hash = mix(mix(1, (uint64_t)w->number), (uint64_t)cell);
  RS_TRY(grow_table(&g->cells));
  int64_t slot = next_slot(&g->cells, hash, (int64_t)hash);
  for (; g->cells.slot.at[slot] >= 0; slot = next_slot(&g->cells, hash, slot + 1)) {
    *number = g->last = g->cells.slot.at[slot];
    if (g->cell.at[*number].class_ == w->number && g->cell.at[*number].cell == cell)
      return RESHARD_SUCCESS;
  }
  RS_TRY(rs_vec_reserve(&g->cell, g->cell.n + 1));
  rs_hop_cell c = {.class_ = w->number, .cell = cell, .holders = g->holder.n, .first = g->domain.n, .own_array = -1};
  RS_TRY(list_holders(w, cell, &c.domains));
  RS_TRY(list_domains(w, &c));
  c.own = rs_hop_cell_place(g, &c, w->nodes[w->rank]);
  const rs_hop_domain *own = g->domain.at + c.first + rs_max(0, c.own);
  for (int64_t i = 0; c.own >= 0 && i < own->count; i++)
    if (g->holder.at[own->first + i].rank == w->rank)
      c.own_array = g->holder.at[own->first + i].array;
  *number = g->last = g->cell.n;
  g->cell.at[g->cell.n++] = c;
  add_number(&g->cells, hash, slot);
  return RESHARD_SUCCESS;
}

/* --- Groups ------------------------------------------------------------------------------------------------------- */

int64_t rs_hop_without(const rs_hop_chain *chain, int64_t place) {
  int64_t low = 0, high = chain->nwithout;
  RS_LOWER_BOUND(low, high, chain->without[i] < place);
  return low;
}

int64_t rs_hop_chain_place(const rs_hop_chain *chain, int64_t i) {
  int64_t low = 0, high = chain->nwithout, wanted = chain->begin + i;
  RS_LOWER_BOUND(low, high, chain->without[i] - i <= wanted);
  return wanted + low;
}

int64_t rs_hop_chain_domains(const rs_hop_chain *chain) { return chain->end - chain->begin - chain->nwithout; }

const rs_hop_domain *rs_hop_chain_at(const rs_hop_groups *g, const rs_hop_chain *chain, int64_t i) {
  return &g->domain.at[g->cell.at[chain->cell].first + rs_hop_chain_place(chain, i)];
}

rs_hop_chain rs_hop_chain_of(const rs_hop_groups *g, int64_t group) {
  const rs_hop_group *of = &g->group.at[group - 1];
  return (rs_hop_chain){of->cell, of->begin, of->end, g->without.at + of->without, of->nwithout};
}

/* Sum of the hashes of domains [begin, end) of a cell. */
static uint64_t sum_of(const rs_hop_groups *g, const rs_hop_cell *c, int64_t begin, int64_t end) {
  const rs_hop_domain *domain = g->domain.at + c->first;
  return (end < c->domains ? domain[end].hash_before : c->sum) - domain[begin].hash_before;
}

static uint64_t hash_chain(const rs_hop_groups *g, const rs_hop_chain *chain) {
  const rs_hop_cell *c = &g->cell.at[chain->cell];
  uint64_t sum = sum_of(g, c, chain->begin, chain->end);
  for (int64_t i = 0; i < chain->nwithout; i++)
    sum -= sum_of(g, c, chain->without[i], chain->without[i] + 1);
  return mix(1, sum);
}

/* True for chains of the same ranks. Those of one cell are mostly told apart by where they are in it. */
static bool same_chain(const rs_hop_groups *g, const rs_hop_chain *a, const rs_hop_chain *b) {
  int64_t n = rs_hop_chain_domains(a);
  if (a->cell == b->cell && a->begin == b->begin && a->end == b->end && a->nwithout == b->nwithout &&
      (a->nwithout == 0 || memcmp(a->without, b->without, (size_t)a->nwithout * sizeof *a->without) == 0))
    return true;
  if (n != rs_hop_chain_domains(b))
    return false;
  for (int64_t i = 0; i < n; i++) {
    const rs_hop_domain *x = rs_hop_chain_at(g, a, i), *y = rs_hop_chain_at(g, b, i);
    if (x->number != y->number || x->count != y->count)
      return false;
    for (int64_t k = 0; k < x->count; k++)
      if (g->holder.at[x->first + k].rank != g->holder.at[y->first + k].rank)
        return false;
  }
  return true;
}

reshard_status rs_hop_groups_find(rs_hop_groups *g, const rs_hop_chain *chain, int64_t *number) {
  uint64_t hash = hash_chain(g, chain);
  RS_TRY(grow_table(&g->groups));
  int64_t slot = next_slot(&g->groups, hash, (int64_t)hash);
  for (; g->groups.slot.at[slot] >= 0; slot = next_slot(&g->groups, hash, slot + 1)) {
    *number = g->groups.slot.at[slot] + 1;
    rs_hop_chain other = rs_hop_chain_of(g, *number);
    if (same_chain(g, chain, &other))
      return RESHARD_SUCCESS;
  }
  RS_TRY(rs_vec_reserve(&g->group, g->group.n + 1));
  RS_TRY(rs_vec_reserve(&g->without, g->without.n + chain->nwithout));
  g->group.at[g->group.n++] = (rs_hop_group){chain->cell, chain->begin, chain->end, g->without.n, chain->nwithout};
  for (int64_t i = 0; i < chain->nwithout; i++)
    g->without.at[g->without.n++] = chain->without[i];
  *number = g->group.n;
  add_number(&g->groups, hash, slot);
  return RESHARD_SUCCESS;
}

void rs_hop_groups_free(rs_hop_groups *g) {
  free(g->cells.slot.at);
  free(g->cells.hash.at);
  free(g->groups.slot.at);
  free(g->groups.hash.at);
  free(g->cell.at);
  free(g->holder.at);
  free(g->domain.at);
  free(g->place.at);
  free(g->group.at);
  free(g->without.at);
}
