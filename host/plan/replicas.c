/* Shares of the holders of a replicated source cell (rule 7 of plans).
 *
 * The receivers of a cell, by rank, have their parts laid end to end. Holder k of K serves the k-th K-th of that line,
 * cut at whole rows of a part. So sending is balanced whatever the pattern, and a holder and a receiver that know the
 * layouts agree without a message. With a node map there is one line per node that has both holders and receivers,
 * served by the holders there. One more line is for all other receivers, served by all holders. */
#include "base/order.h"
#include "layout/sort.h"
#include "plan/intersect.h"

#include <stdlib.h>
#include <string.h>

RS_ORDER_BY_TWO(by_receiver, rs_receiver, rank, array)

/* By (rank, array). Thousands of receivers are the rule in large worlds, so keys are sorted: memory for all receivers
 * once more would come from the system, and go back to it, with each plan. */
static reshard_status sort_receivers(rs_work *w) {
  int64_t n = w->receivers.n, most_array = 0;
  rs_receiver *r = w->receivers.at;
  bool ordered = true;
  for (int64_t i = 0; i < n; i++) {
    most_array = rs_max(most_array, r[i].array);
    ordered = ordered && (i == 0 || by_receiver(&r[i - 1], &r[i]) < 0);
  }
  w->order = NULL;
  if (ordered)
    return RESHARD_SUCCESS;
  int places = rs_bits((uint64_t)n), arrays = rs_bits((uint64_t)most_array), ranks = rs_bits((uint64_t)w->world);
  if (n < 64 || places + arrays + ranks > 64) {
    qsort(r, (size_t)n, sizeof *r, by_receiver);
    return RESHARD_SUCCESS;
  }
  RS_TRY(rs_vec_reserve(&w->keys, 2 * n));
  uint64_t *keys = w->keys.at;
  for (int64_t i = 0; i < n; i++)
    keys[i] = ((uint64_t)r[i].rank << arrays | (uint64_t)r[i].array) << places | (uint64_t)i;
  w->order = rs_sort_keys(keys, keys + n, n, places, places + arrays + ranks);
  w->place_mask = ((uint64_t)1 << places) - 1;
  return RESHARD_SUCCESS;
}

/* The i-th of the receivers, once they are sorted. */
static const rs_receiver *receiver_at(const rs_work *w, int64_t i) {
  return &w->receivers.at[w->order != NULL ? (int64_t)(w->order[i] & w->place_mask) : i];
}

reshard_status rs_find_sources(rs_work *w, int64_t cell) {
  int64_t n = rs_layout_holder_count(w->class_->src, cell);
  RS_TRY(rs_vec_reserve(&w->sources, n));
  const rs_holder *holders = rs_layout_holders(w->class_->src, cell, w->sources.at);
  if (holders != w->sources.at)
    memcpy(w->sources.at, holders, (size_t)n * sizeof *holders);
  w->sources.n = n;
  if (w->nodes == NULL)
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&w->source_nodes, n));
  bool ordered = true;
  int64_t *node = w->source_nodes.at;
  for (int64_t i = 0; i < n; i++) {
    node[i] = w->nodes[w->sources.at[i].rank];
    ordered = ordered && (i == 0 || node[i - 1] <= node[i]);
  }
  w->source_nodes.n = n;
  w->without_of = -1;
  if (!ordered)
    qsort(node, (size_t)n, sizeof *node, rs_order_numbers);
  return RESHARD_SUCCESS;
}

/* A line of receivers: those on `node` when local, else those on nodes without holders (everyone without a node map).
 */
typedef struct line {
  bool local;
  int64_t node;
} line;

bool rs_node_has_sources(const rs_work *w, int64_t node) {
  return bsearch(&node, w->source_nodes.at, (size_t)w->source_nodes.n, sizeof node, rs_order_numbers) != NULL;
}

static line line_of(const rs_work *w, int64_t rank) {
  if (w->nodes == NULL)
    return (line){false, 0};
  int64_t node = w->nodes[rank];
  bool local = rs_node_has_sources(w, node);
  return (line){local, local ? node : 0};
}

