/* Finds buffers of a rank, or of several, that share bytes.
 *
 * Buffers are swept by their first byte; only those whose ranges meet are compared as a pair. Two dense ones then do
 * overlap. Views with gaps may interleave (columns of one matrix). Two such views overlap if i and j exist with p + sum
 * i_d * s_d = q + sum j_e * t_e, give or take a run of bytes, answered dim by dim, largest stride first. If both have
 * the same largest stride s only i - j matters, and the span of the smaller dims leaves one or two values. Views that
 * were sliced from one array thus cost some steps a dim. If the strides differ, the steps of the larger one whose span
 * meets the other view are taken one by one. */
#include "exec/arrays.h"

#include "base/order.h"

#include <stdio.h>
#include <stdlib.h>

enum { FEW = 16 }; /* buffers for which nothing is allocated */

/* Steps after which two views whose strides have nothing in common pass for disjoint. */
#define BUDGET 2000000

/* A view with positive strides, largest first; what is contiguous is one run. */
typedef struct walk {
  int n;
  int64_t run, stride[RESHARD_MAX_DIMS], steps[RESHARD_MAX_DIMS];
  int64_t span[RESHARD_MAX_DIMS + 1]; /* bytes that dims d, d + 1, ... span */
} walk;

static void sort_strides(const rs_extent *x, walk *w) {
  *w = (walk){.run = x->width};
  for (int d = 0; d < x->ndim; d++) {
    int64_t stride = llabs(x->strides[d]);
    if (x->shape[d] == 1 || stride == 0)
      continue;
    int i = w->n++;
    for (; i > 0 && w->stride[i - 1] < stride; i--) {
      w->stride[i] = w->stride[i - 1];
      w->steps[i] = w->steps[i - 1];
    }
    w->stride[i] = stride;
    w->steps[i] = x->shape[d];
  }
  while (w->n > 0 && w->stride[w->n - 1] <= w->run) { /* less than the run: a sliding window in a source */
    w->n--;
    w->run += w->stride[w->n] * (w->steps[w->n] - 1);
  }
  w->span[w->n] = w->run;
  for (int d = w->n - 1; d >= 0; d--)
    w->span[d] = w->span[d + 1] + w->stride[d] * (w->steps[d] - 1);
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* True when dims a.. of x and dims b.. of y, which begins `off` bytes later, share a byte. */
static bool walks_meet(const walk *x, int a, const walk *y, int b, int64_t off, int64_t *budget) {
  if (off >= x->span[a] || -off >= y->span[b] || --*budget < 0)
    return false;
  if (a == x->n && b == y->n)
    return true;
  int64_t s = a < x->n ? x->stride[a] : 0, t = b < y->n ? y->stride[b] : 0;
  int64_t least, most, above, below; /* k steps bring x k * stride nearer to y */
  if (s == t) {
    least = 1 - y->steps[b];
    most = x->steps[a] - 1;
    above = x->span[a + 1];
    below = y->span[b + 1];
  } else {
    least = s > t ? 0 : 1 - y->steps[b];
    most = s > t ? x->steps[a] - 1 : 0;
    above = x->span[a + (s > t)];
    below = y->span[b + (t > s)];
  }
  int64_t stride = rs_max(s, t);
  least = rs_max(least, floor_div(off - above, stride) + 1); /* -below < off - k * stride < above */
  most = rs_min(most, floor_div(off + below - 1, stride));
  for (int64_t k = least; k <= most && *budget >= 0; k++)
    if (walks_meet(x, a + (s >= t), y, b + (t >= s), off - k * stride, budget))
      return true;
  return false;
}

/* True when the regions of two entries have no index in common in some dim of their destination. */
static bool regions_disjoint(const rs_space *a, const rs_space *b) {
  for (int i = 0; i < a->naxes; i++)
    if (a->extent[i] == 0)
      return true;
  for (int i = 0; i < b->naxes; i++)
    if (b->extent[i] == 0)
      return true;
  for (int i = 0; i < a->naxes; i++)
    for (int j = 0; j < b->naxes; j++)
      if (a->dst_dim[i] >= 0 && a->dst_dim[i] == b->dst_dim[j] &&
          (a->dst_offset[i] + a->extent[i] <= b->dst_offset[j] || b->dst_offset[j] + b->extent[j] <= a->dst_offset[i]))
        return true;
  return false;
}

/* One array of one tensor, of which two entries write different parts. */
static bool parts_of_one(const rs_extent *a, const rs_extent *b) {
  const struct reshard_plan_s *plan = a->plan;
  if (a->source || b->source || plan != b->plan || a->entry == b->entry || a->at != b->at || a->buffer != b->buffer ||
      a->width != b->width || a->ndim != b->ndim)
    return false;
  for (int d = 0; d < a->ndim; d++)
    if (a->strides[d] != b->strides[d])
      return false;
  const rs_class *x = &plan->classes.at[plan->entries[a->entry].class_];
  const rs_class *y = &plan->classes.at[plan->entries[b->entry].class_];
  return reshard_layout_equal(rs_class_layout(x, false), rs_class_layout(y, false)) &&
         regions_disjoint(rs_class_space(x), rs_class_space(y));
}

static bool buffers_overlap(const rs_extent *a, const rs_extent *b) {
  if (a->end <= b->begin || b->end <= a->begin || parts_of_one(a, b))
    return false;
  if (a->dense && b->dense)
    return true;
  walk x, y;
  sort_strides(a, &x);
  sort_strides(b, &y);
  int64_t budget = BUDGET;
  return walks_meet(&x, 0, &y, 0, (int64_t)((uintptr_t)b->begin - (uintptr_t)a->begin), &budget);
}

RS_ORDER_BY(by_begin, rs_extent, begin)

static reshard_status report_overlap(const rs_extent *x, const rs_extent *y) {
  char on[2][40] = {"", ""};
  for (int i = 0; i < 2 && x->plan != y->plan; i++)
    snprintf(on[i], sizeof on[i], " on rank %lld", (long long)(i == 0 ? x : y)->plan->rank);
  return rs_error(RESHARD_ERROR_INVALID,
                  "entry %lld '%.64s': its %s of %lld bytes%s overlaps the %s of entry %lld '%.64s' of %lld bytes%s",
                  (long long)x->entry, x->plan->entries[x->entry].name, x->source ? "source" : "destination",
                  (long long)(x->end - x->begin), on[0], y->source ? "source" : "destination", (long long)y->entry,
                  y->plan->entries[y->entry].name, (long long)(y->end - y->begin), on[1]);
}

/* The buffers of one side that the sweep is within. */
typedef struct active {
  const rs_extent **at;
  int64_t n;
} active;

/* The first that shares a byte with x, or NULL; those that end before x are dropped. */
static const rs_extent *find_overlap(active *list, const rs_extent *x) {
  int64_t kept = 0;
  const rs_extent *found = NULL;
  for (int64_t i = 0; i < list->n; i++) {
    const rs_extent *y = list->at[i];
    if (y->end <= x->begin)
      continue;
    list->at[kept++] = y;
    if (found == NULL && buffers_overlap(y, x))
      found = y;
  }
  list->n = kept;
  return found;
}

reshard_status rs_check_overlap(rs_extents *all) {
  if (all->n < 2)
    return RESHARD_SUCCESS;
  const rs_extent *few[2 * FEW], **memory = few;
  if (all->n > FEW)
    RS_TRY(rs_alloc(&memory, 2 * all->n, sizeof *memory));
  active sources = {memory, 0}, destinations = {memory + all->n, 0};
  qsort(all->at, (size_t)all->n, sizeof *all->at, by_begin);
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < all->n && status == RESHARD_SUCCESS; i++) {
    const rs_extent *x = &all->at[i], *y = find_overlap(&destinations, x);
    if (y == NULL && !x->source) /* sources may share what they like among them */
      y = find_overlap(&sources, x);
    if (y != NULL)
      status = report_overlap(x, y);
    active *mine = x->source ? &sources : &destinations;
    mine->at[mine->n++] = x;
  }
  if (memory != few)
    free(memory);
  return status;
}
