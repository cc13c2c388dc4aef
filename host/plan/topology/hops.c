#include "plan/intersect.h"
#include "plan/scaled.h"
#include "plan/topology.h"

#include <stdlib.h>
#include <string.h>

/* --- Streams ------------------------------------------------------------------------------------------------------ */

/* The part that a class has in a stream: a message. */
typedef struct stream_part {
  int64_t holder, taker, group;
  int64_t class_, message;
  int32_t taker_array, src_array; /* of the first segment */
  bool sending;
} stream_part;

typedef struct hop_maker {
  rs_work w;
  rs_hops *hops;
  rs_hop_groups groups;
  RS_VEC(stream_part) parts;
} hop_maker;

typedef int (*order_of)(const void *a, const void *b);

/* End of the items from i on that are in order. */
static int64_t end_of_order(const char *p, int64_t n, size_t size, order_of compare, int64_t i) {
  for (i++; i < n && compare(p + (size_t)(i - 1) * size, p + (size_t)i * size) <= 0;)
    i++;
  return rs_min(i, n);
}

/* Sorts a list that mostly is in order already, or has a second such list behind it, which is merged from the end. */
static reshard_status sort_unordered(void *at, int64_t n, size_t size, order_of compare) {
  char *p = at, *second;
  int64_t i = end_of_order(p, n, size, compare, 0), j = n - i;
  if (j == 0)
    return RESHARD_SUCCESS;
  if (end_of_order(p, n, size, compare, i) < n) {
    qsort(at, (size_t)n, size, compare);
    return RESHARD_SUCCESS;
  }
  RS_TRY(rs_alloc_copy(&second, p + (size_t)i * size, j, size));
  while (j > 0) {
    bool first = i > 0 && compare(p + (size_t)(i - 1) * size, second + (size_t)(j - 1) * size) > 0;
    memcpy(p + (size_t)(i + j - 1) * size, first ? p + (size_t)(i - 1) * size : second + (size_t)(j - 1) * size, size);
    *(first ? &i : &j) -= 1;
  }
  free(second);
  return RESHARD_SUCCESS;
}

/* The stream is the first of what they are ordered by. */
static int compare_streams(int64_t holder, int64_t taker, int64_t group, int64_t holder2, int64_t taker2,
                           int64_t group2) {
  if (holder != holder2)
    return holder < holder2 ? -1 : 1;
  if (taker != taker2)
    return taker < taker2 ? -1 : 1;
  return group < group2 ? -1 : group > group2;
}

static int by_stream(const void *a, const void *b) {
  const rs_passed *x = a, *y = b;
  int streams = compare_streams(x->holder, x->taker, x->group, y->holder, y->taker, y->group);
  if (streams != 0)
    return streams;
  if (x->taker_array != y->taker_array)
    return x->taker_array < y->taker_array ? -1 : 1;
  return x->segment.src_array < y->segment.src_array ? -1 : x->segment.src_array > y->segment.src_array;
}

/* Those that are sent come first, as they are found. */
static int by_part(const void *a, const void *b) {
  const stream_part *x = a, *y = b;
  if (x->sending != y->sending)
    return x->sending ? -1 : 1;
  int streams = compare_streams(x->holder, x->taker, x->group, y->holder, y->taker, y->group);
  return streams != 0 ? streams : x->class_ < y->class_ ? -1 : x->class_ > y->class_;
}

static bool same_stream(const stream_part *x, const stream_part *y) {
  return compare_streams(x->holder, x->taker, x->group, y->holder, y->taker, y->group) == 0;
}

/* Puts what is sent or received plainly to the rest. */
static reshard_status add_plain(rs_work *w) {
  RS_TRY(rs_vec_reserve(&w->passed, w->passed.n + w->found.n));
  for (int64_t i = 0; i < w->found.n; i++) {
    const rs_loose_segment *f = &w->found.at[i];
    if (f->route.src != f->route.dst) /* else it is kept */
      w->passed.at[w->passed.n++] = (rs_passed){f->route.src, f->route.dst, 0, f->segment.dst_array, f->segment};
  }
  w->found.n = 0;
  return RESHARD_SUCCESS;
}

