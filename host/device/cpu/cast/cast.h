/* Casts by the CPU. */
#ifndef RS_DEVICE_CPU_CAST_CAST_H
#define RS_DEVICE_CPU_CAST_CAST_H

#include "device/cpu/copy/kernels.h"
#include "device/cpu/threads.h"
#include "device/device.h"

/* All casts as one job, divided over the threads by bytes. stream_from: bytes read and written, by halves, from which
 * on stores go past the cache. The floating-point environment of the threads does not matter, and is as before.
 * Allocates nothing. */
void rs_cpu_cast(rs_threads *threads, const rs_kernels *kernels, int64_t stream_from, const rs_casts *casts);

#endif
