/* Sharded tensors with other local tensors: of another dtype, or on another device. Layout and shards are as before.
 * All ranks come to the same metadata; those without a tensor map a placeholder, which is empty. */
#include "metadata/metadata.h"
#include "sharded/sharder.h"

/* --- One tensor -------------------------------------------------------------------------------------------------- */

/* Checks that the sharder's tensors can be on the device. */
static reshard_status check_device(reshard_sharder s, const reshard_tensor_info *info) {
  const rs_device *device = s->device->device;
  char theirs[RS_DEVICE_TEXT], wanted[RS_DEVICE_TEXT];
  bool cpu = device->type == RESHARD_DEVICE_CPU;
  if (info->device_type == RESHARD_DEVICE_CPU ||
      (info->device_type == device->type && info->device_index == device->index))
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "a local tensor would be on %s; those of its sharder are on the CPU%s%s",
                  rs_device_text(wanted, info->device_type, info->device_index), cpu ? "" : " or on ",
                  cpu ? "" : rs_device_text(theirs, device->type, device->index));
}

/* Maps a tensor to another of the same shape; *became NULL: it stays. */
static reshard_status map_tensor(reshard_sharder s, const rs_tensor_mapper *m, reshard_tensor t,
                                 reshard_tensor *became) {
  char was[RS_SHAPE_TEXT], is[RS_SHAPE_TEXT];
  reshard_tensor made = NULL;
  RS_TRY(m->map(m->user, m->path, t, &made));
  if (made == t) {
    reshard_tensor_release(made);
    made = NULL;
  }
  reshard_status status = made != NULL ? check_device(s, &made->info) : RESHARD_SUCCESS;
  if (made != NULL && !rs_shape_equal(made->info.ndim, made->info.shape, t->info.ndim, t->info.shape))
    status =
        rs_error(RESHARD_ERROR_INVALID, "a local tensor of shape %s would become one of %s",
                 rs_shape_text(was, t->info.ndim, t->info.shape), rs_shape_text(is, made->info.ndim, made->info.shape));
  if (status == RESHARD_SUCCESS) {
    *became = made;
    return status;
  }
  reshard_tensor_release(made);
  return rs_path_error(m->path, status);
}

/* Records the properties of a tensor: all of a rank are alike. */
static reshard_status record_properties(const rs_tensor_mapper *m, const reshard_tensor_info *info, bool first,
                                        reshard_properties *p, reshard_device_type *type) {
  if (!first &&
      (info->dtype != p->dtype || info->requires_grad != p->requires_grad || info->pin_memory != p->pin_memory))
    return rs_path_error(
        m->path, rs_error(RESHARD_ERROR_INVALID,
                          "local tensors would be %s and %s, with requires_grad %d and %d, pin_memory %d and %d",
                          reshard_dtype_string(p->dtype), reshard_dtype_string(info->dtype), p->requires_grad,
                          info->requires_grad, p->pin_memory, info->pin_memory));
  p->dtype = info->dtype;
  p->requires_grad = info->requires_grad;
  p->pin_memory = info->pin_memory;
  *type = info->device_type;
  return RESHARD_SUCCESS;
}

reshard_status rs_placeholder_map(reshard_sharder s, const rs_tensor_mapper *m, reshard_properties *p,
                                  reshard_device_type *type, bool *changed) {
  const int64_t none = 0;
  reshard_tensor t, became = NULL;
  bool on = *type == s->device->device->type && *type != RESHARD_DEVICE_CPU;
  RS_TRY(reshard_tensor_wrap_on(on ? s->device : NULL, p->dtype, 1, &none, NULL, NULL, NULL, NULL, &t));
  reshard_tensor_set_requires_grad(t, p->requires_grad);
  reshard_tensor_set_pin_memory(t, p->pin_memory);
  reshard_status status = map_tensor(s, m, t, &became);
  *changed = became != NULL;
  if (status == RESHARD_SUCCESS && became != NULL)
    status = record_properties(m, &became->info, true, p, type);
  reshard_tensor_release(became);
  reshard_tensor_release(t);
  return status;
}

/* --- Holdings of a rank ------------------------------------------------------------------------------------------ */

/* Wraps the buffer of several arrays as one tensor; first: the first array that has elements. */
static reshard_status wrap_buffer(const rs_tensor_mapper *m, const rs_local_arrays *local, int64_t rank, int64_t first,
                                  reshard_tensor *whole) {
  reshard_tensor begin = local->arrays[first];
  reshard_array_info array;
  int64_t elements;
  reshard_status status = RESHARD_SUCCESS;
  RS_TRY(reshard_layout_buffer_elements(local->layout, rank, 0, &elements));
  RS_TRY(reshard_layout_array(local->layout, rank, first, &array));
  for (int64_t i = first; i < local->n && status == RESHARD_SUCCESS; i++)
    if (local->arrays[i] != NULL && local->arrays[i]->info.elements > 0 && local->arrays[i]->storage != begin->storage)
      status = rs_error(RESHARD_ERROR_UNSUPPORTED, "the arrays %lld and %lld of a buffer are in several storages",
                        (long long)first, (long long)i);
  RS_THEN(status, reshard_tensor_as_strided(begin, 1, &elements, NULL, begin->info.offset - array.offset, whole));
  return status == RESHARD_SUCCESS ? status : rs_path_error(m->path, status);
}

