/* A shape and strides over storage. All that follows from them is computed here, once. */
#include "tensor/tensor.h"

#include "device/stream.h"

#include <stdio.h>
#include <stdlib.h>

/* --- Consequences of a shape and strides ------------------------------------------------------------------------- */

/* Two elements may share memory. Sufficient, and exact for slices and transpositions: by ascending stride, each stride
 * has to step over all that the dims so far span. */
static bool may_overlap(const reshard_tensor_info *info) {
  int order[RESHARD_MAX_DIMS], n = 0;
  for (int d = 0; d < info->ndim; d++) {
    if (info->shape[d] == 1)
      continue;
    int i = n++;
    for (; i > 0 && info->strides[order[i - 1]] > info->strides[d]; i--)
      order[i] = order[i - 1];
    order[i] = d;
  }
  int64_t span = 1; /* elements */
  for (int i = 0; i < n; i++) {
    if (info->strides[order[i]] < span)
      return true;
    span += info->strides[order[i]] * (info->shape[order[i]] - 1);
  }
  return false;
}

static reshard_status check_dims(const char *call, reshard_dtype dtype, int ndim, const int64_t *shape,
                                 const int64_t *strides) {
  if (reshard_dtype_size(dtype) == 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: unknown dtype %d", call, (int)dtype);
  if (ndim < 0 || ndim > RESHARD_MAX_DIMS)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %d dims, 0 to %d are allowed", call, ndim, RESHARD_MAX_DIMS);
  if (ndim > 0 && shape == NULL)
    return rs_error_null(call, "shape");
  for (int d = ndim - 1; d >= 0; d--) {
    if (shape[d] < 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: extent %lld of dim %d is negative", call, (long long)shape[d], d);
    if (strides != NULL && strides[d] < 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: stride %lld of dim %d is negative", call, (long long)strides[d], d);
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_tensor_describe(const char *call, reshard_dtype dtype, int ndim, const int64_t *shape,
                                  const int64_t *strides, reshard_tensor_info *info, size_t *span) {
  char text[RS_SHAPE_TEXT];
  RS_TRY(check_dims(call, dtype, ndim, shape, strides));
  int64_t width = (int64_t)reshard_dtype_size(dtype), step = 1, end = width, elements = 1, bytes;
  *info = (reshard_tensor_info){.dtype = dtype, .ndim = ndim, .contiguous = 1};
  for (int d = ndim - 1; d >= 0; d--) {
    info->shape[d] = shape[d];
    info->strides[d] = strides != NULL ? strides[d] : step;
    info->contiguous &= shape[d] <= 1 || info->strides[d] == step;
    int64_t far;
    if (!rs_mul(step, rs_max(1, shape[d]), &step) || !rs_mul(info->strides[d], width, &far) ||
        !rs_mul(far, rs_max(1, shape[d]) - 1, &far) || !rs_add(end, far, &end))
      return rs_error(RESHARD_ERROR_INVALID, "%s: the bytes of shape %s overflow 63 bits at dim %d", call,
                      rs_shape_text(text, ndim, shape), d);
  }
  if (!rs_mul(step, width, &bytes))
    return rs_error(RESHARD_ERROR_INVALID, "%s: the bytes of shape %s overflow 63 bits", call,
                    rs_shape_text(text, ndim, shape));
  for (int d = 0; d < ndim; d++)
    elements *= shape[d];
  info->elements = elements;
  info->contiguous |= elements == 0;
  info->overlapping = !info->contiguous && may_overlap(info);
  *span = elements > 0 ? (size_t)end : 0;
  return RESHARD_SUCCESS;
}

reshard_status rs_tensor_new(rs_storage *storage, const reshard_tensor_info *info, size_t span, int64_t offset,
                             reshard_tensor *tensor) {
  struct reshard_tensor_s *made;
  RS_TRY(rs_alloc(&made, 1, sizeof *made));
  atomic_init(&made->references, 1);
  atomic_init(&made->flattened, false);
  made->info = *info;
  made->span = span;
  made->storage = storage;
  made->info.offset = offset;
  made->info.device_type = storage->type;
  made->info.device_index = storage->index;
  *tensor = made;
  return RESHARD_SUCCESS;
}

/* --- Making ------------------------------------------------------------------------------------------------------ */

static reshard_status create_tensor(const char *call, reshard_device device, bool pinned, reshard_dtype dtype, int ndim,
                                    const int64_t *shape, void *stream, reshard_tensor *tensor) {
  reshard_tensor_info info;
  rs_storage *storage;
  size_t bytes;
  if (tensor == NULL)
    return rs_error_null(call, "tensor");
  RS_TRY(rs_tensor_describe(call, dtype, ndim, shape, NULL, &info, &bytes));
  if (device != NULL) {
    RS_TRY(rs_stream_check(device->device, stream, call));
    RS_TRY(rs_device_check_capture(call, device->device, stream));
  }
  RS_TRY(rs_storage_create(device, pinned, &storage));
  reshard_status status = rs_storage_alloc(storage, bytes, stream);
  RS_THEN(status, rs_tensor_new(storage, &info, bytes, 0, tensor));
  if (status != RESHARD_SUCCESS)
    rs_storage_release(storage);
  return status;
}

reshard_status reshard_tensor_create(reshard_dtype dtype, int ndim, const int64_t *shape, reshard_tensor *tensor) {
  return create_tensor("reshard_tensor_create", NULL, false, dtype, ndim, shape, NULL, tensor);
}

reshard_status reshard_tensor_create_on(reshard_device device, reshard_dtype dtype, int ndim, const int64_t *shape,
                                        void *stream, reshard_tensor *tensor) {
  static const char call[] = "reshard_tensor_create_on";
  if (device == NULL)
    return rs_error_null(call, "device");
  return create_tensor(call, device, false, dtype, ndim, shape, stream, tensor);
}

reshard_status rs_tensor_create_pinned(reshard_device gpu, reshard_dtype dtype, int ndim, const int64_t *shape,
                                       void *stream, reshard_tensor *tensor) {
  RS_TRY(create_tensor("rs_tensor_create_pinned", gpu, true, dtype, ndim, shape, stream, tensor));
  (*tensor)->info.pin_memory = 1;
  return RESHARD_SUCCESS;
}

static reshard_status wrap_memory(const char *call, reshard_device device, reshard_dtype dtype, int ndim,
                                  const int64_t *shape, const int64_t *strides, void *data,
                                  void (*release)(void *user, void *data), void *user, reshard_tensor *tensor) {
  reshard_tensor_info info;
  rs_storage *storage;
  size_t span;
  if (tensor == NULL)
    return rs_error_null(call, "tensor");
  RS_TRY(rs_tensor_describe(call, dtype, ndim, shape, strides, &info, &span));
  if (data == NULL && info.elements > 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: data is NULL and should hold %lld elements", call,
                    (long long)info.elements);
  RS_TRY(rs_storage_borrow(device, data, span, release, user, &storage));
  reshard_status status = rs_tensor_new(storage, &info, span, 0, tensor);
  if (status != RESHARD_SUCCESS) {
    storage->release = NULL; /* the memory stays the caller's */
    rs_storage_release(storage);
  }
  return status;
}

reshard_status reshard_tensor_wrap(reshard_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides,
                                   void *data, void (*release)(void *user, void *data), void *user,
                                   reshard_tensor *tensor) {
  return wrap_memory("reshard_tensor_wrap", NULL, dtype, ndim, shape, strides, data, release, user, tensor);
}

reshard_status reshard_tensor_wrap_on(reshard_device device, reshard_dtype dtype, int ndim, const int64_t *shape,
                                      const int64_t *strides, void *data, void (*release)(void *user, void *data),
                                      void *user, reshard_tensor *tensor) {
  return wrap_memory("reshard_tensor_wrap_on", device, dtype, ndim, shape, strides, data, release, user, tensor);
}

/* --- Its life ---------------------------------------------------------------------------------------------------- */

void reshard_tensor_set_requires_grad(reshard_tensor tensor, int requires_grad) {
  if (tensor != NULL)
    tensor->info.requires_grad = requires_grad != 0;
}

void reshard_tensor_set_pin_memory(reshard_tensor tensor, int pin_memory) {
  if (tensor != NULL)
    tensor->info.pin_memory = pin_memory != 0;
}

reshard_tensor reshard_tensor_retain(reshard_tensor tensor) { return RS_RETAIN(tensor); }

void reshard_tensor_release(reshard_tensor tensor) {
  if (!RS_DROP(tensor))
    return;
  rs_storage_release(tensor->storage);
  free(tensor);
}

reshard_status reshard_tensor_get_info(reshard_tensor tensor, reshard_tensor_info *info) {
  if (tensor == NULL || info == NULL)
    return rs_error_null("reshard_tensor_get_info", tensor == NULL ? "tensor" : "info");
  *info = tensor->info;
  info->data = rs_tensor_data(tensor);
  info->storage_bytes = tensor->storage->bytes;
  return RESHARD_SUCCESS;
}

/* --- Texts and casts --------------------------------------------------------------------------------------------- */

const char *rs_device_text(char buffer[RS_DEVICE_TEXT], reshard_device_type type, int index) {
  snprintf(buffer, RS_DEVICE_TEXT, type == RESHARD_DEVICE_CPU ? "the CPU" : "cuda:%d", index);
  return buffer;
}

reshard_status rs_tensor_list_cast(rs_casts *casts, reshard_tensor src, reshard_tensor dst) {
  const reshard_tensor_info *from = &src->info, *to = &dst->info;
  rs_axis axes[RESHARD_MAX_DIMS];
  int64_t read = (int64_t)reshard_dtype_size(from->dtype), written = (int64_t)reshard_dtype_size(to->dtype);
  for (int d = 0; d < from->ndim; d++)
    axes[d] = (rs_axis){from->shape[d], from->strides[d] * read, to->strides[d] * written};
  return rs_casts_add(casts, rs_tensor_data(src), rs_tensor_data(dst), from->dtype, to->dtype, from->ndim, axes);
}
