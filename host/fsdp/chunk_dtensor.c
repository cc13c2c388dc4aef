/* Parameters cut by FSDP as DTensors over all dims of the mesh, and gathered again.
 *
 * A parameter becomes a DTensor over the parent mesh without a copy: replicated, but for TP's cut. Its chunk is the
 * same with Shard(0) on FSDP's dim. Where TP cuts first each rank has the rows already, and copies them; where FSDP
 * cuts first a redistribute brings them from other ranks. All-gather is a redistribute, too. */
#include "fsdp/fsdp.h"

#include "dtensor/group.h"

#include "exec/call.h"
#include "mesh/mesh.h"
#include "metadata/group.h"

#include <stdio.h>

static const reshard_placement shard0 = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};
static const reshard_placement replicate = {.kind = RESHARD_PLACEMENT_REPLICATE};

/* --- chunk_dtensor ------------------------------------------------------------------------------------------------ */

/* Checks that the DTensor is on the last dim of the parent mesh, at this rank. Compares global ranks: its mesh may be a
 * part of the parent mesh, or one of the TP group's own communicator. */
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

/* Makes a leaf a DTensor over the parent mesh, as it is before FSDP cuts it: replicated, but for TP's cut. The memory
 * is the leaf's. */
static reshard_status make_over_parent(reshard_sharder sharder, reshard_tree leaf, reshard_mesh parent, void *stream,
                                       reshard_dtensor *made) {
  reshard_placement placements[RESHARD_MAX_DIMS];
  const reshard_placing placing = {parent, placements, NULL};
  reshard_dtensor part = rs_leaf_dtensor(leaf);
  reshard_tensor local = part != NULL ? reshard_dtensor_local(part) : NULL;
  if (part == NULL && reshard_tree_get_kind(leaf) != RESHARD_TREE_TENSOR)
    return rs_fsdp_error_leaf("reshard_fsdp_chunk_dtensor", leaf, "a tensor or a DTensor");
  for (int d = 0; d < parent->ndim; d++)
    placements[d] = replicate;
  if (part == NULL) {
    const reshard_tensor_info *info = &leaf->tensor->info;
    RS_TRY(reshard_dtensor_from_local(sharder, &placing, leaf->tensor, info->ndim, info->shape, 0, made));
  } else {
    if (reshard_mesh_contains(parent, RESHARD_MESH_MINE)) /* a rank outside has no part */
      RS_TRY(check_tp(sharder, part, parent));
    placements[parent->ndim - 1] = reshard_dtensor_placements(part)[0];
    int ndim = reshard_dtensor_ndim(part);
    const int64_t *shape = reshard_dtensor_shape(part);
    if (local != NULL)
      RS_TRY(reshard_dtensor_from_local(sharder, &placing, local, ndim, shape, 0, made));
    else /* a part without elements needs no tensor */
      RS_TRY(reshard_dtensor_empty(sharder, &placing, ndim, shape, &part->properties, stream, made));
  }
  (*made)->properties.requires_grad = 0; /* as the other ranks' chunks */
  return RESHARD_SUCCESS;
}

static reshard_status check_parent(const char *call, reshard_mesh parent) {
  char text[RS_MESH_TEXT];
  return parent->ndim >= 2 ? RESHARD_SUCCESS
                           : rs_error(RESHARD_ERROR_INVALID,
                                      "%s: the parent mesh %s has %d dim, FSDP with tensor parallelism has 2 or more",
                                      call, rs_mesh_text(text, parent), parent->ndim);
}

/* Cuts the rows that FSDP leaves this rank. TP first: of TP's part. FSDP first: TP cuts FSDP's part, so that rows come
 * from other ranks where both cut dim 0. */
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
    return rs_dtensor_redistribute_local(call, whole, &placing, stream, chunk);
  placing.order = NULL;
  return rs_dtensor_redistribute(call, NULL, RESHARD_SUCCESS, whole, &placing, RESHARD_DTYPE_NONE, stream, chunk);
}

