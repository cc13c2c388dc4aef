/* Memory in the order of streams, and the pools that it comes from. */
#include "machine.hpp"

#include <algorithm>

namespace vg {

static cudaError_t alloc_async(Thread &, void **out, size_t bytes, Pool *pool, cudaStream_t handle, const char *call) {
  Stream *stream = stream_of(handle, call);
  if (!stream)
    return cudaErrorInvalidResourceHandle;
  if (!out)
    return cudaErrorInvalidValue;
  *out = nullptr;
  if (!pool)
    pool = M.devices[(size_t)stream->device].pool;
  if (pool->destroyed)
    return cudaErrorInvalidValue;
  if (stream->capture) { /* a graph of its own could hold memory; the library does not ask for that */
    report(std::string("capture ") + call, "misuse: %s while the stream is captured", call);
    return invalidate(stream->capture, cudaErrorStreamCaptureUnsupported);
  }
  if (bytes == 0)
    return cudaSuccess;
  if (!take_memory(pool->device, bytes))
    return cudaErrorMemoryAllocation;
  Work work;
  work.what = call;
  Id id;
  submit(*stream, std::move(work), &id);
  Alloc *alloc = add_alloc(Kind::Device, pool->device, bytes, id);
  if (!alloc)
    return cudaErrorMemoryAllocation;
  alloc->pool = pool;
  pool->used += bytes;
  pool->used_high = std::max(pool->used_high, pool->used);
  *out = (void *)alloc->base;
  return cudaSuccess;
}

static Pool *pool_of(cudaMemPool_t handle, const char *call) {
  auto it = M.handles.find(handle);
  Pool *pool = (Pool *)handle;
  if (it != M.handles.end() && it->second == HANDLE_POOL && !pool->destroyed)
    return pool;
  report(std::string("pool ") + call, "misuse: %s with a handle that is no memory pool", call);
  return nullptr;
}

} // namespace vg

using namespace vg;

cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t stream) {
  VG_CALL(cudaMallocAsync, CALL_ALLOC);
  VG_END(alloc_async(*api.thread, p, bytes, nullptr, stream, "cudaMallocAsync"));
}

