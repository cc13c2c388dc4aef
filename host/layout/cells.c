/* Cells of a layout, and the arrays of ranks that lie in them: shapes, pieces, holders. */
#include "layout/layout.h"

#include "base/order.h"

#include <stdlib.h>
#include <string.h>

/* Boxes of the piece of a rank in a flat layout; 0 when it has none. corners has room for 2 * 8 of 16 numbers. */
#define FLAT_CORNERS (2 * RESHARD_MAX_DIMS * 2 * RESHARD_MAX_DIMS)
static int flat_arrays(const struct reshard_layout_s *l, int64_t position, int64_t *corners) {
  if (position < 0 || l->flat_piece == 0 || position > l->elements / l->flat_piece)
    return 0;
  int64_t begin = position * l->flat_piece;
  return rs_flat_boxes(l->ndim, l->shape, begin, begin + rs_min(l->flat_piece, l->elements - begin), corners);
}

int64_t rs_layout_arrays(const struct reshard_layout_s *l, int64_t rank) {
  if (l->kind == RESHARD_LAYOUT_BOXES) {
    int64_t first, count;
    rs_boxes_of_rank(l->boxes, rank, &first, &count);
    return count;
  }
  int64_t position = rs_ranks_find(&l->ranks, rank);
  if (l->kind != RESHARD_LAYOUT_FLAT)
    return position >= 0 ? rs_layout_runs(l) : 0;
  int64_t corners[FLAT_CORNERS];
  return flat_arrays(l, position, corners);
}

int64_t rs_layout_cell(const struct reshard_layout_s *l, int64_t rank, int64_t array) {
  if (l->kind == RESHARD_LAYOUT_BOXES)
    return l->boxes->cell_of[rs_boxes_of_array(l->boxes, rank, array)];
  int64_t position = rs_ranks_find(&l->ranks, rank), cell = 0;
  if (l->kind == RESHARD_LAYOUT_FLAT)
    return position * rs_flat_most(l->ndim) + array;
  for (int d = 0; d < l->ndim; d++)
    cell = cell * l->dim[d].parts + rs_dim_part(&l->dim[d], position, (int)array);
  return cell;
}

/* Part of a cell of a regular layout in one dim. */
static int64_t cell_part(const struct reshard_layout_s *l, int64_t cell, int dim) {
  for (int d = l->ndim - 1; d > dim; d--)
    cell /= l->dim[d].parts;
  return cell % l->dim[dim].parts;
}

/* The run of parts in which a cell of a regular layout is. Writes how many ranks share it for that. */
static int cell_run(const struct reshard_layout_s *l, int64_t cell, int64_t *ranks) {
  *ranks = 1;
  if (l->runs_dim < 0)
    return 0;
  const rs_cut *cut = l->dim[l->runs_dim].cuts;
  int run = rs_cut_run_of(cut, cell_part(l, cell, l->runs_dim));
  *ranks = cut->ranks / cut->runs[run].n;
  return run;
}

/* lo and hi of a cell of a boxes or flat layout, borrowed from the layout or put into corners. */
static const int64_t *cell_corners(const struct reshard_layout_s *l, int64_t cell, int64_t *corners) {
  if (l->kind == RESHARD_LAYOUT_BOXES)
    return rs_boxes_lo(l->boxes, l->boxes->cell_box[cell]);
  flat_arrays(l, cell / rs_flat_most(l->ndim), corners);
  return corners + cell % rs_flat_most(l->ndim) * 2 * l->ndim;
}

void rs_layout_cell_box(const struct reshard_layout_s *l, int64_t cell, int64_t *lo, int64_t *hi) {
  int64_t storage[FLAT_CORNERS];
  const int64_t *corners = cell_corners(l, cell, storage);
  memcpy(lo, corners, (size_t)l->ndim * sizeof *lo);
  memcpy(hi, corners + l->ndim, (size_t)l->ndim * sizeof *hi);
}

