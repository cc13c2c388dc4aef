/* Life of a layout; equality and hash. */
#include "layout/layout.h"
#include "layout/parts.h"

#include <stdlib.h>
#include <string.h>

reshard_status rs_layout_new(const char *what, reshard_layout_kind kind, int ndim, const int64_t *shape, int64_t world,
                             const reshard_layout *output, reshard_layout *out) {
  if (output == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: layout is NULL", what);
  if (ndim < 0 || ndim > RESHARD_MAX_DIMS)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %d dims, 0 to %d are allowed", what, ndim, RESHARD_MAX_DIMS);
  if (ndim > 0 && shape == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: shape is NULL", what);
  if (world < 1)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a world of %lld ranks, at least 1 is needed", what, (long long)world);
  int64_t span = 1; /* like the product, but no zero hides an overflow of strides */
  bool empty = false;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] < 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: extent %lld of dim %d is negative", what, (long long)shape[d], d);
    empty |= shape[d] == 0;
    if (!rs_mul(span, rs_max(1, shape[d]), &span)) {
      char text[RS_SHAPE_TEXT];
      return rs_error(RESHARD_ERROR_INVALID, "%s: the elements of shape %s overflow 63 bits", what,
                      rs_shape_text(text, ndim, shape));
    }
  }
  struct reshard_layout_s *l;
  RS_TRY(rs_alloc_zero(&l, 1, sizeof *l));
  atomic_init(&l->references, 1);
  l->kind = kind;
  l->ndim = ndim;
  if (ndim > 0)
    memcpy(l->shape, shape, (size_t)ndim * sizeof *shape);
  l->elements = empty ? 0 : span;
  l->world = world;
  l->replicas = l->cells = 1;
  l->runs_dim = -1;
  for (int d = 0; d < ndim; d++)
    l->dim[d] = (rs_dim){.n = shape[d], .parts = 1};
  *out = l;
  return RESHARD_SUCCESS;
}

reshard_layout reshard_layout_retain(reshard_layout layout) { return RS_RETAIN(layout); }

void reshard_layout_release(reshard_layout layout) {
  if (!RS_DROP(layout))
    return;
  if (layout->of != NULL) {
    reshard_layout_release(layout->of);
    free(layout);
    return;
  }
  rs_ranks_free(&layout->ranks);
  free(layout->cuts);
  free(layout->replica);
  free(layout->mesh_shape);
  for (int m = 0; layout->names != NULL && m < layout->mesh_ndim; m++)
    free(layout->names[m]);
  free(layout->names);
  rs_parts_free(layout);
  free(layout->placements);
  free(layout->order);
  rs_boxes_free(layout->boxes);
  free(layout);
}

reshard_status reshard_layout_extend(reshard_layout layout, int64_t world, reshard_layout *extended) {
  struct reshard_layout_s *made;
  RS_TRY(RS_GIVEN("reshard_layout_extend", layout, extended));
  if (world < layout->world)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_layout_extend: a world of %lld ranks, the layout's has %lld",
                    (long long)world, (long long)layout->world);
  RS_TRY(rs_alloc_copy(&made, layout, 1, sizeof *made));
  atomic_init(&made->references, 1);
  atomic_init(&made->hash, 0);
  made->of = reshard_layout_retain(layout);
  made->world = world;
  *extended = made;
  return RESHARD_SUCCESS;
}

reshard_layout_kind reshard_layout_get_kind(reshard_layout layout) {
  return layout != NULL ? layout->kind : RESHARD_LAYOUT_KIND_COUNT;
}
const char *reshard_layout_kind_string(reshard_layout_kind kind) {
  static const char *const names[] = {"chunk", "mesh", "cyclic", "single", "flat", "boxes"};
  return (int)kind >= 0 && kind < RESHARD_LAYOUT_KIND_COUNT ? names[kind] : "unknown";
}
int64_t reshard_layout_world(reshard_layout layout) { return layout != NULL ? layout->world : 0; }
int reshard_layout_ndim(reshard_layout layout) { return layout != NULL ? layout->ndim : 0; }
const int64_t *reshard_layout_shape(reshard_layout layout) { return layout != NULL ? layout->shape : NULL; }
int64_t reshard_layout_elements(reshard_layout layout) { return layout != NULL ? layout->elements : 0; }

