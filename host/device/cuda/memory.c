/* Memory of a CUDA device, and of the host for it.
 *
 * Storage comes from a memory pool of the handle's own, allocated and freed in the order of streams by the driver. The
 * pool keeps all it has: by default the driver gives memory back at each synchronisation, and getting it again takes
 * hundreds of milliseconds. Nor does it make a stream wait for another one that freed the memory, which may wait for a
 * peer. Where a device has no such pools, storage is plain memory, and freeing it blocks.
 *
 * CUDA refuses some calls while any thread captures a stream: allocating, asking whether an event has happened. They
 * do no harm to a graph that does not contain them, and are made in relaxed mode. */

#include "device/cuda/memory.h"

#include "device/cuda/segments.h"

#include <cuda.h>
#include <stdlib.h>
#include <string.h>

/* Handles of the process, and which GPUs reach storage of which. Ranks that share the process bring handles of their
 * own. Any of these may have the arrays or the staging that a peer's kernel reads. */
typedef struct opening {
  int gpu, by;
} opening;
static pthread_mutex_t handles_mutex = PTHREAD_MUTEX_INITIALIZER;
static rs_cuda *handles;
static RS_VEC(opening) openings;

void rs_cuda_lock(void) { pthread_mutex_lock(&handles_mutex); }
void rs_cuda_unlock(void) { pthread_mutex_unlock(&handles_mutex); }

reshard_status rs_cuda_for_openings(int gpu, reshard_status (*open)(void *user, int by), void *user) {
  for (int64_t i = 0; i < openings.n; i++)
    if (openings.at[i].gpu == gpu)
      RS_TRY(open(user, openings.at[i].by));
  return RESHARD_SUCCESS;
}

static reshard_status out_of_memory(reshard_status status, const rs_device *device, const char *what, size_t bytes) {
  if (status != RESHARD_ERROR_OUT_OF_MEMORY)
    return status;
  return rs_error(status, "out of memory: %zu bytes of %s cuda:%d: %s", bytes, what, device->index,
                  reshard_last_error());
}

/* Allocates memory of the GPU, or pinned memory of the host. */
static reshard_status allocate_memory(rs_device *device, bool pinned, size_t bytes, void **memory) {
  void *made = NULL;
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(device, &before));
  reshard_status status = RESHARD_SUCCESS;
  if (bytes > 0) {
    enum cudaStreamCaptureMode mode = rs_cuda_relax();
    cudaError_t error = pinned ? cudaHostAlloc(&made, bytes, cudaHostAllocPortable) : cudaMalloc(&made, bytes);
    status = rs_cuda_check(rs_cuda_restore(mode, error), pinned ? "cudaHostAlloc" : "cudaMalloc");
  }
  rs_cuda_leave(before);
  if (status != RESHARD_SUCCESS)
    return out_of_memory(status, device, pinned ? "pinned memory for" : "memory on", bytes);
  *memory = made;
  return RESHARD_SUCCESS;
}

reshard_status rs_cuda_alloc(rs_device *device, size_t bytes, void **memory) {
  return allocate_memory(device, false, bytes, memory);
}

void rs_cuda_free(rs_device *device, void *memory) {
  if (memory == NULL)
    return;
  rs_cuda_before before = rs_cuda_try_enter(device); /* which GPU memory is of, its address says, too */
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  rs_cuda_ignore(rs_cuda_restore(mode, cudaFree(memory)));
  rs_cuda_leave(before);
}

/* Lets kernels of another GPU reach all memory of a pool, also what it has given already. */
static reshard_status share_pool(void *pool, int by) {
  const struct cudaMemAccessDesc access = {{cudaMemLocationTypeDevice, by}, cudaMemAccessFlagsProtReadWrite};
  return rs_cuda_check(cudaMemPoolSetAccess(pool, &access, 1), "cudaMemPoolSetAccess");
}