void rs_layout_cell_shape(const struct reshard_layout_s *l, int64_t cell, int64_t *shape) {
  if (rs_layout_regular(l)) {
    for (int d = l->ndim - 1; d >= 0; d--) {
      shape[d] = rs_dim_length(&l->dim[d], cell % l->dim[d].parts);
      cell /= l->dim[d].parts;
    }
    return;
  }
  int64_t storage[FLAT_CORNERS];
  const int64_t *corners = cell_corners(l, cell, storage);
  for (int d = 0; d < l->ndim; d++)
    shape[d] = corners[l->ndim + d] - corners[d];
}

/* The breaks of a part, step 0 where they are no sequence, and room for the pieces of n neighbouring indices of it. So
 * many that no memory holds them are refused here. */
static reshard_status reserve_pieces(const rs_dim *dim, int64_t part, int64_t n, rs_breaks *breaks, rs_pieces *out) {
  if (!rs_dim_breaks(dim, part, breaks)) {
    breaks->step = 0;
    return RESHARD_SUCCESS;
  }
  int64_t most = rs_min(breaks->count - 1, n / breaks->step) + 2, total;
  bool room = rs_add(out->n, most, &total) && rs_vec_reserve(out, total) == RESHARD_SUCCESS;
  return room ? RESHARD_SUCCESS : rs_dim_error_runs(dim, most);
}

/* The first break behind a local index; INT64_MAX: there is none. */
static int64_t next_break(const rs_breaks *breaks, int64_t local) {
  int64_t k = local < breaks->first ? 0 : (local - breaks->first) / breaks->step + 1;
  return k < breaks->count ? breaks->first + k * breaks->step : INT64_MAX;
}

reshard_status rs_layout_pieces(const struct reshard_layout_s *l, int64_t cell, int d, int64_t lo, int64_t hi,
                                rs_pieces *out) {
  if (!rs_layout_regular(l)) {
    int64_t storage[FLAT_CORNERS];
    const int64_t *corners = cell_corners(l, cell, storage);
    int64_t begin = rs_max(lo, corners[d]), end = rs_min(hi, corners[l->ndim + d]);
    if (begin >= end)
      return RESHARD_SUCCESS;
    return rs_vec_push(out, (rs_piece){begin, end - begin, begin - corners[d]});
  }
  const rs_dim *dim = &l->dim[d];
  int64_t part = cell_part(l, cell, d), first = out->n;
  int64_t local = rs_dim_rank(dim, part, lo), end = rs_dim_rank(dim, part, hi);
  rs_breaks breaks = {0, 0, 0}; /* step 0: not known */
  while (local < end) {
    int64_t global, run;
    rs_dim_expand(dim, part, local, &global, &run);
    run = rs_min(run, end - local);
    if (out->n == first && run < end - local)
      RS_TRY(reserve_pieces(dim, part, end - local, &breaks, out));
    if (breaks.step > 0)
      run = rs_min(next_break(&breaks, local), end) - local;
    if (out->n > first && out->at[out->n - 1].begin + out->at[out->n - 1].n == global) {
      out->at[out->n - 1].n += run; /* neighbours of different chunks of a strided cut */
    } else {
      RS_TRY(rs_vec_push(out, (rs_piece){global, run, local}));
    }
    local += run;
  }
  return RESHARD_SUCCESS;
}

void rs_layout_clip(const struct reshard_layout_s *l, int64_t cell, int d, int64_t lo, int64_t hi, int64_t *begin,
                    int64_t *end) {
  if (rs_layout_regular(l)) {
    int64_t part = cell_part(l, cell, d);
    *begin = rs_dim_rank(&l->dim[d], part, lo);
    *end = rs_dim_rank(&l->dim[d], part, hi);
    return;
  }
  int64_t storage[FLAT_CORNERS];
  const int64_t *corners = cell_corners(l, cell, storage);
  *begin = rs_max(lo, corners[d]) - corners[d];
  *end = rs_max(*begin, rs_min(hi, corners[l->ndim + d]) - corners[d]);
}

int64_t rs_layout_holder_count(const struct reshard_layout_s *l, int64_t cell) {
  if (l->kind == RESHARD_LAYOUT_BOXES)
    return l->boxes->cell_first[cell + 1] - l->boxes->cell_first[cell];
  int64_t ranks;
  cell_run(l, cell, &ranks);
  return l->replicas * ranks;
}

RS_ORDER_BY(by_rank, rs_holder, rank)

