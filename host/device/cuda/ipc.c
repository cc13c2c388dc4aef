/* Memory of GPUs that processes of a node open: segments by their descriptors, and what cudaMalloc gives by CUDA IPC. A
 * handle is of a whole allocation, and is opened as such: arrays in it have the same offset in all processes. Memory of
 * pools and of cuMemMap by others has no handle, which the driver tells with the allocation's bounds and its number. */
#include "device/cuda/ipc.h"

#include "device/cuda/segments.h"

#include <cuda.h>
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

reshard_status rs_cuda_open_exported(rs_device *device, const rs_exported_memory *memory, int fd, void **at) {
  cudaIpcMemHandle_t handle;
  if (memory->by_file)
    return rs_cuda_segment_open(device, memory, fd, at);
  memcpy(&handle, memory->handle, sizeof handle);
  RS_ON_DEVICE_RELAXED(device, cudaIpcOpenMemHandle(at, handle, cudaIpcMemLazyEnablePeerAccess));
}

void rs_cuda_close_exported(rs_device *device, const rs_exported_memory *memory, void *at) {
  if (at != NULL && memory->by_file)
    rs_cuda_segment_close(device, memory, at);
  if (at == NULL || memory->by_file)
    return;
  rs_cuda_before before = rs_cuda_try_enter(device);
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  rs_cuda_ignore(rs_cuda_restore(mode, cudaIpcCloseMemHandle(at)));
  rs_cuda_leave(before);
}
