/* The CUDA device: its table; errors, streams and events. */
#include "device/cuda/cuda.h"

#include "base/range.h"
#include "device/cuda/ipc.h"
#include "device/cuda/memory.h"
#include "device/cuda/segments.h"
#include "device/environment.h"
#include "kernels/box_copy.h"

#include <stdlib.h>
#include <string.h>

/* --- Errors ----------------------------------------------------------------------------------------------------- */

static reshard_status status_of_error(cudaError_t error) {
  switch (error) {
  case cudaSuccess: return RESHARD_SUCCESS;
  case cudaErrorMemoryAllocation: return RESHARD_ERROR_OUT_OF_MEMORY;
  case cudaErrorNoDevice:
  case cudaErrorInsufficientDriver:
  case cudaErrorStubLibrary:
  case cudaErrorSystemDriverMismatch:
  case cudaErrorCompatNotSupportedOnDevice:
  case cudaErrorNoKernelImageForDevice:
  case cudaErrorUnsupportedPtxVersion:
  case cudaErrorNotSupported: return RESHARD_ERROR_UNSUPPORTED;
  case cudaErrorInvalidValue:
  case cudaErrorInvalidDevice:
  case cudaErrorInvalidDevicePointer:
  case cudaErrorInvalidResourceHandle:
  case cudaErrorStreamCaptureUnsupported:
  case cudaErrorStreamCaptureInvalidated:
  case cudaErrorStreamCaptureMerge:
  case cudaErrorStreamCaptureUnmatched:
  case cudaErrorStreamCaptureUnjoined:
  case cudaErrorStreamCaptureIsolation:
  case cudaErrorStreamCaptureImplicit:
  case cudaErrorStreamCaptureWrongThread: return RESHARD_ERROR_INVALID;
  default: return RESHARD_ERROR_SYSTEM;
  }
}

reshard_status rs_cuda_check(cudaError_t error, const char *call) {
  if (error == cudaSuccess)
    return RESHARD_SUCCESS;
  (void)cudaGetLastError();
  int name = (int)strcspn(call, "("); /* of the function, without its arguments */
  return rs_error(status_of_error(error), "%.*s: %s (CUDA error %d)", name, call, cudaGetErrorString(error),
                  (int)error);
}

void rs_cuda_ignore(cudaError_t error) {
  if (error != cudaSuccess)
    (void)cudaGetLastError();
}

enum cudaStreamCaptureMode rs_cuda_relax(void) {
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  rs_cuda_ignore(cudaThreadExchangeStreamCaptureMode(&mode));
  return mode;
}

cudaError_t rs_cuda_restore(enum cudaStreamCaptureMode mode, cudaError_t error) {
  rs_cuda_ignore(cudaThreadExchangeStreamCaptureMode(&mode));
  return error;
}

/* --- Streams and events ----------------------------------------------------------------------------------------- */

static reshard_status cuda_stream_create(rs_device *device, void **stream) {
  RS_ON_DEVICE(device, cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking));
}

static cudaError_t create_urgent(cudaStream_t *stream) {
  int least = 0, greatest = 0;
  cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
  return error != cudaSuccess ? error : cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, greatest);
}

static reshard_status cuda_stream_create_urgent(rs_device *device, void **stream) {
  RS_ON_DEVICE(device, create_urgent((cudaStream_t *)stream));
}

static void cuda_stream_destroy(rs_device *device, void *stream) {
  if (stream != NULL)
    RS_ON_DEVICE_VOID(device, cudaStreamDestroy(stream));
}

static reshard_status cuda_event_create(rs_device *device, rs_event **event) {
  RS_ON_DEVICE(device, cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDisableTiming));
}

static void cuda_event_destroy(rs_device *device, rs_event *event) {
  if (event != NULL)
    RS_ON_DEVICE_VOID(device, cudaEventDestroy((cudaEvent_t)event));
}

static reshard_status cuda_event_record(rs_device *device, rs_event *event, void *stream) {
  RS_ON_DEVICE(device, cudaEventRecord((cudaEvent_t)event, stream));
}

static reshard_status is_capturing(void *stream, bool *out) {
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error == cudaErrorStreamCaptureImplicit) { /* the default stream, while one that it would wait for is captured */
    (void)cudaGetLastError();
    status = cudaStreamCaptureStatusActive;
  } else {
    RS_TRY(rs_cuda_check(error, "cudaStreamIsCapturing"));
  }
  *out = status != cudaStreamCaptureStatusNone;
  return RESHARD_SUCCESS;
}