const rs_holder *rs_layout_holders(const struct reshard_layout_s *l, int64_t cell, rs_holder *out) {
  if (l->kind == RESHARD_LAYOUT_BOXES)
    return l->boxes->holders + l->boxes->cell_first[cell];
  if (l->kind == RESHARD_LAYOUT_FLAT) {
    *out = (rs_holder){rs_ranks_at(&l->ranks, cell / rs_flat_most(l->ndim)), cell % rs_flat_most(l->ndim)};
    return out;
  }
  int64_t base = 0, share; /* position of the holder with all replica coordinates 0 */
  int run = cell_run(l, cell, &share);
  for (int d = l->ndim - 1; d >= 0; d--)
    for (int c = l->dim[d].ncuts - 1; c >= 0; c--) {
      const rs_cut *cut = &l->dim[d].cuts[c];
      base += rs_cut_first(cut, cell % cut->w) * cut->stride;
      cell /= cut->w;
    }
  if (l->replicas * share == 1) {
    *out = (rs_holder){rs_ranks_at(&l->ranks, base), run};
    return out;
  }
  for (int64_t i = 0; i < l->replicas * share; i++) {
    int64_t position = base, rest = i / share;
    if (share > 1)
      position += i % share * l->dim[l->runs_dim].cuts->stride;
    for (int r = l->nreplicas - 1; r >= 0; r--) {
      position += rest % l->replica[r].n * l->replica[r].stride;
      rest /= l->replica[r].n;
    }
    out[i] = (rs_holder){rs_ranks_at(&l->ranks, position), run};
  }
  if (!l->ranks.ascending || share > 1)
    qsort(out, (size_t)(l->replicas * share), sizeof *out, by_rank);
  return out;
}

bool rs_layout_holds(const struct reshard_layout_s *l, int64_t cell, int64_t rank) {
  if (l->kind == RESHARD_LAYOUT_BOXES) {
    int64_t low = l->boxes->cell_first[cell], end = l->boxes->cell_first[cell + 1], high = end;
    RS_LOWER_BOUND(low, high, l->boxes->holders[i].rank < rank);
    return low < end && l->boxes->holders[low].rank == rank;
  }
  int64_t position = rs_ranks_find(&l->ranks, rank);
  if (l->kind == RESHARD_LAYOUT_FLAT)
    return position >= 0 && position == cell / rs_flat_most(l->ndim);
  int64_t share;
  return position >= 0 && rs_layout_cell(l, rank, cell_run(l, cell, &share)) == cell;
}

static reshard_status check_rank(const char *call, reshard_layout layout, int64_t rank, const void *out) {
  if (layout == NULL || out == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: NULL argument", call);
  if (rank < 0 || rank >= layout->world)
    return rs_error(RESHARD_ERROR_INVALID, "%s: rank %lld is not in the world of %lld ranks", call, (long long)rank,
                    (long long)layout->world);
  return RESHARD_SUCCESS;
}

static reshard_status check_array(const char *call, reshard_layout layout, int64_t rank, int64_t array,
                                  const void *out) {
  RS_TRY(check_rank(call, layout, rank, out));
  int64_t count = rs_layout_arrays(layout, rank);
  if (array < 0 || array >= count)
    return rs_error(RESHARD_ERROR_INVALID, "%s: array %lld of rank %lld, which has %lld", call, (long long)array,
                    (long long)rank, (long long)count);
  return RESHARD_SUCCESS;
}

reshard_status reshard_layout_array_count(reshard_layout layout, int64_t rank, int64_t *count) {
  RS_TRY(check_rank("reshard_layout_array_count", layout, rank, count));
  *count = rs_layout_arrays(layout, rank);
  return RESHARD_SUCCESS;
}

static int64_t elements_of(int ndim, const int64_t *shape) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++)
    n *= shape[d];
  return n;
}

