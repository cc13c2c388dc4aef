/* Metadata of a chunk spec: one dim cut over a list of placements. */
#include "metadata/group.h"

#include <stdlib.h>

/* Piece i of n over w by the chunk rule; trailing ones are empty and begin at n. */
static void chunk_piece(int64_t n, int64_t w, int64_t i, int64_t *offset, int64_t *extent) {
  int64_t split = rs_ceil_div(n, w);
  *offset = split > 0 && i < rs_ceil_div(n, split) ? split * i : n; /* no product beyond n */
  *extent = rs_min(split, n - *offset);
}

static reshard_shard make_shard(int ndim, const int64_t *shape, int dim, int64_t n, int64_t i,
                                const reshard_remote_device *placement) {
  reshard_shard s = {.placement = *placement};
  for (int d = 0; d < ndim; d++)
    s.box.extent[d] = shape[d];
  chunk_piece(shape[dim], n, i, &s.box.offset[dim], &s.box.extent[dim]);
  return s;
}

/* Placements that can be; no rank is named twice. Several may name none. */
static reshard_status check_placements(const char *call, int64_t n, const reshard_remote_device *placements) {
  if (n < 1 || placements == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld placements, 1 is the least%s", call, (long long)n,
                    placements == NULL ? "; the list is NULL" : "");
  int64_t *order;
  for (int64_t i = 0; i < n; i++)
    RS_TRY(rs_placement_check("placement", i, &placements[i]));
  RS_TRY(rs_alloc(&order, n, sizeof *order));
  reshard_status status = rs_sort_by_rank(n, &placements->rank, sizeof *placements, order);
  for (int64_t i = 1; i < n && status == RESHARD_SUCCESS; i++)
    if (placements[order[i]].rank >= 0 && placements[order[i]].rank == placements[order[i - 1]].rank)
      status = rs_error(RESHARD_ERROR_INVALID, "%s: placements %lld and %lld are both on rank %lld", call,
                        (long long)order[i - 1], (long long)order[i], (long long)placements[order[i]].rank);
  free(order);
  return status;
}

reshard_status reshard_metadata_from_chunk(const reshard_properties *properties, int ndim, const int64_t *shape,
                                           int dim, int64_t n, const reshard_remote_device *placements,
                                           reshard_metadata *metadata) {
  const char *call = "reshard_metadata_from_chunk";
  RS_TRY(RS_GIVEN(call, metadata));
  RS_TRY(check_placements(call, n, placements));
  reshard_metadata made;
  RS_TRY(rs_metadata_new(properties, ndim, shape, n, &made));
  RS_TRY_OR(rs_metadata_dim(call, dim, ndim, &dim), reshard_metadata_release(made));
  for (int64_t i = 0; i < n; i++)
    made->shards[i] = make_shard(ndim, shape, dim, n, i, &placements[i]);
  *metadata = made;
  return RESHARD_SUCCESS;
}

reshard_status reshard_build_reshard_metadata(int ndim, const int64_t *shape, int dim, int64_t n,
                                              const reshard_remote_device *placements, int64_t world,
                                              reshard_shard *shards, int64_t *order) {
  const char *call = "reshard_build_reshard_metadata";
  RS_TRY(RS_GIVEN(call, shards, order));
  RS_TRY(rs_metadata_check_shape(ndim, shape));
  RS_TRY(rs_metadata_dim(call, dim, ndim, &dim));
  RS_TRY(check_placements(call, n, placements));
  for (int64_t i = 0; i < n; i++)
    if (placements[i].rank < 0 || placements[i].rank >= world) {
      char text[RS_PLACEMENT_TEXT];
      return rs_error(RESHARD_ERROR_INVALID, "%s: placement %lld is %s, of a world of %lld ranks", call, (long long)i,
                      rs_placement_text(text, &placements[i]), (long long)world);
    }
  for (int64_t r = 0; r < world; r++) {
    shards[r] = (reshard_shard){.placement = {r, RESHARD_DEVICE_CPU, -1}};
    for (int d = 0; d < ndim; d++)
      shards[r].box.extent[d] = d == dim ? 0 : shape[d];
  }
  for (int64_t i = 0; i < n; i++) {
    order[i] = placements[i].rank;
    shards[order[i]] = make_shard(ndim, shape, dim, n, i, &placements[i]);
  }
  return RESHARD_SUCCESS;
}

/* "rank:0/cpu, rank:1/cpu", as far as a line goes. */
static void list_placements(rs_text *text, int64_t n, const reshard_remote_device *placements) {
  char placement[RS_PLACEMENT_TEXT];
  for (int64_t i = 0; i < n && i < 8; i++)
    rs_text_add(text, "%s%s", i > 0 ? ", " : "", rs_placement_text(placement, &placements[i]));
  if (n > 8)
    rs_text_add(text, ", ... (%lld in all)", (long long)n);
}

reshard_status reshard_placements_find(int64_t n, const reshard_remote_device *placements, int64_t rank,
                                       int64_t *index) {
  const char *call = "reshard_placements_find";
  if (n < 0 || (n > 0 && placements == NULL) || index == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld placements, %s is NULL", call, (long long)n,
                    index == NULL        ? "index"
                    : placements == NULL ? "the list"
                                         : "nothing");
  int64_t i = 0;
  for (; i < n; i++) {
    RS_TRY(rs_placement_check("placement", i, &placements[i]));
    if (placements[i].rank == rank && rank >= 0)
      break;
  }
  if (i == n) {
    char list[512] = "none";
    list_placements(&(rs_text){.at = list, .size = sizeof list}, n, placements);
    return rs_error(RESHARD_ERROR_INVALID, "rank %lld is not among the placements: %s", (long long)rank, list);
  }
  *index = i;
  return RESHARD_SUCCESS;
}