static bool same_line(line a, line b) { return a.local == b.local && a.node == b.node; }

/* True when a holder serves a line. */
static bool serves_line(const rs_work *w, line l, int64_t holder) { return !l.local || w->nodes[holder] == l.node; }

/* Rows [begin, end) of a part, which a holder sends. */
static reshard_status add_rows(rs_work *w, rs_holder h, const rs_receiver *r, int64_t begin, int64_t end) {
  rs_segment s = {h.array, r->array, r->lists, begin, (end - begin) * (r->elements / r->rows)};
  if (r->part == 0)
    return rs_add_segment(w, h.rank, r->rank, s);
  const rs_slice *slice = &w->slices.at[r->part];
  s.begin += slice->first;
  s.dst_array = slice->own >= 0 ? (int32_t)slice->own : r->array;
  RS_TRY(rs_vec_reserve(&w->passed, w->passed.n + 1));
  w->passed.at[w->passed.n++] = (rs_passed){h.rank, r->rank, slice->group, r->array, s};
  return RESHARD_SUCCESS;
}

/* True for a receiver of the line. Where bytes are passed on, receivers are listed line by line. */
static bool in_line(const rs_work *w, line l, const rs_receiver *r) {
  return w->nodes == NULL || w->groups != NULL || same_line(line_of(w, r->rank), l);
}

static int64_t line_total(const rs_work *w, line l) {
  int64_t total = 0;
  for (int64_t i = 0; i < w->receivers.n; i++)
    if (in_line(w, l, &w->receivers.at[i]))
      total += w->receivers.at[i].elements;
  return total;
}

