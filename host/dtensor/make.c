/* Makes DTensors: of local tensors, of whole ones, and empty. */
#include "dtensor/group.h"

#include <string.h>

/* Makes a DTensor of new arrays, or of `local` where it is given. */
static reshard_status make_dtensor(const char *call, reshard_sharder given, const rs_placing_group *group,
                                   const reshard_placing *placing, int ndim, const int64_t *shape,
                                   const reshard_properties *properties, reshard_tensor local, void *stream,
                                   reshard_dtensor *tensor) {
  reshard_sharder s = group->sharder;
  reshard_layout layout;
  rs_local_arrays arrays;
  int64_t rank = s->comm->rank;
  RS_TRY(rs_placing_layout(call, s, placing, ndim, shape, &layout));
  reshard_status status = local != NULL && reshard_mesh_contains(placing->mesh, RESHARD_MESH_MINE)
                              ? rs_local_arrays_wrap("array", layout, rank, properties->dtype, 1, &local, &arrays)
                              : rs_local_arrays_create(s->device, layout, rank, properties, stream, &arrays);
  reshard_layout_release(layout);
  RS_TRY(status);
  status = rs_dtensor_new(given, s, placing->mesh, properties, &arrays, tensor);
  if (status != RESHARD_SUCCESS)
    rs_local_arrays_free(&arrays);
  return status;
}

/* --- From local tensors ------------------------------------------------------------------------------------------ */

/* Compares the local tensor with the layout; errors show the rank by another number. */
static reshard_status check_part(reshard_layout layout, int64_t rank, int64_t shown, reshard_tensor local) {
  char given[RS_SHAPE_TEXT], wanted[RS_SHAPE_TEXT];
  reshard_array_info part;
  int ndim = reshard_layout_ndim(layout);
  RS_TRY(reshard_layout_array(layout, rank, 0, &part));
  rs_shape_text(wanted, ndim, part.shape);
  if (local == NULL)
    return part.elements == 0
               ? RESHARD_SUCCESS
               : rs_error(RESHARD_ERROR_INVALID, "the local tensor of rank %lld is NULL and should be of shape %s",
                          (long long)shown, wanted);
  const reshard_tensor_info *info = &local->info;
  if (rs_shape_equal(info->ndim, info->shape, ndim, part.shape))
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "the local tensor of rank %lld is of shape %s and should be of %s",
                  (long long)shown, rs_shape_text(given, info->ndim, info->shape), wanted);
}

static reshard_status check_local(const char *call, const rs_placing_group *group, const reshard_placing *placing,
                                  reshard_tensor local, int ndim, const int64_t *shape, const reshard_dtensor *tensor) {
  char text[RS_MESH_TEXT], given[RS_SHAPE_TEXT];
  RS_TRY(RS_GIVEN(call, tensor));
  reshard_sharder s = group->sharder;
  int64_t mine = reshard_mesh_rank(placing->mesh);
  bool inside = reshard_mesh_contains(placing->mesh, RESHARD_MESH_MINE);
  if (!inside && local != NULL && local->info.elements > 0)
    return rs_error(RESHARD_ERROR_INVALID,
                    "rank %lld is outside of the mesh %s and has a local tensor of shape %s: none or an empty one is "
                    "expected",
                    (long long)mine, rs_mesh_text(text, placing->mesh),
                    rs_shape_text(given, local->info.ndim, local->info.shape));
  if (group->outside && shape == NULL)
    return rs_error(
        RESHARD_ERROR_INVALID,
        "%s: rank %lld is outside of the sub-mesh %s, whose ranks find the shape without it: give the shape", call,
        (long long)mine, rs_mesh_text(text, placing->mesh));
  static const int64_t unknown[RESHARD_MAX_DIMS];
  reshard_layout layout; /* of an unknown shape: checks the placements alone */
  if (shape == NULL)
    RS_TRY(rs_placing_layout(call, s, placing, local != NULL ? local->info.ndim : RESHARD_MAX_DIMS, unknown, &layout));
  else
    RS_TRY(rs_placing_layout(call, s, placing, ndim, shape, &layout));
  reshard_status status = inside && shape != NULL ? check_part(layout, s->comm->rank, mine, local) : RESHARD_SUCCESS;
  reshard_layout_release(layout);
  return status;
}

