/* Parameters cut by FSDP, within the cuts of tensor parallelism, as sharded tensors.
 *
 * Every rank of an FSDP group has the same part of a parameter: the whole of it, or the part that TP gave its column of
 * the mesh. A chunk is therefore a copy of some of its own rows. The part is distributed over FSDP's row of the mesh,
 * as a DTensor with Shard(0), for which nothing is sent. Then the chunk becomes a shard of a sharded tensor, which is a
 * shard of the outer one in turn. chunk_dtensor.c makes chunks that are DTensors. */
#include "fsdp/fsdp.h"

#include "comm/gather.h"
#include "mesh/mesh.h"
#include "metadata/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const reshard_placement shard0 = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};

/* Copies this rank's part of a tensor that all ranks of the mesh have, without gradient. */
static reshard_status copy_part(reshard_sharder sharder, reshard_mesh mesh, const reshard_placement *placements,
                                reshard_tensor tensor, void *stream, reshard_dtensor *part) {
  const reshard_tensor_info *info = &tensor->info;
  const reshard_placing placing = {mesh, placements, NULL};
  const reshard_properties properties = {.dtype = info->dtype, .pin_memory = info->pin_memory};
  return reshard_dtensor_distribute(sharder, &placing, tensor, -1, info->ndim, info->shape, &properties, stream, part);
}

/* --- Sharded tensors ---------------------------------------------------------------------------------------------- */

/* Lists the placements of the chunks of n rows: as many as there are chunks, at least one. The tensor is on the group's
 * kind of device, and only GPUs are numbered. */
static reshard_status list_placements(const reshard_fsdp_group *group, int64_t n, int64_t *chunks,
                                      reshard_remote_device **placements) {
  const reshard_group *ranks = &group->sharder->group;
  reshard_device_type type = group->sharder->comm->device->type;
  int64_t split = rs_ceil_div(n, ranks->n);
  int64_t devices = type == RESHARD_DEVICE_CUDA ? group->devices_per_node : 0;
  *chunks = split > 0 ? rs_ceil_div(n, split) : 1;
  RS_TRY(rs_alloc(placements, *chunks, sizeof **placements));
  for (int64_t i = 0; i < *chunks; i++) {
    int64_t global = rs_group_at(ranks, i);
    (*placements)[i] = (reshard_remote_device){global, type, devices > 0 ? (int)(global % devices) : -1};
  }
  return RESHARD_SUCCESS;
}

/* Makes a sharded tensor of this rank's chunk, if it has one. */
static reshard_status wrap_chunk(const reshard_fsdp_group *group, reshard_tensor whole, reshard_tensor chunk,
                                 reshard_sharded_tensor *sharded) {
  const reshard_tensor_info *info = &whole->info;
  const reshard_properties properties = {.dtype = info->dtype, .pin_memory = info->pin_memory};
  reshard_remote_device *placements;
  reshard_metadata metadata;
  int64_t chunks;
  RS_TRY(list_placements(group, info->shape[0], &chunks, &placements));
  reshard_status status =
      reshard_metadata_from_chunk(&properties, info->ndim, info->shape, 0, chunks, placements, &metadata);
  free(placements);
  RS_TRY(status);
  status = reshard_sharded_tensor_from_metadata(group->sharder, metadata, group->sharder->comm->rank < chunks, &chunk,
                                                sharded);
  reshard_metadata_release(metadata);
  return status;
}

static reshard_status chunk_whole(const reshard_fsdp_group *group, reshard_tensor whole, void *stream,
                                  reshard_tree *chunk) {
  const int64_t size = group->sharder->comm->size;
  reshard_mesh mesh;
  reshard_dtensor rows;
  reshard_sharded_tensor sharded;
  if (whole->info.ndim == 0)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_fsdp_chunk_tensor: a scalar has no dim 0 to cut");
  RS_TRY(reshard_mesh_create(group->sharder->comm, 0, 1, &size, NULL, 0, NULL, &mesh));
  reshard_status status = copy_part(group->sharder, mesh, &shard0, whole, stream, &rows);
  reshard_mesh_release(mesh);
  RS_TRY(status);
  status = wrap_chunk(group, whole, reshard_dtensor_local(rows), &sharded);
  reshard_dtensor_release(rows);
  RS_TRY(status);
  return rs_sharded_leaf(sharded, chunk);
}

/* --- Nested ones -------------------------------------------------------------------------------------------------- */

