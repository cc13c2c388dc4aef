/* The public handle of a device, with what belongs to it. */
#include "device/handle.h"
#include "device/cpu/cpu.h"
#include "device/environment.h"
#include "device/memory/deferred_release.h"
#include "device/memory/pool.h"
#include "device/memory/staging.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { STAGING_MOST = 256 << 20 }; /* bytes of pinned memory in the ring */

/* "cuda" is -1, "cuda:7" is 7. */
static reshard_status parse_cuda(const char *name, int *index) {
  *index = -1;
  if (name[4] == '\0')
    return RESHARD_SUCCESS;
  int64_t number = 0;
  const char *at = name + 5;
  for (; *at >= '0' && *at <= '9' && number <= INT_MAX; at++)
    number = number * 10 + (*at - '0');
  if (name[4] != ':' || at == name + 5 || *at != '\0' || number > INT_MAX)
    return rs_error(RESHARD_ERROR_INVALID, "device '%.32s': \"cpu\", \"cuda\" and \"cuda:N\" are possible", name);
  *index = (int)number;
  return RESHARD_SUCCESS;
}

static reshard_status check_options(const reshard_device_options *given, reshard_device_options *options) {
  *options = (reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .threads = 0};
  if (given == NULL)
    return RESHARD_SUCCESS;
  RS_TRY(RS_SIZED(reshard_device_options, given));
  if (given->keep_bytes < -1)
    return rs_error(RESHARD_ERROR_INVALID, "keep_bytes %lld: -1, 0 or a number of bytes", (long long)given->keep_bytes);
  if (given->allocator != NULL && (given->allocator->alloc == NULL || given->allocator->free == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "the allocator's function %s is NULL",
                    given->allocator->alloc == NULL ? "alloc" : "free");
  if (given->shared != 0 && given->shared != 1)
    return rs_error(RESHARD_ERROR_INVALID, "shared %d: 0 or 1", given->shared);
  if (given->shared && given->allocator != NULL)
    return rs_error(RESHARD_ERROR_INVALID, "shared storage is the library's own, and an allocator is given");
  if (given->max_blocks < 0)
    return rs_error(RESHARD_ERROR_INVALID, "max_blocks %lld: 0 for no limit, or a number of blocks",
                    (long long)given->max_blocks);
  *options = *given;
  return RESHARD_SUCCESS;
}

static reshard_status create_device(const char *name, reshard_device_options *options, rs_device **device) {
  if (strcmp(name, "cpu") == 0) {
    RS_TRY(rs_environment_cpu(&options->threads, &options->isa));
    RS_TRY(rs_device_cpu_create(options->threads, options->isa, device));
    return options->shared ? rs_device_cpu_share(*device) : RESHARD_SUCCESS;
  }
  if (strncmp(name, "cuda", 4) != 0)
    return rs_error(RESHARD_ERROR_INVALID, "device '%.32s': \"cpu\", \"cuda\" and \"cuda:N\" are possible", name);
  int index;
  RS_TRY(parse_cuda(name, &index));
  RS_TRY(rs_device_cuda_create(index, device));
  if (options->shared)
    RS_TRY(rs_device_cuda_share(*device));
  (*device)->max_blocks = (int)rs_min(options->max_blocks, INT32_MAX); /* of a grid */
  return RESHARD_SUCCESS;
}

static void destroy_handle(reshard_device d) {
  if (d->once != NULL)
    d->device->work->release(d->device, d->once);
  pthread_mutex_destroy(&d->mutex);
  rs_deferred_list_destroy(d->deferred);
  rs_staging_destroy(d->staging);
  rs_storage_pool_destroy(d->pinned);
  if (d->device != NULL && d->device->close != NULL)
    d->device->close(d->device);
  rs_storage_pool_destroy(d->storage);
  for (int i = 0; i < RS_SIDES; i++)
    if (atomic_load(&d->side[i]) != NULL)
      d->device->streams->destroy(d->device, atomic_load(&d->side[i]));
  if (d->device != NULL)
    d->device->destroy(d->device);
  free(d);
}

reshard_status reshard_device_create(const char *name, const reshard_device_options *options, reshard_device *device) {
  if (name == NULL || device == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_device_create: %s is NULL", name == NULL ? "name" : "device");
  reshard_device_options complete;
  RS_TRY(check_options(options, &complete));
  reshard_device made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  atomic_init(&made->references, 1);
  pthread_mutex_init(&made->mutex, NULL);
  for (int i = 0; i < RS_SIDES; i++)
    atomic_init(&made->side[i], NULL);
  reshard_status status;
  RS_TRY_GOTO(status, create_device(name, &complete, &made->device), failed);
  RS_TRY_GOTO(status, rs_storage_pool_create(made->device, &complete, &made->storage), failed);
  made->device->pool = made->storage;
  RS_TRY_GOTO(status, rs_storage_pool_create_pinned(made->device, &made->pinned), failed);
  RS_TRY_GOTO(status, rs_staging_create(made->device, STAGING_MOST, &made->staging), failed);
  RS_TRY_GOTO(status, rs_deferred_list_create(made->device, &made->deferred), failed);
  *device = made;
  return RESHARD_SUCCESS;
failed:
  destroy_handle(made);
  return status;
}

reshard_device reshard_device_retain(reshard_device device) { return RS_RETAIN(device); }

void reshard_device_release(reshard_device device) {
  if (RS_DROP(device))
    destroy_handle(device);
}

static reshard_status check_given(const char *call, reshard_device device, const void *out, const char *name) {
  if (device == NULL || out == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s is NULL", call, device == NULL ? "device" : name);
  return RESHARD_SUCCESS;
}

reshard_status reshard_device_get_info(reshard_device device, reshard_device_info *info) {
  RS_TRY(check_given("reshard_device_get_info", device, info, "info"));
  *info = (reshard_device_info){.type = device->device->type,
                                .index = device->device->index,
                                .streams = device->device->streams->asynchronous,
                                .max_blocks = device->device->max_blocks};
  return RESHARD_SUCCESS;
}

reshard_status reshard_device_get_memory_stats(reshard_device device, reshard_memory_stats *stats) {
  RS_TRY(check_given("reshard_device_get_memory_stats", device, stats, "stats"));
  rs_storage_pool_stats(device->storage, stats);
  return RESHARD_SUCCESS;
}

reshard_status reshard_device_trim(reshard_device device, size_t keep_bytes) {
  RS_TRY(check_given("reshard_device_trim", device, device, "device"));
  return rs_storage_pool_trim(device->storage, keep_bytes);
}

reshard_status reshard_device_forget_stream(reshard_device device, void *stream) {
  RS_TRY(check_given("reshard_device_forget_stream", device, device, "device"));
  RS_TRY(rs_storage_pool_forget(device->storage, stream));
  return rs_storage_pool_forget(device->pinned, stream);
}

reshard_status rs_device_pool(reshard_device device, rs_storage_pool **pool) {
  *pool = device->storage;
  return RESHARD_SUCCESS;
}

reshard_status rs_device_pinned(reshard_device device, rs_storage_pool **pool) {
  *pool = device->pinned;
  return RESHARD_SUCCESS;
}

reshard_status rs_device_staging(reshard_device device, rs_staging **staging) {
  *staging = device->staging;
  return RESHARD_SUCCESS;
}

reshard_status rs_device_side(reshard_device device, int which, void **stream) {
  void *there = atomic_load_explicit(&device->side[which], memory_order_acquire);
  if (there == NULL) {
    void *made;
    RS_TRY(device->device->streams->create(device->device, &made));
    if (atomic_compare_exchange_strong(&device->side[which], &there, made))
      there = made;
    else
      device->device->streams->destroy(device->device, made);
  }
  *stream = there;
  return RESHARD_SUCCESS;
}

reshard_status rs_device_check_capture(const char *call, rs_device *device, void *stream) {
  bool captured = false;
  RS_TRY(device->streams->capturing(device, stream, &captured));
  return !captured ? RESHARD_SUCCESS
                   : rs_error(RESHARD_ERROR_INVALID,
                              "%s: stream %p is being captured; storage is allocated and freed outside of graphs", call,
                              stream);
}

reshard_status rs_device_run_once(reshard_device d, const rs_copies *copies, int64_t total_bytes, void *stream) {
  const rs_device_work *work = d->device->work;
  pthread_mutex_lock(&d->mutex);
  reshard_status status = work->recompile(d->device, copies, total_bytes, &d->once);
  RS_THEN(status, work->run(d->device, 1, &d->once, stream));
  pthread_mutex_unlock(&d->mutex);
  return status;
}