static reshard_properties local_properties(reshard_tensor local, reshard_dtype dtype) {
  return (reshard_properties){.dtype = dtype,
                              .requires_grad = local != NULL && local->info.requires_grad,
                              .pin_memory = local != NULL && local->info.pin_memory};
}

/* Wraps a local tensor of a known global shape. */
static reshard_status wrap_local(const char *call, reshard_sharder given, const rs_placing_group *group,
                                 const reshard_placing *placing, reshard_tensor local, int ndim, const int64_t *shape,
                                 reshard_dtensor *tensor) {
  if (local == NULL)
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: rank %lld has no local tensor that tells the dtype: give an empty one, or check", call,
                    (long long)given->comm->rank);
  const reshard_properties properties = local_properties(local, local->info.dtype);
  return make_dtensor(call, given, group, placing, ndim, shape, &properties, local, NULL, tensor);
}

reshard_status reshard_dtensor_from_local(reshard_sharder given, const reshard_placing *placing, reshard_tensor local,
                                          int ndim, const int64_t *shape, int check, reshard_dtensor *tensor) {
  static const char call[] = "reshard_dtensor_from_local";
  if (given == NULL)
    return rs_error_null(call, "sharder");
  rs_placing_group group;
  reshard_status mine = rs_placing_group_find(call, given, placing, &group);
  RS_THEN(mine, check_local(call, &group, placing, local, ndim, shape, tensor));
  if ((shape != NULL && !check) || group.outside || group.comm == NULL) {
    RS_TRY(mine);
    return wrap_local(call, given, &group, placing, local, ndim, shape, tensor);
  }
  RS_TRY(rs_agree(group.comm, mine));
  int64_t known[RESHARD_MAX_DIMS] = {0};
  reshard_dtype dtype = local != NULL ? local->info.dtype : RESHARD_DTYPE_NONE;
  if (shape != NULL)
    memcpy(known, shape, (size_t)ndim * sizeof *shape);
  RS_TRY(rs_dtensor_compare(group.sharder, placing, local, &ndim, known, shape == NULL, &dtype));
  const reshard_properties properties = local_properties(local, dtype);
  reshard_dtensor made = NULL;
  RS_TRY_OR(
      rs_agree(group.comm, make_dtensor(call, given, &group, placing, ndim, known, &properties, local, NULL, &made)),
      reshard_dtensor_release(made));
  *tensor = made;
  return RESHARD_SUCCESS;
}

/* --- From whole tensors ------------------------------------------------------------------------------------------ */

/* Compares the whole tensor with its shape and dtype. */
static reshard_status check_whole(const char *call, int64_t rank, reshard_tensor whole, int ndim, const int64_t *shape,
                                  const reshard_properties *properties) {
  char given[RS_SHAPE_TEXT], wanted[RS_SHAPE_TEXT];
  const reshard_tensor_info *info = &whole->info;
  if (!rs_shape_equal(info->ndim, info->shape, ndim, shape))
    return rs_error(RESHARD_ERROR_INVALID, "%s: the whole tensor of rank %lld is of shape %s and should be of %s", call,
                    (long long)rank, rs_shape_text(given, info->ndim, info->shape), rs_shape_text(wanted, ndim, shape));
  if (info->dtype != properties->dtype)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the whole tensor of rank %lld is %s and should be %s", call,
                    (long long)rank, reshard_dtype_string(info->dtype), reshard_dtype_string(properties->dtype));
  return RESHARD_SUCCESS;
}

