/* Local arrays: a rank's tensors of a layout, one per array, dense where they are made here. The boxes of a flat piece
 * lie end to end in one buffer, runs of parts side by side; both are views of it. */
#include "device/memory/staging.h"
#include "sharded/sharder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static reshard_status alloc_arrays(reshard_layout layout, int64_t n, rs_local_arrays *local) {
  *local = (rs_local_arrays){.n = n};
  RS_TRY(rs_alloc_zero(&local->arrays, n, sizeof *local->arrays));
  local->layout = reshard_layout_retain(layout);
  return RESHARD_SUCCESS;
}

void rs_local_arrays_free(rs_local_arrays *local) {
  for (int64_t i = 0; local->arrays != NULL && i < local->n; i++)
    reshard_tensor_release(local->arrays[i]);
  free(local->arrays);
  reshard_layout_release(local->layout);
  *local = (rs_local_arrays){0};
}

static void set_flags(const rs_local_arrays *local, const reshard_properties *properties) {
  for (int64_t i = 0; i < local->n; i++) {
    reshard_tensor_set_requires_grad(local->arrays[i], properties->requires_grad);
    reshard_tensor_set_pin_memory(local->arrays[i], properties->pin_memory);
  }
}

static reshard_status create_bundle(reshard_device device, reshard_layout layout, int64_t rank,
                                    const reshard_properties *properties, void *stream, rs_local_arrays *local) {
  int64_t elements;
  reshard_tensor whole;
  RS_TRY(reshard_layout_buffer_elements(layout, rank, 0, &elements));
  RS_TRY(reshard_tensor_create_on(device, properties->dtype, 1, &elements, stream, &whole));
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < local->n && status == RESHARD_SUCCESS; i++) {
    reshard_array_info info;
    status = reshard_layout_array(layout, rank, i, &info);
    RS_THEN(status, reshard_tensor_as_strided(whole, reshard_layout_ndim(layout), info.shape, info.strides, info.offset,
                                              &local->arrays[i]));
  }
  reshard_tensor_release(whole); /* the views keep the storage */
  return status;
}

