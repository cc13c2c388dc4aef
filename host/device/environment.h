/* Environment variables, read when a device or a communicator is created, and when files begin to be read or written
 * without one. Nothing else reads them. */
#ifndef RS_DEVICE_ENVIRONMENT_H
#define RS_DEVICE_ENVIRONMENT_H

#include "base/base.h"

#include <reshard/device.h>

/* Reads a number of 0 or more; leaves *value alone where the variable is not set or empty. */
RS_PRIVATE_API reshard_status rs_environment_number(const char *name, int64_t *value);
/* Replaces threads 0 and isa AUTO by RESHARD_THREADS and RESHARD_ISA, where these are set. Checks the threads. */
reshard_status rs_environment_cpu(int *threads, reshard_isa *isa);

#endif
