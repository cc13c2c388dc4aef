/* Messages that need no packing or no unpacking: those that are one contiguous range of one of the rank's buffers. */
#include "plan/place.h"
#include "plan/messages.h"

/* Index in this rank's array where a run begins. */
static int64_t begin_of(const rs_run *run, bool ask) { return ask ? run->ask : run->held; }

/* Offset of a segment in this rank's array, in elements, when it is one contiguous range there. ask: the array is the
 * one that asks in the segment's runs. */
static bool segment_contiguous(const rs_geometry *g, const rs_segment *s, const int *own_dim, bool ask,
                               const int64_t *strides, int64_t *offset) {
  int64_t expected = 1;
  *offset = 0;
  for (int a = g->naxes - 1; a >= 0; a--) {
    const rs_span_list *list = &g->axis[a];
    int64_t length = list->length, first = begin_of(&list->runs[0], ask);
    for (int64_t r = 1; r < list->count; r++)
      if (begin_of(&list->runs[r], ask) != begin_of(&list->runs[r - 1], ask) + list->runs[r - 1].n)
        return false;
    if (a == g->cut) {
      length = rs_segment_rows(s, g);
      first += s->begin;
    }
    if (own_dim[a] < 0)
      continue;
    if (length > 1 && strides[own_dim[a]] != expected)
      return false;
    *offset += first * strides[own_dim[a]];
    expected *= length;
  }
  return true;
}

/* Buffer, offset and strides of an array of a rank, which mostly is the one before. Boxes, of which there may be a
 * million, are looked up in place. */
static void find_array(const struct reshard_layout_s *l, int64_t rank, int64_t array, rs_last_array *last) {
  reshard_array_info *info = &last->info;
  if (last->layout == l && last->rank == rank && last->array == array)
    return;
  last->layout = l;
  last->rank = rank;
  last->array = array;
  if (l->kind != RESHARD_LAYOUT_BOXES) {
    reshard_layout_array((reshard_layout)l, rank, array, info);
    return;
  }
  const int64_t *lo = rs_boxes_lo(l->boxes, rs_boxes_of_array(l->boxes, rank, array));
  info->buffer = array;
  info->offset = 0;
  int64_t stride = 1;
  for (int d = l->ndim - 1; d >= 0; d--) {
    info->strides[d] = stride;
    stride *= rs_max(1, lo[l->ndim + d] - lo[d]);
  }
}

/* Range of one buffer, in elements, that is a whole message on one of its ends. strides: of the entry's buffers on that
 * end, NULL or NULL element for contiguous. */
static bool find_range(const rs_class *c, const rs_side *side, rs_route route, const rs_message *m, bool of_source,
                       const int64_t *const *strides, rs_last_array *last, int64_t *buffer, int64_t *begin) {
  const rs_segment *s = m->segments;
  const struct reshard_layout_s *own = of_source ? c->src : c->dst;
  const int *own_dim = of_source ? c->space.src_dim : c->space.dst_dim;
  int64_t end = 0, offset;
  for (int64_t i = 0; i < m->count; i++, s++) {
    rs_geometry g;
    int64_t own_rank = of_source ? route.src : route.dst, own_array = of_source ? s->src_array : s->dst_array;
    find_array(own, own_rank, own_array, last);
    const reshard_array_info *array = &last->info;
    const int64_t *given = strides != NULL && strides[array->buffer] != NULL ? strides[array->buffer] : array->strides;
    rs_segment_geometry(c, side, route, s, &g);
    if (!segment_contiguous(&g, s, own_dim, g.src_asks == of_source, given, &offset))
      return false;
    offset += rs_layout_array_offset(own, own_rank, array, own_array, given);
    if (i > 0 && (*buffer != array->buffer || offset != end))
      return false;
    if (i == 0) {
      *buffer = array->buffer;
      *begin = offset;
    }
    end = offset + s->elements;
  }
  return m->count > 0;
}

/* Indices of each axis that two boxes share. Of the rows that replicas share, a segment has one, or all or several,
 * which makes no difference here. */
static void find_lengths(const rs_class *c, const rs_segment *segment, const int64_t *src, const int64_t *dst,
                         int64_t *length) {
  const rs_space *s = &c->space;
  int64_t elements = 1, row = 1, none, *rows = &none;
  for (int a = s->naxes - 1; a >= 0; a--) {
    int64_t begin = 0, end = s->extent[a];
    if (s->src_dim[a] >= 0) {
      begin = rs_max(begin, src[s->src_dim[a]] - s->src_offset[a]);
      end = rs_min(end, src[c->src->ndim + s->src_dim[a]] - s->src_offset[a]);
    }
    if (s->dst_dim[a] >= 0) {
      begin = rs_max(begin, dst[s->dst_dim[a]] - s->dst_offset[a]);
      end = rs_min(end, dst[c->dst->ndim + s->dst_dim[a]] - s->dst_offset[a]);
    }
    length[a] = end - begin;
    if (length[a] > 1) {
      rows = &length[a];
      row = elements;
    }
    elements *= length[a];
  }
  if (segment->elements == row)
    *rows = 1;
}

