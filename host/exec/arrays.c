/* Checks the user's arrays once: pointers where there is something, strides that do not overlap in a destination. No
 * destination lies over a source or another destination. */
#include "exec/arrays.h"
#include "plan/messages.h"
#include "plan/place.h"

#include <stdlib.h>
#include <string.h>

/* True when no two index tuples have one address. Sufficient and exact for slices: each stride steps over all that the
 * smaller ones reach. The strides were measured. */
static bool strides_injective(const rs_extent *x) {
  int order[RESHARD_MAX_DIMS], n = 0;
  for (int d = 0; d < x->ndim; d++) {
    if (x->shape[d] <= 1)
      continue;
    int i = n++;
    for (; i > 0 && llabs(x->strides[order[i - 1]]) > llabs(x->strides[d]); i--)
      order[i] = order[i - 1];
    order[i] = d;
  }
  int64_t span = x->width; /* bytes that the dims so far span */
  for (int i = 0; i < n; i++) {
    int64_t stride = llabs(x->strides[order[i]]);
    if (stride < span)
      return false;
    span += stride * (x->shape[order[i]] - 1);
  }
  return true;
}

/* Range, density and strides of a buffer of one array (every kind but flat of several dims, which is contiguous). */
static reshard_status measure_buffer(const struct reshard_plan_s *plan, int64_t entry, rs_extent *x,
                                     const int64_t *strides, const int64_t *contiguous) {
  const char *name = plan->entries[entry].name, *side = x->source ? "source" : "destination";
  int64_t elements = 1, below = 0, above = x->width;
  for (int d = 0; d < x->ndim; d++) {
    int64_t stride = strides != NULL ? strides[d] : contiguous[d], span;
    if (stride == INT64_MIN || !rs_mul(stride, x->width, &x->strides[d]) ||
        !rs_mul(x->strides[d], rs_max(0, x->shape[d] - 1), &span) ||
        !rs_add(span < 0 ? below : above, span, span < 0 ? &below : &above))
      return rs_error(RESHARD_ERROR_INVALID, "entry %lld '%.64s': stride %lld of %s dim %d overflows", (long long)entry,
                      name, (long long)stride, side, d);
    elements *= x->shape[d];
  }
  x->begin = x->end = x->at;
  if (elements == 0)
    return RESHARD_SUCCESS;
  uintptr_t at = (uintptr_t)x->at;
  if (below < -RS_EXTENT_MOST || above > RS_EXTENT_MOST || at < (uintptr_t)-below ||
      at > UINTPTR_MAX - (uintptr_t)above)
    return rs_error(RESHARD_ERROR_INVALID,
                    "entry %lld '%.64s': the strides of the %s reach from %lld to %lld bytes off %p, beyond memory",
                    (long long)entry, name, side, (long long)below, (long long)above, (const void *)x->at);
  x->begin = x->at + below;
  x->end = x->at + above;
  bool once = strides_injective(x);
  x->dense = once && above - below == elements * x->width;
  if (!x->source && !once) {
    char shape[RS_SHAPE_TEXT], stride[RS_SHAPE_TEXT];
    int64_t in_elements[RESHARD_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
      in_elements[d] = x->strides[d] / x->width;
    return rs_error(RESHARD_ERROR_INVALID, "entry %lld '%.64s': strides %s of the destination of shape %s overlap",
                    (long long)entry, name, rs_shape_text(stride, x->ndim, in_elements),
                    rs_shape_text(shape, x->ndim, x->shape));
  }
  return RESHARD_SUCCESS;
}

/* Buffers of a layout, of one entry on one side: those from `before` on. */
static reshard_status add_buffers_of(const struct reshard_plan_s *plan, int64_t entry, bool source,
                                     const struct reshard_layout_s *l, int64_t width, int64_t before,
                                     const rs_arrays *arrays, rs_extents *all) {
  const rs_entry *e = &plan->entries[entry];
  int64_t first = source ? e->src_buffer : e->dst_buffer, end = before + rs_layout_buffers(l, plan->rank);
  for (int64_t b = before; b < end; b++) {
    int64_t elements;
    RS_TRY(reshard_layout_buffer_elements((reshard_layout)l, plan->rank, b - before, &elements));
    if (elements == 0)
      continue;
    void *at = source ? arrays->src[first + b] : arrays->dst[first + b];
    const int64_t **lists = source ? arrays->src_strides : arrays->dst_strides;
    const int64_t *strides = lists != NULL ? lists[first + b] : NULL;
    if (at == NULL)
      return rs_error(RESHARD_ERROR_INVALID, "entry %lld '%.64s': %s buffer %lld is NULL and should hold %lld elements",
                      (long long)entry, e->name, source ? "source" : "destination", (long long)b, (long long)elements);
    rs_extent x = {
        .plan = plan, .at = at, .source = source, .ndim = l->ndim, .width = width, .entry = entry, .buffer = b};
    if (l->kind == RESHARD_LAYOUT_FLAT && l->ndim != 1 && strides != NULL)
      return rs_error(RESHARD_ERROR_INVALID, "entry %lld '%.64s': strides for a flat layout of %d dims",
                      (long long)entry, e->name, l->ndim);
    x.ndim = rs_layout_buffer_shape(l, plan->rank, b - before, x.shape);
    int64_t dense[RESHARD_MAX_DIMS], stride = 1;
    for (int d = x.ndim - 1; d >= 0; d--) {
      dense[d] = stride;
      stride *= rs_max(1, x.shape[d]);
    }
    RS_TRY(measure_buffer(plan, entry, &x, strides, dense));
    RS_TRY(rs_vec_push(all, x));
  }
  return RESHARD_SUCCESS;
}

/* All buffers of one entry on one side. */
static reshard_status add_buffers(const struct reshard_plan_s *plan, int64_t entry, bool source,
                                  const rs_arrays *arrays, rs_extents *all) {
  const rs_class *c = &plan->classes.at[plan->entries[entry].class_];
  reshard_layout l = rs_class_layout(c, source);
  RS_TRY(add_buffers_of(plan, entry, source, l, source ? c->from.width : c->to.width, 0, arrays, all));
  return !rs_class_scaled(c, source)
             ? RESHARD_SUCCESS
             : add_buffers_of(plan, entry, source, c->scaling->scales, (int64_t)reshard_dtype_size(c->scaling->dtype),
                              rs_layout_buffers(l, plan->rank), arrays, all);
}

reshard_status rs_arrays_add(const struct reshard_plan_s *plan, const rs_arrays *arrays, rs_extents *all) {
  for (int64_t e = 0; e < plan->ngiven; e++) {
    RS_TRY(add_buffers(plan, e, true, arrays, all));
    RS_TRY(add_buffers(plan, e, false, arrays, all));
  }
  return RESHARD_SUCCESS;
}

static reshard_status check_arrays(const struct reshard_plan_s *plan, const rs_arrays *arrays, rs_extents *all) {
  all->n = 0;
  RS_TRY(rs_arrays_add(plan, arrays, all));
  return rs_check_overlap(all);
}

reshard_status rs_arrays_sources(const struct reshard_plan_s *plan, const rs_arrays *arrays, rs_extents *all) {
  all->n = 0;
  for (int64_t e = 0; e < plan->ngiven; e++)
    RS_TRY(add_buffers(plan, e, true, arrays, all));
  return RESHARD_SUCCESS;
}

/* Buffers [first, end) of an entry on one side, and their number of dims. */
static int entry_buffers(const struct reshard_plan_s *plan, int64_t e, bool source, int64_t *first, int64_t *end) {
  const rs_entry *entry = &plan->entries[e];
  const rs_class *c = &plan->classes.at[entry->class_];
  *first = source ? entry->src_buffer : entry->dst_buffer;
  *end = source ? plan->nsrc : plan->ndst;
  if (e + 1 < plan->ngiven)
    *end = source ? entry[1].src_buffer : entry[1].dst_buffer;
  return rs_class_layout(c, source)->ndim;
}

/* Copies the stride lists of one side: the caller's may go when the call returns. */
static reshard_status copy_strides(const struct reshard_plan_s *plan, bool source, const int64_t *const *given,
                                   int64_t *values, const int64_t ***out) {
  int64_t n = source ? plan->nsrc : plan->ndst, b, end;
  *out = NULL;
  if (given == NULL)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero((void *)out, n, sizeof **out));
  for (int64_t e = 0; e < plan->ngiven; e++) {
    int ndim = entry_buffers(plan, e, source, &b, &end);
    for (; b < end; b++) {
      if (given[b] == NULL)
        continue;
      int64_t *copy = values + b * RESHARD_MAX_DIMS;
      for (int d = 0; d < ndim; d++)
        copy[d] = given[b][d];
      (*out)[b] = copy;
    }
  }
  return RESHARD_SUCCESS;
}

