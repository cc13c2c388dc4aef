/* Segments of GPUs, by the driver's calls for virtual memory. All of the process are in one list, by address: an
 * address alone tells where it is, whichever handle allocated it. The list has the lock of the handles (memory.c),
 * since a segment is opened to the GPUs that storage is open to. */
#include "device/cuda/segments.h"

#include "device/cuda/memory.h"

#include <cuda.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Functions of the driver. */
struct rs_cuda_vmm {
  int rdma; /* network cards may reach memory that asks for that */
  CUresult (*granularity)(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags);
  CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
  CUresult (*release)(CUmemGenericAllocationHandle);
  CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
  CUresult (*unreserve)(CUdeviceptr, size_t);
  CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
  CUresult (*unmap)(CUdeviceptr, size_t);
  CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
  CUresult (*export_handle)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long);
  CUresult (*import_handle)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
};
typedef struct rs_cuda_vmm vmm;

typedef struct gpu_segment {
  const vmm *driver; /* of the handle that allocated it */
  CUdeviceptr at;
  size_t bytes;
  CUmemGenericAllocationHandle handle;
  uint64_t number;
  int gpu;
} gpu_segment;

static RS_VEC(gpu_segment) segments; /* by address */
static uint64_t last_number;
static _Atomic uint64_t freed;

/* Numbers of segments, beside which there are the driver's of its allocations. */
#define SEGMENT_NUMBERS ((uint64_t)1 << 63)

/* A call of the driver, which has its functions in d. */
#define DRIVER_TRY(member, name, ...) RS_TRY(rs_cuda_check_driver(d->member(__VA_ARGS__), name))

static void ignore_driver(CUresult result) { rs_cuda_ignore((cudaError_t)result); }

static CUmemAllocationProp segment_properties(const vmm *d, int gpu) {
  CUmemAllocationProp p;
  memset(&p, 0, sizeof p);
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = gpu;
  p.allocFlags.gpuDirectRDMACapable = d->rdma != 0;
  return p;
}

/* --- The driver's functions --------------------------------------------------------------------------------------- */

