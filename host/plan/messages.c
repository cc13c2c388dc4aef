/* Messages: segments in the order that both ends know, where each message begins, and the geometry of a segment. The
 * peers of a plan: ranks that messages of any class go to or come from. */
#include "plan/messages.h"

#include "base/order.h"
#include "layout/sort.h"
#include "plan/scaled.h"

#include <stdlib.h>
#include <string.h>

/* Segments of one pair of arrays' peers that are sorted by insertion. */
enum { FEW = 16 };
/* Segments ahead of the one that is taken: they are far from each other in the list. */
enum { FETCHED = 16 };

RS_ORDER_BY_TWO(by_arrays, rs_segment, dst_array, src_array)

static int by_message(const void *a, const void *b) {
  const rs_loose_segment *x = a, *y = b;
  int order = RS_ORDER(x->route.src, y->route.src);
  order = order != 0 ? order : RS_ORDER(x->route.dst, y->route.dst);
  return order != 0 ? order : by_arrays(&x->segment, &y->segment);
}

/* Sorts each destination array's segments of a message by source array: they came in the order of a tree. */
static void sort_sources(rs_segment *s, int64_t n) {
  for (int64_t i = 0, end; i < n; i = end) {
    bool ordered = true;
    for (end = i + 1; end < n && s[end].dst_array == s[i].dst_array; end++)
      ordered &= s[end].src_array > s[end - 1].src_array;
    if (ordered)
      continue;
    if (end - i > FEW)
      qsort(s + i, (size_t)(end - i), sizeof *s, by_arrays);
    for (int64_t k = i + 1; k < end; k++) { /* nothing moves in what was sorted */
      rs_segment moved = s[k];
      int64_t j = k;
      for (; j > i && s[j - 1].src_array > moved.src_array; j--)
        s[j] = s[j - 1];
      s[j] = moved;
    }
  }
}

static int64_t peer_of(const rs_loose_segment *f, bool sending) { return sending ? f->route.dst : f->route.src; }

/* Places in a list, in order: the low bits of each key. NULL keys: the list is in order itself. */
typedef struct found_order {
  const uint64_t *keys;
  uint64_t mask;
} found_order;

static const rs_loose_segment *found_at(const rs_loose_segment *f, const found_order *order, int64_t i) {
  return &f[order->keys != NULL ? (int64_t)(order->keys[i] & order->mask) : i];
}

/* Orders by peer and destination array; where the list itself is sorted, by source array too. A key has a segment's
 * place as well: a rank's keys are to stay in the cache beside what is found. */
static reshard_status sort_found(rs_loose_segment *f, int64_t n, bool sending, rs_sorting *scratch,
                                 found_order *order) {
  bool ordered = true, by_dst = true;
  int64_t most_peer = 0, most_array = 0;
  for (int64_t i = 0; i < n; i++) {
    most_peer = rs_max(most_peer, peer_of(&f[i], sending));
    most_array = rs_max(most_array, f[i].segment.dst_array);
    if (i > 0) {
      ordered = ordered && by_message(&f[i - 1], &f[i]) < 0;
      by_dst = by_dst && f[i - 1].segment.dst_array <= f[i].segment.dst_array;
    }
  }
  int places = rs_bits((uint64_t)n), arrays = by_dst ? 0 : rs_bits((uint64_t)most_array);
  int bits = places + arrays + rs_bits((uint64_t)most_peer);
  *order = (found_order){NULL, ((uint64_t)1 << places) - 1};
  if (ordered)
    return RESHARD_SUCCESS;
  if (n < 64 || bits > 64) {
    qsort(f, (size_t)n, sizeof *f, by_message);
    return RESHARD_SUCCESS;
  }
  RS_TRY(rs_vec_reserve(scratch, 2 * n));
  uint64_t *keys = scratch->at;
  for (int64_t i = 0; i < n; i++) {
    uint64_t peer = (uint64_t)peer_of(&f[i], sending);
    keys[i] = (by_dst ? peer : peer << arrays | (uint64_t)f[i].segment.dst_array) << places | (uint64_t)i;
  }
  order->keys = rs_sort_keys(keys, keys + n, n, places, bits);
  return RESHARD_SUCCESS;
}

