/* Devices, versions, error state. */
#include "machine.hpp"

#include <cuda.h>

using namespace vg;

static bool is_device(int device) { return device >= 0 && (size_t)device < M.devices.size(); }

void vg::enter_context(Thread &thread, int device) {
  thread.device = device;
  thread.context = M.devices[(size_t)device].context = true;
}

cudaError_t cudaGetDeviceCount(int *n) {
  VG_CALL(cudaGetDeviceCount, CALL_ALWAYS | CALL_NO_CONTEXT);
  *n = (int)M.devices.size();
  return api.end(cudaSuccess);
}

cudaError_t cudaSetDevice(int device) {
  VG_CALL(cudaSetDevice, CALL_ALWAYS | CALL_NO_CONTEXT);
  if (!is_device(device))
    return api.end(cudaErrorInvalidDevice);
  api.thread->chosen = device;
  enter_context(*api.thread, device);
  return api.end(cudaSuccess);
}

cudaError_t cudaGetDevice(int *device) {
  VG_CALL(cudaGetDevice, CALL_ALWAYS | CALL_NO_CONTEXT);
  *device = api.thread->device;
  return api.end(cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  VG_CALL(cudaGetDeviceProperties, CALL_ALWAYS | CALL_NO_CONTEXT);
  if (!is_device(device))
    return api.end(cudaErrorInvalidDevice);
  *p = cudaDeviceProp{};
  snprintf(p->name, sizeof p->name, "virtual GPU %d", device);
  p->totalGlobalMem = M.options.memory;
  p->major = 9;
  p->minor = 0;
  p->multiProcessorCount = M.options.multiprocessors;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = 227 << 10;
  p->l2CacheSize = (int)M.options.l2;
  p->pciBusID = device + 1;
  p->unifiedAddressing = p->memoryPoolsSupported = p->canMapHostMemory = p->concurrentKernels = 1;
  p->maxGridSize[0] = INT32_MAX;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  return api.end(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  VG_CALL(cudaDeviceGetAttribute, CALL_ALWAYS | CALL_NO_CONTEXT);
  if (!is_device(device))
    return api.end(cudaErrorInvalidDevice);
  switch (attribute) {
  case cudaDevAttrMultiProcessorCount: *value = M.options.multiprocessors; break;
  case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
  case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
  case cudaDevAttrWarpSize: *value = 32; break;
  case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
  case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
  case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
  case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
  case cudaDevAttrL2CacheSize: *value = (int)M.options.l2; break;
  case cudaDevAttrMaxGridDimX: *value = INT32_MAX; break;
  case cudaDevAttrMaxGridDimY:
  case cudaDevAttrMaxGridDimZ: *value = 65535; break;
  case cudaDevAttrPciBusId: *value = device + 1; break;
  case cudaDevAttrUnifiedAddressing:
  case cudaDevAttrMemoryPoolsSupported:
  case cudaDevAttrCanMapHostMemory:
  case cudaDevAttrConcurrentKernels: *value = 1; break;
  default: *value = 0;
  }
  return api.end(cudaSuccess);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int n, int device) {
  VG_CALL(cudaDeviceGetPCIBusId, CALL_NO_CONTEXT);
  if (!is_device(device) || n < 13)
    return api.end(cudaErrorInvalidValue);
  snprintf(text, (size_t)n, "0000:%02x:00.0", (unsigned)(device + 1) & 255);
  return api.end(cudaSuccess);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  VG_CALL(cudaDeviceGetStreamPriorityRange, CALL_PLAIN);
  *least = 0;
  *greatest = -5;
  return api.end(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *version) {
  VG_CALL(cudaDriverGetVersion, CALL_NO_GPU_NEEDED);
  *version = M.on && M.options.devices >= 0 ? CUDART_VERSION : 0;
  return api.end(cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  VG_CALL(cudaRuntimeGetVersion, CALL_NO_GPU_NEEDED);
  *version = CUDART_VERSION;
  return api.end(cudaSuccess);
}

/* --- Contexts: the driver's calls --------------------------------------------------------------------------------- */
bool vg_has_context(int device) {
  Lock lock;
  return (size_t)device < M.devices.size() && M.devices[(size_t)device].context;
}

int vg_current_context(void) {
  Lock lock;
  return self().context ? self().device : -1;
}

/* A process has a context of its own on a device, with a number in each machine that no other has. */
struct Context {
  int device;
  uint64_t generation, number;
};

static Context *context_of(int device, const Thread &thread) {
  static std::map<std::pair<int, int>, Context> contexts;
  static uint64_t last;
  Context &c = contexts.try_emplace({process_of(thread), device}, Context{device, 0, 0}).first->second;
  if (c.generation != M.generation)
    c = Context{device, M.generation, ++last};
  return &c;
}

static int device_of(const void *context) { return ((const Context *)context)->device; }

static cudaError_t get_device(int *device, int number) {
  VG_CALL(cuDeviceGet, CALL_ALWAYS | CALL_NO_CONTEXT);
  *device = number;
  return api.end(is_device(number) ? cudaSuccess : cudaErrorInvalidDevice);
}

static cudaError_t retain_context(void **context, int device) {
  VG_CALL(cuDevicePrimaryCtxRetain, CALL_ALWAYS | CALL_NO_CONTEXT);
  if (!is_device(device))
    return api.end(cudaErrorInvalidDevice);
  M.devices[(size_t)device].context = true;
  *context = context_of(device, *api.thread);
  return api.end(cudaSuccess);
}

static cudaError_t get_context(void **context) {
  VG_CALL(cuCtxGetCurrent, CALL_ALWAYS | CALL_NO_CONTEXT);
  *context = api.thread->context ? context_of(api.thread->device, *api.thread) : nullptr;
  return api.end(cudaSuccess);
}

static cudaError_t get_context_number(const void *context, unsigned long long *number) {
  VG_CALL(cuCtxGetId, CALL_ALWAYS | CALL_NO_CONTEXT);
  *number = ((const Context *)context)->number;
  return api.end(cudaSuccess);
}

static cudaError_t get_driver_attribute(int *value, int attribute, int device) {
  VG_CALL(cuDeviceGetAttribute, CALL_ALWAYS | CALL_NO_CONTEXT);
  if (!is_device(device) || attribute != CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)
    return api.end(cudaErrorInvalidValue);
  *value = !M.options.no_rdma;
  return api.end(cudaSuccess);
}

static cudaError_t set_context(const void *context) {
  VG_CALL(cuCtxSetCurrent, CALL_ALWAYS | CALL_NO_CONTEXT);
  if (context && !is_device(device_of(context)))
    return api.end(cudaErrorInvalidValue);
  if (context)
    enter_context(*api.thread, device_of(context));
  else
    api.thread->device = api.thread->chosen;
  api.thread->context = context != nullptr;
  return api.end(cudaSuccess);
}

static cudaError_t get_pointer_attribute(unsigned *value, int attribute, unsigned long long at) {
  VG_CALL(cuPointerGetAttribute, CALL_NO_CONTEXT);
  const Alloc *alloc = find((uintptr_t)at);
  if (attribute != 16 || !api.thread->context) /* CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, of the current context */
    return api.end(cudaErrorInvalidValue);
  *value = alloc && !alloc->ended && reaches(*alloc, api.thread->device) ? 3 : 0;
  return api.end(cudaSuccess);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *found) {
  VG_CALL(cudaGetDriverEntryPointByVersion, CALL_NO_CONTEXT);
  static const std::vector<DriverFunction> functions = {{"cuDeviceGet", (void *)get_device},
                                                        {"cuDevicePrimaryCtxRetain", (void *)retain_context},
                                                        {"cuDeviceGetAttribute", (void *)get_driver_attribute},
                                                        {"cuCtxGetCurrent", (void *)get_context},
                                                        {"cuCtxGetId", (void *)get_context_number, 12000},
                                                        {"cuCtxSetCurrent", (void *)set_context},
                                                        {"cuPointerGetAttribute", (void *)get_pointer_attribute},
                                                        {"cuPointerGetAttributes", (void *)get_pointer_attributes}};
  *function = nullptr;
  for (auto *list : {&functions, &mapping_functions})
    for (auto &f : *list)
      if (strcmp(f.name, name) == 0 && f.since <= version)
        *function = f.function;
  *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return api.end(cudaSuccess);
}

/* --- Peers -------------------------------------------------------------------------------------------------------- */
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  VG_CALL(cudaDeviceCanAccessPeer, CALL_NO_CONTEXT);
  if (!is_device(device) || !is_device(peer))
    return api.end(cudaErrorInvalidDevice);
  *can = device != peer && !M.options.no_peers;
  return api.end(cudaSuccess);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  VG_CALL(cudaDeviceEnablePeerAccess, CALL_PLAIN);
  Device &device = M.devices[(size_t)api.thread->device];
  if (!is_device(peer) || peer == api.thread->device || M.options.no_peers)
    return api.end(cudaErrorInvalidDevice);
  if (flags)
    return api.end(cudaErrorInvalidValue);
  if (device.peers[(size_t)peer])
    return api.end(cudaErrorPeerAccessAlreadyEnabled);
  device.peers[(size_t)peer] = true;
  return api.end(cudaSuccess);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  VG_CALL(cudaDeviceDisablePeerAccess, CALL_PLAIN);
  Device &device = M.devices[(size_t)api.thread->device];
  if (!is_device(peer) || !device.peers[(size_t)peer])
    return api.end(cudaErrorPeerAccessNotEnabled);
  device.peers[(size_t)peer] = false;
  return api.end(cudaSuccess);
}

/* --- Errors ------------------------------------------------------------------------------------------------------- */
/* An error that stays is not cleared. */
static cudaError_t sticky(const Thread &thread) {
  return M.on && !M.devices.empty() ? M.devices[(size_t)thread.device].broken : cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
  Lock lock;
  Thread &thread = self();
  cudaError_t last = thread.last, broken = sticky(thread);
  thread.last = cudaSuccess;
  return broken != cudaSuccess ? broken : last;
}

cudaError_t cudaPeekAtLastError(void) {
  Lock lock;
  cudaError_t broken = sticky(self());
  return broken != cudaSuccess ? broken : self().last;
}

#define ERRORS(X) \
  X(cudaSuccess, "no error") \
  X(cudaErrorInvalidValue, "invalid argument") \
  X(cudaErrorMemoryAllocation, "out of memory") \
  X(cudaErrorInitializationError, "initialization error") \
  X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version") \
  X(cudaErrorNoDevice, "no CUDA-capable device is detected") \
  X(cudaErrorInvalidDevice, "invalid device ordinal") \
  X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy") \
  X(cudaErrorInvalidResourceHandle, "invalid resource handle") \
  X(cudaErrorNotReady, "device not ready") \
  X(cudaErrorIllegalAddress, "an illegal memory access was encountered") \
  X(cudaErrorMisalignedAddress, "misaligned address") \
  X(cudaErrorLaunchTimeout, "the launch timed out and was terminated") \
  X(cudaErrorLaunchFailure, "unspecified launch failure") \
  X(cudaErrorLaunchOutOfResources, "too many resources requested for launch") \
  X(cudaErrorInvalidConfiguration, "invalid configuration argument") \
  X(cudaErrorInvalidDeviceFunction, "invalid device function") \
  X(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device") \
  X(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled") \
  X(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled") \
  X(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped") \
  X(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region") \
  X(cudaErrorAlreadyMapped, "resource already mapped") \
  X(cudaErrorNotPermitted, "operation not permitted") \
  X(cudaErrorNotSupported, "operation not supported") \
  X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing") \
  X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture") \
  X(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences") \
  X(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began") \
  X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work") \
  X(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream") \
  X(cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing blocking stream") \
  X(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread") \
  X(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream") \
  X(cudaErrorUnknown, "unknown error")

const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define X(name, text) \
  case name: return #name;
    ERRORS(X)
#undef X
  default: return "unrecognized error code";
  }
}

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define X(name, text) \
  case name: return text;
    ERRORS(X)
#undef X
  default: return "unrecognized error code";
  }
}