/* Cuts the mapped buffer into its arrays. */
static reshard_status cut_buffer(const rs_tensor_mapper *m, const rs_local_arrays *local, int64_t rank,
                                 reshard_tensor whole, rs_local_arrays *mapped) {
  if (!whole->info.contiguous)
    return rs_path_error(
        m->path, rs_error(RESHARD_ERROR_INVALID, "a buffer of several arrays would become one that is not contiguous"));
  for (int64_t i = 0; i < local->n; i++) {
    reshard_array_info array;
    RS_TRY(reshard_layout_array(local->layout, rank, i, &array));
    RS_TRY(reshard_tensor_as_strided(whole, reshard_layout_ndim(local->layout), array.shape, array.strides,
                                     whole->info.offset + array.offset, &mapped->arrays[i]));
  }
  return RESHARD_SUCCESS;
}

static reshard_status map_buffer(reshard_sharder s, const rs_local_arrays *local, int64_t first,
                                 const rs_tensor_mapper *m, reshard_properties *p, reshard_device_type *type,
                                 rs_local_arrays *mapped, bool *changed) {
  reshard_tensor whole, became = NULL;
  RS_TRY(wrap_buffer(m, local, s->comm->rank, first, &whole));
  reshard_status status = map_tensor(s, m, whole, &became);
  *changed = became != NULL;
  if (status == RESHARD_SUCCESS && became != NULL)
    status = record_properties(m, &became->info, true, p, type);
  if (status == RESHARD_SUCCESS && became != NULL)
    status = cut_buffer(m, local, s->comm->rank, became, mapped);
  reshard_tensor_release(became);
  reshard_tensor_release(whole);
  return status;
}

static reshard_status map_arrays(reshard_sharder s, const rs_local_arrays *local, int64_t first,
                                 const rs_tensor_mapper *m, reshard_properties *p, reshard_device_type *type,
                                 rs_local_arrays *mapped, bool *changed) {
  *changed = false;
  for (int64_t i = first; i < local->n; i++) {
    if (local->arrays[i] == NULL)
      continue;
    RS_TRY(map_tensor(s, m, local->arrays[i], &mapped->arrays[i]));
    *changed |= mapped->arrays[i] != NULL;
    if (mapped->arrays[i] == NULL)
      mapped->arrays[i] = reshard_tensor_retain(local->arrays[i]);
    RS_TRY(record_properties(m, &mapped->arrays[i]->info, i == first, p, type));
  }
  return RESHARD_SUCCESS;
}

/* Returns the first array that can be mapped; n: there is none. */
static int64_t first_array(const rs_local_arrays *local, bool bundles) {
  int64_t i = 0;
  while (i < local->n && (local->arrays[i] == NULL || (bundles && local->arrays[i]->info.elements == 0)))
    i++;
  return i;
}

reshard_status rs_local_arrays_map(reshard_sharder s, const rs_local_arrays *local, const rs_tensor_mapper *m,
                                   reshard_properties *p, reshard_device_type *type, rs_local_arrays *mapped,
                                   bool *changed) {
  bool bundles = rs_layout_bundles(local->layout);
  int64_t first = first_array(local, bundles);
  reshard_properties properties = *p;
  rs_local_arrays made = {.n = local->n};
  RS_TRY(rs_alloc_zero(&made.arrays, local->n, sizeof *made.arrays));
  made.layout = reshard_layout_retain(local->layout);
  if (first < local->n)
    *type = local->arrays[first]->info.device_type;
  reshard_status status = first == local->n ? rs_placeholder_map(s, m, &properties, type, changed)
                          : bundles         ? map_buffer(s, local, first, m, &properties, type, &made, changed)
                                            : map_arrays(s, local, first, m, &properties, type, &made, changed);
  if (status != RESHARD_SUCCESS || !*changed) {
    rs_local_arrays_free(&made);
    return status;
  }
  *p = properties;
  *mapped = made;
  return RESHARD_SUCCESS;
}

/* --- Sharded tensors --------------------------------------------------------------------------------------------- */

reshard_device_type rs_metadata_type(reshard_metadata metadata, reshard_sharder sharder) {
  return metadata->n > 0 ? metadata->shards[0].placement.type : sharder->device->device->type;
}

reshard_status rs_metadata_as(reshard_metadata metadata, const reshard_properties *properties, reshard_device_type type,
                              reshard_metadata *as) {
  reshard_metadata made;
  RS_TRY(rs_metadata_new(properties, metadata->ndim, metadata->shape, metadata->n, &made));
  for (int64_t i = 0; i < metadata->n; i++) {
    made->shards[i] = metadata->shards[i];
    reshard_remote_device *placement = &made->shards[i].placement;
    if (placement->type != type)
      *placement = (reshard_remote_device){placement->rank, type, -1};
  }
  *as = made;
  return RESHARD_SUCCESS;
}

reshard_status rs_sharded_map(reshard_sharded_tensor t, const rs_tensor_mapper *m, reshard_sharded_tensor *mapped) {
  reshard_properties properties = reshard_metadata_properties(t->metadata);
  reshard_device_type type = rs_metadata_type(t->metadata, t->sharder);
  reshard_metadata metadata = NULL;
  rs_local_arrays local;
  bool changed;
  *mapped = NULL;
  RS_TRY(rs_local_arrays_map(t->sharder, &t->local, m, &properties, &type, &local, &changed));
  if (!changed)
    return RESHARD_SUCCESS;
  reshard_status status = rs_metadata_as(t->metadata, &properties, type, &metadata);
  RS_THEN(status, rs_sharded_new(t->sharder, metadata, &local, mapped));
  if (status != RESHARD_SUCCESS) {
    reshard_metadata_release(metadata);
    rs_local_arrays_free(&local);
  }
  return status;
}