static bool begins_stream(const rs_passed *p, int64_t i) {
  return i == 0 ||
         compare_streams(p[i - 1].holder, p[i - 1].taker, p[i - 1].group, p[i].holder, p[i].taker, p[i].group) != 0;
}

/* Makes what was found the messages of a side, in the order of streams, which have no numbers yet. */
static reshard_status make_parts(rs_work *w, bool sending) {
  hop_maker *m = (hop_maker *)w; /* whose first member it is */
  rs_class *c = w->class_;
  rs_side *side = sending ? &c->send : &c->receive;
  RS_TRY(add_plain(w));
  int64_t n = w->passed.n, streams = 0;
  const rs_passed *p = w->passed.at;
  RS_TRY(sort_unordered(w->passed.at, n, sizeof *p, by_stream));
  RS_TRY(rs_alloc(&side->segments.at, n, sizeof(rs_segment)));
  side->segments.n = side->segments.cap = side->nsegments = n;
  for (int64_t i = 0; i < n; i++)
    streams += begins_stream(p, i);
  RS_TRY(rs_vec_reserve(&side->messages, streams));
  RS_TRY(rs_vec_reserve(&m->parts, m->parts.n + streams));
  for (int64_t i = 0; i < n; i++) {
    side->segments.at[i] = p[i].segment;
    if (begins_stream(p, i)) {
      m->parts.at[m->parts.n++] = (stream_part){
          p[i].holder, p[i].taker, p[i].group, w->number, side->messages.n, p[i].taker_array, p[i].segment.src_array,
          sending};
      side->messages.at[side->messages.n++] = (rs_message){.segments = &side->segments.at[i]};
    }
    rs_message *last = &side->messages.at[side->messages.n - 1];
    last->count++;
    last->elements += p[i].segment.elements;
  }
  w->passed.n = 0;
  return sending && w->listed ? rs_side_keep_used_lists(side, c->space.naxes) : RESHARD_SUCCESS;
}

static reshard_status make_class(hop_maker *m, const struct reshard_plan_s *plan, int64_t i) {
  const rs_class *like = &plan->classes.at[i];
  rs_class *c = &m->hops->classes[i];
  rs_scaling *scaling;
  RS_TRY(rs_scaling_copy(like->scaling, &scaling));
  reshard_layout_retain(like->src);
  reshard_layout_retain(like->dst);
  *c = (rs_class){.src = like->src,
                  .dst = like->dst,
                  .space = like->space,
                  .from = like->from,
                  .to = like->to,
                  .wire = like->wire,
                  .entries = like->entries,
                  .first_entry = like->first_entry,
                  .scaling = scaling};
  m->hops->nclasses = i + 1;
  m->w = (rs_work){.class_ = c, .rank = plan->rank, .world = plan->world, .nodes = plan->nodes, .number = i};
  m->w.groups = rs_class_passes(c) ? &m->groups : NULL;
  m->w.chains = plan->topology->chains;
  return rs_work_intersect(&m->w, make_parts);
}

