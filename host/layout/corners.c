/* Let f(x) be the number of boxes that contain x. The difference f(x) - f(x - 1), taken in turn in each dim, turns the
 * indicator function of one box into its 2^k corners with signs. The sign is + where an even number of coordinates is a
 * high end, - where it is odd. The difference loses nothing, since f is the sum of the differences at all points <= x.
 * So f is 1 in the shape and 0 outside if and only if the signed corners of all boxes cancel the shape's. Corners are
 * integers (index in a grid one longer than the shape per dim), so cancelling is a sort: no sweep, no tree, no bad
 * case.
 *
 * If something is left, let p be the first of it in row-major order. Every other corner <= p in all dims comes before p
 * in that order, so only p's own sum counts: f(p) - 1 = that sum. Hence p is a witness, and its sum tells a gap from an
 * overlap.
 *
 * A dim that every box spans is left out. The grid has up to 3/2 as many points per dim left (extent 2 at least). So an
 * index needs at most 63 + 8 * 0.6 bits. That is usually a word with the sign in its low bit, else two. */
#include "layout/boxes.h"

#include "layout/sort.h"

#include <stdlib.h>
#include <string.h>

typedef unsigned __int128 wide;

typedef struct grid {
  int k; /* dims that some box does not span */
  int dim[RESHARD_MAX_DIMS];
  wide stride[RESHARD_MAX_DIMS]; /* in the grid */
  int bits;                      /* of the largest index */
} grid;

static grid make_grid(int ndim, const int64_t *shape, const int64_t *corners, int64_t n, const int64_t *box) {
  grid g = {0};
  bool cut[RESHARD_MAX_DIMS] = {false};
  for (int64_t i = 0; i < n; i++) {
    const int64_t *lo = corners + box[i] * 2 * ndim, *hi = lo + ndim;
    for (int d = 0; d < ndim; d++)
      cut[d] |= hi[d] - lo[d] != shape[d];
  }
  for (int d = 0; d < ndim; d++)
    if (cut[d])
      g.dim[g.k++] = d;
  wide points = 1;
  for (int a = g.k - 1; a >= 0; a--) {
    g.stride[a] = points;
    points *= (wide)shape[g.dim[a]] + 1;
  }
  uint64_t high = (uint64_t)((points - 1) >> 64);
  g.bits = high != 0 ? 64 + rs_bits(high) : rs_bits((uint64_t)(points - 1));
  return g;
}

/* Lists the 2^k corners of a box, index * 2 + sign (1 is minus). Each next dim repeats those found so far for its high
 * end. */
static void add_narrow(const grid *g, const int64_t *lo, const int64_t *hi, uint64_t sign, uint64_t *out) {
  out[0] = sign;
  for (int a = 0; a < g->k; a++)
    out[0] += 2 * (uint64_t)g->stride[a] * (uint64_t)lo[g->dim[a]];
  for (int a = 0; a < g->k; a++) {
    uint64_t step = 2 * (uint64_t)g->stride[a] * (uint64_t)(hi[g->dim[a]] - lo[g->dim[a]]);
    for (int64_t j = 0, m = (int64_t)1 << a; j < m; j++)
      out[m + j] = (out[j] + step) ^ 1;
  }
}

static void add_wide(const grid *g, const int64_t *lo, const int64_t *hi, uint64_t sign, rs_pair *out) {
  wide corner[1 << RESHARD_MAX_DIMS];
  corner[0] = sign;
  for (int a = 0; a < g->k; a++)
    corner[0] += 2 * g->stride[a] * (wide)lo[g->dim[a]];
  for (int a = 0; a < g->k; a++) {
    wide step = 2 * g->stride[a] * (wide)(hi[g->dim[a]] - lo[g->dim[a]]);
    for (int64_t j = 0, m = (int64_t)1 << a; j < m; j++)
      corner[m + j] = (corner[j] + step) ^ 1;
  }
  for (int64_t j = 0; j < (int64_t)1 << g->k; j++)
    out[j] = (rs_pair){(uint64_t)corner[j], (uint64_t)(corner[j] >> 64)};
}

/* First index whose signs do not cancel. */
static int64_t cancel_narrow(const uint64_t *sorted, int64_t n, wide *index) {
  for (int64_t i = 0; i < n;) {
    int64_t sum = 0;
    uint64_t at = sorted[i] >> 1;
    for (; i < n && sorted[i] >> 1 == at; i++)
      sum += (sorted[i] & 1) == 0 ? 1 : -1;
    if (sum != 0) {
      *index = at;
      return sum;
    }
  }
  return 0;
}

static int64_t cancel_wide(const rs_pair *sorted, int64_t n, wide *index) {
  for (int64_t i = 0; i < n;) {
    int64_t sum = 0;
    rs_pair at = sorted[i];
    for (; i < n && sorted[i].value == at.value && sorted[i].key >> 1 == at.key >> 1; i++)
      sum += (sorted[i].key & 1) == 0 ? 1 : -1;
    if (sum != 0) {
      *index = (((wide)at.value << 64) | at.key) >> 1;
      return sum;
    }
  }
  return 0;
}

