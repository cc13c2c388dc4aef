/* Inside of a reshard_device. */
#ifndef RS_DEVICE_HANDLE_H
#define RS_DEVICE_HANDLE_H

#include "device/device.h"

struct rs_storage_pool;
struct rs_staging;
struct rs_deferred_list;
enum { RS_SIDE_IN, RS_SIDE_OUT, RS_SIDES }; /* side streams: copies to the device and from it */
struct reshard_device_s {
  atomic_int references;
  rs_device *device;
  struct rs_storage_pool *storage, *pinned;
  struct rs_staging *staging;
  struct rs_deferred_list *deferred; /* memory/deferred_release.h */
  pthread_mutex_t mutex;             /* of the program */
  struct rs_program *once;           /* of copies that run once */
  _Atomic(void *) side[RS_SIDES];    /* NULL: not made yet */
};

/* The pool of the device's storage, that of pinned memory of the host (memory/pool.h), and the ring of staging
 * (memory/staging.h). They take no memory before they are used. Thread-safe, like all that follows. */
reshard_status rs_device_pool(reshard_device device, struct rs_storage_pool **pool);
reshard_status rs_device_pinned(reshard_device device, struct rs_storage_pool **pool);
reshard_status rs_device_staging(reshard_device device, struct rs_staging **staging);
/* Gives a side stream of the device, made when it is first asked for; NULL on the CPU. */
reshard_status rs_device_side(reshard_device device, int which, void **stream);
/* Runs copies once, in the order of stream. Their tables are in memory that is used again: the host waits only where it
 * is many calls ahead of the device. total_bytes as in compile. */
reshard_status rs_device_run_once(reshard_device device, const rs_copies *copies, int64_t total_bytes, void *stream);
/* RESHARD_ERROR_INVALID, with the name of the call, where the stream is being captured: a graph would use the memory
 * again each time that it runs, when it may be somebody else's. For calls that allocate or free storage. */
reshard_status rs_device_check_capture(const char *call, rs_device *device, void *stream);

#endif
