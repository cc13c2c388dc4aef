/* DTensors: references, fields, and their form as sharded tensors. */
#include "dtensor/dtensor.h"
#include "dtensor/group.h"

#include <stdlib.h>
#include <string.h>

reshard_status rs_dtensor_new(reshard_sharder given, reshard_sharder sharder, reshard_mesh mesh,
                              const reshard_properties *properties, const rs_local_arrays *local,
                              reshard_dtensor *tensor) {
  const struct reshard_layout_s *l = local->layout;
  struct reshard_dtensor_s *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  atomic_init(&made->references, 1);
  atomic_init(&made->sharded, NULL);
  made->given = given;
  made->sharder = sharder;
  made->mesh = reshard_mesh_retain(mesh);
  made->properties = *properties;
  made->local = *local;
  for (int m = 0; m < l->mesh_ndim; m++)
    made->order[m] = l->order != NULL ? l->order[m] : m;
  int64_t stride = 1;
  for (int d = l->ndim - 1; d >= 0; d--) {
    made->stride[d] = stride;
    stride *= rs_max(1, l->shape[d]);
  }
  *tensor = made;
  return RESHARD_SUCCESS;
}

reshard_dtensor reshard_dtensor_retain(reshard_dtensor tensor) { return RS_RETAIN(tensor); }

void reshard_dtensor_release(reshard_dtensor tensor) {
  if (!RS_DROP(tensor))
    return;
  reshard_sharded_tensor_release(atomic_load_explicit(&tensor->sharded, memory_order_relaxed));
  rs_local_arrays_free(&tensor->local);
  reshard_mesh_release(tensor->mesh);
  free(tensor);
}

reshard_mesh reshard_dtensor_mesh(reshard_dtensor tensor) { return tensor != NULL ? tensor->mesh : NULL; }
const reshard_placement *reshard_dtensor_placements(reshard_dtensor tensor) {
  return tensor != NULL ? tensor->local.layout->placements : NULL;
}
const int *reshard_dtensor_order(reshard_dtensor tensor) { return tensor != NULL ? tensor->order : NULL; }
reshard_layout reshard_dtensor_layout(reshard_dtensor tensor) { return tensor != NULL ? tensor->local.layout : NULL; }
int reshard_dtensor_ndim(reshard_dtensor tensor) { return tensor != NULL ? tensor->local.layout->ndim : 0; }
const int64_t *reshard_dtensor_shape(reshard_dtensor tensor) {
  return tensor != NULL ? tensor->local.layout->shape : NULL;
}
const int64_t *reshard_dtensor_stride(reshard_dtensor tensor) { return tensor != NULL ? tensor->stride : NULL; }

reshard_tensor reshard_dtensor_local(reshard_dtensor tensor) {
  return tensor != NULL && tensor->local.n > 0 ? tensor->local.arrays[0] : NULL;
}

/* --- To and from sharded tensors --------------------------------------------------------------------------------- */

/* Shares the arrays, with one more reference each. */
static reshard_status share_arrays(const rs_local_arrays *local, int64_t rank, reshard_dtype dtype,
                                   rs_local_arrays *out) {
  return rs_local_arrays_wrap("array", local->layout, rank, dtype, local->n, local->arrays, out);
}

static reshard_status make_metadata(reshard_dtensor t, reshard_metadata *metadata) {
  reshard_metadata at_home;
  RS_TRY(rs_sharder_describe(t->sharder, &t->properties, t->local.layout, &at_home));
  if (!t->on_cpu) {
    *metadata = at_home;
    return RESHARD_SUCCESS;
  }
  reshard_status status = rs_metadata_as(at_home, &t->properties, RESHARD_DEVICE_CPU, metadata);
  reshard_metadata_release(at_home);
  return status;
}

static reshard_status make_sharded(reshard_dtensor t, reshard_sharded_tensor *sharded) {
  reshard_metadata metadata;
  rs_local_arrays local;
  RS_TRY(make_metadata(t, &metadata));
  reshard_status status = share_arrays(&t->local, t->sharder->comm->rank, t->properties.dtype, &local);
  if (status == RESHARD_SUCCESS) {
    status = rs_sharded_new(t->sharder, metadata, &local, sharded);
    if (status == RESHARD_SUCCESS)
      return status;
    rs_local_arrays_free(&local);
  }
  reshard_metadata_release(metadata);
  return status;
}

