#include "device/stream.h"

reshard_status rs_stream_check(const rs_device *device, void *stream, const char *call) {
  if (stream == NULL || device->streams->asynchronous)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "%s: stream is %p, on the CPU it is NULL", call, stream);
}
