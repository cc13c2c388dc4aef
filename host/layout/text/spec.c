/* Makes a layout of a spec, through the public constructors. */
#include "layout/text/spec.h"

#include <stdlib.h>
#include <string.h>

/* Ranks that a list may have where no world bounds it: a slip of the keyboard should not take all memory. */
#define RANKS_MOST ((int64_t)1 << 24)

/* Ranks as an array, or NULL and 0 where the default means the same: 0..n-1 of a grid, all of the world else. */
reshard_status rs_spec_expand(const rs_scan *scan, const rs_spec *spec, int64_t world, int64_t **ranks, int64_t *n) {
  bool grid = spec->kind == RESHARD_LAYOUT_MESH || spec->kind == RESHARD_LAYOUT_CYCLIC;
  *ranks = NULL;
  *n = 0;
  if (spec->ranks.n == 0 ||
      (spec->ranks.n == 1 && spec->ranks.at[0].first == 0 && (grid || spec->ranks.at[0].last == world - 1)))
    return RESHARD_SUCCESS;
  if (spec->rank_count > world)
    return rs_scan_error(scan, spec->ranks_at, RESHARD_ERROR_INVALID, "%lld ranks are named, the world has %lld",
                         (long long)spec->rank_count, (long long)world);
  if (spec->given == 0 && spec->rank_count > RANKS_MOST)
    return rs_scan_error(scan, spec->ranks_at, RESHARD_ERROR_INVALID,
                         "%lld ranks are named, without a world given %lld at most", (long long)spec->rank_count,
                         (long long)RANKS_MOST);
  RS_TRY(rs_alloc(ranks, spec->rank_count, sizeof **ranks));
  for (int64_t i = 0; i < spec->ranks.n; i++) {
    rs_spec_range range = spec->ranks.at[i];
    int64_t step = range.first <= range.last ? 1 : -1;
    for (int64_t rank = range.first; rank != range.last + step; rank += step)
      (*ranks)[(*n)++] = rank;
  }
  return RESHARD_SUCCESS;
}

/* Pointers, and behind them the characters. */
reshard_status rs_spec_names(const rs_spec *spec, char ***names) {
  int64_t bytes = spec->names.n * (int64_t)sizeof **names;
  *names = NULL;
  if (spec->names.n == 0)
    return RESHARD_SUCCESS;
  for (int64_t i = 0; i < spec->names.n; i++)
    bytes += (int64_t)spec->names.at[i].length + 1;
  RS_TRY(rs_alloc_zero(names, bytes, 1));
  char *at = (char *)(*names + spec->names.n);
  for (int64_t i = 0; i < spec->names.n; i++) {
    (*names)[i] = at;
    memcpy(at, spec->names.at[i].at, spec->names.at[i].length);
    at += spec->names.at[i].length + 1;
  }
  return RESHARD_SUCCESS;
}

static reshard_status build_mesh(const rs_spec *spec, const int64_t *shape, int64_t world, const int64_t *ranks,
                                 reshard_layout *layout) {
  char **names;
  RS_TRY(rs_spec_names(spec, &names));
  reshard_status status =
      reshard_layout_create_mesh(spec->ndim, shape, world, (int)spec->extents.n, spec->extents.at,
                                 (const char *const *)names, spec->placements.at, spec->order.at, ranks, layout);
  free(names);
  return status;
}

static bool cuts_tensor(const rs_spec *spec) {
  bool cuts = spec->kind == RESHARD_LAYOUT_CHUNK || spec->kind == RESHARD_LAYOUT_CYCLIC;
  for (int64_t i = 0; i < spec->placements.n; i++) {
    reshard_placement_kind kind = spec->placements.at[i].kind;
    cuts |= kind == RESHARD_PLACEMENT_SHARD || kind == RESHARD_PLACEMENT_STRIDED_SHARD;
  }
  return cuts;
}

/* A layout that cuts becomes a mesh of its ranks, which all have the tensor. */
static reshard_status replicate_scalar(rs_spec *spec, int64_t world) {
  int64_t n = spec->rank_count > 0 ? spec->rank_count : world;
  if (spec->kind != RESHARD_LAYOUT_CHUNK) {
    n = 1;
    for (int64_t i = 0; i < spec->extents.n; i++)
      n *= spec->extents.at[i]; /* no overflow: counted when it was read */
  }
  RS_TRY(rs_vec_reserve(&spec->extents, 1));
  RS_TRY(rs_vec_reserve(&spec->placements, 1));
  spec->kind = RESHARD_LAYOUT_MESH;
  spec->extents.at[0] = n;
  spec->placements.at[0] = (reshard_placement){.kind = RESHARD_PLACEMENT_REPLICATE};
  spec->extents.n = spec->placements.n = 1;
  spec->names.n = 0;
  free(spec->order.at);
  spec->order.at = NULL;
  spec->order.n = 0;
  return RESHARD_SUCCESS;
}

