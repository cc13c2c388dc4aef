/* Parameters cut by FSDP, within what tensor parallelism has cut, and gathered again.
 *
 * Every rank of an FSDP group has the same part of a parameter: the whole of it, or the part that TP gave its column of
 * the mesh. A chunk is therefore a copy of some of its own rows: the part is distributed over the row of the mesh that
 * FSDP cuts over, as a DTensor with Shard(0), for which nothing is sent. What differs is what the chunk is said to be:
 * a shard of a sharded tensor, which is a shard of the outer one in turn; or the local tensor of a DTensor over both
 * dims of the mesh, TP first in the order of cutting. All-gather is a redistribute. */
#include "fsdp/fsdp.h"

#include "comm/gather.h"
#include "mesh/mesh.h"
#include "metadata/metadata.h"

#include <stdlib.h>
#include <string.h>

static const reshard_placement shard0 = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};
static const reshard_placement replicate = {.kind = RESHARD_PLACEMENT_REPLICATE};

/* A copy of what this rank gets of a tensor that all ranks of the mesh have, without gradient. */
static reshard_status keep_part(reshard_sharder sharder, reshard_mesh mesh, const reshard_placement *placements,
                                reshard_tensor tensor, void *stream, reshard_dtensor *part) {
  const reshard_tensor_info *info = &tensor->info;
  const reshard_placing placing = {mesh, placements, NULL};
  const reshard_properties properties = {.dtype = info->dtype, .pin_memory = info->pin_memory};
  return reshard_dtensor_distribute(sharder, &placing, tensor, -1, info->ndim, info->shape, &properties, stream, part);
}

/* --- Sharded tensors ---------------------------------------------------------------------------------------------- */

/* Where the chunks of n rows are: as many placements as there are chunks, at least one. */
static reshard_status place_chunks(const reshard_fsdp_group *group, int64_t n, int64_t *chunks,
                                   reshard_remote_device **placements) {
  const reshard_group *ranks = &group->sharder->group;
  int64_t split = rs_ceil_div(n, ranks->n), devices = group->devices_per_node;
  *chunks = split > 0 ? rs_ceil_div(n, split) : 1;
  RS_TRY(rs_alloc(placements, *chunks, sizeof **placements));
  for (int64_t i = 0; i < *chunks; i++) {
    int64_t global = rs_group_at(ranks, i);
    (*placements)[i] = devices > 0 ? (reshard_remote_device){global, RESHARD_DEVICE_CUDA, (int)(global % devices)}
                                   : (reshard_remote_device){global, group->sharder->comm->device->type, -1};
  }
  return RESHARD_SUCCESS;
}

/* A sharded tensor of this rank's chunk, if it has one. */
static reshard_status wrap_chunk(const reshard_fsdp_group *group, reshard_tensor whole, reshard_tensor chunk,
                                 reshard_sharded_tensor *sharded) {
  const reshard_tensor_info *info = &whole->info;
  const reshard_properties properties = {.dtype = info->dtype, .pin_memory = info->pin_memory};
  reshard_remote_device *placements;
  reshard_metadata metadata;
  int64_t chunks;
  RS_TRY(place_chunks(group, info->shape[0], &chunks, &placements));
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
  reshard_status status = keep_part(group->sharder, mesh, &shard0, whole, stream, &rows);
  reshard_mesh_release(mesh);
  RS_TRY(status);
  status = wrap_chunk(group, whole, reshard_dtensor_local(rows), &sharded);
  reshard_dtensor_release(rows);
  RS_TRY(status);
  return rs_fsdp_take_sharded(sharded, chunk);
}

/* --- Nested ones -------------------------------------------------------------------------------------------------- */