reshard_status reshard_layout_check_source(reshard_layout layout) {
  if (layout == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_layout_check_source: layout is NULL");
  if (layout->kind == RESHARD_LAYOUT_BOXES && layout->boxes->source_error != NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s", layout->boxes->source_error);
  return RESHARD_SUCCESS;
}

static bool regular_equal(const struct reshard_layout_s *a, const struct reshard_layout_s *b) {
  if (a->nreplicas != b->nreplicas)
    return false;
  for (int i = 0; i < a->nreplicas; i++)
    if (a->replica[i].n != b->replica[i].n || a->replica[i].stride != b->replica[i].stride)
      return false;
  for (int d = 0; d < a->ndim; d++) {
    if (a->dim[d].ncuts != b->dim[d].ncuts)
      return false;
    for (int c = 0; c < a->dim[d].ncuts; c++) {
      const rs_cut *x = &a->dim[d].cuts[c], *y = &b->dim[d].cuts[c];
      if (x->kind != y->kind || x->w != y->w || x->factor != y->factor || x->stride != y->stride ||
          x->ranks != y->ranks || x->nparts != y->nparts || x->nruns != y->nruns ||
          (x->nparts > 0 && (memcmp(x->parts, y->parts, (size_t)x->nparts * sizeof *x->parts) != 0 ||
                             memcmp(x->runs, y->runs, (size_t)x->nruns * sizeof *x->runs) != 0)))
        return false;
    }
  }
  return true;
}

int reshard_layout_equal(reshard_layout a, reshard_layout b) {
  if (a == b)
    return 1;
  if (a == NULL || b == NULL || a->kind != b->kind || a->world != b->world ||
      !rs_shape_equal(a->ndim, a->shape, b->ndim, b->shape))
    return 0;
  if (a->kind == RESHARD_LAYOUT_BOXES)
    return a->boxes->n == b->boxes->n && a->boxes->replicated == b->boxes->replicated &&
           (a->boxes->n == 0 || (memcmp(a->boxes->ranks, b->boxes->ranks, (size_t)a->boxes->n * sizeof(int64_t)) == 0 &&
                                 (a->ndim == 0 || memcmp(a->boxes->corners, b->boxes->corners,
                                                         (size_t)(a->boxes->n * 2 * a->ndim) * sizeof(int64_t)) == 0)));
  return rs_ranks_equal(&a->ranks, &b->ranks) && (a->kind == RESHARD_LAYOUT_FLAT || regular_equal(a, b));
}

static uint64_t hash_fields(const struct reshard_layout_s *l) {
  int64_t head[3] = {l->kind, l->ndim, l->world};
  uint64_t h = rs_hash(0, head, sizeof head);
  h = rs_hash(h, l->shape, (size_t)l->ndim * sizeof *l->shape);
  if (l->kind == RESHARD_LAYOUT_BOXES) {
    h = rs_hash(h + l->boxes->replicated, l->boxes->ranks, (size_t)l->boxes->n * sizeof(int64_t));
    return rs_hash(h, l->boxes->corners, (size_t)(l->boxes->n * 2 * l->ndim) * sizeof(int64_t));
  }
  for (int64_t i = 0; i < l->ranks.nranges; i++) {
    int64_t range[3] = {l->ranks.ranges[i].first, l->ranks.ranges[i].count, l->ranks.ranges[i].step};
    h = rs_hash(h, range, sizeof range);
  }
  for (int i = 0; i < l->nreplicas; i++)
    h = rs_hash(h, &l->replica[i], sizeof l->replica[i]);
  for (int d = 0; rs_layout_regular(l) && d < l->ndim; d++)
    for (int c = 0; c < l->dim[d].ncuts; c++) {
      const rs_cut *cut = &l->dim[d].cuts[c];
      int64_t words[5] = {d, cut->kind, cut->w, cut->factor, cut->stride};
      h = rs_hash(h, words, sizeof words);
      h = cut->nparts > 0 ? rs_hash(h, cut->parts, (size_t)cut->nparts * sizeof *cut->parts) : h;
      h = cut->nparts > 0 ? rs_hash(h, cut->runs, (size_t)cut->nruns * sizeof *cut->runs) : h;
    }
  return h;
}

/* A million boxes are hashed once: threads that meet here write the same value. */
uint64_t rs_layout_hash(struct reshard_layout_s *l) {
  uint64_t h = atomic_load_explicit(&l->hash, memory_order_relaxed);
  if (h == 0) {
    h = hash_fields(l) | 1;
    atomic_store_explicit(&l->hash, h, memory_order_relaxed);
  }
  return h;
}