static bool same_strides(const struct reshard_plan_s *plan, bool source, const int64_t *const *bound,
                         const int64_t *const *given) {
  int64_t b, end;
  if (bound == NULL || given == NULL)
    return bound == given;
  for (int64_t e = 0; e < plan->ngiven; e++) {
    size_t ndim = (size_t)entry_buffers(plan, e, source, &b, &end);
    for (; b < end; b++)
      if ((bound[b] == NULL) != (given[b] == NULL) ||
          (bound[b] != NULL && memcmp(bound[b], given[b], ndim * sizeof **bound) != 0))
        return false;
  }
  return true;
}

bool rs_arrays_same(const struct reshard_plan_s *plan, const rs_arrays *bound, const reshard_arrays *given) {
  return (plan->nsrc == 0 || memcmp(bound->src, given->src, (size_t)plan->nsrc * sizeof *bound->src) == 0) &&
         (plan->ndst == 0 || memcmp(bound->dst, given->dst, (size_t)plan->ndst * sizeof *bound->dst) == 0) &&
         same_strides(plan, true, bound->src_strides, given->src_strides) &&
         same_strides(plan, false, bound->dst_strides, given->dst_strides);
}

reshard_status rs_arrays_bind(const struct reshard_plan_s *plan, const reshard_arrays *given, rs_arrays *out) {
  const reshard_arrays none = {RESHARD_ARRAYS_INIT, NULL, NULL, NULL, NULL, 0, 0};
  if (given == NULL)
    given = &none;
  RS_TRY(RS_SIZED(reshard_arrays, given));
  if ((given->nsrc != 0 && given->nsrc != plan->nsrc) || (given->ndst != 0 && given->ndst != plan->ndst))
    return rs_error(RESHARD_ERROR_INVALID,
                    "%lld source and %lld destination buffers are given, the plan has %lld and %lld",
                    (long long)given->nsrc, (long long)given->ndst, (long long)plan->nsrc, (long long)plan->ndst);
  rs_arrays a = {0};
  rs_extents extents = {0};
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc_zero(&a.src, plan->nsrc, sizeof *a.src), fail);
  RS_TRY_GOTO(status, rs_alloc_zero(&a.dst, plan->ndst, sizeof *a.dst), fail);
  if (given->src != NULL && plan->nsrc > 0)
    memcpy(a.src, given->src, (size_t)plan->nsrc * sizeof *a.src);
  if (given->dst != NULL && plan->ndst > 0)
    memcpy(a.dst, given->dst, (size_t)plan->ndst * sizeof *a.dst);
  if (given->src_strides != NULL || given->dst_strides != NULL)
    RS_TRY_GOTO(status, rs_alloc_zero(&a.stride_values, (plan->nsrc + plan->ndst) * RESHARD_MAX_DIMS, sizeof(int64_t)),
                fail);
  RS_TRY_GOTO(status, copy_strides(plan, true, given->src_strides, a.stride_values, &a.src_strides), fail);
  RS_TRY_GOTO(status,
              copy_strides(plan, false, given->dst_strides,
                           a.stride_values != NULL ? a.stride_values + plan->nsrc * RESHARD_MAX_DIMS : NULL,
                           &a.dst_strides),
              fail);
  RS_TRY_GOTO(status, check_arrays(plan, &a, &extents), fail);
  free(extents.at);
  *out = a;
  return RESHARD_SUCCESS;