reshard_status reshard_layout_array(reshard_layout layout, int64_t rank, int64_t array, reshard_array_info *info) {
  RS_TRY(check_array("reshard_layout_array", layout, rank, array, info));
  rs_layout_cell_shape(layout, rs_layout_cell(layout, rank, array), info->shape);
  info->elements = elements_of(layout->ndim, info->shape);
  info->buffer = layout->kind == RESHARD_LAYOUT_BOXES ? array : 0;
  int64_t stride = 1, buffer[RESHARD_MAX_DIMS];
  memcpy(buffer, info->shape, sizeof buffer);
  if (layout->runs_dim >= 0)
    rs_layout_buffer_shape(layout, rank, 0, buffer);
  for (int d = layout->ndim - 1; d >= 0; d--) {
    info->strides[d] = stride;
    stride *= rs_max(1, buffer[d]);
  }
  for (int d = layout->ndim; d < RESHARD_MAX_DIMS; d++)
    info->shape[d] = info->strides[d] = 0;
  info->offset = 0;
  for (int64_t before = 0; layout->kind == RESHARD_LAYOUT_FLAT && before < array; before++) {
    int64_t shape[RESHARD_MAX_DIMS];
    rs_layout_cell_shape(layout, rs_layout_cell(layout, rank, before), shape);
    info->offset += elements_of(layout->ndim, shape);
  }
  info->offset = rs_layout_array_offset(layout, rank, info, array, info->strides);
  return RESHARD_SUCCESS;
}

int64_t rs_layout_array_begin(const struct reshard_layout_s *l, int64_t rank, int64_t array) {
  int64_t begin = 0, position = rs_ranks_find(&l->ranks, rank);
  for (int run = 0; l->runs_dim >= 0 && run < array; run++)
    begin += rs_dim_length(&l->dim[l->runs_dim], rs_dim_part(&l->dim[l->runs_dim], position, run));
  return begin;
}

int64_t rs_layout_array_offset(const struct reshard_layout_s *l, int64_t rank, const reshard_array_info *info,
                               int64_t array, const int64_t *strides) {
  return l->runs_dim >= 0 ? rs_layout_array_begin(l, rank, array) * strides[l->runs_dim] : info->offset;
}

/* Elements of arrays [begin, end) of a rank; block: how many blocks they are. */
static int64_t count_elements(const struct reshard_layout_s *l, int64_t rank, int64_t begin, int64_t end,
                              const int64_t *block) {
  int64_t total = 0;
  for (int64_t a = begin; a < end; a++) {
    int64_t shape[RESHARD_MAX_DIMS];
    rs_layout_cell_shape(l, rs_layout_cell(l, rank, a), shape);
    for (int d = 0; d < l->ndim && block != NULL; d++)
      shape[d] = rs_ceil_div(shape[d], block[d]);
    total += elements_of(l->ndim, shape);
  }
  return total;
}

int rs_layout_buffer_shape(const struct reshard_layout_s *l, int64_t rank, int64_t buffer, int64_t *shape) {
  if (l->kind == RESHARD_LAYOUT_FLAT) {
    shape[0] = count_elements(l, rank, 0, rs_layout_arrays(l, rank), NULL);
    return 1;
  }
  rs_layout_cell_shape(l, rs_layout_cell(l, rank, l->kind == RESHARD_LAYOUT_BOXES ? buffer : 0), shape);
  if (l->runs_dim >= 0)
    shape[l->runs_dim] = rs_layout_array_begin(l, rank, rs_layout_runs(l));
  return l->ndim;
}

/* Counts the intervals of a part and lists some. Their number may be that of the indices: only where several strided
 * cuts are nested is it found by going through them. */
static int64_t list_intervals(const rs_dim *dim, int64_t part, int64_t first, int64_t capacity,
                              reshard_interval *intervals) {
  int64_t length = rs_dim_length(dim, part), global, run, n = 0;
  rs_breaks b;
  if (rs_dim_breaks(dim, part, &b)) {
    n = length > 0 ? b.count + 1 : 0;
    for (int64_t i = first; i < n && i - first < capacity; i++) {
      int64_t begin = i == 0 ? 0 : b.first + (i - 1) * b.step, end = i == b.count ? length : b.first + i * b.step;
      rs_dim_expand(dim, part, begin, &global, &run);
      intervals[i - first] = (reshard_interval){global, global + (end - begin)};
    }
    return n;
  }
  reshard_interval last = {0, 0};
  for (int64_t local = 0; local < length; local += run) {
    rs_dim_expand(dim, part, local, &global, &run);
    run = rs_min(run, length - local);
    if (n > 0 && last.end == global) {
      last.end += run;
    } else {
      last = (reshard_interval){global, global + run};
      n++;
    }
    if (n > first && n - 1 - first < capacity)
      intervals[n - 1 - first] = last;
  }
  return n;
}

