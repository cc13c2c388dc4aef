/* Selection along one dim: arguments are checked here, the device selects (work->select).
 *
 * On the CPU the index is checked before anything is written. On a GPU the kernel checks each index that it reads and
 * skips those out of range. The first such index is known when the kernel has run: the call waits for it, or leaves it
 * in the caller's memory. */
#include "device/cpu/cpu.h"
#include "device/memory/staging.h"
#include "exec/arrays.h"
#include "tensor/tensor.h"

#include <string.h>

enum { ALONE = 512 << 10 }; /* bytes that are not worth starting threads for */

typedef struct index_selection {
  reshard_tensor_info src, dst, index;
  reshard_tensor_info fault; /* in the caller's memory; else no elements */
  int dim;
} index_selection;

static reshard_status check_dim(index_selection *s, int dim) {
  if (dim < -s->src.ndim || dim >= s->src.ndim)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: dim %d of a tensor of %d dims", dim, s->src.ndim);
  s->dim = dim < 0 ? dim + s->src.ndim : dim;
  return RESHARD_SUCCESS;
}

static reshard_status check_shapes(const index_selection *s) {
  char a[RS_SHAPE_TEXT], b[RS_SHAPE_TEXT];
  if (s->index.ndim != 1 || (s->index.dtype != RESHARD_I32 && s->index.dtype != RESHARD_I64))
    return rs_error(RESHARD_ERROR_INVALID,
                    "reshard_index_select: an index of %d dims and dtype %s, 1 dim of i32 or i64 is needed",
                    s->index.ndim, reshard_dtype_string(s->index.dtype));
  if (s->src.dtype != s->dst.dtype)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: src is %s, dst is %s",
                    reshard_dtype_string(s->src.dtype), reshard_dtype_string(s->dst.dtype));
  int64_t wanted[RESHARD_MAX_DIMS];
  memcpy(wanted, s->src.shape, sizeof wanted);
  wanted[s->dim] = s->index.shape[0];
  if (!rs_shape_equal(s->src.ndim, wanted, s->dst.ndim, s->dst.shape))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: dst is %s, %s is needed",
                    rs_shape_text(a, s->dst.ndim, s->dst.shape), rs_shape_text(b, s->src.ndim, wanted));
  return RESHARD_SUCCESS;
}

/* Checks that dst overlaps nothing that is read, and not itself: the copies run in any order. */
static reshard_status check_memory(const index_selection *s) {
  const int n = s->fault.elements > 0 ? 4 : 3;
  if (s->dst.elements == 0)
    return RESHARD_SUCCESS;
  if (s->dst.overlapping) {
    char a[RS_SHAPE_TEXT], b[RS_SHAPE_TEXT];
    return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: strides %s of dst of shape %s overlap",
                    rs_shape_text(a, s->dst.ndim, s->dst.strides), rs_shape_text(b, s->dst.ndim, s->dst.shape));
  }
  const reshard_tensor_info *of[4] = {&s->dst, &s->src, &s->index, &s->fault};
  rs_entry entry = {.name = (char[]){"selection"}};
  const struct reshard_plan_s nameless = {.nentries = 1, .entries = &entry};
  rs_extent extents[4] = {0};
  for (int i = 0; i < n; i++) {
    rs_extent *x = &extents[i];
    x->plan = &nameless;
    x->at = x->begin = of[i]->data;
    x->source = i == 1 || i == 2;
    x->ndim = of[i]->ndim;
    x->width = (int64_t)reshard_dtype_size(of[i]->dtype);
    int64_t span = x->width;
    for (int d = 0; d < x->ndim; d++) {
      x->shape[d] = of[i]->shape[d];
      x->strides[d] = of[i]->strides[d] * x->width;
      span += x->strides[d] * (x->shape[d] - 1);
    }
    x->end = x->begin + span;
    x->dense = of[i]->contiguous;
  }
  rs_extents all = {extents, n, n};
  reshard_status status = rs_check_overlap(&all);
  return status != RESHARD_ERROR_INVALID
             ? status
             : rs_error(RESHARD_ERROR_INVALID,
                        n == 3 ? "reshard_index_select: dst overlaps src or the index"
                               : "reshard_index_select: dst or fault overlaps another of the tensors");
}

