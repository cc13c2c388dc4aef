/* A shape and strides over memory that somebody owns: the tensor itself, a caller, or another tensor. */
#define _DEFAULT_SOURCE /* MADV_HUGEPAGE */
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 256, HUGE = 2 << 20 };

/* Shape, strides, number of elements and of bytes. Extents of 0 count as 1 and strides that are not walked count, too:
 * so every product that a user of the tensor makes of them fits. */
static reshard_status describe(const char *call, reshard_dtype dtype, int ndim, const int64_t *shape,
                               const int64_t *strides, reshard_tensor_info *info, int64_t *bytes) {
  int64_t width = (int64_t)reshard_dtype_size(dtype), step = 1, reach = width, elements = 1;
  char text[RS_SHAPE_TEXT];
  if (width == 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: unknown dtype %d", call, (int)dtype);
  if (ndim < 0 || ndim > RESHARD_MAX_DIMS)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %d dims, 0 to %d are allowed", call, ndim, RESHARD_MAX_DIMS);
  if (ndim > 0 && shape == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: shape is NULL", call);
  *info = (reshard_tensor_info){.dtype = dtype, .ndim = ndim, .contiguous = 1};
  for (int d = ndim - 1; d >= 0; d--) {
    if (shape[d] < 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: extent %lld of dim %d is negative", call, (long long)shape[d], d);
    if (strides != NULL && strides[d] < 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: stride %lld of dim %d is negative", call, (long long)strides[d], d);
    info->shape[d] = shape[d];
    info->strides[d] = strides != NULL ? strides[d] : step;
    info->contiguous &= shape[d] <= 1 || info->strides[d] == step;
    int64_t far;
    if (!rs_mul(step, rs_max(1, shape[d]), &step) || !rs_mul(info->strides[d], width, &far) ||
        !rs_mul(far, rs_max(1, shape[d]) - 1, &far) || !rs_add(reach, far, &reach))
      return rs_error(RESHARD_ERROR_INVALID, "%s: the bytes of shape %s overflow 63 bits at dim %d", call,
                      rs_shape_text(text, ndim, shape), d);
  }
  for (int d = 0; d < ndim; d++)
    elements *= shape[d];
  if (!rs_mul(step, width, &step))
    return rs_error(RESHARD_ERROR_INVALID, "%s: the bytes of shape %s overflow 63 bits", call,
                    rs_shape_text(text, ndim, shape));
  info->elements = elements;
  info->contiguous |= elements == 0;
  *bytes = elements * width;
  return RESHARD_SUCCESS;
}

static reshard_status make(const reshard_tensor_info *info, void *data, void (*release)(void *user, void *data),
                           void *user, reshard_tensor *tensor) {
  struct reshard_tensor_s *made;
  RS_TRY(rs_alloc(&made, 1, sizeof *made));
  atomic_init(&made->references, 1);
  atomic_init(&made->flattened, false);
  made->info = *info;
  made->info.data = data;
  made->release = release;
  made->user = user;
  *tensor = made;
  return RESHARD_SUCCESS;
}

static void release_memory(void *user, void *data) {
  (void)user;
  free(data);
}

/* In huge pages where they fit, since touching new pages is what takes the time. */
reshard_status rs_tensor_memory(int64_t bytes, void **data) {
  void *at = NULL;
  bool huge = bytes >= HUGE;
  if (bytes > 0 && posix_memalign(&at, huge ? HUGE : ALIGNMENT, (size_t)bytes) != 0)
    return rs_error_memory((size_t)bytes);
#if defined(MADV_HUGEPAGE)
  if (huge)
    (void)madvise(at, (size_t)bytes / HUGE * HUGE, MADV_HUGEPAGE);
#endif
  *data = at;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tensor_create(reshard_dtype dtype, int ndim, const int64_t *shape, reshard_tensor *tensor) {
  reshard_tensor_info info;
  int64_t bytes = 0;
  void *data = NULL;
  if (tensor == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_tensor_create: tensor is NULL");
  RS_TRY(describe("reshard_tensor_create", dtype, ndim, shape, NULL, &info, &bytes));
  RS_TRY(rs_tensor_memory(bytes, &data));
  reshard_status status = make(&info, data, release_memory, NULL, tensor);
  if (status != RESHARD_SUCCESS)
    free(data);
  return status;
}

reshard_status reshard_tensor_wrap(reshard_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides,
                                   void *data, void (*release)(void *user, void *data), void *user,
                                   reshard_tensor *tensor) {
  reshard_tensor_info info;
  int64_t bytes = 0;
  if (tensor == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_tensor_wrap: tensor is NULL");
  RS_TRY(describe("reshard_tensor_wrap", dtype, ndim, shape, strides, &info, &bytes));
  if (data == NULL && info.elements > 0)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_tensor_wrap: data is NULL and should hold %lld elements",
                    (long long)info.elements);
  return make(&info, data, release, user, tensor);
}

static void release_parent(void *user, void *data) {
  (void)data;
  reshard_tensor_release(user);
}

reshard_status rs_tensor_view(reshard_tensor parent, int64_t offset, int ndim, const int64_t *shape,
                              reshard_tensor *view) {
  char *data = parent->info.data;
  if (data != NULL)
    data += offset * (int64_t)reshard_dtype_size(parent->info.dtype);
  RS_TRY(reshard_tensor_wrap(parent->info.dtype, ndim, shape, NULL, data, release_parent, parent, view));
  reshard_tensor_retain(parent);
  (*view)->info.requires_grad = parent->info.requires_grad;
  (*view)->info.pin_memory = parent->info.pin_memory;
  return RESHARD_SUCCESS;
}

void reshard_tensor_set_requires_grad(reshard_tensor tensor, int requires_grad) {
  if (tensor != NULL)
    tensor->info.requires_grad = requires_grad != 0;
}

void reshard_tensor_set_pin_memory(reshard_tensor tensor, int pin_memory) {
  if (tensor != NULL)
    tensor->info.pin_memory = pin_memory != 0;
}

reshard_tensor reshard_tensor_retain(reshard_tensor tensor) {
  if (tensor != NULL)
    atomic_fetch_add_explicit(&tensor->references, 1, memory_order_relaxed);
  return tensor;
}

void reshard_tensor_release(reshard_tensor tensor) {
  if (tensor == NULL || atomic_fetch_sub_explicit(&tensor->references, 1, memory_order_acq_rel) != 1)
    return;
  if (tensor->release != NULL)
    tensor->release(tensor->user, tensor->info.data);
  free(tensor);
}

reshard_status reshard_tensor_get_info(reshard_tensor tensor, reshard_tensor_info *info) {
  if (tensor == NULL || info == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_tensor_get_info: %s is NULL", tensor == NULL ? "tensor" : "info");
  *info = tensor->info;
  return RESHARD_SUCCESS;
}

bool rs_tensor_distinct(const reshard_tensor_info *info) {
  int order[RESHARD_MAX_DIMS], n = 0;
  if (info->contiguous)
    return true;
  for (int d = 0; d < info->ndim; d++) { /* by stride */
    if (info->shape[d] == 1)
      continue;
    int i = n++;
    for (; i > 0 && info->strides[order[i - 1]] > info->strides[d]; i--)
      order[i] = order[i - 1];
    order[i] = d;
  }
  int64_t reach = 1; /* elements that the dims so far span: each stride has to step over all of it */
  for (int i = 0; i < n; i++) {
    if (info->strides[order[i]] < reach)
      return false;
    reach += info->strides[order[i]] * (info->shape[order[i]] - 1);
  }
  return true;
}