static reshard_status cuda_capturing(rs_device *device, void *stream, bool *out) {
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(device, &before));
  reshard_status status = is_capturing(stream, out);
  rs_cuda_leave(before);
  return status;
}

/* A record that is not captured may not be called external. */
static reshard_status cuda_event_record_external(rs_device *device, rs_event *event, void *stream) {
  bool captured;
  RS_TRY(cuda_capturing(device, stream, &captured));
  unsigned flags = captured ? cudaEventRecordExternal : cudaEventRecordDefault;
  RS_ON_DEVICE(device, cudaEventRecordWithFlags((cudaEvent_t)event, stream, flags));
}

static reshard_status cuda_event_wait(rs_device *device, void *stream, rs_event *event) {
  RS_ON_DEVICE(device, cudaStreamWaitEvent(stream, (cudaEvent_t)event, 0));
}

static reshard_status cuda_event_done(rs_device *device, rs_event *event, bool *done) {
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(device, &before));
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  cudaError_t error = rs_cuda_restore(mode, cudaEventQuery((cudaEvent_t)event));
  *done = error == cudaSuccess;
  rs_cuda_ignore(error == cudaErrorNotReady ? error : cudaSuccess);
  reshard_status status = rs_cuda_check(error == cudaErrorNotReady ? cudaSuccess : error, "cudaEventQuery");
  rs_cuda_leave(before);
  return status;
}

/* Synchronizes a stream that is not captured, whether others are or not. */
static reshard_status cuda_synchronize(rs_device *device, void *stream) {
  RS_RANGE("wait", -1, -1, -1, -1);
  RS_ON_DEVICE_RELAXED(device, cudaStreamSynchronize(stream));
}

static reshard_status cuda_finish(rs_device *device) {
  RS_RANGE("wait", -1, -1, -1, -1);
  RS_ON_DEVICE(device, cudaDeviceSynchronize());
}

/* --- The device itself ------------------------------------------------------------------------------------------ */

static void cuda_close(rs_device *device) { rs_upload_buffers_free(device, &rs_cuda_of(device)->cast_buffers); }

static void cuda_destroy(rs_device *device) {
  if (device == NULL)
    return;
  rs_cuda *cuda = rs_cuda_of(device);
  if (device->pool == NULL)
    cuda_close(device);
  device->streams->destroy(device, cuda->upload);
  rs_cuda_part(cuda);
  pthread_mutex_destroy(&cuda->mutex);
  free(cuda->vmm);
  free(cuda);
}

/* All of both tables but storage. */
#define MEMORY_BUT_STORAGE \
  .alloc = rs_cuda_alloc, .free = rs_cuda_free, .host_alloc = rs_cuda_host_alloc, .host_free = rs_cuda_host_free, \
  .memcpy = rs_cuda_memcpy, .memset = rs_cuda_memset, .enable_access = rs_cuda_enable_access, \
  .look_up = rs_cuda_look_up

static const rs_device_memory cuda_memory = {
    MEMORY_BUT_STORAGE,
    .alloc_async = rs_cuda_alloc_async,
    .free_async = rs_cuda_free_async,
};

static const rs_device_memory shared_cuda_memory = {
    MEMORY_BUT_STORAGE,
    .shared = true,
    .alloc_async = rs_cuda_segment_alloc,
    .free_async = rs_cuda_segment_free,
};

static const rs_device_streams cuda_streams = {
    .asynchronous = true,
    .create = cuda_stream_create,
    .create_urgent = cuda_stream_create_urgent,
    .destroy = cuda_stream_destroy,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_record_external = cuda_event_record_external,
    .event_wait = cuda_event_wait,
    .event_done = cuda_event_done,
    .synchronize = cuda_synchronize,
    .finish = cuda_finish,
    .capturing = cuda_capturing,
};

static const rs_device_work cuda_work = {
    .compile = rs_cuda_compile,
    .recompile = rs_cuda_recompile,
    .release = rs_cuda_release,
    .run = rs_cuda_run,
    .copy = rs_cuda_copy,
    .count = rs_cuda_count,
    .cast = rs_cuda_cast,
    .select = rs_cuda_select,
};

