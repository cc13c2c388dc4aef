/* Sharded tensors: made, and asked. */
#include "sharded/sharder.h"

#include "metadata/group.h"
#include "metadata/serialize.h"

#include <stdlib.h>
#include <string.h>

reshard_status rs_sharded_new(reshard_sharder sharder, reshard_metadata metadata, const rs_local_arrays *local,
                              reshard_sharded_tensor *tensor) {
  struct reshard_sharded_tensor_s *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  atomic_init(&made->references, 1);
  made->sharder = sharder;
  made->metadata = metadata;
  made->local = *local;
  *tensor = made;
  return RESHARD_SUCCESS;
}

reshard_sharded_tensor reshard_sharded_tensor_retain(reshard_sharded_tensor tensor) { return RS_RETAIN(tensor); }

void reshard_sharded_tensor_release(reshard_sharded_tensor tensor) {
  if (!RS_DROP(tensor))
    return;
  reshard_metadata_release(tensor->metadata);
  reshard_metadata_release(tensor->holders);
  rs_local_arrays_free(&tensor->local);
  free(tensor);
}

reshard_status rs_sharded_return(reshard_status status, reshard_sharded_tensor made, reshard_sharded_tensor *tensor) {
  RS_TRY_OR(status, reshard_sharded_tensor_release(made));
  *tensor = made;
  return RESHARD_SUCCESS;
}

/* Makes the tensor of metadata and this rank's arrays. */
static reshard_status wrap_shards(reshard_sharder s, reshard_metadata metadata, int replicated, int64_t n,
                                  reshard_tensor const *arrays, reshard_sharded_tensor *tensor) {
  reshard_layout layout;
  rs_local_arrays local;
  RS_TRY(reshard_metadata_layout(metadata, &s->group, replicated, &layout));
  reshard_status status = reshard_layout_check_source(layout);
  RS_THEN(status, rs_local_arrays_wrap("shard", layout, s->comm->rank, reshard_metadata_properties(metadata).dtype, n,
                                       arrays, &local));
  reshard_layout_release(layout);
  RS_TRY(status);
  reshard_metadata_retain(metadata);
  status = rs_sharded_new(s, metadata, &local, tensor);
  if (status != RESHARD_SUCCESS) {
    reshard_metadata_release(metadata);
    rs_local_arrays_free(&local);
  }
  return status;
}