/* Merges all dims but the one that is selected along; those that are contiguous in both become a run. */
static rs_select make_select(const index_selection *s) {
  int64_t width = (int64_t)reshard_dtype_size(s->src.dtype);
  rs_select select = {.src = s->src.data,
                      .index = s->index.data,
                      .dst = s->dst.data,
                      .count = s->index.shape[0],
                      .extent = s->src.shape[s->dim],
                      .src_stride = s->src.strides[s->dim] * width,
                      .dst_stride = s->dst.strides[s->dim] * width,
                      .index_bytes = s->index.dtype == RESHARD_I32 ? 4 : 8,
                      .element = (int32_t)width};
  rs_axis axes[RESHARD_MAX_DIMS];
  int n = 0;
  for (int d = 0; d < s->src.ndim; d++)
    if (d != s->dim)
      axes[n++] = (rs_axis){s->src.shape[d], s->src.strides[d] * width, s->dst.strides[d] * width};
  int64_t run;
  select.index_stride = s->index.strides[0] * select.index_bytes;
  select.naxes = rs_axes_merge(n, axes, width, width, select.axes, &run);
  select.run = run * width;
  return select;
}

static reshard_status check_fault(const index_selection *s, const rs_select_fault *fault) {
  if (fault->position < 0)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: index[%lld] = %lld, dim %d has %lld indices",
                  (long long)fault->position, (long long)fault->value, s->dim, (long long)s->src.shape[s->dim]);
}

static reshard_status select_on_cpu(const index_selection *s, int threads, rs_select_fault *fault) {
  int64_t total = s->dst.elements * (int64_t)reshard_dtype_size(s->dst.dtype);
  rs_select select = make_select(s);
  rs_device *device;
  RS_TRY(rs_device_cpu_create(total <= ALONE ? 1 : threads, RESHARD_ISA_AUTO, &device));
  reshard_status status = device->work->select(device, &select, fault, NULL);
  device->destroy(device);
  return status;
}

static reshard_status launch_select(const index_selection *s, rs_device *device, rs_select_fault *found,
                                    rs_select_fault *result, void *stream) {
  rs_select select = make_select(s);
  RS_TRY(device->work->select(device, &select, found, stream));
  RS_TRY(device->memory->memcpy(device, result, found, sizeof *result, stream));
  RS_TRY(device->streams->synchronize(device, stream));
  return check_fault(s, result);
}

static reshard_status select_on_gpu(const index_selection *s, reshard_device device, void *stream) {
  rs_storage_pool *pool;
  rs_staging *staging;
  rs_block *found;
  rs_staging_block *piece;
  void *result;
  RS_TRY(rs_device_check_capture("reshard_index_select", device->device, stream));
  RS_TRY(rs_device_pool(device, &pool));
  RS_TRY(rs_device_staging(device, &staging));
  RS_TRY(rs_staging_take(staging, sizeof(rs_select_fault), &piece, &result));
  reshard_status status = rs_storage_pool_alloc(pool, sizeof(rs_select_fault), stream, &found);
  if (status == RESHARD_SUCCESS) {
    status = launch_select(s, device->device, found->memory, result, stream);
    rs_storage_pool_free(pool, found, stream);
  }
  reshard_status given = rs_staging_give(staging, piece, stream);
  return status == RESHARD_SUCCESS ? given : status;
}

static reshard_status check_arguments(reshard_tensor src, reshard_tensor index, reshard_tensor dst, int threads) {
  if (src == NULL || index == NULL || dst == NULL)
    return rs_error_null("reshard_index_select", src == NULL ? "src" : index == NULL ? "index" : "dst");
  if (threads < 0 || threads > 4096)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: %d threads, 0 to 4096 are possible", threads);
  return RESHARD_SUCCESS;
}