/* Finds the one local shard, and its entry of the metadata. */
static reshard_status find_only_shard(reshard_sharded_tensor outer, void *stream, reshard_tensor *local,
                                      const reshard_shard **shard) {
  int64_t rank = rs_group_at(&outer->sharder->group, outer->sharder->comm->rank), boxes = 0;
  reshard_metadata m = rs_sharded_holders(outer);
  for (int64_t i = 0; i < m->n; i++)
    if (m->shards[i].placement.rank == rank) {
      *shard = &m->shards[i];
      boxes++;
    }
  if (outer->local.n != 1)
    return rs_error(RESHARD_ERROR_INVALID,
                    "reshard_fsdp_chunk_tensor: the sharded tensor has %lld local shards, one is needed",
                    (long long)outer->local.n);
  if (boxes != 1)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_fsdp_chunk_tensor: the local shard is %lld boxes, one is needed",
                    (long long)boxes);
  *local = reshard_tensor_retain(outer->local.arrays[0]);
  return *local != NULL ? RESHARD_SUCCESS
                        : reshard_tensor_create_on(outer->sharder->device, m->properties.dtype, m->ndim,
                                                   (*shard)->box.extent, stream, local);
}

/* Checks that the sharder of the nested tensor has every rank of the group. */
static reshard_status check_world(const reshard_group *group, reshard_sharder world) {
  rs_group_map map;
  reshard_status status = rs_group_map_create(&world->group, &map);
  RS_TRY(status);
  for (int64_t i = 0, rank; i < group->n && status == RESHARD_SUCCESS; i++)
    if (rs_group_map_find(&map, rs_group_at(group, i), &rank) != RESHARD_SUCCESS)
      status = rs_error(RESHARD_ERROR_INVALID,
                        "reshard_fsdp_chunk_tensor: rank %lld of the group is not one of the sharder that the nested "
                        "tensor is of: give a `world`",
                        (long long)rs_group_at(group, i));
  rs_group_map_free(&map);
  return status;
}

static reshard_status make_nested(const reshard_fsdp_group *group, reshard_sharded_tensor outer,
                                  const reshard_shard *shard, reshard_tree inner, reshard_tree *chunk) {
  reshard_metadata m = rs_sharded_holders(outer), without;
  reshard_properties properties = m->properties;
  reshard_sharder world = group->world != NULL ? group->world : outer->sharder;
  properties.requires_grad = 0;
  RS_TRY(check_world(&group->sharder->group, world));
  RS_TRY(reshard_metadata_create(&properties, m->ndim, m->shape, m->n, m->shards, &without));
  reshard_status status = reshard_state_nested(world, without, 1, shard, &inner, chunk);
  reshard_metadata_release(without);
  return status;
}

static reshard_status chunk_outer(const reshard_fsdp_group *group, reshard_sharded_tensor outer, void *stream,
                                  reshard_tree *chunk) {
  reshard_tensor local = NULL;
  const reshard_shard *shard = NULL;
  reshard_tree inner;
  RS_TRY(find_only_shard(outer, stream, &local, &shard));
  reshard_status status = chunk_whole(group, local, stream, &inner);
  reshard_tensor_release(local);
  RS_TRY(status);
  status = make_nested(group, outer, shard, inner, chunk);
  reshard_tree_release(inner);
  return status;
}

/* --- chunk_tensor ------------------------------------------------------------------------------------------------- */

static reshard_status chunk_leaf(reshard_tree leaf, const reshard_fsdp_group *group, void *stream,
                                 reshard_tree *chunk) {
  static const char call[] = "reshard_fsdp_chunk_tensor";
  if (group->devices_per_node < 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld devices per node, 0 is the least", call,
                    (long long)group->devices_per_node);
  if (reshard_tree_get_kind(leaf) == RESHARD_TREE_TENSOR)
    return chunk_whole(group, leaf->tensor, stream, chunk);
  if (rs_leaf_sharded(leaf) != NULL)
    return chunk_outer(group, rs_leaf_sharded(leaf), stream, chunk);
  reshard_dtensor tensor = rs_leaf_dtensor(leaf);
  if (tensor == NULL)
    return rs_fsdp_error_leaf(call, leaf, "a tensor, a sharded tensor or a DTensor");
  reshard_mesh mesh = reshard_dtensor_mesh(tensor);
  char text[RS_MESH_TEXT];
  if (reshard_mesh_ndim(mesh) != 1)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the DTensor is on the mesh %s of %d dims, one of 1 is needed", call,
                    rs_mesh_text(text, mesh), reshard_mesh_ndim(mesh));
  reshard_fsdp_group whole = *group; /* a sub-mesh's sharder is no world */
  whole.world = group->world != NULL ? group->world : tensor->given;
  group = &whole;
  reshard_sharded_tensor outer = reshard_dtensor_sharded(tensor);
  return outer != NULL ? chunk_outer(group, outer, stream, chunk) : RESHARD_ERROR_OUT_OF_MEMORY; /* of what: the text */
}

