/* The context of the calling thread, by calls of the driver.
 *
 * cudaSetDevice cannot bring back a thread that has not set a device: it makes a context on GPU 0, where the thread may
 * never work. So the device's context is made current, and then what was current before, which may be none. Calls of
 * the runtime take the current context. The driver's functions are found through the runtime, since a machine without
 * a GPU has no driver to link with. */
#include "device/cuda/cuda.h"

#include <cuda.h>

/* Finds a function as it was in a version of CUDA; NULL: the driver has none. */
static reshard_status look_up_function(const char *name, unsigned version, void **function) {
  enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  *function = NULL;
  (void)version;
#if CUDART_VERSION >= 12050
  RS_CUDA_TRY(cudaGetDriverEntryPointByVersion(name, function, version, cudaEnableDefault, &found));
#elif CUDART_VERSION >= 12000
  RS_CUDA_TRY(cudaGetDriverEntryPoint(name, function, cudaEnableDefault, &found));
#else
  RS_CUDA_TRY(cudaGetDriverEntryPoint(name, function, cudaEnableDefault));
#endif
  return RESHARD_SUCCESS;
}

/* In CUDA 11.3, the oldest that is built with. */
reshard_status rs_cuda_find_function(const char *name, void **function) {
  RS_TRY(look_up_function(name, 11030, function));
  if (*function == NULL)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "the CUDA driver has no function %s", name);
  return RESHARD_SUCCESS;
}

reshard_status rs_cuda_context_open(rs_cuda *cuda) {
  CUresult (*get_device)(CUdevice *, int);
  CUresult (*retain)(CUcontext *, CUdevice);
  CUresult (*get_id)(CUcontext, unsigned long long *);
  CUdevice number;
  RS_TRY(rs_cuda_find_function("cuDeviceGet", (void **)&get_device));
  RS_TRY(rs_cuda_find_function("cuDevicePrimaryCtxRetain", (void **)&retain));
  RS_TRY(rs_cuda_find_function("cuCtxGetCurrent", (void **)&cuda->get_current));
  RS_TRY(rs_cuda_find_function("cuCtxSetCurrent", (void **)&cuda->set_current));
  RS_TRY(rs_cuda_find_function("cuPointerGetAttribute", (void **)&cuda->get_attribute));
  RS_TRY(rs_cuda_find_function("cuPointerGetAttributes", (void **)&cuda->get_attributes));
  RS_TRY(look_up_function("cuCtxGetId", 12000, (void **)&get_id));
  RS_TRY(rs_cuda_check_driver(get_device(&number, cuda->base.index), "cuDeviceGet"));
  RS_TRY(rs_cuda_check_driver(retain(&cuda->context, number), "cuDevicePrimaryCtxRetain"));
  cuda->context_id = (uintptr_t)cuda->context; /* before CUDA 12: contexts that stay differ in that */
  return get_id == NULL ? RESHARD_SUCCESS
                        : rs_cuda_check_driver(get_id(cuda->context, &cuda->context_id), "cuCtxGetId");
}

static CUresult enter_context(rs_cuda *cuda, rs_cuda_before *before) {
  CUcontext current = NULL;
  *before = (rs_cuda_before){NULL, NULL};
  CUresult result = (CUresult)cuda->get_current(&current);
  if (result == CUDA_SUCCESS && current != cuda->context)
    result = (CUresult)cuda->set_current(cuda->context);
  if (result == CUDA_SUCCESS && current != cuda->context)
    *before = (rs_cuda_before){cuda, current};
  return result;
}

reshard_status rs_cuda_enter(const rs_device *device, rs_cuda_before *before) {
  return rs_cuda_check_driver(enter_context((rs_cuda *)device, before), "cuCtxSetCurrent");
}

rs_cuda_before rs_cuda_try_enter(const rs_device *device) {
  rs_cuda_before before;
  (void)enter_context((rs_cuda *)device, &before);
  return before;
}

void rs_cuda_leave(rs_cuda_before before) {
  if (before.left != NULL)
    (void)before.left->set_current(before.context);
}