fail:
  free(extents.at);
  rs_arrays_free(&a);
  return status;
}

reshard_status rs_arrays_borrow(const struct reshard_plan_s *plan, const reshard_arrays *given, rs_extents *extents,
                                rs_arrays *out) {
  rs_arrays a = {(void **)given->src,
                 (void **)given->dst,
                 (const int64_t **)given->src_strides,
                 (const int64_t **)given->dst_strides,
                 NULL,
                 false,
                 0};
  RS_TRY(check_arrays(plan, &a, extents));
  *out = a;
  return RESHARD_SUCCESS;
}

void rs_arrays_free(rs_arrays *a) {
  free(a->src);
  free(a->dst);
  free(a->src_strides);
  free(a->dst_strides);
  free(a->stride_values);
  *a = (rs_arrays){0};
}

/* An array of a layout, whose buffers are from `first` on. */
static char *view_array(const rs_arrays *arrays, reshard_layout l, bool source, int64_t rank, int64_t first,
                        int64_t array, int64_t width, int64_t *bytes) {
  reshard_array_info info;
  reshard_layout_array(l, rank, array, &info);
  int64_t buffer = first + info.buffer;
  const int64_t **lists = source ? arrays->src_strides : arrays->dst_strides;
  const int64_t *strides = lists != NULL && lists[buffer] != NULL ? lists[buffer] : info.strides;
  int64_t offset = rs_layout_array_offset(l, rank, &info, array, strides);
  for (int d = 0; d < l->ndim; d++)
    bytes[d] = strides[d] * width;
  return (char *)(source ? arrays->src[buffer] : arrays->dst[buffer]) + offset * width;
}

