/* Selection along one dim, as box copies.
 *
 * A selection is a list of box copies that differ in their place along the dim alone. Indices that follow one another
 * are one copy; so are three and more with a constant step (every other row, one row many times, rows backwards), as a
 * loop over the dim with that step in the source. The rest is one copy each. The device does with them what it does
 * with any list: merges, sorts for the cache, divides over the threads. Long lists go to it in batches, so that memory
 * stays bounded however long the index is. */
#include "device/cpu.h"
#include "exec/overlap.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

enum {
  BATCH = 1 << 16,  /* copies */
  ALONE = 512 << 10 /* bytes that are not worth starting threads for */
};

typedef struct selection {
  reshard_tensor_info src, dst, index;
  int dim;
} selection;

static int64_t index_at(const selection *s, int64_t i) {
  const char *at = (const char *)s->index.data + i * s->index.strides[0] * (s->index.dtype == RESHARD_I32 ? 4 : 8);
  if (s->index.dtype == RESHARD_I32) {
    int32_t narrow;
    memcpy(&narrow, at, sizeof narrow);
    return narrow;
  }
  int64_t wide;
  memcpy(&wide, at, sizeof wide);
  return wide;
}

static reshard_status check_index(const selection *s) {
  int64_t n = s->index.shape[0], extent = s->src.shape[s->dim];
  for (int64_t i = 0; i < n; i++) {
    int64_t value = index_at(s, i);
    if (value < 0 || value >= extent)
      return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: index[%lld] = %lld, dim %d has %lld indices",
                      (long long)i, (long long)value, s->dim, (long long)extent);
  }
  return RESHARD_SUCCESS;
}

static reshard_status check_dim(selection *s, int dim) {
  if (dim < -s->src.ndim || dim >= s->src.ndim)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: dim %d of a tensor of %d dims", dim, s->src.ndim);
  s->dim = dim < 0 ? dim + s->src.ndim : dim;
  return RESHARD_SUCCESS;
}

static reshard_status check_shapes(const selection *s) {
  char a[RS_SHAPE_TEXT], b[RS_SHAPE_TEXT];
  if (s->index.ndim != 1 || (s->index.dtype != RESHARD_I32 && s->index.dtype != RESHARD_I64))
    return rs_error(RESHARD_ERROR_INVALID,
                    "reshard_index_select: an index of %d dims and dtype %s, 1 dim of i32 or "
                    "i64 is needed",
                    s->index.ndim, reshard_dtype_string(s->index.dtype));
  if (s->src.dtype != s->dst.dtype)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: src is %s, dst is %s",
                    reshard_dtype_string(s->src.dtype), reshard_dtype_string(s->dst.dtype));
  int64_t wanted[RESHARD_MAX_DIMS];
  memcpy(wanted, s->src.shape, sizeof wanted);
  wanted[s->dim] = s->index.shape[0];
  if (s->dst.ndim != s->src.ndim || memcmp(wanted, s->dst.shape, (size_t)s->src.ndim * sizeof *wanted) != 0)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: dst is %s, %s is needed",
                    rs_shape_text(a, s->dst.ndim, s->dst.shape), rs_shape_text(b, s->src.ndim, wanted));
  return RESHARD_SUCCESS;
}

/* What is written must not be read, nor written twice: the copies run in any order. */
static reshard_status check_memory(const selection *s) {
  if (s->dst.elements == 0)
    return RESHARD_SUCCESS;
  if (!rs_tensor_distinct(&s->dst)) {
    char a[RS_SHAPE_TEXT], b[RS_SHAPE_TEXT];
    return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: strides %s of dst of shape %s overlap",
                    rs_shape_text(a, s->dst.ndim, s->dst.strides), rs_shape_text(b, s->dst.ndim, s->dst.shape));
  }
  const reshard_tensor_info *of[3] = {&s->dst, &s->src, &s->index};
  rs_extent extents[3] = {0};
  for (int i = 0; i < 3; i++) {
    rs_extent *x = &extents[i];
    x->at = x->begin = of[i]->data;
    x->source = i > 0;
    x->ndim = of[i]->ndim;
    x->width = (int64_t)reshard_dtype_size(of[i]->dtype);
    int64_t reach = x->width;
    for (int d = 0; d < x->ndim; d++) {
      x->shape[d] = of[i]->shape[d];
      x->strides[d] = of[i]->strides[d] * x->width;
      reach += x->strides[d] * (x->shape[d] - 1);
    }
    x->end = x->begin + reach;
    x->dense = of[i]->contiguous;
  }
  rs_extents all = {extents, 3, 3};
  rs_entry entry = {.name = (char[]){"selection"}};
  const struct reshard_plan_s nameless = {.nentries = 1, .entries = &entry};
  reshard_status status = rs_check_overlap(&nameless, &all);
  return status != RESHARD_ERROR_INVALID
             ? status
             : rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: dst overlaps src or the index");
}

