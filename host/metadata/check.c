/* Checks that the shards make up the tensor. The signed corners of boxes that cover a shape exactly once cancel
 * (rs_corners_check), which takes a sort, and neither a sweep nor all pairs. A corner that is left over is a witness,
 * from which the pair that overlaps or the missing box is found. */
#include "metadata/metadata.h"

#include "layout/boxes.h"

#include <stdlib.h>

static reshard_status check_inside(const struct reshard_metadata_s *m) {
  char shape[RS_SHAPE_TEXT], placement[RS_PLACEMENT_TEXT];
  for (int64_t i = 0; i < m->n; i++) {
    const reshard_box *b = &m->shards[i].box;
    for (int d = 0; d < m->ndim; d++)
      if (b->offset[d] + b->extent[d] > m->shape[d])
        return rs_error(RESHARD_ERROR_INVALID, "shard %lld (%s) has offset %lld and size %lld in dim %d of shape %s",
                        (long long)i, rs_placement_text(placement, &m->shards[i].placement), (long long)b->offset[d],
                        (long long)b->extent[d], d, rs_shape_text(shape, m->ndim, m->shape));
  }
  return RESHARD_SUCCESS;
}

static bool is_empty(int ndim, const int64_t *extent) {
  bool empty = false;
  for (int d = 0; d < ndim; d++)
    empty |= extent[d] == 0;
  return empty;
}

/* Corners of the shards that have elements, and their numbers. */
static int64_t list_corners(const struct reshard_metadata_s *m, int64_t *corners, int64_t *number) {
  int64_t n = 0;
  for (int64_t i = 0; i < m->n; i++) {
    const reshard_box *b = &m->shards[i].box;
    if (is_empty(m->ndim, b->extent))
      continue;
    int64_t *lo = corners + i * 2 * m->ndim, *hi = lo + m->ndim;
    for (int d = 0; d < m->ndim; d++) {
      lo[d] = b->offset[d];
      hi[d] = b->offset[d] + b->extent[d];
    }
    number[n++] = i;
  }
  return n;
}

static reshard_status error_overlap(const struct reshard_metadata_s *m, int64_t i, int64_t j) {
  const reshard_shard *a = &m->shards[i], *b = &m->shards[j];
  int64_t offset[RESHARD_MAX_DIMS], extent[RESHARD_MAX_DIMS];
  char box[RS_BOX_TEXT], one[RS_BOX_TEXT], other[RS_BOX_TEXT], first[RS_PLACEMENT_TEXT], second[RS_PLACEMENT_TEXT];
  for (int d = 0; d < m->ndim; d++) {
    offset[d] = rs_max(a->box.offset[d], b->box.offset[d]);
    extent[d] = rs_min(a->box.offset[d] + a->box.extent[d], b->box.offset[d] + b->box.extent[d]) - offset[d];
  }
  return rs_error(RESHARD_ERROR_INVALID, "shards %lld (%s) and %lld (%s) overlap at %s: they are %s and %s",
                  (long long)i, rs_placement_text(first, &a->placement), (long long)j,
                  rs_placement_text(second, &b->placement), rs_box_text(box, m->ndim, offset, extent),
                  rs_box_text(one, m->ndim, a->box.offset, a->box.extent),
                  rs_box_text(other, m->ndim, b->box.offset, b->box.extent));
}

reshard_status reshard_metadata_check(reshard_metadata metadata) {
  const struct reshard_metadata_s *m = metadata;
  if (m == NULL)
    return rs_error_null("reshard_metadata_check", "metadata");
  RS_TRY(check_inside(m));
  if (is_empty(m->ndim, m->shape))
    return RESHARD_SUCCESS;
  int64_t *corners = NULL, *number = NULL, numbers, excess, point[RESHARD_MAX_DIMS], hi[RESHARD_MAX_DIMS], i, j;
  char box[RS_BOX_TEXT], shape[RS_SHAPE_TEXT];
  if (!rs_mul(m->n, 2 * m->ndim, &numbers))
    return rs_error_memory(SIZE_MAX);
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&corners, rs_max(numbers, 1), sizeof *corners), done); /* not NULL without dims */
  RS_TRY_GOTO(status, rs_alloc(&number, m->n, sizeof *number), done);
  int64_t n = list_corners(m, corners, number);
  RS_TRY_GOTO(status, rs_corners_check(m->ndim, m->shape, corners, n, number, &excess, point), done);
  if (excess > 0) {
    rs_corners_pair(m->ndim, corners, n, number, point, &i, &j);
    status = error_overlap(m, number[i], number[j]);
  } else if (excess < 0) {
    rs_corners_gap(m->ndim, m->shape, corners, n, number, point, hi);
    for (int d = 0; d < m->ndim; d++)
      hi[d] -= point[d];
    status = rs_error(RESHARD_ERROR_INVALID, "no shard holds %s of shape %s", rs_box_text(box, m->ndim, point, hi),
                      rs_shape_text(shape, m->ndim, m->shape));
  }
done:
  free(corners);
  free(number);
  return status;
}
