/* Row-wise shards whose sizes have changed: offsets and the size of the tensor follow from the sizes. */
#include "metadata/group.h"

#include <stdlib.h>

/* Checks that every shard is on a rank and has the extents of shard 0, but for dim. */
static reshard_status check_extents(const struct reshard_metadata_s *m, int dim) {
  char first[RS_PLACEMENT_TEXT], other[RS_PLACEMENT_TEXT];
  for (int64_t i = 0; i < m->n; i++) {
    const reshard_shard *s = &m->shards[i], *zero = &m->shards[0];
    if (s->placement.rank < 0)
      return rs_error(RESHARD_ERROR_INVALID, "recalc: shard %lld is placed on %s, without a rank", (long long)i,
                      rs_placement_text(other, &s->placement));
    for (int d = 0; d < m->ndim; d++)
      if (d != dim && s->box.extent[d] != zero->box.extent[d])
        return rs_error(RESHARD_ERROR_INVALID,
                        "recalc along dim %d: shards 0 (%s) and %lld (%s) differ in the size of dim %d: %lld and %lld",
                        dim, rs_placement_text(first, &zero->placement), (long long)i,
                        rs_placement_text(other, &s->placement), d, (long long)zero->box.extent[d],
                        (long long)s->box.extent[d]);
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_metadata_recalc(reshard_metadata metadata, int dim, reshard_metadata *recalculated) {
  const struct reshard_metadata_s *m = metadata;
  if (m == NULL || recalculated == NULL)
    return rs_error_null("reshard_metadata_recalc", m == NULL ? "metadata" : "recalculated");
  RS_TRY(rs_metadata_dim("recalc", dim, m->ndim, &dim));
  RS_TRY(check_extents(m, dim));
  int64_t shape[RESHARD_MAX_DIMS], begin = 0;
  int64_t *order = NULL;
  reshard_metadata made = NULL;
  reshard_status status;
  RS_TRY(rs_alloc(&order, m->n, sizeof *order));
  RS_TRY_GOTO(status, rs_sort_by_rank(m->n, &m->shards->placement.rank, sizeof *m->shards, order), done);
  for (int d = 0; d < m->ndim; d++)
    shape[d] = m->shape[d];
  shape[dim] = 0;
  for (int64_t i = 0; i < m->n; i++)
    if (!rs_add(shape[dim], m->shards[i].box.extent[dim], &shape[dim])) {
      status = rs_error(RESHARD_ERROR_INVALID, "recalc: the sizes along dim %d overflow 63 bits", dim);
      goto done;
    }
  RS_TRY_GOTO(status, rs_metadata_new(&m->properties, m->ndim, shape, m->n, &made), done);
  for (int64_t i = 0; i < m->n; i++) {
    const reshard_shard *from = &m->shards[order[i]];
    reshard_shard *to = &made->shards[i];
    for (int d = 0; d < m->ndim; d++)
      to->box.extent[d] = from->box.extent[d];
    to->box.offset[dim] = begin;
    to->placement = from->placement;
    begin += from->box.extent[dim];
  }
  *recalculated = made;
done:
  free(order);
  return status;
}
