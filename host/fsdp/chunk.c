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
  reshard_metadata m = outer->metadata;
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
  reshard_metadata m = outer->metadata, without;
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
  reshard_fsdp_group whole = *group; /* what is on a sub-mesh is of its group's sharder, which is no world */
  whole.world = group->world != NULL ? group->world : tensor->given;
  group = &whole;
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

/* Is it on the last dim of the parent mesh, where this rank is? Compared by global ranks: its mesh may be a part of the
 * parent mesh, or one of the TP group's own communicator. */
static reshard_status check_tp(reshard_sharder sharder, reshard_dtensor tensor, reshard_mesh parent) {
  char has[RS_MESH_TEXT], wanted[RS_MESH_TEXT], whole[RS_MESH_TEXT];
  reshard_mesh tp, mesh = reshard_dtensor_mesh(tensor);
  RS_TRY(reshard_mesh_sub(parent, "-1", RESHARD_MESH_MINE, &tp));
  bool same = mesh->ndim == 1 && mesh->size == tp->size;
  for (int64_t i = 0; i < tp->size && same; i++)
    same = rs_group_at(&tensor->sharder->group, rs_dtensor_rank_at(tensor, i)) ==
           rs_group_at(&sharder->group, rs_mesh_rank_at(tp, rs_mesh_position(tp, i)));
  reshard_status status = RESHARD_SUCCESS;
  if (!same)
    status = rs_error(RESHARD_ERROR_INVALID,
                      "reshard_fsdp_chunk_dtensor: the DTensor is on the mesh %s, the last dim of the parent mesh %s "
                      "is %s here",
                      rs_mesh_text(has, mesh), rs_mesh_text(whole, parent), rs_mesh_text(wanted, tp));
  reshard_mesh_release(tp);
  return status;
}

/* A leaf as a DTensor over the parent mesh, as it is before FSDP cuts it: replicated, but as TP cuts it. The memory is
 * the leaf's. */
static reshard_status over_parent(reshard_sharder sharder, reshard_tree leaf, reshard_mesh parent, void *stream,
                                  reshard_dtensor *made) {
  reshard_placement placements[RESHARD_MAX_DIMS];
  const reshard_placing placing = {parent, placements, NULL};
  reshard_dtensor part = rs_leaf_dtensor(leaf);
  reshard_tensor local = part != NULL ? reshard_dtensor_local(part) : NULL;
  if (part == NULL && reshard_tree_get_kind(leaf) != RESHARD_TREE_TENSOR)
    return rs_fsdp_wrong_leaf("reshard_fsdp_chunk_dtensor", leaf, "a tensor or a DTensor");
  for (int d = 0; d < parent->ndim; d++)
    placements[d] = replicate;
  if (part == NULL) {
    const reshard_tensor_info *info = &leaf->tensor->info;
    RS_TRY(reshard_dtensor_from_local(sharder, &placing, leaf->tensor, info->ndim, info->shape, 0, made));
  } else {
    if (reshard_mesh_contains(parent, RESHARD_MESH_MINE)) /* outside there is nothing of it */
      RS_TRY(check_tp(sharder, part, parent));
    placements[parent->ndim - 1] = reshard_dtensor_placements(part)[0];
    int ndim = reshard_dtensor_ndim(part);
    const int64_t *shape = reshard_dtensor_shape(part);
    if (local != NULL)
      RS_TRY(reshard_dtensor_from_local(sharder, &placing, local, ndim, shape, 0, made));
    else /* a part without elements needs no tensor */
      RS_TRY(reshard_dtensor_empty(sharder, &placing, ndim, shape, &part->properties, stream, made));
  }
  (*made)->properties.requires_grad = 0; /* nothing else has it, and chunks have the same */
  return RESHARD_SUCCESS;
}

static reshard_status check_parent(const char *call, reshard_mesh parent) {
  char text[RS_MESH_TEXT];
  return parent->ndim >= 2 ? RESHARD_SUCCESS
                           : rs_error(RESHARD_ERROR_INVALID,
                                      "%s: the parent mesh %s has %d dim, FSDP with tensor parallelism has 2 or more",
                                      call, rs_mesh_text(text, parent), parent->ndim);
}

/* The rows that FSDP leaves this rank. TP first: of what TP has given it. FSDP first: TP cuts what FSDP has left, so that
 * rows come from other ranks where both cut dim 0. */
