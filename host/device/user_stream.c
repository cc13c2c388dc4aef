/* Streams for host programs that have none of CUDA's. */
#include "device/device.h"
#include "device/handle.h"
#include "device/stream.h"

reshard_status rs_stream_check(const rs_device *device, void *stream, const char *call) {
  if (stream == NULL || device->streams->asynchronous)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "%s: stream is %p, on the CPU it is NULL", call, stream);
}

static reshard_status check_device(const char *call, reshard_device device) {
  return device != NULL ? RESHARD_SUCCESS : rs_error(RESHARD_ERROR_INVALID, "%s: device is NULL", call);
}

reshard_status reshard_stream_create(reshard_device device, void **stream) {
  RS_TRY(check_device("reshard_stream_create", device));
  if (stream == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_stream_create: stream is NULL");
  return device->device->streams->create(device->device, stream);
}

void reshard_stream_destroy(reshard_device device, void *stream) {
  if (device == NULL || stream == NULL)
    return;
  (void)reshard_device_forget_stream(device, stream);
  device->device->streams->destroy(device->device, stream);
}

reshard_status reshard_stream_order(reshard_device device, void *earlier, void *later) {
  static const char call[] = "reshard_stream_order";
  RS_TRY(check_device(call, device));
  rs_device *d = device->device;
  RS_TRY(rs_stream_check(d, earlier, call));
  RS_TRY(rs_stream_check(d, later, call));
  rs_event *event;
  RS_TRY(d->streams->event_create(d, &event));
  reshard_status status = rs_stream_order(d, earlier, later, event, "user: later after earlier");
  d->streams->event_destroy(d, event); /* the wait that it is for has been given already */
  return status;
}

reshard_status reshard_stream_synchronize(reshard_device device, void *stream) {
  RS_TRY(check_device("reshard_stream_synchronize", device));
  RS_TRY(rs_stream_check(device->device, stream, "reshard_stream_synchronize"));
  return device->device->streams->synchronize(device->device, stream);
}
