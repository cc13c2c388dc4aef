/* Parts of a DTensor: local shapes, boxes and metadata. */
#include "dtensor/group.h"

#include "metadata/group.h"

#include <stdlib.h>

/* Finds the first index and the number of indices of a rank's array, per dim; *boxes: its number of boxes. Where it has
 * no index of a dim the offset is the extent. */
static reshard_status find_box(reshard_layout layout, int64_t rank, reshard_box *box, int64_t *boxes) {
  reshard_array_info part;
  *box = (reshard_box){0};
  *boxes = 1;
  RS_TRY(reshard_layout_array(layout, rank, 0, &part));
  for (int d = 0; d < layout->ndim; d++) {
    reshard_interval first;
    int64_t n;
    RS_TRY(reshard_layout_array_intervals(layout, rank, 0, d, 0, 1, &first, &n));
    box->offset[d] = n > 0 ? first.begin : layout->shape[d];
    box->extent[d] = part.shape[d];
    *boxes *= rs_max(1, n);
  }
  return RESHARD_SUCCESS;
}

static reshard_status check_coordinate(reshard_mesh mesh, const int64_t *coordinate, int64_t *index) {
  *index = 0;
  for (int m = 0; m < mesh->ndim; m++) {
    if (coordinate[m] < 0 || coordinate[m] >= mesh->shape[m])
      return rs_error(RESHARD_ERROR_INVALID, "coordinate %lld in mesh dim %d of extent %lld", (long long)coordinate[m],
                      m, (long long)mesh->shape[m]);
    *index = *index * mesh->shape[m] + coordinate[m];
  }
  return RESHARD_SUCCESS;
}