static reshard_status make_pool(rs_cuda *cuda, cudaMemPool_t *out) {
  struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned};
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = cuda->base.index;
  cudaMemPool_t pool;
  uint64_t keep = UINT64_MAX;
  int no = 0;
  RS_CUDA_TRY(cudaMemPoolCreate(&pool, &props));
  reshard_status status =
      rs_cuda_check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
  RS_THEN(status, rs_cuda_check(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &no),
                                "cudaMemPoolSetAttribute"));
  RS_THEN(status, rs_cuda_for_openings(cuda->base.index, share_pool, pool));
  RS_TRY_OR(status, rs_cuda_ignore(cudaMemPoolDestroy(pool)));
  *out = pool;
  return RESHARD_SUCCESS;
}

static reshard_status pool_of(rs_cuda *cuda, cudaMemPool_t *pool) {
  reshard_status status = RESHARD_SUCCESS;
  pthread_mutex_lock(&handles_mutex);
  if (cuda->pool == NULL)
    status = make_pool(cuda, &cuda->pool);
  *pool = cuda->pool;
  pthread_mutex_unlock(&handles_mutex);
  return status;
}

void rs_cuda_join(rs_cuda *cuda) {
  pthread_mutex_lock(&handles_mutex);
  cuda->next = handles;
  handles = cuda;
  pthread_mutex_unlock(&handles_mutex);
}

void rs_cuda_part(rs_cuda *cuda) {
  bool last = true;
  int64_t kept = 0;
  pthread_mutex_lock(&handles_mutex);
  for (rs_cuda **at = &handles; *at != NULL;) {
    if (*at == cuda) {
      *at = cuda->next;
      continue;
    }
    last &= (*at)->base.index != cuda->base.index;
    at = &(*at)->next;
  }
  for (int64_t i = 0; i < openings.n && last; i++)
    if (openings.at[i].gpu != cuda->base.index)
      openings.at[kept++] = openings.at[i];
  openings.n = last ? kept : openings.n;
  if (handles == NULL) {
    free(openings.at);
    memset(&openings, 0, sizeof openings);
  }
  pthread_mutex_unlock(&handles_mutex);
  if (cuda->pool != NULL) /* its memory stays until what was freed in stream order is free */
    RS_ON_DEVICE_VOID(&cuda->base, cudaMemPoolDestroy(cuda->pool));
}

reshard_status rs_cuda_alloc_async(rs_device *device, size_t bytes, void *stream, void **memory) {
  rs_cuda *cuda = rs_cuda_of(device);
  if (!cuda->pools || bytes == 0)
    return rs_cuda_alloc(device, bytes, memory);
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(device, &before));
  void *made = NULL;
  cudaMemPool_t pool;
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  reshard_status status = pool_of(cuda, &pool);
  RS_THEN(status, rs_cuda_check(cudaMallocFromPoolAsync(&made, bytes, pool, stream), "cudaMallocFromPoolAsync"));
  (void)rs_cuda_restore(mode, cudaSuccess);
  rs_cuda_leave(before);
  if (status != RESHARD_SUCCESS)
    return out_of_memory(status, device, "storage on", bytes);
  *memory = made;
  return RESHARD_SUCCESS;
}

void rs_cuda_free_async(rs_device *device, void *memory, void *stream) {
  if (!rs_cuda_of(device)->pools)
    rs_cuda_free(device, memory);
  else if (memory != NULL)
    RS_ON_DEVICE_VOID(device, cudaFreeAsync(memory, stream));
}

reshard_status rs_cuda_host_alloc(rs_device *device, size_t bytes, void **memory) {
  return allocate_memory(device, true, bytes, memory);
}

void rs_cuda_host_free(rs_device *device, void *memory) {
  if (memory == NULL)
    return;
  rs_cuda_before before = rs_cuda_try_enter(device); /* which GPU memory is of, its address says, too */
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  rs_cuda_ignore(rs_cuda_restore(mode, cudaFreeHost(memory)));
  rs_cuda_leave(before);
}

reshard_status rs_cuda_memcpy(rs_device *device, void *dst, const void *src, size_t bytes, void *stream) {
  if (bytes == 0)
    return RESHARD_SUCCESS;
  RS_ON_DEVICE(device, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream));
}

