/* Storage: memory with a count of the tensors over it.
 *
 * A pool's memory is a block with the streams that use it. Freeing it names a stream after which it is free, and the
 * pool does the rest. So nothing here records or waits, and storage that is freed and allocated again costs what the
 * pool's lists cost. */
#include "base/range.h"
#include "device/stream.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { ALIGNMENT = 256, HUGE = 2 << 20 };

static reshard_status new_storage(reshard_device device, rs_storage **storage) {
  RS_TRY(rs_alloc_zero(storage, 1, sizeof **storage));
  rs_storage *s = *storage;
  atomic_init(&s->references, 1);
  atomic_init(&s->exported, 0);
  s->device = reshard_device_retain(device);
  if (device != NULL) {
    s->type = device->device->type;
    s->index = device->device->index;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_storage_create(reshard_device device, bool pinned, rs_storage **storage) {
  rs_storage_pool *pool = NULL;
  if (device != NULL)
    RS_TRY((pinned ? rs_device_pinned : rs_device_pool)(device, &pool));
  RS_TRY(new_storage(device, storage));
  rs_storage *s = *storage;
  s->pool = pool;
  if (pinned) {
    s->type = RESHARD_DEVICE_CPU;
    s->index = 0;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_storage_borrow(reshard_device device, void *memory, size_t bytes,
                                 void (*release)(void *user, void *data), void *user, rs_storage **storage) {
  RS_TRY(new_storage(device, storage));
  rs_storage *s = *storage;
  s->borrowed = true;
  s->memory = memory;
  s->bytes = bytes;
  s->release = release;
  s->user = user;
  return RESHARD_SUCCESS;
}

rs_storage *rs_storage_retain(rs_storage *s) {
  atomic_fetch_add_explicit(&s->references, 1, memory_order_relaxed);
  return s;
}

static void free_plain(rs_storage *s) {
  if (s->memory == NULL)
    return;
  RS_RANGE("free", (int64_t)s->bytes, -1, -1, -1);
  free(s->memory);
}

void rs_storage_release(rs_storage *s) {
  if (!RS_DROP(s))
    return;
  if (s->pool != NULL)
    rs_storage_pool_drop(s->pool, s->block);
  else if (!s->borrowed)
    free_plain(s);
  else if (s->release != NULL)
    s->release(s->user, s->memory);
  reshard_device_release(s->device);
  free(s);
}

/* --- Memory ------------------------------------------------------------------------------------------------------ */

/* In huge pages where they fit, since touching new pages is what takes the time. */
static reshard_status alloc_plain(size_t bytes, void **memory) {
  bool huge = bytes >= HUGE;
  if (posix_memalign(memory, huge ? HUGE : ALIGNMENT, bytes) != 0) {
    *memory = NULL;
    return rs_error_memory(bytes);
  }
#if defined(MADV_HUGEPAGE)
  if (huge)
    (void)madvise(*memory, bytes / HUGE * HUGE, MADV_HUGEPAGE);
#endif
  return RESHARD_SUCCESS;
}

reshard_status rs_storage_alloc(rs_storage *s, size_t bytes, void *stream) {
  if (bytes > 0 && s->pool == NULL) { /* a pool has ranges of its own */
    RS_RANGE("alloc", (int64_t)bytes, -1, -1, -1);
    RS_TRY(alloc_plain(bytes, &s->memory));
  }
  if (bytes > 0 && s->pool != NULL) {
    RS_TRY(rs_storage_pool_alloc(s->pool, bytes, stream, &s->block));
    s->memory = s->block->memory;
  }
  s->bytes = bytes;
  return RESHARD_SUCCESS;
}

/* Frees the memory after recorded uses. Not of borrowed memory. */
static void free_memory(rs_storage *s, void *stream) {
  if (s->pool != NULL)
    rs_storage_pool_free(s->pool, s->block, stream);
  else
    free_plain(s);
  s->block = NULL;
  s->memory = NULL;
  s->bytes = 0;
}

/* Marks stream as one that uses the memory until it is freed. Does nothing for memory of no pool, which its owner
 * keeps; nor while stream is captured: the owner of the graph, which runs later, keeps the memory. */
static reshard_status use_memory(rs_storage *s, void *stream) {
  if (s->block == NULL)
    return RESHARD_SUCCESS;
  bool capturing;
  RS_TRY(s->device->device->streams->capturing(s->device->device, stream, &capturing));
  return capturing ? RESHARD_SUCCESS : rs_storage_pool_use(s->pool, s->block, stream);
}

/* --- Of a tensor ------------------------------------------------------------------------------------------------- */

/* Bytes of the storage up to the end of the last element. */
static size_t end_offset(reshard_tensor t) {
  return t->info.elements == 0 ? 0 : (size_t)t->info.offset * reshard_dtype_size(t->info.dtype) + t->span;
}

void *rs_tensor_data(reshard_tensor t) {
  const rs_storage *s = t->storage;
  size_t end = end_offset(t);
  if (end == 0)
    return s->memory;
  return end <= s->bytes ? (char *)s->memory + end - t->span : NULL;
}

int reshard_data_allocated(reshard_tensor t) { return t != NULL && end_offset(t) <= t->storage->bytes; }

reshard_status rs_tensor_ready(const char *what, reshard_tensor t) {
  char shape[RS_SHAPE_TEXT];
  if (reshard_data_allocated(t))
    return RESHARD_SUCCESS;
  rs_shape_text(shape, t->info.ndim, t->info.shape);
  if (t->storage->bytes == 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the storage of a tensor of shape %s is freed", what, shape);
  return rs_error(RESHARD_ERROR_INVALID,
                  "%s: a tensor of shape %s at offset %lld reaches to %zu bytes, its storage has %zu since it was "
                  "allocated again",
                  what, shape, (long long)t->info.offset, end_offset(t), t->storage->bytes);
}

reshard_status rs_tensor_use(const char *what, reshard_tensor t, void *stream) {
  RS_TRY(rs_tensor_ready(what, t));
  return use_memory(t->storage, stream);
}

reshard_status rs_tensor_use_on(const char *what, reshard_tensor t, const rs_device *device, void *stream) {
  char is[RS_DEVICE_TEXT], wanted[RS_DEVICE_TEXT];
  if (t->info.device_type != device->type || t->info.device_index != device->index)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a tensor on %s, and not on %s", what,
                    rs_device_text(is, t->info.device_type, t->info.device_index),
                    rs_device_text(wanted, device->type, device->index));
  return rs_tensor_use(what, t, stream);
}

reshard_device rs_tensor_device(reshard_tensor t) { return t->storage->device; }

static reshard_status check_stream(const char *call, reshard_tensor t, void *stream) {
  if (t == NULL)
    return rs_error_null(call, "tensor");
  const rs_device *device = t->storage->device != NULL ? t->storage->device->device : NULL;
  if (device != NULL)
    return rs_stream_check(device, stream, call);
  if (stream != NULL && t->storage->type == RESHARD_DEVICE_CPU)
    return rs_error(RESHARD_ERROR_INVALID, "%s: stream is %p, on the CPU it is NULL", call, stream);
  return RESHARD_SUCCESS;
}

/* The stream may get memory from the pool, or give it back, now. */
static reshard_status check_pool(const char *call, const rs_storage *s, void *stream) {
  return s->pool != NULL ? rs_device_check_capture(call, s->device->device, stream) : RESHARD_SUCCESS;
}

/* The memory is the library's. */
static reshard_status check_owner(const char *call, const rs_storage *s) {
  if (!s->borrowed)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "%s: memory of %zu bytes that the tensor was made over is its owner's", call,
                  s->bytes);
}

/* The tensor begins its storage, and no other program has its address. */
static reshard_status check_free(const char *call, reshard_tensor t) {
  char shape[RS_SHAPE_TEXT];
  int given = atomic_load_explicit(&t->storage->exported, memory_order_acquire);
  if (t->info.offset == 0 && given == 0)
    return RESHARD_SUCCESS;
  rs_shape_text(shape, t->info.ndim, t->info.shape);
  if (t->info.offset != 0)
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: a tensor of shape %s at offset %lld is not the sole occupant of its storage of %zu bytes",
                    call, shape, (long long)t->info.offset, t->storage->bytes);
  return rs_error(RESHARD_ERROR_INVALID,
                  "%s: a tensor of shape %s is not the sole occupant of its storage of %zu bytes: %d managed tensors "
                  "are over it",
                  call, shape, t->storage->bytes, given);
}

reshard_status reshard_storage_alloc(reshard_tensor t, size_t bytes, void *stream, int *allocated) {
  static const char call[] = "reshard_storage_alloc";
  char shape[RS_SHAPE_TEXT];
  RS_TRY(check_stream(call, t, stream));
  bool already = t->storage->bytes == bytes;
  if (!already) {
    if (t->storage->bytes != 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: the storage has %zu bytes, %zu are asked for", call,
                      t->storage->bytes, bytes);
    RS_TRY(check_owner(call, t->storage));
    if (bytes < end_offset(t))
      return rs_error(RESHARD_ERROR_INVALID, "%s: %zu bytes for a tensor of shape %s, which reaches to %zu", call,
                      bytes, rs_shape_text(shape, t->info.ndim, t->info.shape), end_offset(t));
    RS_TRY(check_pool(call, t->storage, stream));
    RS_TRY(rs_storage_alloc(t->storage, bytes, stream));
  }
  if (allocated != NULL)
    *allocated = !already;
  return RESHARD_SUCCESS;
}

reshard_status reshard_storage_free(reshard_tensor t, void *stream, int *freed) {
  static const char call[] = "reshard_storage_free";
  RS_TRY(check_stream(call, t, stream));
  bool already = t->storage->bytes == 0;
  if (!already) {
    RS_TRY(check_owner(call, t->storage));
    RS_TRY(check_free(call, t));
    RS_TRY(check_pool(call, t->storage, stream));
    free_memory(t->storage, stream);
  }
  if (freed != NULL)
    *freed = !already;
  return RESHARD_SUCCESS;
}

reshard_status reshard_storage_record_use(reshard_tensor t, void *stream) {
  static const char call[] = "reshard_storage_record_use";
  RS_TRY(check_stream(call, t, stream));
  return rs_tensor_use(call, t, stream);
}