reshard_sharded_tensor reshard_dtensor_sharded(reshard_dtensor tensor) {
  if (tensor == NULL)
    return NULL;
  reshard_sharded_tensor known = atomic_load_explicit(&tensor->sharded, memory_order_acquire), made;
  if (known != NULL || make_sharded(tensor, &made) != RESHARD_SUCCESS)
    return known;
  if (atomic_compare_exchange_strong(&tensor->sharded, &known, made))
    return made;
  reshard_sharded_tensor_release(made); /* another thread was first */
  return known;
}

static reshard_status no_mesh_layout(const char *call, reshard_layout layout, reshard_mesh mesh) {
  char has[RS_MESH_TEXT], text[256];
  if (reshard_layout_print(layout, text, sizeof text, NULL) != RESHARD_SUCCESS)
    memcpy(text + sizeof text - 4, "...", 4);
  return rs_error(RESHARD_ERROR_INVALID, "%s: the layout %s is not one of the mesh %s", call, text,
                  rs_mesh_text(has, mesh));
}

/* Finds the layout of the DTensor, one reference: that of the sharded tensor, or of a sub-mesh's group for it. */
static reshard_status layout_over(const char *call, reshard_sharded_tensor sharded, const reshard_placing *placing,
                                  const rs_placing_group *group, reshard_layout *layout) {
  const struct reshard_layout_s *l = sharded->local.layout;
  RS_TRY(rs_placing_layout(call, sharded->sharder, placing, l->ndim, l->shape, layout));
  if (!reshard_layout_equal(*layout, sharded->local.layout)) {
    reshard_layout_release(*layout);
    return no_mesh_layout(call, sharded->local.layout, placing->mesh);
  }
  if (group->sharder == sharded->sharder)
    return RESHARD_SUCCESS;
  reshard_layout_release(*layout);
  return rs_placing_layout(call, group->sharder, placing, l->ndim, l->shape, layout);
}

reshard_status reshard_dtensor_from_sharded(reshard_sharded_tensor sharded, reshard_mesh mesh,
                                            reshard_dtensor *tensor) {
  static const char call[] = "reshard_dtensor_from_sharded";
  RS_TRY(RS_GIVEN(call, sharded, mesh, tensor));
  const struct reshard_layout_s *l = sharded->local.layout;
  const rs_dtensor_cache *cache = sharded->sharder->attached;
  reshard_sharder given = cache != NULL && cache->made_for != NULL ? cache->made_for : sharded->sharder;
  if (l->kind != RESHARD_LAYOUT_MESH || l->mesh_ndim != mesh->ndim)
    return no_mesh_layout(call, sharded->local.layout, mesh);
  RS_TRY(rs_dtensor_check_parts(call, l));
  const reshard_placing placing = {mesh, l->placements, l->order};
  reshard_layout layout;
  rs_placing_group group;
  rs_local_arrays local;
  RS_TRY(rs_placing_group_find(call, given, &placing, &group));
  if (sharded->sharder != given && sharded->sharder != group.sharder)
    return no_mesh_layout(call, sharded->local.layout, mesh);
  RS_TRY(layout_over(call, sharded, &placing, &group, &layout));
  reshard_properties properties = reshard_metadata_properties(sharded->metadata);
  reshard_status status = rs_local_arrays_wrap("array", layout, group.sharder->comm->rank, properties.dtype,
                                               sharded->local.n, sharded->local.arrays, &local);
  reshard_layout_release(layout);
  RS_TRY(status);
  status = rs_dtensor_new(given, group.sharder, mesh, &properties, &local, tensor);
  if (status != RESHARD_SUCCESS)
    rs_local_arrays_free(&local);
  return status;
}

reshard_status rs_dtensor_map(reshard_dtensor t, const rs_tensor_mapper *mapper, reshard_dtensor *mapped) {
  reshard_properties properties = t->properties;
  reshard_device_type home = t->sharder->device->device->type, type = t->on_cpu ? RESHARD_DEVICE_CPU : home;
  rs_local_arrays local;
  bool changed;
  *mapped = NULL;
  RS_TRY(rs_local_arrays_map(t->sharder, &t->local, mapper, &properties, &type, &local, &changed));
  if (!changed)
    return RESHARD_SUCCESS;
  RS_TRY_OR(rs_dtensor_new(t->given, t->sharder, t->mesh, &properties, &local, mapped), rs_local_arrays_free(&local));
  (*mapped)->on_cpu = type != home;
  return RESHARD_SUCCESS;
}