/* The ranks of a mesh that act together, for one that has an error of its own, which stays the last one. NULL: it is
 * alone with it. */
static reshard_sharder ranks_of_mesh(const char *call, reshard_sharder sharder, reshard_mesh mesh,
                                     reshard_status mine) {
  const reshard_placing placing = {mesh, &replicate, NULL};
  rs_placing_group group;
  rs_saved_error saved = {.status = RESHARD_SUCCESS};
  rs_error_save(&saved, mine);
  rs_placing_group_find(call, sharder, &placing, &group);
  (void)rs_error_restore(&saved); /* not what a missing group has said */
  return group.outside || group.comm == NULL ? NULL : group.sharder;
}

static reshard_status copy_chunk(reshard_dtensor made, reshard_fsdp_order order, reshard_tree *chunk) {
  reshard_comm comm = made->sharder->comm;
  bool outside = rs_mesh_is_sub(made->mesh) && made->sharder == made->given;
  bool together = order == RESHARD_FSDP_FSDP_FIRST && !outside;
  reshard_tree leaf = NULL;
  reshard_status status = rs_fsdp_dtensor_leaf(made, &leaf);
  if (together)
    status = rs_agree(comm, status);
  RS_TRY_OR(status, reshard_tree_release(leaf));
  *chunk = leaf;
  return RESHARD_SUCCESS;
}

reshard_status reshard_fsdp_chunk_dtensor_ordered(reshard_sharder sharder, reshard_tree leaf, reshard_mesh mesh,
                                                  reshard_fsdp_order order, void *stream, reshard_tree *chunk) {
  static const char call[] = "reshard_fsdp_chunk_dtensor";
  RS_TRY(RS_GIVEN(call, sharder, mesh));
  if ((int)order != RESHARD_FSDP_TP_FIRST && (int)order != RESHARD_FSDP_FSDP_FIRST)
    return rs_error(RESHARD_ERROR_INVALID, "%s: unknown order %d", call, (int)order);
  reshard_mesh parent = reshard_mesh_ndim(mesh) == 1 ? reshard_mesh_root(mesh) : mesh;
  reshard_dtensor whole = NULL, made;
  reshard_status status;
  RS_TRY(rs_request_begin(call, sharder->comm, sharder->path, stream, &status));
  RS_THEN(status, chunk != NULL ? check_parent(call, parent) : rs_error_null(call, "chunk"));
  RS_THEN(status, make_over_parent(sharder, leaf, parent, stream, &whole));
  if (status != RESHARD_SUCCESS && order == RESHARD_FSDP_FSDP_FIRST) /* the others redistribute meanwhile */
    return rs_dtensor_redistribute(call, ranks_of_mesh(call, sharder, parent, status), status, NULL, NULL,
                                   RESHARD_DTYPE_NONE, stream, &made);
  RS_TRY(status);
  status = cut_rows(whole, order, stream, &made);
  reshard_dtensor_release(whole);
  RS_TRY(status);
  return copy_chunk(made, order, chunk);
}

reshard_status reshard_fsdp_chunk_dtensor(reshard_sharder sharder, reshard_tree leaf, reshard_mesh mesh, void *stream,
                                          reshard_tree *chunk) {
  return reshard_fsdp_chunk_dtensor_ordered(sharder, leaf, mesh, RESHARD_FSDP_TP_FIRST, stream, chunk);
}

/* --- all_gather_dtensor ------------------------------------------------------------------------------------------- */

/* Prepares everything that can fail on this rank alone, before the ranks meet: the leaf is made with the local tensor,
 * which the gathered one will replace. */