static reshard_status create_layout(const rs_scan *scan, rs_spec *spec, const int64_t *shape, int64_t world,
                                    reshard_layout *layout) {
  int64_t *ranks, n;
  RS_TRY(rs_spec_sizes(scan, spec, world));
  if (spec->scalar && cuts_tensor(spec))
    RS_TRY(replicate_scalar(spec, world));
  RS_TRY(rs_spec_expand(scan, spec, world, &ranks, &n));
  reshard_status status = RESHARD_ERROR_INTERNAL;
  switch (spec->kind) {
  case RESHARD_LAYOUT_CHUNK:
    status = reshard_layout_create_chunk(spec->ndim, shape, world, (int)spec->dim, n, ranks, layout);
    break;
  case RESHARD_LAYOUT_MESH: status = build_mesh(spec, shape, world, ranks, layout); break;
  case RESHARD_LAYOUT_CYCLIC:
    status = reshard_layout_create_cyclic(spec->ndim, shape, world, spec->extents.at, spec->blocks.at, ranks, layout);
    break;
  case RESHARD_LAYOUT_SINGLE:
    n = spec->pieces > 0 ? spec->piece / rs_ceil_div(spec->pieces, world) : spec->ranks.at[0].first;
    status = reshard_layout_create_single(spec->ndim, shape, world, n, layout);
    break;
  case RESHARD_LAYOUT_FLAT: status = reshard_layout_create_flat(spec->ndim, shape, world, n, ranks, layout); break;
  case RESHARD_LAYOUT_BOXES:
    status = reshard_layout_create_boxes(spec->ndim, shape, world, spec->boxes.n, spec->box_ranks.at, spec->boxes.at,
                                         spec->replicated, layout);
    break;
  case RESHARD_LAYOUT_KIND_COUNT: break;
  }
  free(ranks);
  return status == RESHARD_ERROR_INVALID ? rs_scan_whole(scan, status) : status;
}

void rs_spec_free(rs_spec *spec) {
  free(spec->ranks.at);
  free(spec->extents.at);
  free(spec->names.at);
  free(spec->placements.at);
  free(spec->parts.at);
  free(spec->order.at);
  free(spec->blocks.at);
  free(spec->box_ranks.at);
  free(spec->boxes.at);
}

static reshard_status parse_layout(const char *text, int ndim, const int64_t *shape, int64_t world, bool many,
                                   reshard_layout *layout) {
  if (text == NULL || layout == NULL || (ndim > 0 && shape == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_layout_parse: NULL argument");
  if (ndim < 0 || ndim > RESHARD_MAX_DIMS)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_layout_parse: %d dims, 0 to %d are allowed", ndim,
                    RESHARD_MAX_DIMS);
  if (world < 0)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_layout_parse: a world of %lld ranks", (long long)world);
  rs_scan scan = {.begin = text, .end = text + strlen(text), .at = text};
  rs_spec spec = {.ndim = ndim, .given = world, .scalar = many && ndim == 0};
  reshard_status status = rs_spec_parse(&scan, &spec);
  if (status == RESHARD_SUCCESS && world == 0 && spec.named == 0) {
    rs_error(RESHARD_ERROR_INVALID, "it names no ranks, and no world is given");
    status = rs_scan_whole(&scan, RESHARD_ERROR_INVALID);
  }
  RS_THEN(status, create_layout(&scan, &spec, shape, world > 0 ? world : spec.named, layout));
  rs_spec_free(&spec);
  return status;
}

reshard_status reshard_layout_parse(const char *text, int ndim, const int64_t *shape, int64_t world,
                                    reshard_layout *layout) {
  return parse_layout(text, ndim, shape, world, false, layout);
}

reshard_status rs_layout_parse_many(const char *text, int ndim, const int64_t *shape, int64_t world,
                                    reshard_layout *layout) {
  return parse_layout(text, ndim, shape, world, true, layout);
}

reshard_status reshard_layout_parse_world(const char *text, int64_t *world) {
  RS_TRY(RS_GIVEN("reshard_layout_parse_world", text, world));
  rs_scan scan = {.begin = text, .end = text + strlen(text), .at = text};
  rs_spec spec = {.ndim = -1};
  reshard_status status = rs_spec_parse(&scan, &spec);
  if (status == RESHARD_SUCCESS)
    *world = spec.named;
  rs_spec_free(&spec);
  return status;
}
