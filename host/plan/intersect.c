/* Lists the segments that one rank sends, keeps and receives for one class of entries.
 *
 * Each array of the rank is a product of index sets. Clipped to the region and shifted to the other side's coordinates,
 * it is a query to the other side's layout. Every cell that answers is a segment for each of its holders.
 *
 * Where a source cell is replicated, its holders share the work: replicas.c gives each its rows. */
#include "plan/intersect.h"

#include "layout/sort.h"

#include <stdlib.h>
#include <string.h>

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
  *met = true;
  w->asked = 1;
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
  int64_t n = rs_layout_holder_count(c->dst, hit->cell);
  RS_TRY(rs_vec_reserve(&w->holders, n));
  const rs_holder *holders = rs_layout_holders(c->dst, hit->cell, w->holders.at);
  bool others = false;
  for (int64_t i = 0; i < n; i++) {
    rs_holder h = holders[i];
    if (h.rank == w->rank || !w->shared) {
      RS_TRY(rs_add_segment(w, (rs_segment){h.rank, w->array, h.array, at, 0, rows, hit->elements}));
      if (h.rank == w->rank)
        c->kept += hit->elements;
    } else if (!rs_layout_holds(c->src, w->cell, h.rank)) {
      RS_TRY(rs_vec_reserve(&w->receivers, w->receivers.n + 1));
      w->receivers.at[w->receivers.n++] = (rs_receiver){h.rank, h.array, hit->elements, rows, at};
    }
    others |= h.rank != w->rank;
  }
  if (others && !w->shared && w->overlapping) {
    RS_TRY(rs_vec_reserve(&w->hits, w->hits.n + 1));
    w->hits.at[w->hits.n++] = *hit;
  } else if (others && !w->shared) {
    c->exclusive += hit->elements;
  }
  return RESHARD_SUCCESS;
}