/* Checks that all three are where dst is, and finds one of their handles; NULL for the CPU. */
static reshard_status find_device(reshard_tensor src, reshard_tensor index, reshard_tensor dst, void *stream,
                                  reshard_device *device) {
  const reshard_device of[3] = {rs_tensor_device(dst), rs_tensor_device(src), rs_tensor_device(index)};
  const rs_device place = {.type = dst->info.device_type, .index = dst->info.device_index};
  *device = NULL;
  for (int i = 0; i < 3 && place.type != RESHARD_DEVICE_CPU && *device == NULL; i++)
    *device = of[i];
  if (place.type == RESHARD_DEVICE_CPU && stream != NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: stream is %p, on the CPU it is NULL", stream);
  if (place.type != RESHARD_DEVICE_CPU && *device == NULL)
    return rs_error(RESHARD_ERROR_INVALID,
                    "reshard_index_select: tensors on cuda:%d, of which none was made with a device", place.index);
  RS_TRY(rs_tensor_use_on("reshard_index_select: dst", dst, &place, stream));
  RS_TRY(rs_tensor_use_on("reshard_index_select: src", src, &place, stream));
  return rs_tensor_use_on("reshard_index_select: index", index, &place, stream);
}

static reshard_status check_selection(reshard_tensor src, int dim, reshard_tensor index, reshard_tensor dst,
                                      index_selection *s) {
  (void)reshard_tensor_get_info(src, &s->src);
  (void)reshard_tensor_get_info(dst, &s->dst);
  (void)reshard_tensor_get_info(index, &s->index);
  RS_TRY(check_dim(s, dim));
  RS_TRY(check_shapes(s));
  return check_memory(s);
}

reshard_status reshard_index_select(reshard_tensor src, int dim, reshard_tensor index, reshard_tensor dst, int threads,
                                    void *stream) {
  reshard_device device;
  index_selection s = {0};
  rs_select_fault fault;
  RS_TRY(check_arguments(src, index, dst, threads));
  RS_TRY(find_device(src, index, dst, stream, &device));
  RS_TRY(check_selection(src, dim, index, dst, &s));
  if (device != NULL)
    return s.dst.elements == 0 ? RESHARD_SUCCESS : select_on_gpu(&s, device, stream);
  RS_TRY(select_on_cpu(&s, threads, &fault));
  return check_fault(&s, &fault);
}

static reshard_status check_fault_tensor(reshard_tensor fault, reshard_tensor dst, void *stream) {
  const rs_device place = {.type = dst->info.device_type, .index = dst->info.device_index};
  const reshard_tensor_info *info = &fault->info;
  char text[RS_SHAPE_TEXT];
  if (info->dtype != RESHARD_I64 || info->ndim != 1 || info->shape[0] != 2 || !info->contiguous)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: fault is %s of shape %s%s, i64 of shape 2 is needed",
                    reshard_dtype_string(info->dtype), rs_shape_text(text, info->ndim, info->shape),
                    info->contiguous ? "" : " and not contiguous");
  return rs_tensor_use_on("reshard_index_select: fault", fault, &place, stream);
}

reshard_status reshard_index_select_async(reshard_tensor src, int dim, reshard_tensor index, reshard_tensor dst,
                                          reshard_tensor fault, int threads, void *stream) {
  reshard_device device;
  index_selection s = {0};
  RS_TRY(check_arguments(src, index, dst, threads));
  if (fault == NULL)
    return rs_error_null("reshard_index_select", "fault");
  RS_TRY(find_device(src, index, dst, stream, &device));
  RS_TRY(check_fault_tensor(fault, dst, stream));
  (void)reshard_tensor_get_info(fault, &s.fault);
  RS_TRY(check_selection(src, dim, index, dst, &s));
  if (device != NULL) {
    const rs_select select = make_select(&s);
    return device->device->work->select(device->device, &select, s.fault.data, stream);
  }
  rs_select_fault found;
  RS_TRY(select_on_cpu(&s, threads, &found));
  memcpy(s.fault.data, &found, sizeof found); /* the caller's memory need not be aligned */
  return RESHARD_SUCCESS;
}