/* Numbers the streams, and their messages after them. */
static reshard_status number_streams(hop_maker *m) {
  rs_hops *h = m->hops;
  int64_t n = 0;
  RS_TRY(sort_unordered(m->parts.at, m->parts.n, sizeof *m->parts.at, by_part));
  for (int64_t i = 0; i < m->parts.n; i++)
    n += i == 0 || !same_stream(&m->parts.at[i - 1], &m->parts.at[i]);
  RS_TRY(rs_vec_reserve(&h->streams, n));
  for (int64_t i = 0; i < m->parts.n; i++) {
    const stream_part *p = &m->parts.at[i];
    const rs_class *c = &h->classes[p->class_];
    rs_stream *s = h->streams.n > 0 ? &h->streams.at[h->streams.n - 1] : NULL;
    if (s == NULL || !same_stream(p - 1, p)) {
      s = &h->streams.at[h->streams.n++];
      *s = (rs_stream){.holder = p->holder, .taker = p->taker, .group = p->group, .from_here = p->sending};
    }
    rs_message *message = &(p->sending ? &c->send : &c->receive)->messages.at[p->message];
    message->peer = h->streams.n - 1;
    s->bytes += message->elements * c->wire.width * c->entries;
    if (s->width < c->wire.width || (s->width == c->wire.width && s->entry > c->first_entry)) {
      s->width = c->wire.width;
      s->entry = c->first_entry;
      s->taker_array = p->taker_array;
      s->src_array = p->src_array;
    }
  }
  return RESHARD_SUCCESS;
}

/* --- Ends --------------------------------------------------------------------------------------------------------- */

static reshard_status add_end(rs_hops *h, bool sending, int64_t peer, int64_t stream, int hop) {
  rs_stream_ends *ends = sending ? &h->sends : &h->receives;
  RS_TRY(rs_vec_reserve(ends, ends->n + 1));
  ends->at[ends->n++] = (rs_stream_end){peer, stream, -1, hop};
  return RESHARD_SUCCESS;
}

/* Place of a rank among those of a domain. */
static int64_t place_in(const rs_holder *holders, int64_t rank) {
  int64_t i = 0;
  while (holders[i].rank != rank)
    i++;
  return i;
}

/* A taker passes on to the others of its domain, and to the taker of the next one, which is the one at its place. */
static reshard_status add_passed_ends(hop_maker *m, int64_t rank, int64_t stream, const rs_hop_chain *chain) {
  rs_hops *h = m->hops;
  const rs_hop_groups *g = &m->groups;
  const rs_holder *holders = g->holder.at;
  const rs_stream *s = &h->streams.at[stream];
  int64_t own = g->cell.at[chain->cell].own, at = own - chain->begin - rs_hop_without(chain, own),
          domains = rs_hop_chain_domains(chain),
          place = place_in(holders + rs_hop_chain_at(g, chain, 0)->first, s->taker);
  const rs_hop_domain *mine = rs_hop_chain_at(g, chain, at);
  int hop = (int)at;
  if (holders[mine->first + place].rank != rank)
    return add_end(h, false, holders[mine->first + place].rank, stream, hop + 1);
  for (int64_t i = 0; i < mine->count; i++)
    if (i != place)
      RS_TRY(add_end(h, true, holders[mine->first + i].rank, stream, hop + 1));
  if (at + 1 < domains)
    RS_TRY(add_end(h, true, holders[rs_hop_chain_at(g, chain, at + 1)->first + place].rank, stream, hop + 1));
  return add_end(h, false, at == 0 ? s->holder : holders[rs_hop_chain_at(g, chain, at - 1)->first + place].rank, stream,
                 hop);
}

static reshard_status add_ends(hop_maker *m, int64_t rank, int64_t stream) {
  rs_hops *h = m->hops;
  const rs_stream *s = &h->streams.at[stream];
  rs_hop_chain chain = {0};
  if (s->group > 0) {
    chain = rs_hop_chain_of(&m->groups, s->group);
    h->longest = rs_max(h->longest, s->bytes);
    h->hops = rs_max(h->hops, rs_hop_chain_domains(&chain) + (rs_hop_chain_at(&m->groups, &chain, 0)->count > 1));
  }
  if (s->from_here)
    return add_end(h, true, s->taker, stream, 0);
  return s->group > 0 ? add_passed_ends(m, rank, stream, &chain) : add_end(h, false, s->holder, stream, 0);
}

