#include "plan/plan.h"

#include "layout/layout.h"

#include <string.h>

/* One side's region in one dim: offset and extent, extent -1 when it is left to the other side. */
static reshard_status region_of(const char *label, const char *side, const struct reshard_layout_s *l, int d,
                                const int64_t *offsets, const int64_t *extents, int64_t *offset, int64_t *extent) {
  *offset = offsets != NULL ? offsets[d] : 0;
  if (*offset < 0 || *offset > l->shape[d])
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s region starts at %lld in dim %d of extent %lld", label, side,
                    (long long)*offset, d, (long long)l->shape[d]);
  *extent = extents != NULL ? extents[d] : -1;
  if (extents != NULL && (*extent < 0 || *extent > l->shape[d] - *offset))
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s region [%lld,+%lld) in dim %d of extent %lld", label, side,
                    (long long)*offset, (long long)*extent, d, (long long)l->shape[d]);
  return RESHARD_SUCCESS;
}

reshard_status rs_space_create(const char *label, const reshard_entry *e, rs_space *space) {
  const struct reshard_layout_s *src = e->src, *dst = e->dst;
  bool named[RESHARD_MAX_DIMS] = {false};
  bool regions = e->src_offset != NULL || e->src_extent != NULL || e->dst_offset != NULL;
  rs_space s;
  memset(&s, 0, sizeof s); /* classes are compared byte by byte */
  if (e->permutation == NULL && src->ndim != dst->ndim)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %d source dims, %d destination dims, and no permutation", label,
                    src->ndim, dst->ndim);
  for (int d = 0; d < dst->ndim; d++) {
    int from = e->permutation != NULL ? e->permutation[d] : d, a = s.naxes++;
    if (from < -1 || from >= src->ndim || (from >= 0 && named[from]))
      return rs_error(RESHARD_ERROR_INVALID, "%s: permutation gives dim %d the source dim %d, %s", label, d, from,
                      from >= 0 && from < src->ndim ? "which is named twice" : "which there is not");
    int64_t there = 1, here = -1;
    s.src_dim[a] = from;
    s.dst_dim[a] = d;
    RS_TRY(region_of(label, "destination", dst, d, e->dst_offset, e->dst_extent, &s.dst_offset[a], &here));
    if (from >= 0) {
      named[from] = true;
      RS_TRY(region_of(label, "source", src, from, e->src_offset, e->src_extent, &s.src_offset[a], &there));
      if (there < 0)
        there = src->shape[from] - s.src_offset[a];
    }
    if (here < 0)
      here = regions || from < 0 ? there : dst->shape[d];
    if (here != there || here > dst->shape[d] - s.dst_offset[a])
      return rs_error(RESHARD_ERROR_INVALID,
                      "%s: dim %d of the destination region [%lld,+%lld) of %lld does not fit the source's %lld", label,
                      d, (long long)s.dst_offset[a], (long long)here, (long long)dst->shape[d], (long long)there);
    s.extent[a] = here;
  }
  for (int d = 0; d < src->ndim; d++) {
    if (named[d])
      continue;
    int a = s.naxes++;
    s.src_dim[a] = d;
    s.dst_dim[a] = -1;
    RS_TRY(region_of(label, "source", src, d, e->src_offset, e->src_extent, &s.src_offset[a], &s.extent[a]));
    if (s.extent[a] < 0)
      s.extent[a] = src->shape[d] - s.src_offset[a];
    if (s.extent[a] != 1)
      return rs_error(RESHARD_ERROR_INVALID, "%s: source dim %d is not in the permutation and has extent %lld, not 1",
                      label, d, (long long)s.extent[a]);
  }
  *space = s;
  return RESHARD_SUCCESS;
}

int64_t rs_space_elements(const rs_space *s) {
  int64_t elements = 1;
  for (int a = 0; a < s->naxes; a++)
    if (s->extent[a] == 0)
      return 0;
  for (int a = 0; a < s->naxes; a++)
    elements *= s->extent[a];
  return elements;
}
