/* Memory of GPUs that processes of a node open: segments by their descriptors, and what cudaMalloc gives by CUDA IPC. A
 * handle is of a whole allocation, and is opened as such: arrays in it have the same offset in all processes. Memory of
 * pools and of cuMemMap by others has no handle, which the driver tells with the allocation's bounds and its number. */
#include "device/cuda/ipc.h"

#include "device/cuda/segments.h"

#include <cuda.h>
#include <stdlib.h>
#include <string.h>

/* An allocation, as the driver knows it; bytes is 0 where there is none. */
typedef struct allocation {
  CUdeviceptr at;
  size_t bytes;
  unsigned long long number;
  int exportable, gpu;
} allocation;

static reshard_status find_allocation(const rs_cuda *cuda, const void *at, allocation *found) {
  int what[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *values[] = {&found->at, &found->bytes, &found->number, &found->exportable, &found->gpu};
  *found = (allocation){.gpu = -1};
  return rs_cuda_check_driver(cuda->get_attributes(sizeof what / sizeof *what, what, values, (uintptr_t)at),
                              "cuPointerGetAttributes");
}

static reshard_status export_allocation(const allocation *a, rs_exported_memory *memory) {
  cudaIpcMemHandle_t handle;
  _Static_assert(sizeof handle == sizeof memory->handle, "a handle fits");
  RS_CUDA_TRY(cudaIpcGetMemHandle(&handle, (void *)(uintptr_t)a->at));
  *memory = (rs_exported_memory){.number = a->number, .bytes = (int64_t)a->bytes};
  memcpy(memory->handle, &handle, sizeof handle);
  return RESHARD_SUCCESS;
}

reshard_status rs_cuda_find_exported(rs_device *device, const void *begin, const void *end, rs_exported_memory *memory,
                                     int64_t *inside, bool *found) {
  allocation a;
  rs_cuda_before before;
  rs_cuda_segment_find(rs_cuda_of(device), begin, end, memory, inside, found);
  if (*found)
    return RESHARD_SUCCESS;
  RS_TRY(rs_cuda_enter(device, &before));
  reshard_status status = find_allocation(rs_cuda_of(device), begin, &a);
  *inside = (int64_t)((uintptr_t)begin - (uintptr_t)a.at);
  *found = a.exportable != 0 && a.gpu == device->index && (uintptr_t)end <= (uintptr_t)a.at + a.bytes;
  if (status == RESHARD_SUCCESS && *found)
    status = export_allocation(&a, memory);
  rs_cuda_leave(before);
  return status;
}

/* --- Opened handles of other processes ---------------------------------------------------------------------------- */

/* The driver may refuse a handle that the process has open on a GPU, so transfers and device handles share what is
 * open. An opening is busy while one of them opens or closes it, for which no lock is held: the driver may wait for
 * kernels that wait for another rank. What a lost context has left is never found again. */
typedef struct ipc_opening {
  unsigned long long context; /* of the process on the GPU */
  rs_exported_memory memory;
  void *at;
  int64_t users;
  bool busy;
} ipc_opening;

static pthread_mutex_t ipc_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ipc_changed = PTHREAD_COND_INITIALIZER;
static RS_VEC(ipc_opening) ipc_openings;

/* NULL: there is none. */
static ipc_opening *find_ipc_opening(const rs_cuda *cuda, const rs_exported_memory *memory) {
  for (int64_t i = 0; i < ipc_openings.n; i++) {
    ipc_opening *o = &ipc_openings.at[i];
    if (o->context == cuda->context_id && memcmp(o->memory.handle, memory->handle, sizeof memory->handle) == 0)
      return o;
  }
  return NULL;
}

/* Counts a user of what is open, which *at then is; else adds a busy one, which the caller opens. The lock is held. A
 * handle comes again with another number where its owner has freed the memory, which a mapping here still is of. */
static reshard_status take_ipc_opening(const rs_cuda *cuda, const rs_exported_memory *memory, void **at) {
  ipc_opening *o;
  while ((o = find_ipc_opening(cuda, memory)) != NULL && o->busy)
    pthread_cond_wait(&ipc_changed, &ipc_mutex);
  *at = NULL;
  if (o != NULL && o->memory.number != memory->number)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "its %lld bytes of cudaMalloc are where others were, which are freed and open here still",
                    (long long)memory->bytes);
  if (o != NULL) {
    o->users++;
    *at = o->at;
    return RESHARD_SUCCESS;
  }
  RS_TRY(rs_vec_reserve(&ipc_openings, ipc_openings.n + 1));
  ipc_openings.at[ipc_openings.n++] = (ipc_opening){cuda->context_id, *memory, NULL, 1, true};
  return RESHARD_SUCCESS;
}