static reshard_status create_arrays(reshard_device device, reshard_layout layout, int64_t rank,
                                    const reshard_properties *properties, void *stream, rs_local_arrays *local) {
  for (int64_t i = 0; i < local->n; i++) {
    reshard_array_info info;
    RS_TRY(reshard_layout_array(layout, rank, i, &info));
    RS_TRY(reshard_tensor_create_on(device, properties->dtype, reshard_layout_ndim(layout), info.shape, stream,
                                    &local->arrays[i]));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_local_arrays_create(reshard_device device, reshard_layout layout, int64_t rank,
                                      const reshard_properties *properties, void *stream, rs_local_arrays *local) {
  rs_local_arrays made;
  int64_t n;
  RS_TRY(reshard_layout_array_count(layout, rank, &n));
  RS_TRY(alloc_arrays(layout, n, &made));
  bool bundles = rs_layout_bundles(layout);
  RS_TRY_OR((bundles ? create_bundle : create_arrays)(device, layout, rank, properties, stream, &made),
            rs_local_arrays_free(&made));
  set_flags(&made, properties);
  *local = made;
  return RESHARD_SUCCESS;
}

/* --- Filling ----------------------------------------------------------------------------------------------------- */

/* Fills contiguous elements: copies the first, then doubles what is filled. */
static reshard_status fill_memory(rs_device *device, char *data, size_t bytes, size_t width, const char *element,
                                  bool bytes_alike, void *stream) {
  if (bytes_alike)
    return device->memory->memset(device, data, *element, bytes, stream);
  RS_TRY(device->memory->memcpy(device, data, element, width, stream));
  for (size_t done = width, more; done < bytes; done += more) {
    more = done < bytes - done ? done : bytes - done;
    RS_TRY(device->memory->memcpy(device, data + done, data, more, stream));
  }
  return RESHARD_SUCCESS;
}

/* Arrays that share a buffer are filled together: between the rows of one are those of others. */
static reshard_status fill_arrays(rs_device *device, const rs_local_arrays *local, int64_t rank, const char *element,
                                  bool bytes_alike, void *stream) {
  for (int64_t i = 0; i < local->n; i++) {
    int64_t elements = local->arrays[i]->info.elements;
    size_t width = reshard_dtype_size(local->arrays[i]->info.dtype);
    if (elements == 0)
      continue;
    char *data = rs_tensor_data(local->arrays[i]);
    if (rs_layout_bundles(local->layout)) {
      reshard_array_info info;
      RS_TRY(reshard_layout_array(local->layout, rank, i, &info));
      RS_TRY(reshard_layout_buffer_elements(local->layout, rank, info.buffer, &elements));
      data -= info.offset * (int64_t)width;
      i = local->n;
    }
    RS_TRY(fill_memory(device, data, (size_t)elements * width, width, element, bytes_alike, stream));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_local_arrays_fill(reshard_device device, const rs_local_arrays *local, int64_t rank,
                                    const void *element, void *stream) {
  static const char zero[16];
  if (local->n == 0)
    return RESHARD_SUCCESS;
  size_t width = reshard_dtype_size(local->arrays[0]->info.dtype);
  const char *at = element != NULL ? element : zero;
  bool bytes_alike = memcmp(at, at + 1, width - 1) == 0;
  if (bytes_alike || !device->device->streams->asynchronous)
    return fill_arrays(device->device, local, rank, at, bytes_alike, stream);
  rs_staging *staging; /* the caller may change the element before the stream reads it */
  rs_staging_block *piece;
  void *kept;
  RS_TRY(rs_device_staging(device, &staging));
  RS_TRY(rs_staging_take(staging, width, &piece, &kept));
  memcpy(kept, at, width);
  reshard_status status = fill_arrays(device->device, local, rank, kept, false, stream);
  reshard_status given = rs_staging_give(staging, piece, stream);
  return status != RESHARD_SUCCESS ? status : given;
}

/* --- Given arrays ------------------------------------------------------------------------------------------------ */

/* Compares array i of a rank with the tensor given for it; name: "shard 3". */
static reshard_status check_array(const char *name, reshard_layout layout, const reshard_array_info *array,
                                  reshard_dtype dtype, reshard_tensor tensor) {
  char given[RS_SHAPE_TEXT], wanted[RS_SHAPE_TEXT];
  int ndim = reshard_layout_ndim(layout);
  rs_shape_text(wanted, ndim, array->shape);
  if (tensor == NULL)
    return array->elements == 0 ? RESHARD_SUCCESS
                                : rs_error(RESHARD_ERROR_INVALID, "%s is NULL and should be of shape %s", name, wanted);
  const reshard_tensor_info *info = &tensor->info;
  if (!rs_shape_equal(info->ndim, info->shape, ndim, array->shape))
    return rs_error(RESHARD_ERROR_INVALID, "%s is of shape %s and should be of %s", name,
                    rs_shape_text(given, info->ndim, info->shape), wanted);
  if (info->dtype != dtype)
    return rs_error(RESHARD_ERROR_INVALID, "%s is %s and should be %s", name, reshard_dtype_string(info->dtype),
                    reshard_dtype_string(dtype));
  return RESHARD_SUCCESS;
}

static bool has_strides(const reshard_tensor_info *info, const int64_t *strides) {
  for (int d = 0; d < info->ndim; d++)
    if (info->shape[d] > 1 && info->strides[d] != strides[d])
      return false;
  return true;
}

static reshard_status check_arrays(const char *what, reshard_layout layout, int64_t rank, reshard_dtype dtype,
                                   int64_t n, reshard_tensor const *tensors) {
  const char *buffer = NULL; /* of arrays that share one: where the first says that it begins */
  for (int64_t i = 0; i < n; i++) {
    reshard_array_info array;
    char name[64];
    snprintf(name, sizeof name, n > 1 ? "%s %lld" : "%s", what, (long long)i);
    RS_TRY(reshard_layout_array(layout, rank, i, &array));
    RS_TRY(check_array(name, layout, &array, dtype, tensors[i]));
    if (!rs_layout_bundles(layout) || array.elements == 0)
      continue;
    RS_TRY(rs_tensor_ready(name, tensors[i])); /* a buffer of several needs its memory */
    const char *begin = (const char *)rs_tensor_data(tensors[i]) - array.offset * (int64_t)reshard_dtype_size(dtype);
    bool strides = has_strides(&tensors[i]->info, array.strides);
    bool flat = reshard_layout_get_kind(layout) == RESHARD_LAYOUT_FLAT;
    if (!strides || (buffer != NULL && begin != buffer))
      return rs_error(RESHARD_ERROR_INVALID, "%s %s: %s", name,
                      !strides ? "is not contiguous" : "does not follow the one before it in memory",
                      flat ? "the boxes of a flat piece lie end to end"
                           : "the arrays of a rank lie side by side in one contiguous buffer");
    buffer = begin;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_local_arrays_wrap(const char *what, reshard_layout layout, int64_t rank, reshard_dtype dtype,
                                    int64_t n, reshard_tensor const *tensors, rs_local_arrays *local) {
  int64_t wanted;
  rs_local_arrays made;
  RS_TRY(reshard_layout_array_count(layout, rank, &wanted));
  if (n != wanted)
    return rs_error(RESHARD_ERROR_INVALID, "%lld %ss are given, rank %lld has %lld", (long long)n, what,
                    (long long)rank, (long long)wanted);
  RS_TRY(check_arrays(what, layout, rank, dtype, n, tensors));
  RS_TRY(alloc_arrays(layout, n, &made));
  for (int64_t i = 0; i < n; i++)
    made.arrays[i] = reshard_tensor_retain(tensors[i]);
  *local = made;
  return RESHARD_SUCCESS;
}

/* A view of the buffer that has array i. */
static reshard_status wrap_array(reshard_device device, reshard_layout layout, int64_t rank, reshard_dtype dtype,
                                 void *const *buffers, const int64_t *const *strides, int64_t i,
                                 reshard_tensor *array) {
  reshard_array_info a;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  reshard_tensor whole;
  RS_TRY(reshard_layout_array(layout, rank, i, &a));
  RS_TRY(reshard_layout_buffer_shape(layout, rank, a.buffer, NULL, &ndim, shape));
  RS_TRY(reshard_tensor_wrap_on(device, dtype, ndim, shape, strides != NULL ? strides[a.buffer] : NULL,
                                buffers[a.buffer], NULL, NULL, &whole));
  if (!rs_layout_bundles(layout)) {
    *array = whole;
    return RESHARD_SUCCESS;
  }
  reshard_status status = RESHARD_SUCCESS;
  if (!whole->info.contiguous)
    status = rs_error(RESHARD_ERROR_INVALID,
                      "buffer %lld of rank %lld is not contiguous, as flat pieces and buffers of several arrays are",
                      (long long)a.buffer, (long long)rank);
  RS_THEN(status, reshard_tensor_as_strided(whole, reshard_layout_ndim(layout), a.shape, a.strides, a.offset, array));
  reshard_tensor_release(whole);
  return status;
}

reshard_status rs_local_arrays_over(reshard_device device, reshard_layout layout, int64_t rank,
                                    const reshard_properties *properties, void *const *buffers,
                                    const int64_t *const *strides, rs_local_arrays *local) {
  int64_t n;
  RS_TRY(reshard_layout_array_count(layout, rank, &n));
  if (n > 0)
    RS_TRY(RS_GIVEN("reshard_sharded_tensor_from_buffers", buffers));
  RS_TRY(alloc_arrays(layout, n, local));
  for (int64_t i = 0; i < n; i++)
    RS_TRY_OR(wrap_array(device, layout, rank, properties->dtype, buffers, strides, i, &local->arrays[i]),
              rs_local_arrays_free(local));
  set_flags(local, properties);
  return RESHARD_SUCCESS;
}

int64_t rs_local_arrays_bytes(const rs_local_arrays *local) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < local->n; i++)
    if (local->arrays[i] != NULL)
      bytes += local->arrays[i]->info.elements * (int64_t)reshard_dtype_size(local->arrays[i]->info.dtype);
  return bytes;
}

reshard_status rs_local_arrays_bounds(const rs_local_arrays *local, int64_t rank, int64_t i, reshard_box *bounds) {
  reshard_layout layout = local->layout;
  reshard_box box = {0};
  if (reshard_layout_get_kind(layout) >= RESHARD_LAYOUT_FLAT) { /* boxes have a place even where they are empty */
    rs_layout_cell_box(layout, rs_layout_cell(layout, rank, i), box.offset, box.extent);
    for (int d = 0; d < reshard_layout_ndim(layout); d++)
      box.extent[d] -= box.offset[d];
    *bounds = box;
    return RESHARD_SUCCESS;
  }
  for (int d = 0; d < reshard_layout_ndim(layout); d++) {
    reshard_interval first, last;
    int64_t n;
    RS_TRY(reshard_layout_array_intervals(layout, rank, i, d, 0, 1, &first, &n));
    if (n == 0) { /* an empty piece at the end of the dim */
      box.offset[d] = reshard_layout_shape(layout)[d];
      continue;
    }
    RS_TRY(reshard_layout_array_intervals(layout, rank, i, d, n - 1, 1, &last, &n));
    box.offset[d] = first.begin;
    box.extent[d] = last.end - first.begin;
  }
  *bounds = box;
  return RESHARD_SUCCESS;
}