static reshard_status find_functions(vmm *d, int gpu) {
  CUresult (*get_device)(CUdevice *, int);
  CUresult (*get_attribute)(int *, CUdevice_attribute, CUdevice);
  CUdevice number;
  const struct {
    const char *name;
    void *function;
  } all[] = {
      {"cuDeviceGet", &get_device},
      {"cuDeviceGetAttribute", &get_attribute},
      {"cuMemGetAllocationGranularity", &d->granularity},
      {"cuMemCreate", &d->create},
      {"cuMemRelease", &d->release},
      {"cuMemAddressReserve", &d->reserve},
      {"cuMemAddressFree", &d->unreserve},
      {"cuMemMap", &d->map},
      {"cuMemUnmap", &d->unmap},
      {"cuMemSetAccess", &d->set_access},
      {"cuMemExportToShareableHandle", &d->export_handle},
      {"cuMemImportFromShareableHandle", &d->import_handle},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    RS_TRY(rs_cuda_find_function(all[i].name, (void **)all[i].function));
  RS_TRY(rs_cuda_check_driver(get_device(&number, gpu), "cuDeviceGet"));
  return rs_cuda_check_driver(
      get_attribute(&d->rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, number),
      "cuDeviceGetAttribute");
}

/* Those of the handle, which are found once; it frees them. */
static reshard_status vmm_of(rs_cuda *cuda, const vmm **out) {
  reshard_status status = RESHARD_SUCCESS;
  pthread_mutex_lock(&cuda->mutex);
  if (cuda->vmm == NULL) {
    vmm *made = NULL;
    status = rs_alloc_zero(&made, 1, sizeof *made);
    RS_THEN(status, find_functions(made, cuda->base.index));
    if (status == RESHARD_SUCCESS)
      cuda->vmm = made;
    else
      free(made);
  }
  *out = cuda->vmm;
  pthread_mutex_unlock(&cuda->mutex);
  return status;
}

static reshard_status find_granule(rs_cuda *cuda, size_t *granule) {
  const vmm *d;
  RS_TRY(vmm_of(cuda, &d));
  const CUmemAllocationProp properties = segment_properties(d, cuda->base.index);
  DRIVER_TRY(granularity, "cuMemGetAllocationGranularity", granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return RESHARD_SUCCESS;
}

reshard_status rs_cuda_share(rs_cuda *cuda) {
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(&cuda->base, &before));
  reshard_status status = find_granule(cuda, &cuda->base.granule);
  rs_cuda_leave(before);
  return status;
}

/* --- Mapping ------------------------------------------------------------------------------------------------------ */

static reshard_status let_gpu(const vmm *d, CUdeviceptr at, size_t bytes, int gpu) {
  CUmemAccessDesc access;
  memset(&access, 0, sizeof access);
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = gpu;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return rs_cuda_check_driver(d->set_access(at, bytes, &access, 1), "cuMemSetAccess");
}

/* Maps a handle at addresses of its own, for kernels of one GPU. */
static reshard_status map_handle(const vmm *d, CUmemGenericAllocationHandle handle, size_t bytes, int gpu,
                                 CUdeviceptr *out) {
  CUdeviceptr at;
  DRIVER_TRY(reserve, "cuMemAddressReserve", &at, bytes, 0, 0, 0);
  reshard_status status = rs_cuda_check_driver(d->map(at, bytes, 0, handle, 0), "cuMemMap");
  if (status == RESHARD_SUCCESS) {
    status = let_gpu(d, at, bytes, gpu);
    if (status != RESHARD_SUCCESS)
      ignore_driver(d->unmap(at, bytes));
  }
  if (status == RESHARD_SUCCESS)
    *out = at;
  else
    ignore_driver(d->unreserve(at, bytes));
  return status;
}

static void unmap_range(const vmm *d, CUdeviceptr at, size_t bytes) {
  ignore_driver(d->unmap(at, bytes));
  ignore_driver(d->unreserve(at, bytes));
}

static reshard_status segment_make(const vmm *d, int gpu, size_t bytes, gpu_segment *out) {
  const CUmemAllocationProp properties = segment_properties(d, gpu);
  gpu_segment s = {.driver = d, .bytes = bytes, .gpu = gpu};
  DRIVER_TRY(create, "cuMemCreate", &s.handle, bytes, &properties, 0);
  reshard_status status = map_handle(d, s.handle, bytes, gpu, &s.at);
  if (status == RESHARD_SUCCESS)
    *out = s;
  else
    ignore_driver(d->release(s.handle));
  return status;
}

static void segment_end(const gpu_segment *s) {
  unmap_range(s->driver, s->at, s->bytes);
  ignore_driver(s->driver->release(s->handle));
}

/* --- The list ----------------------------------------------------------------------------------------------------- */

/* Index of the first segment behind an address. */
static int64_t find_segment_behind(uintptr_t at) {
  int64_t low = 0, high = segments.n;
  RS_LOWER_BOUND(low, high, (uintptr_t)segments.at[i].at <= at);
  return low;
}

/* The one that an address is in; NULL: none. */
static gpu_segment *find_segment_at(const void *at) {
  int64_t i = find_segment_behind((uintptr_t)at) - 1;
  gpu_segment *s = i >= 0 ? &segments.at[i] : NULL;
  return s != NULL && (uintptr_t)at - (uintptr_t)s->at < s->bytes ? s : NULL;
}

static reshard_status let_segment(void *user, int by) {
  const gpu_segment *s = user;
  return let_gpu(s->driver, s->at, s->bytes, by);
}

/* Opens it as storage is, and puts it into the list. */
static reshard_status list_segment(gpu_segment *made) {
  RS_TRY(rs_cuda_for_openings(made->gpu, let_segment, made));
  RS_TRY(rs_vec_reserve(&segments, segments.n + 1));
  int64_t i = find_segment_behind((uintptr_t)made->at);
  memmove(segments.at + i + 1, segments.at + i, (size_t)(segments.n++ - i) * sizeof *segments.at);
  made->number = SEGMENT_NUMBERS | ++last_number;
  segments.at[i] = *made;
  return RESHARD_SUCCESS;
}

static reshard_status add_segment_of(rs_cuda *cuda, size_t bytes, void **memory) {
  const vmm *d;
  gpu_segment made;
  RS_TRY(vmm_of(cuda, &d));
  RS_TRY(segment_make(d, cuda->base.index, bytes, &made));
  rs_cuda_lock();
  reshard_status status = list_segment(&made);
  rs_cuda_unlock();
  RS_TRY_OR(status, segment_end(&made));
  *memory = (void *)(uintptr_t)made.at;
  return RESHARD_SUCCESS;
}

reshard_status rs_cuda_segment_round(rs_device *device, size_t *bytes) {
  size_t granule = device->granule;
  if (granule == 0) /* its storage is not shared */
    RS_TRY(find_granule(rs_cuda_of(device), &granule));
  *bytes = (*bytes + granule - 1) / granule * granule;
  return RESHARD_SUCCESS;
}

reshard_status rs_cuda_segment_create(rs_device *device, size_t bytes, void **memory) {
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(device, &before));
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  reshard_status status = add_segment_of(rs_cuda_of(device), bytes, memory);
  (void)rs_cuda_restore(mode, cudaSuccess);
  rs_cuda_leave(before);
  return status != RESHARD_ERROR_OUT_OF_MEMORY ? status
                                               : rs_error(status, "out of memory: %zu bytes of shared storage on %s:%d",
                                                          bytes, device->name, device->index);
}

reshard_status rs_cuda_segment_alloc(rs_device *device, size_t bytes, void *stream, void **memory) {
  return bytes == 0 || bytes % device->granule != 0 ? rs_cuda_alloc_async(device, bytes, stream, memory)
                                                    : rs_cuda_segment_create(device, bytes, memory);
}

static bool is_segment(const void *memory) {
  rs_cuda_lock();
  bool found = find_segment_at(memory) != NULL;
  rs_cuda_unlock();
  return found;
}

