/* What the environment says to whoever creates a device or a communicator. Nothing else reads it. */
#ifndef RS_DEVICE_ENVIRONMENT_H
#define RS_DEVICE_ENVIRONMENT_H

#include "base/base.h"

#include <reshard/device.h>

/* A number of 0 or more; *value is left alone where the variable is not set or empty. */
reshard_status rs_environment_number(const char *name, int64_t *value);
/* threads 0 and isa AUTO are replaced by RESHARD_THREADS and RESHARD_ISA, where these are set. Checks the threads. */
reshard_status rs_environment_cpu(int *threads, reshard_isa *isa);

#endif