static reshard_status cut_rows(reshard_dtensor whole, reshard_fsdp_order order, void *stream, reshard_dtensor *chunk) {
  static const char call[] = "reshard_fsdp_chunk_dtensor";
  reshard_placement placements[RESHARD_MAX_DIMS];
  reshard_mesh parent = reshard_dtensor_mesh(whole);
  int last = parent->ndim - 1, cuts[RESHARD_MAX_DIMS];
  for (int d = 0; d <= last; d++) {
    placements[d] = d == last - 1 ? shard0 : reshard_dtensor_placements(whole)[d];
    cuts[d] = d > 0 ? d - 1 : last;
  }
  const reshard_placement *tp = &placements[last];
  bool both = tp->kind != RESHARD_PLACEMENT_REPLICATE && tp->dim == 0;
  reshard_placing placing = {parent, placements, both ? cuts : NULL};
  if (order == RESHARD_FSDP_TP_FIRST)
    return rs_dtensor_keep(call, whole, &placing, stream, chunk);
  placing.order = NULL;
  return reshard_dtensor_redistribute(1, &whole, &placing, stream, chunk);
}

/* FSDP first, which is collective: a rank that failed alone tells the others where they wait for it. */
static reshard_status tell(reshard_sharder sharder, reshard_mesh parent, reshard_status mine, void *stream) {
  const reshard_placing placing = {parent, &replicate, NULL};
  rs_members members;
  rs_members_find("reshard_fsdp_chunk_dtensor", sharder, &placing, &members);
  return members.outside || members.comm == NULL ? mine
                                                 : rs_sharder_move(members.sharder, NULL, NULL, mine, stream, NULL);
}

static reshard_status take_chunk(reshard_dtensor made, reshard_fsdp_order order, reshard_tree *chunk) {
  reshard_comm comm = made->sharder->comm;
  bool outside = rs_mesh_is_sub(made->mesh) && made->sharder == made->given;
  bool together = order == RESHARD_FSDP_FSDP_FIRST && !outside;
  reshard_tree leaf = NULL;
  reshard_status status = rs_fsdp_take_dtensor(made, &leaf);
  if (together)
    status = rs_agree(comm, status);
  if (status == RESHARD_SUCCESS)
    *chunk = leaf;
  else
    reshard_tree_release(leaf);
  return status;
}

reshard_status reshard_fsdp_chunk_dtensor_ordered(reshard_sharder sharder, reshard_tree leaf, reshard_mesh mesh,
                                                  reshard_fsdp_order order, void *stream, reshard_tree *chunk) {
  static const char call[] = "reshard_fsdp_chunk_dtensor";
  if (sharder == NULL || mesh == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s is NULL", call, sharder == NULL ? "sharder" : "mesh");
  if ((int)order != RESHARD_FSDP_TP_FIRST && (int)order != RESHARD_FSDP_FSDP_FIRST)
    return rs_error(RESHARD_ERROR_INVALID, "%s: unknown order %d", call, (int)order);
  reshard_mesh parent = reshard_mesh_ndim(mesh) == 1 ? reshard_mesh_root(mesh) : mesh;
  reshard_dtensor whole = NULL, made;
  reshard_status status =
      chunk != NULL ? check_parent(call, parent) : rs_error(RESHARD_ERROR_INVALID, "%s: chunk is NULL", call);
  if (status == RESHARD_SUCCESS)
    status = over_parent(sharder, leaf, parent, stream, &whole);
  if (status != RESHARD_SUCCESS)
    return order == RESHARD_FSDP_FSDP_FIRST ? tell(sharder, parent, status, stream) : status;
  status = cut_rows(whole, order, stream, &made);
  reshard_dtensor_release(whole);
  RS_TRY(status);
  return take_chunk(made, order, chunk);
}

reshard_status reshard_fsdp_chunk_dtensor(reshard_sharder sharder, reshard_tree leaf, reshard_mesh mesh, void *stream,
                                          reshard_tree *chunk) {
  return reshard_fsdp_chunk_dtensor_ordered(sharder, leaf, mesh, RESHARD_FSDP_TP_FIRST, stream, chunk);
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
  if (tensor->given != sharder)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the DTensor is of another sharder", call);
  return rs_fsdp_local(tensor, made);
}

reshard_status reshard_fsdp_all_gather(reshard_sharder sharder, reshard_tree leaf, reshard_mesh parent, void *stream,
                                       reshard_tree *whole) {
  if (sharder == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_fsdp_all_gather: sharder is NULL");
  reshard_tree made = NULL;
  reshard_status status = prepare_gather(sharder, leaf, parent, whole, &made);
  reshard_dtensor tensor = rs_leaf_dtensor(leaf), gathered;
  if (status != RESHARD_SUCCESS) /* the others are told: those of the DTensor's group, where it is on a sub-mesh */
    return rs_sharder_move(tensor != NULL && tensor->given == sharder ? tensor->sharder : sharder, NULL, NULL, status,
                           stream, NULL);
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