/* The sharded tensor that was cut, as the ranks of a group compare it. */
typedef struct cut {
  int64_t dtype, ndim, shape[RESHARD_MAX_DIMS], pin_memory, devices_per_node;
} cut;

/* Error of the first field in which two ranks' cuts differ. */
static reshard_status error_cuts_differ(int64_t rank, const cut *a, const cut *b) {
  char values[2][RS_SHAPE_TEXT];
  const cut *of[2] = {a, b};
  bool shape = !rs_shape_equal(a->ndim, a->shape, b->ndim, b->shape), dtype = a->dtype != b->dtype;
  bool pinned = a->pin_memory != b->pin_memory;
  for (int i = 0; i < 2; i++)
    if (shape)
      rs_list_text(values[i], sizeof values[i], of[i]->ndim, of[i]->shape);
    else if (dtype)
      snprintf(values[i], sizeof values[i], "%s", reshard_dtype_string((reshard_dtype)of[i]->dtype));
    else
      snprintf(values[i], sizeof values[i], "%lld", (long long)(pinned ? of[i]->pin_memory : of[i]->devices_per_node));
  (void)rs_error_differ(shape    ? "shape"
                        : dtype  ? "dtype"
                        : pinned ? "pin_memory"
                                 : "devices_per_node",
                        0, values[0], rank, values[1]);
  return rs_error(RESHARD_ERROR_MISMATCH, "reshard_fsdp_chunk_tensor: %s, of the FSDP group", reshard_last_error());
}

static cut make_cut(const reshard_fsdp_group *group, reshard_tree chunk) {
  const rs_nested *nested = rs_leaf_nested(chunk);
  reshard_metadata m = rs_leaf_sharded(nested != NULL ? nested->inner[0] : chunk)->metadata;
  cut c = {.dtype = m->properties.dtype, .ndim = m->ndim, .pin_memory = m->properties.pin_memory};
  c.devices_per_node = group->devices_per_node;
  memcpy(c.shape, m->shape, (size_t)m->ndim * sizeof *c.shape);
  return c;
}

/* Collective: compares the cuts of all ranks of the group. */
static reshard_status compare_cuts(const reshard_fsdp_group *group, reshard_status mine, reshard_tree chunk) {
  reshard_comm comm = group->sharder->comm;
  cut c = {0};
  rs_strings *all;
  if (mine == RESHARD_SUCCESS)
    c = make_cut(group, chunk);
  RS_TRY(rs_comm_gather_bytes(comm, mine, &c, sizeof c, &all));
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t r = 1; r < all->n && status == RESHARD_SUCCESS; r++) {
    cut first, other;
    memcpy(&first, all->bytes + all->first[0], sizeof first);
    memcpy(&other, all->bytes + all->first[r], sizeof other);
    if (memcmp(&first, &other, sizeof first) != 0)
      status = error_cuts_differ(r, &first, &other);
  }
  rs_strings_release(all);
  return status;
}

reshard_status reshard_fsdp_chunk_tensor(reshard_tree leaf, const reshard_fsdp_group *group, void *stream,
                                         reshard_tree *chunk) {
  static const char call[] = "reshard_fsdp_chunk_tensor";
  RS_TRY(RS_GIVEN(call, group));
  if (group->size != sizeof *group)
    return rs_error(RESHARD_ERROR_INVALID, "%s: size field %zu, this library's reshard_fsdp_group has %zu", call,
                    group->size, sizeof *group);
  if (group->sharder == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the group's sharder is NULL", call);
  reshard_tree made = NULL;
  reshard_status status = chunk != NULL ? chunk_leaf(leaf, group, stream, &made) : rs_error_null(call, "chunk");
  RS_TRY_OR(compare_cuts(group, status, made), reshard_tree_release(made));
  *chunk = made;
  return RESHARD_SUCCESS;
}