/* The order of a pair's message. */
typedef struct ordered_end {
  rs_stream_end end;
  const rs_stream *stream;
} ordered_end;

static int by_order(const void *a, const void *b) {
  const ordered_end *x = a, *y = b;
  const rs_stream *s = x->stream, *t = y->stream;
  const int64_t keys[][2] = {{x->end.peer, y->end.peer},  {s->group > 0, t->group > 0},
                             {x->end.hop, y->end.hop},    {s->holder, t->holder},
                             {s->taker, t->taker},        {-s->width, -t->width},
                             {s->entry, t->entry},        {s->taker_array, t->taker_array},
                             {s->src_array, t->src_array}};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (keys[i][0] != keys[i][1])
      return keys[i][0] < keys[i][1] ? -1 : 1;
  return 0;
}

/* Begin of the next peer's ends. */
static int64_t next_peer(const rs_stream_end *ends, int64_t n, int64_t i) {
  int64_t peer = ends[i].peer;
  while (i < n && ends[i].peer == peer)
    i++;
  return i;
}

/* Orders ends, which come by stream: by peer, then those of each. */
static reshard_status sort_ends(const rs_hops *h, rs_stream_end *ends, int64_t n) {
  ordered_end *ordered;
  uint64_t *keys;
  int64_t most = 0;
  int places = rs_bits((uint64_t)n);
  RS_TRY(rs_alloc(&ordered, n, sizeof *ordered));
  reshard_status status = rs_alloc(&keys, 2 * n, sizeof *keys);
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++) {
    keys[i] = (uint64_t)ends[i].peer << places | (uint64_t)i;
    most = rs_max(most, ends[i].peer);
  }
  if (status == RESHARD_SUCCESS) {
    const uint64_t *sorted = rs_sort_keys(keys, keys + n, n, places, places + rs_bits((uint64_t)most));
    for (int64_t i = 0; i < n; i++) {
      const rs_stream_end *end = &ends[sorted[i] & (((uint64_t)1 << places) - 1)];
      ordered[i] = (ordered_end){*end, &h->streams.at[end->stream]};
    }
    for (int64_t i = 0; i < n; i++)
      ends[i] = ordered[i].end;
    for (int64_t i = 0, end; i < n; i = end) {
      end = next_peer(ends, n, i);
      RS_THEN(status, sort_unordered(ordered + i, end - i, sizeof *ordered, by_order));
    }
    for (int64_t i = 0; i < n; i++)
      ends[i] = ordered[i].end;
  }
  free(keys);
  free(ordered);
  return status;
}

static bool same_streams(const rs_stream_end *a, const rs_stream_end *b, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (a[i].stream != b[i].stream || a[i].hop != b[i].hop)
      return false;
  return true;
}

/* Marks messages that are the same as to an earlier peer. Those that begin with one stream are compared. */
static reshard_status find_shared(rs_hops *h) {
  rs_stream_end *e = h->sends.at;
  int64_t *first, *before, n = h->sends.n;
  if (n == 0)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc(&first, h->streams.n + n, sizeof *first)); /* begin of the last message that begins so, by stream */
  memset(first, -1, (size_t)h->streams.n * sizeof *first);
  before = first + h->streams.n;
  for (int64_t i = 0, end; i < n; i = end) {
    end = next_peer(e, n, i);
    int64_t like = first[e[i].stream];
    while (like >= 0 && (next_peer(e, n, like) - like != end - i || !same_streams(e + like, e + i, end - i)))
      like = before[like];
    for (int64_t k = i; k < end; k++)
      e[k].like = like >= 0 ? like + (k - i) : -1;
    h->shared += like >= 0 ? end - i : 0;
    if (like < 0) {
      before[i] = first[e[i].stream];
      first[e[i].stream] = i;
    }
  }
  free(first);
  return RESHARD_SUCCESS;
}