static reshard_status check_narrow(const grid *g, int ndim, const int64_t *shape, const int64_t *corners, int64_t n,
                                   const int64_t *box, int64_t *excess, wide *index) {
  static const int64_t zero[RESHARD_MAX_DIMS];
  reshard_status status;
  uint64_t *keys = NULL, *spare = NULL;
  int64_t each = (int64_t)1 << g->k, total;
  if (!rs_mul(n + 1, each, &total))
    return rs_error_memory(SIZE_MAX);
  RS_TRY_GOTO(status, rs_alloc(&keys, total, sizeof *keys), done);
  RS_TRY_GOTO(status, rs_alloc(&spare, total, sizeof *spare), done);
  for (int64_t i = 0; i < n; i++)
    add_narrow(g, corners + box[i] * 2 * ndim, corners + box[i] * 2 * ndim + ndim, 0, keys + i * each);
  add_narrow(g, zero, shape, 1, keys + n * each);
  *excess = cancel_narrow(rs_sort_keys(keys, spare, total, 1, g->bits + 1), total, index);
done:
  free(keys);
  free(spare);
  return status;
}

static reshard_status check_wide(const grid *g, int ndim, const int64_t *shape, const int64_t *corners, int64_t n,
                                 const int64_t *box, int64_t *excess, wide *index) {
  static const int64_t zero[RESHARD_MAX_DIMS];
  reshard_status status;
  rs_pair *pairs = NULL, *spare = NULL, *sorted;
  int64_t each = (int64_t)1 << g->k, total;
  if (!rs_mul(n + 1, each, &total))
    return rs_error_memory(SIZE_MAX);
  RS_TRY_GOTO(status, rs_alloc(&pairs, total, sizeof *pairs), done);
  RS_TRY_GOTO(status, rs_alloc(&spare, total, sizeof *spare), done);
  for (int64_t i = 0; i < n; i++)
    add_wide(g, corners + box[i] * 2 * ndim, corners + box[i] * 2 * ndim + ndim, 0, pairs + i * each);
  add_wide(g, zero, shape, 1, pairs + n * each);
  sorted = rs_sort_pairs(pairs, spare, total, false, 1, 64);
  sorted = rs_sort_pairs(sorted, sorted == pairs ? spare : pairs, total, true, 0, g->bits + 1 - 64);
  *excess = cancel_wide(sorted, total, index);
done:
  free(pairs);
  free(spare);
  return status;
}

reshard_status rs_corners_check(int ndim, const int64_t *shape, const int64_t *corners, int64_t n, const int64_t *box,
                                int64_t *excess, int64_t *point) {
  grid g = make_grid(ndim, shape, corners, n, box);
  wide index = 0;
  *excess = 0;
  RS_TRY((g.bits < 64 ? check_narrow : check_wide)(&g, ndim, shape, corners, n, box, excess, &index));
  memset(point, 0, (size_t)ndim * sizeof *point);
  for (int a = 0; a < g.k; a++) {
    point[g.dim[a]] = (int64_t)(index / g.stride[a]);
    index %= g.stride[a];
  }
  return RESHARD_SUCCESS;
}

void rs_corners_pair(int ndim, const int64_t *corners, int64_t n, const int64_t *box, const int64_t *point, int64_t *i,
                     int64_t *j) {
  *i = *j = -1;
  for (int64_t b = 0; b < n && *j < 0; b++) {
    const int64_t *lo = corners + box[b] * 2 * ndim, *hi = lo + ndim;
    bool inside = true;
    for (int d = 0; d < ndim; d++)
      inside &= lo[d] <= point[d] && point[d] < hi[d];
    if (inside)
      *(*i < 0 ? i : j) = b;
  }
}

/* The point before it in any dim comes before it in row-major order, so it is held: only upwards is there room. */
void rs_corners_gap(int ndim, const int64_t *shape, const int64_t *corners, int64_t n, const int64_t *box,
                    const int64_t *point, int64_t *hi) {
  for (int d = 0; d < ndim; d++)
    hi[d] = point[d] + 1;
  for (int grow = ndim - 1; grow >= 0; grow--) {
    int64_t most = shape[grow];
    for (int64_t b = 0; b < n; b++) {
      const int64_t *box_lo = corners + box[b] * 2 * ndim, *box_hi = box_lo + ndim;
      bool beside = box_lo[grow] >= hi[grow];
      for (int d = 0; d < ndim; d++)
        beside &= d == grow || (box_lo[d] < hi[d] && box_hi[d] > point[d]);
      if (beside)
        most = rs_min(most, box_lo[grow]);
    }
    hi[grow] = most;
  }
}
