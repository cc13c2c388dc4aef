/* Memory of GPUs that processes of a node open: what cudaMalloc gives, by CUDA IPC. A handle is of a whole allocation,
 * and is opened as such: arrays in it have the same offset in all processes. Memory of pools and of cuMemMap has no
 * handle, which the driver tells with the allocation's bounds and its number. */
#include "device/cuda/cuda.h"

#include <cuda.h>
#include <string.h>

typedef CUresult (*attributes_function)(unsigned int n, CUpointer_attribute *attributes, void **values, CUdeviceptr at);

/* The driver's cuPointerGetAttributes, which the runtime has no call for. */
static reshard_status find_attributes(attributes_function *out) {
  void *function = NULL;
  enum cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  RS_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuPointerGetAttributes", &function, 12000, cudaEnableDefault, &found));
#else
  RS_CUDA_TRY(cudaGetDriverEntryPoint("cuPointerGetAttributes", &function, cudaEnableDefault, &found));
#endif
  if (found != cudaDriverEntryPointSuccess || function == NULL)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "the CUDA driver has no cuPointerGetAttributes");
  memcpy(out, &function, sizeof *out);
  return RESHARD_SUCCESS;
}

/* An allocation, as the driver knows it; bytes is 0 where there is none. */
typedef struct allocation {
  CUdeviceptr at;
  size_t bytes;
  unsigned long long number;
  int exportable, gpu;
} allocation;

static reshard_status find_allocation(const void *at, allocation *found) {
  attributes_function get = NULL;
  CUpointer_attribute what[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *values[] = {&found->at, &found->bytes, &found->number, &found->exportable, &found->gpu};
  *found = (allocation){.gpu = -1};
  RS_TRY(find_attributes(&get));
  CUresult error = get(sizeof what / sizeof *what, what, values, (CUdeviceptr)(uintptr_t)at);
  if (error != CUDA_SUCCESS)
    return rs_error(RESHARD_ERROR_SYSTEM, "cuPointerGetAttributes: CUDA driver error %d", (int)error);
  return RESHARD_SUCCESS;
}

static reshard_status export_allocation(const allocation *a, rs_exported_memory *memory) {
  cudaIpcMemHandle_t handle;
  _Static_assert(sizeof handle == sizeof memory->handle, "a handle fits");
  RS_CUDA_TRY(cudaIpcGetMemHandle(&handle, (void *)(uintptr_t)a->at));
  memory->number = a->number;
  memory->bytes = (int64_t)a->bytes;
  memcpy(memory->handle, &handle, sizeof handle);
  return RESHARD_SUCCESS;
}

reshard_status rs_cuda_find_exported(rs_device *device, const void *begin, const void *end, rs_exported_memory *memory,
                                     int64_t *inside, bool *found) {
  allocation a;
  int before;
  RS_TRY(rs_cuda_enter(device, &before));
  reshard_status status = find_allocation(begin, &a);
  *inside = (int64_t)((uintptr_t)begin - (uintptr_t)a.at);
  *found = a.exportable != 0 && a.gpu == device->index && (uintptr_t)end <= (uintptr_t)a.at + a.bytes;
  if (status == RESHARD_SUCCESS && *found)
    status = export_allocation(&a, memory);
  rs_cuda_leave(before);
  return status;
}

reshard_status rs_cuda_open_exported(rs_device *device, const rs_exported_memory *memory, void **at) {
  cudaIpcMemHandle_t handle;
  memcpy(&handle, memory->handle, sizeof handle);
  RS_ON_DEVICE_RELAXED(device, cudaIpcOpenMemHandle(at, handle, cudaIpcMemLazyEnablePeerAccess));
}

void rs_cuda_close_exported(rs_device *device, void *at) {
  if (at == NULL)
    return;
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  int before = rs_cuda_try_enter(device);
  rs_cuda_ignore(cudaIpcCloseMemHandle(at));
  rs_cuda_leave(before);
  rs_cuda_ignore(rs_cuda_restore(mode, cudaSuccess));
}