reshard_status reshard_layout_array_intervals(reshard_layout layout, int64_t rank, int64_t array, int dim,
                                              int64_t first, int64_t capacity, reshard_interval *intervals,
                                              int64_t *count) {
  RS_TRY(check_array("reshard_layout_array_intervals", layout, rank, array, count));
  if (dim < 0 || dim >= layout->ndim || first < 0 || capacity < 0 || (capacity > 0 && intervals == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_layout_array_intervals: dim %d of %d, first %lld, capacity %lld",
                    dim, layout->ndim, (long long)first, (long long)capacity);
  int64_t cell = rs_layout_cell(layout, rank, array), n = 0;
  if (!rs_layout_regular(layout)) {
    int64_t storage[FLAT_CORNERS];
    const int64_t *corners = cell_corners(layout, cell, storage);
    n = corners[dim] < corners[layout->ndim + dim];
    if (n > first && capacity > 0)
      intervals[0] = (reshard_interval){corners[dim], corners[layout->ndim + dim]};
  } else {
    n = list_intervals(&layout->dim[dim], cell_part(layout, cell, dim), first, capacity, intervals);
  }
  *count = n;
  return RESHARD_SUCCESS;
}

int64_t rs_layout_buffers(const struct reshard_layout_s *l, int64_t rank) {
  return l->kind == RESHARD_LAYOUT_BOXES ? rs_layout_arrays(l, rank) : 1;
}

reshard_status reshard_layout_buffer_count(reshard_layout layout, int64_t rank, int64_t *count) {
  RS_TRY(check_rank("reshard_layout_buffer_count", layout, rank, count));
  *count = rs_layout_buffers(layout, rank);
  return RESHARD_SUCCESS;
}

static reshard_status check_buffer(const char *call, reshard_layout layout, int64_t rank, int64_t buffer,
                                   const void *out) {
  RS_TRY(check_rank(call, layout, rank, out));
  if (buffer < 0 || buffer >= rs_layout_buffers(layout, rank))
    return rs_error(RESHARD_ERROR_INVALID, "%s: buffer %lld of rank %lld, which has %lld", call, (long long)buffer,
                    (long long)rank, (long long)rs_layout_buffers(layout, rank));
  return RESHARD_SUCCESS;
}

reshard_status reshard_layout_buffer_elements(reshard_layout layout, int64_t rank, int64_t buffer, int64_t *elements) {
  RS_TRY(check_buffer("reshard_layout_buffer_elements", layout, rank, buffer, elements));
  bool own = layout->kind == RESHARD_LAYOUT_BOXES; /* each array is a buffer of its own */
  *elements = count_elements(layout, rank, own ? buffer : 0, own ? buffer + 1 : rs_layout_arrays(layout, rank), NULL);
  return RESHARD_SUCCESS;
}

reshard_status reshard_layout_buffer_shape(reshard_layout layout, int64_t rank, int64_t buffer, const int64_t *block,
                                           int *ndim, int64_t *shape) {
  static const char call[] = "reshard_layout_buffer_shape";
  RS_TRY(check_buffer(call, layout, rank, buffer, ndim != NULL ? shape : NULL));
  for (int d = 0; d < layout->ndim && block != NULL; d++)
    if (block[d] < 1)
      return rs_error(RESHARD_ERROR_INVALID, "%s: dim %d: a block of %lld", call, d, (long long)block[d]);
  int64_t arrays = rs_layout_arrays(layout, rank);
  if (layout->kind == RESHARD_LAYOUT_FLAT || arrays == 0) {
    *ndim = 1;
    shape[0] = count_elements(layout, rank, 0, arrays, block);
    return RESHARD_SUCCESS;
  }
  *ndim = rs_layout_buffer_shape(layout, rank, buffer, shape);
  for (int d = 0; d < *ndim && block != NULL; d++)
    shape[d] = rs_ceil_div(shape[d], block[d]);
  return RESHARD_SUCCESS;
}