/* The one shard that is here, and its entry of the metadata. */
static reshard_status only_shard(reshard_sharded_tensor outer, void *stream, reshard_tensor *local,
                                 const reshard_shard **shard) {
  int64_t rank = rs_group_at(&outer->sharder->group, outer->sharder->comm->rank), boxes = 0;
  reshard_metadata m = rs_sharded_holders(outer);
  for (int64_t i = 0; i < m->n; i++)
    if (m->shards[i].placement.rank == rank) {
      *shard = &m->shards[i];
      boxes++;
    }
  if (outer->held.n != 1)
    return rs_error(RESHARD_ERROR_INVALID,
                    "reshard_fsdp_chunk_tensor: the sharded tensor has %lld local shards, one is needed",
                    (long long)outer->held.n);
  if (boxes != 1)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_fsdp_chunk_tensor: the local shard is %lld boxes, one is needed",
                    (long long)boxes);
  *local = reshard_tensor_retain(outer->held.arrays[0]);
  return *local != NULL ? RESHARD_SUCCESS
                        : reshard_tensor_create_on(outer->sharder->device, m->properties.dtype, m->ndim,
                                                   (*shard)->box.extent, stream, local);
}

/* The sharder of the nested tensor has every rank of the group? */
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

static reshard_status nest(const reshard_fsdp_group *group, reshard_sharded_tensor outer, const reshard_shard *shard,
                           reshard_tree inner, reshard_tree *chunk) {
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
  RS_TRY(only_shard(outer, stream, &local, &shard));
  reshard_status status = chunk_whole(group, local, stream, &inner);
  reshard_tensor_release(local);
  RS_TRY(status);
  status = nest(group, outer, shard, inner, chunk);
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
    return rs_fsdp_wrong_leaf(call, leaf, "a tensor, a sharded tensor or a DTensor");
  reshard_mesh mesh = reshard_dtensor_mesh(tensor);
  char text[RS_MESH_TEXT];
  if (reshard_mesh_ndim(mesh) != 1)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the DTensor is on the mesh %s of %d dims, one of 1 is needed", call,
                    rs_mesh_text(text, mesh), reshard_mesh_ndim(mesh));
  reshard_sharded_tensor outer = reshard_dtensor_sharded(tensor);
  return outer != NULL ? chunk_outer(group, outer, stream, chunk) : RESHARD_ERROR_OUT_OF_MEMORY; /* of what: the text */
}

/* What the ranks of a group compare: the sharded tensor that was cut. */
typedef struct cut {
  int64_t dtype, ndim, shape[RESHARD_MAX_DIMS], pin_memory, devices_per_node;
} cut;

static const char *cut_text(char text[RS_SHAPE_TEXT + 96], const cut *c) {
  char shape[RS_SHAPE_TEXT];
  rs_text_add(&(rs_text){text, RS_SHAPE_TEXT + 96, 0}, "%s %s, pin_memory %lld, %lld devices per node",
              reshard_dtype_string((reshard_dtype)c->dtype), rs_shape_text(shape, (int)c->ndim, c->shape),
              (long long)c->pin_memory, (long long)c->devices_per_node);
  return text;
}

static cut describe(const reshard_fsdp_group *group, reshard_tree chunk) {
  const rs_nested *nested = rs_leaf_nested(chunk);
  reshard_metadata m = rs_leaf_sharded(nested != NULL ? nested->inner[0] : chunk)->metadata;
  cut c = {.dtype = m->properties.dtype, .ndim = m->ndim, .pin_memory = m->properties.pin_memory};
  c.devices_per_node = group->devices_per_node;
  memcpy(c.shape, m->shape, (size_t)m->ndim * sizeof *c.shape);
  return c;
}

/* Collective: did all ranks of the group cut alike? */
static reshard_status compare(const reshard_fsdp_group *group, reshard_status mine, reshard_tree chunk) {
  reshard_comm comm = group->sharder->comm;
  cut c = {0};
  rs_strings *all;
  if (mine == RESHARD_SUCCESS)
    c = describe(group, chunk);
  RS_TRY(rs_comm_gather_bytes(comm, mine, &c, sizeof c, &all));
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t r = 1; r < all->n && status == RESHARD_SUCCESS; r++) {
    cut first, other;
    char a[RS_SHAPE_TEXT + 96], b[RS_SHAPE_TEXT + 96];
    memcpy(&first, all->bytes + all->first[0], sizeof first);
    memcpy(&other, all->bytes + all->first[r], sizeof other);
    if (memcmp(&first, &other, sizeof first) != 0)
      status = rs_error(RESHARD_ERROR_MISMATCH, "ranks 0 and %lld of the FSDP group chunk different tensors: %s; %s",
                        (long long)r, cut_text(a, &first), cut_text(b, &other));
  }
  rs_strings_release(all);
  return status;
}