static reshard_status prepare_gather(const char *call, reshard_sharder sharder, reshard_tree leaf, reshard_mesh parent,
                                     reshard_dtype dtype, const reshard_tree *whole, reshard_tree *made) {
  char has[RS_MESH_TEXT], given[RS_MESH_TEXT];
  RS_TRY(RS_GIVEN(call, whole));
  reshard_dtensor tensor = rs_leaf_dtensor(leaf);
  if (tensor == NULL)
    return rs_fsdp_error_leaf(call, leaf, "a DTensor");
  reshard_mesh mesh = reshard_dtensor_mesh(tensor);
  if (parent != NULL && !reshard_mesh_equal(parent, mesh))
    return rs_error(RESHARD_ERROR_INVALID, "%s: the DTensor is on the mesh %s, not on the parent mesh %s", call,
                    rs_mesh_text(has, mesh), rs_mesh_text(given, parent));
  if (tensor->given != sharder)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the DTensor is of another sharder", call);
  return rs_fsdp_local_leaf(tensor, dtype, made);
}

/* The ranks that gather, for one that has an error of its own: by its DTensor, as they have one alike, else by the
 * parent mesh. NULL: it is alone with it. */
static reshard_sharder gathering_ranks(const char *call, reshard_sharder sharder, reshard_dtensor tensor,
                                       reshard_mesh parent, reshard_status mine) {
  if (tensor != NULL && tensor->given == sharder)
    return rs_mesh_is_sub(tensor->mesh) && tensor->sharder == tensor->given ? NULL : tensor->sharder;
  return parent != NULL ? ranks_of_mesh(call, sharder, parent, mine) : sharder;
}

static reshard_status gather_leaf(const char *call, reshard_sharder sharder, reshard_tree leaf, reshard_mesh parent,
                                  reshard_dtype dtype, void *stream, reshard_tree *whole) {
  RS_TRY(RS_GIVEN(call, sharder));
  reshard_tree made = NULL;
  reshard_dtensor tensor = rs_leaf_dtensor(leaf), gathered;
  reshard_sharder owner = tensor != NULL ? tensor->sharder : sharder;
  reshard_status status;
  RS_TRY(rs_request_begin(call, owner->comm, owner->path, stream, &status));
  RS_THEN(status, prepare_gather(call, sharder, leaf, parent, dtype, whole, &made));
  if (status != RESHARD_SUCCESS)
    return rs_dtensor_redistribute(call, gathering_ranks(call, sharder, tensor, parent, status), status, NULL, NULL,
                                   dtype, stream, &gathered);
  reshard_placement placements[RESHARD_MAX_DIMS];
  const reshard_placing placing = {reshard_dtensor_mesh(tensor), placements, NULL};
  int last = reshard_mesh_ndim(placing.mesh) - 1;
  for (int d = 0; d < last; d++)
    placements[d] = replicate;
  placements[last] = reshard_dtensor_placements(tensor)[last];
  RS_TRY_OR(rs_dtensor_redistribute(call, NULL, RESHARD_SUCCESS, tensor, &placing, dtype, stream, &gathered),
            reshard_tree_release(made));
  if (reshard_dtensor_local(gathered) != NULL) {
    reshard_tensor_release(made->tensor);
    made->tensor = reshard_tensor_retain(reshard_dtensor_local(gathered));
  }
  reshard_dtensor_release(gathered);
  *whole = made;
  return RESHARD_SUCCESS;
}

reshard_status reshard_fsdp_all_gather(reshard_sharder sharder, reshard_tree leaf, reshard_mesh parent, void *stream,
                                       reshard_tree *whole) {
  return gather_leaf("reshard_fsdp_all_gather", sharder, leaf, parent, RESHARD_DTYPE_NONE, stream, whole);
}

reshard_status reshard_fsdp_all_gather_as(reshard_sharder sharder, reshard_tree leaf, reshard_mesh parent,
                                          reshard_dtype dtype, void *stream, reshard_tree *whole) {
  return gather_leaf("reshard_fsdp_all_gather_as", sharder, leaf, parent, dtype, stream, whole);
}
