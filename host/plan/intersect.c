/* Lists the segments that one rank sends, keeps and receives for one class of entries.
 *
 * Each array of the rank is a product of index sets. Clipped to the region and shifted to the other side's coordinates,
 * it is a query to the other side's layout. Every cell that answers is a segment for each of its holders.
 *
 * Where a source cell is replicated, its holders share the work: replicas.c gives each its rows. */
#include "plan/intersect.h"
#include "base/order.h"
#include "plan/place.h"

#include <stdlib.h>
#include <string.h>

/* A cell that is empty along one axis may have more pieces along another than memory holds. */
static bool is_empty(const rs_space *s, const struct reshard_layout_s *own, const int *own_dim, int64_t cell) {
  int64_t shape[RESHARD_MAX_DIMS];
  rs_layout_cell_shape(own, cell, shape);
  for (int a = 0; a < s->naxes; a++)
    if (own_dim[a] >= 0 && (s->extent[a] == 0 || shape[own_dim[a]] == 0))
      return true;
  return false;
}

/* Pieces of a cell of `own` (the source when asks_src) along every axis, clipped to the region. They are in the
 * coordinates of the other side, as a query to it. *met is false when the cell has nothing in the region. */
reshard_status rs_ask(rs_work *w, bool asks_src, int64_t cell, rs_query *query, bool *met) {
  const rs_space *s = &w->class_->space;
  const struct reshard_layout_s *own = asks_src ? w->class_->src : w->class_->dst;
  const int *own_dim = asks_src ? s->src_dim : s->dst_dim, *held_dim = asks_src ? s->dst_dim : s->src_dim;
  const int64_t *own_offset = asks_src ? s->src_offset : s->dst_offset;
  const int64_t *held_offset = asks_src ? s->dst_offset : s->src_offset;
  int64_t first[RS_MAX_AXES + 1];
  w->pieces.n = 0;
  *met = !is_empty(s, own, own_dim, cell);
  w->asked = *met;
  if (!*met)
    return RESHARD_SUCCESS;
  for (int a = 0; a < s->naxes; a++) {
    int64_t from = first[a] = w->pieces.n, length = 0;
    int64_t base = held_dim[a] >= 0 ? held_offset[a] : 0;
    if (own_dim[a] >= 0) {
      RS_TRY(rs_layout_pieces(own, cell, own_dim[a], own_offset[a], own_offset[a] + s->extent[a], &w->pieces));
      for (int64_t p = from; p < w->pieces.n; p++) {
        w->pieces.at[p].begin += base - own_offset[a];
        length += w->pieces.at[p].n;
      }
    } else {
      RS_TRY(rs_vec_reserve(&w->pieces, from + 1));
      w->pieces.at[w->pieces.n++] = (rs_piece){base, 1, 0};
      length = 1;
    }
    *met &= length > 0;
    w->asked *= length;
  }
  first[s->naxes] = w->pieces.n;
  for (int a = 0; a < s->naxes; a++)
    if (held_dim[a] >= 0) {
      query->pieces[held_dim[a]] = w->pieces.n > 0 ? w->pieces.at + first[a] : NULL;
      query->count[held_dim[a]] = first[a + 1] - first[a];
    } else {
      w->alone[a] = w->pieces.n > first[a] ? w->pieces.at[first[a]].local : 0;
    }
  return RESHARD_SUCCESS;
}

/* Lists for the axes that the other side lacks: one run, the index at which the region has this array. */
static reshard_status list_alone(rs_work *w) {
  const int *held_dim = w->sending ? w->class_->space.dst_dim : w->class_->space.src_dim;
  rs_lists *lists = &w->side->lists;
  for (int a = 0; a < w->class_->space.naxes; a++) {
    if (held_dim[a] >= 0)
      continue;
    RS_TRY(rs_vec_reserve(&lists->run, lists->run.n + 1));
    RS_TRY(rs_vec_reserve(&lists->list, lists->list.n + 1));
    w->alone_list[a] = lists->list.n;
    lists->list.at[lists->list.n++] = (rs_list){lists->run.n, 1, 1};
    lists->run.at[lists->run.n++] = (rs_run){w->alone[a], 0, 1};
  }
  return RESHARD_SUCCESS;
}