/* Checks that there is a GPU of this number; the current one for -1. */
static reshard_status find_device(int wanted, int *index) {
  int driver = 0, devices = 0;
  RS_CUDA_TRY(cudaDriverGetVersion(&driver));
  if (driver == 0)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "this machine has no CUDA driver");
  reshard_status status = rs_cuda_check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  if (status != RESHARD_SUCCESS)
    return rs_error(status, "no GPU can be used (CUDA driver %d.%d, runtime %d.%d): %s", driver / 1000,
                    driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, reshard_last_error());
  if (wanted < 0)
    RS_CUDA_TRY(cudaGetDevice(&wanted));
  if (wanted >= devices)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "there is no cuda:%d: the process sees %d GPU%s", wanted, devices,
                    devices == 1 ? "" : "s");
  *index = wanted;
  return RESHARD_SUCCESS;
}

static reshard_status get_attribute(const rs_cuda *cuda, enum cudaDeviceAttr which, int *value) {
  return rs_cuda_check(cudaDeviceGetAttribute(value, which, cuda->base.index), "cudaDeviceGetAttribute");
}

static reshard_status read_attributes(rs_cuda *cuda) {
  int pools;
  RS_TRY(get_attribute(cuda, cudaDevAttrMultiProcessorCount, &cuda->multiprocessors));
  RS_TRY(get_attribute(cuda, cudaDevAttrMemoryPoolsSupported, &pools));
  RS_TRY(rs_environment_number("RESHARD_CUDA_TILE", &cuda->tile));
  RS_TRY(rs_environment_number("RESHARD_CUDA_BULK_FROM", &cuda->bulk_from));
  RS_TRY(rs_environment_number("RESHARD_CUDA_LEAP", &cuda->leap));
  RS_TRY(rs_environment_number("RESHARD_CUDA_LOADS", &cuda->loads));
  if (cuda->tile != 0 &&
      (cuda->tile % RS_BOX_LINE != 0 || cuda->tile < RS_BOX_TILE_LEAST || cuda->tile > RS_BOX_TILE_MOST))
    return rs_error(RESHARD_ERROR_INVALID, "RESHARD_CUDA_TILE=%lld is no multiple of %d from %d to %d",
                    (long long)cuda->tile, RS_BOX_LINE, RS_BOX_TILE_LEAST, RS_BOX_TILE_MOST);
  if (cuda->loads != 0 && cuda->loads != RS_BOX_ROW_LOADS_FEW && cuda->loads != RS_BOX_ROW_LOADS &&
      cuda->loads != RS_BOX_ROW_LOADS_MANY)
    return rs_error(RESHARD_ERROR_INVALID, "RESHARD_CUDA_LOADS=%lld is none of %d, %d and %d", (long long)cuda->loads,
                    RS_BOX_ROW_LOADS_FEW, RS_BOX_ROW_LOADS, RS_BOX_ROW_LOADS_MANY);
  cuda->pools = pools != 0;
  return RESHARD_SUCCESS;
}

reshard_status rs_device_cuda_create(int index, rs_device **device) {
  RS_TRY(find_device(index, &index));
  rs_cuda *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  made->base = (rs_device){.name = "cuda",
                           .memory = &cuda_memory,
                           .streams = &cuda_streams,
                           .work = &cuda_work,
                           .close = cuda_close,
                           .processes = &rs_cuda_processes,
                           .destroy = cuda_destroy,
                           .type = RESHARD_DEVICE_CUDA,
                           .index = index,
                           .thread_stream = cudaStreamPerThread,
                           .legacy_stream = cudaStreamLegacy};
  reshard_status status = read_attributes(made);
  RS_THEN(status, rs_cuda_context_open(made));
  int failed = status == RESHARD_SUCCESS ? pthread_mutex_init(&made->mutex, NULL) : 0;
  if (failed != 0)
    status = rs_error(RESHARD_ERROR_SYSTEM, "no mutex: %s", strerror(failed));
  RS_TRY_OR(status, free(made));
  rs_cuda_join(made);
  *device = &made->base;
  return RESHARD_SUCCESS;
}

reshard_status rs_device_cuda_share(rs_device *device) {
  RS_TRY(rs_cuda_share(rs_cuda_of(device)));
  device->memory = &shared_cuda_memory;
  return RESHARD_SUCCESS;
}