typedef enum answer { NO, YES, UNKNOWN } answer;

/* Yes for one range of a box: dims behind the first one with several indices are whole. Unknown where the box's own
 * dims do not ascend along the axes. */
static answer is_range(int naxes, const int64_t *length, const int *own_dim, int ndim, const int64_t *own) {
  bool whole = true, range = true;
  for (int a = naxes - 1, last = RESHARD_MAX_DIMS; a >= 0; a--) {
    int d = own_dim[a];
    if (d < 0)
      continue;
    if (d > last)
      return UNKNOWN;
    last = d;
    range = range && (whole || length[a] == 1);
    whole = whole && length[a] == own[ndim + d] - own[d];
  }
  return range ? YES : NO;
}

static bool is_contiguous(const rs_class *c, const rs_side *side, rs_route route, const rs_message *m, bool of_source,
                          answer first, rs_last_array *last) {
  int64_t buffer, begin;
  if (first == NO || (first == YES && m->count == 1))
    return first == YES;
  return find_range(c, side, route, m, of_source, NULL, last, &buffer, &begin);
}

void rs_message_find_places(const rs_class *c, const rs_side *side, rs_route route, rs_message *m, bool of_source,
                            bool of_destination, rs_last_array last[2]) {
  answer src = UNKNOWN, dst = UNKNOWN;
  const rs_segment *s = m->segments;
  if (s->lists < 0) { /* boxes, of which dense worlds have segments by the million: no strides, no products */
    int64_t length[RS_MAX_AXES], storage[2][2 * RESHARD_MAX_DIMS];
    const int64_t *from = rs_array_corners(c->src, route.src, s->src_array, storage[0]);
    const int64_t *to = rs_array_corners(c->dst, route.dst, s->dst_array, storage[1]);
    find_lengths(c, s, from, to, length);
    src = is_range(c->space.naxes, length, c->space.src_dim, c->src->ndim, from);
    dst = is_range(c->space.naxes, length, c->space.dst_dim, c->dst->ndim, to);
  }
  /* Both first: a read of the count waits for a write into its word. */
  of_source = of_source && rs_format_equal(c->from, c->wire);
  of_destination = of_destination && rs_format_equal(c->to, c->wire);
  bool src_in_place = of_source && is_contiguous(c, side, route, m, true, src, &last[0]);
  bool dst_in_place = of_destination && is_contiguous(c, side, route, m, false, dst, &last[1]);
  m->src_in_place = src_in_place;
  m->dst_in_place = dst_in_place;
}

bool rs_message_in_place(const struct reshard_plan_s *plan, const rs_peer *peer, bool sending,
                         const int64_t *const *strides, rs_place *place) {
  bool own = peer->rank == plan->rank, sent = sending || own; /* kept data is on the send side */
  int64_t number = sent ? peer->send_message : peer->receive_message, buffer, begin;
  if (number < 0)
    return false;
  const rs_class *c = rs_plan_class_of_message(plan, sent, number);
  const rs_side *side = sent ? &c->send : &c->receive;
  const rs_message *m = &side->messages.at[number - side->first_message];
  bool in_place = sending ? m->src_in_place : m->dst_in_place;
  if (strides == NULL && (!in_place || place == NULL))
    return in_place;
  if (!rs_format_equal(sending ? c->from : c->to, c->wire)) /* which the strides do not say */
    return false;
  const rs_entry *e = &plan->entries[c->first_entry];
  int64_t base = sending ? e->src_buffer : e->dst_buffer;
  rs_last_array last = {.layout = NULL};
  if (!find_range(c, side, rs_route_of(plan->rank, sent, peer->rank), m, sending,
                  strides != NULL ? strides + base : NULL, &last, &buffer, &begin))
    return false;
  if (place != NULL)
    *place = (rs_place){base + buffer, begin * c->wire.width};
  return true;
}

rs_peer rs_plan_own(const struct reshard_plan_s *plan) {
  rs_peer own = {.rank = plan->rank, .sent = plan->info.self_copy_bytes, .send_message = -1, .receive_message = -1};
  for (int64_t i = 0; i < plan->classes.n; i++) {
    const rs_class *c = &plan->classes.at[i];
    const rs_message *m = rs_side_message(&c->send, plan->rank);
    if (m != NULL)
      rs_peer_add_message(&own, true, &c->send, m - c->send.messages.at, c->entries);
  }
  return own;
}
