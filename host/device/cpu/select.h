/* Selection along a dim by the CPU, in box copies. */
#ifndef RS_DEVICE_CPU_SELECT_H
#define RS_DEVICE_CPU_SELECT_H

#include "device/device.h"

reshard_status rs_cpu_select(rs_device *device, const rs_select *select, rs_select_fault *fault, void *stream);

#endif