cudaError_t cudaMallocFromPoolAsync(void **p, size_t bytes, cudaMemPool_t handle, cudaStream_t stream) {
  VG_CALL(cudaMallocFromPoolAsync, CALL_ALLOC);
  Pool *pool = pool_of(handle, "cudaMallocFromPoolAsync");
  VG_END(pool ? alloc_async(*api.thread, p, bytes, pool, stream, "cudaMallocFromPoolAsync") : cudaErrorInvalidValue);
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t handle) {
  VG_CALL(cudaFreeAsync, CALL_FREE);
  Stream *stream = stream_of(handle, "cudaFreeAsync");
  if (!stream)
    VG_END(cudaErrorInvalidResourceHandle);
  if (stream->capture) {
    report("capture free", "misuse: cudaFreeAsync while the stream is captured");
    VG_END(invalidate(stream->capture, cudaErrorStreamCaptureUnsupported));
  }
  Alloc *alloc = p ? owned_alloc(p, true, "cudaFreeAsync") : nullptr;
  if (!alloc)
    VG_END(p ? cudaErrorInvalidValue : cudaSuccess);
  give_memory(*alloc);
  Work work;
  work.what = "cudaFreeAsync";
  work.after = [alloc](const Op &op) { access_end(*alloc, op.id, op.clock); };
  submit(*stream, std::move(work));
  VG_END(cudaSuccess);
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
  VG_CALL(cudaDeviceGetDefaultMemPool, CALL_PLAIN);
  if (device < 0 || (size_t)device >= M.devices.size())
    return api.end(cudaErrorInvalidDevice);
  *pool = (cudaMemPool_t)&M.devices[(size_t)device].default_pool;
  return api.end(cudaSuccess);
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) {
  VG_CALL(cudaDeviceGetMemPool, CALL_PLAIN);
  if (device < 0 || (size_t)device >= M.devices.size())
    return api.end(cudaErrorInvalidDevice);
  *pool = (cudaMemPool_t)M.devices[(size_t)device].pool;
  return api.end(cudaSuccess);
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t handle) {
  VG_CALL(cudaDeviceSetMemPool, CALL_PLAIN);
  Pool *pool = pool_of(handle, "cudaDeviceSetMemPool");
  if (!pool || pool->device != device)
    return api.end(cudaErrorInvalidValue);
  M.devices[(size_t)device].pool = pool;
  return api.end(cudaSuccess);
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *out, const struct cudaMemPoolProps *props) {
  VG_CALL(cudaMemPoolCreate, CALL_CREATE);
  int device = props ? props->location.id : -1;
  if (!out || !props || props->location.type != cudaMemLocationTypeDevice || device < 0 ||
      (size_t)device >= M.devices.size() || props->allocType != cudaMemAllocationTypePinned)
    return api.end(cudaErrorInvalidValue);
  M.pools.emplace_back(new Pool{});
  Pool *pool = M.pools.back().get();
  pool->device = device;
  pool->owned = true;
  pool->access.assign(M.devices.size(), false);
  pool->access[(size_t)device] = true;
  M.handles[pool] = HANDLE_POOL;
  *out = (cudaMemPool_t)pool;
  return api.end(cudaSuccess);
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  VG_CALL(cudaMemPoolDestroy, CALL_DESTROY);
  Pool *pool = pool_of(handle, "cudaMemPoolDestroy");
  if (!pool || !pool->owned)
    VG_END(cudaErrorInvalidValue);
  for (Device &device : M.devices)
    if (device.pool == pool)
      device.pool = &device.default_pool;
  pool->destroyed = true; /* what is still allocated from it lives on */
  VG_END(cudaSuccess);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr attribute, void *value) {
  VG_CALL(cudaMemPoolSetAttribute, CALL_PLAIN);
  Pool *pool = pool_of(handle, "cudaMemPoolSetAttribute");
  if (!pool || !value)
    return api.end(cudaErrorInvalidValue);
  if (attribute == cudaMemPoolAttrReleaseThreshold)
    memcpy(&pool->threshold, value, sizeof pool->threshold);
  else if (attribute == cudaMemPoolAttrUsedMemHigh)
    pool->used_high = pool->used;
  return api.end(cudaSuccess);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr attribute, void *value) {
  VG_CALL(cudaMemPoolGetAttribute, CALL_PLAIN);
  Pool *pool = pool_of(handle, "cudaMemPoolGetAttribute");
  if (!pool || !value)
    return api.end(cudaErrorInvalidValue);
  uint64_t answer = 0;
  int flag = 1;
  switch (attribute) {
  case cudaMemPoolAttrReleaseThreshold: answer = pool->threshold; break;
  case cudaMemPoolAttrUsedMemCurrent:
  case cudaMemPoolAttrReservedMemCurrent: answer = pool->used; break;
  case cudaMemPoolAttrUsedMemHigh:
  case cudaMemPoolAttrReservedMemHigh: answer = pool->used_high; break;
  case cudaMemPoolReuseFollowEventDependencies:
  case cudaMemPoolReuseAllowOpportunistic:
  case cudaMemPoolReuseAllowInternalDependencies: memcpy(value, &flag, sizeof flag); return api.end(cudaSuccess);
  default: return api.end(cudaErrorInvalidValue);
  }
  memcpy(value, &answer, sizeof answer);
  return api.end(cudaSuccess);
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t) {
  VG_CALL(cudaMemPoolTrimTo, CALL_PLAIN);
  return api.end(pool_of(handle, "cudaMemPoolTrimTo") ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemPoolGetAccess(enum cudaMemAccessFlags *flags, cudaMemPool_t handle,
                                 struct cudaMemLocation *location) {
  VG_CALL(cudaMemPoolGetAccess, CALL_PLAIN);
  Pool *pool = pool_of(handle, "cudaMemPoolGetAccess");
  if (!pool || !flags || !location || location->type != cudaMemLocationTypeDevice || location->id < 0 ||
      (size_t)location->id >= M.devices.size())
    return api.end(cudaErrorInvalidValue);
  *flags = pool->access[(size_t)location->id] ? cudaMemAccessFlagsProtReadWrite : cudaMemAccessFlagsProtNone;
  return api.end(cudaSuccess);
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const struct cudaMemAccessDesc *list, size_t n) {
  VG_CALL(cudaMemPoolSetAccess, CALL_PLAIN);
  Pool *pool = pool_of(handle, "cudaMemPoolSetAccess");
  if (!pool)
    return api.end(cudaErrorInvalidValue);
  for (size_t i = 0; i < n; i++) {
    int device = list[i].location.id;
    if (list[i].location.type != cudaMemLocationTypeDevice || device < 0 || (size_t)device >= M.devices.size() ||
        (M.options.no_peers && device != pool->device))
      return api.end(cudaErrorInvalidDevice);
    if (list[i].flags == cudaMemAccessFlagsProtNone && device == pool->device)
      return api.end(cudaErrorInvalidValue);
    pool->access[(size_t)device] = list[i].flags == cudaMemAccessFlagsProtReadWrite;
  }
  return api.end(cudaSuccess);
}