int64_t rs_hit_rows(const rs_space *s, bool asks_src, const rs_hit *hit) {
  const int *held_dim = asks_src ? s->dst_dim : s->src_dim;
  for (int a = 0; a < s->naxes; a++)
    if (held_dim[a] >= 0 && hit->length[held_dim[a]] > 1)
      return hit->length[held_dim[a]];
  return 1;
}

/* Keeps the lists of a hit, axis by axis; *lists: where, -1 when both sides are boxes. Two corners say all then, and
 * the lists go. */
static reshard_status keep_lists(rs_work *w, const rs_hit *hit, int64_t *lists) {
  const rs_space *s = &w->class_->space;
  *lists = -1;
  if (!w->listed)
    return RESHARD_SUCCESS;
  const int *held_dim = w->sending ? s->dst_dim : s->src_dim;
  RS_TRY(rs_vec_reserve(&w->side->ids, w->side->ids.n + rs_max(1, s->naxes)));
  *lists = w->side->ids.n;
  for (int a = 0; a < s->naxes; a++)
    w->side->ids.at[w->side->ids.n++] = held_dim[a] >= 0 ? hit->list[held_dim[a]] : w->alone_list[a];
  return RESHARD_SUCCESS;
}

/* A cell of the destination that meets one of my source arrays. */
static reshard_status send_hit(void *user, const rs_hit *hit) {
  rs_work *w = user;
  rs_class *c = w->class_;
  int64_t rows = rs_hit_rows(&c->space, true, hit), at;
  RS_TRY(keep_lists(w, hit, &at));
  if (w->groups != NULL)
    return rs_add_hop_unit(w, (rs_hop_unit){hit->cell, hit->elements, rows, at});
  int64_t n = rs_layout_holder_count(c->dst, hit->cell);
  RS_TRY(rs_vec_reserve(&w->holders, n));
  const rs_holder *holders = rs_layout_holders(c->dst, hit->cell, w->holders.at);
  bool others = false;
  for (int64_t i = 0; i < n; i++) {
    others |= holders[i].rank != w->rank;
    RS_TRY(rs_add_holder(w, holders[i], hit->elements, rows, at));
  }
  if (others && !w->shared && w->overlapping) {
    RS_TRY(rs_vec_reserve(&w->hits, w->hits.n + 1));
    w->hits.at[w->hits.n++] = *hit;
  } else if (others && !w->shared) {
    c->exclusive += hit->elements;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_begin_cell(rs_work *w, bool *mine) {
  w->shared = w->groups != NULL || rs_layout_holder_count(w->class_->src, w->cell) > 1;
  w->receivers.n = w->units.n = 0;
  if (w->shared)
    RS_TRY(rs_find_sources(w, w->cell));
  *mine = !w->shared || w->of_rank == NULL || w->sources.at[0].rank == w->rank;
  return RESHARD_SUCCESS;
}

reshard_status rs_end_cell(rs_work *w) {
  if (!w->shared)
    return RESHARD_SUCCESS;
  return w->of_rank == NULL ? rs_share_sends(w) : rs_share_all(w);
}

reshard_status rs_intersect_sends(rs_work *w) {
  rs_class *c = w->class_;
  w->sending = true;
  w->overlapping = c->dst->kind == RESHARD_LAYOUT_BOXES && c->dst->boxes->overlapping;
  if (c->src->kind == RESHARD_LAYOUT_BOXES && c->dst->kind == RESHARD_LAYOUT_BOXES && !w->overlapping)
    return rs_send_boxes(w);
  int64_t arrays = rs_layout_arrays(c->src, w->rank);
  for (w->array = 0; w->array < arrays; w->array++) {
    rs_query query;
    bool met, mine;
    w->cell = rs_layout_cell(c->src, w->rank, w->array);
    RS_TRY(rs_ask(w, true, w->cell, &query, &met));
    if (!met)
      continue;
    RS_TRY(rs_begin_cell(w, &mine));
    if (!mine)
      continue;
    w->hits.n = 0;
    if (w->listed)
      RS_TRY(list_alone(w));
    /* A union needs lists, for as long as it takes. */
    rs_lists *lists = w->listed ? &w->side->lists : w->overlapping ? &w->scratch : NULL;
    w->scratch.run.n = w->scratch.list.n = 0;
    RS_TRY(rs_layout_query(c->dst, &query, lists, send_hit, w));
    if (w->hits.n > 0)
      RS_TRY(rs_union(w, lists, &c->exclusive));
    RS_TRY(rs_end_cell(w));
  }
  return RESHARD_SUCCESS;
}

/* A cell of the source that meets one of my destination arrays. */
static reshard_status receive_hit(void *user, const rs_hit *hit) {
  rs_work *w = user;
  rs_class *c = w->class_;
  if (rs_layout_holds(c->src, hit->cell, w->rank))
    return RESHARD_SUCCESS;
  int64_t rows = rs_hit_rows(&c->space, false, hit), at;
  RS_TRY(keep_lists(w, hit, &at));
  if (w->groups == NULL && rs_layout_holder_count(c->src, hit->cell) == 1) {
    rs_holder storage, h = *rs_layout_holders(c->src, hit->cell, &storage);
    return rs_add_segment(w, h.rank, w->rank, (rs_segment){h.array, w->array, at, 0, hit->elements});
  }
  RS_TRY(rs_vec_reserve(&w->wants, w->wants.n + 1));
  w->wants.at[w->wants.n++] = (rs_want){hit->cell, w->array, hit->elements, rows, at};
  return RESHARD_SUCCESS;
}

static reshard_status intersect_receives(rs_work *w) {
  rs_class *c = w->class_;
  w->side = &c->receive;
  w->sending = false;
  if (c->src->kind == RESHARD_LAYOUT_BOXES && c->dst->kind == RESHARD_LAYOUT_BOXES)
    return rs_receive_boxes(w);
  int64_t arrays = rs_layout_arrays(c->dst, w->rank);
  for (w->array = 0; w->array < arrays; w->array++) {
    rs_query query;
    bool met;
    RS_TRY(rs_ask(w, false, rs_layout_cell(c->dst, w->rank, w->array), &query, &met));
    if (!met)
      continue;
    c->wanted += w->asked;
    if (w->listed)
      RS_TRY(list_alone(w));
    RS_TRY(rs_layout_query(c->src, &query, w->listed ? &c->receive.lists : NULL, receive_hit, w));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_count_wanted(rs_work *w) {
  const rs_class *c = w->class_;
  if (c->src->kind == RESHARD_LAYOUT_BOXES && c->dst->kind == RESHARD_LAYOUT_BOXES) {
    rs_count_wanted_boxes(w);
    return RESHARD_SUCCESS;
  }
  for (int64_t i = 0, n = rs_layout_arrays(c->dst, w->rank); i < n; i++) {
    rs_query query;
    bool met;
    RS_TRY(rs_ask(w, false, rs_layout_cell(c->dst, w->rank, i), &query, &met));
    w->class_->wanted += met ? w->asked : 0;
  }
  return RESHARD_SUCCESS;
}

/* Makes what was found the messages of a side. */
static reshard_status make_messages(rs_work *w, bool sending) {
  rs_class *c = w->class_;
  rs_side *side = sending ? &c->send : &c->receive;
  rs_sorting scratch = {0};
  bool boxed = sending && w->boxed;
  int64_t n = boxed ? w->met.pair.n : w->found.n;
  RS_TRY(rs_alloc(&side->segments.at, n, sizeof(rs_segment)));
  side->segments.n = side->segments.cap = side->nsegments = n;
  w->found.n = 0;
  reshard_status status = boxed
                              ? rs_make_box_messages(&w->met, c->dst->boxes, side->segments.at, &side->messages)
                              : rs_make_messages(w->found.at, n, sending, &scratch, side->segments.at, &side->messages);
  free(scratch.at);
  RS_TRY(status);
  if (sending && w->listed)
    RS_TRY(rs_side_keep_used_lists(side, c->space.naxes));
  rs_last_array last[2] = {{.layout = NULL}, {.layout = NULL}};
  for (int64_t i = 0; i < side->messages.n; i++) {
    rs_message *m = &side->messages.at[i];
    rs_message_find_places(c, side, rs_route_of(w->rank, sending, m->peer), m, sending, !sending || m->peer == w->rank,
                           last);
  }
  return RESHARD_SUCCESS;
}

void rs_work_free(rs_work *w) {
  free(w->found.at);
  free(w->met.pair.at);
  free(w->met.spare.at);
  free(w->pieces.at);
  free(w->holders.at);
  free(w->sources.at);
  free(w->source_nodes.at);
  free(w->node_ranks.at);
  free(w->servers.at);
  free(w->receivers.at);
  free(w->keys.at);
  free(w->wants.at);
  free(w->hits.at);
  free(w->units.at);
  free(w->without.at);
  free(w->slices.at);
  free(w->passed.at);
  rs_lists_free(&w->scratch);
  rs_census_free(&w->census);
}

reshard_status rs_work_intersect(rs_work *w, reshard_status (*make)(rs_work *work, bool sending)) {
  rs_class *c = w->class_;
  w->side = &c->send;
  w->listed = rs_layout_regular(c->src) || rs_layout_regular(c->dst);
  c->send.src_asks = true;
  reshard_status status;
  RS_TRY_GOTO(status, rs_intersect_sends(w), done);
  RS_TRY_GOTO(status, make(w, true), done);
  RS_TRY_GOTO(status, intersect_receives(w), done);
  RS_TRY_GOTO(status, rs_share_receives(w), done);
  RS_TRY_GOTO(status, make(w, false), done);
done:
  rs_lists_drop_scratch(&c->send.lists);
  rs_lists_drop_scratch(&c->receive.lists);
  rs_work_free(w);
  return status;
}

reshard_status rs_class_intersect(rs_class *c, int64_t rank, int64_t world, const int64_t *nodes) {
  rs_work w = {.class_ = c, .rank = rank, .world = world, .nodes = nodes};
  return rs_work_intersect(&w, make_messages);
}

/* --- Size of a union ---------------------------------------------------------------------------------------------- */

/* Of products of index sets: the elements of a source array that others need, where destinations overlap (halos). A
 * sweep along the axes: the runs of the products cut an axis in slabs, and each slab is the same question with one axis
 * less. Only the explanation of a plan asks for it, for the bound on the busiest rank. */
/* True when one of the ascending runs contains an index of the asker. */
static bool runs_contain(const rs_run *runs, int64_t count, int64_t index) {
  int64_t low = 0, high = count;
  RS_LOWER_BOUND(low, high, runs[i].ask + runs[i].n <= index);
  return low < count && runs[low].ask <= index;
}

static reshard_status union_elements(const rs_lists *lists, const rs_hit *hits, int64_t n, int d, int ndim,
                                     int64_t *size) {
  *size = n > 0;
  if (n == 0 || d == ndim)
    return RESHARD_SUCCESS;
  int64_t *bounds = NULL, nbounds = 0;
  rs_hit *inside = NULL;
  for (int64_t i = 0; i < n; i++)
    nbounds += 2 * lists->list.at[hits[i].list[d]].count;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&bounds, nbounds, sizeof *bounds), done);
  RS_TRY_GOTO(status, rs_alloc(&inside, n, sizeof *inside), done);
  nbounds = 0;
  for (int64_t i = 0; i < n; i++) {
    const rs_list *list = &lists->list.at[hits[i].list[d]];
    for (int64_t r = list->first; r < list->first + list->count; r++) {
      bounds[nbounds++] = lists->run.at[r].ask;
      bounds[nbounds++] = lists->run.at[r].ask + lists->run.at[r].n;
    }
  }
  qsort(bounds, (size_t)nbounds, sizeof *bounds, rs_order_numbers);
  *size = 0;
  for (int64_t b = 0; b + 1 < nbounds; b++) {
    if (bounds[b] == bounds[b + 1])
      continue;
    int64_t ninside = 0, below;
    for (int64_t i = 0; i < n; i++) {
      const rs_list *list = &lists->list.at[hits[i].list[d]];
      if (runs_contain(lists->run.at + list->first, list->count, bounds[b]))
        inside[ninside++] = hits[i];
    }
    RS_TRY_GOTO(status, union_elements(lists, inside, ninside, d + 1, ndim, &below), done);
    *size += below * (bounds[b + 1] - bounds[b]);
  }
done:
  free(bounds);
  free(inside);
  return status;
}

reshard_status rs_union(const rs_work *w, const rs_lists *lists, int64_t *elements) {
  int64_t size;
  RS_TRY(union_elements(lists, w->hits.at, w->hits.n, 0, w->class_->dst->ndim, &size));
  *elements += size;
  return RESHARD_SUCCESS;
}