/* How many indices from the i-th on go into one copy, and the step between them. */
static int64_t progression(const selection *s, int64_t i, int64_t *step) {
  int64_t n = s->index.shape[0], count = 1, first = index_at(s, i);
  *step = 1;
  if (i + 1 == n)
    return 1;
  *step = index_at(s, i + 1) - first;
  while (i + count < n && index_at(s, i + count) == first + count * *step)
    count++;
  return count >= 3 || *step == 1 ? count : 1;
}

static reshard_status add_copy(const selection *s, int64_t i, int64_t count, int64_t step, rs_copies *copies) {
  int64_t width = (int64_t)reshard_dtype_size(s->src.dtype);
  rs_axis axes[RESHARD_MAX_DIMS];
  for (int d = 0; d < s->src.ndim; d++)
    axes[d] = (rs_axis){s->src.shape[d], s->src.strides[d] * width, s->dst.strides[d] * width};
  const char *src = (const char *)s->src.data + index_at(s, i) * axes[s->dim].src;
  char *dst = (char *)s->dst.data + i * axes[s->dim].dst;
  axes[s->dim].n = count;
  axes[s->dim].src *= step;
  return rs_copies_add(copies, src, dst, (int32_t)width, s->src.ndim, axes);
}

static reshard_status run_copies(rs_device *device, const rs_copies *copies, int64_t total) {
  rs_program *program;
  RS_TRY(device->ops->compile(device, copies, total, &program));
  reshard_status status = device->ops->run(device, 1, &program, NULL);
  device->ops->release(device, program);
  return status;
}

static reshard_status select_all(const selection *s, int threads) {
  int64_t total = s->dst.elements * (int64_t)reshard_dtype_size(s->dst.dtype), step;
  rs_device *device = NULL;
  rs_copies copies = {0};
  reshard_status status;
  RS_TRY_GOTO(status, rs_device_cpu_create(total <= ALONE ? 1 : threads, RESHARD_ISA_AUTO, &device), done);
  for (int64_t i = 0, count; i < s->index.shape[0]; i += count) {
    count = progression(s, i, &step);
    RS_TRY_GOTO(status, add_copy(s, i, count, step, &copies), done);
    if (copies.copy.n < BATCH && i + count < s->index.shape[0])
      continue;
    RS_TRY_GOTO(status, run_copies(device, &copies, total), done);
    copies.copy.n = copies.axis.n = copies.bytes = 0;
  }
done:
  rs_copies_free(&copies);
  if (device != NULL)
    device->ops->destroy(device);
  return status;
}

reshard_status reshard_index_select(reshard_tensor src, int dim, reshard_tensor index, reshard_tensor dst, int threads,
                                    void *stream) {
  if (src == NULL || index == NULL || dst == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: %s is NULL",
                    src == NULL     ? "src"
                    : index == NULL ? "index"
                                    : "dst");
  if (stream != NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: stream is %p, on the CPU it is NULL", stream);
  if (threads < 0 || threads > 4096)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_index_select: %d threads, 0 to 4096 are possible", threads);
  selection s = {.src = src->info, .dst = dst->info, .index = index->info};
  RS_TRY(check_dim(&s, dim));
  RS_TRY(check_shapes(&s));
  RS_TRY(check_index(&s));
  RS_TRY(check_memory(&s));
  return s.dst.elements == 0 ? RESHARD_SUCCESS : select_all(&s, threads);
}