static reshard_status intersect_sends(rs_work *w) {
  rs_class *c = w->class_;
  w->side = &c->send;
  w->sending = true;
  w->overlapping = c->dst->kind == RESHARD_LAYOUT_BOXES && c->dst->boxes->overlapping;
  if (c->src->kind == RESHARD_LAYOUT_BOXES && c->dst->kind == RESHARD_LAYOUT_BOXES && !w->overlapping)
    return rs_send_boxes(w);
  int64_t arrays = rs_layout_arrays(c->src, w->rank);
  for (w->array = 0; w->array < arrays; w->array++) {
    rs_query query;
    bool met;
    w->cell = rs_layout_cell(c->src, w->rank, w->array);
    RS_TRY(rs_ask(w, true, w->cell, &query, &met));
    if (!met)
      continue;
    w->shared = rs_layout_holder_count(c->src, w->cell) > 1;
    w->receivers.n = w->hits.n = 0;
    if (w->listed)
      RS_TRY(list_alone(w));
    /* A union needs lists, for as long as it takes. */
    rs_lists *lists = w->listed ? &c->send.lists : w->overlapping ? &w->scratch : NULL;
    w->scratch.run.n = w->scratch.list.n = 0;
    RS_TRY(rs_layout_query(c->dst, &query, lists, send_hit, w));
    if (w->hits.n > 0)
      RS_TRY(rs_union(w, lists, &c->exclusive));
    if (w->shared)
      RS_TRY(rs_share_sends(w));
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
  if (rs_layout_holder_count(c->src, hit->cell) == 1) {
    rs_holder storage, h = *rs_layout_holders(c->src, hit->cell, &storage);
    return rs_add_segment(w, (rs_segment){h.rank, h.array, w->array, at, 0, rows, hit->elements});
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

static int by_message(const void *a, const void *b) {
  const rs_segment *x = a, *y = b;
  if (x->peer != y->peer)
    return x->peer < y->peer ? -1 : 1;
  if (x->dst_array != y->dst_array)
    return x->dst_array < y->dst_array ? -1 : 1;
  return x->src_array < y->src_array ? -1 : x->src_array > y->src_array;
}

/* Sorts segments by message. Sending, they come by source array; receiving, by destination array: sorts by the other
 * keys, which keep the order of equals, finish the job. Counting digits is several times faster than comparing, where
 * there are many. */
static reshard_status sort_segments(rs_side *side, bool sending) {
  int64_t n = side->segments.n, most_array = 0, most_peer = 0;
  rs_segment *s = side->segments.at, *sorted = NULL;
  rs_pair *pairs = NULL;
  for (int64_t i = 0; i < n; i++) {
    most_peer = rs_max(most_peer, s[i].peer);
    most_array = rs_max(most_array, sending ? s[i].dst_array : 0);
  }
  int array_bits = rs_bits((uint64_t)most_array), bits = array_bits + rs_bits((uint64_t)most_peer);
  if (n < 64 || bits > 64) {
    qsort(s, (size_t)n, sizeof *s, by_message);
    return RESHARD_SUCCESS;
  }
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&pairs, 2 * n, sizeof *pairs), done);
  RS_TRY_GOTO(status, rs_alloc(&sorted, n, sizeof *sorted), done);
  for (int64_t i = 0; i < n; i++)
    pairs[i] = (rs_pair){(uint64_t)s[i].peer << array_bits | (uint64_t)(sending ? s[i].dst_array : 0), (uint64_t)i};
  const rs_pair *order = rs_sort_pairs(pairs, pairs + n, n, false, 0, bits);
  for (int64_t i = 0; i < n; i++)
    sorted[i] = s[order[i].value];
  for (int64_t i = 1; i < n; i++) { /* cells of one destination array came in the tree's order: few, nearly sorted */
    rs_segment moved = sorted[i];
    int64_t j = i;
    for (; j > 0 && by_message(&sorted[j - 1], &moved) > 0; j--)
      sorted[j] = sorted[j - 1];
    sorted[j] = moved;
  }
  free(s);
  side->segments.at = sorted;
  side->segments.cap = n;
  sorted = NULL;
done:
  free(pairs);
  free(sorted);
  return status;
}

/* Brings the segments into the order of messages, and finds where each begins. */
static reshard_status make_messages(rs_side *side, bool sending) {
  int64_t n = side->segments.n;
  bool ordered = true;
  for (int64_t i = 1; i < n && ordered; i++)
    ordered = by_message(&side->segments.at[i - 1], &side->segments.at[i]) < 0;
  if (!ordered)
    RS_TRY(sort_segments(side, sending));
  const rs_segment *s = side->segments.at;
  for (int64_t i = 0; i < n; i++) {
    if (i == 0 || s[i].peer != s[i - 1].peer) {
      RS_TRY(rs_vec_reserve(&side->messages, side->messages.n + 1));
      side->messages.at[side->messages.n++] = (rs_message){s[i].peer, i, 0, 0};
    }
    side->messages.at[side->messages.n - 1].count++;
    side->messages.at[side->messages.n - 1].elements += s[i].elements;
  }
  return RESHARD_SUCCESS;
}

/* Scratch of the queries is not needed any more. */
static void free_scratch(rs_lists *lists) {
  free(lists->found.at);
  free(lists->group.at);
  memset(&lists->found, 0, sizeof lists->found);
  memset(&lists->group, 0, sizeof lists->group);
}

/* A holder of a replicated cell lists all who need it, a world full of ranks maybe, and serves a few. Keeps the lists
 * of those, so that a plan's memory follows its own segments. Lists that most segments use are left as they are. */
static reshard_status keep_used_lists(rs_side *side, int64_t naxes) {
  int64_t *moved = NULL;
  rs_lists lists = {0};
  int64_t *ids = NULL, nids = 0, segments = side->segments.n;
  if (side->ids.n <= 2 * segments * naxes)
    return RESHARD_SUCCESS;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&moved, side->lists.list.n, sizeof *moved), done);
  RS_TRY_GOTO(status, rs_alloc(&ids, segments * naxes, sizeof *ids), done);
  memset(moved, -1, (size_t)side->lists.list.n * sizeof *moved);
  for (int64_t i = 0; i < segments; i++) {
    for (int64_t a = 0; a < naxes; a++) {
      int64_t from = side->ids.at[side->segments.at[i].lists + a];
      const rs_list *list = &side->lists.list.at[from];
      if (moved[from] < 0) {
        RS_TRY_GOTO(status, rs_vec_reserve(&lists.list, lists.list.n + 1), done);
        RS_TRY_GOTO(status, rs_vec_reserve(&lists.run, lists.run.n + list->count), done);
        memcpy(lists.run.at + lists.run.n, side->lists.run.at + list->first, (size_t)list->count * sizeof(rs_run));
        moved[from] = lists.list.n;
        lists.list.at[lists.list.n++] = (rs_list){lists.run.n, list->count, list->length};
        lists.run.n += list->count;
      }
      ids[nids + a] = moved[from];
    }
    nids += naxes;
  }
  for (int64_t i = 0; i < segments; i++)
    side->segments.at[i].lists = i * naxes;
  free(side->ids.at);
  side->ids.at = ids;
  side->ids.n = side->ids.cap = nids;
  ids = NULL;
  rs_lists_free(&side->lists);
  side->lists = lists;
  lists = (rs_lists){0};
