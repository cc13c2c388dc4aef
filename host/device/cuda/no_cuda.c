/* In place of cuda*.c in a build without CUDA. */
#include "device/device.h"

reshard_status rs_device_cuda_create(int index, rs_device **device) {
  (void)index;
  (void)device;
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "this build has no CUDA");
}

reshard_status rs_device_cuda_share(rs_device *device) {
  (void)device;
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "this build has no CUDA");
}
