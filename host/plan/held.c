#include "plan/held.h"

#include <stdlib.h>
#include <string.h>

/* The region in the coordinates of one side: [lo, hi) per dim. */
static void side_region(const rs_class *c, bool src, int64_t *lo, int64_t *hi) {
  const rs_space *s = &c->space;
  for (int a = 0; a < s->naxes; a++) {
    int d = src ? s->src_dim[a] : s->dst_dim[a];
    if (d < 0)
      continue;
    lo[d] = src ? s->src_offset[a] : s->dst_offset[a];
    hi[d] = lo[d] + s->extent[a];
  }
}

static int64_t clipped(int ndim, const int64_t *corners, const int64_t *lo, const int64_t *hi) {
  int64_t elements = 1;
  for (int d = 0; d < ndim; d++)
    elements *= rs_max(0, rs_min(corners[ndim + d], hi[d]) - rs_max(corners[d], lo[d]));
  return elements;
}

/* Elements of a flat piece, in all its boxes. */
static int64_t flat_elements(const struct reshard_layout_s *l, int64_t piece, const int64_t *lo, const int64_t *hi) {
  int64_t corners[2 * RESHARD_MAX_DIMS * 2 * RESHARD_MAX_DIMS], elements = 0, begin = piece * l->flat_piece;
  int n = rs_flat_boxes(l->ndim, l->shape, begin, begin + rs_min(l->flat_piece, l->elements - begin), corners);
  for (int i = 0; i < n; i++)
    elements += clipped(l->ndim, corners + (int64_t)i * 2 * l->ndim, lo, hi);
  return elements;
}

/* Dims multiply, so that each part of a dim is counted once: those of dim d from count + first[d] on. */
static reshard_status count_parts(const struct reshard_layout_s *l, const int64_t *lo, const int64_t *hi,
                                  int64_t **count, int64_t *first) {
  int64_t parts = 0;
  for (int d = 0; d < l->ndim; d++)
    parts += l->dim[d].parts;
  RS_TRY(rs_alloc(count, parts, sizeof **count));
  parts = 0;
  for (int d = 0; d < l->ndim; d++) {
    const rs_dim *dim = &l->dim[d];
    bool whole = lo[d] == 0 && hi[d] == l->shape[d];
    first[d] = parts;
    for (int64_t p = 0; p < dim->parts; p++)
      (*count)[parts++] = whole ? rs_dim_length(dim, p) : rs_dim_rank(dim, p, hi[d]) - rs_dim_rank(dim, p, lo[d]);
  }
  return RESHARD_SUCCESS;
}

/* Elements of a cell of a regular layout, whose parts are counted. */
static int64_t cell_elements(const struct reshard_layout_s *l, int64_t cell, const int64_t *count,
                             const int64_t *first) {
  int64_t elements = 1;
  for (int d = l->ndim - 1; d >= 0; d--) {
    elements *= count[first[d] + cell % l->dim[d].parts];
    cell /= l->dim[d].parts;
  }
  return elements;
}

reshard_status rs_class_visit_held(const rs_class *c, bool src, rs_held_visit visit, void *user) {
  const struct reshard_layout_s *l = src ? c->src : c->dst;
  bool flat = l->kind == RESHARD_LAYOUT_FLAT, regular = rs_layout_regular(l);
  int64_t lo[RESHARD_MAX_DIMS], hi[RESHARD_MAX_DIMS], first[RESHARD_MAX_DIMS], *count = NULL, n;
  RS_VEC(rs_holder) holders = {0};
  if (rs_space_elements(&c->space) == 0)
    return RESHARD_SUCCESS;
  side_region(c, src, lo, hi);
  reshard_status status = regular ? count_parts(l, lo, hi, &count, first) : RESHARD_SUCCESS;
  int64_t cells = flat ? rs_ceil_div(l->elements, l->flat_piece) : regular ? l->cells : l->boxes->ncells;
  for (int64_t i = 0; i < cells && status == RESHARD_SUCCESS; i++) {
    int64_t cell = flat ? i * rs_flat_most(l->ndim) : i;
    int64_t elements = flat      ? flat_elements(l, i, lo, hi)
                       : regular ? cell_elements(l, cell, count, first)
                                 : clipped(l->ndim, rs_boxes_lo(l->boxes, l->boxes->cell_box[cell]), lo, hi);
    if (elements == 0)
      continue;
    n = rs_layout_holder_count(l, cell);
    RS_THEN(status, rs_vec_reserve(&holders, n));
    RS_THEN(status, visit(user, elements, rs_layout_holders(l, cell, holders.at), n));
  }
  free(count);
  free(holders.at);
  return status;
}

/* Elements that a rank holds at most. Part 0 of a dim is its longest; of a dim in runs a rank has a part of each. */
static int64_t most_held(const struct reshard_layout_s *l) {
  int64_t elements = 1;
  if (l->kind == RESHARD_LAYOUT_FLAT)
    return l->flat_piece;
  if (!rs_layout_regular(l))
    return l->elements;
  for (int d = 0; d < l->ndim; d++)
    elements *= rs_dim_runs(&l->dim[d]) > 1 ? l->shape[d] : rs_dim_length(&l->dim[d], 0);
  return elements;
}

int64_t rs_plan_held_at_most(const struct reshard_plan_s *plan) {
  int64_t src = 0, dst = 0;
  for (int64_t i = 0; i < plan->classes.n; i++) {
    const rs_class *c = &plan->classes.at[i];
    int64_t region = rs_space_elements(&c->space), bytes = c->wire.width * c->entries; /* all fit: add_entry */
    src += rs_min(region, most_held(c->src)) * bytes;
    dst += rs_min(region, most_held(c->dst)) * bytes;
  }
  return rs_max(src, dst);
}

/* Bytes that ranks of one side hold, and how many do. */
typedef struct held_sum {
  bool *any;     /* [world] */
  int64_t width; /* of a class: bytes of an element in all entries */
  int64_t bytes, ranks;
} held_sum;

static reshard_status add_held(void *user, int64_t elements, const rs_holder *holders, int64_t n) {
  held_sum *sum = user;
  for (int64_t i = 0; i < n; i++) {
    sum->ranks += !sum->any[holders[i].rank];
    sum->any[holders[i].rank] = true;
  }
  sum->bytes += elements * n * sum->width; /* fits: each rank holds an element once at most (add_entry) */
  return RESHARD_SUCCESS;
}

reshard_status rs_plan_held(const struct reshard_plan_s *plan, int64_t *bytes) {
  held_sum sum = {0};
  int64_t most = 0;
  RS_TRY(rs_alloc(&sum.any, plan->world, sizeof *sum.any));
  reshard_status status = RESHARD_SUCCESS;
  for (int src = 0; src < 2; src++) {
    memset(sum.any, 0, (size_t)plan->world * sizeof *sum.any);
    sum.bytes = sum.ranks = 0;
    for (int64_t i = 0; i < plan->classes.n; i++) {
      const rs_class *c = &plan->classes.at[i];
      sum.width = c->wire.width * c->entries;
      RS_THEN(status, rs_class_visit_held(c, src, add_held, &sum));
    }
    most = rs_max(most, sum.bytes / rs_max(1, sum.ranks));
  }
  free(sum.any);
  if (status == RESHARD_SUCCESS)
    *bytes = most;
  return status;
}
