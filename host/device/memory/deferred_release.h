/* What has to stay until a stream is done with it, without the host waiting: memory of others that is copied from. It
 * is let go at a later call that has to do with this list, once an event has happened. */
#ifndef RS_DEVICE_KEEP_H
#define RS_DEVICE_KEEP_H

#include "device/device.h"

typedef struct rs_keep rs_keep; /* of a device */
typedef struct rs_kept_item {
  void (*release)(void *user, void *what);
  void *user, *what;
} rs_kept_item;
typedef struct rs_kept { /* of one call */
  struct rs_kept *next;
  rs_event *event;
  bool lost; /* nothing tells when it is done: it stays until the list goes */
  RS_VEC(rs_kept_item) items;
} rs_kept;

reshard_status rs_keep_create(rs_device *device, rs_keep **keep);
/* Blocks until what is kept is done with. NULL is allowed. */
void rs_keep_destroy(rs_keep *keep);

/* Lets go what is done with; then an empty one. Thread-safe, as is the end. */
reshard_status rs_keep_begin(rs_keep *keep, rs_kept **kept);
/* release(user, what) is called once, from whatever thread calls later. On an error it is not. */
reshard_status rs_kept_add(rs_kept *kept, void (*release)(void *user, void *what), void *user, void *what);
/* What was added stays until the event has happened, which the caller has recorded behind the last use (or says that it
 * is lost); `launched` false: nothing uses it, and it goes now. kept is the list's from here on. */
void rs_keep_end(rs_keep *keep, rs_kept *kept, bool launched);

#endif