/* Uses the index in the mesh alone, not its ranks. */
reshard_status reshard_dtensor_local_shape(const reshard_placing *placing, int ndim, const int64_t *shape,
                                           const int64_t *coordinate, int64_t *local_shape, int64_t *offset) {
  if (placing == NULL || placing->mesh == NULL || coordinate == NULL || (ndim > 0 && local_shape == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_dtensor_local_shape: NULL argument");
  reshard_mesh mesh = placing->mesh;
  reshard_layout layout;
  reshard_box box;
  int64_t index, boxes;
  RS_TRY(check_coordinate(mesh, coordinate, &index));
  RS_TRY(reshard_layout_create_mesh(ndim, shape, mesh->size, mesh->ndim, mesh->shape, NULL, placing->placements,
                                    placing->order, NULL, &layout));
  reshard_status status = rs_dtensor_check_parts("reshard_dtensor_local_shape", layout);
  RS_THEN(status, find_box(layout, index, &box, &boxes));
  reshard_layout_release(layout);
  for (int d = 0; d < ndim && status == RESHARD_SUCCESS; d++) {
    local_shape[d] = box.extent[d];
    if (offset != NULL)
      offset[d] = box.offset[d];
  }
  return status;
}

/* --- Boxes ------------------------------------------------------------------------------------------------------- */

static reshard_status rank_box(const char *call, reshard_dtensor t, int64_t rank, reshard_box *box) {
  reshard_box found;
  int64_t boxes;
  RS_TRY(find_box(t->local.layout, rank, &found, &boxes));
  if (boxes > 1)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the part of rank %lld is no box: it has %lld boxes", call,
                    (long long)rank, (long long)boxes);
  *box = found;
  return RESHARD_SUCCESS;
}

static reshard_status local_box(const char *call, reshard_dtensor tensor, const void *output, reshard_box *box) {
  char text[RS_MESH_TEXT];
  RS_TRY(RS_GIVEN(call, tensor, output));
  int64_t rank = tensor->sharder->comm->rank;
  if (!reshard_mesh_contains(tensor->mesh, RESHARD_MESH_MINE))
    return rs_error(RESHARD_ERROR_INVALID, "%s: rank %lld is outside of the mesh %s", call, (long long)rank,
                    rs_mesh_text(text, tensor->mesh));
  return rank_box(call, tensor, rank, box);
}

reshard_status reshard_dtensor_local_box(reshard_dtensor tensor, reshard_box *box) {
  return local_box("reshard_dtensor_local_box", tensor, box, box);
}

reshard_status reshard_dtensor_box_for(reshard_dtensor tensor, int64_t i, reshard_box *box) {
  static const char call[] = "reshard_dtensor_box_for";
  char text[RS_MESH_TEXT];
  RS_TRY(RS_GIVEN(call, tensor, box));
  reshard_mesh mesh = tensor->mesh;
  if (i < 0 || i >= mesh->size)
    return rs_error(RESHARD_ERROR_INVALID, "%s: part %lld, the mesh %s has %lld ranks", call, (long long)i,
                    rs_mesh_text(text, mesh), (long long)mesh->size);
  return rank_box(call, tensor, rs_dtensor_rank_at(tensor, i), box);
}

/* --- Metadata ---------------------------------------------------------------------------------------------------- */

reshard_status reshard_dtensor_shard_metadata(reshard_dtensor tensor, reshard_shard *shard) {
  reshard_shard made = {.placement = {.index = -1}};
  RS_TRY(local_box("reshard_dtensor_shard_metadata", tensor, shard, &made.box));
  made.placement.type = tensor->sharder->comm->device->type;
  made.placement.rank = rs_group_at(&tensor->sharder->group, tensor->sharder->comm->rank);
  *shard = made;
  return RESHARD_SUCCESS;
}

/* lowest[r]: rank r is the lowest of those that have its part. */
static reshard_status find_lowest(const struct reshard_layout_s *l, bool *lowest) {
  rs_holder *holders;
  RS_TRY(rs_alloc(&holders, l->replicas, sizeof *holders));
  for (int64_t cell = 0; cell < l->cells; cell++)
    lowest[rs_layout_holders(l, cell, holders)->rank] = true;
  free(holders);
  return RESHARD_SUCCESS;
}

/* Selects the shards of those ranks; their placements get global ranks. */
static reshard_status select_shards(reshard_dtensor t, reshard_metadata all, const bool *lowest,
                                    reshard_metadata *metadata) {
  reshard_metadata made;
  int64_t n = 0;
  for (int64_t i = 0; i < all->n; i++)
    n += lowest[all->shards[i].placement.rank];
  RS_TRY(rs_metadata_new(&t->properties, all->ndim, all->shape, n, &made));
  n = 0;
  for (int64_t i = 0; i < all->n; i++)
    if (lowest[all->shards[i].placement.rank]) {
      made->shards[n] = all->shards[i];
      made->shards[n++].placement.rank = rs_group_at(&t->sharder->group, all->shards[i].placement.rank);
    }
  *metadata = made;
  return RESHARD_SUCCESS;
}

reshard_status reshard_dtensor_metadata(reshard_dtensor tensor, reshard_metadata *metadata) {
  RS_TRY(RS_GIVEN("reshard_dtensor_metadata", tensor, metadata));
  const struct reshard_layout_s *l = tensor->local.layout;
  reshard_metadata all;
  bool *lowest;
  RS_TRY(rs_alloc_zero(&lowest, l->world, sizeof *lowest));
  reshard_status status = find_lowest(l, lowest);
  RS_THEN(status, rs_metadata_from_layout(&tensor->properties, tensor->local.layout, NULL, NULL,
                                          tensor->sharder->comm->device->type, &all));
  if (status == RESHARD_SUCCESS) {
    status = select_shards(tensor, all, lowest, metadata);
    reshard_metadata_release(all);
  }
  free(lowest);
  return status;
}

static bool is_elsewhere(const reshard_shard *s, reshard_tensor tensor, int64_t global_rank) {
  return s->placement.rank == global_rank && !rs_placement_fits(&s->placement, &tensor->info);
}

reshard_status reshard_metadata_rewrite(reshard_metadata metadata, reshard_tensor tensor, int64_t global_rank,
                                        reshard_metadata *rewritten) {
  RS_TRY(RS_GIVEN("reshard_metadata_rewrite", metadata, tensor, rewritten));
  int64_t i = 0;
  while (i < metadata->n && !is_elsewhere(&metadata->shards[i], tensor, global_rank))
    i++;
  if (i == metadata->n) {
    *rewritten = reshard_metadata_retain(metadata);
    return RESHARD_SUCCESS;
  }
  reshard_metadata made;
  RS_TRY(reshard_metadata_create(&metadata->properties, metadata->ndim, metadata->shape, metadata->n, metadata->shards,
                                 &made));
  for (; i < made->n; i++)
    if (is_elsewhere(&made->shards[i], tensor, global_rank))
      made->shards[i].placement = rs_placement_of(global_rank, &tensor->info);
  *rewritten = made;
  return RESHARD_SUCCESS;
}