reshard_status rs_make_messages(rs_loose_segment *found, int64_t n, bool sending, rs_sorting *scratch,
                                rs_segment *sorted, rs_messages *messages) {
  found_order order;
  RS_TRY(sort_found(found, n, sending, scratch, &order));
  messages->n = 0;
  for (int64_t i = 0, first; i < n;) {
    const rs_loose_segment *f = found_at(found, &order, i);
    int64_t peer = peer_of(f, sending), elements = 0;
    for (first = i; peer_of(f, sending) == peer;) {
      if (order.keys != NULL && i + FETCHED < n)
        __builtin_prefetch(found_at(found, &order, i + FETCHED));
      sorted[i++] = f->segment;
      elements += f->segment.elements;
      if (i == n)
        break;
      f = found_at(found, &order, i);
    }
    if (order.keys != NULL)
      sort_sources(sorted + first, i - first);
    RS_TRY(rs_vec_reserve(messages, messages->n + 1));
    rs_message *m = &messages->at[messages->n++];
    m->peer = peer; /* field by field: a struct copied right after it is written waits for the writes */
    m->segments = sorted + first;
    m->elements = elements;
    m->count = i - first;
    m->src_in_place = m->dst_in_place = false;
  }
  return RESHARD_SUCCESS;
}

/* The rank, of those that hold boxes from `from` on, that holds the box at a place. Mostly it is the first or next. */
static int64_t rank_of_place(const rs_boxes *b, int64_t from, int64_t place) {
  int64_t low = from, high = b->nranks;
  for (; low < from + 2; low++)
    if (place < b->rank_first[low + 1])
      return low;
  RS_LOWER_BOUND(low, high, b->rank_first[i + 1] <= place);
  return low;
}

