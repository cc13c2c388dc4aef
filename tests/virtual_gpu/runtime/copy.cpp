/* Copies, memset, host functions. */
#include "machine.hpp"

using namespace vg;

enum class Place { Device, Pinned, Pageable };

static Place place_of(const void *p, Alloc **alloc) {
  *alloc = find((uintptr_t)p);
  if (*alloc)
    return (*alloc)->kind == Kind::Device ? Place::Device : Place::Pinned;
  return in_arena((uintptr_t)p) ? Place::Device : Place::Pageable;
}

static bool inside(const Alloc *alloc, const void *p, size_t n, const char *call) {
  uintptr_t at = (uintptr_t)p;
  if (alloc && at >= alloc->base && at + n <= alloc->base + alloc->bytes)
    return true;
  report(std::string("bounds ") + call, "out of bounds: %s of %zu bytes at %lld of %s", call, n,
         alloc ? (long long)(at - alloc->base) : 0, alloc ? describe(*alloc).c_str() : "what no allocation is");
  return false;
}

static bool allowed(enum cudaMemcpyKind kind, bool from_device, bool to_device) {
  switch (kind) {
  case cudaMemcpyHostToHost: return !from_device && !to_device;
  case cudaMemcpyHostToDevice: return !from_device && to_device;
  case cudaMemcpyDeviceToHost: return from_device && !to_device;
  case cudaMemcpyDeviceToDevice: return from_device && to_device;
  case cudaMemcpyDefault: return true;
  default: return false;
  }
}

/* blocks: a call without Async. Such a one returns when it is done, except between places of the device; one with
 * Async may do so where memory is pageable. It does here, as the memory may be gone later; but nobody may rely on it,
 * so the host's clock stays what it was. */
static cudaError_t copy(Thread &thread, void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                        cudaStream_t handle, bool blocks, const char *call) {
  Stream *stream = stream_of(handle, call);
  if (!stream)
    return cudaErrorInvalidResourceHandle;
  if (n == 0)
    return cudaSuccess;
  Alloc *target, *source;
  Place to_place = place_of(to, &target), from_place = place_of(from, &source);
  if (!to || !from)
    return cudaErrorInvalidValue;
  if (!allowed(kind, from_place == Place::Device, to_place == Place::Device))
    return cudaErrorInvalidMemcpyDirection;
  if ((to_place != Place::Pageable && !inside(target, to, n, call)) ||
      (from_place != Place::Pageable && !inside(source, from, n, call)))
    return cudaErrorInvalidValue;
  bool pageable = to_place == Place::Pageable || from_place == Place::Pageable;
  if (blocks && unsafe(thread, call))
    return cudaErrorStreamCaptureUnsupported;
  if (pageable && !blocks) {
    count(M.counts.host_syncs);
    count(M.counts.pageable_copies);
  }
  Work work;
  work.what = call;
  work.peers = true; /* copies reach other devices without peer access, through the host */
  work.ranges.push_back({(uintptr_t)from, n, false});
  work.ranges.push_back({(uintptr_t)to, n, true});
  work.run = [=] { memmove(to, from, n); };
  Id id;
  cudaError_t error = submit(*stream, std::move(work), &id);
  bool waits = blocks && !(to_place == Place::Device && from_place == Place::Device);
  if (error != cudaSuccess || id == 0 || (!waits && !pageable))
    return error;
  if (!waits)
    return run_until(Frontier{id}) ? cudaSuccess : cudaErrorLaunchTimeout;
  return thread_awaits(thread, {Frontier{id}, stream->clock});
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind) {
  VG_CALL(cudaMemcpy, CALL_COPY | CALL_SYNC);
  return api.end(copy(*api.thread, to, from, n, kind, cudaStreamLegacy, true, "cudaMemcpy"));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream) {
  VG_CALL(cudaMemcpyAsync, CALL_COPY);
  return api.end(copy(*api.thread, to, from, n, kind, stream, false, "cudaMemcpyAsync"));
}

