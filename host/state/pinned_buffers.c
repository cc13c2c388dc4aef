/* Tensors of a GPU on their way to files and back.
 *
 * Files are read and written by the host, so that what a GPU has goes through pinned memory: two halves, each as large
 * as a group of tensors - as many as come to so many bytes, or one that has more. While the host writes one group the
 * GPU copies the next one into the other half; while it reads one, the GPU fetches the one before. All copies are in
 * the order of the caller's stream, for which the host waits once a group. A strided array is dense on its way: a
 * kernel packs or unpacks it in memory of the device. */
#include "device/memory/pool.h"
#include "device/stream.h"
#include "state/checkpoint.h"

#include <stdlib.h>

enum { GROUP = 256 << 20, ALIGNED = 256 };

static reshard_tensor array_of(const rs_item *item, int64_t a) {
  return item->sharded != NULL ? item->sharded->local.arrays[a] : item->leaf->tensor;
}

static int64_t arrays_of(const rs_item *item) {
  return item->sharded != NULL ? item->sharded->local.n : item->nested == NULL && rs_item_is_tensor(item);
}

static bool staged(reshard_tensor array) {
  return array != NULL && array->info.device_type != RESHARD_DEVICE_CPU && array->info.elements > 0;
}

static int64_t room_of(reshard_tensor array) {
  int64_t bytes = array->info.elements * (int64_t)reshard_dtype_size(array->info.dtype);
  return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

char *rs_stage_at(const rs_item *item, int64_t a) {
  char *at = item->staged;
  for (int64_t i = 0; i < a; i++)
    if (staged(array_of(item, i)))
      at += room_of(array_of(item, i));
  return at;
}

/* --- Before anything moves --------------------------------------------------------------------------------------- */

/* Bytes of an item's arrays that are on the GPU; each of them may be used by the stream from here on. */
static reshard_status add_up(const rs_stage *s, const rs_item *item, int64_t *bytes) {
  *bytes = 0;
  for (int64_t a = 0; a < arrays_of(item); a++) {
    reshard_tensor array = array_of(item, a);
    if (array == NULL)
      continue;
    bool cpu = array->info.device_type == RESHARD_DEVICE_CPU;
    reshard_status status =
        cpu ? rs_tensor_ready("a file", array) : rs_tensor_use_on("a file", array, s->device->device, s->stream);
    if (status != RESHARD_SUCCESS)
      return rs_path_error(item->path, status);
    if (staged(array) && !rs_add(*bytes, room_of(array), bytes))
      return rs_error_memory(SIZE_MAX);
  }
  return RESHARD_SUCCESS;
}

/* Items by groups, and the bytes of the largest. */
static reshard_status group_items(rs_stage *s, rs_items *items, int64_t most, int64_t *largest) {
  int64_t filled = 0;
  *largest = 0;
  for (int64_t i = 0; i < items->all.n; i++) {
    rs_item *item = &items->all.at[i];
    int64_t bytes;
    item->group = -1;
    RS_TRY(add_up(s, item, &bytes));
    if (bytes == 0)
      continue;
    if (s->groups == 0 || (filled > 0 && filled + bytes > most)) {
      s->groups++;
      filled = 0;
    }
    item->group = s->groups - 1;
    item->staged = (char *)(uintptr_t)filled; /* from the begin of its half, for now */
    filled += bytes;
    *largest = rs_max(*largest, filled);
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_stage_open(reshard_sharder sharder, void *stream, int64_t bytes, rs_items *items, rs_stage *s) {
  int64_t largest;
  *s = (rs_stage){.device = sharder->device, .stream = stream, .items = items};
  RS_TRY(rs_stream_check(s->device->device, stream, "a file"));
  if (bytes < 0)
    return rs_error(RESHARD_ERROR_INVALID, "staging_bytes %lld, 0 is the least", (long long)bytes);
  RS_TRY(group_items(s, items, bytes > 0 ? bytes : GROUP, &largest));
  if (s->groups == 0)
    return RESHARD_SUCCESS;
  RS_TRY(rs_device_check_capture("a file", s->device->device, stream));
  for (int h = 0; h < 2 && h < s->groups; h++)
    RS_TRY(rs_tensor_create_pinned(s->device, RESHARD_U8, 1, &largest, stream, &s->half[h]));
  for (int64_t i = 0; i < items->all.n; i++)
    if (items->all.at[i].group >= 0)
      items->all.at[i].staged =
          (char *)s->half[items->all.at[i].group % 2]->info.data + (uintptr_t)items->all.at[i].staged;
  return rs_stage_wait(s); /* the host may touch what an earlier owner's copies used */
}

void rs_stage_close(rs_stage *s) {
  for (int h = 0; h < 2; h++)
    reshard_tensor_release(s->half[h]);
  *s = (rs_stage){0};
}

/* --- Copies ------------------------------------------------------------------------------------------------------ */

static reshard_status copy_strided(const rs_stage *s, reshard_tensor array, char *host, bool out) {
  const reshard_tensor_info *info = &array->info;
  rs_device *device = s->device->device;
  int64_t width = (int64_t)reshard_dtype_size(info->dtype), step = width;
  rs_axis axes[RESHARD_MAX_DIMS];
  rs_storage_pool *pool;
  rs_block *dense;
  rs_copies copies = {0};
  RS_TRY(rs_device_pool(s->device, &pool));
  RS_TRY(rs_storage_pool_alloc(pool, (size_t)(info->elements * width), s->stream, &dense));
  for (int d = info->ndim - 1; d >= 0; d--) {
    int64_t strided = info->strides[d] * width;
    axes[d] = (rs_axis){info->shape[d], out ? strided : step, out ? step : strided};
    step *= info->shape[d];
  }
  reshard_status status = rs_copies_add(&copies, out ? info->data : dense->memory, out ? dense->memory : info->data,
                                        (int32_t)width, info->ndim, axes);
  if (status == RESHARD_SUCCESS && !out)
    status = device->ops->memcpy(device, dense->memory, host, (size_t)step, s->stream);
  if (status == RESHARD_SUCCESS)
    status = rs_device_run_once(s->device, &copies, copies.bytes, s->stream);
  if (status == RESHARD_SUCCESS && out)
    status = device->ops->memcpy(device, host, dense->memory, (size_t)step, s->stream);
  rs_copies_free(&copies);
  rs_storage_pool_free(pool, dense, s->stream);
  return status;
}

static reshard_status copy_array(const rs_stage *s, reshard_tensor array, char *host, bool out) {
  rs_device *device = s->device->device;
  size_t bytes = (size_t)array->info.elements * reshard_dtype_size(array->info.dtype);
  if (!array->info.contiguous)
    return copy_strided(s, array, host, out);
  return device->ops->memcpy(device, out ? host : array->info.data, out ? array->info.data : host, bytes, s->stream);
}

reshard_status rs_stage_copy(const rs_stage *s, int64_t group, bool out) {
  for (int64_t i = 0; i < s->items->all.n; i++) {
    const rs_item *item = &s->items->all.at[i];
    char *at = item->staged;
    for (int64_t a = 0; item->group == group && a < arrays_of(item); a++)
      if (staged(array_of(item, a))) {
        RS_TRY(copy_array(s, array_of(item, a), at, out));
        at += room_of(array_of(item, a));
      }
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_stage_wait(const rs_stage *s) {
  return s->groups == 0 ? RESHARD_SUCCESS : s->device->device->ops->synchronize(s->device->device, s->stream);
}