reshard_status rs_make_box_messages(rs_meetings *met, const rs_boxes *dst, rs_segment *sorted, rs_messages *messages) {
  const rs_pair *at = met->pair.at;
  const int64_t *first = dst->rank_first;
  int64_t n = met->pair.n, holder = 0;
  bool ordered = true;
  for (int64_t i = 1; i < n && ordered; i++)
    ordered = at[i - 1].key < at[i].key;
  if (!ordered) {
    RS_TRY(rs_vec_reserve(&met->spare, met->pair.cap));
    at = rs_sort_pairs(met->pair.at, met->spare.at, n, false, 32, 32 + rs_bits((uint64_t)dst->n));
  }
  messages->n = 0;
  for (int64_t i = 0; i < n;) {
    holder = rank_of_place(dst, holder, (int64_t)(at[i].key >> 32));
    int64_t begin = i, elements = 0, end = first[holder + 1];
    for (; i < n && (int64_t)(at[i].key >> 32) < end; i++) {
      int64_t array = (int64_t)(at[i].key >> 32) - first[holder];
      sorted[i] = (rs_segment){(int32_t)at[i].key, (int32_t)array, -1, 0, (int64_t)at[i].value};
      elements += (int64_t)at[i].value;
    }
    RS_TRY(rs_vec_reserve(messages, messages->n + 1));
    rs_message *m = &messages->at[messages->n++];
    m->peer = dst->rank[holder];
    m->segments = sorted + begin;
    m->elements = elements;
    m->count = i - begin;
    m->src_in_place = m->dst_in_place = false;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_side_keep_used_lists(rs_side *side, int64_t naxes) {
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

void rs_side_free(rs_side *side) {
  if (side->shared)
    return;
  free(side->segments.at);
  free(side->messages.at);
  free(side->ids.at);
  rs_lists_free(&side->lists);
}

void rs_class_free(rs_class *c) {
  reshard_layout_release(c->src);
  reshard_layout_release(c->dst);
  rs_scaling_free(c->scaling);
  rs_side_free(&c->send);
  rs_side_free(&c->receive);
}

static int64_t side_memory(const rs_side *s) {
  return s->segments.cap * (int64_t)sizeof(rs_segment) + s->messages.cap * (int64_t)sizeof(rs_message) +
         s->lists.run.cap * (int64_t)sizeof(rs_run) + s->lists.list.cap * (int64_t)sizeof(rs_list) +
         s->ids.cap * (int64_t)sizeof(int64_t);
}

int64_t rs_class_memory(const rs_class *c) {
  int64_t scaling = c->scaling != NULL ? (int64_t)sizeof *c->scaling : 0;
  return (int64_t)sizeof *c + scaling + side_memory(&c->send) + side_memory(&c->receive);
}

const rs_message *rs_side_message(const rs_side *side, int64_t peer) {
  int64_t low = 0, high = side->messages.n;
  RS_LOWER_BOUND(low, high, side->messages.at[i].peer < peer);
  return low < side->messages.n && side->messages.at[low].peer == peer ? &side->messages.at[low] : NULL;
}

/* Geometry of a segment of two boxes: their intersection in the region. */
static void meet_boxes(const rs_class *c, rs_route route, const rs_segment *segment, rs_geometry *out) {
  const rs_space *s = &c->space;
  int64_t storage[2][2 * RESHARD_MAX_DIMS];
  const int64_t *src = rs_array_corners(c->src, route.src, segment->src_array, storage[0]);
  const int64_t *dst = rs_array_corners(c->dst, route.dst, segment->dst_array, storage[1]);
  for (int a = 0; a < s->naxes; a++) {
    int i = s->src_dim[a], j = s->dst_dim[a];
    int64_t begin = 0, end = s->extent[a]; /* in the region */
    if (i >= 0) {
      begin = rs_max(begin, src[i] - s->src_offset[a]);
      end = rs_min(end, src[c->src->ndim + i] - s->src_offset[a]);
    }
    if (j >= 0) {
      begin = rs_max(begin, dst[j] - s->dst_offset[a]);
      end = rs_min(end, dst[c->dst->ndim + j] - s->dst_offset[a]);
    }
    int64_t from = i >= 0 ? begin + s->src_offset[a] - src[i] : 0;
    int64_t to = j >= 0 ? begin + s->dst_offset[a] - dst[j] : 0;
    out->storage[a] = (rs_run){out->src_asks ? from : to, out->src_asks ? to : from, end - begin};
    out->axis[a] = (rs_span_list){&out->storage[a], 1, end - begin};
  }
}

void rs_segment_geometry(const rs_class *c, const rs_side *side, rs_route route, const rs_segment *segment,
                         rs_geometry *out) {
  out->naxes = c->space.naxes;
  out->src_asks = side->src_asks;
  out->cut = -1;
  out->row = 1;
  if (segment->lists < 0)
    meet_boxes(c, route, segment, out);
  int64_t elements = 1;
  for (int a = out->naxes - 1; a >= 0; a--) {
    if (segment->lists >= 0) {
      const rs_list *list = &side->lists.list.at[side->ids.at[segment->lists + a]];
      out->axis[a] = (rs_span_list){side->lists.run.at + list->first, list->count, list->length};
    }
    if (out->axis[a].length > 1) {
      out->cut = a;
      out->row = elements;
      elements *= out->axis[a].length;
    }
  }
}

/* --- Peers -------------------------------------------------------------------------------------------------------- */

/* Adds one message to what is known of a peer. */
static void add_message(rs_peer *p, bool sending, const rs_class *c, int64_t message) {
  const rs_side *side = sending ? &c->send : &c->receive;
  int64_t bytes = side->messages.at[message].elements * c->wire.width * c->entries;
  rs_peer_add_message(p, sending, side, message, c->entries);
  *(sending ? &p->sent : &p->received) += bytes;
}

/* Merges a class' messages, by peer, into the peers known so far, by rank: `from` to `into`. */
static int64_t merge_messages(const struct reshard_plan_s *plan, const rs_class *c, const rs_peer *from, int64_t n,
                              rs_peer *into) {
  const rs_messages *send = &c->send.messages, *receive = &c->receive.messages;
  int64_t i = 0, s = 0, r = 0, made = 0;
  for (;;) {
    s += s < send->n && send->at[s].peer == plan->rank; /* is kept */
    int64_t sent = s < send->n ? send->at[s].peer : INT64_MAX;
    int64_t received = r < receive->n ? receive->at[r].peer : INT64_MAX;
    int64_t rank = rs_min(i < n ? from[i].rank : INT64_MAX, rs_min(sent, received));
    if (rank == INT64_MAX)
      return made;
    rs_peer *p = &into[made++];
    *p = i < n && from[i].rank == rank ? from[i++] : (rs_peer){.rank = rank, .send_message = -1, .receive_message = -1};
    if (sent == rank)
      add_message(p, true, c, s++);
    if (received == rank)
      add_message(p, false, c, r++);
  }
}

/* Peers of all classes. A world full of peers, if any class has many, is merged over and over; distinct geometries are
 * few. */
reshard_status rs_plan_find_peers(struct reshard_plan_s *plan) {
  int64_t sends = 0, receives = 0, n = 0;
  rs_peer *peers[2] = {NULL, NULL};
  for (int64_t i = 0; i < plan->classes.n; i++) {
    rs_class *c = &plan->classes.at[i];
    c->send.first_message = sends;
    c->receive.first_message = receives;
    sends += c->send.messages.n;
    receives += c->receive.messages.n;
  }
  int64_t most = rs_min(sends + receives, plan->world);
  RS_TRY(rs_plan_alloc(plan, &peers[0], most, sizeof(rs_peer)));
  plan->peers.at = peers[0];
  if (plan->classes.n > 1)
    RS_TRY(rs_alloc(&peers[1], most, sizeof(rs_peer)));
  int from = plan->classes.n % 2; /* the last class' go to the first list */
  for (int64_t i = 0; i < plan->classes.n; i++, from = 1 - from)
    n = merge_messages(plan, &plan->classes.at[i], peers[from], n, peers[1 - from]);
  plan->peers.n = n;
  plan->peers.cap = most;
  free(peers[1]);
  return RESHARD_SUCCESS;
}