/* My shares of one line. */
static reshard_status send_line(rs_work *w, line l) {
  int64_t k = 0, n = 0, total = line_total(w, l), before = 0;
  for (int64_t i = 0; i < w->sources.n; i++)
    if (serves_line(w, l, w->sources.at[i].rank)) {
      if (w->sources.at[i].rank < w->rank)
        k++;
      n++;
    }
  int64_t lo = rs_share_begin(total, k, n), hi = rs_share_begin(total, k + 1, n);
  for (int64_t i = 0; i < w->receivers.n && before < hi; i++) {
    const rs_receiver *r = receiver_at(w, i);
    if (!in_line(w, l, r))
      continue;
    int64_t begin = rs_row_at(r, lo - before), end = rs_row_at(r, hi - before);
    if (begin < end)
      RS_TRY(add_rows(w, (rs_holder){w->rank, w->array}, r, begin, end));
    before += r->elements;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_share_sends(rs_work *w) {
  for (int here = 0; w->groups != NULL && here < 2; here++) {
    RS_TRY(rs_list_line(w, here));
    RS_TRY(sort_receivers(w));
    RS_TRY(send_line(w, (line){here, here ? w->nodes[w->rank] : 0}));
  }
  if (w->groups != NULL)
    return RESHARD_SUCCESS;
  RS_TRY(sort_receivers(w));
  RS_TRY(send_line(w, (line){false, 0}));
  return w->nodes != NULL ? send_line(w, (line){true, w->nodes[w->rank]}) : RESHARD_SUCCESS;
}

/* Holders that serve a line. */
static reshard_status find_servers(rs_work *w, line l) {
  RS_TRY(rs_vec_reserve(&w->servers, w->sources.n));
  w->servers.n = 0;
  for (int64_t i = 0; i < w->sources.n; i++)
    if (serves_line(w, l, w->sources.at[i].rank))
      w->servers.at[w->servers.n++] = w->sources.at[i];
  return RESHARD_SUCCESS;
}

/* Segments of one part that begins `before` elements into a line of `total`, whose servers are found. */
static reshard_status receive_part(rs_work *w, const rs_receiver *part, int64_t before, int64_t total) {
  int64_t n = w->servers.n, k = (int64_t)((unsigned __int128)before * (uint64_t)n / (uint64_t)total) - 1;
  for (k = rs_max(k, 0); k < n; k++) {
    int64_t lo = rs_share_begin(total, k, n) - before, hi = rs_share_begin(total, k + 1, n) - before;
    if (lo >= part->elements)
      break;
    int64_t begin = rs_row_at(part, lo), end = rs_row_at(part, hi);
    if (begin < end)
      RS_TRY(add_rows(w, w->servers.at[k], part, begin, end));
  }
  return RESHARD_SUCCESS;
}

/* The shares of all holders in one line. */
static reshard_status share_line(rs_work *w, line l) {
  int64_t total = line_total(w, l), before = 0;
  RS_TRY(find_servers(w, l));
  for (int64_t i = 0; i < w->receivers.n; i++) {
    const rs_receiver *r = receiver_at(w, i);
    if (!in_line(w, l, r))
      continue;
    RS_TRY(receive_part(w, r, before, total));
    before += r->elements;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_share_all(rs_work *w) {
  RS_TRY(sort_receivers(w));
  RS_TRY(share_line(w, (line){false, 0}));
  for (int64_t i = 0; w->nodes != NULL && i < w->sources.n; i++)
    if (i == 0 || w->source_nodes.at[i] != w->source_nodes.at[i - 1])
      RS_TRY(share_line(w, (line){true, w->source_nodes.at[i]}));
  return RESHARD_SUCCESS;
}

RS_ORDER_BY(holder_by_rank, rs_holder, rank)

reshard_status rs_add_receiver(rs_work *w, rs_holder h, int64_t elements, int64_t rows, int64_t lists) {
  if (!rs_layout_holds(w->class_->src, w->cell, h.rank)) {
    RS_TRY(rs_vec_reserve(&w->receivers, w->receivers.n + 1));
    w->receivers.at[w->receivers.n++] = (rs_receiver){h.rank, (int32_t)h.array, 0, elements, rows, lists};
    return RESHARD_SUCCESS;
  }
  if (w->of_rank == NULL) /* it keeps its own copy, and knows alone */
    return RESHARD_SUCCESS;
  const rs_holder *own = bsearch(&h, w->sources.at, (size_t)w->sources.n, sizeof h, holder_by_rank);
  w->of_rank[h.rank]->kept += elements;
  return rs_add_segment(w, h.rank, h.rank, (rs_segment){own->array, h.array, lists, 0, elements});
}

/* Notes who of a destination cell's holders need part of the source's. */
static reshard_status note_receivers(void *user, const rs_hit *hit) {
  rs_work *w = user;
  const rs_class *c = w->class_;
  int64_t n = rs_layout_holder_count(c->dst, hit->cell), rows = rs_hit_rows(&c->space, true, hit);
  if (w->groups != NULL)
    return rs_add_hop_unit(w, (rs_hop_unit){hit->cell, hit->elements, rows, -1});
  RS_TRY(rs_vec_reserve(&w->holders, n));
  RS_TRY(rs_vec_reserve(&w->receivers, w->receivers.n + n));
  const rs_holder *h = rs_layout_holders(c->dst, hit->cell, w->holders.at);
  for (int64_t i = 0; i < n; i++)
    if (!rs_layout_holds(c->src, w->cell, h[i].rank))
      w->receivers.at[w->receivers.n++] = (rs_receiver){h[i].rank, (int32_t)h[i].array, 0, hit->elements, rows, -1};
  return RESHARD_SUCCESS;
}

/* The ranks of a node, ascending, as values; all are sorted where they are asked for first. */
static reshard_status ranks_of_node(rs_work *w, int64_t node, const rs_pair **ranks, int64_t *n) {
  int64_t low = 0, high = w->world;
  if (w->node_ranks.n == 0) {
    uint64_t bits = 0;
    RS_TRY(rs_vec_reserve(&w->node_ranks, 2 * w->world));
    for (int64_t r = 0; r < w->world; r++) {
      w->node_ranks.at[r] = (rs_pair){(uint64_t)w->nodes[r], (uint64_t)r};
      bits |= (uint64_t)w->nodes[r];
    }
    w->by_node = rs_sort_pairs(w->node_ranks.at, w->node_ranks.at + w->world, w->world, false, 0, rs_bits(bits));
    w->node_ranks.n = 2 * w->world;
  }
  RS_LOWER_BOUND(low, high, w->by_node[i].key < (uint64_t)node);
  *ranks = w->by_node + low;
  for (*n = 0; low + *n < w->world && (*ranks)[*n].key == (uint64_t)node;)
    ++*n;
  return RESHARD_SUCCESS;
}

static bool is_source(const rs_work *w, int64_t rank) {
  rs_holder h = {rank, 0};
  return bsearch(&h, w->sources.at, (size_t)w->sources.n, sizeof h, holder_by_rank) != NULL;
}

/* Elements of my line, and before my rank in it: of ranks on my node, or of all others than those on nodes with
 * holders. Holders are no receivers. */
static reshard_status count_line(rs_work *w, line mine, int64_t *total, int64_t *before) {
  int64_t most = mine.local ? 1 : w->nodes != NULL ? w->source_nodes.n : 0;
  *total = mine.local ? 0 : rs_census_all(&w->census);
  *before = mine.local ? 0 : rs_census_below(&w->census);
  for (int64_t i = 0; w->nodes == NULL && i < w->sources.n; i++) {
    int64_t rank = w->sources.at[i].rank, own = rs_census_of(&w->census, rank);
    *total -= own;
    *before -= rank < w->rank ? own : 0;
  }
  for (int64_t i = 0; i < most; i++) {
    const rs_pair *ranks;
    int64_t n;
    if (!mine.local && i > 0 && w->source_nodes.at[i] == w->source_nodes.at[i - 1])
      continue;
    RS_TRY(ranks_of_node(w, mine.local ? mine.node : w->source_nodes.at[i], &ranks, &n));
    for (int64_t k = 0; k < n; k++) {
      int64_t rank = (int64_t)ranks[k].value, own = rs_census_of(&w->census, rank);
      if (mine.local)
        own = own > 0 && !is_source(w, rank) ? -own : 0;
      *total -= own;
      *before -= rank < w->rank ? own : 0;
    }
  }
  return RESHARD_SUCCESS;
}

/* Receives one cell where the destination is regular. Its place in the line is computed, so that the receivers, of
 * which there may be a world full, are not visited. */
static reshard_status receive_counted(rs_work *w, line mine, const rs_query *query, const rs_want *wants,
                                      int64_t nwants) {
  int64_t total, before;
  if (w->census.layout == NULL)
    RS_TRY(rs_census_create(w->class_->dst, w->rank, &w->census));
  RS_TRY(rs_census_take(&w->census, query));
  RS_TRY(count_line(w, mine, &total, &before));
  for (const rs_want *want = wants; want < wants + nwants; want++) {
    rs_receiver part = {w->rank, (int32_t)want->array, 0, want->elements, want->rows, want->lists};
    RS_TRY(receive_part(w, &part, before, total));
    before += want->elements;
  }
  return RESHARD_SUCCESS;
}

/* My want of the cell for an array; wants are by array. */
static const rs_want *want_of(const rs_want *wants, int64_t n, int64_t array) {
  int64_t low = 0, high = n;
  RS_LOWER_BOUND(low, high, wants[i].array < array);
  return &wants[low];
}

/* My array that a part is for, by way of others maybe; -1: none. */
static int64_t own_array(const rs_work *w, const rs_receiver *r) {
  if (r->part > 0)
    return w->slices.at[r->part].own;
  return r->rank == w->rank ? r->array : -1;
}

/* Receives all of what one holder serves alone. */
static reshard_status receive_whole(rs_work *w, const rs_want *wants, int64_t nwants) {
  for (const rs_want *want = wants; want < wants + nwants; want++) {
    rs_receiver part = {w->rank, (int32_t)want->array, 0, want->elements, want->rows, want->lists};
    RS_TRY(receive_part(w, &part, 0, part.elements));
  }
  return RESHARD_SUCCESS;
}

/* Receives slices of units whose places in the line are computed; what one holder serves is in order anyhow. */
static reshard_status receive_chains(rs_work *w, const rs_want *wants, int64_t nwants) {
  for (const rs_want *want = wants; want < wants + nwants; want++) {
    rs_hop_unit unit = {rs_layout_cell(w->class_->dst, w->rank, want->array), want->elements, want->rows, want->lists};
    RS_TRY(rs_list_own_chain(w, &unit, want->array));
    for (int64_t i = 0; i < w->receivers.n; i++) {
      const rs_receiver *r = &w->receivers.at[i];
      int64_t before = 0, total = r->elements;
      if (w->servers.n > 1)
        RS_TRY(rs_count_line(w, r->rank, r->array, &before, &total));
      RS_TRY(receive_part(w, r, before, total));
    }
  }
  return RESHARD_SUCCESS;
}

/* Receives what is listed: all of the line. */
static reshard_status receive_listed(rs_work *w, line mine, const rs_want *wants, int64_t nwants) {
  RS_TRY(sort_receivers(w));
  int64_t total = line_total(w, mine), before = 0, left = w->groups != NULL ? INT64_MAX : nwants;
  for (int64_t i = 0; i < w->receivers.n && left > 0; i++) {
    rs_receiver r = *receiver_at(w, i);
    if (!in_line(w, mine, &r))
      continue;
    int64_t own = own_array(w, &r);
    if (own >= 0) {
      r.lists = want_of(wants, nwants, own)->lists;
      RS_TRY(receive_part(w, &r, before, total));
      left--;
    }
    before += r.elements;
  }
  return RESHARD_SUCCESS;
}

/* All wants of one cell. */
static reshard_status receive_cell(rs_work *w, const rs_want *wants, int64_t nwants) {
  const struct reshard_layout_s *dst = w->class_->dst;
  rs_query query;
  bool met, counted = rs_layout_regular(dst) && dst->ranks.ascending;
  w->cell = wants->cell;
  w->receivers.n = w->units.n = 0;
  w->scratch.run.n = w->scratch.list.n = 0;
  RS_TRY(rs_find_sources(w, w->cell));
  line mine = line_of(w, w->rank);
  RS_TRY(find_servers(w, mine));
  bool passed = w->groups != NULL && !mine.local;
  if (w->servers.n == 1)
    return passed ? receive_chains(w, wants, nwants) : receive_whole(w, wants, nwants);
  RS_TRY(rs_ask(w, true, w->cell, &query, &met));
  if (counted && !passed)
    return receive_counted(w, mine, &query, wants, nwants);
  RS_TRY(rs_layout_query(dst, &query, w->listed ? &w->scratch : NULL, note_receivers, w));
  if (passed) {
    RS_TRY(rs_line_is_counted(w, nwants, &counted));
    if (counted)
      return receive_chains(w, wants, nwants);
  }
  if (w->groups != NULL)
    RS_TRY(rs_list_line(w, mine.local));
  return receive_listed(w, mine, wants, nwants);
}

RS_ORDER_BY_TWO(by_cell, rs_want, cell, array)

reshard_status rs_share_receives(rs_work *w) {
  bool ordered = true;
  for (int64_t i = 1; i < w->wants.n && ordered; i++)
    ordered = by_cell(&w->wants.at[i - 1], &w->wants.at[i]) < 0;
  if (!ordered)
    qsort(w->wants.at, (size_t)w->wants.n, sizeof *w->wants.at, by_cell);
  if (w->groups != NULL)
    RS_TRY(rs_vec_reserve(&w->passed, w->wants.n));
  for (int64_t i = 0; i < w->wants.n;) {
    int64_t j = i + 1;
    while (j < w->wants.n && w->wants.at[j].cell == w->wants.at[i].cell)
      j++;
    RS_TRY(receive_cell(w, w->wants.at + i, j - i));
    i = j;
  }
  return RESHARD_SUCCESS;
}