reshard_status reshard_fsdp_chunk_tensor(reshard_tree leaf, const reshard_fsdp_group *group, void *stream,
                                         reshard_tree *chunk) {
  static const char call[] = "reshard_fsdp_chunk_tensor";
  if (group == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: group is NULL", call);
  if (group->size != sizeof *group)
    return rs_error(RESHARD_ERROR_INVALID, "%s: size field %zu, this library's reshard_fsdp_group has %zu", call,
                    group->size, sizeof *group);
  if (group->sharder == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the group's sharder is NULL", call);
  reshard_tree made = NULL;
  reshard_status status = chunk != NULL ? chunk_leaf(leaf, group, stream, &made)
                                        : rs_error(RESHARD_ERROR_INVALID, "%s: chunk is NULL", call);
  status = compare(group, status, made);
  if (status == RESHARD_SUCCESS)
    *chunk = made;
  else
    reshard_tree_release(made);
  return status;
}

/* --- chunk_dtensor ------------------------------------------------------------------------------------------------ */

/* Is it on the last dim of the parent mesh, where this rank is? */
static reshard_status check_tp(reshard_dtensor tensor, reshard_mesh parent) {
  char has[RS_MESH_TEXT], wanted[RS_MESH_TEXT], whole[RS_MESH_TEXT];
  reshard_mesh tp, mesh = reshard_dtensor_mesh(tensor);
  RS_TRY(reshard_mesh_sub(parent, "-1", RESHARD_MESH_MINE, &tp));
  reshard_status status = RESHARD_SUCCESS;
  if (!reshard_mesh_equal(mesh, tp))
    status = rs_error(RESHARD_ERROR_INVALID,
                      "reshard_fsdp_chunk_dtensor: the DTensor is on the mesh %s, the last dim of the parent mesh %s "
                      "is %s here",
                      rs_mesh_text(has, mesh), rs_mesh_text(whole, parent), rs_mesh_text(wanted, tp));
  reshard_mesh_release(tp);
  return status;
}

/* The rows that FSDP leaves this rank of what TP has given it. In the order of cutting TP comes first, which matters
 * where both cut dim 0. */
static reshard_status chunk_tp(reshard_sharder sharder, reshard_dtensor tensor, reshard_mesh parent,
                               reshard_placement *placements, void *stream, reshard_dtensor *chunk) {
  int ndim = reshard_mesh_ndim(parent), order[RESHARD_MAX_DIMS];
  reshard_mesh fsdp;
  reshard_dtensor rows;
  RS_TRY(check_tp(tensor, parent));
  placements[ndim - 1] = reshard_dtensor_placements(tensor)[0];
  bool both = placements[ndim - 1].kind != RESHARD_PLACEMENT_REPLICATE && placements[ndim - 1].dim == 0;
  for (int d = 0; d < ndim; d++)
    order[d] = d > 0 ? d - 1 : ndim - 1;
  const reshard_placing placing = {parent, placements, both ? order : NULL};
  RS_TRY(reshard_mesh_sub(parent, "-2", RESHARD_MESH_MINE, &fsdp));
  reshard_status status = keep_part(sharder, fsdp, &shard0, reshard_dtensor_local(tensor), stream, &rows);
  reshard_mesh_release(fsdp);
  RS_TRY(status);
  status = reshard_dtensor_from_local(sharder, &placing, reshard_dtensor_local(rows), reshard_dtensor_ndim(tensor),
                                      reshard_dtensor_shape(tensor), 0, chunk);
  reshard_dtensor_release(rows);
  return status;
}

reshard_status reshard_fsdp_chunk_dtensor(reshard_sharder sharder, reshard_tree leaf, reshard_mesh mesh, void *stream,
                                          reshard_tree *chunk) {
  static const char call[] = "reshard_fsdp_chunk_dtensor";
  if (sharder == NULL || mesh == NULL || chunk == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s is NULL", call,
                    sharder == NULL ? "sharder"
                    : mesh == NULL  ? "mesh"
                                    : "chunk");
  reshard_mesh parent = reshard_mesh_ndim(mesh) == 1 ? reshard_mesh_root(mesh) : mesh;
  reshard_placement placements[RESHARD_MAX_DIMS];
  reshard_dtensor made;
  char text[RS_MESH_TEXT];
  int ndim = reshard_mesh_ndim(parent);
  if (ndim < 2)
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: the parent mesh %s has %d dim, FSDP with tensor parallelism has 2 or more", call,
                    rs_mesh_text(text, parent), ndim);
  for (int d = 0; d < ndim; d++)
    placements[d] = d == ndim - 2 ? shard0 : replicate;
  if (rs_leaf_dtensor(leaf) != NULL)
    RS_TRY(chunk_tp(sharder, rs_leaf_dtensor(leaf), parent, placements, stream, &made));
  else if (reshard_tree_get_kind(leaf) == RESHARD_TREE_TENSOR)
    RS_TRY(keep_part(sharder, parent, placements, leaf->tensor, stream, &made));
  else
    return rs_fsdp_wrong_leaf(call, leaf, "a tensor or a DTensor");
  return rs_fsdp_take_dtensor(made, chunk);
}

/* --- all_gather_dtensor ------------------------------------------------------------------------------------------- */

/* Everything that can fail on this rank alone is done before the ranks meet: the leaf is made with the local tensor as
 * it is, for which the gathered one comes. */
static reshard_status prepare_gather(reshard_sharder sharder, reshard_tree leaf, reshard_mesh parent,
                                     const reshard_tree *whole, reshard_tree *made) {
  static const char call[] = "reshard_fsdp_all_gather";
  char has[RS_MESH_TEXT], given[RS_MESH_TEXT];
  if (whole == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: whole is NULL", call);
  reshard_dtensor tensor = rs_leaf_dtensor(leaf);
  if (tensor == NULL)
    return rs_fsdp_wrong_leaf(call, leaf, "a DTensor");
  reshard_mesh mesh = reshard_dtensor_mesh(tensor);
  if (parent != NULL && !reshard_mesh_equal(parent, mesh))
    return rs_error(RESHARD_ERROR_INVALID, "%s: the DTensor is on the mesh %s, not on the parent mesh %s", call,
                    rs_mesh_text(has, mesh), rs_mesh_text(given, parent));
  if (tensor->sharder != sharder)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the DTensor is of another sharder", call);
  return rs_fsdp_local(tensor, made);
}

reshard_status reshard_fsdp_all_gather(reshard_sharder sharder, reshard_tree leaf, reshard_mesh parent, void *stream,
                                       reshard_tree *whole) {
  if (sharder == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_fsdp_all_gather: sharder is NULL");
  reshard_tree made = NULL;
  reshard_status status = prepare_gather(sharder, leaf, parent, whole, &made);
  if (status != RESHARD_SUCCESS) /* the others are told */
    return rs_sharder_move(sharder, NULL, NULL, status, stream, NULL);
  reshard_dtensor tensor = rs_leaf_dtensor(leaf), gathered;
  reshard_placement placements[RESHARD_MAX_DIMS];
  const reshard_placing placing = {reshard_dtensor_mesh(tensor), placements, NULL};
  int last = reshard_mesh_ndim(placing.mesh) - 1;
  for (int d = 0; d < last; d++)
    placements[d] = replicate;
  placements[last] = reshard_dtensor_placements(tensor)[last];
  status = reshard_dtensor_redistribute(1, &tensor, &placing, stream, &gathered);
  if (status != RESHARD_SUCCESS) {
    reshard_tree_release(made);
    return status;
  }
  if (reshard_dtensor_local(gathered) != NULL) {
    reshard_tensor_release(made->tensor);
    made->tensor = reshard_tensor_retain(reshard_dtensor_local(gathered));
  }
  reshard_dtensor_release(gathered);
  *whole = made;
  return RESHARD_SUCCESS;
}