/* Storage of a GPU, to kernels of GPU `by`: that of each handle's pool, which may be there already. */
static reshard_status open_storage(rs_cuda *cuda, int by) {
  const int gpu = cuda->base.index;
  bool open = !cuda->pools && cuda->base.granule == 0;
  reshard_status status = RESHARD_SUCCESS;
  pthread_mutex_lock(&handles_mutex);
  for (int64_t i = 0; i < openings.n; i++)
    open |= openings.at[i].gpu == gpu && openings.at[i].by == by;
  if (!open)
    status = rs_vec_reserve(&openings, openings.n + 1);
  if (!open)
    RS_THEN(status, rs_cuda_segments_let(gpu, by));
  for (const rs_cuda *handle = handles; !open && handle != NULL; handle = handle->next)
    if (handle->base.index == gpu && handle->pool != NULL)
      RS_THEN(status, share_pool(handle->pool, by));
  if (!open && status == RESHARD_SUCCESS)
    openings.at[openings.n++] = (opening){gpu, by};
  pthread_mutex_unlock(&handles_mutex);
  return status;
}

reshard_status rs_cuda_open(rs_device *device, int by) {
  int possible = 0;
  rs_cuda_before before;
  if (by == device->index)
    return RESHARD_SUCCESS;
  RS_CUDA_TRY(cudaDeviceCanAccessPeer(&possible, by, device->index));
  if (!possible)
    return RESHARD_SUCCESS;
  RS_TRY(rs_cuda_enter(device, &before));
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  reshard_status status = open_storage(rs_cuda_of(device), by);
  (void)rs_cuda_restore(mode, cudaSuccess);
  rs_cuda_leave(before);
  return status;
}

/* The current device is `device`. Plain memory first, then storage of `other`. */
static reshard_status reach_peer(rs_device *device, rs_device *other, bool *can) {
  int possible = 0;
  RS_CUDA_TRY(cudaDeviceCanAccessPeer(&possible, device->index, other->index));
  if (!possible) {
    *can = false;
    return RESHARD_SUCCESS;
  }
  cudaError_t error = cudaDeviceEnablePeerAccess(other->index, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled)
    (void)cudaGetLastError();
  else
    RS_TRY(rs_cuda_check(error, "cudaDeviceEnablePeerAccess"));
  RS_TRY(open_storage(rs_cuda_of(other), device->index));
  *can = true;
  return RESHARD_SUCCESS;
}

reshard_status rs_cuda_enable_access(rs_device *device, rs_device *other, bool *can) {
  if (other->type != RESHARD_DEVICE_CUDA || other->index == device->index) {
    *can = other->type == RESHARD_DEVICE_CUDA;
    return RESHARD_SUCCESS;
  }
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(device, &before));
  reshard_status status = reach_peer(device, other, can);
  rs_cuda_leave(before);
  return status;
}

/* Access of another GPU to memory of a GPU depends on peer access, on its pool, or on its mapping: the driver knows. */
static reshard_status find_access(rs_cuda *cuda, const void *at, bool *accessible) {
  unsigned flags = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
  RS_TRY(rs_cuda_check_driver(cuda->get_attribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, (uintptr_t)at),
                              "cuPointerGetAttribute"));
  *accessible = (flags & CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ) != 0;
  return RESHARD_SUCCESS;
}

reshard_status rs_cuda_look_up(rs_device *device, const void *at, rs_address *address) {
  struct cudaPointerAttributes attributes = {.type = cudaMemoryTypeUnregistered};
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(device, &before));
  reshard_status status = rs_cuda_check(cudaPointerGetAttributes(&attributes, at), "cudaPointerGetAttributes");
  bool gpu = attributes.type == cudaMemoryTypeDevice;
  *address = (rs_address){gpu ? attributes.device : -1, attributes.type != cudaMemoryTypeUnregistered};
  if (gpu && attributes.device != device->index)
    RS_THEN(status, find_access(rs_cuda_of(device), at, &address->accessible));
  rs_cuda_leave(before);
  return status;
}