static reshard_status check_shard_list(const char *call, int64_t n, const void *list,
                                       const reshard_sharded_tensor *tensor) {
  RS_TRY(RS_GIVEN(call, tensor));
  if (n < 0 || (n > 0 && list == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld shards, list %s", call, (long long)n,
                    list == NULL ? "NULL" : "given");
  return RESHARD_SUCCESS;
}

static reshard_status build_local(reshard_sharder s, int ndim, const int64_t *shape, int64_t n,
                                  const reshard_local_shard *shards, const reshard_sharded_tensor *tensor,
                                  reshard_metadata *local) {
  RS_TRY(check_shard_list("reshard_sharded_tensor_from_local", n, shards, tensor));
  return n == 0 ? RESHARD_SUCCESS
                : reshard_metadata_build_local(ndim, shape, n, shards, rs_group_at(&s->group, s->comm->rank), local);
}

/* Makes the tensor once the global metadata are known. */
static reshard_status wrap_local_shards(reshard_sharder s, reshard_metadata global, int64_t n,
                                        const reshard_local_shard *shards, reshard_sharded_tensor *tensor) {
  reshard_tensor *arrays;
  RS_TRY(rs_alloc(&arrays, n, sizeof *arrays));
  for (int64_t i = 0; i < n; i++)
    arrays[i] = shards[i].tensor;
  reshard_status status = wrap_shards(s, global, 0, n, arrays, tensor);
  free(arrays);
  return status;
}

reshard_status reshard_sharded_tensor_from_local(reshard_sharder s, int ndim, const int64_t *shape, int64_t n,
                                                 const reshard_local_shard *shards, reshard_sharded_tensor *tensor) {
  if (s == NULL)
    return rs_error_null("reshard_sharded_tensor_from_local", "sharder");
  RS_CALL(s->comm, 0);
  reshard_metadata local = NULL, global = NULL;
  reshard_sharded_tensor made = NULL;
  reshard_status status = build_local(s, ndim, shape, n, shards, tensor, &local);
  status = rs_metadata_build_global(s->comm, &s->group, 1, &local, status, -1, &global);
  reshard_metadata_release(local);
  RS_TRY(status);
  status = rs_agree(s->comm, wrap_local_shards(s, global, n, shards, &made));
  reshard_metadata_release(global);
  return rs_sharded_return(status, made, tensor);
}

/* Shapes and dtype are compared with the layout elsewhere. */
reshard_status rs_check_flags(const reshard_properties *p, int64_t n, reshard_tensor const *tensors) {
  for (int64_t i = 0; i < n; i++) {
    if (tensors[i] == NULL)
      continue;
    const reshard_tensor_info *info = &tensors[i]->info;
    if (info->requires_grad != p->requires_grad || info->pin_memory != p->pin_memory)
      return rs_error(RESHARD_ERROR_INVALID,
                      "shard %lld has requires_grad %d and pin_memory %d, the tensor should have %d and %d",
                      (long long)i, info->requires_grad, info->pin_memory, p->requires_grad, p->pin_memory);
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_sharded_tensor_from_metadata(reshard_sharder s, reshard_metadata metadata, int64_t n,
                                                    reshard_tensor const *tensors, reshard_sharded_tensor *tensor) {
  static const char call[] = "reshard_sharded_tensor_from_metadata";
  if (s == NULL || metadata == NULL)
    return rs_error_null(call, s == NULL ? "sharder" : "metadata");
  RS_TRY(check_shard_list(call, n, tensors, tensor));
  reshard_properties properties = reshard_metadata_properties(metadata);
  RS_TRY(rs_check_flags(&properties, n, tensors));
  return wrap_shards(s, metadata, 1, n, tensors, tensor);
}

reshard_status rs_sharded_replicated(reshard_sharder s, reshard_metadata holders, reshard_metadata once, int64_t n,
                                     reshard_tensor const *tensors, reshard_sharded_tensor *tensor) {
  reshard_sharded_tensor made;
  RS_TRY(wrap_shards(s, holders, 1, n, tensors, &made));
  if (once != holders) {
    made->holders = made->metadata;
    made->metadata = reshard_metadata_retain(once);
  }
  *tensor = made;
  return RESHARD_SUCCESS;
}

/* Makes the tensor of a layout and its arrays, which are taken over, or freed after an error. */
static reshard_status build_tensor(reshard_sharder s, const reshard_properties *properties, rs_local_arrays *local,
                                   reshard_sharded_tensor *tensor) {
  reshard_metadata metadata = NULL;
  reshard_status status = rs_sharder_describe(s, properties, local->layout, &metadata);
  RS_THEN(status, rs_sharded_new(s, metadata, local, tensor));
  if (status == RESHARD_SUCCESS)
    return status;
  reshard_metadata_release(metadata);
  rs_local_arrays_free(local);
  return status;
}

reshard_status reshard_sharded_tensor_from_layout(reshard_sharder s, reshard_layout layout,
                                                  const reshard_properties *properties, int64_t n,
                                                  reshard_tensor const *tensors, reshard_sharded_tensor *tensor) {
  static const char call[] = "reshard_sharded_tensor_from_layout";
  rs_local_arrays local;
  RS_TRY(rs_check_new(call, s, layout, properties));
  RS_TRY(check_shard_list(call, n, tensors, tensor));
  RS_TRY(rs_check_flags(properties, n, tensors));
  RS_TRY(rs_local_arrays_wrap("shard", layout, s->comm->rank, properties->dtype, n, tensors, &local));
  return build_tensor(s, properties, &local, tensor);
}

reshard_status reshard_sharded_tensor_from_buffers(reshard_sharder s, reshard_layout layout,
                                                   const reshard_properties *properties, void *const *buffers,
                                                   const int64_t *const *strides, reshard_sharded_tensor *tensor) {
  static const char call[] = "reshard_sharded_tensor_from_buffers";
  rs_local_arrays local;
  RS_TRY(rs_check_new(call, s, layout, properties));
  RS_TRY(RS_GIVEN(call, tensor));
  RS_TRY(rs_local_arrays_over(s->device, layout, s->comm->rank, properties, buffers, strides, &local));
  return build_tensor(s, properties, &local, tensor);
}

static reshard_status create_empty(const char *call, reshard_sharder s, reshard_layout layout,
                                   const reshard_properties *properties, void *stream, reshard_sharded_tensor *tensor) {
  rs_local_arrays local;
  RS_TRY(rs_check_new(call, s, layout, properties));
  RS_TRY(RS_GIVEN(call, tensor));
  RS_TRY(rs_local_arrays_create(s->device, layout, s->comm->rank, properties, stream, &local));
  return build_tensor(s, properties, &local, tensor);
}

reshard_status reshard_sharded_tensor_empty(reshard_sharder sharder, reshard_layout layout,
                                            const reshard_properties *properties, void *stream,
                                            reshard_sharded_tensor *tensor) {
  return create_empty("reshard_sharded_tensor_empty", sharder, layout, properties, stream, tensor);
}

static reshard_status create_filled(const char *call, reshard_sharder sharder, reshard_layout layout,
                                    const reshard_properties *properties, const void *element, void *stream,
                                    reshard_sharded_tensor *tensor) {
  reshard_sharded_tensor made;
  RS_TRY(RS_GIVEN(call, tensor));
  RS_TRY(create_empty(call, sharder, layout, properties, stream, &made));
  return rs_sharded_return(rs_local_arrays_fill(sharder->device, &made->local, sharder->comm->rank, element, stream),
                           made, tensor);
}

reshard_status reshard_sharded_tensor_zeros(reshard_sharder sharder, reshard_layout layout,
                                            const reshard_properties *properties, void *stream,
                                            reshard_sharded_tensor *tensor) {
  return create_filled("reshard_sharded_tensor_zeros", sharder, layout, properties, NULL, stream, tensor);
}

reshard_status reshard_sharded_tensor_full(reshard_sharder sharder, reshard_layout layout,
                                           const reshard_properties *properties, const void *element, void *stream,
                                           reshard_sharded_tensor *tensor) {
  static const char call[] = "reshard_sharded_tensor_full";
  RS_TRY(RS_GIVEN(call, element));
  return create_filled(call, sharder, layout, properties, element, stream, tensor);
}

reshard_status reshard_sharded_tensor_generate(reshard_sharder sharder, reshard_layout layout,
                                               const reshard_properties *properties, reshard_fill fill, void *user,
                                               void *stream, reshard_sharded_tensor *tensor) {
  static const char call[] = "reshard_sharded_tensor_generate";
  reshard_sharded_tensor made;
  RS_TRY(RS_GIVEN(call, fill, tensor));
  RS_TRY(create_empty(call, sharder, layout, properties, stream, &made));
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < made->local.n && status == RESHARD_SUCCESS; i++) {
    reshard_box bounds;
    status = rs_local_arrays_bounds(&made->local, sharder->comm->rank, i, &bounds);
    RS_THEN(status, fill(user, made->local.arrays[i], &bounds));
  }
  return rs_sharded_return(status, made, tensor);
}

reshard_metadata reshard_sharded_tensor_metadata(reshard_sharded_tensor tensor) {
  return tensor != NULL ? tensor->metadata : NULL;
}

reshard_layout reshard_sharded_tensor_layout(reshard_sharded_tensor tensor) {
  return tensor != NULL ? tensor->local.layout : NULL;
}

int64_t reshard_sharded_tensor_local_count(reshard_sharded_tensor tensor) {
  return tensor != NULL ? tensor->local.n : 0;
}

reshard_status reshard_sharded_tensor_buffer(reshard_sharded_tensor tensor, int64_t buffer, reshard_tensor *view) {
  RS_TRY(RS_GIVEN("reshard_sharded_tensor_buffer", tensor, view));
  const rs_local_arrays *local = &tensor->local;
  const int64_t rank = tensor->sharder->comm->rank;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  RS_TRY(reshard_layout_buffer_shape(local->layout, rank, buffer, NULL, &ndim, shape));
  for (int64_t i = 0; i < local->n; i++) {
    reshard_array_info a;
    RS_TRY(reshard_layout_array(local->layout, rank, i, &a));
    if (a.buffer != buffer || a.elements == 0)
      continue;
    const reshard_tensor_info *info = &local->arrays[i]->info;
    const int64_t begin = info->offset - a.offset, bytes = (int64_t)local->arrays[i]->storage->bytes;
    int64_t elements;
    RS_TRY(reshard_layout_buffer_elements(local->layout, rank, buffer, &elements));
    if (rs_layout_bundles(local->layout) && bytes > 0 &&
        (begin < 0 || (begin + elements) * (int64_t)reshard_dtype_size(info->dtype) > bytes))
      return rs_error(RESHARD_ERROR_INVALID,
                      "buffer %lld of rank %lld: its arrays were given one by one, in memory of their own",
                      (long long)buffer, (long long)rank);
    return reshard_tensor_as_strided(local->arrays[i], ndim, shape,
                                     rs_layout_bundles(local->layout) ? NULL : info->strides, begin, view);
  }
  return reshard_tensor_create_on(tensor->sharder->device, reshard_metadata_properties(tensor->metadata).dtype, ndim,
                                  shape, NULL, view);
}

reshard_status reshard_sharded_tensor_local(reshard_sharded_tensor tensor, int64_t i, reshard_tensor *array,
                                            reshard_box *bounds) {
  static const char call[] = "reshard_sharded_tensor_local";
  if (tensor == NULL || (array == NULL && bounds == NULL))
    return rs_error_null(call, tensor == NULL ? "tensor" : "array");
  if (i < 0 || i >= tensor->local.n)
    return rs_error(RESHARD_ERROR_INVALID, "%s: array %lld of %lld", call, (long long)i, (long long)tensor->local.n);
  if (bounds != NULL)
    RS_TRY(rs_local_arrays_bounds(&tensor->local, tensor->sharder->comm->rank, i, bounds));
  if (array != NULL)
    *array = tensor->local.arrays[i];
  return RESHARD_SUCCESS;
}