/* Takes the segment that begins at an address out of the list. */
static void unlist_segment(const void *memory, gpu_segment *out) {
  rs_cuda_lock();
  gpu_segment *s = find_segment_at(memory);
  *out = *s;
  atomic_fetch_add(&freed, 1);
  memmove(s, s + 1, (size_t)(segments.at + --segments.n - s) * sizeof *s);
  if (segments.n == 0) {
    free(segments.at);
    memset(&segments, 0, sizeof segments);
  }
  rs_cuda_unlock();
}

void rs_cuda_segment_destroy(rs_device *device, void *memory) {
  gpu_segment s;
  if (memory == NULL)
    return;
  unlist_segment(memory, &s);
  rs_cuda_before before = rs_cuda_try_enter(device);
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  segment_end(&s);
  (void)rs_cuda_restore(mode, cudaSuccess);
  rs_cuda_leave(before);
}

void rs_cuda_segment_free(rs_device *device, void *memory, void *stream) {
  if (memory == NULL)
    return;
  if (!is_segment(memory)) {
    rs_cuda_free_async(device, memory, stream);
    return;
  }
  (void)device->streams->synchronize(device, stream); /* before others hear that it is free */
  rs_cuda_segment_destroy(device, memory);
}

reshard_status rs_cuda_segments_let(int gpu, int by) {
  for (int64_t i = 0; i < segments.n; i++)
    if (segments.at[i].gpu == gpu)
      RS_TRY(let_segment(&segments.at[i], by));
  return RESHARD_SUCCESS;
}

/* --- Other processes ---------------------------------------------------------------------------------------------- */

static reshard_status segment_export(const gpu_segment *s, int *out) {
  const vmm *d = s->driver;
  int fd = -1;
  DRIVER_TRY(export_handle, "cuMemExportToShareableHandle", &fd, s->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
             0);
  (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
  *out = fd;
  return RESHARD_SUCCESS;
}

void rs_cuda_segment_find(const rs_cuda *cuda, const void *begin, const void *end, rs_exported_memory *memory,
                          int64_t *inside, bool *found) {
  rs_cuda_lock();
  const gpu_segment *s = find_segment_at(begin);
  *found = s != NULL && s->gpu == cuda->base.index && (uintptr_t)end <= (uintptr_t)s->at + s->bytes;
  if (*found) {
    *inside = (int64_t)((uintptr_t)begin - (uintptr_t)s->at);
    *memory = (rs_exported_memory){.number = s->number, .bytes = (int64_t)s->bytes, .by_file = true};
  }
  rs_cuda_unlock();
}

/* NULL: it was freed. */
static const gpu_segment *find_segment_number(uint64_t number) {
  for (int64_t i = 0; i < segments.n; i++)
    if (segments.at[i].number == number)
      return &segments.at[i];
  return NULL;
}

uint64_t rs_cuda_segments_freed(void) { return atomic_load(&freed); }

bool rs_cuda_segment_there(uint64_t number) {
  rs_cuda_lock();
  bool there = find_segment_number(number) != NULL;
  rs_cuda_unlock();
  return there;
}

reshard_status rs_cuda_segment_file(rs_device *device, uint64_t number, int *fd) {
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(device, &before));
  rs_cuda_lock();
  const gpu_segment *s = find_segment_number(number);
  reshard_status status = s != NULL ? segment_export(s, fd)
                                    : rs_error(RESHARD_ERROR_INVALID, "a source on %s:%d was freed while it was bound",
                                               device->name, device->index);
  rs_cuda_unlock();
  rs_cuda_leave(before);
  return status;
}

/* A mapping keeps the memory; the handle is not needed beside it. */
static reshard_status map_file(const vmm *d, int gpu, size_t bytes, int fd, void **at) {
  CUmemGenericAllocationHandle handle;
  CUdeviceptr mapped = 0;
  DRIVER_TRY(import_handle, "cuMemImportFromShareableHandle", &handle, (void *)(intptr_t)fd,
             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  reshard_status status = map_handle(d, handle, bytes, gpu, &mapped);
  ignore_driver(d->release(handle));
  if (status == RESHARD_SUCCESS)
    *at = (void *)(uintptr_t)mapped;
  return status;
}

reshard_status rs_cuda_segment_open(rs_device *device, const rs_exported_memory *memory, int fd, void **at) {
  const vmm *d;
  rs_cuda_before before;
  RS_TRY(vmm_of(rs_cuda_of(device), &d));
  RS_TRY(rs_cuda_enter(device, &before));
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  reshard_status status = map_file(d, device->index, (size_t)memory->bytes, fd, at);
  (void)rs_cuda_restore(mode, cudaSuccess);
  rs_cuda_leave(before);
  return status;
}

void rs_cuda_segment_close(rs_device *device, const rs_exported_memory *memory, void *at) {
  rs_cuda_before before = rs_cuda_try_enter(device);
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  unmap_range(rs_cuda_of(device)->vmm, (CUdeviceptr)(uintptr_t)at, (size_t)memory->bytes);
  (void)rs_cuda_restore(mode, cudaSuccess);
  rs_cuda_leave(before);
}
