/* Messages that need no packing or no unpacking: those that are one contiguous range of one of the rank's buffers. */
#include "plan/plan.h"

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
      length = s->end - s->begin;
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

/* Quick no: several rows that follow one another have the stride of some dim as their length. */
static bool may_be_contiguous(const rs_segment *s, int ndim, const int64_t *strides) {
  int64_t rows = s->end - s->begin, row = s->elements / rows;
  if (rows == 1)
    return true;
  for (int d = 0; d < ndim; d++)
    if (strides[d] == row)
      return true;
  return false;
}

/* Buffer, offset and strides of an array of this rank. Boxes, of which there may be a million, are looked up in place.
 */
static void find_array(const struct reshard_layout_s *l, int64_t rank, int64_t array, reshard_array_info *info) {
  if (l->kind != RESHARD_LAYOUT_BOXES) {
    reshard_layout_array((reshard_layout)l, rank, array, info);
    return;
  }
  const int64_t *lo = rs_boxes_lo(l->boxes, l->boxes->cell_box[rs_layout_cell(l, rank, array)]);
  info->buffer = array;
  info->offset = 0;
  int64_t stride = 1;
  for (int d = l->ndim - 1; d >= 0; d--) {
    info->strides[d] = stride;
    stride *= rs_max(1, lo[l->ndim + d] - lo[d]);
  }
}

bool rs_message_in_place(const struct reshard_plan_s *plan, const rs_peer *peer, bool sending,
                         const int64_t *const *strides, rs_place *place) {
  bool sent = sending || peer->rank == plan->rank; /* kept data is on the send side */
  int64_t e = sent ? peer->send_entry : peer->receive_entry;
  if (e < 0)
    return false;
  const rs_class *c = &plan->classes.at[plan->entries[e].class_];
  const rs_side *side = sent ? &c->send : &c->receive;
  const rs_message *m = &side->messages.at[sent ? peer->send_message : peer->receive_message];
  const int *own_dim = sending ? c->space.src_dim : c->space.dst_dim;
  int64_t base = sending ? plan->entries[e].src_buffer : plan->entries[e].dst_buffer, begin = 0, end = 0;
  for (int64_t i = m->first; i < m->first + m->count; i++) {
    const rs_segment *s = &side->segments.at[i];
    reshard_array_info array;
    rs_geometry g;
    int64_t offset;
    find_array(sending ? c->src : c->dst, plan->rank, sending ? s->src_array : s->dst_array, &array);
    const int64_t *given = strides != NULL ? strides[base + array.buffer] : NULL;
    if (!may_be_contiguous(s, (sending ? c->src : c->dst)->ndim, given != NULL ? given : array.strides))
      return false;
    rs_segment_geometry(plan, c, sent, s, &g);
    if (!segment_contiguous(&g, s, own_dim, g.src_asks == sending, given != NULL ? given : array.strides, &offset))
      return false;
    offset += array.offset;
    if (i == m->first) {
      *place = (rs_place){base + array.buffer, offset * c->width};
      begin = end = offset;
    } else if (place->buffer != base + array.buffer || offset != end) {
      return false;
    }
    end += s->elements;
  }
  return end > begin;
}

rs_peer rs_plan_own(const struct reshard_plan_s *plan) {
  rs_peer own = {.rank = plan->rank, .sent = plan->info.kept_bytes, .send_entry = -1, .receive_entry = -1};
  for (int64_t e = 0; e < plan->nentries; e++) {
    const rs_side *side = &plan->classes.at[plan->entries[e].class_].send;
    const rs_message *m = rs_side_message(side, plan->rank);
    if (m == NULL)
      continue;
    own.send_message = m - side->messages.at;
    own.send_entry = own.send_entry == -1 ? e : -2;
  }
  return own;
}