done:
  free(moved);
  free(ids);
  rs_lists_free(&lists);
  return status;
}

reshard_status rs_class_intersect(rs_class *c, int64_t rank, int64_t world, const int64_t *nodes) {
  rs_work w = {.class_ = c, .rank = rank, .world = world, .nodes = nodes};
  w.listed = rs_layout_regular(c->src) || rs_layout_regular(c->dst);
  reshard_status status;
  RS_TRY_GOTO(status, intersect_sends(&w), done);
  RS_TRY_GOTO(status, intersect_receives(&w), done);
  RS_TRY_GOTO(status, rs_share_receives(&w), done);
  if (w.listed)
    RS_TRY_GOTO(status, keep_used_lists(&c->send, c->space.naxes), done);
  RS_TRY_GOTO(status, make_messages(&c->send, true), done);
  RS_TRY_GOTO(status, make_messages(&c->receive, false), done);
done:
  free_scratch(&c->send.lists);
  free_scratch(&c->receive.lists);
  free(w.pieces.at);
  free(w.holders.at);
  free(w.sources.at);
  free(w.source_nodes.at);
  free(w.receivers.at);
  free(w.sorted.at);
  free(w.counts.at);
  free(w.wants.at);
  free(w.hits.at);
  rs_lists_free(&w.scratch);
  rs_census_free(&w.census);
  return status;
}

static void free_side(rs_side *side) {
  free(side->segments.at);
  free(side->messages.at);
  free(side->ids.at);
  rs_lists_free(&side->lists);
}

void rs_class_free(rs_class *c) {
  reshard_layout_release(c->src);
  reshard_layout_release(c->dst);
  free_side(&c->send);
  free_side(&c->receive);
}

const rs_message *rs_side_message(const rs_side *side, int64_t peer) {
  int64_t low = 0, high = side->messages.n;
  RS_LOWER_BOUND(low, high, side->messages.at[i].peer < peer);
  return low < side->messages.n && side->messages.at[low].peer == peer ? &side->messages.at[low] : NULL;
}

void rs_segment_geometry(const struct reshard_plan_s *plan, const rs_class *c, bool sending, const rs_segment *segment,
                         rs_geometry *out) {
  const rs_space *s = &c->space;
  const rs_side *side = sending ? &c->send : &c->receive;
  out->naxes = s->naxes;
  out->src_asks = sending;
  out->cut = -1;
  if (segment->lists < 0) {
    int64_t src_rank = sending ? plan->rank : segment->peer, dst_rank = sending ? segment->peer : plan->rank;
    int64_t src_cell = rs_layout_cell(c->src, src_rank, segment->src_array);
    int64_t dst_cell = rs_layout_cell(c->dst, dst_rank, segment->dst_array);
    int64_t src[2][RESHARD_MAX_DIMS], dst[2][RESHARD_MAX_DIMS];
    rs_layout_cell_box(c->src, src_cell, src[0], src[1]);
    rs_layout_cell_box(c->dst, dst_cell, dst[0], dst[1]);
    for (int a = 0; a < s->naxes; a++) {
      int i = s->src_dim[a], j = s->dst_dim[a];
      int64_t begin = 0, end = s->extent[a]; /* in the region */
      if (i >= 0) {
        begin = rs_max(begin, src[0][i] - s->src_offset[a]);
        end = rs_min(end, src[1][i] - s->src_offset[a]);
      }
      if (j >= 0) {
        begin = rs_max(begin, dst[0][j] - s->dst_offset[a]);
        end = rs_min(end, dst[1][j] - s->dst_offset[a]);
      }
      int64_t from = i >= 0 ? begin + s->src_offset[a] - src[0][i] : 0;
      int64_t to = j >= 0 ? begin + s->dst_offset[a] - dst[0][j] : 0;
      out->storage[a] = (rs_run){sending ? from : to, sending ? to : from, end - begin};
      out->axis[a] = (rs_span_list){&out->storage[a], 1, end - begin};
    }
  } else {
    for (int a = 0; a < s->naxes; a++) {
      const rs_list *list = &side->lists.list.at[side->ids.at[segment->lists + a]];
      out->axis[a] = (rs_span_list){side->lists.run.at + list->first, list->count, list->length};
    }
  }
  for (int a = s->naxes - 1; a >= 0; a--)
    if (out->axis[a].length > 1)
      out->cut = a;
}