/* Where blocks are counted from a region's begin, an array is seen from its first index there on. */
static void skip_to_region(const rs_class *c, bool source, int64_t rank, int64_t array, rs_view *view) {
  const rs_scaling *s = c->scaling;
  reshard_layout l = rs_class_layout(c, source);
  for (int a = 0; a < s->space.naxes; a++) {
    int d = source ? s->space.src_dim[a] : s->space.dst_dim[a];
    int64_t begin, end, offset = source ? s->space.src_offset[a] : s->space.dst_offset[a];
    if (d < 0)
      continue;
    rs_layout_clip(l, rs_layout_cell(l, rank, array), d, offset, offset + s->space.extent[a], &begin, &end);
    view->at += begin * view->strides[d];
  }
}

void rs_buffer_view(const rs_arrays *arrays, const rs_class *c, bool source, int64_t rank, int64_t first, int64_t array,
                    rs_view *view) {
  reshard_layout l = rs_class_layout(c, source);
  int64_t width = source ? c->from.width : c->to.width;
  view->at = view_array(arrays, l, source, rank, first, array, width, view->strides);
  view->scales = NULL;
  if (rs_class_scaled(c, source))
    view->scales = view_array(arrays, c->scaling->scales, source, rank, first + rs_layout_buffers(l, rank), array,
                              (int64_t)reshard_dtype_size(c->scaling->dtype), view->scale_strides);
  else if (c->scaling != NULL && c->scaling->relative)
    skip_to_region(c, source, rank, array, view);
}

void rs_arrays_view(const rs_arrays *arrays, const struct reshard_plan_s *plan, int64_t entry, bool source,
                    int64_t array, rs_view *view) {
  const rs_entry *e = &plan->entries[entry];
  rs_buffer_view(arrays, &plan->classes.at[e->class_], source, plan->rank, source ? e->src_buffer : e->dst_buffer,
                 array, view);
}

char *rs_arrays_message(const rs_arrays *arrays, const struct reshard_plan_s *plan, const rs_peer *peer, bool sending,
                        size_t alignment) {
  rs_place place;
  if (sending && arrays->has_private)
    return NULL;
  if (!rs_message_in_place(plan, peer, sending, sending ? arrays->src_strides : arrays->dst_strides, &place))
    return NULL;
  char *at = (char *)(sending ? arrays->src : arrays->dst)[place.buffer] + place.offset;
  return (uintptr_t)at % alignment == 0 ? at : NULL;
}

/* The copy that packs a message, if that is one loop of runs, which follow one another in the message. */
static rs_strided strided_of(const rs_copies *copies, int64_t least) {
  const rs_copy *copy = copies->copy.at;
  if (copies->copy.n != 1 || copy->naxes != 1 || copy->run < least || copy->from != copy->to)
    return (rs_strided){NULL, 0, 0, 0};
  const rs_axis *axis = &copies->axis.at[copy->axes];
  if (axis->dst != copy->run)
    return (rs_strided){NULL, 0, 0, 0};
  return (rs_strided){copy->src, axis->n, copy->run, axis->src};
}

reshard_status rs_arrays_strided(const rs_arrays *arrays, const struct reshard_plan_s *plan, const rs_peer *peer,
                                 int64_t least, rs_strided *strided) {
  *strided = (rs_strided){NULL, 0, 0, 0};
  if (peer->send_message < 0 || peer->sent > INT32_MAX)
    return RESHARD_SUCCESS;
  const rs_class *c = rs_plan_class_of_message(plan, true, peer->send_message);
  const rs_message *m = &c->send.messages.at[peer->send_message - c->send.first_message];
  if (m->count != 1)
    return RESHARD_SUCCESS;
  rs_view view;
  rs_copies copies = {0};
  rs_arrays_view(arrays, plan, c->first_entry, true, m->segments->src_array, &view);
  const rs_lowering lowering = {.class_ = c,
                                .sending = true,
                                .route = rs_route_of(plan->rank, true, peer->rank),
                                .segment = m->segments,
                                .src = &view,
                                .linear = view.at};
  reshard_status status = rs_lower(&lowering, &copies);
  if (status == RESHARD_SUCCESS)
    *strided = strided_of(&copies, least);
  rs_copies_free(&copies);
  return status;
}