/* Ends the busy time of an opening. at: where it is; NULL: it is open no more. */
static void settle_ipc_opening(const rs_cuda *cuda, const rs_exported_memory *memory, void *at) {
  pthread_mutex_lock(&ipc_mutex);
  ipc_opening *o = find_ipc_opening(cuda, memory);
  o->busy = false;
  o->at = at;
  if (at == NULL)
    *o = ipc_openings.at[--ipc_openings.n];
  if (ipc_openings.n == 0) {
    free(ipc_openings.at);
    memset(&ipc_openings, 0, sizeof ipc_openings);
  }
  pthread_cond_broadcast(&ipc_changed);
  pthread_mutex_unlock(&ipc_mutex);
}

static reshard_status open_handle(rs_device *device, const rs_exported_memory *memory, void **at) {
  cudaIpcMemHandle_t handle;
  rs_cuda_before before;
  memcpy(&handle, memory->handle, sizeof handle);
  RS_TRY(rs_cuda_enter(device, &before));
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  cudaError_t error = rs_cuda_restore(mode, cudaIpcOpenMemHandle(at, handle, cudaIpcMemLazyEnablePeerAccess));
  reshard_status status = rs_cuda_check(error, "cudaIpcOpenMemHandle");
  rs_cuda_leave(before);
  if (error == cudaErrorAlreadyMapped)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "its %lld bytes of cudaMalloc are open beside this library (CUDA error %d)",
                    (long long)memory->bytes, (int)error);
  return status;
}

reshard_status rs_cuda_open_exported(rs_device *device, const rs_exported_memory *memory, int fd, void **at) {
  void *opened;
  if (memory->by_file)
    return rs_cuda_segment_open(device, memory, fd, at);
  pthread_mutex_lock(&ipc_mutex);
  reshard_status status = take_ipc_opening(rs_cuda_of(device), memory, &opened);
  pthread_mutex_unlock(&ipc_mutex);
  if (status == RESHARD_SUCCESS && opened == NULL) {
    status = open_handle(device, memory, &opened);
    settle_ipc_opening(rs_cuda_of(device), memory, status == RESHARD_SUCCESS ? opened : NULL);
  }
  if (status == RESHARD_SUCCESS)
    *at = opened;
  return status;
}

static void close_handle(rs_device *device, void *at) {
  rs_cuda_before before = rs_cuda_try_enter(device);
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  rs_cuda_ignore(rs_cuda_restore(mode, cudaIpcCloseMemHandle(at)));
  rs_cuda_leave(before);
}

void rs_cuda_close_exported(rs_device *device, const rs_exported_memory *memory, void *at) {
  if (at != NULL && memory->by_file)
    rs_cuda_segment_close(device, memory, at);
  if (at == NULL || memory->by_file)
    return;
  pthread_mutex_lock(&ipc_mutex);
  ipc_opening *o = find_ipc_opening(rs_cuda_of(device), memory);
  bool last = --o->users == 0;
  o->busy = last;
  pthread_mutex_unlock(&ipc_mutex);
  if (!last)
    return;
  close_handle(device, at);
  settle_ipc_opening(rs_cuda_of(device), memory, NULL);
}
