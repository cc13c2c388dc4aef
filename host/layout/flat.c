/* A flat layout cuts the row-major flattening. So a piece is up to 2 ndim - 1 boxes: a ragged start in each dim, a
 * block of whole rows in the middle, a ragged end in each dim. */
#include "layout/layout.h"

typedef struct decomposition {
  int ndim, count;
  const int64_t *shape;
  int64_t below[RESHARD_MAX_DIMS]; /* elements of one index of dim d */
  int64_t prefix[RESHARD_MAX_DIMS];
  int64_t *corners;
} decomposition;

/* One box: prefix in the dims before d, [begin, end) in d, everything after d. */
static void add_corners(decomposition *t, int d, int64_t begin, int64_t end) {
  int64_t *lo = t->corners + (int64_t)t->count++ * 2 * t->ndim, *hi = lo + t->ndim;
  for (int e = 0; e < t->ndim; e++) {
    lo[e] = e < d ? t->prefix[e] : e == d ? begin : 0;
    hi[e] = e < d ? t->prefix[e] + 1 : e == d ? end : t->shape[e];
  }
}

static void add_boxes(decomposition *t, int d, int64_t begin, int64_t end) {
  if (begin == end)
    return;
  if (d == t->ndim - 1) {
    add_corners(t, d, begin, end);
    return;
  }
  int64_t row = t->below[d], first = begin / row, last = (end - 1) / row;
  t->prefix[d] = first;
  if (first == last && !(begin % row == 0 && end % row == 0)) {
    add_boxes(t, d + 1, begin - first * row, end - first * row);
    return;
  }
  if (begin % row != 0) {
    add_boxes(t, d + 1, begin % row, row);
    first++;
  }
  if (end / row > first)
    add_corners(t, d, first, end / row);
  t->prefix[d] = end / row;
  if (end % row != 0)
    add_boxes(t, d + 1, 0, end % row);
}

int rs_flat_boxes(int ndim, const int64_t *shape, int64_t begin, int64_t end, int64_t *corners) {
  if (ndim == 0)
    return begin < end ? 1 : 0;
  decomposition t = {.ndim = ndim, .shape = shape, .corners = corners};
  int64_t below = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    t.below[d] = below;
    below *= shape[d];
  }
  add_boxes(&t, 0, begin, end);
  return t.count;
}
