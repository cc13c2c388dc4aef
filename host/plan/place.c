/* Which messages need no packing or no unpacking: those that are one contiguous range of one of the rank's buffers. */
#include "plan/plan.h"

/* Where a segment lies in this rank's array, when that is one contiguous range; in elements. */
static bool contiguous(const rs_geometry *g, const rs_segment *s, const int *own_dim, const int64_t *strides,
                       int64_t *offset) {
  int64_t expected = 1;
  *offset = 0;
  for (int a = g->naxes - 1; a >= 0; a--) {
    const rs_span_list *list = &g->axis[a];
    int64_t length = list->length, first = list->runs[0].ask;
    for (int64_t r = 1; r < list->count; r++)
      if (list->runs[r].ask != list->runs[r - 1].ask + list->runs[r - 1].n)
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
  int64_t e = sending ? peer->send_entry : peer->receive_entry;
  if (e < 0)
    return false;
  const rs_class *c = &plan->classes.at[plan->entries[e].class_];
  const rs_side *side = sending ? &c->send : &c->receive;
  const rs_message *m = &side->messages.at[sending ? peer->send_message : peer->receive_message];
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
    rs_segment_geometry(plan, c, sending, s, &g);
    if (!contiguous(&g, s, own_dim, given != NULL ? given : array.strides, &offset))
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
