/* Metadata from a layout, and a layout from metadata. */
#include "metadata/group.h"

#include "layout/layout.h"

#include <stdlib.h>

typedef struct metadata_builder {
  const struct reshard_layout_s *layout;
  reshard_device_type type;        /* of ranks of which no more is known */
  reshard_remote_device placement; /* of the rank whose boxes are added */
  rs_pieces pieces[RESHARD_MAX_DIMS];
  RS_VEC(reshard_shard) shards;
} metadata_builder;

/* A box: one piece per dim, or none. */
static reshard_status add_box(metadata_builder *b, const int64_t *piece) {
  const struct reshard_layout_s *l = b->layout;
  RS_TRY(rs_vec_reserve(&b->shards, b->shards.n + 1));
  reshard_shard *s = &b->shards.at[b->shards.n++];
  *s = (reshard_shard){.placement = b->placement};
  for (int d = 0; d < l->ndim; d++) {
    bool some = b->pieces[d].n > 0;
    s->box.offset[d] = some ? b->pieces[d].at[piece[d]].begin : l->shape[d];
    s->box.extent[d] = some ? b->pieces[d].at[piece[d]].n : 0;
  }
  return RESHARD_SUCCESS;
}

/* The array of a regular layout: the product of its pieces, row-major; one box where it has no element. */
static reshard_status add_product(metadata_builder *b, int64_t cell) {
  const struct reshard_layout_s *l = b->layout;
  int64_t piece[RESHARD_MAX_DIMS] = {0};
  bool empty = false;
  for (int d = 0; d < l->ndim; d++) {
    b->pieces[d].n = 0;
    RS_TRY(rs_layout_pieces(l, cell, d, 0, l->shape[d], &b->pieces[d]));
    empty |= b->pieces[d].n == 0;
  }
  for (;;) {
    RS_TRY(add_box(b, piece));
    int d = l->ndim - 1;
    for (; d >= 0 && ++piece[d] == b->pieces[d].n; d--)
      piece[d] = 0;
    if (d < 0 || empty)
      return RESHARD_SUCCESS;
  }
}

/* Copies the boxes of a boxes or flat layout: an empty one keeps its offset. */
static reshard_status add_cell(metadata_builder *b, int64_t cell) {
  int64_t lo[RESHARD_MAX_DIMS], hi[RESHARD_MAX_DIMS];
  RS_TRY(rs_vec_reserve(&b->shards, b->shards.n + 1));
  reshard_shard *s = &b->shards.at[b->shards.n++];
  *s = (reshard_shard){.placement = b->placement};
  rs_layout_cell_box(b->layout, cell, lo, hi);
  for (int d = 0; d < b->layout->ndim; d++) {
    s->box.offset[d] = lo[d];
    s->box.extent[d] = hi[d] - lo[d];
  }
  return RESHARD_SUCCESS;
}

static reshard_status add_ranks(metadata_builder *b, const reshard_group *group, const reshard_remote_device *devices) {
  const struct reshard_layout_s *l = b->layout;
  for (int64_t rank = 0; rank < l->world; rank++) {
    b->placement = devices != NULL ? devices[rank] : (reshard_remote_device){.type = b->type, .index = -1};
    b->placement.rank = rs_group_at(group, rank);
    int64_t arrays = rs_layout_arrays(l, rank);
    for (int64_t a = 0; a < arrays; a++) {
      int64_t cell = rs_layout_cell(l, rank, a);
      RS_TRY(rs_layout_regular(l) ? add_product(b, cell) : add_cell(b, cell));
    }
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_metadata_from_layout(const reshard_properties *properties, reshard_layout layout,
                                       const reshard_group *group, const reshard_remote_device *devices,
                                       reshard_device_type type, reshard_metadata *metadata) {
  RS_TRY(RS_GIVEN("reshard_metadata_from_layout", layout, metadata));
  if (group != NULL && group->n != layout->world)
    return rs_error(RESHARD_ERROR_INVALID, "a group of %lld ranks, the layout's world has %lld", (long long)group->n,
                    (long long)layout->world);
  if (group != NULL)
    RS_TRY(rs_group_check(group));
  metadata_builder b = {.layout = layout, .type = type};
  reshard_status status = add_ranks(&b, group, devices);
  RS_THEN(status, reshard_metadata_create(properties, layout->ndim, layout->shape, b.shards.n, b.shards.at, metadata));
  for (int d = 0; d < layout->ndim; d++)
    free(b.pieces[d].at);
  free(b.shards.at);
  return status;
}

reshard_status reshard_metadata_from_layout(const reshard_properties *properties, reshard_layout layout,
                                            const reshard_group *group, const reshard_remote_device *devices,
                                            reshard_metadata *metadata) {
  return rs_metadata_from_layout(properties, layout, group, devices, RESHARD_DEVICE_CPU, metadata);
}

reshard_status reshard_metadata_layout(reshard_metadata metadata, const reshard_group *group, int replicated,
                                       reshard_layout *layout) {
  RS_TRY(RS_GIVEN("reshard_metadata_layout", metadata, group, layout));
  char text[RS_PLACEMENT_TEXT];
  rs_group_map map = {0};
  int64_t *ranks = NULL;
  reshard_box *boxes = NULL;
  RS_TRY(rs_group_map_create(group, &map));
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&ranks, metadata->n, sizeof *ranks), done);
  RS_TRY_GOTO(status, rs_alloc(&boxes, metadata->n, sizeof *boxes), done);
  for (int64_t i = 0; i < metadata->n; i++) {
    const reshard_shard *s = &metadata->shards[i];
    boxes[i] = s->box;
    if (s->placement.rank < 0) {
      status = rs_error(RESHARD_ERROR_INVALID, "shard %lld is placed on %s, without a rank", (long long)i,
                        rs_placement_text(text, &s->placement));
      goto done;
    }
    RS_TRY_GOTO(status, rs_group_map_find(&map, s->placement.rank, &ranks[i]), done);
  }
  status = reshard_layout_create_boxes(metadata->ndim, metadata->shape, group->n, metadata->n, ranks, boxes, replicated,
                                       layout);
done:
  rs_group_map_free(&map);
  free(ranks);
  free(boxes);
  return status;
}
