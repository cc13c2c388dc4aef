/* Copies between a GPU and files, through pinned memory with two halves.
 *
 * Files are read and written by the host. A half is as large as a batch of tensors: as many as come to so many bytes,
 * or one that has more. While the host writes one batch the GPU copies the next one into the other half. While it reads
 * one, the GPU fetches the one before. All copies are in the order of the caller's stream, for which the host waits
 * once a batch. A strided array is dense in the half: a kernel packs or unpacks it in memory of the device. */
#include "device/memory/pool.h"
#include "device/stream.h"
#include "state/leaves.h"

enum { BATCH = 256 << 20, ALIGNED = 256 };

static bool on_gpu(reshard_tensor array) {
  return array != NULL && array->info.device_type != RESHARD_DEVICE_CPU && array->info.elements > 0;
}

static int64_t pinned_bytes(reshard_tensor array) {
  int64_t bytes = array->info.elements * (int64_t)reshard_dtype_size(array->info.dtype);
  return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

char *rs_pinned_buffers_at(const rs_state_leaf *leaf, int64_t a) {
  char *at = leaf->pinned;
  for (int64_t i = 0; i < a; i++)
    if (on_gpu(rs_state_leaf_array(leaf, i)))
      at += pinned_bytes(rs_state_leaf_array(leaf, i));
  return at;
}

/* --- Batches ---------------------------------------------------------------------------------------------------- */

/* Bytes of a leaf's arrays that are on the GPU; the stream may use each of them from here on. */
static reshard_status sum_pinned_bytes(const rs_pinned_buffers *b, const rs_state_leaf *leaf, int64_t *bytes) {
  *bytes = 0;
  for (int64_t a = 0; a < rs_state_leaf_arrays(leaf); a++) {
    reshard_tensor array = rs_state_leaf_array(leaf, a);
    if (array == NULL)
      continue;
    bool cpu = array->info.device_type == RESHARD_DEVICE_CPU;
    reshard_status status =
        cpu ? rs_tensor_ready("a file", array) : rs_tensor_use_on("a file", array, b->device->device, b->stream);
    if (status != RESHARD_SUCCESS)
      return rs_path_error(leaf->path, status);
    if (on_gpu(array) && !rs_add(*bytes, pinned_bytes(array), bytes))
      return rs_error_memory(SIZE_MAX);
  }
  return RESHARD_SUCCESS;
}

/* Sorts leaves into batches. *largest: bytes of the largest batch. */
static reshard_status list_batches(rs_pinned_buffers *b, rs_state_leaves *leaves, int64_t most, int64_t *largest) {
  int64_t filled = 0;
  *largest = 0;
  for (int64_t i = 0; i < leaves->all.n; i++) {
    rs_state_leaf *leaf = &leaves->all.at[i];
    int64_t bytes;
    leaf->batch = -1;
    RS_TRY(sum_pinned_bytes(b, leaf, &bytes));
    if (bytes == 0)
      continue;
    if (b->batches == 0 || (filled > 0 && filled + bytes > most)) {
      b->batches++;
      filled = 0;
    }
    leaf->batch = b->batches - 1;
    leaf->pinned = (char *)(uintptr_t)filled; /* from the begin of its half, for now */
    filled += bytes;
    *largest = rs_max(*largest, filled);
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_pinned_buffers_open(reshard_sharder sharder, void *stream, int64_t bytes, rs_state_leaves *leaves,
                                      rs_pinned_buffers *b) {
  int64_t largest;
  *b = (rs_pinned_buffers){.device = sharder->device, .stream = stream, .leaves = leaves};
  RS_TRY(rs_stream_check(b->device->device, stream, "a file"));
  if (bytes < 0)
    return rs_error(RESHARD_ERROR_INVALID, "staging_bytes %lld, 0 is the least", (long long)bytes);
  RS_TRY(list_batches(b, leaves, bytes > 0 ? bytes : BATCH, &largest));
  if (b->batches == 0)
    return RESHARD_SUCCESS;
  RS_TRY(rs_device_check_capture("a file", b->device->device, stream));
  for (int h = 0; h < 2 && h < b->batches; h++)
    RS_TRY(rs_tensor_create_pinned(b->device, RESHARD_U8, 1, &largest, stream, &b->half[h]));
  for (int64_t i = 0; i < leaves->all.n; i++)
    if (leaves->all.at[i].batch >= 0)
      leaves->all.at[i].pinned =
          (char *)rs_tensor_data(b->half[leaves->all.at[i].batch % 2]) + (uintptr_t)leaves->all.at[i].pinned;
  return rs_pinned_buffers_wait(b); /* the host may touch what an earlier owner's copies used */
}

void rs_pinned_buffers_close(rs_pinned_buffers *b) {
  for (int h = 0; h < 2; h++)
    reshard_tensor_release(b->half[h]);
  *b = (rs_pinned_buffers){0};
}

/* --- Copies ------------------------------------------------------------------------------------------------------ */

static reshard_status copy_strided(const rs_pinned_buffers *b, reshard_tensor array, char *host, bool out) {
  const reshard_tensor_info *info = &array->info;
  rs_device *device = b->device->device;
  int64_t width = (int64_t)reshard_dtype_size(info->dtype), step = width;
  rs_axis axes[RESHARD_MAX_DIMS];
  rs_storage_pool *pool;
  rs_block *dense;
  rs_copies copies = {0};
  void *data = rs_tensor_data(array);
  RS_TRY(rs_device_pool(b->device, &pool));
  RS_TRY(rs_storage_pool_alloc(pool, (size_t)(info->elements * width), b->stream, &dense));
  for (int d = info->ndim - 1; d >= 0; d--) {
    int64_t strided = info->strides[d] * width;
    axes[d] = (rs_axis){info->shape[d], out ? strided : step, out ? step : strided};
    step *= info->shape[d];
  }
  reshard_status status =
      rs_copies_add(&copies, out ? data : dense->memory, out ? dense->memory : data, (int32_t)width, info->ndim, axes);
  if (status == RESHARD_SUCCESS && !out)
    status = device->memory->memcpy(device, dense->memory, host, (size_t)step, b->stream);
  RS_THEN(status, rs_device_run_once(b->device, &copies, copies.bytes, b->stream));
  if (status == RESHARD_SUCCESS && out)
    status = device->memory->memcpy(device, host, dense->memory, (size_t)step, b->stream);
  rs_copies_free(&copies);
  rs_storage_pool_free(pool, dense, b->stream);
  return status;
}

static reshard_status copy_array(const rs_pinned_buffers *b, reshard_tensor array, char *host, bool out) {
  rs_device *device = b->device->device;
  size_t bytes = (size_t)array->info.elements * reshard_dtype_size(array->info.dtype);
  void *data = rs_tensor_data(array);
  if (!array->info.contiguous)
    return copy_strided(b, array, host, out);
  return device->memory->memcpy(device, out ? host : data, out ? data : host, bytes, b->stream);
}

reshard_status rs_pinned_buffers_copy(const rs_pinned_buffers *b, int64_t batch, bool out) {
  for (int64_t i = 0; i < b->leaves->all.n; i++) {
    const rs_state_leaf *leaf = &b->leaves->all.at[i];
    char *at = leaf->pinned;
    for (int64_t a = 0; leaf->batch == batch && a < rs_state_leaf_arrays(leaf); a++)
      if (on_gpu(rs_state_leaf_array(leaf, a))) {
        RS_TRY(copy_array(b, rs_state_leaf_array(leaf, a), at, out));
        at += pinned_bytes(rs_state_leaf_array(leaf, a));
      }
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_pinned_buffers_wait(const rs_pinned_buffers *b) {
  return b->batches == 0 ? RESHARD_SUCCESS : b->device->device->streams->synchronize(b->device->device, b->stream);
}