/* Every rank of the mesh has the whole, as a replicated DTensor, and copies its part. */
static reshard_status distribute_local(const char *call, reshard_sharder given, const rs_placing_group *group,
                                       const reshard_placing *placing, reshard_tensor whole, int ndim,
                                       const int64_t *shape, const reshard_properties *properties, void *stream,
                                       reshard_dtensor *tensor) {
  const reshard_placement replicate[RESHARD_MAX_DIMS] = {{.kind = RESHARD_PLACEMENT_REPLICATE}};
  const reshard_placing everywhere = {placing->mesh, replicate, NULL};
  bool inside = reshard_mesh_contains(placing->mesh, RESHARD_MESH_MINE);
  if (inside && whole == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: rank %lld is in the mesh and gives no whole tensor", call,
                    (long long)given->comm->rank);
  reshard_dtensor full;
  RS_TRY(make_dtensor(call, given, group, &everywhere, ndim, shape, properties, whole, stream, &full));
  reshard_status status = rs_dtensor_redistribute_local(call, full, placing, stream, tensor);
  reshard_dtensor_release(full);
  return status;
}

static reshard_status check_distribute(const char *call, reshard_sharder s, reshard_tensor whole, int ndim,
                                       const int64_t *shape, const reshard_properties *properties,
                                       const reshard_dtensor *tensor) {
  if (properties == NULL || tensor == NULL || (ndim > 0 && shape == NULL))
    return rs_error_null(call, properties == NULL ? "properties" : tensor == NULL ? "tensor" : "shape");
  return whole != NULL ? check_whole(call, s->comm->rank, whole, ndim, shape, properties) : RESHARD_SUCCESS;
}

/* Collective over the group: rank src of it has the whole. */
static reshard_status scatter_whole(const char *call, const rs_placing_group *group, reshard_status mine,
                                    const reshard_placing *placing, reshard_tensor whole, int64_t src, int ndim,
                                    const int64_t *shape, const reshard_properties *properties, void *stream,
                                    reshard_dtensor *tensor) {
  reshard_layout layout = NULL;
  reshard_sharded_tensor scattered = NULL;
  reshard_dtensor made = NULL;
  reshard_status begun;
  (void)rs_request_begin(call, group->comm, group->sharder->path, stream, &begun); /* all hear when they agree */
  RS_THEN(mine, begun);
  RS_THEN(mine, rs_placing_layout(call, group->sharder, placing, ndim, shape, &layout));
  reshard_status status = rs_agree(group->comm, mine);
  RS_THEN(status, reshard_sharded_tensor_scatter(group->sharder, whole, src, layout, properties, stream, &scattered));
  RS_THEN(status, rs_agree(group->comm, reshard_dtensor_from_sharded(scattered, placing->mesh, &made)));
  reshard_sharded_tensor_release(scattered);
  reshard_layout_release(layout);
  RS_TRY_OR(status, reshard_dtensor_release(made));
  *tensor = made;
  return RESHARD_SUCCESS;
}

reshard_status reshard_dtensor_distribute(reshard_sharder given, const reshard_placing *placing, reshard_tensor whole,
                                          int64_t src, int ndim, const int64_t *shape,
                                          const reshard_properties *properties, void *stream, reshard_dtensor *tensor) {
  static const char call[] = "reshard_dtensor_distribute";
  if (given == NULL)
    return rs_error_null(call, "sharder");
  rs_placing_group group;
  reshard_status mine = rs_placing_group_find(call, given, placing, &group);
  RS_THEN(mine, check_distribute(call, given, whole, ndim, shape, properties, tensor));
  if (src != -1 && !group.outside && group.comm != NULL)
    return scatter_whole(call, &group, mine, placing, whole, src, ndim, shape, properties, stream, tensor);
  RS_TRY(mine);
  return distribute_local(call, given, &group, placing, whole, ndim, shape, properties, stream, tensor);
}

reshard_status reshard_dtensor_empty(reshard_sharder s, const reshard_placing *placing, int ndim, const int64_t *shape,
                                     const reshard_properties *properties, void *stream, reshard_dtensor *tensor) {
  static const char call[] = "reshard_dtensor_empty";
  if (s == NULL || properties == NULL || tensor == NULL)
    return rs_error_null(call, s == NULL ? "sharder" : properties == NULL ? "properties" : "tensor");
  rs_placing_group group;
  RS_TRY(rs_placing_group_find(call, s, placing, &group));
  return make_dtensor(call, s, &group, placing, ndim, shape, properties, NULL, stream, tensor);
}