cudaError_t cudaMemcpyPeer(void *to, int, const void *from, int, size_t n) {
  VG_CALL(cudaMemcpyPeer, CALL_COPY | CALL_SYNC);
  return api.end(copy(*api.thread, to, from, n, cudaMemcpyDeviceToDevice, cudaStreamLegacy, true, "cudaMemcpyPeer"));
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t n, cudaStream_t stream) {
  VG_CALL(cudaMemcpyPeerAsync, CALL_COPY);
  return api.end(copy(*api.thread, to, from, n, cudaMemcpyDeviceToDevice, stream, false, "cudaMemcpyPeerAsync"));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
  VG_CALL(cudaMemcpy2DAsync, CALL_COPY);
  cudaError_t error = width > to_pitch || width > from_pitch ? cudaErrorInvalidValue : cudaSuccess;
  for (size_t row = 0; error == cudaSuccess && row < rows; row++)
    error = copy(*api.thread, (char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind, stream,
                 false, "cudaMemcpy2DAsync");
  return api.end(error);
}

#if CUDART_VERSION >= 13000
/* In any order on a real one; here one after the other. */
cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *n, size_t count,
                                 struct cudaMemcpyAttributes *attributes, size_t *first, size_t groups,
                                 cudaStream_t stream) {
  VG_CALL(cudaMemcpyBatchAsync, CALL_COPY);
  cudaError_t error = cudaSuccess;
  if (count == 0 || groups == 0 || groups > count || first[0] != 0 || !stream || stream == cudaStreamLegacy)
    error = cudaErrorInvalidValue;
  for (size_t g = 0; error == cudaSuccess && g < groups; g++)
    if (attributes[g].srcAccessOrder != cudaMemcpySrcAccessOrderStream)
      error = cudaErrorNotSupported;
  for (size_t i = 0; error == cudaSuccess && i < count; i++)
    error = n[i] == 0
                ? cudaErrorInvalidValue
                : copy(*api.thread, to[i], from[i], n[i], cudaMemcpyDefault, stream, false, "cudaMemcpyBatchAsync");
  return api.end(error);
}
#endif

static cudaError_t set(Thread &thread, void *to, int byte, size_t n, cudaStream_t handle, bool blocks,
                       const char *call) {
  Stream *stream = stream_of(handle, call);
  if (!stream)
    return cudaErrorInvalidResourceHandle;
  if (n == 0)
    return cudaSuccess;
  Alloc *target;
  Place place = place_of(to, &target);
  if (place == Place::Pageable || !inside(target, to, n, call))
    return cudaErrorInvalidValue;
  Work work;
  work.what = call;
  work.ranges.push_back({(uintptr_t)to, n, true});
  work.run = [=] { memset(to, byte, n); };
  Id id;
  cudaError_t error = submit(*stream, std::move(work), &id);
  if (error != cudaSuccess || id == 0 || !blocks || place == Place::Device)
    return error;
  return thread_awaits(thread, {Frontier{id}, stream->clock});
}

cudaError_t cudaMemset(void *to, int byte, size_t n) {
  VG_CALL(cudaMemset, CALL_COPY | CALL_SYNC);
  return api.end(set(*api.thread, to, byte, n, cudaStreamLegacy, true, "cudaMemset"));
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t n, cudaStream_t stream) {
  VG_CALL(cudaMemsetAsync, CALL_COPY);
  return api.end(set(*api.thread, to, byte, n, stream, false, "cudaMemsetAsync"));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *user) {
  VG_CALL(cudaLaunchHostFunc, CALL_LAUNCH);
  Stream *stream = stream_of(handle, "cudaLaunchHostFunc");
  if (!stream)
    return api.end(cudaErrorInvalidResourceHandle);
  Work work;
  work.what = "a host function";
  work.unlocked = true;
  work.run = [=] { function(user); };
  return api.end(submit(*stream, std::move(work)));
}

void vg_copy(void *stream, void *dst, const void *src, size_t bytes) {
  cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, (cudaStream_t)stream);
  cudaStreamSynchronize((cudaStream_t)stream);
}