/* Adds up a peer's ends from *at on, if they are its. */
static int64_t sum_ends(rs_hops *h, const rs_stream_end *ends, int64_t n, int64_t peer, int64_t *at) {
  int64_t bytes = 0, begin = *at;
  for (; *at < n && ends[*at].peer == peer; ++*at)
    bytes += h->streams.at[ends[*at].stream].bytes;
  h->most_of_pair = rs_max(h->most_of_pair, *at - begin);
  return bytes;
}

static int64_t count_peers(const rs_stream_ends *ends) {
  int64_t n = 0;
  for (int64_t i = 0; i < ends->n; n++)
    i = next_peer(ends->at, ends->n, i);
  return n;
}

static reshard_status list_peers(rs_hops *h) {
  RS_TRY(rs_vec_reserve(&h->peers, count_peers(&h->sends) + count_peers(&h->receives)));
  for (int64_t s = 0, r = 0; s < h->sends.n || r < h->receives.n;) {
    int64_t peer = rs_min(s < h->sends.n ? h->sends.at[s].peer : INT64_MAX,
                          r < h->receives.n ? h->receives.at[r].peer : INT64_MAX);
    rs_peer *p = &h->peers.at[h->peers.n++];
    *p = (rs_peer){.rank = peer, .send_message = -2, .receive_message = -2};
    p->sent = sum_ends(h, h->sends.at, h->sends.n, peer, &s);
    p->received = sum_ends(h, h->receives.at, h->receives.n, peer, &r);
  }
  return RESHARD_SUCCESS;
}

static reshard_status make_hops(hop_maker *m, const struct reshard_plan_s *plan) {
  rs_hops *h = m->hops;
  h->hops = 1;
  RS_TRY(rs_alloc(&h->classes, plan->classes.n, sizeof *h->classes));
  for (int64_t i = 0; i < plan->classes.n; i++)
    RS_TRY(make_class(m, plan, i));
  RS_TRY(number_streams(m));
  int64_t sent = 0; /* streams, which come first; a rank receives each of the others once */
  while (sent < h->streams.n && h->streams.at[sent].from_here)
    sent++;
  RS_TRY(rs_vec_reserve(&h->sends, sent));
  RS_TRY(rs_vec_reserve(&h->receives, h->streams.n - sent));
  for (int64_t i = 0; i < h->streams.n; i++)
    RS_TRY(add_ends(m, plan->rank, i));
  RS_TRY(sort_ends(h, h->sends.at, h->sends.n));
  RS_TRY(sort_ends(h, h->receives.at, h->receives.n));
  RS_TRY(find_shared(h));
  return list_peers(h);
}

reshard_status rs_hops_create(const struct reshard_plan_s *plan, rs_hops **hops) {
  hop_maker m = {.hops = NULL};
  RS_TRY(rs_alloc_zero(&m.hops, 1, sizeof *m.hops));
  reshard_status status = make_hops(&m, plan);
  free(m.parts.at);
  rs_hop_groups_free(&m.groups);
  if (status == RESHARD_SUCCESS)
    *hops = m.hops;
  else
    rs_hops_free(m.hops);
  return status;
}

void rs_hops_free(rs_hops *h) {
  if (h == NULL)
    return;
  for (int64_t i = 0; i < h->nclasses; i++)
    rs_class_free(&h->classes[i]);
  free(h->classes);
  free(h->streams.at);
  free(h->sends.at);
  free(h->receives.at);
  free(h->peers.at);
  free(h);
}

int64_t rs_hops_memory(const rs_hops *h) {
  int64_t bytes = (int64_t)sizeof *h + h->streams.cap * (int64_t)sizeof(rs_stream) +
                  h->peers.cap * (int64_t)sizeof(rs_peer) +
                  (h->sends.cap + h->receives.cap) * (int64_t)sizeof(rs_stream_end);
  for (int64_t i = 0; i < h->nclasses; i++)
    bytes += rs_class_memory(&h->classes[i]);
  return bytes;
}
