/* Views: other shapes over the same storage. Each is strides and an offset; their byte range is checked in one place,
 * against the bytes that the storage has now. A view of freed storage has data again once the storage is allocated with
 * enough bytes. */
#include "tensor/tensor.h"

#include <string.h>

/* Makes a view within the storage, with the flags of the tensor. */
static reshard_status make_view(const char *call, reshard_tensor t, int ndim, const int64_t *shape,
                                const int64_t *strides, int64_t offset, reshard_tensor *view) {
  reshard_tensor_info info;
  size_t span;
  int64_t end = 0;
  char shape_text[RS_SHAPE_TEXT], strides_text[RS_SHAPE_TEXT];
  RS_TRY(RS_GIVEN(call, view));
  RS_TRY(rs_tensor_describe(call, t->info.dtype, ndim, shape, strides, &info, &span));
  if (offset < 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: offset %lld is negative", call, (long long)offset);
  bool fits = rs_mul(offset, (int64_t)reshard_dtype_size(info.dtype), &end) && rs_add(end, (int64_t)span, &end);
  bool freed = t->storage->bytes == 0 && !t->storage->borrowed;
  if (info.elements > 0 && (!fits || (!freed && (size_t)end > t->storage->bytes)))
    return rs_error(
        RESHARD_ERROR_INVALID, "%s: shape %s with strides %s at offset %lld reaches %s%lld bytes, the storage has %zu",
        call, rs_shape_text(shape_text, ndim, info.shape), rs_shape_text(strides_text, ndim, info.strides),
        (long long)offset, fits ? "" : "beyond ", fits ? (long long)end : (long long)INT64_MAX, t->storage->bytes);
  info.requires_grad = t->info.requires_grad;
  info.pin_memory = t->info.pin_memory;
  rs_storage_retain(t->storage);
  reshard_status status = rs_tensor_new(t->storage, &info, span, offset, view);
  if (status != RESHARD_SUCCESS)
    rs_storage_release(t->storage);
  return status;
}

static reshard_status check_tensor(const char *call, reshard_tensor t) {
  return t != NULL ? RESHARD_SUCCESS : rs_error_null(call, "tensor");
}

reshard_status reshard_tensor_as_strided(reshard_tensor t, int ndim, const int64_t *shape, const int64_t *strides,
                                         int64_t offset, reshard_tensor *view) {
  static const char call[] = "reshard_tensor_as_strided";
  RS_TRY(check_tensor(call, t));
  return make_view(call, t, ndim, shape, strides, offset, view);
}

/* Converts a dim that may be counted from the end. */
static reshard_status find_dim(const char *call, const reshard_tensor_info *info, int given, int *dim) {
  if (given < -info->ndim || given >= info->ndim)
    return rs_error(RESHARD_ERROR_INVALID, "%s: dim %d of a tensor of %d dims", call, given, info->ndim);
  *dim = given < 0 ? given + info->ndim : given;
  return RESHARD_SUCCESS;
}

reshard_status reshard_tensor_narrow(reshard_tensor t, int dim, int64_t start, int64_t length, reshard_tensor *view) {
  static const char call[] = "reshard_tensor_narrow";
  RS_TRY(check_tensor(call, t));
  const reshard_tensor_info *info = &t->info;
  int64_t shape[RESHARD_MAX_DIMS];
  int d = 0;
  RS_TRY(find_dim(call, info, dim, &d));
  int64_t extent = info->shape[d], first = start < 0 && start >= -extent ? start + extent : start;
  if (first < 0 || length < 0 || first > extent || length > extent - first)
    return rs_error(RESHARD_ERROR_INVALID, "%s: start %lld and length %lld in dim %d of extent %lld", call,
                    (long long)start, (long long)length, d, (long long)extent);
  memcpy(shape, info->shape, sizeof shape);
  shape[d] = length;
  /* a view without elements stays where the tensor begins: its first step may be past what was checked */
  return make_view(call, t, info->ndim, shape, info->strides,
                   info->offset + (length > 0 && info->elements > 0 ? first * info->strides[d] : 0), view);
}

reshard_status reshard_tensor_permute(reshard_tensor t, const int *order, reshard_tensor *view) {
  static const char call[] = "reshard_tensor_permute";
  RS_TRY(check_tensor(call, t));
  const reshard_tensor_info *info = &t->info;
  int64_t shape[RESHARD_MAX_DIMS], strides[RESHARD_MAX_DIMS];
  bool taken[RESHARD_MAX_DIMS] = {false};
  if (order == NULL && info->ndim > 0)
    return rs_error_null(call, "order");
  for (int d = 0; d < info->ndim; d++) {
    int from = 0;
    RS_TRY(find_dim(call, info, order[d], &from));
    if (taken[from])
      return rs_error(RESHARD_ERROR_INVALID, "%s: dim %d is in the order twice", call, from);
    taken[from] = true;
    shape[d] = info->shape[from];
    strides[d] = info->strides[from];
  }
  return make_view(call, t, info->ndim, shape, strides, info->offset, view);
}

/* --- Another shape ------------------------------------------------------------------------------------------------ */

/* Copies the shape; -1, if it has one, becomes the extent that makes as many elements. */
static reshard_status complete_shape(const char *call, const reshard_tensor_info *info, int ndim, const int64_t *given,
                                     int64_t *shape) {
  char from[RS_SHAPE_TEXT], to[RS_SHAPE_TEXT];
  int64_t known = 1;
  int open = -1;
  if (ndim < 0 || ndim > RESHARD_MAX_DIMS || (ndim > 0 && given == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "%s: %d dims, shape %s", call, ndim, given == NULL ? "NULL" : "given");
  bool sound = true;
  for (int d = 0; d < ndim && sound; d++) {
    shape[d] = given[d];
    sound = given[d] == -1 ? open < 0 : given[d] >= 0 && rs_mul(known, given[d], &known);
    if (given[d] == -1)
      open = d;
  }
  if (sound && open >= 0) {
    sound = known > 0 && info->elements % known == 0; /* 0 elements in the others: it could be any extent */
    shape[open] = sound ? info->elements / known : 0;
    known = info->elements;
  }
  if (sound && known == info->elements)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "%s: shape %s for %lld elements of shape %s", call,
                  rs_shape_text(to, ndim, given), (long long)info->elements,
                  rs_shape_text(from, info->ndim, info->shape));
}

/* Cuts the new dims out of runs, innermost first, and none out of two of them. Dims that follow one another in memory
 * are a run of elements with a step. */
static bool cut_runs(const reshard_tensor_info *info, int ndim, const int64_t *shape, int64_t *strides) {
  struct {
    int64_t n, step;
  } runs[RESHARD_MAX_DIMS];
  int n = 0;
  for (int d = info->ndim - 1; d >= 0; d--) {
    if (info->shape[d] == 1)
      continue;
    if (n > 0 && info->strides[d] == runs[n - 1].n * runs[n - 1].step) {
      runs[n - 1].n *= info->shape[d];
    } else {
      runs[n].n = info->shape[d];
      runs[n++].step = info->strides[d];
    }
  }
  int64_t left = 1, step = 1; /* of the run that is cut */
  for (int d = ndim - 1, next = 0; d >= 0; d--) {
    if (left == 1 && shape[d] > 1) {
      left = runs[next].n; /* there is a next one: both sides have as many elements */
      step = runs[next++].step;
    }
    if (left % shape[d] != 0)
      return false;
    strides[d] = step;
    step *= shape[d];
    left /= shape[d];
  }
  return true;
}

reshard_status reshard_tensor_reshape(reshard_tensor t, int ndim, const int64_t *shape, reshard_tensor *view) {
  static const char call[] = "reshard_tensor_reshape";
  RS_TRY(check_tensor(call, t));
  const reshard_tensor_info *info = &t->info;
  int64_t whole[RESHARD_MAX_DIMS], strides[RESHARD_MAX_DIMS];
  char from[RS_SHAPE_TEXT], to[RS_SHAPE_TEXT], steps[RS_SHAPE_TEXT];
  RS_TRY(complete_shape(call, info, ndim, shape, whole));
  if (info->elements > 0 && !cut_runs(info, ndim, whole, strides))
    return rs_error(RESHARD_ERROR_INVALID, "%s: shape %s with strides %s cannot be seen as %s without a copy", call,
                    rs_shape_text(from, info->ndim, info->shape), rs_shape_text(steps, info->ndim, info->strides),
                    rs_shape_text(to, ndim, whole));
  return make_view(call, t, ndim, whole, info->elements > 0 ? strides : NULL, info->offset, view);
}
